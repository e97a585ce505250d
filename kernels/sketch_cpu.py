"""Text to MinHash signature in one pass through the cache, in Numba; the definition is sketch_ref.

Per document: a block of shingle hashes (units_cpu), stop shingles out, high halves, into the running minima
(minhash_cpu). Scratch has a fixed size, whatever a text's length.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.jit import jit
from gpu_dedup.kernels.minhash_cpu import fold, pad_slots
from gpu_dedup.kernels.minhash_ref import EMPTY, U32, check_slots
from gpu_dedup.kernels.mix64_cpu import Word
from gpu_dedup.kernels.units_cpu import BLOCK, SPARE, drop_stops, next_block, prepare
from gpu_dedup.kernels.units_ref import I64, U8, U64, check

_EMPTY = np.uint32(EMPTY)


@jit
def _sketch(
    blob: U8, tail: U8, shift: int, limit: int, offsets: I64, select: I64, unit: int, n: int, poly_n: Word,
    stage1: npt.NDArray[np.uint16], stage2: U8, action: U8, stop: U64, stop_filter: U8,
    a: U32, b: U32, out: U32, units_of: I64, kept: I64,
) -> None:  # fmt: skip
    spans = np.empty((4, BLOCK + SPARE), np.int64)
    units = np.empty(1000 + BLOCK + SPARE, np.uint64)
    hashes = np.empty(BLOCK + SPARE, np.uint64)
    xs = np.empty(BLOCK + SPARE, np.uint32)
    state = np.empty(4, np.int64)
    window = np.zeros(1, np.uint64)
    signature = np.empty(len(a), np.uint32)
    for d in range(len(select)):
        begin = offsets[select[d]]
        end = offsets[select[d] + 1]
        text = blob
        if end > limit:
            text = tail
            begin -= shift
            end -= shift
        state[0] = begin
        state[1] = 0
        state[2] = 0
        state[3] = 0
        signature[:] = _EMPTY
        counted = 0
        while True:
            m = next_block(text, end, unit, n, poly_n, stage1, stage2, action, spans, units, hashes, state, window)
            if m == 0:
                break
            if len(stop) > 0:
                m = drop_stops(hashes, m, stop, stop_filter)
            counted += m
            for i in range(m):
                xs[i] = np.uint32(hashes[i] >> np.uint64(32))
            fold(signature, a, b, xs, m)
        for j in range(out.shape[1]):
            out[d, j] = signature[j]
        units_of[d] = state[3]
        kept[d] = counted


def sketch(blob: U8, offsets: I64, select: I64, unit: int, n: int, stop: U64, a: U32, b: U32) -> tuple[U32, I64, I64]:
    """Shingle and MinHash chosen documents; see sketch_ref.sketch. The text's UTF-8 is trusted, not checked."""
    check(blob, offsets, select, unit, n)
    check_slots(a, b)
    out = np.empty((len(select), len(a)), np.uint32)
    units = np.empty(len(select), np.int64)
    kept = np.empty(len(select), np.int64)
    arguments = prepare(blob, offsets, select, unit, n, stop)
    _sketch(*(*arguments, pad_slots(a), pad_slots(b), out, units, kept))
    return out, units, kept
