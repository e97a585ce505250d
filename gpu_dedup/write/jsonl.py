"""Surviving lines, byte for byte, compressed as the input was.

A compressed output is a sequence of gzip members or zstd frames, which every reader takes as one stream. So blocks are
compressed apart from each other: `encode` is pure and runs in any thread, `JsonlWriter.write` only appends, in order.
"""

from __future__ import annotations

import os
import zlib
from types import TracebackType
from typing import Any

import numpy as np

from gpu_dedup.batch import I64, U8, Bool
from gpu_dedup.errors import InternalError
from gpu_dedup.write.files import close, create, write_all, write_pieces

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


class JsonlWriter:
    """A file of surviving lines. Its bytes depend on the chunks that come in, never on the threads that encoded them.

    path         the (temporary) name; OutputError where it cannot be written
    compression  '' | 'gz' | 'zst'

    As a context it closes the file at the end; after an error it only lets go of it.
    """

    def __init__(self, path: str, compression: str = "") -> None:
        if compression and compression not in _PACK:
            raise InternalError(f"compression {compression!r} is unknown to the writer")
        self.path = path
        self.compression = compression
        self.bytes_written = 0
        self._loose: list[bytes] = []
        self._loose_bytes = 0
        self._descriptor: int | None = create(path)

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

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        self.abort()
