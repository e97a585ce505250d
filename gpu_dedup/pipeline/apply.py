"""What a finished run has left, carried on: `apply` writes the rows that its mask keeps, `undo` puts the input together
again from its output and the rows that it stored."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from gpu_dedup import page
from gpu_dedup.backend import host_backend
from gpu_dedup.batch import Bool
from gpu_dedup.errors import InputError, OutputError, shown
from gpu_dedup.pipeline.pool import Pool
from gpu_dedup.pipeline.rewrite import Hands, Shard, changed, copy_source, write_shard
from gpu_dedup.progress import Progress
from gpu_dedup.read import STANDARD, Source, open_source, state_of
from gpu_dedup.read.streams import hash_file
from gpu_dedup.report import InputFile, Report, utf8
from gpu_dedup.run import Run
from gpu_dedup.write import LOG, MASK, REMOVED, JsonlWriter, OutputFolder, copy_file, read_mask

MERGE_ROWS = 1 << 14  # rows of columns that are put together at once


def apply(mask: str, output: str | None = None, run: Run | None = None, progress: Progress | None = None) -> Report:
    """Write the rows that the mask of a run keeps, as the run itself would have.

    mask    output folder of a run with write=mask; its inputs must be where they were, unchanged
    output  new or empty folder; None: the rows join the mask in its folder
    Raises UserError; nothing is written then.
    """
    run = run or Run()
    progress = progress or Progress(run.progress)
    report = Report.load(mask)
    bits = _bits(report, mask)
    target = mask if output is None else output
    inputs = [entry for entry in report.inputs if entry.problem is None and utf8(entry.rel) in bits]
    sources = {entry.rel: _source(entry) for entry in inputs}
    _check_apart(target, mask, [source.path for source in sources.values()])
    same = os.path.realpath(target) == os.path.realpath(mask)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(OutputFolder(target, [entry.rel for entry in inputs], run.overwrite or same))
        pool = stack.enter_context(Pool(run.thread_count))
        advance = stack.enter_context(progress.stage("write", sum(entry.size for entry in inputs)))
        hands = Hands(pool, host_backend("numpy"), run.batch_bytes, advance)
        for number, entry in enumerate(inputs):
            shard = Shard(sources[entry.rel], number, bits[utf8(entry.rel)], entry.content_hash)
            _apply(shard, hands, folder, entry)
        for name in (LOG, MASK):
            with folder.open_temp(name) as path:
                copy_file(os.path.join(mask, name), path)
        report.machine = replace(report.machine, output=target, write="rows")
        folder.write_text(page.PAGE, page.render(report))
        folder.commit(report)
    return report


def _apply(shard: Shard, hands: Hands, folder: OutputFolder, entry: InputFile) -> None:
    source, keep = shard.source, shard.keep
    if source.format == "txt" and not keep.any():
        _same(hash_file(source), entry)
        return
    with folder.open_temp(source.rel) as path:
        if keep.all() and entry.content_hash is not None:
            _same(copy_source(source, path, hands.advance), entry)
            return
        if source.format in ("parquet", "arrow") and entry.content_hash is not None:
            _same(hash_file(source), entry)
        try:
            write_shard(shard, hands, path)
        except InputError as error:
            if str(error) == str(changed(source)):
                raise _differs(entry) from None
            raise


def _same(found: str, entry: InputFile) -> None:
    if entry.content_hash is not None and found != entry.content_hash:
        raise _differs(entry)


def _differs(entry: InputFile) -> InputError:
    return InputError(
        "is not what it was when the mask was made", "put that file back, or make a new mask", place=shown(entry.path)
    )


def _source(entry: InputFile) -> Source:
    """An input of the run as it is now; its bytes are compared when they are read."""
    if entry.path == STANDARD:
        raise InputError(
            "is gone with the run that read it", "save it to a file and run again on that", place="standard input"
        )
    try:
        size, stamp = state_of(entry.path)
    except OSError as error:
        raise InputError(
            f"{error.strerror}, and the rows are read from the input of the run",
            "put the file back where it was",
            place=shown(entry.path),
        ) from None
    if size != entry.size:
        raise _differs(entry)
    return Source(entry.path, entry.rel, entry.format, entry.compression, size, stamp)


def _bits(report: Report, folder: str) -> dict[str, Bool]:
    """The mask, checked against the report beside it."""
    bits = read_mask(folder)
    for entry in report.inputs:
        kept = int(np.count_nonzero(bits.get(utf8(entry.rel), np.zeros(0, np.bool_))))
        if kept != entry.kept:
            raise InputError(
                f"keeps {kept:,} rows of {entry.rel}, and the report says {entry.kept:,}",
                "mask and report are of different runs; run again",
                place=shown(os.path.join(folder, MASK)),
            )
        if entry.problem is None and not entry.rows and entry.content_hash is not None:
            bits.setdefault(utf8(entry.rel), np.zeros(0, np.bool_))
    return bits


def _check_apart(target: str, mask: str, paths: list[str]) -> None:
    """Nothing may be written over what is read."""
    real = os.path.realpath(target)
    for path in paths:
        if os.path.commonpath([real, os.path.realpath(path)]) == real:
            raise OutputError(f"{shown(target)}: the input {shown(path)} lies in it; choose another folder with -o")
    if real != os.path.realpath(mask) and os.path.commonpath([real, os.path.realpath(mask)]) in (
        real,
        os.path.realpath(mask),
    ):
        raise OutputError(f"{shown(target)}: it and {shown(mask)} lie in one another; choose another folder with -o")


# ---- undo ------------------------------------------------------------------------------------------------------------


def undo(folder: str, output: str, run: Run | None = None, progress: Progress | None = None) -> list[str]:
    """Put the input of a run together again from its output and the rows that it stored (keep_removed).

    folder  output folder of the run; the input itself is not needed
    output  new or empty folder
    returns the files that were written, by their names below `output`

    Lines and CSV come back byte for byte (what was compressed may be compressed in other steps), Parquet and Arrow as
    the same table. Raises UserError; nothing is written then.
    """
    run = run or Run()
    progress = progress or Progress(run.progress)
    report = Report.load(folder)
    if os.path.realpath(output) == os.path.realpath(folder):
        raise OutputError(f"{shown(output)}: is the folder to undo; choose another one with -o")
    _check_apart(output, folder, [])
    if not os.path.lexists(os.path.join(folder, MASK)):
        raise InputError(
            "the rows that went were not stored", "only a run with --keep-removed can be undone", place=shown(folder)
        )
    bits = _bits(report, folder)
    lost = [entry.rel for entry in report.inputs if entry.problem is not None]
    if lost:
        progress.note(f"{len(lost)} files that the run left out are not in its output: {', '.join(lost[:3])}")
    inputs = [entry for entry in report.inputs if entry.problem is None]
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(OutputFolder(output, [entry.rel for entry in inputs], run.overwrite))
        advance = stack.enter_context(progress.stage("write", sum(entry.size for entry in inputs)))
        for entry in inputs:
            with made.open_temp(entry.rel) as path:
                _undo(entry, bits[utf8(entry.rel)], folder, path, run)
            advance(entry.size)
        made.commit(_Undone(report.fingerprint, [entry.rel for entry in inputs]))
    return [entry.rel for entry in inputs]


class _Undone:
    """What stands in report.json of a folder that `undo` wrote: no run of its own."""

    def __init__(self, fingerprint: str, files: list[str]) -> None:
        self.fingerprint = fingerprint
        self.files = files

    def to_json(self) -> str:
        import json

        content = {"format": "gpu-dedup undo", "fingerprint": self.fingerprint, "files": self.files}
        return json.dumps(content, indent=1) + "\n"


def _undo(entry: InputFile, keep: Bool, folder: str, path: str, run: Run) -> None:
    kept = os.path.join(folder, entry.rel)
    removed = os.path.join(folder, REMOVED, entry.rel)
    if keep.all() or (entry.format == "txt" and not keep.any()):
        found = copy_file(kept if keep.all() else removed, path)
        if entry.content_hash is not None and found != entry.content_hash:
            raise _damaged(kept if keep.all() else removed)
        return
    parts = [_part(name, entry) for name in (kept, removed)]
    if entry.format == "parquet":
        _merge_parquet(parts, keep, path)
    elif entry.format == "arrow":
        _merge_arrow(parts, keep, path)
    else:
        _merge_lines(parts, keep, path, run)
        if not entry.compression and entry.content_hash is not None:
            info = os.stat(path)
            whole = Source(path, entry.rel, entry.format, "", info.st_size, info.st_mtime_ns)
            if hash_file(whole) != entry.content_hash:
                raise _damaged(kept)


def _damaged(path: str) -> InputError:
    return InputError(
        "is not what the run wrote, so the input cannot be put together from it",
        "put the file back as it was",
        place=shown(path),
    )


def _part(path: str, entry: InputFile) -> Source:
    try:
        info = os.stat(path)
    except OSError as error:
        raise InputError(
            f"{error.strerror}, and the input is put together from it", "put the file back", place=shown(path)
        ) from None
    return Source(path, entry.rel, entry.format, entry.compression, info.st_size, info.st_mtime_ns)


class _Rows:
    """Rows of a file of lines or CSV, some at a time, as bytes; `head`: what stands before the first."""

    def __init__(self, source: Source, stack: contextlib.ExitStack, run: Run) -> None:
        self._source = source
        backend = host_backend("numpy" if source.size < 1 << 20 else "numba")
        self._chunks = iter(stack.enter_context(open_source(source, run.batch_bytes, 0, backend=backend)))
        self._chunk: Any = next(self._chunks, None)
        self.head: bytes = b"" if self._chunk is None else self._chunk.bom
        self._at = 0

    def take(self, count: int) -> Iterator[memoryview]:
        """The next rows, in stretches that stand together."""
        while count:
            if self._chunk is None:
                raise _damaged(self._source.path)
            starts = self._chunk.lines()
            some = min(count, len(starts) - 1 - self._at)
            if some:
                yield memoryview(self._chunk.data)[int(starts[self._at]) : int(starts[self._at + some])]
            self._at += some
            count -= some
            if self._at == len(starts) - 1:
                self._chunk, self._at = next(self._chunks, None), 0

    def end(self) -> None:
        if self._chunk is not None and self._at < self._chunk.count_rows():
            raise _damaged(self._source.path)


def _stretches(keep: Bool) -> Iterator[tuple[bool, int]]:
    """(kept, rows) of each run of equal bits."""
    edges = np.flatnonzero(keep[1:] != keep[:-1]) + 1
    bounds = [0, *edges.tolist(), len(keep)]
    for begin, end in pairwise(bounds):
        yield bool(keep[begin]), end - begin


def _merge_lines(parts: list[Source], keep: Bool, path: str, run: Run) -> None:
    with contextlib.ExitStack() as stack:
        kept, removed = (_Rows(part, stack, run) for part in parts)
        writer = stack.enter_context(JsonlWriter(path, parts[0].compression))
        writer.write_bytes(kept.head)
        for stays, count in _stretches(keep):
            for piece in (kept if stays else removed).take(count):
                writer.write_bytes(bytes(piece))
        kept.end()
        removed.end()


class _Batches:
    """Records of a file of columns, any number at a time, as tables."""

    def __init__(self, batches: Iterator[Any], schema: Any, path: str) -> None:
        self._batches = batches
        self._schema = schema
        self._path = path
        self._held: Any = None

    def take(self, count: int) -> list[Any]:
        out = []
        while count:
            if self._held is None or not self._held.num_rows:
                self._held = next(self._batches, None)
                if self._held is None:
                    raise _damaged(self._path)
                continue
            part = self._held.slice(0, count)
            self._held = self._held.slice(part.num_rows)
            count -= part.num_rows
            out.append(part)
        return out

    def end(self) -> None:
        while self._held is None or not self._held.num_rows:
            self._held = next(self._batches, None)
            if self._held is None:
                return
        raise _damaged(self._path)


def _merged(kept: _Batches, removed: _Batches, keep: Bool) -> Iterator[list[Any]]:
    """Record batches in the order of the input, some rows at a time."""
    for start in range(0, len(keep), MERGE_ROWS):
        yield [
            part
            for stays, count in _stretches(keep[start : start + MERGE_ROWS])
            for part in (kept if stays else removed).take(count)
        ]
    kept.end()
    removed.end()


def _merge_parquet(parts: list[Source], keep: Bool, path: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from gpu_dedup.write.parquet import ParquetWriter

    files = []
    for part in parts:
        try:
            files.append(pq.ParquetFile(pa.OSFile(os.fsencode(part.path))))
        except (pa.ArrowException, OSError):
            raise _damaged(part.path) from None
    kept, removed = (
        _Batches(_guarded(file.iter_batches(MERGE_ROWS), part.path), file.schema_arrow, part.path)
        for file, part in zip(files, parts, strict=True)
    )
    with ParquetWriter(path, parts[0].path) as writer:
        writer.write_batches(_merged(kept, removed, keep), max(_largest_group(file) for file in files))


def _largest_group(file: Any) -> int:
    about = file.metadata
    return max((about.row_group(i).num_rows for i in range(about.num_row_groups)), default=1)


def _guarded(batches: Iterator[Any], path: str) -> Iterator[Any]:
    import pyarrow as pa

    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except (pa.ArrowException, OSError):
            raise _damaged(path) from None
        yield batch


def _merge_arrow(parts: list[Source], keep: Bool, path: str) -> None:
    import pyarrow as pa

    from gpu_dedup.read.arrow import ArrowReader
    from gpu_dedup.write.arrow import ArrowWriter

    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(ArrowReader(part, 1 << 20, 0, None)) for part in parts]
        first = readers[0]
        kept, removed = (
            _Batches((batch for batch, _, _ in reader.batches()), first.schema, part.path)
            for reader, part in zip(readers, parts, strict=True)
        )
        codec = first.compression() or readers[1].compression()
        with ArrowWriter(path, first.schema, first.is_file, first.footer, codec) as writer:
            for batches in _merged(kept, removed, keep):
                if not batches:
                    continue
                table = pa.Table.from_batches(batches).unify_dictionaries()
                for batch in table.combine_chunks().to_batches():
                    writer.write(batch, np.ones(batch.num_rows, np.bool_))
