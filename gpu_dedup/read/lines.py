"""Files whose records are bytes one after the other: read, decompressed and hashed in chunks of whole records.

What a record is, is told by the format: `JsonlReader`, `TextReader` (plain text), `CsvReader`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from gpu_dedup.batch import I64, U8
from gpu_dedup.errors import InputError, InternalError
from gpu_dedup.read.chunks import PAD, Chunk, ChunkRef, Reader
from gpu_dedup.read.discover import Source
from gpu_dedup.read.streams import STREAMS, DamagedError, Packed, RawFile, Stream

BOM = b"\xef\xbb\xbf"
MAX_LINE = 2**31 - 1  # bytes of one line: beyond it a single text would no longer fit Arrow's and the kernels' items
# What a file is that begins so, whatever its name says (a page header or a footer follows Parquet's magic), and what to
# do about it. Longest first where one begins like another. No text in UTF-8 begins so, and no line of JSON.
_FOREIGN = (
    (b"\x1f\x8b", "gzip data", "name it {}.gz"),
    (b"\x28\xb5\x2f\xfd", "zstd data", "name it {}.zst"),
    (b"PAR1\x15", "a Parquet file", "name it .parquet"),
    *((b"BZh%d1AY&SY" % level, "bzip2 data", "unpack it") for level in range(1, 10)),
    (b"\xfd7zXZ\x00", "xz data", "unpack it"),
    (b"PK\x03\x04", "a zip archive", "unpack it"),
    (b"\xff\xfe\x00\x00", "UTF-32 text", "convert it to UTF-8 (iconv -f UTF-32 -t UTF-8)"),
    (b"\xff\xfe", "UTF-16 text", "convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"),
    (b"\xfe\xff", "UTF-16 text", "convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"),
)
LF_BLOCK = 1 << 17  # bytes
LONGEST_MAGIC = max(len(magic) for magic, _, _ in _FOREIGN)


class LinesChunk(Chunk):
    """Whole lines of a file."""

    def __init__(self, file_index: int, nbytes: int, ref: ChunkRef, data: U8, bom: bytes) -> None:
        super().__init__(file_index, nbytes, ref)
        self.data = data
        self.size = ref.size
        self.bom = bom
        self._starts: I64 | None = None

    def lines(self) -> I64:
        if self._starts is None:
            starts = np.empty(self.ref.rows + 1, np.int64)
            starts[0] = 0
            ends = np.flatnonzero(self.data[: self.size] == 10)
            starts[1 : len(ends) + 1] = ends + 1
            starts[-1] = self.size
            self._starts = starts
        return self._starts


class RecordReader(Reader):
    """A file of records, compressed or not, in chunks of whole records. In memory: a chunk and what it cuts."""

    # For messages: what the file should be, its ending, what a record of it is called.
    what = "JSON lines"
    ending = ".jsonl"
    unit = "line"
    # Line feeds end records and nothing else does, so that they count them.
    by_line = True

    def __init__(self, source: Source, batch_bytes: int, file_index: int) -> None:
        self.source = source
        self.file_index = file_index
        self._batch = max(batch_bytes, LONGEST_MAGIC)
        if not source.compression:  # a small file needs no more room than it has bytes, and one to see its end
            self._batch = min(self._batch, max(source.size + 1, LONGEST_MAGIC))
        self._codec, self._stream_of = STREAMS[source.compression]
        self._file = RawFile(source)
        self._more: list[RawFile] = []  # opened by read_refs
        self._started = self._ended = False

    # ---- what a format says of its records -----------------------------------------------------------------------

    def head(self, data: U8, filled: int, ended: bool) -> int | None:
        """Bytes before the first record that belong to the file: the BOM. None if more must be read to tell."""
        return len(BOM) if data[: min(filled, len(BOM))].tobytes() == BOM else 0

    def cut(self, data: U8, searched: int, filled: int, ended: bool) -> int:
        """Where the whole records in data[:filled] end; 0 if there is none. Before `searched` no record ends."""
        return filled if ended else _last_line_end(data, searched, filled)

    def count(self, data: U8, size: int) -> int:
        """Records in data[:size], which `cut` has given (the last line need not have its line feed)."""
        return _count_lf(data, size) + bool(size and data[size - 1] != 10)

    @abstractmethod
    def chunk(self, nbytes: int, ref: ChunkRef, data: U8, bom: bytes) -> Chunk:
        """The chunk of the records in data[:ref.size]."""

    # --------------------------------------------------------------------------------------------------------------

    @property
    def bytes_read(self) -> int:
        return sum(file.bytes_read for file in (self._file, *self._more))

    def __iter__(self) -> Iterator[Chunk]:
        if self._started:
            raise InternalError("a reader is iterated once")
        self._started = True
        stream = self._stream_of(self._file)
        rows = offset = seen = 0
        bom = b""
        data = np.empty(self._batch + PAD, np.uint8)
        filled = 0
        searched = 0  # no record ends before
        first = True
        headed = False
        while True:
            capacity = len(data) - PAD
            while filled < capacity:
                try:
                    got = stream.readinto(data.data[filled:capacity])
                except DamagedError as error:
                    raise self._damaged(error, rows + self._sure(data, filled, headed)) from error
                if not got:
                    self._ended = True
                    break
                filled += got
            if first:
                first = False
                self._refuse_foreign(data[: min(filled, LONGEST_MAGIC)].tobytes())
            data[filled : filled + PAD] = 0
            if not headed:
                size = self.head(data, filled, self._ended)
                headed = size is not None
                if size:
                    bom = data[:size].tobytes()
                    data = np.concatenate([data[size:], np.zeros(size, np.uint8)])
                    filled -= size
                    offset = size
            cut = self.cut(data, searched, filled, self._ended) if headed else 0
            if not cut and not self._ended:
                searched = filled
                if filled > MAX_LINE:
                    raise InputError(
                        f"{self.unit} {rows + 1} is longer than {MAX_LINE} bytes",
                        f"is the file made of {self.unit}s? Split the record, or pass --on-bad-file skip",
                        place=self.source.name,
                    )
                if filled == capacity:
                    grown = np.empty(2 * capacity + PAD, np.uint8)
                    grown[:filled] = data[:filled]
                    data = grown
                continue
            count = self.count(data, cut)
            if cut or (self._ended and not rows and (bom or count)):
                tail = filled - cut
                following = np.empty((0 if self._ended else max(self._batch, 2 * tail)) + PAD, np.uint8)
                following[:tail] = data[cut:filled]
                data[cut : cut + PAD] = 0
                nbytes = self._file.bytes_read - seen
                seen += nbytes
                chunk = self.chunk(nbytes, ChunkRef(rows, count, 0, offset, cut), data, bom)
                if isinstance(stream, Packed):
                    chunk.members = stream.take_members(offset + cut)
                yield chunk
                bom = b""
                rows += count
                offset += cut
                data, filled, searched = following, tail, tail
            if self._ended:
                return

    def _sure(self, data: U8, filled: int, headed: bool) -> int:
        """Whole records in data[:filled], behind which no more can be read."""
        data[filled : filled + PAD] = 0
        size = 0 if headed else self.head(data, filled, False)
        if size is None:
            return 0
        cut = self.cut(data[size:], 0, filled - size, False)
        return self.count(data[size:], cut) if cut else 0

    def _refuse_foreign(self, head: bytes) -> None:
        for magic, what, remedy in _FOREIGN:
            if head.startswith(magic):
                if self._codec:
                    what += f" inside {self._codec.strip()}"
                    remedy = remedy if remedy.startswith("convert") else "unpack it once"
                remedy = remedy.format(self.ending)
                raise InputError(
                    f"not {self.what}: this looks like {what}",
                    f"{remedy}, or pass --on-bad-file skip",
                    place=self.source.name,
                )

    def _damaged(self, why: DamagedError, rows: int) -> InputError:
        return InputError(
            f"truncated or corrupt {self._codec}data after {rows} rows ({why})",
            "get a whole copy of the file, or pass --on-bad-file skip",
            place=self.source.name,
        )

    def read_refs(self, refs: Sequence[ChunkRef]) -> Iterator[Chunk]:
        if not refs:
            return
        file = RawFile(self.source)
        self._more.append(file)
        stream = self._stream_of(file) if self.source.compression else None
        at = seen = 0
        scrap = memoryview(bytearray(self._batch))
        for ref in refs:
            if ref.offset < at:
                raise InternalError("chunks are read again in the order of the file")
            data = np.empty(ref.size + PAD, np.uint8)
            data[ref.size :] = 0
            if stream is None:
                file.read_at(data.data[: ref.size], ref.offset)
            else:
                while at < ref.offset:
                    at += self._some(stream, scrap[: ref.offset - at], ref)
                filled = 0
                while filled < ref.size:
                    filled += self._some(stream, data.data[filled : ref.size], ref)
            at = ref.offset + ref.size
            nbytes = file.bytes_read - seen
            seen += nbytes
            if self.by_line and self.count(data, ref.size) != ref.rows:
                file.check()
                raise InternalError(f"{self.source.path}: other lines than before at byte {ref.offset}")
            yield self.chunk(nbytes, ref, data, b"")

    def _some(self, stream: Stream, view: memoryview, ref: ChunkRef) -> int:
        try:
            got = stream.readinto(view)
        except DamagedError as error:
            raise self._damaged(error, ref.first_row) from error
        if not got:
            raise InternalError(f"{self.source.path}: it ends before byte {ref.offset + ref.size}")
        return got

    def content_hash(self) -> str:
        if not self._ended:
            raise InternalError("the hash of a file of records is known when all of it has been read")
        return self._file.content_hash()

    def close(self) -> None:
        for file in (self._file, *self._more):
            file.close()


def _count_lf(data: U8, size: int) -> int:
    """Line feeds in data[:size], counted in blocks that stay in the cache."""
    is_lf = np.empty(min(size, LF_BLOCK), np.bool_)
    count = 0
    for start in range(0, size, LF_BLOCK):
        block = data[start : min(size, start + LF_BLOCK)]
        count += int(np.count_nonzero(np.equal(block, 10, out=is_lf[: len(block)])))
    return count


def _last_line_end(data: U8, start: int, end: int) -> int:
    """Place after the last LF in data[start:end]; 0 if there is none."""
    while end > start:
        begin = max(start, end - (1 << 16))
        hits = np.flatnonzero(data[begin:end] == 10)
        if len(hits):
            return begin + int(hits[-1]) + 1
        end = begin
    return 0
