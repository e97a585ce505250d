"""Text to MinHash signature in NumPy: shingle_ref, then minhash_ref. The definition of the fused kernel."""

from __future__ import annotations

from gpu_dedup.kernels.minhash_ref import U32, check_slots, minhash
from gpu_dedup.kernels.shingle_ref import shingle_units
from gpu_dedup.kernels.units_ref import I64, U8, U64


def sketch(blob: U8, offsets: I64, select: I64, unit: int, n: int, stop: U64, a: U32, b: U32) -> tuple[U32, I64, I64]:
    """Shingle and MinHash chosen documents.

    blob, offsets, select, unit, n, stop  as in shingle_ref.shingle
    a, b     uint32[k]: multipliers and addends of the slots (minhash_ref)
    returns  signatures uint32[m, k], 0xFFFFFFFF throughout where `kept` is 0;
             units int64[m]: units of the text;
             kept int64[m]: its shingles, repeats counted, stop shingles left out
    raises   ValueError, UnicodeDecodeError as shingle_ref.shingle
    """
    check_slots(a, b)
    hashes, bounds, _, units = shingle_units(blob, offsets, select, unit, n, stop)
    return minhash(hashes, bounds, a, b), units, bounds[1:] - bounds[:-1]
