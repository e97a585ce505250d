"""SimHash in NumPy: the definition.

    bit i of a document = 1 if  sum over its terms of  w * (+1 where bit i of the term's hash is set, else -1)  > 0

(Charikar 2002), so a tie gives 0. A term is a shingle hash; each counts once, with a weight w, a whole number:

    SET     1
    COUNT   how often the shingle occurs in the document
    TFIDF   its count times idf[hash >> 40], and only of the `top` terms with the largest weights; of equal weights the
            lower hashes come first. idf: see weights_ref; what is given must be above 0 for a document to have a
            meaning

Weights are below 2**31 * 2**22 and no document has 2**31 shingles, so every sum is exact in 64 bits. A document without
shingles has 0 and must meet no other: `kept` says which these are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.shingle_ref import shingle_units
from gpu_dedup.kernels.units_ref import U8

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

BITS = 64
SET, COUNT, TFIDF = range(3)
CELL_BITS = 24  # top bits of a hash that are its place in idf
CELLS = 1 << CELL_BITS
LARGEST_IDF = 1 << 22


def check(hashes: U64, hash_offsets: I64) -> None:
    """Refuse arguments that would read outside the arrays.

    raises  ValueError
    """
    if len(hash_offsets) < 1 or bool((hash_offsets[1:] < hash_offsets[:-1]).any()):
        raise ValueError("hash_offsets must have m + 1 entries and never fall")
    if hash_offsets[0] < 0 or hash_offsets[-1] > len(hashes):
        raise ValueError(f"hash_offsets {hash_offsets[0]} to {hash_offsets[-1]} leave {len(hashes)} hashes")


def check_rule(rule: int, idf: U32, top: int) -> None:
    """raises ValueError unless the rule is one of the three and has what it takes, no more."""
    if rule not in (SET, COUNT, TFIDF):
        raise ValueError(f"rule {rule} is none of 0 set, 1 count, 2 tfidf")
    if idf.dtype != np.uint32 or idf.shape != ((CELLS if rule == TFIDF else 0),):
        raise ValueError(f"idf is {idf.dtype}{list(idf.shape)}; rule {rule} takes uint32[{CELLS if rule == 2 else 0}]")
    if top < 0 or (top and rule != TFIDF):
        raise ValueError(f"top {top} with rule {rule}; 0 takes all terms, other numbers are for tfidf")


def simhash(hashes: U64, hash_offsets: I64) -> U64:
    """64-bit SimHash of rows of hashes, weight 1 for each that is given.

    hashes        uint64[total]: shingle hashes in any order; unique within a document for SET, as they occur for COUNT
    hash_offsets  int64[m + 1]: document i has hashes[hash_offsets[i]:hash_offsets[i + 1]]
    returns       uint64[m]
    raises        ValueError: arguments that leave the arrays
    """
    check(hashes, hash_offsets)
    ones = np.ones(len(hashes), np.int64)
    pairs = zip(hash_offsets[:-1].tolist(), hash_offsets[1:].tolist(), strict=True)
    return np.array([_fingerprint(hashes[a:b], ones[a:b]) for a, b in pairs], np.uint64)


def _fingerprint(hashes: U64, weights: I64) -> int:
    """The fingerprint of one document."""
    out = 0
    for bit in range(BITS):
        found = ((hashes >> np.uint64(bit)) & np.uint64(1)) != 0
        if int(weights[found].sum()) - int(weights[~found].sum()) > 0:
            out |= 1 << bit
    return out


def _terms(hashes: U64, rule: int, idf: U32, top: int) -> tuple[U64, I64]:
    """Terms of one document with their weights; hashes as they occur."""
    terms, counts = np.unique(hashes, return_counts=True)
    if rule == SET:
        return terms, np.ones(len(terms), np.int64)
    weights = counts.astype(np.int64)
    if rule == COUNT:
        return terms, weights
    weights *= idf[(terms >> np.uint64(64 - CELL_BITS)).astype(np.int64)].astype(np.int64)
    first = np.argsort(-weights, kind="stable")[: top or None]  # terms ascend
    return terms[first], weights[first]


def fingerprints(
    blob: U8, offsets: I64, select: I64, unit: int, n: int, stop: U64, rule: int, idf: U32, top: int
) -> tuple[U64, I64, I64]:
    """Shingle and SimHash chosen documents.

    blob, offsets, select, unit, n, stop  as in shingle_ref.shingle
    rule     SET, COUNT or TFIDF
    idf      uint32[2**24] for TFIDF, else of length 0: weights by the top 24 bits of a hash, below 2**22
    top      terms that count under TFIDF; 0: all of them
    returns  fingerprints uint64[m], 0 where `kept` is 0 (and by chance elsewhere);
             units int64[m]: units of the text;
             kept int64[m]: its shingles, repeats counted, stop shingles left out
    raises   ValueError, UnicodeDecodeError as shingle_ref.shingle; ValueError: a rule without its idf or with another's
    """
    check_rule(rule, idf, top)
    hashes, bounds, _, units = shingle_units(blob, offsets, select, unit, n, stop)
    out = np.zeros(len(select), np.uint64)
    for i in range(len(select)):
        terms, weights = _terms(hashes[bounds[i] : bounds[i + 1]], rule, idf, top)
        out[i] = _fingerprint(terms, weights)
    return out, units, bounds[1:] - bounds[:-1]
