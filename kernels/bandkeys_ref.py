"""Band keys in NumPy: the definition.

    key of band t = mix64.chain(little-endian uint32 bytes of slots t*rows ... t*rows + rows - 1, (t + 1) * GOLDEN)

The band's number is the start of the chain, so equal slots in two bands do not give equal keys.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.mix64 import GOLDEN, MASK64, mix64_array

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


def check_bands(signatures: U32, bands: int, rows: int) -> None:
    """raises ValueError unless bands x rows slots are there."""
    if bands < 1 or rows < 1 or bands * rows > signatures.shape[1]:
        raise ValueError(f"{bands} bands x {rows} rows do not fit {signatures.shape[1]} slots")


def check_slots(signatures: U32, slots: I64, start: int) -> None:
    """raises ValueError unless all slots are there."""
    if len(slots) and not 0 <= int(slots.min()) <= int(slots.max()) < signatures.shape[1]:
        raise ValueError(f"slots {slots.min()} to {slots.max()} leave the signature of {signatures.shape[1]}")
    if not 0 <= start <= MASK64:
        raise ValueError(f"start {start} is outside 0 to 2**64 - 1")


def slot_keys(signatures: U32, slots: I64, start: int) -> U64:
    """One key per document over chosen slots.

    signatures  uint32[m, k]
    slots       int64[s]: slot numbers, in the order in which they enter
    start       0 <= start < 2**64: start of the chain; tells keys over the same slots apart
    returns     uint64[m]: mix64.chain(little-endian bytes of the slots, start)
    raises      ValueError: a slot that is not there
    """
    check_slots(signatures, slots, start)
    h = np.full(len(signatures), start, np.uint64)
    for i in range(0, len(slots), 2):
        word = signatures[:, slots[i]].astype(np.uint64)
        if i + 1 < len(slots):
            word |= signatures[:, slots[i + 1]].astype(np.uint64) << np.uint64(32)
        h = mix64_array(h + word)
    return h


def band_keys(signatures: U32, bands: int, rows: int) -> U64:
    """Keys under which documents collide: one per document and band.

    signatures  uint32[m, k], k >= bands * rows
    returns     uint64[m, bands]
    raises      ValueError: more bands x rows than slots
    """
    check_bands(signatures, bands, rows)
    out = np.empty((len(signatures), bands), np.uint64)
    for t in range(bands):
        slots = np.arange(t * rows, (t + 1) * rows, dtype=np.int64)
        out[:, t] = slot_keys(signatures, slots, (t + 1) * GOLDEN & MASK64)
    return out
