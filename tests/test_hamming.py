"""All pairs of fingerprints within a distance: by hand, against brute force in Python integers, on every backend."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup import hamming
from gpu_dedup.backend import Backend, host_backend
from gpu_dedup.errors import InputError, RecipeError, RunError
from gpu_dedup.kernels import collide_ref, hamming_cpu, hamming_ref, mix64
from gpu_dedup.pipeline.pool import Pool

BOTH = pytest.mark.parametrize("kernel", [hamming_ref, hamming_cpu], ids=["numpy", "numba"])
ALL = 2**64 - 1

# Ten fingerprints: an equal pair, bit 63, zero, all ones, and neighbours at 1 to 4 bits.
HAND = [
    0xF0E1D2C3B4A59687, 0xF0E1D2C3B4A59687, 0xF0E1D2C3B4A59686, 0x70E1D2C3B4859686, 0xE0E1D3C3B4B596A7,
    0, ALL, 1 << 63, (1 << 63) | 1, 0xF0E0D2C3B4A41687,
]  # fmt: skip
WITHIN = {
    0: {(0, 1)},
    1: {(0, 1), (0, 2), (1, 2), (5, 7), (7, 8)},
    2: {(0, 1), (0, 2), (1, 2), (2, 3), (5, 7), (5, 8), (7, 8)},
    3: {(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3), (0, 9), (1, 9), (5, 7), (5, 8), (7, 8)},
    4: {
        (0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3), (0, 4), (1, 4), (0, 9), (1, 9), (2, 9), (5, 7), (5, 8), (7, 8),
    },
}  # fmt: skip


def words(values: list[int]) -> np.ndarray:
    return np.array(values, np.uint64)


def brute(values: list[int], distance: int) -> list[tuple[int, int]]:
    """(higher, lower) by counting bits of Python integers."""
    return [
        (high, low)
        for high in range(len(values))
        for low in range(high)
        if (values[high] ^ values[low]).bit_count() <= distance
    ]


def found(values: list[int], distance: int, backend: Backend) -> list[tuple[int, int]]:
    near = hamming.join(words(values), distance, backend)
    hi, lo = near.pairs()
    assert near.count == len(hi)
    return list(zip(hi.tolist(), lo.tolist(), strict=True))


def crowd(rng: random.Random, centres: int, count: int, most: int) -> list[int]:
    """Fingerprints at 0 to `most` bits from a few centres; equal ones among them."""
    middle = [rng.getrandbits(64) for _ in range(centres)]
    out = []
    for _ in range(count):
        value = rng.choice(middle)
        for bit in rng.sample(range(64), rng.randint(0, most)):
            value ^= 1 << bit
        out.append(value)
    return out


# ------------------------------------------------------------------------------------------------------------- kernels


@BOTH
def test_distances_by_hand(kernel: ModuleType) -> None:
    values = words([0, ALL, 1 << 63, 0b1011])
    left, right = np.array([0, 0, 0, 1, 3, 2], np.int64), np.array([0, 1, 2, 2, 0, 3], np.int64)
    out = kernel.distances(values, left, right)
    assert out.dtype == np.int64
    assert out.tolist() == [0, 64, 1, 63, 3, 4]


@BOTH
def test_keys_are_the_mixer_of_the_masked_bits(kernel: ModuleType, pyrng: random.Random) -> None:
    values = [0, ALL, *(pyrng.getrandbits(64) for _ in range(20))]
    for mask in (0, ALL, 1 << 63, pyrng.getrandbits(64)):
        for start in (0, ALL, pyrng.getrandbits(64)):
            out = kernel.keys(words(values), mask, start)
            assert out.tolist() == [mix64.mix64((value & mask) + start) for value in values]


@BOTH
def test_near_pairs_of_buckets_by_hand(kernel: ModuleType) -> None:
    values = words([0, 0b111, 0b1, 0xFF, 0b11])
    members, starts = np.array([0, 2, 4, 1, 3], np.int64), np.array([0, 3, 5], np.int64)
    offsets = collide_ref.pair_offsets(starts, 9, 9)
    none = np.zeros(0, np.uint64)

    def pairs(first: int, last: int, earlier: np.ndarray, distance: int) -> list[tuple[int, int]]:
        high, low = kernel.near_pairs(values, members, starts, offsets, first, last, earlier, distance)
        return list(zip(high.tolist(), low.tolist(), strict=True))

    assert pairs(0, 5, none, 1) == [(2, 0), (4, 2)]
    assert pairs(0, 5, none, 2) == [(2, 0), (4, 0), (4, 2)]
    assert pairs(0, 5, none, 5) == [(2, 0), (4, 0), (4, 2), (3, 1)]
    assert pairs(2, 4, none, 2) == [(4, 0), (4, 2)]
    assert pairs(1, 1, none, 64) == []
    # 0 and 1 agree but for bit 0; 1 and 3 but for bit 1: each is out where a mask does not see that bit
    assert pairs(0, 3, words([0b110]), 2) == [(4, 0), (4, 2)]
    assert pairs(0, 3, words([0b110, 0b101]), 2) == [(4, 0)]


@BOTH
def test_kernels_refuse_what_leaves_the_arrays(kernel: ModuleType) -> None:
    values, one, two = words([1, 2]), np.zeros(1, np.int64), np.array([0, 2], np.int64)
    with pytest.raises(IndexError, match="row outside 0 to 1"):
        kernel.distances(values, two, two)
    with pytest.raises(ValueError, match="2 left rows but 1 right rows"):
        kernel.distances(values, two, one)
    members, starts, offsets = np.array([0, 1], np.int64), np.array([0, 2], np.int64), np.array([0, 0, 1], np.int64)
    none = np.zeros(0, np.uint64)
    with pytest.raises(IndexError, match="members 0 to 3 of 2"):
        kernel.near_pairs(values, members, starts, offsets, 0, 3, none, 1)
    with pytest.raises(IndexError, match="row outside"):
        kernel.near_pairs(values, members + 1, starts, offsets, 0, 2, none, 1)
    with pytest.raises(ValueError, match="distance 65"):
        kernel.near_pairs(values, members, starts, offsets, 0, 2, none, 65)
    with pytest.raises(ValueError, match="2 offsets and buckets up to 2 for 2 members"):
        kernel.near_pairs(values, members, starts, offsets[:2], 0, 2, none, 1)


@given(st.lists(st.integers(0, 2**12 - 1), max_size=40), st.integers(0, 12), st.lists(st.integers(0, 4095), max_size=3))
@settings(max_examples=40)
def test_near_pairs_are_the_same_on_both(values: list[int], distance: int, masks: list[int]) -> None:
    """Words of twelve bits in buckets of any kind; the definition against pairs by hand, and Numba against it."""
    members, starts = collide_ref.buckets(words([value % 5 for value in values]), np.array([0, len(values)], np.int64))
    offsets = collide_ref.pair_offsets(starts, 99, 99)
    expected = []
    for bucket in range(len(starts) - 1):
        inside = members[starts[bucket] : starts[bucket + 1]].tolist()
        for place, high in enumerate(inside):
            for low in inside[:place]:
                apart = values[high] ^ values[low]
                if apart.bit_count() <= distance and all(apart & mask for mask in masks):
                    expected.append((high, low))
    for kernel in (hamming_ref, hamming_cpu):
        high, low = kernel.near_pairs(words(values), members, starts, offsets, 0, len(members), words(masks), distance)
        assert list(zip(high.tolist(), low.tolist(), strict=True)) == expected


def test_pairs_are_compared_block_by_block(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    values = rng.integers(0, 64, 60, dtype=np.uint64)
    members, starts = np.arange(60), np.array([0, 25, 27, 60], np.int64)
    offsets = collide_ref.pair_offsets(starts, 99, 99)
    arguments = values, members, starts, offsets, 3, 57, words([3]), 2
    whole = hamming_ref.near_pairs(*arguments)
    monkeypatch.setattr(hamming_ref, "PAIR_BLOCK", 7)
    for left, right in zip(whole, hamming_ref.near_pairs(*arguments), strict=True):
        np.testing.assert_array_equal(left, right)


# ------------------------------------------------------------------------------------------------------------ the join


@pytest.mark.parametrize("distance", WITHIN)
def test_by_hand(distance: int, backend: Backend) -> None:
    """Equal fingerprints are pairs, bit 63 is a bit as any other, and each pair comes once."""
    assert brute(HAND, distance) == sorted((high, low) for low, high in WITHIN[distance])
    assert found(HAND, distance, backend) == brute(HAND, distance)


@pytest.mark.parametrize("blocks", range(1, 12))
def test_every_layout_of_blocks_gives_the_same_pairs(
    blocks: int, monkeypatch: pytest.MonkeyPatch, pyrng: random.Random
) -> None:
    """The number of blocks is a matter of cost alone."""
    values = [*HAND, *crowd(pyrng, 6, 120, 5)]
    real = hamming.plan

    def forced(n: int, distance: int) -> hamming.Plan:
        if blocks < distance or distance == 0 or n < 2:
            return real(n, distance)
        parts = hamming.block_masks(blocks)
        masks = tuple(ALL - sum(out) for out in itertools.combinations(parts, distance))
        return hamming.Plan(n, distance, blocks, 0, masks, 0, 0)

    monkeypatch.setattr(hamming, "plan", forced)
    for distance in range(9):
        if math.comb(blocks, distance) <= 500:
            assert found(values, distance, host_backend("numba")) == brute(values, distance)


def test_crowds_against_brute_force(backend: Backend, pyrng: random.Random) -> None:
    for centres, count, most in ((1, 60, 4), (3, 200, 6), (40, 300, 9)):
        values = crowd(pyrng, centres, count, most)
        for distance in range(9):
            assert found(values, distance, backend) == brute(values, distance)


@given(st.lists(st.integers(0, ALL) | st.integers(0, 255) | st.just(1 << 63), max_size=25), st.integers(0, 8))
@settings(max_examples=60)
def test_anything_against_brute_force(values: list[int], distance: int) -> None:
    for name in ("numpy", "numba"):
        assert found(values, distance, host_backend(name)) == brute(values, distance)


def test_slices_and_threads_change_nothing(monkeypatch: pytest.MonkeyPatch, pyrng: random.Random) -> None:
    values = words(crowd(pyrng, 5, 400, 5))
    whole = hamming.join(values, 4, host_backend("numba"))
    monkeypatch.setattr(hamming, "SLICE_PAIRS", 3)
    done: list[int] = []
    with Pool(3) as pool:
        other = hamming.join(values, 4, host_backend("numba"), pool.ordered, done.append)
    assert len(done) == other.stats.tables == hamming.plan(whole.stats.different, 4).tables
    for name in ("leader", "hi", "lo", "stats"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(other, name))


def test_equal_fingerprints_cost_no_pairs(backend: Backend) -> None:
    """20,000 of one fingerprint and one neighbour: 200 million pairs, of which one is looked at."""
    values = np.full(20_001, 7, np.uint64)
    values[5] = 3
    near = hamming.join(values, 3, backend)
    assert (near.hi.tolist(), near.lo.tolist()) == ([5], [0])
    assert near.leader.tolist() == [0] * 5 + [5] + [0] * 19_995
    assert near.count == 20_000 * 19_999 // 2 + 20_000
    assert (near.stats.different, near.stats.equal, near.stats.compared) == (2, 19_999, 1)


def test_nothing_and_one() -> None:
    for values in ([], [5]):
        near = hamming.join(words(values), 3, host_backend("numpy"))
        assert (near.count, near.stats.tables, len(near.hi)) == (0, 0, 0)


# ------------------------------------------------------------------------------------------------------- what it costs


def test_blocks_share_out_all_bits() -> None:
    for blocks in range(1, 65):
        masks = hamming.block_masks(blocks)
        assert len(masks) == blocks
        assert sum(masks) == ALL
        sizes = {mask.bit_count() for mask in masks}
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("n", "distance", "blocks", "tables", "key_bits"),
    [
        # 2 blocks of 32: one agrees. 4 of 16 for 3 bits, and 5 of 12 or 13 where keys of 16 bits are too few.
        (10**6, 1, 2, 2, 32), (10**6, 3, 4, 4, 16), (10**7, 3, 5, 10, 25), (10**7, 4, 6, 15, 20), (20, 4, 4, 1, 0),
    ],
)  # fmt: skip
def test_plan_by_hand(n: int, distance: int, blocks: int, tables: int, key_bits: int) -> None:
    chosen = hamming.plan(n, distance)
    assert (chosen.blocks, chosen.tables, chosen.key_bits) == (blocks, tables, key_bits)
    assert all(mask.bit_count() >= key_bits for mask in chosen.masks)
    assert len(set(chosen.masks)) == tables


@pytest.mark.parametrize("distance", range(1, 9))
def test_work_stays_linear(distance: int) -> None:
    """With keys of log2 n bits chance meetings are under n / 2 in a table; the plan is never dearer than that."""
    for n in (10**5, 10**6, 10**7, 10**8):
        chosen = hamming.plan(n, distance)
        exact = sum(Fraction(n * (n - 1), 2) / 2 ** mask.bit_count() for mask in chosen.masks)
        assert chosen.meetings == math.ceil(exact)
        assert chosen.compared == chosen.meetings + hamming.VALUE_COST * chosen.tables * n
        # The d widest of b blocks leave at least log2 n bits.
        enough = next(b for b in range(distance + 1, 65) if 64 - distance * -(-64 // b) >= math.log2(n))
        tables = math.comb(enough, distance)
        assert tables > hamming.MAX_TABLES or chosen.compared <= (hamming.VALUE_COST + 0.5) * tables * n
    if distance <= 4:
        assert hamming.plan(10**7, distance).compared <= 520 * 10**7  # seconds of a core


def test_the_work_is_what_the_plan_says(rng: np.random.Generator) -> None:
    """Random fingerprints meet as often as the plan expects; six standard deviations of a Poisson number."""
    n = 60_000
    values = rng.integers(0, 1 << 64, n, dtype=np.uint64)
    for distance in (2, 3, 4):
        chosen = hamming.plan(n, distance)
        met = hamming.join(values, distance, host_backend("numba")).stats.compared
        assert abs(met - chosen.meetings) < 6 * math.sqrt(chosen.meetings) + 1


def test_refusals_name_the_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = host_backend("numpy")
    with pytest.raises(RecipeError, match="distance 9 is outside 0 to 8"):
        hamming.join(words([1]), 9, backend)
    with pytest.raises(RunError, match=r"2 fingerprints need 0 MiB.*--memory"):
        hamming.join(words([1, 2]), 3, backend, memory=100)
    line = words(list(range(64)))
    monkeypatch.setattr(hamming, "BYTES_PER_VALUE", 1)
    with pytest.raises(RunError, match=r"more than 5 pairs are near.*lower --distance"):
        hamming.join(line, 3, backend, memory=5 * hamming.BYTES_PER_PAIR)
    monkeypatch.setattr(hamming, "MOST_COMPARED", 1000)
    with pytest.raises(RunError, match=r"64 different fingerprints costs some .* comparisons"):
        hamming.join(line, 3, backend)
    monkeypatch.setattr(hamming, "MOST_COMPARED", 4000)
    monkeypatch.setattr(hamming, "VALUE_COST", 1)
    crowded = words([i << 8 for i in range(100)])  # far fewer bits than random ones have
    assert hamming.plan(100, 1).compared < 4000 // 2
    with pytest.raises(RunError, match=r"has 4,950 pairs to compare \(the largest bucket holds 100\), over 2,000"):
        hamming.join(crowded, 1, backend)


# ------------------------------------------------------------------------------------------------------------- queries


def test_query_against_brute_force(backend: Backend, pyrng: random.Random) -> None:
    values = [*HAND, *crowd(pyrng, 8, 150, 6)]
    asked = [*HAND[:4], *crowd(pyrng, 2, 10, 3), *values[60:70], 1 << 63]
    for distance in range(9):
        index = hamming.HammingIndex(words(values), distance, backend)
        query, row, apart = index.query(words(asked))
        expected = [
            (i, j, (one ^ other).bit_count())
            for i, one in enumerate(asked)
            for j, other in enumerate(values)
            if (one ^ other).bit_count() <= distance
        ]
        assert list(zip(query.tolist(), row.tolist(), apart.tolist(), strict=True)) == expected
        single = index.query(words(asked[:1]))
        assert [x.tolist() for x in single] == [[entry[i] for entry in expected if entry[0] == 0] for i in range(3)]


def test_what_is_no_fingerprint_or_distance() -> None:
    backend = host_backend("numba")
    for values in (["a"], [-1], [1 << 64], [1.5], None, np.zeros((2, 2), np.uint64), np.zeros(2, np.int64)):
        with pytest.raises(InputError, match="fingerprints are uint64"):
            hamming.HammingIndex(values, 3, backend)  # type: ignore[arg-type]
    index = hamming.HammingIndex([7, (1 << 64) - 1, 6], 3, backend)  # type: ignore[arg-type]
    assert [x.tolist() for x in index.query([7])] == [[0, 0], [0, 2], [0, 1]]  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"uint64\[n\], not float64"):
        index.query(np.zeros(3))  # type: ignore[arg-type]
    for distance in ("3", 3.0, True, None):
        with pytest.raises(RecipeError, match="give a whole number"):
            hamming.HammingIndex([1], distance, backend)  # type: ignore[arg-type]


def test_query_of_nothing_and_in_parts(monkeypatch: pytest.MonkeyPatch, pyrng: random.Random) -> None:
    backend = host_backend("numba")
    values = words(crowd(pyrng, 2, 90, 4))
    for index in (hamming.HammingIndex(values[:0], 3, backend), hamming.HammingIndex(values, 3, backend)):
        assert [len(x) for x in index.query(words([]))] == [0, 0, 0]
    assert [len(x) for x in hamming.HammingIndex(values[:0], 3, backend).query(values)] == [0, 0, 0]
    index = hamming.HammingIndex(values, 3, backend)
    whole = index.query(values)
    monkeypatch.setattr(hamming, "SLICE_PAIRS", 5)
    for left, right in zip(whole, index.query(values), strict=True):
        np.testing.assert_array_equal(left, right)


# ------------------------------------------------------------------------------------------------------------- formula


def test_chances_by_hand() -> None:
    assert hamming.bit_chance(1.0) == 0
    assert hamming.bit_chance(0.0) == pytest.approx(0.5)
    assert hamming.bit_chance(1 / 3) == pytest.approx(1 / 3)  # cos 60 degrees = 1/2 = 2 s / (1 + s)
    assert hamming.bit_chance(0.5, 0.5) == pytest.approx(0.25)  # a half of a set: cos 45 degrees
    assert hamming.chance_within(1.0, 0) == 1
    assert hamming.chance_within(0.0, 64) == pytest.approx(1)
    assert hamming.chance_within(1 / 3, 0) == pytest.approx((2 / 3) ** 64)
    rising = [hamming.chance_within(s / 100, 3) for s in range(101)]
    assert rising == sorted(rising)


def test_chances_measured(rng: np.random.Generator) -> None:
    """Sets of 400 hashes at three similarities: the share of pairs within each distance is as foretold."""
    backend = host_backend("numba")
    trials, size = 1500, 400
    for swapped in (20, 60):
        shared = size - swapped
        hashes = rng.integers(0, 1 << 64, (trials, size + swapped), dtype=np.uint64)
        left = np.ascontiguousarray(hashes[:, :size]).reshape(-1)
        right = np.ascontiguousarray(hashes[:, swapped:]).reshape(-1)
        offsets = np.arange(trials + 1, dtype=np.int64) * size
        prints = np.concatenate([backend.simhash(left, offsets), backend.simhash(right, offsets)])
        apart = backend.hamming_distances(prints, np.arange(trials), np.arange(trials, 2 * trials))
        similarity = shared / (size + swapped)
        for distance in (3, 5, 8):
            chance = hamming.chance_within(similarity, distance)
            seen = int((apart <= distance).sum())
            spread = math.sqrt(trials * chance * (1 - chance))
            assert abs(seen - trials * chance) < 5 * spread + 0.02 * trials
