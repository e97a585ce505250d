"""Exact classes of all rows, by texts or by keys, and the heads that go into the search, in so much memory as there is.

Rows of one digest fall in one part by its first bits. A part is sorted at a time, and of a part that is larger than may
be sorted at a time (a text with very many copies has all of them in one) the rows come in pieces, each beside the heads
of the pieces before it. So the classes do not depend on the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_dedup.batch import I64, ROW_TEXT, U64, Bool
from gpu_dedup.keep import classes, order
from gpu_dedup.pipeline.survey import BLOCK, Survey
from gpu_dedup.recipe import Recipe
from gpu_dedup.spool import MAX_PARTS, Table, partition

SORT = 100  # bytes that a row takes while it is sorted: its digest and length and those in order, words, heads, flags


@dataclass
class Classes:
    """Exact classes of n rows.

    heads    bool[n]: rows that stand for their class, which may be a class of one
    copies   int64[q], ascending: all other rows that take part
    head     int64[q] global row of each one's head
    ranking  int64[k]: the rows that take part in keeper order, or None where that is the order of the input
    """

    heads: Bool
    copies: I64
    head: I64
    ranking: I64 | None

    def in_order(self) -> Iterator[I64]:
        """The heads in keeper order, some at a time."""
        count = len(self.heads) if self.ranking is None else len(self.ranking)
        for start in range(0, count, BLOCK):
            stop = min(start + BLOCK, count)
            if self.ranking is None:
                yield np.flatnonzero(self.heads[start:stop]) + start
            else:
                some = self.ranking[start:stop]
                yield some[self.heads[some]]


def find_classes(
    survey: Survey, recipe: Recipe, part_in: Bool, most: int, table: Callable[[Any, int | None], Table],
    among: Bool | None = None, keys: tuple[Table, Table] | None = None, met: Callable[[int], None] = lambda count: None,
) -> Classes:  # fmt: skip
    """Classes of equal digest and length, each with the first of its rows in keeper order as its head.

    part_in  bool[n]: rows that take part
    most     rows that may be sorted at a time
    table    makes tables for what is more
    among    bool[n]: of these, rows that may have company; the others are heads of themselves. None: all
    keys     digests and lengths of what is compared; None: those of the texts
    met      told the copies that were found so far, now and then and in the end
    """
    n, digests = len(part_in), keys or (survey.digest, survey.length)
    ranking = rank = None
    if recipe.keep not in ("first", "none"):
        ranking, rank = _ranking(survey, recipe, np.flatnonzero(part_in))
    sorted_in = part_in if among is None else among
    count = int(np.count_nonzero(sorted_in))
    found = _Copies()
    if count <= most:
        rows = None if count == n else np.flatnonzero(sorted_in)
        if among is not None and rows is not None:  # few
            digest, length = digests[0].take(rows), digests[1].take(rows)
        else:
            digest, length = digests[0].slice(0, n), digests[1].slice(0, n)
            if rows is not None:
                digest, length = digest[rows], length[rows]
        _sort(rows, digest, length, rank, found)
    else:
        parts = 1
        while parts < MAX_PARTS and count > parts * most // 2:  # half: parts are not all of one size
            parts *= 2
        for made in partition(_records(*digests, sorted_in), parts, 4, table):
            _in_pieces(made, most, rank, found)
            made.close()
            met(found.count)
    met(found.count)
    copies, head = found.joined()
    if count > most:
        by_row = np.argsort(copies, kind="stable")
        copies, head = copies[by_row], head[by_row]
        _to_the_top(copies, head)
    heads = part_in.copy()
    heads[copies] = False
    return Classes(heads, copies, head, ranking)


class _Copies:
    """Copies as they are found, with the head of each."""

    def __init__(self) -> None:
        none = np.zeros(0, np.int64)
        self._copies, self._head = [none], [none]
        self.count = 0

    def add(self, copies: I64, head: I64) -> None:
        self.count += len(copies)
        self._copies.append(copies)
        self._head.append(head)

    def joined(self) -> tuple[I64, I64]:
        """All of them, which are let go."""
        copies = np.concatenate(self._copies)
        self._copies = []
        head = np.concatenate(self._head)
        self._head = []
        return copies, head


def _ranking(survey: Survey, recipe: Recipe, rows: I64) -> tuple[I64, I64]:
    """Rows in keeper order, and the place of each row of the input in it."""
    values = survey.values.select(rows) if survey.values is not None else None
    chars = None if survey.chars is None else survey.chars.take(rows)
    ranking = rows[order(recipe.keep, len(rows), chars, values)]
    rank = np.zeros(len(survey.status), np.int64)
    rank[ranking] = np.arange(len(ranking))
    return ranking, rank


def _records(digests: Table, lengths: Table, part_in: Bool) -> Iterator[tuple[U64, U64]]:
    """(first words of digests, records of row, digest, length) of the rows that take part."""
    for start, digest in digests.blocks():
        here = np.flatnonzero(part_in[start : start + len(digest)])
        out = np.empty((len(here), 4), np.uint64)
        out[:, 0] = here + start
        out[:, 1:3] = digest[here]
        out[:, 3] = lengths.slice(start, start + len(digest))[here]
        yield out[:, 1], out


def _in_pieces(made: Table, most: int, rank: I64 | None, found: _Copies) -> None:
    """Classes of a part. A head of earlier pieces may turn out a copy of a row that comes later, see `_to_the_top`."""
    before: U64 = np.zeros((0, 4), np.uint64)
    for start in range(0, len(made), most):
        piece = made.slice(start, min(start + most, len(made)))
        every = np.concatenate([before, piece]) if len(before) else piece
        lone = _sort(every[:, 0].astype(np.int64), every[:, 1:3], every[:, 3].astype(np.int64), rank, found)
        if start + most < len(made):
            before = every[lone]


def _sort(rows: I64 | None, digest: U64, length: I64, rank: I64 | None, found: _Copies) -> Bool:
    """Tell `found` of the copies among these rows and of their heads; which of them are heads.

    rows   int64[k] of the input, ascending; None: all
    rank   of each row of the input; None: the earlier row comes first
    """
    inside = np.arange(len(digest), dtype=np.int64)
    ordered = inside
    if rank is not None:
        ordered = np.argsort(rank if rows is None else rank[rows], kind="stable")
    head = classes(digest, length, ordered)
    lone = head == inside
    copies = np.flatnonzero(~lone)
    head = head[copies]
    if rows is not None:
        copies, head = rows[copies], rows[head]
    if len(copies):
        found.add(copies, head)
    return np.asarray(lone, np.bool_)


def _to_the_top(copies: I64, head: I64) -> None:
    """Where a copy's head is itself a copy, take its head instead, until none is."""
    if not len(copies):
        return
    while True:
        at = np.minimum(np.searchsorted(copies, head), len(copies) - 1)
        again = copies[at] == head
        if not again.any():
            return
        head[again] = head[at[again]]


def texts_of(survey: Survey) -> tuple[Bool, I64]:
    """bool[n]: rows with a text that is not empty; and the rows with an empty one."""
    some = survey.status == ROW_TEXT
    empty = [np.zeros(0, np.int64)]
    for start, length in survey.length.blocks():
        here = slice(start, start + len(length))
        empty.append(np.flatnonzero(some[here] & (length == 0)) + start)
        some[here] &= length > 0
    return np.asarray(some, np.bool_), np.concatenate(empty)
