"""The bytes of a file: hashed as they come from the disk, then decompressed. A cut stream is an error."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import Any, Protocol

import xxhash

from gpu_dedup.errors import InputError
from gpu_dedup.read.chunks import Member
from gpu_dedup.read.discover import Source
from gpu_dedup.read.remote import guarded, is_remote, open_remote, state

RAW_BLOCK = 1 << 17  # compressed bytes read at a time
OUT_BLOCK = 1 << 17  # decompressed bytes made at a time, whatever the caller asks for: damage shows at the same row


class DamagedError(Exception):
    """The compressed data does not go on as it should; the message says what the codec said."""


def changed(source: Source) -> InputError:
    return InputError(
        "the file has changed since this run began", "start again when it stays as it is", place=source.name
    )


def unreadable(source: Source, error: OSError) -> InputError:
    return InputError(
        f"cannot be read: {error.strerror or error}",
        "mend or leave out the file, or pass --on-bad-file skip",
        place=source.name,
    )


class RawFile:
    """The file as it lies on the disk, read once, front to back. Raises InputError if it is not the one discovered."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.bytes_read = 0
        self._hash = xxhash.xxh3_64()
        self.fd = -1
        self._remote: Any = None
        if is_remote(source.path):
            self.check()
            self._remote = open_remote(source.path)
            return
        try:
            self.fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(source, error) from error
        try:
            self.check()
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Raises InputError if size or time are not as they were discovered."""
        if is_remote(self.source.path):
            now = state(self.source.path)
        else:
            info = os.fstat(self.fd)
            now = info.st_size, info.st_mtime_ns
        if now != (self.source.size, self.source.mtime_ns):
            raise changed(self.source)

    def readinto(self, view: memoryview) -> int:
        """Fill the view as far as one read goes; 0 at the end of the file, which must be where it was discovered."""
        count = self._some(view)
        if count:
            self._hash.update(view[:count])
            self.bytes_read += count
        elif len(view):
            self.check()
            if self.bytes_read != self.source.size:
                raise changed(self.source)
        return count

    def _some(self, view: memoryview) -> int:
        """Bytes from where the file stands."""
        if self._remote is not None:
            block = guarded(self.source.path, lambda: self._remote.read(len(view)))
            view[: len(block)] = block
            return len(block)
        try:
            return os.readv(self.fd, [view])
        except OSError as error:
            raise unreadable(self.source, error) from error

    def read(self, size: int = RAW_BLOCK) -> bytes:
        block = memoryview(bytearray(size))
        return bytes(block[: self.readinto(block)])

    def read_at(self, view: memoryview, offset: int) -> None:
        """Fill the view from a place in the file, without hashing. Raises InputError where the file ends before."""
        if self._remote is not None:
            guarded(self.source.path, lambda: self._remote.seek(offset))
            while len(view):
                count = self._some(view)
                if not count:
                    raise changed(self.source)
                self.bytes_read += count
                view = view[count:]
            return
        try:
            while len(view):
                count = os.preadv(self.fd, [view], offset)
                if not count:
                    raise changed(self.source)
                self.bytes_read += count
                view = view[count:]
                offset += count
        except OSError as error:
            raise unreadable(self.source, error) from error

    def content_hash(self) -> str:
        """XXH3-64 of what was read."""
        return str(self._hash.hexdigest())

    def close(self) -> None:
        if self._remote is not None:
            self._remote.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    # What pyarrow wants of a Python file.
    def readable(self) -> bool:
        return True

    @property
    def closed(self) -> bool:
        return self._remote.closed if self._remote is not None else self.fd < 0


class Stream(Protocol):
    """Bytes of a file after decompression."""

    def readinto(self, view: memoryview) -> int:
        """Some bytes, at least one; 0 at the end. Raises DamagedError where the data is cut or corrupt."""
        ...


class Packed:
    """Serves blocks of decompressed bytes in pieces of any size."""

    def __init__(self, file: RawFile) -> None:
        self._file = file
        self._ready = memoryview(b"")
        self.out = 0  # bytes that were made
        self._out_before = 0
        self.members: list[Member] = []  # that have ended and were not taken yet

    def _member_ends(self, start: int, end: int) -> None:
        if self.out > self._out_before:
            self.members.append(Member(self._out_before, self.out, start, end))
        self._out_before = self.out

    def take_members(self, until: int) -> list[Member]:
        """Those that have ended, by place `until` of the decompressed bytes, since the last call."""
        count = sum(member.end <= until for member in self.members)
        taken, self.members = self.members[:count], self.members[count:]
        return taken

    def readinto(self, view: memoryview) -> int:
        while not self._ready:
            block = self._next()
            if block is None:
                return 0
            self._ready = memoryview(block)
        count = min(len(view), len(self._ready))
        view[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _next(self) -> bytes | None:
        """Some decompressed bytes, perhaps none yet; None at the end."""
        raise NotImplementedError


class GzipStream(Packed):
    """All members of a gzip file. Zero bytes may stand behind a member (gzip manual, "Tapes"); anything else there is
    damage, as is a member without its end or with a wrong checksum."""

    def __init__(self, file: RawFile) -> None:
        super().__init__(file)
        self._raw = b""
        self._members = 0
        self._member: Any = None
        self._start = 0

    def _next(self) -> bytes | None:
        if self._member is None:
            if self._members:
                self._raw = self._raw.lstrip(b"\0")
            if not self._raw:
                self._raw = self._file.read()
                return b"" if self._raw else None
            self._member = zlib.decompressobj(16 + zlib.MAX_WBITS)
            self._start = self._file.bytes_read - len(self._raw)
        if not self._raw:
            self._raw = self._file.read()
            if not self._raw:
                raise DamagedError("it ends in the middle")
        try:
            block: bytes = self._member.decompress(self._raw, OUT_BLOCK)
        except zlib.error as error:
            raise DamagedError(str(error)) from error
        self.out += len(block)
        if self._member.eof:
            self._raw = self._member.unused_data
            self._member = None
            self._members += 1
            self._member_ends(self._start, self._file.bytes_read - len(self._raw))
        else:
            self._raw = self._member.unconsumed_tail
        return block


class _Frame:
    """The raw bytes of one zstd frame, as pyarrow wants of a Python file; it ends where the frame ends (RFC 8878, 3.1).

    Only sizes are looked at here: what is in the blocks, and whether it is sound, is the decompressor's to say.
    """

    def __init__(self, source: ZstdStream) -> None:
        self._source = source
        self._left = 0  # bytes that may be given before the next header
        self._last = False
        self._checksum = False
        self.ended = False
        head = source.peek(18)
        if len(head) > 4:
            flags = head[4]
            single, dictionary, size = flags >> 5 & 1, flags & 3, flags >> 6
            self._checksum = bool(flags >> 2 & 1)
            self._left = 5 + (not single) + (0, 1, 2, 4)[dictionary] + (single, 2, 4, 8)[size]

    def read(self, size: int = -1) -> bytes:
        out = []
        size = RAW_BLOCK if size < 0 else size
        while size and not self.ended:
            if not self._left:
                if self._last:
                    self.ended = True
                    break
                head = self._source.peek(3)
                if len(head) < 3:
                    out.append(self._source.take(len(head)))  # it is cut: the decompressor will say so
                    break
                word = int.from_bytes(head[:3], "little")
                self._last = bool(word & 1)
                # A block of one repeated byte has this byte alone; behind the last block there may be a checksum.
                self._left = 3 + (1 if word >> 1 & 3 == 1 else word >> 3) + 4 * (self._last and self._checksum)
            block = self._source.take(min(size, self._left))
            if not block:
                break
            out.append(block)
            size -= len(block)
            self._left -= len(block)
            self.ended = self._last and not self._left
        return b"".join(out)

    closed = False

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        return None


class ZstdStream(Packed):
    """All frames of a zstd file, one after the other, skippable ones passed over. pyarrow's stream raises on a frame
    without its end (a cut between two frames cannot be seen: what is left is a whole file)."""

    def __init__(self, file: RawFile) -> None:
        super().__init__(file)
        self._raw = b""
        self._at = 0
        self._frame: _Frame | None = None
        self._stream: Any = None
        self._start = 0

    def peek(self, size: int) -> bytes:
        """The next raw bytes, fewer at the end of the file, without moving on."""
        while len(self._raw) - self._at < size:
            block = self._file.read()
            if not block:
                break
            self._raw, self._at = self._raw[self._at :] + block, 0
        return self._raw[self._at : self._at + size]

    def take(self, size: int) -> bytes:
        """At most so many raw bytes, at least one where there are any."""
        if self._at == len(self._raw):
            self._raw, self._at = self._file.read(), 0
        block = self._raw[self._at : self._at + size]
        self._at += len(block)
        return block

    @property
    def _place(self) -> int:
        """Raw bytes that were taken."""
        return self._file.bytes_read - (len(self._raw) - self._at)

    def _next(self) -> bytes | None:
        import pyarrow as pa

        if self._stream is None:
            head = self.peek(8)
            if not head:
                return None
            if len(head) == 8 and head[0] >> 4 == 5 and head[1:4] == b"\x2a\x4d\x18":  # skippable
                left = 8 + int.from_bytes(head[4:], "little")
                while left:
                    some = self.take(left)
                    if not some:
                        raise DamagedError("it ends in the middle")
                    left -= len(some)
                return b""
            self._start = self._place
            if not head.startswith(b"\x28\xb5\x2f\xfd"):
                raise DamagedError("ZSTD decompress failed: Unknown frame descriptor")
            self._frame = _Frame(self)
            self._stream = pa.CompressedInputStream(pa.PythonFile(self._frame, mode="r"), "zstd")
        try:
            block: bytes = self._stream.read(OUT_BLOCK)
        except OSError as error:
            raise DamagedError(str(error).splitlines()[0]) from error
        self.out += len(block)
        if not block:
            assert self._frame is not None
            if not self._frame.ended:
                raise DamagedError("it ends in the middle")
            self._stream = self._frame = None
            self._member_ends(self._start, self._place)
        return block


# Compression -> (name for messages, stream over the raw file).
STREAMS: dict[str, tuple[str, Callable[[RawFile], Stream]]] = {
    "": ("", lambda file: file),
    "gz": ("gzip ", GzipStream),
    "zst": ("zstd ", ZstdStream),
}


def hash_file(source: Source) -> str:
    """XXH3-64 of a whole file, 16 hex digits. Raises InputError if it is not the one discovered."""
    file = RawFile(source)
    try:
        block = memoryview(bytearray(1 << 20))
        while file.readinto(block):
            pass
        return file.content_hash()
    finally:
        file.close()
