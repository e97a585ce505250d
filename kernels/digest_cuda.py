"""Digests of texts on the device (digest.cu); the definition is digest_ref."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_dedup.kernels.cuda import empty, launch
from gpu_dedup.kernels.digest_ref import CHUNK, I64, check
from gpu_dedup.kernels.tape_cuda import batches, extent, stage, tile_rows

BATCH = 256 << 20  # bytes of text at a time
PEAK = 2  # device memory that a batch takes at its peak, in bytes per byte of `batch`
PER_TEXT = 16  # what a text counts beside its bytes
CHUNKS = 64  # of a block of digest.cu


def digest(blob: Any, offsets: I64, batch: int = BATCH) -> Any:
    """Two 64-bit words that stand for each text.

    blob     uint8 on the device, at any address
    offsets  int64[n + 1] on the host
    batch    bytes of text at a time, PER_TEXT more for each text (a longer one is a batch of its own); the answer does
             not depend on it
    returns  uint64[n, 2] on the device, one column per seed
    raises   ValueError: offsets that leave the blob; a text too long for the device
    """
    import cupy

    check(extent(blob), offsets)
    count = len(offsets) - 1
    everyone = np.arange(count, dtype=np.int64)
    out = empty(2 * count, np.uint64)
    for first, last in batches(offsets, everyone, batch, PER_TEXT):
        staged = stage(blob, offsets, everyone[first:last])
        lengths = offsets[first + 1 : last + 1] - offsets[first:last]
        bounds = np.zeros(last - first + 1, np.int64)
        np.cumsum(-(-lengths // CHUNK), out=bounds[1:])
        chunks = int(bounds[-1])
        chunk_rows = cupy.asarray(bounds)
        hashes = empty(2 * chunks, np.uint64)
        if chunks:
            begins = tile_rows(chunk_rows, staged.rows, CHUNKS, -(-chunks // CHUNKS))
            launch(
                "digest",
                "chunk_digests",
                4 * chunks,
                (staged.text.view(np.uint64), staged.offsets, chunk_rows, begins, np.int64(chunks), hashes),
            )
        launch(
            "digest",
            "row_digests",
            2 * staged.rows,
            (hashes, np.int64(chunks), chunk_rows, staged.offsets, np.int64(staged.rows), out[2 * first : 2 * last]),
            128,
        )
    return out.reshape((count, 2))
