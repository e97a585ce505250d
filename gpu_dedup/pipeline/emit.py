"""Second pass: write the surviving rows, and the log of the others with their ids."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu_dedup import columns
from gpu_dedup.batch import I64, MISSING, ROW_TEXT, Bool, Rows
from gpu_dedup.checkpoint import Checkpoint, content_key, same_file
from gpu_dedup.cluster import NEAR_LEVEL
from gpu_dedup.pipeline.beside import side_by_side
from gpu_dedup.pipeline.outcome import (
    BLOOM,
    CHAIN,
    EXACT,
    EXACT_NEAR,
    KEPT_WITNESS,
    KEY,
    NEAR,
    PROBABILISTIC,
    REASONS,
    STAYS,
    Outcome,
    guarantee,
    keep_mask,
)
from gpu_dedup.pipeline.pool import Pool
from gpu_dedup.pipeline.rewrite import WITHOUT_FIELDS, Hands, Shard, changed, copy_source, write_lines, write_shard
from gpu_dedup.pipeline.survey import FileFacts, Sketcher, Survey
from gpu_dedup.progress import Progress
from gpu_dedup.read import Chunk, Source, open_source
from gpu_dedup.read.items import shown_text
from gpu_dedup.recipe import Recipe
from gpu_dedup.report import EXCERPT, RemovalLog, id_text, utf8
from gpu_dedup.spool import Budget, RaggedTable, Table
from gpu_dedup.write import MASK, REMOVED, LineStream, MaskWriter, OutputFolder

LOG_BATCH = 1 << 16
MOST_WRITERS = 4  # files that are written side by side
WORTH_A_THREAD = 1 << 18  # bytes


def _in_memory(dtype: Any, width: int | None) -> Table:
    """A table that never goes to disk."""
    return Table(dtype, width, tempfile.gettempdir, Budget(1 << 62))


class Ids:
    """User ids of chosen rows, as text with their type, in tables: there may be many."""

    def __init__(
        self, wanted: I64, excerpts: I64 | None = None, table: Callable[[Any, int | None], Table] = _in_memory
    ) -> None:
        """wanted: ascending. excerpts: rows among them, ascending, of whose texts the beginnings are wanted too;
        `texts` gets these. table: makes one, for a dtype and a width."""
        self.wanted = wanted
        self.excerpts = np.zeros(0, np.int64) if excerpts is None else excerpts
        self.texts: dict[int, str] = {}
        self._parts: list[I64] = []
        self._rows: I64 | None = None  # rows that were met, ascending
        self._order: I64 | None = None  # where they are in the tables; None: in this order
        self._kinds: dict[tuple[str, bool], int] = {}  # (kind of value, whether it has no text) -> code
        self._kind = table(np.uint16, None)
        self._end, self._text = table(np.int64, None), table(np.uint8, None)
        self._lock = threading.Lock()

    def inside(self, first: int, count: int) -> I64:
        """Wanted rows from `first` on, relative to it."""
        low, high = np.searchsorted(self.wanted, [first, first + count])
        return self.wanted[low:high] - first

    def note_texts(self, rows: Rows, first: int, listed: bool = False) -> None:
        """Keep what is wanted of the texts of a chunk whose file begins with global row `first`. listed: its texts are
        lists of tokens."""
        start = first + rows.first_row
        low, high = np.searchsorted(self.excerpts, [start, start + len(rows)])
        for row in self.excerpts[low:high].tolist():
            if rows.status[row - start] == ROW_TEXT:
                text = rows.tape[row - start][: 4 * EXCERPT].decode("utf-8", "replace")
                self.texts[row] = (shown_text(text) if listed else text)[:EXCERPT]

    def add(self, rows: I64, values: list[Any]) -> None:
        """Take the ids of wanted rows; each row comes once, in any order."""
        pairs = [id_text(value) for value in values]
        parts = [b"" if text is None else text.encode() for text, _ in pairs]
        with self._lock:  # files are written side by side
            codes = [self._kinds.setdefault((kind, text is None), len(self._kinds)) for text, kind in pairs]
            before = len(self._text)
            self._parts.append(rows)
            self._kind.append(np.array(codes, np.uint16))
            self._end.append(np.cumsum(np.array([len(part) for part in parts], np.int64)) + before)
            self._text.append(np.frombuffer(b"".join(parts), np.uint8))

    @property
    def some(self) -> bool:
        """Whether a row was met that has an id."""
        return any(not none for _, none in self._kinds)

    def _finish(self) -> I64:
        if self._rows is None:
            self._rows = np.concatenate([np.zeros(0, np.int64), *self._parts])
            self._parts = []
            if bool((self._rows[1:] < self._rows[:-1]).any()):
                self._order = np.argsort(self._rows, kind="stable")
                self._rows = self._rows[self._order]
            self._table = RaggedTable.over(self._text, self._end)
            self._table.finish()
            self._kind.finish()
        return self._rows

    def look_up(self, rows: I64) -> tuple[Any, Any]:
        """Arrow arrays of id and id_type; null for row -1 and for rows without a readable record."""
        met = self._finish()
        place = np.searchsorted(met, rows)
        known = place < len(met)
        known[known] = met[place[known]] == rows[known]
        at = place[known] if self._order is None else self._order[place[known]]
        data, offsets = self._table.take(at)
        codes = np.zeros(len(rows), np.int64)
        codes[known] = self._kind.take(at)
        empty = ~known
        empty[known] = np.array([none for _, none in self._kinds], np.bool_)[codes[known]]
        lengths = np.zeros(len(rows), np.int64)
        lengths[known] = np.diff(offsets)
        # large: of some 358 million ids, "string" alone is 2**31 bytes
        kinds = columns.texts([kind for kind, _ in self._kinds] or [""]).take(columns.integers(codes, ~known))
        return columns.text_of(data, lengths, empty), kinds


@dataclass
class Emitted:
    """What was written: rows by file, and the groups that kept rows stand for."""

    kept_by_file: list[int]
    kept_mask: Bool
    ids: Ids | None = None  # of rows in the log, their witnesses and the groups; None where nothing is written


@dataclass(frozen=True)
class Target:
    """Where the result goes.

    folder        gets log, mask and removed rows, and the files unless there is a stream
    stream        gets the rows of all files
    mask          bits are written, and no rows
    keep_removed  rows that go are stored too, and bits that tell which they were
    """

    folder: OutputFolder | None = None
    stream: LineStream | None = None
    mask: bool = False
    keep_removed: bool = False


def wanted_ids(outcome: Outcome, groups: I64) -> I64:
    """Global rows whose ids the log and the report want, ascending."""
    named = outcome.reason != STAYS
    for rows in (outcome.witness, groups, outcome.linked):
        if rows is not None:
            named[rows[rows >= 0]] = True
    return np.flatnonzero(named)


def emit(
    survey: Survey,
    sketcher: Sketcher,
    pool: Pool,
    batch_bytes: int,
    outcome: Outcome,
    to: Target,
    progress: Progress,
    fingerprint: str,
    ids: Ids,
    kept: Checkpoint | None = None,
    beside: int = 0,
) -> Emitted:
    """Write every file's surviving rows, or the mask of them, and the log; without a place for them only count.

    ids     gets those that it wants
    kept    where complete files are noted for a next start, and where those of an earlier one are found
    beside  bytes that files may take that are written side by side
    """
    recipe = sketcher.recipe
    keep = keep_mask(recipe, survey.status, outcome)
    kept_by_file = [int(np.count_nonzero(keep[f.first : f.first + f.rows])) for f in survey.files]
    folder = to.folder
    if folder is None and to.stream is None:
        return Emitted(kept_by_file, keep)
    logged = np.flatnonzero(outcome.reason != STAYS)
    with contextlib.ExitStack() as stack:
        mask = None
        if folder is not None and (to.mask or to.keep_removed):
            mask = stack.enter_context(MaskWriter(folder.open_temp(MASK), fingerprint))
        advance = stack.enter_context(
            progress.stage("write", sum(f.source.size for f in survey.files if f.problem is None))
        )
        done = None
        if folder is not None and to.stream is None and not to.mask and not to.keep_removed:
            done = _Done(kept, folder, survey, fingerprint)
        hands = Hands(pool, sketcher.backend, batch_bytes, advance)
        shards: list[tuple[Shard, FileFacts]] = []
        for facts in survey.files:
            if facts.problem is not None or (
                facts.rows == 0 and facts.content_hash is None and recipe.limit is not None
            ):
                continue
            mine = keep[facts.first : facts.first + facts.rows]
            if mask is not None:
                mask.append(utf8(facts.source.rel), mine)
            shards.append((Shard(facts.source, facts.index, mine, facts.content_hash), facts))

        def write(one: tuple[Shard, FileFacts], check: Callable[[], None]) -> None:
            def step(count: int) -> None:
                check()
                advance(count)

            _emit_file(*one, sketcher, replace(hands, advance=step), to, ids, done)

        def weigh(one: tuple[Shard, FileFacts]) -> int:
            return _weight(one[1].source, pool.threads, batch_bytes)

        # Small files are the work of one thread, as there is little in them but what needs the GIL.
        large = sum(facts.source.size >= WORTH_A_THREAD for _, facts in shards)
        threads = 1 if to.stream is not None else min(pool.readers, MOST_WRITERS, large)
        side_by_side(write, shards, weigh, threads, beside)
    if folder is not None:
        with progress.stage("log", None), RemovalLog(folder.log_path(), fingerprint) as log:
            for start in range(0, len(logged), LOG_BATCH):
                log.append(log_columns(recipe, survey, outcome, keep, ids, logged[start : start + LOG_BATCH]))
    return Emitted(kept_by_file, keep, ids)


def _weight(source: Source, threads: int, batch_bytes: int) -> int:
    """Bytes, about, that a file takes while it is written."""
    if source.format == "parquet":
        from gpu_dedup.read.parquet import largest_group

        return 2 * largest_group(source)  # as it is read, and as it is written
    if source.format == "arrow":
        return 2 * source.size  # its largest batch may be all of it
    return 2 * (threads + 6) * batch_bytes


def _emit_file(
    shard: Shard, facts: FileFacts, sketcher: Sketcher, hands: Hands, to: Target, ids: Ids, done: _Done | None
) -> None:
    """Write what stays of one file, and keep the ids that the log wants."""
    source, keep, folder = facts.source, shard.keep, to.folder
    columns_of = source.format in ("parquet", "arrow")

    def look(chunk: Chunk, count: int) -> tuple[I64, list[Any]]:
        return _ids_of(chunk, facts, sketcher, ids, count)

    def seen(found: tuple[I64, list[Any]]) -> None:
        ids.add(*found)

    if to.stream is not None:
        write_lines(shard, hands, to.stream.next_file(), None, look, seen)
        return
    assert folder is not None
    if to.mask:
        _collect_ids(facts, sketcher, hands, ids)
        hands.advance(source.size)
        return
    with contextlib.ExitStack() as stack:
        removed = None
        if to.keep_removed and not keep.all():
            removed = stack.enter_context(folder.open_temp(f"{REMOVED}/{source.rel}"))
        if source.format == "txt" and not keep.any():  # the document is the file: it is not written
            _no_ids(facts, sketcher, hands, ids)
            if removed is not None and copy_source(source, removed) != facts.content_hash:
                raise changed(source)
            hands.advance(source.size)
            return
        if done is not None and done.take(source.rel):
            _collect_ids(facts, sketcher, hands, ids)
            hands.advance(source.size)
            return
        path = stack.enter_context(folder.open_temp(source.rel))
        if keep.all() and facts.content_hash is not None:
            if copy_source(source, path, hands.advance) != facts.content_hash:
                raise changed(source)
            if len(ids.inside(facts.first, facts.rows)):
                _collect_ids(facts, sketcher, hands, ids)
        else:
            if columns_of:
                _collect_ids(facts, sketcher, hands, ids, whole=True)
            write_shard(shard, hands, path, removed, look, seen)
    if done is not None:
        done.note(source.rel, path)


def _no_ids(facts: FileFacts, sketcher: Sketcher, hands: Hands, ids: Ids) -> None:
    """Rows of plain text, which has no ids; of a few the text is wanted all the same."""
    local = ids.inside(facts.first, facts.rows)
    ids.add(local + facts.first, [MISSING] * len(local))
    low, high = np.searchsorted(ids.excerpts, [facts.first, facts.first + facts.rows])
    if low == high:
        return
    firsts = np.array([ref.first_row for ref in facts.refs], np.int64)
    which = np.unique(np.searchsorted(firsts, ids.excerpts[low:high] - facts.first, side="right") - 1)
    fields = sketcher.recipe.texts_from
    with open_source(facts.source, hands.batch_bytes, facts.index, fields, backend=hands.backend) as reader:
        for chunk in reader.read_refs([facts.refs[i] for i in which]):
            ids.note_texts(chunk.parse(hands.backend, fields), facts.first)


class _Done:
    """Output files that are complete: those of an earlier start under the same recipe and input, and those of this one.

    Small files are noted together, when they are as many bytes as a checkpoint is apart.
    """

    def __init__(self, kept: Checkpoint | None, folder: OutputFolder, survey: Survey, fingerprint: str) -> None:
        self._kept = kept if kept is not None and (kept.used or kept.written) else None
        self._folder = folder
        self._found: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._waiting: list[tuple[str, str]] = []
        self._bytes = 0
        if self._kept is not None:
            self._key = content_key(fingerprint, survey.contents)
            self._found = self._kept.was_written(self._key)

    def take(self, rel: str) -> bool:
        """Whether the file is there from before, unaltered; then it counts as written now."""
        known = self._found.get(rel)
        return known is not None and self._folder.adopt(rel, lambda path: same_file(path, *known))

    def note(self, rel: str, path: str) -> None:
        """The file is complete at `path`."""
        if self._kept is None:
            return
        with self._lock:
            self._waiting.append((rel, path))
            self._bytes += os.path.getsize(path)
            if self._bytes >= self._kept.every:
                self._kept.note_written(self._waiting, self._key)
                self._waiting, self._bytes = [], 0


def _collect_ids(facts: FileFacts, sketcher: Sketcher, hands: Hands, ids: Ids, whole: bool = False) -> None:
    """Ids of the wanted rows of a file that is not taken apart for writing. `whole`: and its bytes must be the same."""
    if facts.source.format in WITHOUT_FIELDS:
        _no_ids(facts, sketcher, hands, ids)
        return
    local = ids.inside(facts.first, facts.rows)
    firsts = np.array([ref.first_row for ref in facts.refs], np.int64)
    which = np.unique(np.searchsorted(firsts, local, side="right") - 1)

    def work(chunk: Chunk) -> tuple[I64, list[Any]]:
        count = min(chunk.count_rows(), facts.rows - chunk.first_row)
        return _ids_of(chunk, facts, sketcher, ids, count)

    fields = [*sketcher.recipe.texts_from, sketcher.recipe.id_field]
    with open_source(facts.source, hands.batch_bytes, facts.index, fields, backend=sketcher.backend) as reader:
        for rows, values in hands.pool.ordered(work, reader.read_refs([facts.refs[i] for i in which])):
            ids.add(rows, values)
        if whole and facts.content_hash is not None and reader.content_hash() != facts.content_hash:
            raise changed(facts.source)


def _ids_of(chunk: Chunk, facts: FileFacts, sketcher: Sketcher, ids: Ids, count: int) -> tuple[I64, list[Any]]:
    """Global rows and id values of the wanted rows among the first `count` of a chunk."""
    local = ids.inside(facts.first + chunk.first_row, count)
    if len(local) == 0:
        return local, []
    want = np.zeros(chunk.count_rows(), bool)
    want[local] = True
    name = sketcher.recipe.id_field
    rows = chunk.rows(sketcher.backend, sketcher.recipe, (name,), want)
    values = rows.fields[name]
    ids.note_texts(rows, facts.first, sketcher.recipe.pretokenized is not None)
    return local + facts.first + chunk.first_row, [values[i] for i in local]


def log_columns(recipe: Recipe, survey: Survey, outcome: Outcome, keep: Bool, ids: Ids, rows: I64) -> dict[str, Any]:
    """Columns of removed.parquet for these global rows."""
    reason = outcome.reason[rows]
    about = outcome.about(rows)
    witness, linked, shared, union = about.witness, about.linked, about.shared, about.union
    similarity = np.full(len(rows), np.nan)
    counted = union > 0
    similarity[counted] = shared[counted] / union[counted]
    similarity[reason == EXACT] = 1.0
    edit = np.full(len(rows), np.nan)
    counted = about.edit_longest > 0
    edit[counted] = about.edit_same[counted] / about.edit_longest[counted]
    linked_shared, linked_union = about.linked_shared, about.linked_union
    linked_similarity = np.full(len(rows), np.nan)
    counted = linked_union > 0
    linked_similarity[counted] = linked_shared[counted] / linked_union[counted]
    linked_similarity[(linked >= 0) & ((reason == EXACT) | (reason == EXACT_NEAR))] = 1.0  # linked by its head

    promises = (None, KEPT_WITNESS if recipe.keep != "none" else CHAIN, guarantee(recipe), PROBABILISTIC, CHAIN)
    promised = np.zeros(len(rows), np.int64)
    promised[reason == EXACT] = 1
    promised[(reason == NEAR) | (reason == EXACT_NEAR)] = 2
    promised[reason == BLOOM] = 3
    # A copy by key is one of the row it is linked by; what that was removed for is another promise.
    promised[reason == KEY] = np.where(linked[reason == KEY] < 0, 1, 2 if guarantee(recipe) == PROBABILISTIC else 4)
    # fingerprints alone
    promised[(reason == KEY) & (linked >= 0) & (outcome.about(linked).level == NEAR_LEVEL)] = 3
    promised[about.level == NEAR_LEVEL] = 3
    own_id, own_type = ids.look_up(rows)
    kept_id, _ = ids.look_up(witness)
    names = [utf8(facts.source.rel) for facts in survey.files]
    file, row = _places(survey, rows)
    kept_file, kept_row = _places(survey, witness)
    linked_file, linked_row = _places(survey, linked)
    flagged = keep[rows]  # a row of the log that is written
    return {
        "file": columns.named(names, file),
        "row": row,
        "id": own_id,
        "id_type": own_type.fill_null(columns.texts(["missing"]).cast(own_type.type)[0]),
        "kept_file": columns.named(names, kept_file, witness < 0),
        "kept_row": kept_row,
        "kept_id": kept_id,
        "similarity": similarity,
        "shared": shared,
        "union": union,
        "distance": about.distance,
        "edit_similarity": edit,
        "level": about.level,
        "reason": columns.named(REASONS, reason),
        "guarantee": columns.named(promises, promised),
        "witness_kept": columns.flags(keep[np.maximum(witness, 0)], witness < 0),
        "action": columns.named(("remove", "flag"), flagged),
        "linked_file": columns.named(names, linked_file, linked < 0),
        "linked_row": linked_row,
        "linked_similarity": linked_similarity,
    }


def _places(survey: Survey, rows: I64) -> tuple[I64, I64]:
    """File numbers and rows within the file (-1 for none) of global rows; of row -1 the file means nothing."""
    ends = np.array([f.first + f.rows for f in survey.files], np.int64)
    firsts = np.array([f.first for f in survey.files], np.int64)
    file = np.searchsorted(ends, np.maximum(rows, 0), side="right")
    file = np.minimum(file, len(firsts) - 1)
    return file, np.where(rows < 0, -1, rows - firsts[file])
