"""Shingle hashes of texts on the device (shingle.cu); the definition is shingle_ref."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_dedup.kernels.cuda import empty, launch, scan, zeros
from gpu_dedup.kernels.tape_cuda import Staged, extent, row_sizes, stage, tile_rows
from gpu_dedup.kernels.units_cuda import hash_units
from gpu_dedup.kernels.units_ref import I64, U64, check

TILE = 1024  # units of a block of shingle.cu


@dataclass(frozen=True)
class Shingled:
    """Shingle hashes of `rows` texts on the device.

    hashes       uint64[total], in text order, stop shingles left out
    rows_at      int64[rows + 1]: hashes before each text
    window_rows  int64[rows + 1]: the same, stop shingles counted
    unit_rows    int64[rows + 1]: units before each text
    """

    hashes: Any
    rows_at: Any
    window_rows: Any
    unit_rows: Any
    total: int


def shingle_staged(staged: Staged, unit: int, n: int, stop: Any) -> Shingled:
    """Shingle staged texts. stop: uint64[s] on the device, ascending; None for none."""
    rows = np.int64(staged.rows)
    units, unit_rows, count = hash_units(staged, unit)
    counts = empty(staged.rows + 1, np.int64)
    launch("shingle", "window_counts", staged.rows + 1, (unit_rows, rows, np.int64(n), counts))
    window_rows, total = scan(counts)
    hashes = empty(total, np.uint64)
    if total:
        tiles = -(-count // TILE)
        begins = tile_rows(unit_rows, staged.rows, TILE, tiles)
        launch("shingle", "shingle", tiles * 256, (units, unit_rows, window_rows, begins, rows, np.uint32(n), hashes))
    if stop is None or not total:
        return Shingled(hashes, window_rows, window_rows, unit_rows, total)
    del units
    flags = empty(total, np.int64)
    launch("shingle", "stop_flags", total, (hashes, window_rows, rows, stop, np.int64(stop.size), flags))
    flags, kept = scan(flags)
    left = empty(kept, np.uint64)
    launch("shingle", "stop_compact", total, (hashes, window_rows, rows, flags, left))
    rows_at = empty(staged.rows + 1, np.int64)
    launch("shingle", "stop_rows", staged.rows + 1, (window_rows, rows, flags, rows_at))
    return Shingled(left, rows_at, window_rows, unit_rows, kept)


def stops(stop: U64) -> Any:
    """Stop shingles as `shingle_staged` takes them."""
    import cupy

    return cupy.asarray(np.ascontiguousarray(stop, np.uint64)) if len(stop) else None


def shingle(blob: Any, offsets: I64, select: I64, unit: int, n: int, stop: U64) -> tuple[Any, Any, Any]:
    """Shingle hashes of chosen texts, in text order, repeats kept, stop shingles left out.

    blob     uint8 on the device, at any address: valid UTF-8 (lone surrogates as three bytes), trusted, not checked
    offsets  int64[d + 1], select int64[m], stop uint64[s] on the host, as in shingle_ref.shingle; the chosen texts have
             at most tape_cuda.LARGEST bytes together
    returns  hashes uint64[total], hash_offsets int64[m + 1], windows int64[m] (shingles before stops were taken out),
             on the device
    raises   ValueError: arguments that leave the arrays; a batch too large
    """
    check(extent(blob), offsets, select, unit, n)
    if not len(select):
        return empty(0, np.uint64), zeros(1, np.int64), empty(0, np.int64)
    made = shingle_staged(stage(blob, offsets, select), unit, n, stops(stop))
    return made.hashes, made.rows_at, row_sizes(made.window_rows, len(select))
