"""A second look at chosen rows: read only the chunks that hold them, take apart only those rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gpu_dedup.batch import I64, ROW_TEXT, Bool, Rows, Tape
from gpu_dedup.pipeline.pool import Pool
from gpu_dedup.pipeline.rewrite import changed
from gpu_dedup.pipeline.survey import FileFacts, Sketcher, Survey
from gpu_dedup.read import Chunk, ChunkRef, open_source
from gpu_dedup.spool import RaggedTable
from gpu_dedup.verify import Whole

T = TypeVar("T")


@dataclass(frozen=True)
class Look:
    """Wanted rows of one chunk, read again.

    rows     the chunk, taken apart; other rows are ROW_SKIPPED
    select   int64[m] positions of the wanted rows in it
    wanted   int64[m] their global row numbers
    """

    rows: Rows
    select: I64
    wanted: I64


@dataclass(frozen=True)
class _Again:
    """A chunk that was read again, and the wanted rows in it, by their number in the file."""

    facts: FileFacts
    chunk: Chunk
    ref: ChunkRef
    local: I64

    @property
    def held(self) -> int:
        return self.chunk.held


def reread(
    survey: Survey,
    sketcher: Sketcher,
    pool: Pool,
    batch_bytes: int,
    wanted: I64,
    work: Callable[[Look], T],
    extra: tuple[str, ...] = (),
    in_order: bool = True,
) -> Iterator[T]:
    """`work(look)` over the chunks that hold the global rows `wanted` (ascending, unique), in input order.

    in_order: False if files may come mixed, the chunks of each in their order; reading ahead then waits for nobody.
    Raises InputError where a row is not what the first pass saw.
    """
    fields = sketcher.recipe.texts_from

    def read(number: int) -> Iterator[_Again]:
        facts = files[number]
        local = wanted[bounds[number] : bounds[number + 1]] - facts.first
        firsts = np.array([ref.first_row for ref in facts.refs], np.int64)
        which = np.unique(np.searchsorted(firsts, local, side="right") - 1)
        with open_source(facts.source, batch_bytes, facts.index, [*fields, *extra], backend=sketcher.backend) as reader:
            for ref, chunk in zip(which, reader.read_refs([facts.refs[i] for i in which]), strict=True):
                last = firsts[ref + 1] if ref + 1 < len(firsts) else facts.rows
                inside = local[np.searchsorted(local, firsts[ref]) : np.searchsorted(local, last)]
                yield _Again(facts, chunk, facts.refs[ref], inside)

    def look(item: _Again) -> T:
        facts, chunk, ref, local = item.facts, item.chunk, item.ref, item.local
        select = local - ref.first_row
        count = chunk.count_rows()
        if len(select) and select[-1] >= count:
            raise changed(facts.source)
        want = np.zeros(count, bool)
        want[select] = True
        rows = chunk.rows(sketcher.backend, sketcher.recipe, extra, want)
        if np.any(rows.status[select] != ROW_TEXT):
            raise changed(facts.source)
        return work(Look(rows, select, local + facts.first))

    # Files without rows have none that could be wanted, and of the others some have none.
    files = survey.files
    bounds = np.searchsorted(wanted, [*(facts.first for facts in files), np.iinfo(np.int64).max])
    asked = np.flatnonzero(np.diff(bounds)).tolist()
    with pool.read(asked, read, lambda number: files[number].source, in_order) as ahead:
        yield from pool.ordered(look, (item for _, item in ahead))


def normal_texts(survey: Survey, sketcher: Sketcher, look: Look) -> Tape:
    """Normalised texts of a look's chunk, checked against the digests of the first pass."""
    normal = sketcher.normalise(look.rows.tape)
    digest = sketcher.backend.digest(normal)
    if not np.array_equal(digest[look.select], survey.digest.take(look.wanted)):
        raise changed(survey.place(int(look.wanted[0]))[0].source)
    return normal


def sketch_rows(survey: Survey, sketcher: Sketcher, pool: Pool, batch_bytes: int, wanted: I64) -> Iterator[Any]:
    """(rows, Sketched) of rows that the first pass passed over, batch by batch."""

    def work(look: Look) -> Any:
        return look.wanted, sketcher.sketch(normal_texts(survey, sketcher, look), look.select)

    return reread(survey, sketcher, pool, batch_bytes, wanted, work, in_order=False)


class TextItems:
    """What verification compares, for chosen documents: shingle sets (uint64), or code points (uint32) for verify=edit.

    Built by one reading of the rows; kept in memory while the budget allows, else in the work folder.
    """

    def __init__(self, table: RaggedTable, documents: I64, count: int) -> None:
        self._table = table
        self._documents = documents  # row of the table -> document
        self._place = np.full(count, -1, np.int64)  # document -> row of the table
        self._place[documents] = np.arange(len(documents))

    @classmethod
    def read(
        cls,
        survey: Survey,
        sketcher: Sketcher,
        pool: Pool,
        batch_bytes: int,
        tables: dict[str, RaggedTable],
        documents: I64,
        rows: I64,
        count: int,
        advance: Callable[[int], None],
        most: int | None = None,
    ) -> dict[str, TextItems]:
        """Items of `documents` (numbers below `count`), which stand in the global `rows`, one each.

        tables  by kind, `exact` or `edit`, or both of one reading
        most    texts of more bytes have no code points (None: all have)
        """
        by_row = np.argsort(rows, kind="stable")
        ascending = rows[by_row]

        def work(look: Look) -> tuple[list[tuple[Any, I64]], int, I64]:
            normal = normal_texts(survey, sketcher, look)
            out = []
            for kind in tables:
                if kind == "edit":
                    out.append(_some(*sketcher.backend.decode(normal), look.select, _short(normal, look.select, most)))
                else:
                    out.append(sketcher.shingle_sets(normal, look.select))
            return out, normal.nbytes, look.wanted

        met = [by_row[:0]]  # in the order in which they come
        for found, nbytes, here in reread(survey, sketcher, pool, batch_bytes, ascending, work, in_order=False):
            for table, (items, offsets) in zip(tables.values(), found, strict=True):
                table.append(items, offsets)
            met.append(by_row[np.searchsorted(ascending, here)])
            advance(nbytes)
        for table in tables.values():
            table.finish()
        stand = documents[np.concatenate(met)]
        return {kind: cls(table, stand, count) for kind, table in tables.items()}

    def whole(self) -> Whole | None:
        """All of them, without a copy; None where they are in the work folder."""
        found = self._table.whole()
        return None if found is None else Whole(*found, self._place, self._documents)

    def load(self, documents: I64) -> tuple[Any, I64]:
        """Items of these documents and int64 offsets."""
        items, offsets = self._table.take(self._place[documents])
        return items, offsets


def _short(texts: Tape, select: I64, most: int | None) -> Bool:
    """bool[m]: chosen texts of at most so many bytes."""
    size = np.diff(texts.offsets)[select]
    return np.asarray(size <= (size if most is None else most), np.bool_)


def _some(items: Any, offsets: I64, select: I64, which: Bool) -> tuple[Any, I64]:
    """Rows `select` of a ragged array; those that are not `which` are empty."""
    sizes = np.where(which, np.diff(offsets)[select], 0)
    out = np.zeros(len(select) + 1, np.int64)
    np.cumsum(sizes, out=out[1:])
    gather = np.repeat(offsets[:-1][select] - out[:-1], sizes) + np.arange(out[-1])
    return items[gather], out
