"""Band keys in Numba; the definition is bandkeys_ref."""

from __future__ import annotations

import numpy as np

from gpu_dedup.kernels.bandkeys_ref import I64, U32, U64, check_bands, check_slots
from gpu_dedup.kernels.jit import frozen, jit
from gpu_dedup.kernels.mix64 import GOLDEN as GOLDEN_INT
from gpu_dedup.kernels.mix64 import MASK64
from gpu_dedup.kernels.mix64_cpu import mix64

_32 = np.uint64(32)


@jit
def _keys(signatures: U32, slots: I64, starts: U64, out: U64) -> None:
    """out[i, t] = chain over signatures[i, slots[t]] from starts[t]; slots int64[bands, rows]."""
    rows = slots.shape[1]
    for i in range(len(signatures)):
        for t in range(len(starts)):
            h = starts[t]
            for j in range(0, rows - 1, 2):
                low = np.uint64(signatures[i, slots[t, j]])
                h = mix64(h + (low | np.uint64(signatures[i, slots[t, j + 1]]) << _32))
            if rows & 1:
                h = mix64(h + np.uint64(signatures[i, slots[t, rows - 1]]))
            out[i, t] = h


def slot_keys(signatures: U32, slots: I64, start: int) -> U64:
    """One key per document over chosen slots; see bandkeys_ref.slot_keys."""
    check_slots(signatures, slots, start)
    out = np.empty((len(signatures), 1), np.uint64)
    starts = np.array([start], np.uint64)
    _keys(frozen(signatures, np.uint32), frozen(slots.reshape(1, -1), np.int64), frozen(starts, np.uint64), out)
    return out[:, 0]


def band_keys(signatures: U32, bands: int, rows: int) -> U64:
    """Keys under which documents collide; see bandkeys_ref.band_keys."""
    check_bands(signatures, bands, rows)
    out = np.empty((len(signatures), bands), np.uint64)
    slots = np.arange(bands * rows, dtype=np.int64).reshape(bands, rows)
    starts = np.array([(t + 1) * GOLDEN_INT & MASK64 for t in range(bands)], np.uint64)
    _keys(frozen(signatures, np.uint32), frozen(slots, np.int64), frozen(starts, np.uint64), out)
    return out
