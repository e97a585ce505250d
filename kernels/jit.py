"""How kernels are compiled: one decorator, one cache folder that works on read-only and shared installs.

Numba keeps compiled code beside the source file, or fails at import when it finds no writable place ("no locator
available", numba/numba#4908). So the folder is chosen here: below ``NUMBA_CACHE_DIR`` if the user set it, else below
``$XDG_CACHE_HOME/gpu-dedup``, else a private folder under the temporary directory, else none (then every process
compiles anew). Its name holds a digest of the kernels' sources, because Numba looks at the file of a function alone and
would go on using code into which an older helper of another file was compiled. A cut or foreign cache file must never
stop a run (numba/numba#10434): `guarded` takes the entries away and compiles again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def _usable(folder: str) -> bool:
    """True if this process may create files in `folder`, and nobody else can plant code there."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        info = os.stat(folder)
        if info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


_COMPILED = ("_cpu.py", "simd.py", "mix64.py", "jit.py")
_STORED = ("normalise_tables.py", "normalise_ref.py", "unicode.py", "unicode.npz")


def sources_digest() -> str:
    """Eight hex digits over every source file that may be compiled into a kernel or make what `stored` stores."""
    folder = os.path.dirname(os.path.abspath(__file__))
    found = hashlib.sha256()
    for name in sorted(os.listdir(folder)):
        if name.endswith(_COMPILED) or name in _STORED:
            with open(os.path.join(folder, name), "rb") as file:
                found.update(name.encode() + b"\0" + file.read())
    return found.hexdigest()[:8]


def choose_cache_dir() -> str | None:
    """First folder that can hold compiled kernels; None where there is none. Never one that another user may write."""
    tag = f"py{sys.version_info[0]}{sys.version_info[1]}-{sources_digest()}"
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given and _usable(os.path.join(given, "gpu-dedup", tag)):
        return os.path.join(given, "gpu-dedup", tag)
    # Where it is set but unusable, compiled code goes to our own place instead of failing at import.
    home = os.path.expanduser("~")
    base = os.environ.get("XDG_CACHE_HOME") or (os.path.join(home, ".cache") if os.path.isabs(home) else "")
    if base and _usable(os.path.join(base, "gpu-dedup", tag)):
        return os.path.join(base, "gpu-dedup", tag)
    fallback = os.path.join(tempfile.gettempdir(), f"gpu-dedup-{os.getuid()}", tag)
    return fallback if _usable(os.path.dirname(fallback)) and _usable(fallback) else None


CACHE_DIR = choose_cache_dir()

import numba  # noqa: E402
import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
from numba.core import config as _config  # noqa: E402


def jit(function: F) -> F:
    """Compile lazily, without the GIL, into the cache folder. Wrap-around integer arithmetic, no fast-math."""
    njit: Any = numba.njit
    settings: Any = _config
    before = settings.CACHE_DIR
    try:
        # Numba settles a function's place here and now; functions of the user's own go on to where they went.
        settings.CACHE_DIR = CACHE_DIR or before
        compiled: F = njit(nogil=True, cache=CACHE_DIR is not None, error_model="numpy")(function)
    finally:
        settings.CACHE_DIR = before
    return compiled


def inline(function: F) -> F:
    """A helper that is always inlined into its callers (their cache entry holds it)."""
    njit: Any = numba.njit
    compiled: F = njit(nogil=True, inline="never", forceinline=True, error_model="numpy")(function)
    return compiled


def frozen(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The array as a C-contiguous, read-only view of `dtype`, copied only if it must be.

    Numba types a read-only array apart from a writable one and would compile a kernel once for each; inputs that all
    pass through here have one type, wherever they came from.
    """
    view: npt.NDArray[Any] = np.ascontiguousarray(array, dtype).view()
    view.flags.writeable = False
    return view


def stored(name: str, make: Callable[[], tuple[npt.NDArray[Any], ...]]) -> tuple[npt.NDArray[Any], ...]:
    """What `make` returns, kept in the cache folder for the next process; made anew if that is damaged.

    The name says all that it depends on beside the files of `sources_digest`.
    """
    path = None if CACHE_DIR is None else os.path.join(CACHE_DIR, f"{name}.bin")
    if path is not None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, EOFError):
            with open(path, "rb") as file:
                digest, content = file.read(32), file.read()
            if hashlib.sha256(content).digest() == digest:
                memory, found = io.BytesIO(content), []
                while memory.tell() < len(content):
                    found.append(np.load(memory, allow_pickle=False))
                return tuple(found)
    made = make()
    if path is not None:
        memory = io.BytesIO()
        for array in made:
            np.save(memory, array, allow_pickle=False)
        temporary = f"{path}.{os.getpid()}"
        with contextlib.suppress(OSError):
            with open(temporary, "wb") as file:
                file.write(hashlib.sha256(memory.getvalue()).digest() + memory.getvalue())
            os.replace(temporary, path)
    return made


def is_cold() -> bool:
    """True if no kernel was compiled into the cache folder yet (or there is none): compiling will take seconds."""
    if CACHE_DIR is None:
        return True
    return not any(name.endswith(".nbi") for _, _, names in os.walk(CACHE_DIR) for name in names)


def guarded(warm: Callable[[], T]) -> T:
    """Run `warm`, which calls kernels on tiny inputs; if the cache is damaged, empty it and run it again.

    Numba reads a cache entry when a signature is first called, and lets UnpicklingError, EOFError and others through.
    """
    try:
        return warm()
    except Exception:
        if CACHE_DIR is None:
            raise
        # Entries only, never folders: another process may be writing there, and a missing entry is no error to Numba.
        for folder, _, names in os.walk(CACHE_DIR):
            for name in names:
                if name.endswith((".nbi", ".nbc")):
                    with contextlib.suppress(OSError):
                        os.unlink(os.path.join(folder, name))
        return warm()
