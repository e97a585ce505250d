"""Ordered work on a bounded window of a thread pool: results in the order of the items, whatever finishes first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

BEHIND = 4  # calls that may wait for the thread that writes

Item = TypeVar("Item")
Result = TypeVar("Result")


class Pool:
    """Threads of ours under kernels that release the GIL. `threads` at work, a few items more in flight, no more."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
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
        self._executor.shutdown(wait=wait, cancel_futures=True)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After Ctrl-C nobody waits for a kernel that is still at work: its result is not wanted.
        self.close(wait=kind is None)
