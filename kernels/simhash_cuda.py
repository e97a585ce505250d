"""SimHash on the device (simhash.cu); the definition is simhash_ref."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_dedup.kernels.cuda import empty, launch, zeros
from gpu_dedup.kernels.ranks_cuda import check_sorted, group, numbers
from gpu_dedup.kernels.shingle_cuda import shingle_staged, stops
from gpu_dedup.kernels.shingle_sets_cuda import counted_rows, unique_rows
from gpu_dedup.kernels.simhash_ref import BITS, COUNT, SET
from gpu_dedup.kernels.tape_cuda import batches, extent, row_sizes, stage, tile_rows
from gpu_dedup.kernels.units_ref import I64, U64, check

PER_WARP = 256  # hashes of a warp of simhash.cu
BATCH = 64 << 20  # bytes of text at a time
# Device memory of a batch at its peak, in bytes per byte of `batch`: a shingle a byte, and sorting them (ranks_cuda);
# under TFIDF the terms stay while their weights are sorted. A text counts PER_TEXT beside its bytes, for its 64 sums.
PEAK = 100
PEAK_TFIDF = 132
PER_TEXT = 8


def simhash(hashes: Any, hash_offsets: Any, out: Any = None) -> Any:
    """64-bit SimHash of rows of hashes, weight 1 for each that is given.

    hashes        uint64[total] on the device: shingle hashes, in any order
    hash_offsets  int64[m + 1] on the device: document i has hashes[hash_offsets[i]:hash_offsets[i + 1]]; trusted
    out           uint64[m] on the device, for the answer; None: a new one
    returns       uint64[m] on the device
    raises        ValueError: m of 2**25 or more (the 64 sums of each are one array)
    """
    rows = hash_offsets.size - 1
    ones = zeros(rows * BITS, np.uint32)
    if out is None:
        out = empty(rows, np.uint64)
    tiles = -(-hashes.size // PER_WARP)
    if rows and tiles:
        begins = tile_rows(hash_offsets, rows, PER_WARP, tiles)
        arguments = (hashes, hash_offsets, begins, np.int64(rows), np.int64(tiles), ones)
        launch("simhash", "bit_counts", 32 * tiles, arguments)
    launch("simhash", "majorities", rows * BITS, (ones, hash_offsets, np.int64(rows), out.view(np.uint32)))
    return out


def term_weights(terms: Any, starts: Any, term_rows: Any, total: int, idf: Any, top: int) -> Any:
    """Weights of terms under TFIDF, 0 for those behind the `top` heaviest of their row.

    terms      uint64[t], t >= 1, ascending and unique within a row; starts int64[t] and term_rows int64[rows + 1] as
               counted_rows gives them from `total` hashes; on the device
    idf        uint32[2**24] on the device
    returns    uint64[t] on the device
    raises     MemoryError, RuntimeError: the device sorted or summed wrongly
    """
    import cupy

    count, rows = np.int64(terms.size), np.int64(term_rows.size - 1)
    weights = empty(terms.size, np.uint64)
    launch("simhash", "term_weights", terms.size, (terms, starts, count, np.int64(total), idf, weights))
    if not top:
        return weights
    ranks = empty(terms.size, np.uint64)
    launch("simhash", "weight_keys", terms.size, (numbers(group(weights)), count, ranks))
    ranks = cupy.sort(ranks)
    report = zeros(1, np.uint32)
    keys = empty(terms.size, np.uint64)
    launch("simhash", "ranked_rows", terms.size, (ranks, term_rows, rows, count, keys, report))
    keys = cupy.sort(keys)
    launch("simhash", "drop_light", terms.size, (keys, ranks, term_rows, rows, count, np.int64(top), weights, report))
    check_sorted(int(report.get()[0]), terms.size)
    return weights


def weighted(terms: Any, weights: Any, term_rows: Any, out: Any) -> None:
    """SimHash of rows of weighted terms into out uint64[rows]; all on the device."""
    rows = term_rows.size - 1
    sums, totals = zeros(rows * BITS, np.uint64), zeros(rows, np.uint64)
    tiles = -(-terms.size // PER_WARP)
    if rows and tiles:
        begins = tile_rows(term_rows, rows, PER_WARP, tiles)
        arguments = (terms, weights, term_rows, begins, np.int64(rows), np.int64(tiles), sums, totals)
        launch("simhash", "weighted_sums", 32 * tiles, arguments)
    launch("simhash", "weighted_majorities", rows * BITS, (sums, totals, np.int64(rows), out.view(np.uint32)))


def fingerprints(
    blob: Any, offsets: I64, select: I64, unit: int, n: int, stop: U64, rule: int, idf: Any, top: int,
    batch: int = BATCH,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Shingle and SimHash chosen texts.

    blob     uint8 on the device, at any address: valid UTF-8 (lone surrogates as three bytes), trusted, not checked
    offsets, select, unit, n, stop, rule, top  on the host, as in simhash_ref.fingerprints
    idf      uint32[2**24] on the device for TFIDF; not looked at otherwise
    batch    bytes of text at a time, PER_TEXT more for each text (a longer one is a batch of its own); the answer does
             not depend on it
    returns  fingerprints uint64[m], units int64[m], kept int64[m] on the device
    raises   ValueError: arguments that leave the arrays; a text too long for the device; MemoryError, RuntimeError: the
             device sorted or summed wrongly
    """
    check(extent(blob), offsets, select, unit, n)
    values = empty(len(select), np.uint64)
    units, kept = empty(len(select), np.int64), empty(len(select), np.int64)
    stop_d = stops(stop)
    for first, last in batches(offsets, select, batch, PER_TEXT):
        made = shingle_staged(stage(blob, offsets, select[first:last]), unit, n, stop_d)
        row_sizes(made.unit_rows, last - first, units[first:last])
        row_sizes(made.rows_at, last - first, kept[first:last])
        out = values[first:last]
        if rule == COUNT or not made.total:
            simhash(made.hashes, made.rows_at, out)
        elif rule == SET:
            simhash(*unique_rows(made.hashes, made.rows_at, made.total), out)
        else:
            total = made.total
            terms, starts, rows = counted_rows(made.hashes, made.rows_at, total)
            del made
            weighted(terms, term_weights(terms, starts, rows, total, idf, top), rows, out)
    return values, units, kept
