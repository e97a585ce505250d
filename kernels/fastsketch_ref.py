"""Fast similarity sketch in NumPy: the definition.

With x the high and w the low 32 bits of a shingle hash, all products and sums modulo 2**32, t slots, and multipliers
and addends as in minhash_ref (two more of them than slots):

    bin of a shingle    ((a_0 w + b_0) >> 10) * t >> 22                                   0 to t - 1
    slot j              min over the shingles of  (a_1 x + b_1) >> 1                      if j is its bin,
                                                  2**31 + ((a_{j + 2} x + b_{j + 2}) >> 1)   otherwise

So the least shingle of a bin stands for it, and a bin into which none fell takes the least of all shingles, as a
MinHash slot does: the top bit of a slot says which. It is one function of the set. A long text costs one hash and one
minimum a shingle, whatever the slots; a short one not much more than MinHash.

This is Fast Similarity Sketching (Dahlgaard, Knudsen, Thorup, FOCS 2017) with one of its t rounds that throw all
shingles into bins, and then at once its t last ones, that try all shingles for one bin. The rounds left out bound the
work for n near t by O(t log t), where here it is n times the t exp(-n / t) empty bins; but these come a vector at a
time, which up to MAX_SLOTS is as fast.

Promises, for hashes that are random: each slot orders all shingles at random, so two sets agree in it with probability
J, their Jaccard similarity. Once it is known which bins the union fills, each slot still agrees with probability J:
those of filled bins are drawn without replacement, the others independently. So no two are positively correlated, and
the variance of the estimate is at most J (1 - J) / t, that of MinHash; with f the share of filled bins and n shingles
in the union, J (1 - J) / t * (1 - f**2 t / n). A band of r slots agrees with probability J**r at most, for n far
above r about J**r (1 - f**2 r (r - 1) (1 - J) / (2 J n)); a binomial tail, such as the sieve's, errs on the safe side.

Ties: unequal shingles share a slot's value with a probability of about n / (t 2**32) in a filled bin, under 1e-4 up to
4e5 shingles a slot, and of n / 2**32 in an empty one, which sets of that size do not have.

Sketches of t and of more slots have nothing in common: t belongs to the recipe.
"""

from __future__ import annotations

import numpy as np

from gpu_dedup.kernels.minhash_ref import EMPTY, I64, U32, U64
from gpu_dedup.kernels.minhash_ref import check as check_minhash
from gpu_dedup.kernels.shingle_ref import shingle_units
from gpu_dedup.kernels.units_ref import U8

LEVEL = 0x80000000  # slots of bins into which no shingle fell have this bit
OWN = 2  # entries of a and b before those of the slots: for bins, for values in them
MAX_SLOTS = 1024  # 22 bits of hash times so many slots fit 32 bits


def check_slots(a: U32, b: U32) -> int:
    """The number of slots.

    raises  ValueError: a and b are not alike, or stand for none or too many slots
    """
    if a.ndim != 1 or a.shape != b.shape or not OWN < len(a) <= OWN + MAX_SLOTS:
        raise ValueError(
            f"a {a.shape} and b {b.shape} must be two vectors of the same length, {OWN + 1} to {OWN + MAX_SLOTS}"
        )
    return len(a) - OWN


def check(hashes: U64, hash_offsets: I64, a: U32, b: U32) -> int:
    """Refuse arguments that would read outside the arrays; returns the number of slots.

    raises  ValueError
    """
    check_minhash(hashes, hash_offsets, a, b)
    return check_slots(a, b)


def fastsketch(hashes: U64, hash_offsets: I64, a: U32, b: U32) -> U32:
    """Fast similarity sketches of shingled documents.

    hashes        uint64[total]: shingle hashes, repeats allowed
    hash_offsets  int64[m + 1]: document i has hashes[hash_offsets[i]:hash_offsets[i + 1]]
    a, b          uint32[t + 2]: multipliers and addends of bins, of values, and of t slots, t from 1 to 1,024
    returns       uint32[m, t]; 0xFFFFFFFF throughout for a document without shingles
    raises        ValueError: arguments that leave the arrays; more slots than there may be
    """
    slots = check(hashes, hash_offsets, a, b)
    out = np.full((len(hash_offsets) - 1, slots), EMPTY, np.uint32)
    for i in range(len(out)):
        own = hashes[hash_offsets[i] : hash_offsets[i + 1]]
        if len(own):
            x, w = (own >> np.uint64(32)).astype(np.uint32), own.astype(np.uint32)
            bins = ((a[:1] * w + b[:1]) >> np.uint32(10)) * np.uint32(slots) >> np.uint32(22)
            thrown = (a[1:2] * x + b[1:2]) >> np.uint32(1)
            for j in range(slots):
                of_all = np.uint32(LEVEL) + ((a[OWN + j : OWN + j + 1] * x + b[OWN + j : OWN + j + 1]) >> np.uint32(1))
                out[i, j] = np.where(bins == j, thrown, of_all).min()
    return out


def fast_sketch(
    blob: U8, offsets: I64, select: I64, unit: int, n: int, stop: U64, a: U32, b: U32
) -> tuple[U32, I64, I64]:
    """Shingle and sketch chosen documents.

    blob, offsets, select, unit, n, stop  as in shingle_ref.shingle
    a, b     as in `fastsketch`
    returns  signatures uint32[m, t], 0xFFFFFFFF throughout where `kept` is 0;
             units int64[m]: units of the text;
             kept int64[m]: its shingles, repeats counted, stop shingles left out
    raises   ValueError, UnicodeDecodeError as `fastsketch` and shingle_ref.shingle
    """
    check_slots(a, b)
    hashes, bounds, _, units = shingle_units(blob, offsets, select, unit, n, stop)
    return fastsketch(hashes, bounds, a, b), units, bounds[1:] - bounds[:-1]
