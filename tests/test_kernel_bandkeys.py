"""Band keys: Python integers as oracle, literals, parity."""

from __future__ import annotations

import struct
from types import ModuleType

import numpy as np
import pytest
from hashes import ALL, GOLDEN, chain

from gpu_dedup.kernels import bandkeys_cpu, bandkeys_ref

BOTH = pytest.mark.parametrize("kernel", [bandkeys_ref, bandkeys_cpu], ids=["numpy", "numba"])


def keys_of(row: list[int], bands: int, rows: int) -> list[int]:
    return [
        chain(struct.pack(f"<{rows}I", *row[t * rows : (t + 1) * rows]), (t + 1) * GOLDEN & ALL) for t in range(bands)
    ]


@BOTH
def test_golden(kernel: ModuleType) -> None:
    signatures = np.array([[1, 2, 3, 0xFFFFFFFF, 5, 6]], np.uint32)
    assert [hex(key) for key in kernel.band_keys(signatures, 2, 3)[0].tolist()] == [
        "0x71773541622f7edd",
        "0x76d965cbced1dcf9",
    ]
    assert [hex(key) for key in kernel.band_keys(signatures, 3, 2)[0].tolist()] == [
        "0xc4858308e5949c49",
        "0x1b77f320a66960c1",
        "0x482e7d7504cbbadc",
    ]
    assert [hex(key) for key in kernel.slot_keys(signatures, np.array([5, 0, 5], np.int64), 12345).tolist()] == [
        "0xcf69d1b98a0ad7a"
    ]


@BOTH
@pytest.mark.parametrize(("bands", "rows"), [(17, 7), (16, 8), (1, 1), (119, 1), (1, 119), (2, 59), (40, 2)])
def test_oracle(kernel: ModuleType, bands: int, rows: int, rng: np.random.Generator) -> None:
    signatures = rng.integers(0, 2**32 - 1, (9, 128), dtype=np.uint32, endpoint=True)  # more slots than bands use
    signatures[0] = 0xFFFFFFFF
    signatures[1] = 0
    out = kernel.band_keys(signatures, bands, rows)
    assert out.dtype == np.uint64
    assert out.tolist() == [keys_of(row, bands, rows) for row in signatures.tolist()]


@BOTH
def test_slot_keys_against_the_oracle(kernel: ModuleType, rng: np.random.Generator) -> None:
    signatures = rng.integers(0, 2**32 - 1, (5, 40), dtype=np.uint32, endpoint=True)
    for slots in ([], [39], [0, 1], [7, 3, 30, 7], list(range(40))):
        for start in (0, 1, ALL):
            out = kernel.slot_keys(signatures, np.array(slots, np.int64), start)
            assert out.dtype == np.uint64
            assert out.tolist() == [
                chain(struct.pack(f"<{len(slots)}I", *(row[s] for s in slots)), start) for row in signatures.tolist()
            ]


@BOTH
def test_bands_differ_and_rows_agree(kernel: ModuleType) -> None:
    """Equal slots in two bands give two keys; equal slots of two documents give one."""
    signatures = np.full((2, 21), 7, np.uint32)
    out = kernel.band_keys(signatures, 7, 3)
    assert len(set(out[0].tolist())) == 7
    np.testing.assert_array_equal(out[0], out[1])


@BOTH
def test_nothing_and_what_is_refused(kernel: ModuleType) -> None:
    signatures = np.zeros((0, 12), np.uint32)
    assert kernel.band_keys(signatures, 3, 4).shape == (0, 3)
    assert kernel.slot_keys(signatures, np.array([1], np.int64), 0).shape == (0,)
    for bands, rows in ((4, 4), (0, 3), (3, 0)):
        with pytest.raises(ValueError, match="do not fit"):
            kernel.band_keys(signatures, bands, rows)
    for slot in (-1, 12):
        with pytest.raises(ValueError, match="slots"):
            kernel.slot_keys(signatures, np.array([slot], np.int64), 0)
    for start in (-1, 2**64):
        with pytest.raises(ValueError, match="start"):
            kernel.slot_keys(signatures, np.array([1], np.int64), start)


def test_parity(rng: np.random.Generator) -> None:
    signatures = rng.integers(0, 2**32 - 1, (500, 260), dtype=np.uint32, endpoint=True)
    for bands, rows in ((17, 7), (20, 13), (65, 4)):
        want, got = (kernel.band_keys(signatures, bands, rows) for kernel in (bandkeys_ref, bandkeys_cpu))
        np.testing.assert_array_equal(want, got)
    view = signatures[:, ::2]  # not contiguous
    want, got = (kernel.band_keys(view, 17, 7) for kernel in (bandkeys_ref, bandkeys_cpu))
    np.testing.assert_array_equal(want, got)
