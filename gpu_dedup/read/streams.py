"""The bytes of a file: hashed as they come from the disk, then decompressed. A cut stream is an error."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import Any, Protocol

import xxhash

from gpu_dedup.errors import InputError
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


class _Blocks:
    """Serves blocks of decompressed bytes in pieces of any size."""

    def __init__(self, file: RawFile) -> None:
        self._file = file
        self._ready = memoryview(b"")

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


class GzipStream(_Blocks):
    """All members of a gzip file. Zero bytes may stand behind a member (gzip manual, "Tapes"); anything else there is
    damage, as is a member without its end or with a wrong checksum."""

    def __init__(self, file: RawFile) -> None:
        super().__init__(file)
        self._raw = b""
        self._members = 0
        self._member: Any = None

    def _next(self) -> bytes | None:
        if self._member is None:
            if self._members:
                self._raw = self._raw.lstrip(b"\0")
            if not self._raw:
                self._raw = self._file.read()
                return b"" if self._raw else None
            self._member = zlib.decompressobj(16 + zlib.MAX_WBITS)
        if not self._raw:
            self._raw = self._file.read()
            if not self._raw:
                raise DamagedError("it ends in the middle")
        try:
            block: bytes = self._member.decompress(self._raw, OUT_BLOCK)
        except zlib.error as error:
            raise DamagedError(str(error)) from error
        if self._member.eof:
            self._raw = self._member.unused_data
            self._member = None
            self._members += 1
        else:
            self._raw = self._member.unconsumed_tail
        return block


class ZstdStream(_Blocks):
    """All frames of a zstd file, skippable ones passed over. pyarrow's stream raises on a frame without its end (a cut
    between two frames cannot be seen: what is left is a whole file)."""

    def __init__(self, file: RawFile) -> None:
        import pyarrow as pa

        super().__init__(file)
        self._stream: Any = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")

    def _next(self) -> bytes | None:
        try:
            block: bytes = self._stream.read(OUT_BLOCK)
        except OSError as error:
            raise DamagedError(str(error).splitlines()[0]) from error
        return block or None


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
