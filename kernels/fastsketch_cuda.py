"""Fast similarity sketch on the device (fastsketch.cu), from shingle hashes and from text; the definition is
fastsketch_ref."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_dedup.kernels.cuda import empty, function, launch, scan
from gpu_dedup.kernels.fastsketch_ref import check_slots
from gpu_dedup.kernels.minhash_ref import U32
from gpu_dedup.kernels.sketch_cuda import BATCH, sketch_batches
from gpu_dedup.kernels.tape_cuda import tile_rows
from gpu_dedup.kernels.units_ref import I64, U64

WARPS = 4  # of a block of fastsketch.cu, each with a piece of a row


def fastsketch(hashes: Any, hash_offsets: Any, a: U32, b: U32, out: Any = None) -> Any:
    """Fast similarity sketches of shingled documents.

    hashes        uint64[total] on the device: shingle hashes, repeats allowed
    hash_offsets  int64[m + 1] on the device: document i has hashes[hash_offsets[i]:hash_offsets[i + 1]]; trusted
    a, b          uint32[t + 2] on the host: multipliers and addends of bins, of values, and of t slots
    out           uint32[m * t] on the device to write to; new if None
    returns       uint32[m, t] on the device; 0xFFFFFFFF throughout for a document without shingles
    raises        ValueError: a and b as in fastsketch_ref; m * t of 2**31 or more
    """
    import cupy

    slots = check_slots(a, b)
    rows = hash_offsets.size - 1
    if out is None:
        out = empty(rows * slots, np.uint32)
    launch("fastsketch", "clear", rows * slots, (out, np.int64(rows * slots)))
    if rows and hashes.size:
        counts = empty(rows + 1, np.int64)
        launch("fastsketch", "piece_counts", rows + 1, (hash_offsets, np.int64(rows), counts))
        piece_rows, pieces = scan(counts)
        if pieces:
            blocks = -(-pieces // WARPS)
            begins = tile_rows(piece_rows, rows, WARPS, blocks)
            factors, addends = (cupy.asarray(np.ascontiguousarray(v, np.uint32)) for v in (a, b))
            arguments = (
                hashes, hash_offsets, piece_rows, begins, np.int64(rows), factors, addends, np.uint32(slots), out,
            )  # fmt: skip
            for name in ("throw_pieces", "fill_pieces"):
                function("fastsketch", name)((blocks,), (32 * WARPS,), arguments)
    return out.reshape((rows, slots))


def fast_sketch(
    blob: Any, offsets: I64, select: I64, unit: int, n: int, stop: U64, a: U32, b: U32, batch: int = BATCH
) -> tuple[Any, Any, Any]:
    """Shingle and sketch chosen texts: as sketch_cuda.sketch, with a and b as in `fastsketch`."""
    slots = check_slots(a, b)

    def minima(hashes: Any, rows_at: Any, out: Any) -> None:
        fastsketch(hashes, rows_at, a, b, out)

    return sketch_batches(blob, offsets, select, unit, n, stop, slots, minima, batch)
