"""CUDA kernels of fingerprints that are near, against the definition, bit for bit: on the stand-in and on a GPU."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gpu_dedup import hamming
from gpu_dedup.backend import host_backend
from gpu_dedup.kernels import collide_ref, hamming_ref

NONE = np.zeros(0, np.int64)


def kernel() -> ModuleType:
    """The launcher, bound to the CuPy of this test."""
    return importlib.import_module("gpu_dedup.kernels.hamming_cuda")


def opened() -> Any:
    """The backend of the CuPy that this test has."""
    return importlib.import_module("gpu_dedup.backend.cuda").cuda_backend(0)


def same(found: Any, wanted: np.ndarray) -> None:
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


def crowd(rng: np.random.Generator, count: int) -> np.ndarray:
    """Fingerprints near seven centres, bit 63 and equal ones among them."""
    values = rng.integers(0, 1 << 64, 7, dtype=np.uint64)[rng.integers(0, 7, count)]
    for _ in range(4):
        flip = rng.integers(0, 2, count, dtype=np.uint64) << rng.integers(0, 64, count, dtype=np.uint64)
        values ^= flip
    values[:3] = [0, 1 << 63, 2**64 - 1]
    return values


def test_keys_and_distances(device_cupy: ModuleType, rng: np.random.Generator) -> None:
    values = crowd(rng, 700)
    left, right = rng.integers(0, 700, 900), rng.integers(0, 700, 900)
    up = device_cupy.asarray
    for count in (0, 1, 255, 257, 700):
        for mask, start in ((0, 5), (2**64 - 1, 2**64 - 1), (0xFFFF0000FFFF0000, hamming.start_of(2))):
            found = kernel().keys(up(values[:count]), mask, start).get()
            same(found, hamming_ref.keys(values[:count], mask, start))
        found = kernel().distances(up(values), up(left[:count]), up(right[:count])).get()
        same(found, hamming_ref.distances(values, left[:count], right[:count]))
    with pytest.raises(ValueError, match="1 left rows but 2 right rows"):
        kernel().distances(up(values), up(left[:1]), up(right[:2]))


def test_near_pairs(device_cupy: ModuleType, rng: np.random.Generator) -> None:
    values = crowd(rng, 300)
    up = device_cupy.asarray
    for modulo in (1, 9, 290):
        keys = values % np.uint64(modulo)
        members, starts = collide_ref.buckets(keys, np.array([0, len(keys)], np.int64))
        offsets = collide_ref.pair_offsets(starts, len(keys), 1)
        arrays = [up(array) for array in (values, members, starts, offsets)]
        for earlier in ([], [0xFFFFFFFF00000000, 0xFFFF], [0]):
            masks = np.array(earlier, np.uint64)
            for distance in (0, 3, 64):
                for first, last in ((0, len(members)), (len(members) // 3, len(members) // 2), (1, 1)):
                    base = int(offsets[first])
                    count = int(offsets[last]) - base
                    made = kernel().near_pairs(*arrays, first, last, base, count, up(masks), distance)
                    wanted = hamming_ref.near_pairs(values, members, starts, offsets, first, last, masks, distance)
                    for one, other in zip(made, wanted, strict=True):
                        same(one.get(), other)
    with pytest.raises(IndexError, match="members 0 to 999"):
        kernel().near_pairs(*arrays, 0, 999, 0, 5, up(masks), 3)
    with pytest.raises(ValueError, match="distance 65"):
        kernel().near_pairs(*arrays, 0, 1, 0, 5, up(masks), 65)


def test_pairs_far_beyond_32_bits(device_cupy: ModuleType) -> None:
    """Numbers of pairs grow with the square of a bucket; here they begin at 2**33."""
    values = np.array([0, 1, 3, 7, 15, 31], np.uint64)
    members, starts = np.arange(6), np.array([0, 4, 6], np.int64)
    far = collide_ref.pair_offsets(starts, 9, 9) + (1 << 33)
    up = device_cupy.asarray
    arrays = [up(array) for array in (values, members, starts, far)]
    made = kernel().near_pairs(*arrays, 1, 6, int(far[1]), int(far[6] - far[1]), up(np.zeros(0, np.uint64)), 1)
    assert [side.get().tolist() for side in made] == [[1, 2, 3, 5], [0, 1, 2, 4]]


@pytest.mark.parametrize("budget", [None, 30_000])
def test_backend(device_cupy: ModuleType, rng: np.random.Generator, budget: int | None) -> None:
    """The join, and each function of the seam; also where hardly anything fits on the device."""
    gpu, reference = opened(), host_backend("numpy")
    if budget is not None:
        gpu._budget, gpu._residents.room = budget, 0
    values = crowd(rng, 800)
    for distance in (1, 3, 4):
        found, wanted = (hamming.join(values, distance, backend) for backend in (gpu, reference))
        assert found.stats == wanted.stats
        for name in ("leader", "hi", "lo"):
            same(getattr(found, name), getattr(wanted, name))
    left, right = rng.integers(0, 800, 3000), rng.integers(0, 800, 3000)
    same(gpu.hamming_distances(values, left, right), reference.hamming_distances(values, left, right))
    same(gpu.hamming_keys(values, 0xFF00FF, 9), reference.hamming_keys(values, 0xFF00FF, 9))
    sizes = rng.integers(0, 40, 60)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    hashes = rng.integers(0, 1 << 64, int(offsets[-1]) + 5, dtype=np.uint64)
    same(gpu.simhash(hashes, offsets), reference.simhash(hashes, offsets))
    same(gpu.simhash(hashes, offsets + 5), reference.simhash(hashes, offsets + 5))
    same(gpu.simhash(hashes, offsets[:1]), np.zeros(0, np.uint64))
    assert gpu.hamming_distances(values, NONE, NONE).tolist() == []
    none = np.zeros(0, np.uint64)
    with pytest.raises(IndexError, match="row outside 0 to 799"):
        gpu.hamming_distances(values, np.array([800]), np.array([0]))
    with pytest.raises(IndexError, match="members 0 to 9 of 2"):
        gpu.near_pairs(values, np.array([0, 1]), np.array([0, 2]), np.array([0, 0, 1]), 0, 9, none, 1)
    with pytest.raises(ValueError, match="distance 65"):
        gpu.near_pairs(values, np.array([0, 1]), np.array([0, 2]), np.array([0, 0, 1]), 0, 2, none, 65)
    with pytest.raises(ValueError, match="leave"):
        gpu.simhash(hashes, offsets + 50)
