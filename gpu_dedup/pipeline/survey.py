"""First pass: read every row once; keep its status, digest, length and what the keeper needs, and one sketch per text.

Texts themselves are let go with their batch. A later pass over chosen rows (`reread`) brings them back: for sketches
that were skipped in vain, for verification, for the report.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpu_dedup.backend import COUNT, SET, TFIDF, Backend, Sketches
from gpu_dedup.batch import I64, ROW_BAD, ROW_BLANK, ROW_SKIPPED, ROW_TEXT, U8, U32, U64, Bool, Tape
from gpu_dedup.errors import InputError, InternalError
from gpu_dedup.keep import KeeperColumn, KeeperError
from gpu_dedup.keys import NO_KEY, keys_of
from gpu_dedup.normalise import Normaliser
from gpu_dedup.pipeline.ahead import ReadAhead
from gpu_dedup.pipeline.pool import Pool
from gpu_dedup.pipeline.resume import Resume, SavedRows, Saver
from gpu_dedup.pipeline.stream import Stream
from gpu_dedup.read import Chunk, ChunkRef, Source, open_source
from gpu_dedup.read.chunks import quoted
from gpu_dedup.read.items import count as count_tokens
from gpu_dedup.recipe import STREAMED, WEIGHTS, Recipe
from gpu_dedup.shingle import stop_hashes
from gpu_dedup.sketches import OWN_NUMBERS, numbers_of
from gpu_dedup.spool import Table

MOST_WAITING = 1 << 17  # rows of a file that wait for its turn in memory; more of them go to tables
BLOCK = 1 << 19  # rows that are looked at together where all would be too much
SEEN_BITS = 22  # 32 MiB of recently seen digests: enough to skip most sketches of exact copies


@dataclass(frozen=True)
class Sketched:
    """Sketches of m texts, of the kinds that the recipe's method has.

    signatures  uint32[m, k] | None: MinHash; k may be more than the recipe's slots
    keys        uint64[m, bands] | None: its band keys
    prints      uint64[m] | None: SimHash; 0, which means nothing, where `kept` is 0
    units       int64[m] units of the text
    kept        int64[m] shingles that count
    """

    signatures: U32 | None
    keys: U64 | None
    prints: U64 | None
    units: I64
    kept: I64

    def __len__(self) -> int:
        return len(self.units)


class SketchTables:
    """Tables of sketches, one for each kind that the recipe's method has; they grow by `append` until `finish`.

    signatures  of MinHash; keys: one table for each band
    prints      of SimHash
    units, kept int64: units of the text, shingles that count
    """

    def __init__(self, recipe: Recipe, table: Callable[[Any, int | None], Table]) -> None:
        self.signatures = table(np.uint32, recipe.slots) if recipe.banded else None
        self.keys = [table(np.uint64, None) for _ in range(recipe.bands or 0)] if recipe.banded else []
        self.prints = table(np.uint64, None) if recipe.printed else None
        self.units, self.kept = table(np.int64, None), table(np.int64, None)
        self.rows = 0

    def append(self, made: Sketched) -> None:
        self.rows += len(made)
        self.units.append(made.units)
        self.kept.append(made.kept)
        if self.signatures is not None:
            assert made.signatures is not None
            assert made.keys is not None
            # a sketch may have more slots than the recipe asks for
            self.signatures.append(np.ascontiguousarray(made.signatures[:, : self.signatures.width]))
            for band, table in enumerate(self.keys):
                table.append(np.ascontiguousarray(made.keys[:, band]))
        if self.prints is not None:
            assert made.prints is not None
            self.prints.append(made.prints)

    def finish(self) -> None:
        for _, table in self.named():
            table.finish()

    def named(self) -> list[tuple[str, Table]]:
        """The tables by name."""
        out = [("signatures", self.signatures), ("prints", self.prints), ("units", self.units), ("kept", self.kept)]
        found = [(name, table) for name, table in out if table is not None]
        return [*found, *((f"keys {band}", table) for band, table in enumerate(self.keys))]


class RowTables:
    """Tables of what is known of every row, see `Survey`: one entry a row, in the order of the input."""

    def __init__(self, table: Callable[[Any, int | None], Table], near: bool, chars: bool, keyed: bool) -> None:
        """near: there are sketches; chars: code points are counted too; keyed: rows have keys."""
        self.digest, self.length = table(np.uint64, 2), table(np.int64, None)
        self.sketch = table(np.int64, None) if near else None
        self.chars = table(np.int64, None) if chars else None
        self.key_digest = table(np.uint64, 2) if keyed else None
        self.key_length = table(np.int64, None) if keyed else None

    def append(self, batch: Any) -> None:
        for name, table in self.named():
            table.append(getattr(batch, name))

    def finish(self) -> None:
        for _, table in self.named():
            table.finish()

    def named(self) -> list[tuple[str, Table]]:
        """The tables by name."""
        out = [("digest", self.digest), ("length", self.length), ("sketch", self.sketch), ("chars", self.chars)]
        out += [("key_digest", self.key_digest), ("key_length", self.key_length)]
        return [(name, table) for name, table in out if table is not None]


@dataclass(frozen=True)
class Sketcher:
    """A settled recipe as the arrays and integers that the backend wants."""

    recipe: Recipe
    backend: Backend
    normaliser: Normaliser
    stop: U64
    a: U32
    b: U32
    idf: U32 | None = None  # weights of terms, where the recipe has such and they are known

    @classmethod
    def of(cls, recipe: Recipe, backend: Backend, slots: int = 0, idf: U32 | None = None) -> Sketcher:
        """slots: compute so many at least; those beyond the recipe's are for later runs with other bands. Not so for
        the fast sketch, where more slots are another sketch."""
        normaliser = Normaliser.of(recipe, backend)
        a, b = numbers_of(recipe, slots)
        stop = np.zeros(0, np.uint64)
        if recipe.stop_shingles:
            steps = normaliser.steps
            stop = stop_hashes(recipe.stop_shingles, recipe.spec, lambda tape: backend.normalise(tape, steps), backend)
        return cls(recipe, backend, normaliser, stop, a, b, idf)

    @property
    def slots(self) -> int:
        """Slots of a sketch as it is made, 0 without sketches."""
        return len(self.a) - OWN_NUMBERS if self.fast else len(self.a)

    @property
    def fast(self) -> bool:
        return self.recipe.banded and self.recipe.sketch == "fast"

    @property
    def ready(self) -> bool:
        """False while sketches need document frequencies that are still to be counted."""
        return not self.recipe.weighted or self.idf is not None

    def normalise(self, tape: Tape) -> Tape:
        return self.normaliser(tape, self.backend)

    def make(self, tape: Tape, select: I64) -> Sketches:
        """Sketches of the normalised texts tape[select], by the recipe's kind."""
        spec = self.recipe.spec
        sketch = self.backend.fast_sketch if self.fast else self.backend.sketch
        return sketch(tape, select, spec.unit_code, spec.n, self.stop, self.a, self.b)

    def sketch(self, tape: Tape, select: I64) -> Sketched:
        """Sketches of the normalised texts tape[select]; of none of them while this is not `ready`.

        Shingles are counted with their repeats, or, where --min-shingles asks how many there are, without.
        """
        recipe, spec = self.recipe, self.recipe.spec
        signatures = keys = prints = None
        units = kept = np.zeros(0, np.int64)
        if recipe.printed:
            assert self.ready or not len(select)
            rule, idf = (SET, COUNT, TFIDF)[WEIGHTS.index(recipe.weights)], np.zeros(0, np.uint32)
            if self.idf is not None:
                idf = self.idf
            elif rule == TFIDF:  # there is nothing to be weighed
                rule = SET
            top = recipe.top_terms or 0
            printed = self.backend.fingerprints(
                tape, select, spec.unit_code, spec.n, self.stop, rule, idf, top if rule == TFIDF else 0
            )
            prints, units, kept = printed.values, printed.units, printed.kept
        if recipe.banded:
            made = self.make(tape, select)
            signatures, units, kept = made.signatures, made.units, made.kept
            keys = self.keys(signatures)
        if self.recipe.min_shingles > 1:  # a text of one shingle a hundred times over has one
            kept = np.diff(self.shingle_sets(tape, select)[1])
        return Sketched(signatures, keys, prints, units, kept)

    def own_slots(self, signatures: U32) -> U32:
        """The slots that the recipe asks for, of sketches that may have more."""
        return np.ascontiguousarray(signatures[:, : self.recipe.slots])

    def keys(self, signatures: U32) -> U64:
        """uint64[m, bands]: band keys of sketches of the recipe's slots or more."""
        recipe = self.recipe
        assert recipe.bands is not None
        assert recipe.rows is not None
        return self.backend.band_keys(self.own_slots(signatures), recipe.bands, recipe.rows)

    def shingle_sets(self, tape: Tape, select: I64) -> tuple[U64, I64]:
        spec = self.recipe.spec
        return self.backend.shingle_sets(tape, select, spec.unit_code, spec.n, self.stop)


class SeenDigests:
    """A lossy memory of digests, so that exact copies are rarely sketched twice.

    Direct-mapped and without a lock: a lost race forgets a digest or sketches a text twice, which costs time and
    changes nothing. A row that was skipped although no row with its digest was sketched in the end (a file that turned
    out bad, a chance hit of 86 equal bits) is found later and sketched by a second look at it.
    """

    def __init__(self) -> None:
        self._table = np.zeros(1 << SEEN_BITS, np.uint64)

    def first_time(self, digest: U64) -> Bool:
        """bool[n]: this digest was not met before, in this call or an earlier one."""
        place = digest[:, 0] & np.uint64((1 << SEEN_BITS) - 1)
        fresh = self._table[place] != digest[:, 1]
        self._table[place] = digest[:, 1]
        once = np.zeros(len(digest), bool)
        once[np.unique(digest[:, 0], return_index=True)[1]] = True
        return np.asarray(fresh & once, bool)


@dataclass
class FileFacts:
    """What the first pass learnt of one file."""

    source: Source
    index: int
    first: int = 0  # global number of its first row
    rows: int = 0
    status: U8 = field(default_factory=lambda: np.zeros(0, np.uint8))
    refs: list[ChunkRef] = field(default_factory=list)
    content_hash: str | None = None  # None where --limit stopped before the end
    problem: str | None = None  # the file was left out, and why
    bad_rows: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class Survey:
    """All rows of all files; arrays and tables run over global row numbers.

    status   uint8[n]             ROW_*
    digest   table uint64[n, 2]   of the normalised text
    length   table int64[n]       its bytes; 0 also for rows without a text
    chars    table int64[n]       code points of the raw text, where the keeper asks; else None
    values   KeeperColumn | None  the keeper's field
    sketch   table int64[n]       row in the sketch tables, -1 where this row was not sketched; None for methods without
    sketches                      the sketch tables; still open. None for methods without
    verdict  uint8[n] or None     bits of pipeline/stream.py, of methods that decide as rows pass by; digest, length and
                                  sketch are empty then
    key_digest table uint64[n, 2] of the row's key; None without a key field
    key_length table int64[n]     its bytes, NO_KEY where the row has none
    """

    files: list[FileFacts]
    status: U8
    digest: Table
    length: Table
    chars: Table | None
    values: KeeperColumn | None
    sketch: Table | None
    sketches: SketchTables | None
    blank: int
    text_bytes: int
    verdict: U8 | None = None
    key_digest: Table | None = None
    key_length: Table | None = None

    @property
    def contents(self) -> list[tuple[str, int, str | None, str | None]]:
        """What the input was, for whatever outlives the run: name, size, content hash of each file, and why it was left
        out."""
        return [(f.source.rel, f.source.size, f.content_hash, f.problem) for f in self.files]

    def place(self, row: int) -> tuple[FileFacts, int]:
        """File and row within the file of a global row number."""
        return _place(self.files, row)

    def where(self, row: int) -> str:
        """The place of a global row, as messages name it."""
        return where_in(self.files, row)

    def bytes_of(self, rows: I64) -> int:
        """Bytes of the normalised texts of these global rows together."""
        return sum(int(self.length.take(rows[at : at + BLOCK]).sum()) for at in range(0, len(rows), BLOCK))


def _place(files: Sequence[FileFacts], row: int) -> tuple[FileFacts, int]:
    ends = [f.first + f.rows for f in files]  # a file without rows ends where it begins and is never hit
    facts = files[bisect_right(ends, row)]
    return facts, row - facts.first


def where_in(files: Sequence[FileFacts], row: int) -> str:
    """The place of a global row, as messages name it; `files` in order, from row 0 on."""
    facts, local = _place(files, row)
    return facts.source.where(local)


@dataclass(frozen=True)
class _Batch:
    facts: FileFacts
    first_row: int
    refs: Sequence[ChunkRef]
    nbytes: int
    text_bytes: int
    status: U8
    digest: U64
    length: I64
    chars: I64 | None
    values: list[Any] | None
    errors: Sequence[tuple[int, str]]
    select: I64
    sketched: Sketched | None
    saved: bool = False  # it came out of a part
    key_digest: U64 | None = None
    key_length: I64 | None = None
    no_key: tuple[int, str] | None = None  # the first row whose key is none, and what it is
    sketch: I64 | None = None  # rows in the sketch tables, once they are there


@dataclass(frozen=True)
class _Failure:
    facts: FileFacts
    error: InputError


@dataclass(frozen=True)
class _End:
    facts: FileFacts
    content_hash: str | None
    nbytes: int
    saved: bool = False  # a part says so


@dataclass(frozen=True)
class _Read:
    """A file was read to its end. content_hash: None if all of its rows are in parts, so that it was not opened."""

    content_hash: str | None


@dataclass(frozen=True)
class _Work:
    facts: FileFacts
    chunk: Chunk
    most: int | None  # rows of this chunk that exist under --limit
    known: _Batch | None = None  # a part has these rows, but not the keeper's field of them


@dataclass(frozen=True)
class _Saved:
    """Rows that come out of a part."""

    facts: FileFacts
    batch: _Batch


class _Beside:
    """The chunks of a file beside what parts know of it. Chunks that a part knows all of come as one: the last of them,
    with its rows and those before it.

    Every chunk is read, though not taken apart: so the content hash is that of the whole file, as ever.
    """

    def __init__(self, surveyor: Surveyor, resume: Resume, facts: FileFacts) -> None:
        self._surveyor, self._resume, self._facts = surveyor, resume, facts
        self._waiting = resume.of(facts.source)[0]
        self._current: SavedRows | None = None
        self._refs: list[ChunkRef] = []
        self._nbytes = 0

    def take(self, chunk: Chunk) -> tuple[bool, _Saved | _Batch | None]:
        """What a part knows of the next chunk; False where that comes with one of the chunks behind it."""
        resume = self._resume
        if self._current is None:
            while self._waiting and self._waiting[0].first < chunk.first_row:  # rows of it were read: it was of no use
                self._waiting.pop(0)
            if self._waiting and self._waiting[0].first == chunk.first_row:
                self._refs = resume.chunks(self._waiting[0])[::-1]
                if self._refs[-1] == chunk.ref:
                    self._current, self._nbytes = self._waiting.pop(0), 0
        current = self._current
        if current is None:
            return True, None
        if self._refs.pop() != chunk.ref:
            raise InputError(
                "the file is not what it was when the run began",
                "start again with --fresh, when it stays as it is", place=self._facts.source.name,
            )  # fmt: skip
        self._nbytes += chunk.nbytes
        if not self._refs:
            self._current = None
        if not resume.has_values(current):
            batch = self._surveyor.batch_of(self._facts, current, chunk.first_row, chunk.count_rows(), chunk.nbytes)
            return True, replace(batch, refs=[chunk.ref])
        if self._refs:
            return False, None
        return True, self._surveyor.saved(self._facts, current, self._nbytes)


@dataclass
class _File:
    """A file of which some is known, and not all of those before it."""

    facts: FileFacts
    batches: list[_Batch] = field(default_factory=list)
    moved: int = 0  # so many of them are in tables, but for their status
    waiting: int = 0  # rows of the others
    rows: RowTables | None = None  # its own, for what comes before its turn and is much
    verdict: list[U8] = field(default_factory=list)
    end: _End | None = None
    error: InputError | None = None  # ends the run when it is this file's turn
    met: list[tuple[int, int]] = field(default_factory=list)  # rows and bytes that came before its turn

    @property
    def over(self) -> bool:
        return self.end is not None or self.error is not None or self.facts.problem is not None

    def move(self, to: RowTables) -> None:
        """Bring what is known of its rows to the tables `to`, where it goes on."""
        if self.rows is not None and self.rows is not to:
            self.rows.finish()
            own = dict(self.rows.named())
            for name, table in to.named():
                for at in range(0, len(own[name]), BLOCK):
                    table.append(own[name].slice(at, min(at + BLOCK, len(own[name]))))
                own[name].close()
            self.rows = None
        for number in range(self.moved, len(self.batches)):
            to.append(self.batches[number])
            self.batches[number] = _stripped(self.batches[number])
        self.moved, self.waiting = len(self.batches), 0


class Surveyor:
    """Runs the first pass; `survey` is the whole of it.

    Files are read ahead, and their batches come mixed unless the method asks for rows in their order. What a file adds
    up to is joined when all files before it have come to their end, and so are errors raised: in input order.

    met             told the rows and bytes of input of each batch, as they come
    in_turn         the same, in input order
    resume, saver   parts of an earlier start to go on from, and what writes those of this one
    """

    def __init__(
        self,
        sketcher: Sketcher,
        pool: Pool,
        batch_bytes: int,
        table: Callable[[Any, int | None], Table],
        resume: Resume | None = None,
        saver: Saver | None = None,
        stream: Stream | None = None,
        met: Callable[[int, int], None] = lambda rows, nbytes: None,
        in_turn: Callable[[int, int], None] = lambda rows, nbytes: None,
    ) -> None:
        self.resume, self.saver, self.met, self.in_turn = resume, saver, met, in_turn
        self._reading: ReadAhead[FileFacts, Chunk | _Failure | _Read] | None = None
        self.sketcher = sketcher
        self.recipe = sketcher.recipe
        self.pool = pool
        self.batch_bytes = batch_bytes
        self.table = table
        self.stream = stream
        self.seen = SeenDigests() if self.recipe.method not in STREAMED else None
        # Of keys that were met before, rows are copies, which nobody sketches: if the first row stays for the others.
        goes = self.recipe.keyed and self.recipe.near and self.recipe.keep == "first" and not self.recipe.key_flags
        self.seen_keys = SeenDigests() if goes else None
        # Also good after an error: the files that were finished before it, and the keeper's field of their rows.
        self.files: list[FileFacts] = []
        self.values = KeeperColumn(self.recipe.keep) if self.recipe.keep_field else None

    def survey(self, sources: Sequence[Source], advance: Callable[[int], None]) -> Survey:
        """Read all sources. Raises InputError for the first bad row or file in input order, unless it is skipped."""
        recipe = self.recipe
        sketches = SketchTables(recipe, self.table) if recipe.near else None
        values, done = self.values, self.files
        columns = RowTables(self.table, recipe.near, self._needs_chars, recipe.keyed)
        status: list[U8] = []
        stream = self.stream
        verdicts: list[list[U8]] = []
        rows = text_bytes = 0
        under_way: dict[int, _File] = {}
        turn = 0  # number of the file whose rows come next

        def close(file: _File) -> None:
            """All files before this one are in `done`, and it has come to its end."""
            nonlocal rows, text_bytes
            facts = file.facts
            if file.error is not None:
                raise file.error
            facts.first = rows
            if file.end is None:  # it is left out
                done.append(facts)
                return
            facts.rows = sum(len(b.status) for b in file.batches)
            facts.content_hash = file.end.content_hash
            if stream is not None:
                rows_there = sum(int(np.count_nonzero(b.status != ROW_BLANK)) for b in file.batches)
                stream.end(facts.source.name, facts.content_hash, rows_there)
                if not stream.eager:
                    file.verdict = [self._take(stream, batch) for batch in file.batches]
                    file.batches = [_stripped(batch) for batch in file.batches]
                verdicts.append(file.verdict)
            rows += facts.rows
            done.append(facts)
            text_bytes += sum(batch.text_bytes for batch in file.batches)
            if values is not None:
                self._keep_values(values, file.batches, done)
            status.extend(batch.status for batch in file.batches)
            if stream is None and not self._at_once:
                for batch in file.batches:
                    columns.append(batch)

        with contextlib.ExitStack() as stack:
            if self.saver is not None:
                self.saver.later = stack.enter_context(self.pool.behind())
            for item in self.pool.ordered(self._work, self._items(sources)):
                facts = item.facts
                if facts.index not in under_way and facts.index >= turn:
                    under_way[facts.index] = _File(facts)
                file = under_way.get(facts.index)
                if file is None or file.error is not None or facts.problem is not None:
                    continue  # what was in flight when its file failed
                if isinstance(item, _Failure):
                    if recipe.on_bad_file == "error":
                        self._fail(file, item.error)
                    else:
                        if self.saver is not None:
                            self.saver.drop(facts.source)
                        facts.problem = item.error.reason
                        advance(facts.source.size)
                        under_way[facts.index] = _File(facts, met=file.met)
                        facts.bad_rows = []
                        facts.refs = []
                elif isinstance(item, _End):
                    file.end = item
                    if self.saver is not None and item.content_hash is not None and not item.saved:
                        count = sum(len(b.status) for b in file.batches)
                        self.saver.end(facts.source, facts.index, count, item.content_hash)
                    self.met(0, item.nbytes)
                    file.met.append((0, item.nbytes))
                    advance(item.nbytes)
                else:
                    try:
                        self._check_rows(item)
                    except InputError as error:
                        self._fail(file, error)
                    else:
                        self._add(file, item, sketches, columns, at_once=facts.index == turn and self._at_once)
                        advance(item.nbytes)
                while turn in under_way:
                    first = under_way[turn]
                    for counts in first.met:
                        self.in_turn(*counts)
                    first.met.clear()
                    if stream is None and self._at_once:
                        first.move(columns)
                    if not first.over:
                        break
                    close(first)
                    del under_way[turn]
                    turn += 1
            if under_way:
                raise InternalError(f"file {turn + 1} has no end, and others behind it have come")
            if self.saver is not None:
                self.saver.finish()

        columns.finish()
        joined = _joined(status)
        for facts in done:
            facts.status = joined[facts.first : facts.first + facts.rows]
        return Survey(
            files=done,
            status=joined,
            digest=columns.digest,
            length=columns.length,
            chars=columns.chars,
            values=values,
            sketch=columns.sketch,
            sketches=sketches,
            blank=int(np.count_nonzero(joined == ROW_BLANK)),
            text_bytes=text_bytes,
            verdict=None if stream is None else _joined([v for per_file in verdicts for v in per_file]),
            key_digest=columns.key_digest,
            key_length=columns.key_length,
        )

    def _add(self, file: _File, item: _Batch, sketches: SketchTables | None, columns: RowTables, at_once: bool) -> None:
        """Take a batch. at_once: all rows before it are in `columns`, and no later damage can take it back."""
        self.met(len(item.status), item.nbytes)
        file.met.append((len(item.status), item.nbytes))
        facts, stream = file.facts, self.stream
        if self.saver is not None:
            if item.saved:
                self.saver.cut(facts.source)
            else:
                self.saver.add(facts.source, facts.index, item)
        facts.refs.extend(item.refs)
        facts.bad_rows.extend(item.errors)
        if stream is not None:
            if stream.eager:
                file.verdict.append(self._take(stream, item))
                item = _stripped(item)
            file.batches.append(item)
            return
        index = np.full(len(item.status), -1, np.int64)
        if sketches is not None and item.sketched is not None:
            index[item.select] = sketches.rows + np.arange(len(item.select))
            sketches.append(item.sketched)
        # the sketches are in the tables by now
        item = replace(item, sketch=index, sketched=None, errors=())
        if at_once:
            columns.append(item)
            item = _stripped(item)
            file.moved += 1
        file.batches.append(item)
        file.waiting += len(item.status)
        if not at_once and self._at_once and file.waiting >= MOST_WAITING:
            if file.rows is None:
                file.rows = RowTables(self.table, self.recipe.near, self._needs_chars, self.recipe.keyed)
            file.move(file.rows)

    @property
    def _at_once(self) -> bool:
        """Whether a batch counts when it comes; else with the end of its file, which may still turn out bad."""
        return self.recipe.on_bad_file == "error"

    def _take(self, stream: Stream, batch: _Batch) -> U8:
        """Verdicts of a batch; rows are named by their place in the file."""
        source, first = batch.facts.source, batch.first_row
        made = batch.sketched
        keys, units, kept = (made.keys, made.units, made.kept) if made is not None else (None, None, None)
        return stream.take(
            batch.status, batch.length, batch.digest, batch.select, keys, units, kept,
            lambda row: source.where(first + row),
        )  # fmt: skip

    @property
    def _needs_chars(self) -> bool:
        return self.recipe.keep in ("longest", "shortest")

    def _fail(self, file: _File, error: InputError) -> None:
        """The run ends with this error unless a file before has one; those behind it are not wanted any more."""
        file.error = error
        if self._reading is not None:
            self._reading.stop_behind(file.facts.index)

    def _read(self, facts: FileFacts) -> Iterator[Chunk | _Failure | _Read]:
        """The chunks of a file, and its end or its failure. In any thread."""
        if facts.index in self._whole:
            yield _Read(None)
            return
        # Under --on-bad-file skip a file that is damaged in any column has to be found out now: once rows of other
        # files may have a witness in it, it is too late to leave it out.
        columns: list[str] | None = [*self.recipe.texts_from, *self._extra]
        if self.recipe.on_bad_file == "skip":
            columns = None
        try:
            with open_source(
                facts.source, self.batch_bytes, facts.index, columns, [self.recipe.id_field], self.sketcher.backend
            ) as reader:
                yield from reader
                yield _Read(reader.content_hash())
        except InputError as error:
            yield _Failure(facts, error)

    def _items(self, sources: Sequence[Source]) -> Iterator[_Work | _Saved | _Failure | _End]:
        """Chunks of all files, those of each in their order; a file's failure and its end are items too."""
        left = self.recipe.limit
        files = [FileFacts(source, index) for index, source in enumerate(sources)]
        self._whole = {facts.index for facts in files if self._of(facts)[1]}
        reading = self._reading = self.pool.read(
            files, self._read, lambda facts: facts.source, self.stream is not None, alone=left is not None
        )
        seen: dict[int, int] = {}  # bytes that were read of a file that is not at its end
        beside: dict[int, _Beside] = {}
        with reading:
            for number, item in reading:
                facts = files[number]
                if isinstance(item, _Failure):
                    yield item
                elif isinstance(item, _Read):
                    beside.pop(number, None)
                    if number in self._whole:
                        saved, _ = self._of(facts)
                        for rows in saved:
                            if rows.rows:  # a part that has but the end of the file may have no rows at all
                                yield self.saved(facts, rows, 0)
                        yield _End(facts, saved[-1].stretch.content_hash, facts.source.size, saved=True)
                    else:
                        known_end = self.resume is not None and self.resume.ended(facts.source)
                        yield _End(facts, item.content_hash, facts.source.size - seen.pop(number, 0), known_end)
                else:
                    known: _Saved | _Batch | None = None
                    if self.resume is not None:
                        if number not in beside:
                            beside[number] = _Beside(self, self.resume, facts)
                        try:
                            whole, known = beside[number].take(item)
                        except InputError as error:
                            yield _Failure(facts, error)
                            continue
                        if not whole:
                            continue
                    nbytes = known.batch.nbytes if isinstance(known, _Saved) else item.nbytes
                    seen[number] = seen.get(number, 0) + nbytes
                    yield known if isinstance(known, _Saved) else _Work(facts, item, left, known)
                    if left is not None:
                        left -= item.count_rows()
                        if left <= 0:
                            yield _End(facts, None, facts.source.size - seen[number])
                            return

    def _of(self, facts: FileFacts) -> tuple[list[SavedRows], bool]:
        """Rows of a file that are in parts, and whether the file need not be read for the others."""
        if self.resume is None:
            return [], False
        saved, whole = self.resume.of(facts.source)
        return saved, whole and all(self.resume.has_values(rows) for rows in saved)

    def saved(self, facts: FileFacts, rows: SavedRows, nbytes: int) -> _Saved:
        return _Saved(facts, self.batch_of(facts, rows, rows.first, rows.rows, nbytes))

    def batch_of(self, facts: FileFacts, rows: SavedRows, first: int, count: int, nbytes: int) -> _Batch:
        """Rows first to first + count - 1 of a file, out of a part that holds them."""
        assert self.resume is not None
        part, stretch = self.resume.load(rows.part), rows.stretch
        begin = stretch.at + first - stretch.first
        here = slice(begin, begin + count)
        low, high = np.searchsorted(part.select, [begin, begin + count]) if part.units is not None else (0, 0)
        sketches = slice(low, high)
        select = part.select[sketches] - begin if part.units is not None else np.zeros(0, np.int64)
        digest = part.digest[here]
        assert self.seen is not None
        self.seen.first_time(digest[select])
        key_digest = key_length = None
        if self.recipe.keyed:
            key_digest, key_length = part.key_digest[here], part.key_length[here]
            self._new_keys(key_digest, key_length, np.flatnonzero(part.length[here] > 0))
        sketched = None
        if part.units is not None:
            signatures = None if part.signatures is None else part.signatures[sketches]
            sketched = Sketched(
                signatures,
                None if signatures is None or not self.recipe.banded else self.sketcher.keys(signatures),
                None if part.prints is None else part.prints[sketches],
                part.units[sketches],
                part.kept[sketches],
            )
        whole = count == stretch.rows
        refs = part.refs[stretch.chunk : stretch.chunk + stretch.chunks]
        return _Batch(
            facts, first, [ChunkRef(*ref) for ref in refs.tolist()] if whole else [], nbytes,
            stretch.text_bytes if whole else 0, part.status[here], digest, part.length[here],
            part.chars[here] if self._needs_chars else None,
            part.values[here] if self.recipe.keep_field and part.values is not None else None,
            [(row, reason) for at, row, reason in part.errors if begin <= at < begin + count],
            select, sketched, True, key_digest, key_length,
        )  # fmt: skip

    def _work(self, item: _Work | _Saved | _Failure | _End) -> _Batch | _Failure | _End:
        if isinstance(item, _Saved):
            return item.batch
        if not isinstance(item, _Work):
            return item
        recipe, backend = self.recipe, self.sketcher.backend
        chunk = item.chunk
        extra = self._extra
        try:
            rows = chunk.rows(backend, recipe, extra)
        except InputError as error:
            return _Failure(item.facts, error)
        if item.most is not None:
            rows = rows.head(item.most)
        if item.known is not None:
            # The field is new to the part, so these rows go into a new one.
            return replace(
                item.known, values=rows.fields[recipe.keep_field or ""], text_bytes=rows.tape.nbytes, saved=False
            )
        normal = self.sketcher.normalise(rows.tape)
        length = np.diff(normal.offsets)
        digest = backend.digest(normal) if recipe.method != "lshbloom" else np.zeros((0, 2), np.uint64)
        chars = None
        if self._needs_chars or self.saver is not None:
            chars = backend.code_points(rows.tape) if recipe.pretokenized is None else count_tokens(rows.tape)
        key_digest = key_length = no_key = None
        if recipe.key_field is not None and recipe.keyed:
            keys, key_length, refused = keys_of(rows.fields[recipe.key_field])
            key_digest = backend.digest(keys)
            if refused:
                no_key = rows.first_row + refused[0][0], refused[0][1]
        select = np.zeros(0, np.int64)
        sketched = None
        if recipe.sketched:
            select = np.flatnonzero((rows.status == ROW_TEXT) & (length > 0))
            if not self.sketcher.ready:
                select = select[:0]
            if key_digest is not None and key_length is not None:
                select = self._new_keys(key_digest, key_length, select)
            if self.seen is not None:
                select = select[self.seen.first_time(digest[select])]
            sketched = self.sketcher.sketch(normal, select)
        values = chunk.keeper_values(rows.fields[recipe.keep_field]) if recipe.keep_field else None
        return _Batch(
            item.facts, chunk.first_row, [chunk.ref], chunk.nbytes, rows.tape.nbytes, rows.status, digest, length,
            chars, values, rows.errors, select, sketched, False, key_digest, key_length, no_key,
        )  # fmt: skip

    @property
    def _extra(self) -> list[str]:
        """Fields that are wanted beside the text: the keeper's first."""
        named = [self.recipe.keep_field, self.recipe.key_field if self.recipe.keyed else None]
        return list(dict.fromkeys(name for name in named if name is not None))

    def _new_keys(self, digest: U64, length: I64, select: I64) -> I64:
        """Rows of `select` without those whose key was met before, as far as that is remembered."""
        if self.seen_keys is None:
            return select
        keyed = length[select] != NO_KEY
        new = np.ones(len(select), np.bool_)
        new[keyed] = self.seen_keys.first_time(digest[select[keyed]])
        return select[new]

    def _keep_values(self, values: KeeperColumn, batches: list[_Batch], files: list[FileFacts]) -> None:
        """Add the keeper's field of a finished file. Rows without a text take part in nothing, so theirs are absent."""
        try:
            for batch in batches:
                assert batch.values is not None
                values.append(batch.values)
        except KeeperError as error:
            raise error.named(lambda row: where_in(files, row)) from None

    def _check_rows(self, batch: _Batch) -> None:
        bad = batch.errors and self.recipe.on_bad_row == "error"
        if batch.no_key is not None and self.recipe.on_bad_row == "error":
            row, what = batch.no_key
            if not bad or row < batch.errors[0][0]:
                raise InputError(
                    f"key-field {quoted([self.recipe.key_field or ''])} is {what}, which no key can be",
                    "name a field of texts or numbers, or pass --on-bad-row keep, so that such a row has no key",
                    place=batch.facts.source.where(row),
                )
        if bad:
            row, reason = batch.errors[0]
            raise InputError(
                f"{batch.facts.source.where(row)}: {reason}; mend it, or pass --on-bad-row skip (left out) or "
                "keep (copied)"
            )
        if int(np.count_nonzero(batch.status == ROW_BAD)) != len(batch.errors):
            raise InternalError(f"{batch.facts.source.path}: bad rows without a reason")
        if np.any(batch.status == ROW_SKIPPED):
            raise InternalError(f"{batch.facts.source.path}: rows were passed over in the first pass")


def _stripped(batch: _Batch) -> _Batch:
    """What is kept of a batch whose rows have their verdicts, or are in the tables."""
    none = np.zeros(0, np.int64)
    return replace(
        batch, sketched=None, errors=(), digest=np.zeros((0, 2), np.uint64), length=none, chars=None, select=none,
        sketch=none, key_digest=None, key_length=None,
    )  # fmt: skip


def _joined(parts: list[U8]) -> U8:
    """One array of the parts, which are let go."""
    out = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
    parts.clear()
    return out
