"""How CUDA kernels are compiled and launched: one loader, cached per device, and the one scan that launchers share.

A `.cu` file of this folder is compiled by NVRTC through CuPy on first use (CuPy keeps the result in its own cache
folder). Its `.cuh` files are put in place of their includes, so that no include path is needed and the cache key covers
them. Importing this module touches neither CuPy nor a driver. Work goes to CuPy's current stream on its current device.
"""

from __future__ import annotations

import re
import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
OPTIONS = ("--std=c++17",)
ITEMS = 1 << 31  # no device array has as many elements: CuPy's own kernels index with 32 bits

_functions: dict[tuple[int, str, str], Any] = {}
_modules: dict[tuple[int, str], Any] = {}
_lock = threading.Lock()
_INCLUDE = re.compile(r'^#include "([a-z0-9_]+\.cuh)"$', re.MULTILINE)


@cache
def source(stem: str) -> str:
    """Text of `<stem>.cu` with each of its .cuh files once, where it is first included."""
    seen: set[str] = set()

    def expand(name: str) -> str:
        lines = [f'#line 1 "{name}"']
        for number, line in enumerate((HERE / name).read_text(encoding="utf-8").splitlines(), 1):
            found = _INCLUDE.match(line)
            if line == "#pragma once":
                lines.append("")
            elif found is None:
                lines.append(line)
            elif found[1] not in seen:
                seen.add(found[1])
                lines += [expand(found[1]), f'#line {number + 1} "{name}"']
            else:
                lines.append("")
        return "\n".join(lines)

    return expand(f"{stem}.cu") + "\n"


def function(stem: str, name: str) -> Any:
    """The kernel `name` of `<stem>.cu` on the current device."""
    import cupy

    device = int(cupy.cuda.Device().id)
    with _lock:
        if (device, stem, name) not in _functions:
            if (device, stem) not in _modules:
                _modules[device, stem] = cupy.RawModule(code=source(stem), options=OPTIONS)
            _functions[device, stem, name] = _modules[device, stem].get_function(name)
        return _functions[device, stem, name]


def launch(stem: str, name: str, threads: int, args: tuple[Any, ...], block: int = 256) -> None:
    """Run a kernel with one thread each for `threads` things; none, no launch."""
    if threads:
        function(stem, name)((-(-threads // block),), (block,), args)


def empty(size: int, dtype: Any) -> Any:
    """Device array with any content.

    raises  ValueError: 2**31 elements or more
    """
    import cupy

    if size >= ITEMS:
        raise ValueError(f"a device array of {size} elements; cut the batch so that none reaches 2**31")
    return cupy.empty((size,), dtype)


def zeros(size: int, dtype: Any) -> Any:
    """Device array of zeros; errors of `empty`."""
    import cupy

    if size >= ITEMS:
        raise ValueError(f"a device array of {size} elements; cut the batch so that none reaches 2**31")
    return cupy.zeros((size,), dtype)


def scan(counts: Any) -> tuple[Any, int]:
    """Running sums of int64 counts, each count itself included, and the last of them; waits for the device.

    The sums are CuPy's and are checked before anybody uses them as addresses.

    raises  RuntimeError: the sums are wrong
    """
    import cupy

    sums = cupy.cumsum(counts, dtype=np.int64)
    out = cupy.zeros((2,), np.uint64)
    launch("tape", "scan_check", counts.size, (counts, sums, np.int64(counts.size), out))
    total, wrong = (int(v) for v in out.get())
    if wrong:
        raise RuntimeError(
            f"the device returned wrong sums at {wrong} of {counts.size} places; it may be short of memory or faulty"
        )
    return sums, total
