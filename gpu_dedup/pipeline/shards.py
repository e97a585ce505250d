"""The first pass over shards of the input, each in a process of its own: for several GPUs, and for what grows from it.

A shard is a run of whole files, so that the shards' results, one after the other, are those of one process: row
numbers, the first error, the keeper's field. (A single large file is one shard: nothing is cut inside a file.) Each
process reads its own files. Results meet here, at the sketch tables and band keys; they travel as files of the work
folder, with their size, count and checksum. Which copies of a text are sketched differs, which changes nothing.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from gpu_dedup import distribute
from gpu_dedup.backend import Backend, host_backend, warm, warm_csv
from gpu_dedup.batch import ROW_BLANK, U8
from gpu_dedup.checkpoint import Checkpoint, first_pass_key
from gpu_dedup.distribute import Channel, Job
from gpu_dedup.errors import InputError, InternalError, OutputError, UserError, disk_error, shown
from gpu_dedup.keep import KeeperColumn, KeeperError
from gpu_dedup.pipeline.footprint import ahead_of, readers_of
from gpu_dedup.pipeline.pool import Pool
from gpu_dedup.pipeline.resume import Resume, Saver
from gpu_dedup.pipeline.survey import FileFacts, RowTables, Sketcher, SketchTables, Survey, Surveyor, where_in
from gpu_dedup.pipeline.terms import checked
from gpu_dedup.read import Source
from gpu_dedup.recipe import Recipe
from gpu_dedup.run import Run
from gpu_dedup.spool import Budget, Table, read_blocks
from gpu_dedup.weights import DocumentFrequencies, terms_key


@dataclass(frozen=True)
class Place:
    """Where a shard is worked at: GPU number `gpu`, or the host backend of this name."""

    backend: str
    gpu: int = 0

    def __str__(self) -> str:
        return f"GPU {self.gpu}" if self.backend == "cuda" else f"shard {self.gpu}"

    def open(self) -> Backend:
        if self.backend == "cuda":
            from gpu_dedup.backend.cuda import cuda_backend

            return cuda_backend(self.gpu)
        return host_backend(self.backend)


@dataclass(frozen=True)
class _Kept:
    """The folder that the work of a shard is kept in, for the next start, and how; see `Checkpoint`.

    first  number of the shard's first file
    """

    folder: str
    every: int
    first: int
    keep_work: bool


@dataclass(frozen=True)
class _Task:
    """The work of one process."""

    place: Place
    sources: Sequence[Source]
    recipe: Recipe
    threads: int
    batch_bytes: int
    folder: str
    df_table: str | None
    readers: int
    ahead: int
    slots: int
    kept: _Kept | None


@dataclass(frozen=True)
class _Answer:
    """What a process tells of its shard; paths are files of the work folder, None for a table without rows.

    error     what ended it early, if the input is to blame; files and rows are those finished before it then
    met       `KeeperColumn.met` of these rows
    parts     that it went on from, and that it has written
    arrays    the status and the tables of rows and of sketches, by name
    rest      file with the facts of the files and the keeper's column, its bytes and their BLAKE2b
    """

    error: UserError | None
    files: list[tuple[int, int]]  # first row and rows of each
    met: list[tuple[int, str, str]]
    rows: int
    parts: tuple[int, int]
    sketches: int = 0
    text_bytes: int = 0
    arrays: dict[str, str | None] | None = None
    rest: tuple[str, int, bytes] | None = None


def cut(sizes: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Runs of files, at most `most` and none of them empty, so that the largest is as small as can be.

    sizes    of the files, in order
    returns  (first, last) for sizes[first:last], as many as there are files for
    """
    count = min(most, len(sizes))
    ends = [0, *accumulate(max(size, 1) for size in sizes)]

    def parts(limit: int) -> list[int]:
        """First files of runs of at most `limit` bytes; as many runs as it takes."""
        firsts = [0]
        while firsts[-1] < len(sizes):
            firsts.append(bisect_right(ends, ends[firsts[-1]] + limit) - 1)
        return firsts

    low, high = max((b - a for a, b in pairwise(ends)), default=0), ends[-1]
    while low < high:
        middle = (low + high) // 2
        if len(parts(middle)) - 1 <= count:
            high = middle
        else:
            low = middle + 1
    firsts = parts(low)
    # Fewer runs than there may be: cut the longest of several files, as its processes would otherwise be idle.
    while len(firsts) - 1 < count:
        first, last = max(
            ((a, b) for a, b in pairwise(firsts) if b - a > 1), key=lambda run: ends[run[1]] - ends[run[0]]
        )
        half = bisect_right(ends, (ends[first] + ends[last]) // 2) - 1
        firsts = sorted([*firsts, min(max(half, first + 1), last - 1)])
    return list(pairwise(firsts))


def survey_shards(
    sources: Sequence[Source],
    shards: Sequence[tuple[int, int]],
    places: Sequence[Place],
    recipe: Recipe,
    run: Run,
    table: Callable[[Any, int | None], Table],
    folder: str,
    advance: Callable[[int], None],
    note: Callable[[str], None],
    slots: int,
    kept: Checkpoint | None,
) -> Survey:
    """What `Surveyor.survey` gives for all sources, from one process for each shard.

    recipe   without a limit on rows: that is for one process
    run      threads and memory of all processes together, but one thread at least for each
    slots    of a sketch, 0: those of the recipe
    kept     where the processes keep what they have finished, and find it again
    folder   on disk, for what travels; the largest part of it a second time if `table` goes to disk too

    Raises what one process would: the first error in input order. RunError for a process that died.
    """
    count = len(shards)
    tasks = [
        _Task(
            place, sources[first:last], recipe, max(1, run.thread_count // count), run.batch_bytes,
            _own(folder, f"shard-{number}"), run.df_table, max(1, readers_of(run) // count), ahead_of(run) // count,
            slots, None if kept is None else _Kept(kept.folder, kept.every, first, run.keep_work),
        )
        for number, ((first, last), place) in enumerate(zip(shards, places, strict=True))
    ]  # fmt: skip

    def again(number: int) -> _Task:
        shutil.rmtree(tasks[number].folder, ignore_errors=True)
        return replace(tasks[number], folder=_own(folder, f"shard-{number}-again"))

    where = "" if kept is None else f"what was finished is in {shown(kept.folder)}, the same command goes on from there"
    jobs = [
        Job(str(task.place), task, _where_of(task.sources), partial(again, number), where)
        for number, task in enumerate(tasks)
    ]
    said: set[str] = set()

    def once(text: str) -> None:
        """What every process has to say is said once."""
        if text not in said:
            said.add(text)
            note(text)

    answers = distribute.run(survey_shard, jobs, folder, advance, once, lambda answer: answer.error is not None)
    for answer in answers:
        if kept is not None:
            kept.used += answer.parts[0]
            kept.written += answer.parts[1]
    _check(sources, shards, answers, recipe)
    return _join(sources, shards, answers, recipe, table)


def _own(folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    try:
        os.mkdir(path, 0o700)
    except OSError as error:
        raise disk_error(error, path, "another folder with --work-dir") from error
    return path


def _where_of(sources: Sequence[Source]) -> Callable[[int], str]:
    ends = list(accumulate(source.size for source in sources))

    def where(done: int) -> str:
        number = min(bisect_right(ends, done), len(sources) - 1)
        return f"at {shown(sources[number].path)} or soon after (file {number + 1} of its {len(sources)})"

    return where


# ---- in the process of a shard ---------------------------------------------------------------------------------------


def survey_shard(task: _Task, channel: Channel) -> _Answer:
    """Survey the files of a shard and leave the result in its folder."""
    recipe = task.recipe
    backend = task.place.open()
    html, fast = "html" in recipe.steps, recipe.sketch == "fast"
    warm(
        backend, channel.note, recipe.near, html=html, fast=fast, prints=recipe.printed, trim=recipe.trims,
        terms=recipe.weighted and task.df_table is None,
    )  # fmt: skip
    if any(source.format in ("csv", "tsv") for source in task.sources):
        warm_csv(backend, channel.note)
    nothing = Budget(0)  # all of it goes to disk
    tables: list[Table] = []

    def table(dtype: Any, width: int | None) -> Table:
        tables.append(Table(dtype, width, lambda: task.folder, nothing))
        return tables[-1]

    idf = None
    if task.df_table is not None:
        frequencies = DocumentFrequencies.load(task.df_table, terms_key(recipe))
        checked(recipe, frequencies, task.df_table)  # it is the one that the parent has read
        idf = frequencies.idf()
    sketcher = Sketcher.of(recipe, backend, task.slots, idf)
    resume, saver, parts = _kept(task, sketcher, channel)
    with Pool(task.threads, task.readers, task.ahead) as pool:
        surveyor = Surveyor(sketcher, pool, task.batch_bytes, table, resume, saver)
        try:
            survey = surveyor.survey(task.sources, channel.advance)
        except (InputError, KeeperError) as error:
            # Where it is the keeper's field, `met` says so to the parent, which also knows the rows before this shard.
            files = [(facts.first, facts.rows) for facts in surveyor.files]
            met = [] if surveyor.values is None else surveyor.values.met
            rows = sum(facts.rows for facts in surveyor.files)
            return _Answer(error, files, met, rows, parts())

    status = table(np.uint8, None)
    status.append(survey.status)
    status.finish()
    arrays = {"status": status.path}
    for name in ("digest", "length", "sketch", "chars", "key_digest", "key_length"):
        made = getattr(survey, name)
        if made is not None:
            arrays[name] = made.path
    for name, made in survey.sketches.named() if survey.sketches is not None else []:
        made.finish()
        arrays[name] = made.path
    nothing_of = np.zeros(0, np.uint8)  # the status is in the arrays
    facts = [replace(facts, status=nothing_of) for facts in survey.files]
    rest = _write(os.path.join(task.folder, "rest.pickle"), (facts, survey.values))
    met = [] if survey.values is None else survey.values.met
    files = [(one.first, one.rows) for one in survey.files]
    sketches = 0 if survey.sketches is None else survey.sketches.rows
    return _Answer(None, files, met, len(survey.status), parts(), sketches, survey.text_bytes, arrays, rest)


def _kept(
    task: _Task, sketcher: Sketcher, channel: Channel
) -> tuple[Resume | None, Saver | None, Callable[[], tuple[int, int]]]:
    """What earlier starts have left of the files of a shard, what keeps more, and the counts of parts of both."""
    if task.kept is None:
        return None, None, lambda: (0, 0)
    paths = [source.path for source in task.sources]
    kept = Checkpoint(task.kept.folder, task.kept.every, paths, task.batch_bytes, shard=task.kept.first)
    key, field = first_pass_key(task.recipe), task.recipe.keep_field
    resume = Resume(kept, key, task.sources, sketcher.slots, prefix=not sketcher.fast, field_name=field)
    if kept.used:
        channel.note(f"{task.place}: going on from {kept.used} parts of an earlier start")
    return resume, Saver(kept, key, field, task.kept.keep_work, channel.note), lambda: (kept.used, kept.written)


class _Hashed:
    """A file that knows the digest of what was written."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.size = 0
        self.digest = hashlib.blake2b()

    def write(self, data: Any) -> None:
        self._file.write(data)
        self.digest.update(data)
        self.size += len(memoryview(data).cast("B"))


def _write(path: str, value: Any) -> tuple[str, int, bytes]:
    try:
        with open(path, "xb") as file:
            hashed = _Hashed(file)
            pickle.dump(value, hashed, pickle.HIGHEST_PROTOCOL)
    except OSError as error:
        raise disk_error(error, path, "another folder with --work-dir") from error
    return path, hashed.size, hashed.digest.digest()


# ---- where the shards meet -------------------------------------------------------------------------------------------


def _check(
    sources: Sequence[Source], shards: Sequence[tuple[int, int]], answers: Sequence[_Answer], recipe: Recipe
) -> None:
    """Raise the first error in input order: what ended a shard, or the keeper's field where it changes its kind."""
    keeper = KeeperColumn(recipe.keep)
    files: list[FileFacts] = []
    rows = 0
    for (first, _), answer in zip(shards, answers, strict=False):
        for number, (begin, count) in enumerate(answer.files):
            files.append(FileFacts(sources[first + number], first + number, rows + begin, count))
        try:
            for row, kind, value in answer.met:
                keeper.meet(rows + row, kind, value)
        except KeeperError as error:
            raise error.named(lambda row: where_in(files, row)) from None
        if answer.error is not None:
            raise answer.error
        rows += answer.rows


def _join(
    sources: Sequence[Source],
    shards: Sequence[tuple[int, int]],
    answers: Sequence[_Answer],
    recipe: Recipe,
    table: Callable[[Any, int | None], Table],
) -> Survey:
    sketches = SketchTables(recipe, table) if recipe.near else None
    chars = any(answer.arrays is not None and "chars" in answer.arrays for answer in answers)
    columns = RowTables(table, recipe.near, chars, recipe.keyed)
    status = _status(answers)
    values = KeeperColumn(recipe.keep) if recipe.keep_field else None
    survey = Survey(
        files=[], status=status, digest=columns.digest, length=columns.length, chars=columns.chars, values=values,
        sketch=columns.sketch, sketches=sketches, blank=int(np.count_nonzero(status == ROW_BLANK)),
        text_bytes=sum(answer.text_bytes for answer in answers), key_digest=columns.key_digest,
        key_length=columns.key_length,
    )  # fmt: skip
    row = sketch = 0
    for (first, last), answer in zip(shards, answers, strict=True):
        facts, column = _read(answer.rest)
        if [one.source for one in facts] != list(sources[first:last]):
            raise InternalError(f"{len(facts)} files came back for {last - first}")
        for number, one in enumerate(facts):
            one.index, one.first = first + number, one.first + row
            one.status = survey.status[one.first : one.first + one.rows]
        survey.files += facts
        if values is not None:
            values.extend(column)
        for name, made in columns.named():
            for block in _blocks(answer, name, made.dtype, made.width, answer.rows):
                if name == "sketch":
                    block[block >= 0] += sketch
                made.append(block)
        for name, made in sketches.named() if sketches is not None else []:
            for block in _blocks(answer, name, made.dtype, made.width, answer.sketches):
                made.append(block)
        row += answer.rows
        sketch += answer.sketches
        if sketches is not None:
            sketches.rows = sketch
    columns.finish()
    return survey


def _blocks(answer: _Answer, name: str, dtype: Any, width: int | None, rows: int) -> Iterator[Any]:
    """The rows of a shard's array or table, and its file goes."""
    path = None if answer.arrays is None else answer.arrays[name]
    if path is None:
        if rows:
            raise InternalError(f"{rows} rows of {name} did not come back")
        return
    yield from read_blocks(path, dtype, width, rows)
    os.unlink(path)


def _status(answers: Sequence[_Answer]) -> U8:
    out = np.empty(sum(answer.rows for answer in answers), np.uint8)
    at = 0
    for answer in answers:
        for block in _blocks(answer, "status", np.uint8, None, answer.rows):
            out[at : at + len(block)] = block
            at += len(block)
    return out


def _read(rest: tuple[str, int, bytes] | None) -> tuple[list[FileFacts], Any]:
    """Facts of a shard's files and its keeper's column. Nothing is unpickled but the very bytes that were written."""
    assert rest is not None
    path, size, digest = rest
    try:
        with open(path, "rb") as file:
            data = file.read()
        os.unlink(path)
    except OSError as error:
        raise OutputError(f"{shown(path)}: cannot be read back ({error.strerror}); run again") from error
    if len(data) != size or hashlib.blake2b(data).digest() != digest:
        raise OutputError(
            f"{shown(path)}: was changed by another program; choose a folder that is yours alone with --work-dir"
        )
    facts, column = pickle.loads(data)
    return facts, column
