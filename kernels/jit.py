"""How kernels are compiled: one decorator, one cache folder that works on read-only and shared installs.

Numba keeps compiled code beside the source file, or fails at import when it finds no writable place ("no locator
available", numba/numba#4908). So a cache folder is chosen here before numba is imported: ``NUMBA_CACHE_DIR`` if the
user set it, else ``$XDG_CACHE_HOME/gpu-dedup/numba``, else a private folder under the temporary directory, else none (then
every process compiles anew). A cut or foreign cache file must never stop a run (numba/numba#10434): `guarded` moves the
folder aside and compiles again.
"""

from __future__ import annotations

import os
import shutil
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


def choose_cache_dir() -> str | None:
    """First folder that can hold compiled kernels; None where there is none. Never one that another user may write."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        try:
            os.makedirs(given, exist_ok=True)
            with tempfile.TemporaryFile(dir=given):
                return given
        except OSError:
            pass  # set but unusable: compiled code goes to our own place instead of failing at import
    home = os.path.expanduser("~")
    base = os.environ.get("XDG_CACHE_HOME") or (os.path.join(home, ".cache") if os.path.isabs(home) else "")
    tag = f"numba-py{sys.version_info[0]}{sys.version_info[1]}"
    if base and _usable(os.path.join(base, "gpu-dedup", tag)):
        return os.path.join(base, "gpu-dedup", tag)
    fallback = os.path.join(tempfile.gettempdir(), f"gpu-dedup-{os.getuid()}", tag)
    return fallback if _usable(os.path.dirname(fallback)) and _usable(fallback) else None


CACHE_DIR = choose_cache_dir()

import numba  # noqa: E402
import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
from numba.core import config as _config  # noqa: E402

if CACHE_DIR is not None:
    settings: Any = _config
    settings.CACHE_DIR = CACHE_DIR  # read by numba's cache locators when a function is decorated


def jit(function: F) -> F:
    """Compile lazily, without the GIL, into the cache folder. Wrap-around integer arithmetic, no fast-math."""
    njit: Any = numba.njit
    compiled: F = njit(nogil=True, cache=CACHE_DIR is not None, error_model="numpy")(function)
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


def is_cold() -> bool:
    """True if no kernel was compiled into the cache folder yet (or there is none): compiling will take seconds."""
    if CACHE_DIR is None:
        return True
    return not any(name.endswith(".nbi") for _, _, names in os.walk(CACHE_DIR) for name in names)


def guarded(warm: Callable[[], T]) -> T:
    """Run `warm`, which calls kernels on tiny inputs; if the cache is damaged, move it aside and run it again.

    Numba reads a cache entry when a signature is first called, and lets UnpicklingError, EOFError and others through.
    """
    try:
        return warm()
    except Exception:
        if CACHE_DIR is None:
            raise
        shutil.rmtree(CACHE_DIR, ignore_errors=True)
        os.makedirs(CACHE_DIR, mode=0o700, exist_ok=True)
        return warm()
