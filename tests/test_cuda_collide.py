"""CUDA kernels of collisions, verification and shingle sets against the definition, bit for bit.

Each body runs on the stand-in for CuPy, where the kernels themselves are executed on the CPU, and on CuPy where there
is a GPU.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from cuda_fixtures import need

from gpu_dedup.kernels import collide_ref, jaccard_ref, shingle_ref, sweep_ref


def module(name: str):
    """A launcher, bound to the CuPy of this test."""
    return importlib.import_module(f"gpu_dedup.kernels.{name}_cuda")


def same(found, wanted):
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert np.array_equal(found, wanted)


# ------------------------------------------------------------------------------------------------------- equal slots


@pytest.mark.parametrize("slots", [1, 17, 31, 32, 119, 128, 129, 260, 1000])
def test_agreements(device_cupy, rng, slots):
    signatures = rng.integers(0, 3, (41, slots), dtype=np.uint32)
    signatures[7] = signatures[3] = 0xFFFFFFFF
    left = np.sort(rng.integers(0, 41, 150))
    right = rng.integers(0, 41, 150)
    for pairs in (0, 1, 8, 9, 63, 64, 65, 150):
        arrays = [device_cupy.asarray(np.ascontiguousarray(a)) for a in (signatures, left[:pairs], right[:pairs])]
        same(
            module("collide").agreements(*arrays).get(), collide_ref.agreements(signatures, left[:pairs], right[:pairs])
        )


def test_agreements_by_hand(device_cupy):
    signatures = device_cupy.asarray(np.array([[1, 2, 3], [1, 9, 3], [7, 7, 7]], np.uint32))
    left, right = (device_cupy.asarray(np.array(v, np.int64)) for v in ([1, 2, 2, 0], [0, 0, 2, 1]))
    assert module("collide").agreements(signatures, left, right).get().tolist() == [2, 0, 3, 2]


def test_sides_of_unequal_length_are_refused(device_cupy):
    one, two = device_cupy.zeros((1,), np.int64), device_cupy.zeros((2,), np.int64)
    with pytest.raises(ValueError, match="1 left rows but 2 right rows"):
        module("collide").agreements(device_cupy.zeros((1, 4), np.uint32), one, two)
    with pytest.raises(ValueError, match="1 sets on the left but 2 on the right"):
        module("jaccard").jaccard(device_cupy.zeros((1,), np.uint64), two, one, two)


# ----------------------------------------------------------------------------------------------------------- buckets

KEYS = {
    "none": np.zeros(0, np.uint64),
    "one": np.array([5], np.uint64),
    "all equal": np.full(700, 0xFFFFFFFFFFFFFFFF, np.uint64),
    "all different": np.arange(700, dtype=np.uint64)[::-1].copy(),
    "extremes": np.array(
        [0, 0xFFFFFFFFFFFFFFFF, 0x8000000000000000, 0, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF], np.uint64
    ),
    "low half only": np.array([1, 1 << 32, 1, (1 << 32) + 1, 1 << 32], np.uint64),
}


def check_buckets(cupy, keys, segments):
    collide = module("collide")
    wanted = collide_ref.buckets(keys, segments)
    members, starts = collide.buckets(cupy.asarray(keys), segments)
    same(members.get(), wanted[0])
    same(starts.get(), wanted[1])
    total = len(wanted[0])
    for cap, lowest in ((2, 1), (4, 3), (256, 32)):
        offsets = collide_ref.pair_offsets(wanted[1], cap, lowest)
        offsets_d, pairs = collide.pair_offsets(starts, total, cap, lowest)
        same(offsets_d.get(), offsets)
        assert pairs == offsets[-1]
        for first, last in {(0, total), (total // 3, 2 * total // 3), (total, total)}:
            base = int(offsets[first])
            made = collide.bucket_pairs(members, starts, offsets_d, first, last, base, int(offsets[last]) - base)
            for found, want in zip(made, collide_ref.bucket_pairs(*wanted, offsets, first, last), strict=True):
                same(found.get(), want)


@pytest.mark.parametrize("name", KEYS)
def test_buckets_of_awkward_keys(device_cupy, name):
    check_buckets(device_cupy, KEYS[name], np.array([0, len(KEYS[name])], np.int64))


@pytest.mark.parametrize("seed", range(3))
def test_buckets_in_segments(device_cupy, rng, seed):
    keys = rng.integers(0, 1 << 62, 9, dtype=np.uint64)[rng.integers(0, 9, 900)]
    inner = np.sort(rng.integers(0, 901, 6))
    for segments in ([0, 900], [0, *inner, 900], [0, 0, 0, 450, 450, 900, 900], list(range(901))):
        check_buckets(device_cupy, keys, np.array(segments, np.int64))


def test_buckets_by_hand(device_cupy):
    keys = np.array([9, 4, 9, 1, 4, 9, 2], np.uint64)
    members, starts = module("collide").buckets(device_cupy.asarray(keys), np.array([0, 7], np.int64))
    assert members.get().tolist() == [0, 2, 5, 1, 4]
    assert starts.get().tolist() == [0, 3, 5]


def test_pairs_far_beyond_32_bits(device_cupy):
    """Pair numbers grow with the square of a bucket: here they begin at 2**33, and no list is longer for it."""
    collide = module("collide")
    members, starts = np.array([3, 5, 8, 9, 20, 21], np.int64), np.array([0, 4, 6], np.int64)
    offsets = collide_ref.pair_offsets(starts, 9, 9)
    far = offsets + (1 << 33)
    arrays = [device_cupy.asarray(a) for a in (members, starts, far)]
    high, low = collide.bucket_pairs(*arrays, 1, 6, int(far[1]), int(far[6] - far[1]))
    assert list(zip(high.get().tolist(), low.get().tolist(), strict=True)) == [
        (5, 3), (8, 3), (8, 5), (9, 3), (9, 5), (9, 8), (21, 20)
    ]  # fmt: skip


def test_ties_in_any_order(standin, rng):
    """CuPy promises no order of equal keys; the stand-in gives another one for each seed."""
    cupy = importlib.import_module("cupy")
    keys = rng.integers(0, 5, 400, dtype=np.uint64)
    for seed in range(6):
        standin.reset(seed=seed)
        check_buckets(cupy, keys, np.array([0, 150, 400], np.int64))


def test_a_wrong_sort_is_noticed(standin, rng):
    cupy = importlib.import_module("cupy")
    keys = cupy.asarray(rng.integers(0, 1 << 40, 300, dtype=np.uint64))
    standin.break_sort = True
    with pytest.raises(MemoryError, match="sorted 300 keys wrongly"):
        module("collide").buckets(keys, np.array([0, 300], np.int64))


def test_a_wrong_second_sort_is_noticed(standin, monkeypatch):
    cupy = importlib.import_module("cupy")
    collide = module("collide")
    right = collide.group

    def then_break(keys):
        made = right(keys)
        standin.break_sort = True
        return made

    monkeypatch.setattr(collide, "group", then_break)
    with pytest.raises(MemoryError, match="sorted 4 keys wrongly"):
        collide.buckets(cupy.asarray(np.array([1, 1, 2, 2], np.uint64)), np.array([0, 4], np.int64))


def test_a_wrong_sum_is_noticed(standin):
    cupy = importlib.import_module("cupy")
    standin.break_scan = True
    with pytest.raises(RuntimeError, match="wrong sums"):
        module("collide").buckets(cupy.asarray(np.arange(9, dtype=np.uint64)), np.array([0, 9], np.int64))


def test_an_order_with_a_position_twice_is_noticed(standin, emulated):
    """The report of key_runs: a list that is in order, but no permutation, has another sum."""
    cupy = importlib.import_module("cupy")
    launch = importlib.import_module("gpu_dedup.kernels.cuda").launch
    keys = cupy.asarray(np.array([5, 5, 5, 8], np.uint64))
    for order, wrong, total in (
        ([1, 0, 2, 3], 0, 6),
        ([1, 1, 2, 3], 0, 7),
        ([1, 0, 9, 3], 2, 13),
        ([3, 0, 1, 2], 1, 6),
    ):
        report = cupy.zeros((2,), np.uint32)
        order_d = cupy.asarray(np.array(order, np.int64))
        launch("ranks", "key_runs", 4, (keys, order_d, np.int64(4), cupy.empty((4,), np.int64), report))
        assert report.get().tolist() == [wrong, total]


# ----------------------------------------------------------------------------------------------------------- Jaccard


def sets_of(lists):
    offsets = np.zeros(len(lists) + 1, np.int64)
    offsets[1:] = np.cumsum([len(v) for v in lists])
    parts = [np.array(sorted(v), np.uint64) for v in lists]
    return np.concatenate([*parts, np.zeros(0, np.uint64)]), offsets


def check_jaccard(cupy, lists, left, right):
    items, offsets = sets_of(lists)
    left, right = np.array(left, np.int64), np.array(right, np.int64)
    shared = module("jaccard").jaccard(*(cupy.asarray(a) for a in (items, offsets, left, right))).get()
    wanted = jaccard_ref.jaccard(items, offsets, left, right)
    assert shared.tolist() == wanted[0].tolist()
    assert shared.tolist() == [len(set(lists[a]) & set(lists[b])) for a, b in zip(left, right, strict=True)]


def test_jaccard_of_small_sets(device_cupy):
    """Every pair of sets that hold the edges of the number range, one of which marks a free place in the table."""
    top = (1 << 64) - 1
    lists = [[], [0], [top], [0, top], [1, 2, 3], [0, 1, 2, 3, top], [top - 1], list(range(40)), [1 << 63, top]]
    pairs = [(a, b) for a in range(len(lists)) for b in range(len(lists))]
    check_jaccard(device_cupy, lists, *zip(*pairs, strict=True))


def test_jaccard_without_pairs(device_cupy):
    check_jaccard(device_cupy, [[1], [2]], [], [])
    check_jaccard(device_cupy, [[], []], [0, 1], [1, 0])


@pytest.mark.parametrize("size", [1023, 1024, 1025, 2047, 2048, 2049, 4096])
def test_jaccard_around_the_edges_of_tiles(device_cupy, rng, size):
    """Equal sets put every equal pair of items side by side in the merged order, so that cuts fall between them."""
    base = rng.choice(1 << 20, 2 * size, replace=False).tolist()
    lists = [base[:size], base[:size], base[size // 2 : size // 2 + size], base[size:], base[:1], base]
    pairs = [(a, b) for a in range(6) for b in range(a + 1)]
    check_jaccard(device_cupy, lists, *zip(*pairs, strict=True))


def test_jaccard_of_one_item_against_many_tiles(device_cupy):
    many = list(range(0, 30_000, 2))
    lists = [many, [0], [29_998], [15_001], [15_000], list(range(1, 30_000, 2)), [*range(0, 8), 29_998]]
    check_jaccard(device_cupy, lists, [0] * 7 + list(range(7)), list(range(7)) + [0] * 7)


def test_jaccard_of_items_with_one_hash_bucket(device_cupy):
    """Items that differ only in bits which the multiplication takes out of the table's index: long probe chains."""
    inverse = pow(0x9E3779B97F4A7C15, -1, 1 << 64)
    crowded = [(i * inverse) % (1 << 64) for i in range(600)]
    lists = [crowded[:400], crowded[200:], crowded]
    check_jaccard(device_cupy, lists, [0, 1, 2, 2], [1, 0, 0, 2])


# ------------------------------------------------------------------------------------------------------------- rules


def random_pairs(rng, members, count):
    left = rng.integers(1, members, count)
    right = rng.integers(0, left)
    pairs = np.unique(np.stack([left, right], 1), axis=0)
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])


@pytest.mark.parametrize("rule", [sweep_ref.LOWEST, sweep_ref.BEST, sweep_ref.PARTNER])
@pytest.mark.parametrize(("ppm", "limit"), [(300_000, 1 << 62), (700_000, 1 << 62), (300_000, 9)])
def test_the_rule_over_known_numbers_is_the_lazy_rule(rng, rule, ppm, limit):
    """sweep_cuda.replay needs no device: given all similarities it does what the definition does pair by pair."""
    sweep_cuda = importlib.import_module("gpu_dedup.kernels.sweep_cuda")
    for _ in range(4):
        lists = [set(rng.integers(0, 14, rng.integers(0, 14)).tolist()) for _ in range(30)]
        items, offsets = sets_of(lists)
        left, right = random_pairs(rng, 30, 160)
        nodes = rng.permutation(40)[:30].astype(np.int64)
        shared, union = jaccard_ref.jaccard(items, offsets, left, right)
        state = [[np.full(40, -1, np.int64) for _ in range(3)] for _ in range(2)]
        lazy = sweep_ref.sweep(items, offsets, left, right, ppm, limit, rule, nodes, *state[0])
        eager = sweep_cuda.replay(shared, union, offsets, left, right, ppm, limit, rule, nodes, *state[1])
        assert eager == lazy
        for one, other in zip(*state, strict=True):
            same(other, one)
        parents = [np.arange(40, dtype=np.int64) for _ in range(2)]
        lazy_join = sweep_ref.join(items, offsets, left, right, ppm, limit, nodes, parents[0])
        eager_join = sweep_cuda.replay_join(shared, union, offsets, left, right, ppm, limit, nodes, parents[1])
        assert eager_join[3] == lazy_join[3]
        for one, other in zip(lazy_join[:3], eager_join[:3], strict=True):
            same(other, one)
        roots = [[_root(p, i) for i in range(40)] for p in parents]
        assert roots[0] == roots[1]


def _root(parent, i):
    while parent[i] != i:
        i = int(parent[i])
    return i


# ------------------------------------------------------------------------------------------------------ shingle sets


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0], [1], [0, 5, 0, 300, 1, 0], [257, 256, 255], [1500]])
def test_unique_rows(device_cupy, rng, lengths):
    rows = np.zeros(len(lengths) + 1, np.int64)
    rows[1:] = np.cumsum(lengths)
    hashes = rng.integers(0, 1 << 64, 40, dtype=np.uint64)[rng.integers(0, 40, rows[-1])]
    arrays = (device_cupy.asarray(hashes), device_cupy.asarray(rows))
    items, offsets = module("shingle_sets").unique_rows(*arrays, int(rows[-1]))
    parts = [np.unique(hashes[rows[i] : rows[i + 1]]) for i in range(len(lengths))]
    same(items.get(), np.concatenate([*parts, np.zeros(0, np.uint64)]))
    assert np.diff(offsets.get()).tolist() == [len(part) for part in parts]
    assert offsets.get()[0] == 0


def test_a_wrong_sort_of_sets_is_noticed(standin):
    cupy = importlib.import_module("cupy")
    standin.break_sort = True
    hashes, rows = cupy.asarray(np.arange(50, dtype=np.uint64)), cupy.asarray(np.array([0, 20, 50], np.int64))
    with pytest.raises(MemoryError, match="sorted 50 keys wrongly"):
        module("shingle_sets").unique_rows(hashes, rows, 50)


def test_sets_of_texts(device_cupy):
    """Against Python's sets, with a stop shingle and a text that comes twice."""
    from gpu_dedup.batch import Tape

    tape = Tape.of(["a b c a b c", "", "x", "a b c", "字字字字 b"])
    select = np.array([4, 0, 1, 2, 0, 3], np.int64)
    stop = shingle_ref.shingle(tape.blob, tape.offsets, np.array([3]), 0, 2, np.zeros(0, np.uint64))[0][:1].copy()
    wanted = shingle_ref.shingle_sets(tape.blob, tape.offsets, select, 0, 2, stop)
    shingle = module("shingle")
    hashes, rows, _ = shingle.shingle(device_cupy.asarray(tape.blob), tape.offsets, select, 0, 2, stop)
    items, offsets = module("shingle_sets").unique_rows(hashes, rows, int(hashes.size))
    same(items.get(), wanted[0])
    same(offsets.get(), wanted[1])


def test_under_the_sanitizers(emulated):
    """The bodies at small sizes, built with ASan and UBSan: arrays are heap blocks of their exact size."""
    if emulated.SANITIZE:
        pytest.skip("this is that run")
    if emulated.sanitizer_environment() is None:
        need("libasan or libubsan is missing")
    chosen = (
        "standin and not sanitizers and (hand or awkward or small or unique or twice or 17 or far or without or texts)"
    )
    emulated.sanitized_pytest(str(Path(__file__)), "-k", chosen)
