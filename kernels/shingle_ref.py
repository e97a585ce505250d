"""Shingles in NumPy: the definition.

A shingle is n consecutive units (units_ref) of a normalised text; a text of 1 to n - 1 units has one shingle, all of
them; a text without units has none. Its hash is, modulo 2**64 and with m its number of units,

    s = 0 ; for each unit: s = s * POLY + hash(unit) ; mix64(s + m * GOLDEN)

No seed, and nothing of the position: equal runs of units have equal hashes wherever they stand.
"""

from __future__ import annotations

import numpy as np

from gpu_dedup.kernels.mix64 import GOLDEN, MASK64, POLY, mix64_array
from gpu_dedup.kernels.units_ref import I64, U8, U64, check, spans, unit_hashes


def windows_of(text: bytes, unit: int, n: int) -> tuple[U64, int]:
    """uint64[w]: shingle hashes of one text in order, repeats kept; and how many units it has."""
    hashes = unit_hashes(text, unit)
    if not len(hashes):
        return hashes, 0
    size = min(n, len(hashes))
    count = len(hashes) - size + 1
    s = np.zeros(count, np.uint64)
    for j in range(size):
        s = s * np.uint64(POLY) + hashes[j : j + count]
    return mix64_array(s + np.uint64(size * GOLDEN & MASK64)), len(hashes)


def shingle_units(blob: U8, offsets: I64, select: I64, unit: int, n: int, stop: U64) -> tuple[U64, I64, I64, I64]:
    """As `shingle`, and int64[m]: units of each document."""
    check(blob, offsets, select, unit, n)
    parts: list[U64] = []
    windows = np.zeros(len(select), np.int64)
    units = np.zeros(len(select), np.int64)
    for i, doc in enumerate(select.tolist()):
        found, units[i] = windows_of(blob[offsets[doc] : offsets[doc + 1]].tobytes(), unit, n)
        windows[i] = len(found)
        parts.append(found[~np.isin(found, stop)] if len(stop) else found)
    return _join(parts), _offsets(parts), windows, units


def shingle(blob: U8, offsets: I64, select: I64, unit: int, n: int, stop: U64) -> tuple[U64, I64, I64]:
    """Shingle hashes of chosen documents, in text order, repeats kept, stop shingles left out.

    blob     uint8[>= offsets[-1]]: valid UTF-8 (lone surrogates as three bytes)
    offsets  int64[d + 1]: document i is blob[offsets[i]:offsets[i + 1]]; offsets[0] may be above 0
    select   int64[m]: documents, in any order, repeats allowed
    unit     0 token, 1 word, 2 char, 3 byte, 4 code (units_ref); n units a shingle, 1 to 1000
    stop     uint64[s], ascending: shingle hashes that do not count
    returns  hashes uint64[total], hash_offsets int64[m + 1], windows int64[m] (shingles before stops were taken out)
    raises   ValueError: arguments that leave the arrays; UnicodeDecodeError: not UTF-8
    """
    return shingle_units(blob, offsets, select, unit, n, stop)[:3]


def shingle_sets(blob: U8, offsets: I64, select: I64, unit: int, n: int, stop: U64) -> tuple[U64, I64]:
    """Shingle sets of chosen documents: hashes ascending and unique within each. Arguments and errors of `shingle`.

    returns  hashes uint64[total], hash_offsets int64[m + 1]
    """
    hashes, bounds, _ = shingle(blob, offsets, select, unit, n, stop)
    parts = [np.unique(hashes[bounds[i] : bounds[i + 1]]) for i in range(len(select))]
    return _join(parts), _offsets(parts)


def shingle_spans(blob: U8, offsets: I64, doc: int, unit: int, n: int) -> I64:
    """Where each shingle of one document stands, for showing what two texts share.

    returns  int64[windows, 2]: first byte and end of each shingle, counted from the document's first byte; row j is of
             hash j of `shingle` without stops
    raises   ValueError, UnicodeDecodeError as `shingle`
    """
    check(blob, offsets, np.array([doc], np.int64), unit, n)
    starts, ends, _ = spans(blob[offsets[doc] : offsets[doc + 1]].tobytes(), unit)
    size = min(n, len(starts))
    if not size:
        return np.zeros((0, 2), np.int64)
    count = len(starts) - size + 1
    return np.stack([starts[:count], ends[size - 1 :]], axis=1)


def _join(parts: list[U64]) -> U64:
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def _offsets(parts: list[U64]) -> I64:
    out = np.zeros(len(parts) + 1, np.int64)
    out[1:] = np.cumsum([len(part) for part in parts])
    return out
