"""Bars on a terminal, lines elsewhere, nothing when quiet; times by stage in every case."""

from __future__ import annotations

import io
import re
import threading

import pytest

from gpu_dedup.progress import Progress, bytes_text, seconds_text


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1536, "1.54 kB"), (99_950, "100 kB"), (999_499, "999 kB"),
     (999_500, "1 MB"), (1.5e9, "1.5 GB"), (2e12, "2 TB"), (5e15, "5000 TB")],
)  # fmt: skip
def test_bytes_text(count: float, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.00 s"), (0.346, "0.35 s"), (12.34, "12.3 s"), (99.6, "1 min 40 s"), (245, "4 min 05 s"),
     (3599.6, "1 h 00 min"), (11_220, "3 h 07 min")],
)  # fmt: skip
def test_seconds_text(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_lines_come_every_ten_seconds_and_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream=stream, clock=clock)
    with progress.stage("read", 1_000_000) as update:
        for _ in range(9):  # 9 updates, 4 s apart: lines after 12, 24 and 36 s
            clock.now += 4
            update(100_000)
    assert stream.getvalue().splitlines() == [
        "gpu-dedup: read: 300 kB of 1 MB (30 %), 25 kB/s, 28.0 s left",
        "gpu-dedup: read: 600 kB of 1 MB (60 %), 25 kB/s, 16.0 s left",
        "gpu-dedup: read: 900 kB of 1 MB (90 %), 25 kB/s, 4.00 s left",
        "gpu-dedup: read: done after 36.0 s, 900 kB, 25 kB/s",
    ]
    assert progress.times == {"read": 36.0}


def test_a_quick_stage_is_one_line() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream=stream, clock=clock)
    with progress.stage("collide", 17, "bands") as update:
        for _ in range(17):
            clock.now += 0.5
            update(1)
    with progress.stage("verify"):
        clock.now += 1
    assert stream.getvalue().splitlines() == [
        "gpu-dedup: collide: done after 8.50 s, 17 bands, 2 bands/s",
        "gpu-dedup: verify: done after 1.00 s",
    ]


def test_a_total_that_is_not_known_gives_no_time_left() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress(stream=stream, clock=clock).stage("read") as update:
        clock.now += 20
        update(40)
    assert stream.getvalue().splitlines()[0] == "gpu-dedup: read: 40 B, 2 B/s"


def test_quiet_says_nothing_and_still_keeps_times() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(False, stream, clock)
    progress.note("compiling")
    with progress.stage("read", 10) as update:
        clock.now += 30
        update(10)
    assert stream.getvalue() == ""
    assert progress.times == {"read": 30.0}
    assert progress.notes == ["compiling"]


def test_a_bar_on_a_terminal_shows_bytes_rate_and_share() -> None:
    stream = Terminal()
    progress = Progress(stream=stream)
    with progress.stage("read", 4_000_000) as update:
        update(1_000_000)
        progress.note("a line above the bar")
        update(3_000_000)
    text = stream.getvalue()
    assert "gpu-dedup: a line above the bar" in text
    last = re.split(r"[\r\n]+", text.strip())[-1]
    assert last.startswith("read")
    assert "100%" in last
    assert "4.00M/4.00M" in last
    assert "B/s" in last
    assert "done after" not in text


def test_no_thread_is_left_behind() -> None:
    before = set(threading.enumerate())
    with Progress(True, Terminal()).stage("read", 10) as update:
        update(10)
        assert set(threading.enumerate()) == before


@pytest.mark.parametrize("show", [None, True, False])
def test_an_error_passes_through_and_the_time_is_kept(show: bool | None) -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(show, stream, clock)

    def interrupted() -> None:
        with progress.stage("read", 10):
            clock.now += 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert progress.times == {"read": 2.0}
    if show is None:
        assert stream.getvalue() == "gpu-dedup: read: stopped after 2.00 s\n"


def test_a_stage_that_comes_again_adds_up() -> None:
    clock = Clock()
    progress = Progress(False, clock=clock)
    for name, seconds in (("a", 1), ("b", 10), ("a", 100)):
        with progress.stage(name):
            clock.now += seconds
    assert list(progress.times.items()) == [("a", 101.0), ("b", 10.0)]


@pytest.mark.parametrize("show", [None, True])
def test_updates_from_many_threads_are_all_counted(show: bool | None) -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(show, stream, clock)
    with progress.stage("read", 8000) as update:
        clock.now += 1
        threads = [threading.Thread(target=lambda: [update(1) for _ in range(1000)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert ("8 kB" if show is None else "8.00k/8.00k") in stream.getvalue()


def test_a_stream_that_is_gone_ends_the_lines_not_the_run() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    progress = Progress(stream=Gone())
    progress.note("one")
    with progress.stage("read", 10) as update:
        update(10)
    assert list(progress.times) == ["read"]
