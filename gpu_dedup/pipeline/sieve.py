"""Level 0: the Bloom filter in front of an exact comparison of digests.

Rows are asked for in the order of the input; those that the filter has not seen are the first of their key. Only the
others, and the rows that have a key in common with one of them, go on to be sorted and compared, by all 128 bits of a
digest and the length. So a filter's false positive costs a comparison and never a row, and of a corpus with few copies
few rows are sorted. All rows were counted by then, so the filter has the size that it needs and never grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpu_dedup.backend import Backend
from gpu_dedup.batch import I64, U64, Bool
from gpu_dedup.bloom import BloomFilter, may_repeat
from gpu_dedup.spool import Table

FP_RATE = "0.01"  # some ten bits a key; a false positive costs about what a copy costs


@dataclass(frozen=True)
class Sieved:
    """What the filter saw; the same for any batch, threads and backend.

    asked       rows with a key
    may_repeat  of these, rows that the filter took for seen
    """

    asked: int
    may_repeat: int


def may_meet(digests: Table, part_in: Bool, backend: Backend, threads: int) -> tuple[Bool, Sieved]:
    """Rows that may have a digest in common with another: all that have, and by chance a few more.

    digests  uint64[n, 2]
    part_in  bool[n]: rows that take part
    returns  bool[n]; what was seen on the way
    """
    count = int(np.count_nonzero(part_in))
    meets: Bool = np.zeros(len(part_in), np.bool_)
    if not count:
        return meets, Sieved(0, 0)
    filter = BloomFilter(count, FP_RATE, backend=backend, threads=threads)
    again = 0
    for rows, digest in _some(digests, part_in):
        repeats = may_repeat(digest, filter=filter)
        meets[rows[repeats]] = True
        again += len(repeats)
    if again:
        copied = BloomFilter(again, FP_RATE, backend=backend, threads=threads)
        for _, digest in _some(digests, meets):
            copied.add(digest)
        for rows, digest in _some(digests, part_in):
            meets[rows] = copied.contains(digest)
    return meets, Sieved(count, again)


def _some(digests: Table, which: Bool) -> Iterator[tuple[I64, U64]]:
    """Chosen rows and their digests, some at a time."""
    for start, digest in digests.blocks():
        here = np.flatnonzero(which[start : start + len(digest)])
        if len(here):
            yield here + start, np.ascontiguousarray(digest[here])
