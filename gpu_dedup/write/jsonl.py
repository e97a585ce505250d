"""Surviving lines, byte for byte, compressed as the input was.

A compressed output is a sequence of gzip members or zstd frames, which every reader takes as one stream. So blocks are
compressed apart from each other: `encode` is pure and runs in any thread, `JsonlWriter.write` only appends, in order.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_dedup.batch import I64, U8, Bool
from gpu_dedup.errors import InternalError, disk_error
from gpu_dedup.write.files import FileWriter, close, create, read_range, write_all, write_pieces

GZIP_LEVEL = 6
ZSTD_LEVEL = 3
# Fewer bytes than this are not compressed on their own: a member or frame starts with an empty dictionary, and below a
# megabyte that costs several per cent of the ratio.
BLOCK = 1 << 20
# Kept stretches shorter than this on average are gathered through a mask of bytes: a slice costs about 60 ns whatever
# its length, a byte of the mask about 0.5 ns.
SHORT = 96


class _Loose(bytes):
    """Surviving lines of a compressed output, too few to be compressed on their own."""


def survivors(data: U8, starts: I64, keep: Bool) -> list[memoryview]:
    """The kept lines, one after the other, each with its own terminator, as stretches that stand together.

    data    uint8[>= starts[-1]]
    starts  int64[n + 1], non-decreasing; line i is data[starts[i]:starts[i + 1]]
    keep    bool[n]

    Stretches are views of `data` unless they are short on average.
    """
    n = len(keep)
    if len(starts) != n + 1 or int(starts[0]) < 0 or int(starts[-1]) > len(data):
        raise InternalError(f"{n} keep bits, {len(starts)} line starts, {len(data)} bytes do not belong together")
    padded = np.zeros(n + 2, np.bool_)
    padded[1:-1] = keep
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    begins, ends = starts[edges[0::2]], starts[edges[1::2]]
    if not len(begins):
        return []
    total = int((ends - begins).sum())
    if len(begins) > 1 and total < SHORT * len(begins):
        mask = np.repeat(np.asarray(keep, np.bool_), np.diff(starts))
        return [data[int(starts[0]) : int(starts[-1])][mask].data]
    view = np.ascontiguousarray(data).data
    return [view[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def _gzip(data: Any) -> bytes:
    # No name and no time in the header: equal lines give equal bytes on every run.
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def _zstd(data: Any) -> bytes:
    import pyarrow as pa

    packed: bytes = pa.Codec("zstd", compression_level=ZSTD_LEVEL).compress(data, asbytes=True)
    return packed


# A whole member or frame of its own, also for no bytes at all. Both release the GIL while they work.
_PACK = {"gz": _gzip, "zst": _zstd}
_MAGIC = {"gz": b"\x1f\x8b", "zst": b"\x28\xb5\x2f\xfd"}


# What `encode` makes: compressed bytes, or stretches of lines as they are.
Encoded = bytes | list[memoryview]


def encode(data: U8, starts: I64, keep: Bool, compression: str) -> Encoded:
    """What a chunk of lines adds to the output. Pure, for a thread pool; its result goes to `JsonlWriter.write`.

    data         uint8[>= starts[-1]]
    starts       int64[n + 1], non-decreasing; line i is data[starts[i]:starts[i + 1]], terminator included
    keep         bool[n]; blank lines have False
    compression  '' | 'gz' | 'zst'

    The kept lines as one gzip member or zstd frame. Fewer than BLOCK bytes come back as they are, marked, and the
    writer compresses them together with their neighbours. Without compression: the stretches of `data` that stay,
    which must not change before they are written.
    """
    pieces = survivors(data, starts, keep)
    if not compression:
        return pieces
    lines = b"".join(pieces)
    if len(lines) < BLOCK:
        return _Loose(lines)
    return _PACK[compression](lines)


Member = tuple[int, int]  # where a gzip member or zstd frame of the input lies in it
HELD = 8 << 20  # compressed bytes of an input member that are held until it is known whether it stays as it is


@dataclass(frozen=True)
class Segment:
    """What stays of a stretch of the input, for the writer.

    encoded  as `encode` makes it
    whole    nothing of the stretch goes
    member   the member or frame of the input that ends with it, or None
    """

    encoded: Encoded
    whole: bool
    member: Member | None


def segments(
    data: U8, starts: I64, keep: Bool, compression: str, offset: int, ends: Sequence[tuple[int, int, int, int]]
) -> list[Segment]:
    """A chunk of lines, cut where members of the input end. Pure, as `encode` is.

    offset  decompressed bytes before data[starts[0]]
    ends    (begin, end, first raw byte, raw byte behind) of members that end in the chunk or at its beginning
    """
    out = []
    at, last = int(starts[0]), int(starts[-1])
    base = offset - at  # place in the file of data[0]
    inner = [one for one in ends if one[1] <= base + last]  # --limit may end before
    for begin, end, raw_begin, raw_end in (*inner, (-1, base + last, -1, -1)):
        stop = end - base
        member = None if begin < 0 else (raw_begin, raw_end)
        if stop == at and member is None:
            continue
        first = int(np.searchsorted(starts, at, side="right")) - 1
        behind = int(np.searchsorted(starts, stop, side="left"))
        inside = np.clip(starts[first : behind + 1], at, stop)
        mine = keep[first:behind]
        whole = bool(mine.all())
        copied = whole and member is not None and begin >= base + int(starts[0])
        encoded: Encoded = _Loose(b"") if copied or stop == at else encode(data, inside, mine, compression)
        out.append(Segment(encoded, whole, member))
        at = stop
    return out


class JsonlWriter(FileWriter):
    """A file of surviving lines. Its bytes depend on the chunks that come in, never on the threads that encoded them.

    path         the (temporary) name; OutputError where it cannot be written
    compression  '' | 'gz' | 'zst'
    source       the input, from which members and frames without removals are copied; None: never

    As a context it closes the file at the end; after an error it only lets go of it.
    """

    def __init__(self, path: str, compression: str = "", source: str | None = None) -> None:
        if compression and compression not in _PACK:
            raise InternalError(f"compression {compression!r} is unknown to the writer")
        self.path = path
        self.compression = compression
        self.bytes_written = 0
        self._loose: list[bytes] = []
        self._loose_bytes = 0
        self._descriptor: int | None = create(path)
        self._source = source
        self._pending: list[Encoded] = []  # of the input's member that has not ended, while nothing of it goes
        self._pending_bytes = 0
        self._touched = False
        self._mark: int | None = None  # where its bytes begin in the output, if some are written

    def write_bytes(self, data: bytes) -> None:
        """Add bytes as they are to what a reader will see after decompression (the BOM of the input)."""
        self.write(_Loose(data) if self.compression else data)

    def write_lines(self, data: U8, starts: I64, keep: Bool) -> None:
        """Add the kept lines of a chunk: `encode` and `write` in one."""
        self.write(encode(data, starts, keep, self.compression))

    def write(self, encoded: Encoded) -> None:
        """Add what `encode` made with the same compression. The calls decide the order of the lines."""
        if isinstance(encoded, list):
            if self.compression:
                raise InternalError(f"{self.path}: bytes that `encode` did not make for {self.compression}")
            write_pieces(self._open(), encoded, self.path)
            self.bytes_written += sum(map(len, encoded))
        elif isinstance(encoded, _Loose):
            self._loose.append(encoded)
            self._loose_bytes += len(encoded)
            if self._loose_bytes >= BLOCK:
                self._flush()
        elif encoded:
            if self.compression and not encoded.startswith(_MAGIC[self.compression]):
                raise InternalError(f"{self.path}: bytes that `encode` did not make for {self.compression}")
            self._flush()
            self._append(encoded)

    def write_segment(self, segment: Segment) -> None:
        """Add a segment. A member of the input of which nothing goes comes to the output as it is.

        Whether that is so is known at its end. Until then what was made of it is held; where that grows large it is
        written, and cut off again.
        """
        if self._touched or not segment.whole:
            self._write_pending()
            self._touched = True
            self.write(segment.encoded)
        else:
            self._pending.append(segment.encoded)
            self._pending_bytes += len(segment.encoded)
            if self._pending_bytes > HELD:
                if self._mark is None:
                    self._flush()
                    self._mark = self.bytes_written
                self._write_pending()
        if segment.member is not None:
            if not self._touched:
                self._copy(segment.member)
            self._touched, self._mark = False, None

    def _write_pending(self) -> None:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        for encoded in pending:
            self.write(encoded)

    def _copy(self, member: Member) -> None:
        """The raw bytes of a member of the input, in place of what was made of it."""
        self._pending, self._pending_bytes = [], 0
        if self._mark is not None:
            self._loose.clear()
            self._loose_bytes = 0
            try:
                os.ftruncate(self._open(), self._mark)
                os.lseek(self._open(), self._mark, os.SEEK_SET)
            except OSError as error:
                raise disk_error(error, self.path) from error
            self.bytes_written = self._mark
        self._flush()
        if self._source is None:
            raise InternalError(f"{self.path}: a member without a file that it is in")
        for block in read_range(self._source, *member):
            self._append(block)

    def _flush(self) -> None:
        if self._loose_bytes:
            data = b"".join(self._loose)
            self._append(_PACK[self.compression](data))
        self._loose.clear()
        self._loose_bytes = 0

    def _append(self, data: bytes) -> None:
        write_all(self._open(), data, self.path)
        self.bytes_written += len(data)

    def _open(self) -> int:
        if self._descriptor is None:
            raise InternalError(f"{self.path}: written to after it was closed")
        return self._descriptor

    def close(self) -> None:
        """Write what is still held and close. A file without a line is still a valid file of its kind."""
        if self._descriptor is None:
            return
        self._write_pending()
        self._flush()
        if self.compression and not self.bytes_written:
            self._append(_PACK[self.compression](b""))
        descriptor, self._descriptor = self._descriptor, None
        close(descriptor, self.path)

    def abort(self) -> None:
        """Let go of the file without completing it; whoever gave the name removes it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            self._loose.clear()
