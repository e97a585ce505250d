"""Band keys and slot keys on the device (bandkeys.cu); the definition is bandkeys_ref."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_dedup.kernels.bandkeys_ref import I64, check_bands, check_slots
from gpu_dedup.kernels.cuda import empty, launch


def band_keys(signatures: Any, bands: int, rows: int) -> Any:
    """One key per document and band.

    signatures  uint32[m, k] on the device, k >= bands * rows
    returns     uint64[m, bands] on the device
    raises      ValueError: more bands x rows than slots; m * bands of 2**31 or more
    """
    check_bands(signatures, bands, rows)
    m, slots = signatures.shape
    out = empty(m * bands, np.uint64)
    arguments = (signatures, np.int64(m), np.uint32(slots), np.uint32(bands), np.uint32(rows), out)
    launch("bandkeys", "band_keys", m * bands, arguments)
    return out.reshape((m, bands))


def slot_keys(signatures: Any, slots: I64, start: int) -> Any:
    """One key per document over chosen slots.

    signatures  uint32[m, k] on the device
    slots       int64[s] on the host: slot numbers, in the order in which they enter
    start       0 <= start < 2**64: start of the chain
    returns     uint64[m] on the device
    raises      ValueError: a slot that is not there
    """
    import cupy

    check_slots(signatures, slots, start)
    m, k = signatures.shape
    out = empty(m, np.uint64)
    chosen = cupy.asarray(np.ascontiguousarray(slots, np.int64))
    arguments = (signatures, np.int64(m), np.uint32(k), chosen, np.uint32(len(slots)), np.uint64(start), out)
    launch("bandkeys", "slot_keys", m, arguments)
    return out
