"""Reading ahead: several files are read at once, each by a thread, while others work on what was read before.

Reading is decompression and hashing too, which let go of the GIL. What was read waits to be asked for, in so many bytes
and no more: a thread that has no room for its next item waits. Only the one whose file is first may always put one item
down, or nobody would ever go on.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

LAST_SECONDS = 0.1  # that a reader may take to its end when nobody wants what it reads; it ends by itself later
TOGETHER = 1 << 16  # bytes of small items of one file that are put down at once
ITEM = 2048  # bytes that the objects around an item take

File = TypeVar("File")
Item = TypeVar("Item")


class _Open(Generic[Item]):
    """One file: what was read of it and waits, and whether that is the end of it."""

    def __init__(self) -> None:
        self.items: deque[tuple[Item, int]] = deque()
        self.ended = False
        self.error: BaseException | None = None
        self.inline: Iterator[Item] | None = None  # read by whoever asks for items


class ReadAhead(Generic[File, Item]):
    """Iterate it once: (number of a file, an item of it), each file's items in their order.

    files     in order
    read      gives the items of a file; called and iterated in a thread, one of its own for each file
    size      bytes that an item takes in memory
    threads   files that are read at once, so as many are open; 0: all are read by whoever iterates, at their turn
    most      bytes of items that wait. Beyond them each thread has one item in its hands
    in_order  all items of a file before any of the next; else whatever is ready, of earlier files first
    inline    files that cost so little that handing them over would cost more: read by whoever iterates

    An error of `read` is raised when all files before it have come to their end, after the items that it gave.
    """

    def __init__(
        self,
        files: Sequence[File],
        read: Callable[[File], Iterator[Item]],
        size: Callable[[Item], int],
        threads: int,
        most: int,
        in_order: bool,
        inline: Callable[[File], bool] = lambda file: False,
    ) -> None:
        self._files, self._read, self._size = files, read, size
        self._most, self._in_order, self._inline = most, in_order, inline
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._ready = threading.Condition(self._lock)
        self._open: dict[int, _Open[Item]] = {}  # files that were begun and have not been used up, ascending
        self._begun = 0  # files before it were begun, or are inline
        self._end = len(files)  # files from it on are not wanted
        self._first = 0  # files before it have been used up
        self._used: set[int] = set()  # and of those behind it these
        self._own = 0  # files before it that are inline were begun
        self._held = 0
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._wanted = 0 if threads < 1 else min(threads, sum(not inline(file) for file in files))

    # ---- in the threads that read ------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            with self._lock:
                while self._begun < self._end and self._inline(self._files[self._begun]):
                    self._begun += 1
                if self._closed or self._begun >= self._end:
                    return
                number = self._begun
                self._begun += 1
                mine = self._open[number] = _Open()
            error: BaseException | None = None
            together: list[tuple[Item, int]] = []
            small = 0
            items = self._read(self._files[number])
            try:
                for item in items:
                    nbytes = self._size(item) + ITEM
                    together.append((item, nbytes))
                    small += nbytes
                    if small >= TOGETHER:
                        if not self._put(number, mine, together, small):
                            return
                        together, small = [], 0
            except BaseException as caught:
                error = caught
            finally:
                close = getattr(items, "close", None)
                if close is not None:
                    close()
            self._put(number, mine, together, small, True, error)

    def _put(
        self, number: int, mine: _Open[Item], items: list[tuple[Item, int]], nbytes: int, ended: bool = False,
        error: BaseException | None = None,
    ) -> bool:  # fmt: skip
        """Put items down when there is room for them. False if nobody wants them."""
        with self._lock:
            while not self._closed and number < self._end and self._held and self._held + nbytes > self._most:
                if number == self._first and not mine.items:
                    break
                self._room.wait()
            if self._closed or number >= self._end:
                return False
            mine.items.extend(items)
            mine.ended, mine.error = ended, error
            self._held += nbytes
            self._ready.notify()
            return True

    # ---- in the thread that iterates ---------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[tuple[int, Item]]:
        for _ in range(self._wanted):
            thread = threading.Thread(target=self._serve, name="gpu-dedup-read", daemon=True)
            self._threads.append(thread)
            thread.start()
        try:
            while (found := self._next()) is not None:
                number, mine, item = found
                if mine.inline is not None:
                    try:
                        item = next(mine.inline)
                    except StopIteration:
                        mine.ended = True
                        continue
                    except Exception as error:
                        mine.ended, mine.error = True, error
                        continue
                yield number, item  # type: ignore[misc]
        finally:
            self.close()

    def _next(self) -> tuple[int, _Open[Item], Item | None] | None:
        """A file and an item of it, or a file to read one of; None at the end. Waits for either."""
        with self._lock:
            while True:
                self._use_up()
                if self._first >= self._end:
                    return None
                for number in [self._first] if self._in_order else self._candidates():
                    mine = self._open.get(number)
                    if mine is None:
                        if self._wanted and not self._inline(self._files[number]):
                            continue
                        mine = self._open[number] = _Open()
                        mine.inline = iter(self._read(self._files[number]))
                    if mine.items:
                        item, nbytes = mine.items.popleft()
                        self._held -= nbytes
                        self._room.notify_all()
                        return number, mine, item
                    if mine.inline is not None and not mine.ended:
                        return number, mine, None
                self._ready.wait()

    def _candidates(self) -> list[int]:
        """Files that were begun, and the next one that nobody but us will begin."""
        while self._own < self._end and (
            self._own in self._open
            or self._own in self._used
            or self._own < self._first
            or (self._wanted and not self._inline(self._files[self._own]))
        ):
            self._own += 1
        return sorted([*self._open, *([self._own] if self._own < self._end else [])])

    def _use_up(self) -> None:
        """Pass over files whose items have all been given."""
        for number in [number for number, mine in self._open.items() if mine.ended and not mine.items]:
            if self._open[number].error is None:
                del self._open[number]
                self._used.add(number)
        while self._first in self._used:
            self._used.remove(self._first)
            self._first += 1
            self._room.notify_all()
        first = self._open.get(self._first)
        if first is not None and first.error is not None and not first.items:
            raise first.error

    def stop_behind(self, number: int) -> None:
        """Nothing more is wanted of the files behind this one."""
        with self._lock:
            self._end = min(self._end, number + 1)
            for late in [other for other in self._open if other >= self._end]:
                self._held -= sum(nbytes for _, nbytes in self._open.pop(late).items)
            self._room.notify_all()

    def close(self) -> None:
        """Let go of all files. A thread that is in the middle of something ends a little later."""
        with self._lock:
            self._closed = True
            self._room.notify_all()
            waiting = [mine.inline for mine in self._open.values() if mine.inline is not None]
            self._open.clear()
            self._held = 0
        for source in waiting:
            close = getattr(source, "close", None)
            if close is not None:
                close()
        until = time.monotonic() + LAST_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def __enter__(self) -> ReadAhead[File, Item]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def held_of(item: Any) -> int:
    """Bytes in memory of a chunk; of anything else few."""
    return int(getattr(item, "held", 0))
