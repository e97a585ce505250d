"""What a run shows while it works: a bar by bytes on a terminal, a line now and then elsewhere, nothing when quiet.

It also keeps the time of every stage, because whoever shows a stage's progress knows when it began and ended.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, TextIO

EVERY_SECONDS = 10.0  # between two lines of one stage where there is no terminal


def bytes_text(count: float) -> str:
    """'1.5 GB': decimal units as disks and networks use them, three figures."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while count >= 999.5 and len(units) > 1:
        count /= 1000
        del units[0]
    unit = units[0]
    return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.3g} {unit}"


def _amount(count: float, unit: str) -> str:
    return bytes_text(count) if unit == "B" else f"{count:,.0f} {unit}"


def seconds_text(seconds: float) -> str:
    """'0.35 s', '12.3 s', '4 min 05 s', '3 h 07 min'."""
    if seconds < 9.95:
        return f"{seconds:.2f} s"
    if seconds < 99.5:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


@cache
def _bar_class() -> Any:
    """tqdm without its watching thread, which would outlive the run of whoever calls us as a library."""
    tqdm: Any = import_module("tqdm").tqdm
    return type("Bar", (tqdm,), {"monitor_interval": 0})


class Progress:
    """Bars or lines on `stream` (standard error), and `times`: seconds by stage, in the order of their first start.

    show     None: a bar where the stream is a terminal, else lines; True: a bar; False: nothing
    stream   where to; looked up at the time of use, so that a redirected sys.stderr is respected

    Any thread may call what `stage` gives; stages themselves are opened by one thread.
    """

    def __init__(
        self, show: bool | None = None, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.show = show
        self.times: dict[str, float] = {}
        self.notes: list[str] = []
        self._stream = stream
        self._clock = clock
        self._lock = threading.Lock()
        self._bars: list[Any] = []

    @property
    def stream(self) -> TextIO:
        return self._stream if self._stream is not None else sys.stderr

    @property
    def bars(self) -> bool:
        """True if bars are drawn, False for lines or nothing."""
        if self.show is None:
            try:
                return bool(self.stream.isatty())
            except (AttributeError, ValueError):
                return False
        return self.show

    def note(self, text: str) -> None:
        """One line for the reader, above the bars: `gpu-dedup: compiling kernels (first run only)`."""
        with self._lock:
            self.notes.append(text)
            if self.show is False:
                return
            if self._bars:
                self._bars[0].write(f"gpu-dedup: {text}", file=self.stream)
            else:
                self._line(text)

    @contextmanager
    def stage(self, name: str, total: int | None = None, unit: str = "B") -> Iterator[Callable[[int], None]]:
        """Time `name`, and show it. Gives `update(n)`: n more bytes are done; `total` of them are expected, or None.

        `unit`: what is counted where it is not bytes, such as "bands".
        A stage that is opened again adds to its time. When the body raises, the time is kept and the bar is closed.
        """
        self.times.setdefault(name, 0.0)
        started = self._clock()
        try:
            if self.show is False:
                yield lambda n: None
            elif self.bars:
                yield from self._bar(name, total, unit)
            else:
                yield from self._lines(name, total, unit, started)
        finally:
            self.times[name] += self._clock() - started

    def _bar(self, name: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
        bar = _bar_class()(
            desc=f"{name:<21}",
            total=total,
            unit=unit if unit == "B" else f" {unit}",
            unit_scale=True,
            file=self.stream,
            leave=True,
            dynamic_ncols=True,
            mininterval=0.1,
            position=len(self._bars),
            bar_format=None if total else "{desc}: {elapsed}",  # nothing is counted: only that it is at work
        )
        self._bars.append(bar)

        def update(n: int) -> None:
            with self._lock:
                bar.update(n)

        try:
            yield update
        finally:
            with self._lock:
                self._bars.remove(bar)
                bar.close()

    def _lines(self, name: str, total: int | None, unit: str, started: float) -> Iterator[Callable[[int], None]]:
        done = 0
        last = started

        def update(n: int) -> None:
            nonlocal done, last
            with self._lock:
                done += n
                now = self._clock()
                if now - last < EVERY_SECONDS:
                    return
                last = now
                seconds = now - started
                rate = done / seconds
                text = f"{name}: {_amount(done, unit)}"
                if total:
                    text += f" of {_amount(total, unit)} ({100 * done / total:.0f} %)"
                text += f", {_amount(rate, unit)}/s"
                if total and rate and done < total:
                    text += f", {seconds_text((total - done) / rate)} left"
                self._line(text)

        finished = False
        try:
            yield update
            finished = True
        finally:
            with self._lock:
                seconds = self._clock() - started
                text = f"{name}: {'done' if finished else 'stopped'} after {seconds_text(seconds)}"
                if done:
                    text += f", {_amount(done, unit)}"
                    if seconds > 0:
                        text += f", {_amount(done / seconds, unit)}/s"
                self._line(text)

    def _line(self, text: str) -> None:
        try:
            print(f"gpu-dedup: {text}", file=self.stream, flush=True)
        except (OSError, ValueError):
            self.show = False  # nobody listens any more; a run does not end for that
