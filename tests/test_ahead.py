"""Files that are read ahead: every item once, in its order, within bounds; errors in their turn; nothing is left."""

from __future__ import annotations

import gzip
import importlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import corpora
import harness
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup.errors import InputError
from gpu_dedup.pipeline import dedup
from gpu_dedup.pipeline.ahead import ITEM, TOGETHER, ReadAhead
from gpu_dedup.pipeline.beside import side_by_side
from gpu_dedup.pipeline.pool import cheap
from gpu_dedup.read import discover
from gpu_dedup.recipe import Recipe
from gpu_dedup.run import Run

BIG = TOGETHER  # an item of so many bytes is handed over by itself


class Files:
    """Files whose items are (file, number), each of `size` bytes; counts what is open and what waits."""

    def __init__(
        self, counts: list[int], size: int = BIG, slow: int | None = None, bad: set[int] | None = None
    ) -> None:
        self.counts, self.slow, self.bad = counts, slow, bad or set()
        self.size = size
        self.open: set[int] = set()
        self.most_open = self.made = self.begun = 0
        self.lock = threading.Lock()

    def read(self, number: int) -> Iterator[tuple[int, int]]:
        with self.lock:
            self.begun += 1
            self.open.add(number)
            self.most_open = max(self.most_open, len(self.open))
        try:
            for item in range(self.counts[number]):
                if number == self.slow:
                    time.sleep(0.003)
                with self.lock:
                    self.made += 1
                yield number, item
            if number in self.bad:
                raise InputError(f"file {number}")
        finally:
            with self.lock:
                self.open.discard(number)

    def ahead(self, threads: int, most: int, in_order: bool, inline: Any = lambda number: False) -> Any:
        return ReadAhead(range(len(self.counts)), self.read, lambda item: self.size, threads, most, in_order, inline)


def collect(ahead: Any, into: list[Any]) -> None:
    into.extend(item for _, item in ahead)


def reading() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gpu-dedup-read"]


def settled() -> bool:
    """No thread that reads is there, or not for long."""
    until = time.monotonic() + 5
    while reading() and time.monotonic() < until:
        time.sleep(0.01)
    return not reading()


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 6), max_size=9), threads=st.integers(0, 4), most=st.integers(0, 5),
    in_order=st.booleans(), size=st.sampled_from([1, BIG]), inline=st.sets(st.integers(0, 8)),
)  # fmt: skip
def test_every_item_comes_once_and_in_its_order(
    counts: list[int], threads: int, most: int, in_order: bool, size: int, inline: set[int]
) -> None:
    files = Files(counts, size)
    found = list(files.ahead(threads, most * (size + ITEM), in_order, inline.__contains__))
    assert all(number == item[0] for number, item in found)
    wanted = [(number, item) for number, count in enumerate(counts) for item in range(count)]
    got = [item for _, item in found]
    assert sorted(got) == wanted
    if in_order or threads == 0:
        assert got == wanted
    for number in range(len(counts)):
        assert [item for item in got if item[0] == number] == [(number, i) for i in range(counts[number])]
    assert files.most_open <= max(threads, 1) + bool(inline)
    assert not files.open
    assert not reading()


def test_files_behind_a_slow_one_come_first_unless_order_is_asked_for() -> None:
    for in_order in (False, True):
        got = [number for number, _ in Files([30, 5, 5], slow=0).ahead(2, 100 * BIG, in_order)]
        assert (got == sorted(got)) is in_order


@pytest.mark.parametrize("in_order", [True, False])
def test_what_waits_is_bounded(in_order: bool) -> None:
    threads, most = 3, 4
    files = Files([40] * 6)
    with files.ahead(threads, most * (BIG + ITEM), in_order) as ahead:
        for taken, _ in enumerate(ahead, 1):
            if taken % 20 == 0:
                time.sleep(0.02)  # the readers get as far as they may
            with files.lock:
                assert files.made - taken <= most + threads + 1
                assert len(files.open) <= threads
        assert taken == 240


def test_an_item_larger_than_all_that_may_wait_comes_through() -> None:
    for in_order in (True, False):
        assert len(list(Files([3, 3, 3]).ahead(3, 10, in_order))) == 9


@pytest.mark.parametrize("inline", [set(), {0}, {2}, {0, 1, 2, 3}])
@pytest.mark.parametrize("in_order", [True, False])
def test_an_error_comes_in_its_turn(in_order: bool, inline: set[int]) -> None:
    for _ in range(5):
        files = Files([9, 4, 2, 2], slow=0, bad={2, 3})
        got: list[tuple[int, int]] = []
        with pytest.raises(InputError, match="file 2"):
            collect(files.ahead(3, 100 * BIG, in_order, inline.__contains__), got)
        assert {item for item in got if item[0] < 3} == {
            (n, i) for n, count in enumerate([9, 4, 2]) for i in range(count)
        }
        assert settled()
        assert not files.open


def test_what_is_not_wanted_is_not_read() -> None:
    files = Files([5] * 50)
    with files.ahead(2, 3 * BIG, False) as ahead:
        got = []
        for number, item in ahead:
            got.append(item)
            ahead.stop_behind(1)
            assert number < 2 or len(got) == 1
    assert sorted(item for item in got if item[0] < 2) == [(n, i) for n in (0, 1) for i in range(5)]
    assert files.begun <= 4
    assert not files.open


@pytest.mark.parametrize("how", ["break", "error", "interrupt", "never begun"])
def test_no_thread_and_no_file_is_left(how: str) -> None:
    files = Files([100] * 10)
    ahead = files.ahead(4, 8 * BIG, False)
    started = time.monotonic()
    try:
        with ahead:
            if how != "never begun":
                for taken, _ in enumerate(ahead):
                    if taken == 30:
                        if how == "break":
                            break
                        raise InputError("x") if how == "error" else KeyboardInterrupt
    except (InputError, KeyboardInterrupt):
        pass
    assert time.monotonic() - started < 2
    assert settled()
    assert not files.open


# ------------------------------------------------------------------------------------------------------- side by side


@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(st.integers(0, 5), max_size=12), threads=st.integers(0, 4), most=st.integers(0, 8),
    bad=st.sets(st.integers(0, 12), max_size=3),
)  # fmt: skip
def test_side_by_side_keeps_to_its_bounds_and_gives_the_first_error(
    weights: list[int], threads: int, most: int, bad: set[int]
) -> None:
    lock = threading.Lock()
    at_work: set[int] = set()
    begun: list[int] = []
    done: set[int] = set()

    def work(item: int, check: Any) -> None:
        with lock:
            at_work.add(item)
            begun.append(item)
            assert len(at_work) <= max(threads, 1)
            assert len(at_work) == 1 or sum(weights[i] for i in at_work) <= most
        try:
            for _ in range(3):
                time.sleep(0.0002 * (item % 3))
                check()
            if item in bad:
                raise InputError(f"item {item}")
            done.add(item)
        finally:
            with lock:
                at_work.discard(item)

    count = len(weights)
    first = min((item for item in bad if item < count), default=None)
    if first is None:
        side_by_side(work, range(count), weights.__getitem__, threads, most)
        assert done == set(range(count))
    else:
        with pytest.raises(InputError, match=f"^item {first}$"):
            side_by_side(work, range(count), weights.__getitem__, threads, most)
        assert done >= set(range(first))
    assert sorted(begun) == list(range(len(begun)))
    assert not at_work
    assert not [thread for thread in threading.enumerate() if thread.name == "gpu-dedup-write"]


def test_ctrl_c_stops_what_is_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[int] = []

    def work(item: int, check: Any) -> None:
        try:
            while True:
                time.sleep(0.005)
                check()
        finally:
            stopped.append(item)

    joins = iter([KeyboardInterrupt])
    real = threading.Thread.join

    def join(self: threading.Thread, timeout: float | None = None) -> None:
        if timeout is None and next(joins, None):
            time.sleep(0.05)
            raise KeyboardInterrupt
        real(self, timeout)

    monkeypatch.setattr(threading.Thread, "join", join)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        side_by_side(work, range(5), lambda item: 1, 3, 9)
    assert sorted(stopped) == [0, 1, 2]
    assert time.monotonic() - started < 1.5


# --------------------------------------------------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every kind, some larger than what is read inline."""
    rng = random.Random(5)
    corpus = corpora.planted("read ahead", clusters=12, loners=10)
    rows = [row for row in corpus.rows if isinstance(row["text"], str)]
    out = tmp_path_factory.mktemp("ahead") / "in"
    for number in range(7):
        mine = rows[number::7] + [
            {"id": f"{number}-{i}", "text": " ".join(f"w{rng.randrange(99999)}" for _ in range(120))}
            for i in range(260)
        ]
        harness.write_lines(
            out / f"{number}.jsonl{('.gz', '.zst', '')[number % 3]}", [corpora.line(row) for row in mine]
        )
    return out


def test_which_files_are_read_by_threads(folder: Path, tmp_path: Path) -> None:
    by_thread = {source.rel: not cheap(source) for source in discover([str(folder)], None)}
    assert by_thread == {
        "0.jsonl.gz": True, "1.jsonl.zst": True, "2.jsonl": False, "3.jsonl.gz": True, "4.jsonl.zst": True,
        "5.jsonl": False, "6.jsonl.gz": True,
    }  # fmt: skip
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}\n'))
    small = discover([str(tmp_path)], None)[0]
    assert cheap(small)
    assert not cheap(replace(small, path="s3://bucket/a.jsonl.gz"))


def utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def answer(out: Path) -> dict[str, Any]:
    files = {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}
    files["result"] = json.dumps(json.loads(files.pop("_gpu_dedup/report.json"))["result"]).encode()
    del files["_gpu_dedup/report.html"]
    return files


def test_files_written_side_by_side_are_those_written_one_by_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also Parquet and Arrow, and what is stored of rows that go."""
    emit = importlib.import_module("gpu_dedup.pipeline.emit")

    where = tmp_path / "in"
    where.mkdir()
    for number, path in enumerate(sorted(folder.iterdir())):
        (where / path.name).write_bytes(path.read_bytes())
        lines = path.read_bytes()
        lines = gzip.decompress(lines) if path.suffix == ".gz" else lines
        if path.suffix != ".zst":
            rows = [json.loads(line) for line in lines.splitlines()[: 40 * (number + 1)]]
            table = pa.table({"id": [str(row["id"]) for row in rows], "text": [utf8(row["text"]) for row in rows]})
            pq.write_table(table, where / f"{number}.parquet", row_group_size=30)
            with pa.ipc.new_file(where / f"{number}.arrow", table.schema) as writer:
                writer.write_table(table, 30)
    settings = {"backend": "numpy", "progress": False, "batch_bytes": 20_000, "keep_removed": True}
    dedup([where], tmp_path / "one", None, Run(threads=1, **settings))
    sizes, real = [], emit.side_by_side
    monkeypatch.setattr(emit, "WORTH_A_THREAD", 1)
    monkeypatch.setattr(emit, "side_by_side", lambda *args: sizes.append(args[3]) or real(*args))
    dedup([where], tmp_path / "two", None, Run(threads=4, **settings))
    assert sizes == [4]
    assert answer(tmp_path / "two") == answer(tmp_path / "one")


@pytest.mark.parametrize(
    "options", [{}, {"method": "exact", "keep": "longest"}, {"method": "bloom", "capacity": 9999}, {"limit": 777}]
)
def test_reading_ahead_changes_nothing(folder: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    recipe = Recipe(**options)
    dedup([folder], tmp_path / "one", recipe, Run(backend="numpy", progress=False, threads=1, checkpoint=0))
    wanted = answer(tmp_path / "one")
    for number, run in enumerate(
        (
            {"threads": 4, "batch_bytes": 20_000},
            {"threads": 2, "batch_bytes": 3000, "checkpoint": 50_000},
        )
    ):
        dedup([folder], tmp_path / f"{number}", recipe, Run(backend="numpy", progress=False, **run))
        assert answer(tmp_path / f"{number}") == wanted
    assert settled()


def test_rows_that_wait_for_their_turn_go_to_tables(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a slow first file and large ones behind it, nothing piles up in memory, and rows keep their order."""
    from gpu_dedup.pipeline import survey
    from gpu_dedup.read.streams import GzipStream

    recipe = Recipe(keep="longest")
    dedup([folder], tmp_path / "one", recipe, Run(backend="numpy", progress=False, threads=1))
    tables, real, slow = [], survey.RowTables, GzipStream._next
    monkeypatch.setattr(survey, "MOST_WAITING", 20)
    monkeypatch.setattr(survey, "RowTables", lambda *args: tables.append(real(*args)) or tables[-1])

    def late(self: GzipStream) -> bytes | None:
        if "0.jsonl" in self._file.source.path:
            time.sleep(0.3)
        return slow(self)

    monkeypatch.setattr(GzipStream, "_next", late)
    dedup([folder], tmp_path / "two", recipe, Run(backend="numpy", progress=False, threads=4, batch_bytes=5000))
    assert answer(tmp_path / "two") == answer(tmp_path / "one")
    assert len(tables) > 2


@pytest.mark.parametrize("what", ["row", "file"])
def test_the_first_error_is_that_of_the_first_file(folder: Path, tmp_path: Path, what: str) -> None:
    """Errors in files 3 and 4, whichever is found first."""
    where = tmp_path / "in"
    where.mkdir()
    for path in sorted(folder.iterdir()):
        (where / path.name).write_bytes(path.read_bytes())
    third, fourth = where / "3.jsonl.gz", where / "4.jsonl.zst"
    data = gzip.decompress(third.read_bytes())
    third.write_bytes(gzip.compress(data + b"{oops\n") if what == "row" else third.read_bytes()[:-9])
    fourth.write_bytes(fourth.read_bytes()[:70_000])
    told = set()
    for _ in range(3):
        with pytest.raises(InputError) as caught:
            dedup(
                [where], tmp_path / "out", Recipe(), Run(backend="numpy", progress=False, threads=4, batch_bytes=9000)
            )
        told.add(str(caught.value))
        assert settled()
    assert len(told) == 1
    assert "3.jsonl.gz" in told.pop()


def test_ctrl_c_while_files_are_read_ends_at_once(tmp_path: Path) -> None:
    lines = b"".join(corpora.line({"text": " ".join(f"w{i * 31 + j}" for j in range(99))}) for i in range(9000))
    for number in range(6):
        (tmp_path / f"{number}.jsonl.gz").write_bytes(gzip.compress(lines, 1))
    script = (
        "import sys, time\nfrom gpu_dedup.cli import main\nfrom gpu_dedup.read import streams\n"
        "real = streams.GzipStream._next\n"
        "def slow(self):\n    time.sleep(0.01)\n    print('!', flush=True)\n    return real(self)\n"
        "streams.GzipStream._next = slow\nsys.exit(main())\n"
    )
    command = [sys.executable, "-c", script, "run", *(str(p) for p in sorted(tmp_path.iterdir()))]
    process = subprocess.Popen(
        [*command, "-o", str(tmp_path / "out"), "--backend", "numpy", "--threads", "4"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for _ in range(20):
        process.stdout.readline()
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - started < 1.5  # of a machine that others use too
    assert process.returncode == 130
    assert err.splitlines()[-1] == "gpu-dedup: interrupted"
    assert not (tmp_path / "out").exists()
