"""MinHash: Python integers as oracle, parity, and whether the estimate is what the theory says."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
from hashes import draws, signature

from gpu_dedup.kernels import minhash_cpu, minhash_ref
from gpu_dedup.sketches import permutations

BOTH = pytest.mark.parametrize("kernel", [minhash_ref, minhash_cpu], ids=["numpy", "numba"])
EMPTY = 2**32 - 1


def offsets_of(counts: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


@BOTH
def test_by_hand(kernel: ModuleType) -> None:
    hashes = np.array([0, 1 << 32, 5 << 32 | 0xFFFFFFFF, 0xFFFFFFFF << 32], np.uint64)  # x = 0, 1, 5, 2**32 - 1
    a = np.array([1, 3, 0xFFFFFFFF], np.uint32)
    b = np.array([0, 10, 4], np.uint32)
    # slot 0: 0, 1, 5, -1;  slot 1: 10, 13, 25, 7;  slot 2: 4, 3, -1, 5  (modulo 2**32)
    assert kernel.minhash(hashes, offsets_of([4]), a, b).tolist() == [[0, 7, 3]]
    assert kernel.minhash(hashes, offsets_of([0, 2, 2]), a, b).tolist() == [[EMPTY] * 3, [0, 10, 3], [5, 7, 5]]
    assert kernel.minhash(hashes, offsets_of([4]), a, b).dtype == np.uint32


@BOTH
@pytest.mark.parametrize("k", [1, 15, 16, 17, 31, 32, 33, 119, 128, 260, 1024])
def test_oracle_for_any_number_of_slots(kernel: ModuleType, k: int, rng: np.random.Generator) -> None:
    hashes = rng.integers(0, 2**64 - 1, 40, dtype=np.uint64, endpoint=True)
    a, b = permutations(k, k)
    counts = [3, 0, 1, 20, 16]
    bounds = offsets_of(counts)
    expected = [signature(hashes[i:j].tolist(), a.tolist(), b.tolist()) for i, j in pairwise(bounds)]
    assert kernel.minhash(hashes, bounds, a, b).tolist() == expected


@BOTH
def test_golden(kernel: ModuleType) -> None:
    """Seed 0, four slots, three shingle hashes: the same for ever."""
    a, b = permutations(0, 4)
    hashes = np.array([0x0123456789ABCDEF, 0xFEDCBA9876543210, 0xDEADBEEFCAFEF00D], np.uint64)
    assert [hex(slot) for slot in kernel.minhash(hashes, offsets_of([3]), a, b)[0].tolist()] == GOLDEN


GOLDEN = ["0x7a7ee21", "0x5e0aacfd", "0xba84ea00", "0x3a0b0f60"]


def test_parity_over_block_edges(rng: np.random.Generator) -> None:
    counts = [0, 1, 2047, 2048, 2049, 4096, 5000, 7, 0]
    hashes = rng.integers(0, 2**64 - 1, sum(counts) + 9, dtype=np.uint64, endpoint=True)
    bounds = offsets_of(counts) + 5  # the first offset above 0
    for k in (16, 119, 128):
        a, b = permutations(7, k)
        want, got = (kernel.minhash(hashes, bounds, a, b) for kernel in (minhash_ref, minhash_cpu))
        np.testing.assert_array_equal(want, got)


@BOTH
def test_order_and_repeats_do_not_matter(kernel: ModuleType, rng: np.random.Generator) -> None:
    hashes = rng.integers(0, 2**64 - 1, 500, dtype=np.uint64, endpoint=True)
    a, b = permutations(3, 64)
    once = kernel.minhash(hashes, offsets_of([500]), a, b)
    again = np.concatenate([rng.permutation(hashes), hashes[:100]])
    np.testing.assert_array_equal(kernel.minhash(again, offsets_of([600]), a, b), once)
    # The union's minimum is the minimum of both: no shingle ever raises a slot.
    halves = kernel.minhash(hashes, offsets_of([200, 300]), a, b)
    np.testing.assert_array_equal(halves.min(axis=0), once[0])


@BOTH
def test_nothing_and_what_is_refused(kernel: ModuleType) -> None:
    a, b = permutations(0, 4)
    none = np.zeros(0, np.uint64)
    assert kernel.minhash(none, offsets_of([]), a, b).shape == (0, 4)
    assert (kernel.minhash(none, offsets_of([0]), a, b) == EMPTY).all()
    for bounds in ([0, 1], [-1, 0], [0, -1]):
        with pytest.raises(ValueError, match="hash_offsets"):
            kernel.minhash(none, np.array(bounds, np.int64), a, b)
    with pytest.raises(ValueError, match="same length"):
        kernel.minhash(none, offsets_of([0]), a, b[:3])
    with pytest.raises(ValueError, match="one or more"):
        kernel.minhash(none, offsets_of([0]), a[:0], b[:0])


@pytest.mark.parametrize("n", [20, 200, 2000])
@pytest.mark.parametrize("tenths", [1, 5, 8])
def test_the_estimate_is_unbiased_and_as_sharp_as_theory(n: int, tenths: int) -> None:
    """Pairs of n shingles each in the union, J = tenths / 10, k = 128: bias and variance against J (1 - J) / k.

    The seed is fixed, so this cannot fail by chance on one machine and pass on another. Bounds: 4 standard errors and
    0.003 for the bias; 0.8 to 1.35 of the theory for the variance.
    """
    pairs, k = 600, 128
    rng = np.random.default_rng(1000 * n + tenths)
    shared = n * tenths // 10
    rest = n - shared
    left = rest // 2
    hashes = rng.integers(0, 2**64 - 1, (pairs, n), dtype=np.uint64, endpoint=True)
    sets = [np.concatenate([row[:shared], row[shared : shared + left]]) for row in hashes]
    sets += [np.concatenate([row[:shared], row[shared + left :]]) for row in hashes]
    a, b = permutations(20240607, k)
    signatures = minhash_cpu.minhash(np.concatenate(sets), offsets_of([len(s) for s in sets]), a, b)
    agree = (signatures[:pairs] == signatures[pairs:]).sum(axis=1) / k
    true = shared / n
    theory = true * (1 - true) / k
    assert abs(agree.mean() - true) < 0.003 + 4 * (theory / pairs) ** 0.5
    assert 0.8 < agree.var() / theory < 1.35


def test_permutations_are_splitmix64() -> None:
    a, b = permutations(0, 4)
    assert a.dtype == b.dtype == np.uint32
    assert [hex(v) for v in a.tolist()] == ["0x7b1dcdaf", "0xa1b965f5", "0x8009454f", "0x724c81ed"]
    assert [hex(v) for v in b.tolist()] == ["0xe220a839", "0x6e789e6a", "0x6c45d18", "0xf88bb8a8"]
    for seed in (1, 2**63, 2**64 - 1):
        a, b = permutations(seed, 1024)
        assert a.tolist() == [draw & 0xFFFFFFFF | 1 for draw in draws(seed, 1024)]
        assert b.tolist() == [draw >> 32 for draw in draws(seed, 1024)]
        fewer = permutations(seed, 100)
        np.testing.assert_array_equal(fewer[0], a[:100])
        np.testing.assert_array_equal(fewer[1], b[:100])
    assert [len(v) for v in permutations(5, 0)] == [0, 0]
