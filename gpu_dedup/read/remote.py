"""Inputs behind a URL (s3:// gs:// hf:// https:// ...), by fsspec where it is installed. Read by chunks.

A path with `://` in it is one of these; everything else is a file of this machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from glob import has_magic
from typing import Any, TypeVar

from gpu_dedup.errors import InputError, shown

BLOCK = 8 << 20  # bytes asked for at a time
# What tells two states of an object apart, whatever the store calls it.
_STAMPS = (
    "ETag", "etag", "sha256", "blob_id", "oid", "md5Hash", "md5", "crc32c", "mtime", "LastModified", "last_modified",
    "updated", "created",
)  # fmt: skip
_PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub", "http": "fsspec[http]",
    "https": "fsspec[http]", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs", "adl": "adlfs",
}  # fmt: skip

T = TypeVar("T")


def is_remote(path: str) -> bool:
    return "://" in path


def scheme(url: str) -> str:
    return url.partition("://")[0].lower()


@contextmanager
def _errors(url: str) -> Iterator[None]:
    """Every store has its own exceptions; they become one line."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError("no such file or folder", "check the name", place=shown(url)) from None
    except PermissionError as error:
        why = _first_line(error)
        raise InputError(f"no permission to read ({why})", "check your credentials", place=shown(url)) from error
    except Exception as error:
        raise InputError(
            f"cannot be read: {_first_line(error)}",
            "check the name, the network and your credentials",
            place=shown(url),
        ) from error


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def filesystem(url: str) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the path in it. Raises InputError with what to install."""
    need = _PACKAGES.get(scheme(url), "")
    try:
        import fsspec
    except ImportError:
        install = "fsspec" if not need or need.startswith("fsspec") else f"fsspec {need}"
        raise InputError(
            f"{scheme(url)}:// is read by fsspec, which is not installed",
            f"pip install {need or install}",
            place=shown(url),
        ) from None
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise InputError(
            f"{scheme(url)}:// cannot be read ({_first_line(error)})",
            f"pip install {need or 'what it names'}",
            place=shown(url),
        ) from None
    except ValueError as error:
        raise InputError(
            f"{scheme(url)}:// is no protocol that fsspec knows ({_first_line(error)})",
            "check the name",
            place=shown(url),
        ) from None
    except Exception as error:
        raise InputError(f"cannot be read: {_first_line(error)}", "check the name", place=shown(url)) from error
    return fs, str(path)


def state(url: str) -> tuple[int, int]:
    """Size of an object, and a number that another content of it would not have. Raises InputError."""
    import xxhash

    fs, path = filesystem(url)
    with _errors(url):
        fs.invalidate_cache()
        about = fs.info(path)
    if about.get("type") == "directory":
        raise InputError("is a folder", "name its files with a glob", place=shown(url))
    size = about.get("size")
    if size is None:
        raise InputError("the server does not say how large it is", "fetch it and name the file", place=shown(url))
    stamp = repr([(name, str(about[name])) for name in _STAMPS if about.get(name) is not None])
    return int(size), xxhash.xxh3_64_intdigest(stamp.encode()) >> 1


def open_remote(url: str) -> Any:
    """The object as a Python file for reading, with seek. Raises InputError."""
    fs, path = filesystem(url)
    with _errors(url):
        return fs.open(path, "rb", block_size=BLOCK)


def guarded(url: str, work: Callable[[], T]) -> T:
    """`work()`, with whatever the store raises as an InputError about the URL."""
    with _errors(url):
        return work()


def canonical(url: str) -> str:
    """The URL as the file system writes it."""
    fs, path = filesystem(url)
    return str(fs.unstrip_protocol(path)).rstrip("/")


def expand(url: str) -> tuple[list[str], list[str], str]:
    """What a URL stands for: files that are named, files found in folders or by `**`, and the folder that it is, or ''.

    Hidden files and folders, and `_gpu_dedup` folders, are not among those found.
    """
    fs, path = filesystem(url)
    with _errors(url):
        if scheme(url) in ("http", "https"):  # a question mark is no pattern there, and there are no folders
            return [url], [], ""
        if has_magic(path) and not fs.exists(path):
            found = sorted(fs.glob(path), key=os.fsencode)
            files: list[str] = []
            below: list[str] = []
            for one in found:
                if "_gpu_dedup" in one.split("/") and "_gpu_dedup" not in path:
                    continue
                if not fs.isdir(one):
                    (below if "**" in path else files).append(fs.unstrip_protocol(one))
                elif "**" not in path:
                    below += _below(fs, one)
            if not files and not below:
                raise InputError("no file matches", "check the pattern", place=shown(url))
            return files, below, ""
        if fs.isdir(path):
            return [], _below(fs, path), canonical(url)
        if not fs.exists(path):
            raise FileNotFoundError
        return [fs.unstrip_protocol(path)], [], ""


def _below(fs: Any, folder: str) -> list[str]:
    root = folder.rstrip("/")
    out = []
    for path in fs.find(root):
        parts = path[len(root) :].strip("/").split("/")
        if not any(part.startswith(".") for part in parts) and "_gpu_dedup" not in parts[:-1]:
            out.append(str(fs.unstrip_protocol(path)))
    return sorted(out, key=os.fsencode)


class _Guarded:
    """A remote file for pyarrow: what the store raises becomes an InputError on its way."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._file = open_remote(url)

    def read(self, size: int = -1) -> Any:
        return guarded(self._url, lambda: self._file.read(size))

    def seek(self, offset: int, whence: int = 0) -> Any:
        return guarded(self._url, lambda: self._file.seek(offset, whence))

    def tell(self) -> Any:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()

    @property
    def closed(self) -> bool:
        return bool(self._file.closed)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False


def native(path: str) -> Any:
    """A file of this machine, or behind a URL, as pyarrow wants it."""
    import pyarrow as pa

    if is_remote(path):
        return pa.PythonFile(_Guarded(path), mode="r")
    return pa.OSFile(os.fsencode(path))  # as bytes: Arrow takes no other name that is not UTF-8
