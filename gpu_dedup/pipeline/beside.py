"""Files written side by side: each by one thread from its first byte to its last, begun in their order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

LAST_SECONDS = 2.0  # that a thread may take to its end when nobody wants what it makes

Item = TypeVar("Item")


class StoppedError(Exception):
    """Nobody wants what is being made: an item before it has failed, or the run is over."""


class _Beside:
    def __init__(self, count: int, most: int) -> None:
        self.lock = threading.Condition()
        self.most = most
        self.next = self.begun = 0  # items before them were taken, and are at work or were
        self.end = count  # items from here on are not wanted
        self.running = self.weight = 0
        self.errors: dict[int, BaseException] = {}

    def check(self, number: int) -> None:
        if number >= self.end:
            raise StoppedError


def side_by_side(
    work: Callable[[Item, Callable[[], None]], None],
    items: Sequence[Item],
    weigh: Callable[[Item], int],
    threads: int,
    most: int,
) -> None:
    """`work(item, check)` for every item, up to `threads` of them at once.

    work    calls `check` now and then, which raises StoppedError in those whose result nobody wants any more
    weigh   bytes that an item takes while it is worked on
    most    bytes that all at work take together; one alone may take more

    Raises the error of the first item that fails; those before it are finished, and none is at work any more.
    """
    state = _Beside(len(items), most)
    if threads < 2 or len(items) < 2:
        for item in items:
            work(item, lambda: None)
        return

    def serve() -> None:
        while True:
            with state.lock:
                if state.next >= state.end:
                    return
                number = state.next
                state.next += 1
            weight = 0
            try:
                weight = weigh(items[number])
                with state.lock:
                    # Whoever comes later waits behind this one, so that items begin in their order.
                    while number < state.end and (
                        state.begun < number or (state.running and state.weight + weight > state.most)
                    ):
                        state.lock.wait()
                    state.begun = number + 1
                    state.lock.notify_all()
                    state.check(number)
                    state.running += 1
                    state.weight += weight
                try:
                    work(items[number], partial(state.check, number))
                finally:
                    with state.lock:
                        state.running -= 1
                        state.weight -= weight
                        state.lock.notify_all()
            except BaseException as error:
                with state.lock:
                    state.errors[number] = error
                    state.end = min(state.end, number)
                    state.lock.notify_all()

    helpers = [
        threading.Thread(target=serve, name="gpu-dedup-write", daemon=True) for _ in range(min(threads, len(items)))
    ]
    try:
        for helper in helpers:
            helper.start()
        for helper in helpers:
            helper.join()
    except BaseException:
        with state.lock:
            state.end = 0
            state.lock.notify_all()
        until = time.monotonic() + LAST_SECONDS
        for helper in helpers:
            if helper.ident is not None:
                helper.join(max(0.0, until - time.monotonic()))
        raise
    if state.errors:
        raise state.errors[min(state.errors)]
