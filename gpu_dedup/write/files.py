"""Bytes to disk, with every refusal of the system turned into one line; and the plain copy of a file."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeVar

import xxhash

from gpu_dedup.errors import InputError, disk_error, shown

COPY_BYTES = 4 << 20
IOV_MAX = 1024  # buffers that one call takes


Writer = TypeVar("Writer", bound="FileWriter")


class FileWriter(ABC):
    """A file in the making. As a context it is completed at the end; after an error it is only let go of."""

    @abstractmethod
    def close(self) -> None:
        """Complete the file. Raises OutputError."""

    @abstractmethod
    def abort(self) -> None:
        """Let go of the file without completing it; whoever gave the name removes it. After `close` it does nothing."""

    def __enter__(self: Writer) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        self.abort()


def create(path: str) -> int:
    """A descriptor of a new, empty file for writing; what was there is emptied. Raises OutputError."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise disk_error(error, path) from error


def write_all(descriptor: int, data: Any, path: str, other: str = "another output folder") -> None:
    """Write all bytes of a buffer. Raises OutputError. `other`: what else could be chosen."""
    view = memoryview(data).cast("B")
    try:
        while len(view):
            view = view[os.write(descriptor, view[: 1 << 30]) :]  # Linux moves at most 2 GiB - 4 KiB in one call
    except OSError as error:
        raise disk_error(error, path, other) from error


def write_pieces(descriptor: int, pieces: list[memoryview], path: str, other: str = "another output folder") -> None:
    """Write buffers of bytes one after the other, without putting them together first. Raises OutputError."""
    first = 0
    try:
        while first < len(pieces):
            some = pieces[first : first + IOV_MAX]
            first += len(some)
            count = os.writev(descriptor, some)
            for piece in some:
                if count < len(piece):  # a full disk, a signal, or more than 2 GiB at once
                    write_all(descriptor, piece[count:], path, other)
                count = max(0, count - len(piece))
    except OSError as error:
        raise disk_error(error, path, other) from error


def close(descriptor: int, path: str) -> None:
    """Close; network file systems report a full disk here. Raises OutputError."""
    try:
        os.close(descriptor)
    except OSError as error:
        raise disk_error(error, path) from error


def _unreadable(path: str, error: OSError) -> InputError:
    # By now other rows may have a witness in this file, so leaving it out is a matter for a new run.
    return InputError(
        f"cannot be read: {error.strerror or error}", "mend or leave out the file and run again", place=shown(path)
    )


def read_range(path: str, begin: int, end: int) -> Iterator[bytes]:
    """Bytes begin to end of a file, in blocks. Raises InputError, also where it ends before."""
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(begin)
            while begin < end:
                block = file.read(min(COPY_BYTES, end - begin))
                if not block:
                    raise InputError("the file changed while it was being read", "run again", place=shown(path))
                begin += len(block)
                yield block
    except OSError as error:
        raise _unreadable(path, error) from error


def spool(descriptor: int, path: str, other: str) -> int:
    """Everything that can be read from a descriptor, written to a new file; its bytes.

    other  what else could be chosen where the disk refuses, for the message
    Raises InputError where it cannot be read, OutputError.
    """
    target = create(path)
    done = 0
    try:
        while True:
            try:
                block = os.read(descriptor, COPY_BYTES)
            except OSError as error:
                raise InputError(
                    f"cannot be read: {error.strerror or error}", "name a file instead of -", place="standard input"
                ) from error
            if not block:
                return done
            write_all(target, block, path, other)
            done += len(block)
    finally:
        os.close(target)


def copy_file(src: str, dst: str, advance: Callable[[int], object] | None = None) -> str:
    """Copy the bytes of a file; what comes back is the XXH3-64 of them as 16 hex digits.

    The hash is of the bytes that were copied, so that a caller who knows the hash of an earlier read sees a file that
    changed in between. `advance` is told the bytes of each step. Mode and times of `src` are not copied.
    Raises InputError where src cannot be read, OutputError where dst cannot be written.
    """
    hasher = xxhash.xxh3_64()
    buffer = bytearray(COPY_BYTES)
    view = memoryview(buffer)
    try:
        source = open(src, "rb", buffering=0)  # noqa: SIM115 (closed by the with below; only this call may raise here)
    except OSError as error:
        raise _unreadable(src, error) from error
    with source:
        target = create(dst)
        try:
            while True:
                try:
                    count = source.readinto(buffer)
                except OSError as error:
                    raise _unreadable(src, error) from error
                if not count:
                    break
                hasher.update(view[:count])
                write_all(target, view[:count], dst)
                if advance is not None:
                    advance(count)
        except BaseException:
            os.close(target)
            raise
        close(target, dst)
    digest: str = hasher.hexdigest()
    return digest
