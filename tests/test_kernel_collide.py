"""Buckets, their pairs and equal slots: hand-written answers, dictionaries as the oracle, NumPy = Numba."""

from __future__ import annotations

import itertools
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_dedup.kernels import collide_cpu, collide_ref

GOLDEN = 0x9E3779B97F4A7C15

both = pytest.mark.parametrize("kernel", [collide_ref, collide_cpu], ids=["ref", "cpu"])


def u64(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def buckets_of(kernel: ModuleType, keys: np.ndarray, segments: np.ndarray | None = None) -> list[list[int]]:
    members, starts = kernel.buckets(keys, i64(0, len(keys)) if segments is None else segments)
    assert members.dtype == starts.dtype == np.int64
    assert starts[0] == 0
    assert starts[-1] == len(members)
    return [members[a:b].tolist() for a, b in itertools.pairwise(starts)]


def buckets_by_dict(keys: list[int], segments: list[int]) -> list[list[int]]:
    found: dict[tuple[int, int], list[int]] = {}
    for segment, (a, b) in enumerate(itertools.pairwise(segments)):
        for place in range(a, b):
            found.setdefault((segment, keys[place]), []).append(place)
    return sorted(bucket for bucket in found.values() if len(bucket) > 1)


def pairs_by_hand(bucket: list[int], cap: int, lowest: int) -> list[tuple[int, int]]:
    if len(bucket) <= cap:
        return [(bucket[i], bucket[j]) for i in range(len(bucket)) for j in range(i)]
    return [(bucket[i], bucket[j]) for i in range(len(bucket)) for j in range(min(i, lowest))]


@both
def test_buckets_by_hand(kernel: ModuleType) -> None:
    assert buckets_of(kernel, u64(5, 7, 5, 7, 7, 1)) == [[0, 2], [1, 3, 4]]
    assert buckets_of(kernel, u64(9, 9, 1, 1)) == [[0, 1], [2, 3]]  # ascending by member, not by key
    assert buckets_of(kernel, u64(1, 2, 3)) == []
    assert buckets_of(kernel, u64()) == []
    assert buckets_of(kernel, u64(4)) == []
    assert buckets_of(kernel, u64(0, 2**64 - 1, 0, 2**64 - 1, 2**63)) == [[0, 2], [1, 3]]


@both
def test_a_bucket_ends_at_its_segment(kernel: ModuleType) -> None:
    keys = u64(5, 5, 5, 5, 5, 7, 7)
    assert buckets_of(kernel, keys, i64(0, 2, 3, 3, 7)) == [[0, 1], [3, 4], [5, 6]]
    assert buckets_of(kernel, keys, i64(0, 1, 2, 3, 4, 5, 6, 7)) == []
    assert buckets_of(kernel, u64(), i64(0)) == []
    assert buckets_of(kernel, u64(), i64(0, 0, 0)) == []


@both
@pytest.mark.parametrize("segments", [[0, 2], [1, 3], [0, 2, 1, 3], []])
def test_segments_that_do_not_cut_the_keys_are_refused(kernel: ModuleType, segments: list[int]) -> None:
    with pytest.raises(ValueError, match="segments must rise from 0 to 3"):
        kernel.buckets(u64(1, 2, 3), i64(*segments))


def awkward_keys(name: str, rng: np.random.Generator) -> np.ndarray:
    n = 70_001
    if name == "random with copies":
        keys = rng.integers(0, 2**64, n, dtype=np.uint64)
        keys[rng.integers(0, n, n // 5)] = keys[rng.integers(0, n, n // 5)]
        return keys
    if name == "all equal":
        return np.full(n, 12345, np.uint64)
    if name == "small numbers":
        return rng.integers(0, n, n).astype(np.uint64)
    if name == "high bits alone":
        return rng.integers(0, 2**10, n).astype(np.uint64) << np.uint64(54)
    if name == "one giant among lone ones":
        keys = rng.integers(0, 2**64, n, dtype=np.uint64)
        keys[::2] = np.uint64(7)
        return keys
    assert name == "one piece of the partition"  # times GOLDEN they all begin with the same 20 bits
    inverse = pow(GOLDEN, -1, 2**64)
    return rng.integers(0, 2**44, 3000).astype(np.uint64) * np.uint64(inverse)


KEY_SETS = [
    "random with copies",
    "all equal",
    "small numbers",
    "high bits alone",
    "one giant among lone ones",
    "one piece of the partition",
]


@both
@pytest.mark.parametrize("name", KEY_SETS)
def test_many_keys_against_a_dictionary(kernel: ModuleType, name: str, rng: np.random.Generator) -> None:
    keys = awkward_keys(name, rng)
    n = len(keys)
    assert buckets_of(kernel, keys) == buckets_by_dict(keys.tolist(), [0, n])
    # Small and large segments in one call: the scratch of one must not leak into the next.
    cuts = [0, 1, 2, 66, 66, min(2115, n), min(9000, n), n]
    assert buckets_of(kernel, keys, i64(*cuts)) == buckets_by_dict(keys.tolist(), cuts)


@given(st.lists(st.integers(0, 6), max_size=60), st.lists(st.integers(0, 60), max_size=4))
def test_few_keys_against_a_dictionary(keys: list[int], cuts: list[int]) -> None:
    segments = [0, *sorted(min(cut, len(keys)) for cut in cuts), len(keys)]
    expected = buckets_by_dict(keys, segments)
    for kernel in (collide_ref, collide_cpu):
        assert buckets_of(kernel, u64(*keys), i64(*segments)) == expected


@both
def test_pairs_by_hand(kernel: ModuleType) -> None:
    members, starts = i64(2, 3, 5, 1, 4, 6, 7), i64(0, 3, 7)
    offsets = kernel.pair_offsets(starts, 3, 1)
    # The bucket of three gives all pairs; the one of four, over the cap, pairs each with its lowest.
    assert offsets.tolist() == [0, 0, 1, 3, 3, 4, 5, 6]
    assert offsets.dtype == np.int64
    high, low = kernel.bucket_pairs(members, starts, offsets, 0, 7)
    assert high.dtype == low.dtype == np.int64
    assert list(zip(high.tolist(), low.tolist(), strict=True)) == [(3, 2), (5, 2), (5, 3), (4, 1), (6, 1), (7, 1)]
    high, low = kernel.bucket_pairs(members, starts, offsets, 2, 5)
    assert list(zip(high.tolist(), low.tolist(), strict=True)) == [(5, 2), (5, 3), (4, 1)]


@both
def test_no_buckets_no_pairs(kernel: ModuleType) -> None:
    offsets = kernel.pair_offsets(i64(0), 256, 32)
    assert offsets.tolist() == [0]
    assert [len(part) for part in kernel.bucket_pairs(i64(), i64(0), offsets, 0, 0)] == [0, 0]


@both
@pytest.mark.parametrize(("first", "last"), [(-1, 1), (0, 3), (2, 1)])
def test_members_outside_are_refused(kernel: ModuleType, first: int, last: int) -> None:
    offsets = kernel.pair_offsets(i64(0, 2), 256, 32)
    with pytest.raises(IndexError):
        kernel.bucket_pairs(i64(0, 1), i64(0, 2), offsets, first, last)


@both
@pytest.mark.parametrize(("size", "pairs"), [(256, 256 * 255 // 2), (257, 31 * 32 // 2 + 225 * 32), (5000, 159_472)])
def test_the_cap_makes_pairs_linear(kernel: ModuleType, size: int, pairs: int) -> None:
    offsets = kernel.pair_offsets(i64(0, size), 256, 32)
    assert offsets[-1] == pairs  # 12,497,500 for all pairs of 5,000


@given(
    st.lists(st.integers(2, 9), min_size=1, max_size=8),
    st.integers(2, 8),
    st.integers(1, 9),
    st.lists(st.integers(0, 80), max_size=5),
    st.randoms(use_true_random=False),
)
def test_pairs_against_loops_however_they_are_sliced(
    sizes: list[int], cap: int, lowest: int, cuts: list[int], random: object
) -> None:
    total = sum(sizes)
    ranks = list(range(3 * total))
    random.shuffle(ranks)  # type: ignore[attr-defined]
    ends = np.cumsum([0, *sizes]).tolist()
    every = [sorted(ranks[a:b]) for a, b in itertools.pairwise(ends)]
    expected = [pair for bucket in every for pair in pairs_by_hand(bucket, cap, lowest)]
    members, starts = i64(*[m for bucket in every for m in bucket]), i64(*ends)
    bounds = [0, *sorted(min(cut, total) for cut in cuts), total]
    for kernel in (collide_ref, collide_cpu):
        offsets = kernel.pair_offsets(starts, cap, lowest)
        got: list[tuple[int, int]] = []
        for first, last in itertools.pairwise(bounds):
            high, low = kernel.bucket_pairs(members, starts, offsets, first, last)
            assert len(high) == len(low) == offsets[last] - offsets[first]
            got += zip(high.tolist(), low.tolist(), strict=True)
        assert got == expected
        assert len(set(got)) == len(got)
        assert all(high > low for high, low in got)


@both
def test_agreements_by_hand(kernel: ModuleType) -> None:
    signatures = np.array([[1, 2, 3], [1, 9, 3], [0, 0, 0], [2**32 - 1, 2, 3]], np.uint32)
    same = kernel.agreements(signatures, i64(0, 0, 1, 0, 3, 2), i64(1, 2, 1, 3, 3, 2))
    assert same.tolist() == [2, 0, 3, 2, 3, 3]
    assert same.dtype == np.int64
    assert kernel.agreements(signatures, i64(), i64()).tolist() == []


@both
@pytest.mark.parametrize("k", [1, 7, 15, 16, 17, 63, 64, 65, 119, 128, 1024])
def test_agreements_of_any_width(kernel: ModuleType, k: int, rng: np.random.Generator) -> None:
    signatures = rng.integers(0, 3, (40, k)).astype(np.uint32) * np.uint32(0x7FFFFFFF)
    signatures.flags.writeable = False  # as a mapped file gives them
    left, right = rng.integers(0, 40, 300), rng.integers(0, 40, 300)
    table = signatures.tolist()
    expected = [
        sum(x == y for x, y in zip(table[a], table[b], strict=True))
        for a, b in zip(left.tolist(), right.tolist(), strict=True)
    ]
    assert kernel.agreements(signatures, left, right).tolist() == expected


@both
def test_agreements_over_a_block(kernel: ModuleType, rng: np.random.Generator) -> None:
    signatures = rng.integers(0, 2, (50, 3)).astype(np.uint32)
    left, right = rng.integers(0, 50, 70_000), rng.integers(0, 50, 70_000)  # more than one block of the reference
    assert np.array_equal(
        kernel.agreements(signatures, left, right), (signatures[left] == signatures[right]).sum(axis=1)
    )


@both
def test_rows_outside_are_refused(kernel: ModuleType) -> None:
    signatures = np.zeros((3, 2), np.uint32)
    for left, right in ((i64(3), i64(0)), (i64(0), i64(-1))):
        with pytest.raises(IndexError, match="outside 0 to 2"):
            kernel.agreements(signatures, left, right)
    with pytest.raises(ValueError, match="2 left rows but 1 right"):
        kernel.agreements(signatures, i64(0, 1), i64(0))
    with pytest.raises(IndexError):
        kernel.agreements(np.zeros((0, 2), np.uint32), i64(0), i64(0))


def test_each_kernel_is_compiled_once_for_arrays_of_any_origin(rng: np.random.Generator) -> None:
    signatures = rng.integers(0, 9, (10, 4)).astype(np.uint32)
    frozen = np.frombuffer(signatures.tobytes(), np.uint32).reshape(10, 4)
    columns = np.asfortranarray(signatures)
    keys = signatures[:, 0].astype(np.uint64)
    strided = np.repeat(keys, 2)[::2]
    results = [collide_cpu.agreements(s, i64(0, 1), i64(2, 3)).tolist() for s in (signatures, frozen, columns)]
    assert results[0] == results[1] == results[2]
    assert buckets_of(collide_cpu, keys) == buckets_of(collide_cpu, strided)
    for name in ("_agreements", "_lowest", "_bucket_sizes", "_bucket_fill", "_pair_offsets", "_bucket_pairs"):
        assert len(getattr(collide_cpu, name).signatures) <= 1, name
