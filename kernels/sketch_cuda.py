"""Text to MinHash signature on the device: stage, units, shingles, minima. The definition is sketch_ref."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpu_dedup.kernels.cuda import empty
from gpu_dedup.kernels.minhash_cuda import minhash
from gpu_dedup.kernels.minhash_ref import U32, check_slots
from gpu_dedup.kernels.shingle_cuda import shingle_staged, stops
from gpu_dedup.kernels.tape_cuda import batches, extent, row_sizes, stage
from gpu_dedup.kernels.units_ref import I64, U64, check

BATCH = 64 << 20  # bytes of text at a time: enough to fill the largest device many times over
# Device memory that a batch takes at its peak, in bytes per byte of `batch`: a unit a byte (char:n of ASCII) is the
# worst. A text counts PER_TEXT beside its bytes, for what is kept per text while the batch is at work.
PEAK = 20
PEAK_WITH_STOPS = 28
PER_TEXT = 4


def sketch(
    blob: Any, offsets: I64, select: I64, unit: int, n: int, stop: U64, a: U32, b: U32, batch: int = BATCH
) -> tuple[Any, Any, Any]:
    """Shingle and MinHash chosen texts.

    blob     uint8 on the device, at any address: valid UTF-8 (lone surrogates as three bytes), trusted, not checked
    offsets, select, unit, n, stop, a, b  on the host, as in sketch_ref.sketch
    batch    bytes of text at a time, PER_TEXT more for each text (a longer one is a batch of its own); the answer does
             not depend on it
    returns  signatures uint32[m, k], 0xFFFFFFFF throughout where `kept` is 0; units int64[m]; kept int64[m]: shingles,
             repeats counted, stop shingles left out; on the device
    raises   ValueError: arguments that leave the arrays; m * k of 2**31 or more; a text too long for the device
    """
    check_slots(a, b)

    def minima(hashes: Any, rows_at: Any, out: Any) -> None:
        minhash(hashes, rows_at, a, b, out)

    return sketch_batches(blob, offsets, select, unit, n, stop, len(a), minima, batch)


def sketch_batches(
    blob: Any, offsets: I64, select: I64, unit: int, n: int, stop: U64, slots: int,
    minima: Callable[[Any, Any, Any], None], batch: int,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """The same with any sketch of so many slots: minima(hashes, hash_offsets, out) writes that of shingled texts."""
    check(extent(blob), offsets, select, unit, n)
    signatures = empty(len(select) * slots, np.uint32)
    units = empty(len(select), np.int64)
    kept = empty(len(select), np.int64)
    stop_d = stops(stop)
    for first, last in batches(offsets, select, batch, PER_TEXT):
        made = shingle_staged(stage(blob, offsets, select[first:last]), unit, n, stop_d)
        row_sizes(made.unit_rows, last - first, units[first:last])
        row_sizes(made.rows_at, last - first, kept[first:last])
        minima(made.hashes, made.rows_at, signatures[first * slots : last * slots])
    return signatures.reshape((len(select), slots)), units, kept
