"""The integer mixer of mix64.py for Numba kernels, with typed constants (``uint64 + 1`` would be int64)."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from gpu_dedup.kernels import mix64 as _mix64
from gpu_dedup.kernels.jit import inline

Word: TypeAlias = Any  # a np.uint64 in compiled code; NumPy's type stubs lose track of its arithmetic

GOLDEN = np.uint64(_mix64.GOLDEN)
POLY = np.uint64(_mix64.POLY)
_M1 = np.uint64(_mix64.M1)
_M2 = np.uint64(_mix64.M2)
_S27 = np.uint64(27)
_S30 = np.uint64(30)
_S31 = np.uint64(31)


@inline
def mix64(z: Word) -> Word:
    """SplitMix64 finaliser of a uint64."""
    z = (z ^ (z >> _S30)) * _M1
    z = (z ^ (z >> _S27)) * _M2
    return z ^ (z >> _S31)
