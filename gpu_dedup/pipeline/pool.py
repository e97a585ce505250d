"""Ordered work on a bounded window of a thread pool: results in the order of the items, whatever finishes first."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from gpu_dedup.pipeline.ahead import ReadAhead, held_of
from gpu_dedup.read import Source
from gpu_dedup.read.remote import is_remote

SMALL = 1 << 15  # bytes of a file that is read faster than it is handed over
BEHIND = 4  # calls that may wait for the thread that writes

File = TypeVar("File")
Item = TypeVar("Item")
Result = TypeVar("Result")


def cheap(source: Source) -> bool:
    """Whether reading a file costs so little that a thread of its own would cost more: it is small, or it holds plain
    lines, which the system reads ahead and nothing has to be made of. Never so behind a URL."""
    if is_remote(source.path):
        return False
    plain = not source.compression and source.format in ("jsonl", "txt", "lines", "memory")
    return plain or source.size < SMALL


class Pool:
    """Threads of ours under kernels that release the GIL. `threads` at work, a few items more in flight, no more.

    readers, ahead   so many files are read at once, ahead of the work, so many bytes of them; 0: none is
    """

    def __init__(self, threads: int, readers: int = 0, ahead: int = 0) -> None:
        self.threads, self.readers = threads, readers
        self._ahead = ahead
        self._reading: weakref.WeakSet[ReadAhead[Any, Any]] = weakref.WeakSet()
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="gpu-dedup")

    def ordered(
        self, work: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None
    ) -> Iterator[Result]:
        """`work(item)` for each item, in order, on so many threads at most (None: all).

        An error of item i comes after the results of all items before it, also when it is `items` itself that raises,
        so that the first error is the same on every run.
        """
        window: deque[Future[Result]] = deque()
        source = iter(items)
        failure: BaseException | None = None
        try:
            while True:
                try:
                    item = next(source)
                except StopIteration:
                    break
                except Exception as error:
                    failure = error
                    break
                window.append(self._executor.submit(work, item))
                # What is ready goes on at once; otherwise wait only when enough is in flight to keep every thread busy,
                # or as many as may be at work.
                most = self.threads + 2 if threads is None or threads >= self.threads else threads
                while window and (window[0].done() or len(window) >= most):
                    yield window.popleft().result()
            while window:
                yield window.popleft().result()
            if failure is not None:
                raise failure
        finally:
            for future in window:
                future.cancel()

    def read(
        self, files: Sequence[File], read: Callable[[File], Iterator[Item]], source: Callable[[File], Source],
        in_order: bool, alone: bool = False,
    ) -> ReadAhead[File, Item]:  # fmt: skip
        """Items of files, read ahead; see `ReadAhead`. alone: one after the other, by whoever asks for them."""

        def inline(file: File) -> bool:
            return cheap(source(file))

        out = ReadAhead(files, read, held_of, 0 if alone else self.readers, self._ahead, in_order, inline)
        self._reading.add(out)
        return out

    @contextmanager
    def behind(self) -> Iterator[Callable[..., None]]:
        """Gives `later(work, *arguments)`, which has calls done one after the other by a thread of its own, so that
        writing overlaps reading. A few may wait, then `later` waits too. An error comes out of a later call or the end.
        """
        waiting: deque[Future[object]] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="gpu-dedup-behind") as executor:

            def later(work: Callable[..., object], *arguments: object) -> None:
                while len(waiting) >= BEHIND or (waiting and waiting[0].done()):
                    waiting.popleft().result()
                waiting.append(executor.submit(work, *arguments))

            try:
                yield later
                while waiting:
                    waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def close(self, wait: bool = True) -> None:
        for ahead in list(self._reading):
            ahead.close()
        self._executor.shutdown(wait=wait, cancel_futures=True)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After Ctrl-C nobody waits for a kernel that is still at work: its result is not wanted.
        self.close(wait=kind is None)
