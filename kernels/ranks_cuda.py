"""Dense numbers of keys on the device (ranks.cu), by a sort that need not be stable and is checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_dedup.kernels.cuda import empty, launch, scan, zeros

# Device memory at the peak of `group` or a sort, in bytes per key: the keys, their order, what the sort takes (the same
# twice over), flags and sums.
PEAK = 72


@dataclass(frozen=True)
class Groups:
    """Keys in order.

    order   int64[n]: positions of the keys, ascending by key, equal keys in any order
    flags   int64[n]: 1 where another key begins
    runs    int64[n]: 1 + number of the key at order[i]
    count   different keys
    """

    order: Any
    flags: Any
    runs: Any
    count: int


def check_sorted(wrong: int, size: int) -> None:
    """raises MemoryError where a sort went wrong.

    CuPy's sort has returned unsorted data, without an error, where it found too little memory to work in
    (cupy/cupy#9894): a smaller batch helps then, as it does after an honest error.
    """
    if wrong:
        raise MemoryError(
            f"the device sorted {size} keys wrongly ({wrong} out of place); it may be short of memory or faulty"
        )


def group(keys: Any) -> Groups:
    """Group equal keys.

    keys    uint64[n] on the device, n >= 1
    raises  MemoryError, RuntimeError: the device sorted or summed wrongly
    """
    import cupy

    n = int(keys.size)
    order = cupy.argsort(keys).view(np.int64)
    flags = empty(n, np.int64)
    report = zeros(2, np.uint32)
    launch("ranks", "key_runs", n, (keys, order, np.int64(n), flags, report))
    wrong, total = (int(v) for v in report.get())
    check_sorted(wrong or int(total != n * (n - 1) // 2 % (1 << 32)), n)
    runs, count = scan(flags)
    return Groups(order, flags, runs, count)


def numbers(groups: Groups) -> Any:
    """uint32[n]: number of each key, ascending with the keys."""
    n = int(groups.order.size)
    out = empty(n, np.uint32)
    launch("ranks", "run_numbers", n, (groups.order, groups.runs, np.int64(n), out))
    return out


def values(groups: Groups, keys: Any) -> Any:
    """uint64[count]: the key of each number."""
    n = int(groups.order.size)
    out = empty(groups.count, np.uint64)
    launch("ranks", "run_values", n, (keys, groups.order, groups.flags, groups.runs, np.int64(n), out))
    return out
