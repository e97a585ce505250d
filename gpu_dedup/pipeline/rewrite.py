"""A file of the input, written anew less the rows that go; and, where asked for, the rows that go beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_dedup.backend import Backend
from gpu_dedup.batch import Bool
from gpu_dedup.errors import InputError
from gpu_dedup.pipeline.pool import Pool
from gpu_dedup.read import Chunk, Reader, Source, open_source
from gpu_dedup.read.remote import is_remote, native
from gpu_dedup.read.streams import RawFile
from gpu_dedup.write import Encoded, JsonlWriter, LineStream, Segment, copy_file, encode, segments
from gpu_dedup.write.files import COPY_BYTES, close, create, write_all

WITHOUT_FIELDS = ("txt", "lines")


@dataclass(frozen=True)
class Shard:
    """One file and which of its rows stay.

    keep          bool[rows that take part]; rows behind them were not let in by --limit
    content_hash  of its bytes when it was read first; None where it was not read to its end
    """

    source: Source
    index: int
    keep: Bool
    content_hash: str | None


@dataclass(frozen=True)
class Hands:
    """Who writes, and who is told the bytes of the input that are done."""

    pool: Pool
    backend: Backend
    batch_bytes: int
    advance: Callable[[int], object]


def changed(source: Source) -> InputError:
    return InputError(
        f"{source.name}: the file changed while it was being deduplicated; start again when it stays as it is"
    )


def copy_source(source: Source, path: str, advance: Callable[[int], object] | None = None) -> str:
    """Copy the bytes of a file, wherever it is; what comes back is their XXH3-64. Raises InputError, OutputError."""
    if not is_remote(source.path):
        return copy_file(source.path, path, advance)
    file = RawFile(source)
    target = create(path)
    try:
        while block := file.read(COPY_BYTES):
            write_all(target, block, path)
            if advance is not None:
                advance(len(block))
    except BaseException:
        os.close(target)
        raise
    finally:
        file.close()
    close(target, path)
    return file.content_hash()


def write_lines(
    shard: Shard,
    hands: Hands,
    writer: JsonlWriter | LineStream,
    removed: JsonlWriter | None = None,
    look: Callable[[Chunk, int], Any] = lambda chunk, count: None,
    seen: Callable[[Any], object] = lambda found: None,
) -> None:
    """Kept rows byte for byte; compression runs in the pool, in order, and writing behind the reader.

    removed  gets the other rows; with the header where they have one
    look     is called on each chunk and the number of its rows that take part, in any thread; `seen` on what it
             returned, in order
    Raises InputError if the file is not what it was.
    """
    source, rows = shard.source, len(shard.keep)

    # Members and frames of a file of this machine that nothing is taken from are copied as they are.
    copies = isinstance(writer, JsonlWriter) and bool(source.compression) and not is_remote(source.path)

    def work(chunk: Chunk) -> tuple[Chunk, Encoded | list[Segment], Encoded, Any]:
        count = min(chunk.count_rows(), rows - chunk.first_row)
        found = look(chunk, count)  # first: parsing finds its lines faster
        mine = shard.keep[chunk.first_row : chunk.first_row + count]
        if mine.all() and count == chunk.count_rows():
            starts, mine = np.array([0, chunk.size], np.int64), np.ones(1, np.bool_)  # its lines as one
        else:
            starts = chunk.lines()[: count + 1]
        others: Encoded = [] if removed is None else encode(chunk.data, starts, ~mine, removed.compression)
        if not copies:
            return chunk, encode(chunk.data, starts, mine, writer.compression), others, found
        head = len(chunk.bom)
        if not head:
            parts = segments(chunk.data, starts, mine, writer.compression, chunk.ref.offset, chunk.members)
            return chunk, parts, others, found
        # What stands before the first row stays, and belongs to a member as rows do.
        data = np.concatenate([np.frombuffer(chunk.bom, np.uint8), chunk.data])
        starts, mine = np.concatenate([[0], starts + head]), np.concatenate([[True], mine])
        parts = segments(data, starts, mine, writer.compression, chunk.ref.offset - head, chunk.members)
        return chunk, parts, others, found

    with open_source(source, hands.batch_bytes, shard.index, backend=hands.backend) as reader:
        with hands.pool.behind() as later:
            for chunk, packed, others, found in hands.pool.ordered(work, _until(reader, rows)):
                if chunk.bom and removed is not None and source.format in ("csv", "tsv"):
                    later(removed.write_bytes, chunk.bom)
                if copies:
                    assert isinstance(writer, JsonlWriter)
                    for segment in packed:
                        assert isinstance(segment, Segment)
                        later(writer.write_segment, segment)
                else:
                    if chunk.bom:
                        later(writer.write_bytes, chunk.bom)
                    later(writer.write, packed)
                if removed is not None:
                    later(removed.write, others)
                seen(found)
                hands.advance(chunk.nbytes)
        if shard.content_hash is not None and reader.content_hash() != shard.content_hash:
            raise changed(source)


def _until(reader: Reader, rows: int) -> Iterator[Chunk]:
    for chunk in reader:
        if chunk.first_row >= rows:
            return
        yield chunk


def write_parquet(shard: Shard, hands: Hands, path: str, removed: str | None = None) -> None:
    """Kept records of a Parquet file, whose bytes were checked by the caller; the others to `removed`."""
    from gpu_dedup.write.parquet import ParquetWriter

    for place, keep, advance in ((path, shard.keep, hands.advance), (removed, ~shard.keep, None)):
        if place is not None:
            with ParquetWriter(place, shard.source.path, file=native(shard.source.path)) as writer:
                writer.copy_rows(keep, advance)


def write_arrow(shard: Shard, hands: Hands, path: str, removed: str | None = None) -> None:
    """The same of an Arrow file or stream."""
    from gpu_dedup.read.arrow import ArrowReader
    from gpu_dedup.write.arrow import ArrowWriter

    for place, keep, advance in ((path, shard.keep, hands.advance), (removed, ~shard.keep, None)):
        if place is None:
            continue
        with ArrowReader(shard.source, hands.batch_bytes, shard.index, None) as reader:
            codec = reader.compression()
            with ArrowWriter(place, reader.schema, reader.is_file, reader.footer, codec) as writer:
                row = at = 0
                for batch, about, end in reader.batches():
                    mine = np.zeros(batch.num_rows, np.bool_)  # rows behind the last that takes part have no bit
                    known = keep[row : row + batch.num_rows]
                    mine[: len(known)] = known
                    writer.write(batch, mine, about)
                    row += batch.num_rows
                    if advance is not None:
                        advance(end - at)
                    at = end


def write_shard(
    shard: Shard,
    hands: Hands,
    path: str,
    removed: str | None = None,
    look: Callable[[Chunk, int], Any] = lambda chunk, count: None,
    seen: Callable[[Any], object] = lambda found: None,
) -> None:
    """Write a file anew in its own format. `look` and `seen` as for `write_lines`; of columns they are not called."""
    source = shard.source
    if source.format == "parquet":
        write_parquet(shard, hands, path, removed)
    elif source.format == "arrow":
        write_arrow(shard, hands, path, removed)
    else:
        with JsonlWriter(path, source.compression, source.path) as writer:
            if removed is None:
                write_lines(shard, hands, writer, None, look, seen)
            else:
                with JsonlWriter(removed, source.compression) as others:
                    write_lines(shard, hands, writer, others, look, seen)
