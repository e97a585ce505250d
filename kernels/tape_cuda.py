"""Staged texts: the chosen ones of a batch end to end in aligned device memory (tape.cu); cutting batches by bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.cuda import empty, launch

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

TILE = 4096  # bytes of a tile of units.cu; a staged text is padded to a multiple of it, and SPARE more
SPARE = 16
BLOCK = 256
LARGEST = (1 << 31) - 2 * TILE  # bytes of one batch: positions in it are 32 bits, and it is one device array


@dataclass(frozen=True)
class Staged:
    """Texts of a batch on the device.

    text     uint8[tiles * TILE + SPARE]: begins at a multiple of 16; zeros after the last text
    offsets  int64[rows + 1], from 0
    size     bytes of all texts; size + 1 <= tiles * TILE
    """

    text: Any
    offsets: Any
    size: int
    rows: int

    @property
    def tiles(self) -> int:
        return self.size // TILE + 1


def extent(blob: Any) -> U8:
    """Host array as long as a device array, without its memory: the checks of the definitions ask for no more."""
    return np.broadcast_to(np.zeros((), np.uint8), (blob.size,))


def batches(offsets: I64, select: I64, limit: int, per_text: int = 0) -> list[tuple[int, int]]:
    """Cut chosen texts into runs of at most `limit` bytes, or of one text that is longer.

    offsets  int64[d + 1]; select int64[m]
    per_text what a text counts beside its bytes: many small ones take memory too
    returns  ranges [(first, last + 1), ...] of select, in order, none empty
    raises   ValueError: a text too long for the device
    """
    lengths = offsets[select + 1] - offsets[select]
    if len(lengths) and int(lengths.max()) > LARGEST:
        worst = int(lengths.argmax())
        raise ValueError(
            f"text {int(select[worst])} has {int(lengths[worst])} bytes; at most {LARGEST} fit a batch on the device"
        )
    limit = min(limit, LARGEST)
    ends = np.cumsum(lengths + per_text)
    out: list[tuple[int, int]] = []
    first = 0
    while first < len(select):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + limit, side="right")))
        out.append((first, last))
        first = last
    return out


def tile_rows(offsets: Any, rows: int, size: int, tiles: int) -> Any:
    """int64[tiles + 1]: row in which each tile of `size` elements begins; offsets int64[rows + 1] on the device."""
    out = empty(tiles + 1, np.int64)
    launch("tape", "tile_rows", tiles + 1, (offsets, np.int64(rows), np.int64(size), np.int64(tiles), out))
    return out


def row_sizes(offsets: Any, rows: int, out: Any = None) -> Any:
    """int64[rows]: length of each row, on the device."""
    if out is None:
        out = empty(rows, np.int64)
    launch("tape", "row_sizes", rows, (offsets, np.int64(rows), out))
    return out


def stage(blob: Any, offsets: I64, select: I64) -> Staged:
    """Copy the chosen texts, one or more, end to end.

    blob     uint8 on the device, at any address
    offsets  int64[d + 1] and select int64[m] on the host
    """
    import cupy

    rows = len(select)
    bounds = np.zeros(rows + 1, np.int64)
    np.cumsum(offsets[select + 1] - offsets[select], out=bounds[1:])
    size = int(bounds[-1])
    padded = (size // TILE + 1) * TILE + SPARE
    bounds_d = cupy.asarray(bounds)
    starts = cupy.asarray(np.ascontiguousarray(offsets[select]))
    text = empty(padded, np.uint8)
    words = padded // 4
    rows_at = tile_rows(bounds_d, rows, 4 * BLOCK, -(-words // BLOCK))
    launch(
        "tape",
        "gather",
        words,
        (blob, np.int64(blob.size), starts, bounds_d, np.int64(rows), rows_at, np.int64(words), text.view(np.uint32)),
        BLOCK,
    )
    return Staged(text, bounds_d, size, rows)
