"""An opaque stand-in for the few names of CuPy that the CUDA backend uses; see _standin.py.

It is for tests: it runs kernels on the CPU under tests/cuda/emulator.py. A name it lacks is one that the backend may
not use before somebody adds it here, and to the list that is checked against CuPy's own.
"""

from typing import Any

from cupy import cuda
from cupy._standin import (
    RawModule,
    argsort,
    asarray,
    asnumpy,
    cumsum,
    empty,
    get_default_memory_pool,
    ndarray,
    not_allowed,
    sort,
    take,
    zeros,
)

__version__ = "13.6.0"
__all__ = [
    "RawModule", "argsort", "asarray", "asnumpy", "cuda", "cumsum", "empty", "get_default_memory_pool", "ndarray",
    "sort", "take", "zeros",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    raise not_allowed("cupy", name)
