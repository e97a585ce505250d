"""Shared items of two sets on the device (jaccard.cu); the definition is jaccard_ref."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_dedup.kernels.cuda import empty, function, launch, scan, zeros

THREADS = 128
# Device memory in bytes per pair, items aside: both sides, tiles, result. Long pairs take 4 bytes a tile more.
PEAK = 48


def jaccard(items: Any, offsets: Any, left: Any, right: Any) -> Any:
    """Items in both sets of each pair.

    items        uint64[offsets[n]] on the device: n sets, ascending and unique within a set; trusted
    offsets      int64[n + 1] on the device; trusted
    left, right  int64[p] on the device: sets; trusted
    returns      shared uint32[p] on the device; the union is both sizes less it
    raises       ValueError: sides that differ in length, or more than 2**31 tiles of work
    """
    if left.size != right.size:
        raise ValueError(f"{left.size} sets on the left but {right.size} on the right")
    pairs = int(left.size)
    shared = zeros(pairs, np.uint32)
    if not pairs:
        return shared
    counts = empty(pairs + 1, np.int64)
    launch("jaccard", "pair_tiles", pairs, (offsets, left, right, np.int64(pairs), counts))
    tile_rows, tiles = scan(counts)
    if tiles:
        pair_of = empty(tiles, np.uint32)
        launch("jaccard", "tile_pairs", tiles, (tile_rows, np.int64(pairs), np.int64(tiles), pair_of))
        arguments = (items, offsets, left, right, tile_rows, pair_of, shared)
        function("jaccard", "shared_items")((tiles,), (THREADS,), arguments)
    return shared
