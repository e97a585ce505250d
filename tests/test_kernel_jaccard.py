"""jaccard, sweep and components kernels: answers by hand, Python sets as the oracle, both host backends alike."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

KINDS = ("ref", "cpu")


def kernel(stem: str, kind: str) -> Any:
    return importlib.import_module(f"gpu_dedup.kernels.{stem}_{kind}")


def tape(sets: Sequence[Any], dtype: Any = np.uint64) -> tuple[Any, Any]:
    """Sets one after the other: items and offsets."""
    offsets = np.zeros(len(sets) + 1, np.int64)
    offsets[1:] = np.cumsum([len(s) for s in sets])
    return np.array([x for s in sets for x in sorted(s)], dtype), offsets


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


@pytest.mark.parametrize("kind", KINDS)
def test_hand_written(kind: str) -> None:
    sets = [{1, 2, 3}, {2, 3, 4}, set(), {2**64 - 1, 0}, {0, 2**63, 2**64 - 1}, {7}]
    items, offsets = tape(sets)
    left, right = ints(0, 1, 0, 2, 2, 3, 4, 5, 0), ints(1, 0, 0, 2, 0, 4, 3, 4, 3)
    shared, union = kernel("jaccard", kind).jaccard(items, offsets, left, right)
    assert shared.tolist() == [2, 2, 3, 0, 0, 2, 2, 0, 0]
    assert union.tolist() == [4, 4, 3, 0, 3, 3, 3, 4, 5]
    assert shared.dtype == union.dtype == np.int64


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_to_do(kind: str) -> None:
    for sets in ([], [set()], [{1}]):
        shared, union = kernel("jaccard", kind).jaccard(*tape(sets), ints(), ints())
        assert len(shared) == len(union) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_may_start_later_and_arrays_may_be_read_only(kind: str) -> None:
    items, offsets = np.array([9, 1, 2, 3, 2, 3, 4, 0], np.uint64), ints(1, 4, 7)
    items.flags.writeable = offsets.flags.writeable = False
    shared, union = kernel("jaccard", kind).jaccard(items, offsets, ints(1), ints(0))
    assert (shared.tolist(), union.tolist()) == ([2], [4])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("offsets", "left", "right", "error"),
    [
        ([0, 3, 7], [0], [1], ValueError),
        ([0, 3, 2], [0], [1], ValueError),
        ([-1, 3, 6], [0], [1], ValueError),
        ([], [], [], ValueError),
        ([0, 3, 6], [0, 1], [1], ValueError),
        ([0, 3, 6], [2], [1], IndexError),
        ([0, 3, 6], [0], [-1], IndexError),
    ],
)
def test_refusals(kind: str, offsets: list[int], left: list[int], right: list[int], error: type[Exception]) -> None:
    items = np.array([1, 2, 3, 2, 3, 4], np.uint64)
    with pytest.raises(error):
        kernel("jaccard", kind).jaccard(items, ints(*offsets), ints(*left), ints(*right))
    with pytest.raises(error):
        kernel("edit", kind).edit(items.astype(np.uint32), ints(*offsets), ints(*left), ints(*right), 0)


def test_the_definition_refuses_sets_that_are_none() -> None:
    for bad in ([1, 1, 2], [2, 1, 3]):
        with pytest.raises(ValueError, match="ascending"):
            kernel("jaccard", "ref").jaccard(np.array([*bad, 5], np.uint64), ints(0, 3, 4), ints(0), ints(1))
    # the same numbers in two sets are fine
    assert (
        kernel("jaccard", "ref").jaccard(np.array([1, 2, 1, 1], np.uint64), ints(0, 2, 3, 4), ints(0), ints(1))[0] == 1
    )


@settings(max_examples=60)
@given(st.lists(st.sets(st.integers(0, 60) | st.integers(2**64 - 40, 2**64 - 1), max_size=90), min_size=1, max_size=6))
def test_against_python_sets(sets: list[set[int]]) -> None:
    items, offsets = tape(sets)
    left, right = (x.ravel() for x in np.divmod(np.arange(len(sets) ** 2), len(sets)))
    expected = [(len(sets[a] & sets[b]), len(sets[a] | sets[b])) for a, b in zip(left, right, strict=True)]
    for kind in KINDS:
        shared, union = kernel("jaccard", kind).jaccard(items, offsets, left, right)
        assert list(zip(shared.tolist(), union.tolist(), strict=True)) == expected


def test_sizes_around_the_lanes_and_steps(rng: np.random.Generator) -> None:
    """Very unequal sizes, sizes around multiples of 4, 32 and 64, sets that lie wholly apart or interlock."""
    world = np.unique(rng.integers(0, 2**64, 6000, np.uint64))
    sets = [
        set(rng.choice(world, n, replace=False).tolist()) for n in (0, 1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 65, 129, 5000)
    ]
    ordered = world.tolist()
    sets += [set(ordered[:700]), set(ordered[700:1400]), set(ordered[::2]), set(ordered[1::2]), set(ordered[350:1050])]
    items, offsets = tape(sets)
    left, right = (x.ravel() for x in np.divmod(np.arange(len(sets) ** 2), len(sets)))
    expected = [len(sets[a] & sets[b]) for a, b in zip(left, right, strict=True)]
    for kind in KINDS:
        assert kernel("jaccard", kind).jaccard(items, offsets, left, right)[0].tolist() == expected


# ---- sweep and join ----------------------------------------------------------------------------------


def walk(
    kind: str, sets: Sequence[Any], pairs: list[tuple[int, int]], rule: int, ppm: int = 500_000, limit: int = 99
) -> Any:
    n = len(sets)
    state = [np.full(n, -1, np.int64) for _ in range(3)]
    left, right = (np.array([p[side] for p in pairs], np.int64) for side in (0, 1))
    counts = kernel("sweep", kind).sweep(*tape(sets), left, right, ppm, limit, rule, np.arange(n), *state)
    return [s.tolist() for s in state], counts


LOWEST, BEST, PARTNER = 0, 1, 2

# 1 and 2 match 0; 3 matches 2 (which goes) and 1 (which goes), not 0; 4 matches 3 better than 0
FAMILY = [{1, 2, 3, 4}, {1, 2, 3, 5, 6}, {1, 2, 3, 4, 6}, {1, 3, 5, 6, 7}, {1, 3, 4, 6, 7, 2}]
ALL = [(hi, lo) for hi in range(5) for lo in range(hi)]


@pytest.mark.parametrize("kind", KINDS)
def test_rules_by_hand(kind: str) -> None:
    # shared / union: 1-0 3/6, 2-0 4/5, 2-1 4/6, 3-0 2/7, 3-1 4/6, 3-2 3/7, 4-0 4/6, 4-1 4/7, 4-2 5/6, 4-3 4/7
    state, counts = walk(kind, FAMILY, ALL, LOWEST)
    assert state == [[-1, 0, 0, -1, 0], [-1, 3, 4, -1, 4], [-1, 6, 5, -1, 6]]
    assert counts == (4, 3, 0)  # 1-0, 2-0, 3-0, 4-0; the others have a side that went
    state, counts = walk(kind, FAMILY, ALL, BEST)
    assert state == [[-1, 0, 0, -1, 0], [-1, 3, 4, -1, 4], [-1, 6, 5, -1, 6]]
    assert counts == (5, 4, 0)  # 4-3 too
    state, counts = walk(kind, FAMILY, ALL, PARTNER)
    assert state == [[1, 0, 0, 1, 0], [3, 3, 4, 4, 4], [6, 6, 5, 6, 6]]
    assert counts == (5, 4, 0)  # 1-0, 2-0, 3-0, 3-1, 4-0


@pytest.mark.parametrize("kind", KINDS)
def test_best_takes_the_greatest_fraction_and_the_first_of_equals(kind: str) -> None:
    sets = [set(range(8)), set(range(10, 20)), {0, 1, 2, 3, 4, 5, 6, *range(10, 18)}, {*range(7), *range(10, 17)}]
    # 3-0: 7/15, 3-1: 7/17; 2 is left out. With 2: 3-2 = 14/15
    assert walk(kind, sets, [(3, 0), (3, 1)], BEST, 300_000)[0][0] == [-1, -1, -1, 0]
    assert walk(kind, sets, [(3, 0), (3, 1), (3, 2)], BEST, 300_000)[0][0] == [-1, -1, -1, 2]
    # 2/6 and 1/3 are equal: the first stays
    equal = [{1, 2, 8, 9}, {3}, {1, 2, 3, 4}, {1, 2, 3}]
    assert walk(kind, equal, [(2, 0)], BEST, 100_000)[0][1:] == [[-1, -1, 2, -1], [-1, -1, 6, -1]]
    assert walk(kind, equal, [(3, 0), (3, 1)], BEST, 100_000)[0][0] == [-1, -1, -1, 0]  # 2/5 over 1/3
    assert (
        walk(kind, [{1, 2, 8, 9, 7}, {3}, set(), {1, 2, 3}], [(3, 0), (3, 1)], BEST, 100_000)[0][1][3] == 2
    )  # 2/6, 1/3


@pytest.mark.parametrize("kind", KINDS)
def test_threshold_is_exact(kind: str) -> None:
    sets = [set(range(5)), {0, 1, 2, 3, 4, 5, 6}]  # 5/7 = 0.7142857...
    assert walk(kind, sets, [(1, 0)], LOWEST, 714_285)[0][0] == [-1, 0]
    assert walk(kind, sets, [(1, 0)], LOWEST, 714_286)[0][0] == [-1, -1]
    four_fifths = [set(range(4)), set(range(5))]
    assert walk(kind, four_fifths, [(1, 0)], LOWEST, 800_000)[0][0] == [-1, 0]
    assert walk(kind, four_fifths, [(1, 0)], LOWEST, 800_001)[0][0] == [-1, -1]
    assert walk(kind, [{1}, {1}], [(1, 0)], LOWEST, 1_000_000)[0][0] == [-1, 0]
    assert walk(kind, [set(), set()], [(1, 0)], LOWEST, 1)[0][0] == [-1, -1]  # two empty sets are not similar


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", [LOWEST, BEST, PARTNER])
def test_limit_counts_what_a_rule_asked_for(kind: str, rule: int) -> None:
    sets = [{1, 2, 3}, {1, 2, 3, 4}, {1, 2, 3}, {1, 2, 3, 4}]
    state, counts = walk(kind, sets, [(1, 0), (2, 0), (3, 0), (3, 1)], rule, 500_000, limit=3)
    assert state[0] == [2 if rule == PARTNER else -1, -1, 0, -1]
    assert counts == (1, 1, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_known_similarities(kind: str) -> None:
    sweep, join = kernel("sweep", kind).sweep, kernel("sweep", kind).join
    left, right, agree = ints(1, 2, 2), ints(0, 0, 1), ints(9, 7, 10)
    state = [np.full(3, -1, np.int64) for _ in range(3)]
    assert sweep(agree, ints(10), left, right, 800_000, 0, LOWEST, np.arange(3), *state) == (2, 1, 0)
    assert [s.tolist() for s in state] == [[-1, 0, -1], [-1, 9, -1], [-1, 10, -1]]
    state = [np.full(3, -1, np.int64) for _ in range(3)]
    assert sweep(agree, ints(-1), left, right, 800_000, 0, LOWEST, np.arange(3), *state) == (2, 2, 0)
    assert [s.tolist() for s in state] == [[-1, 0, 0], [-1, -1, -1], [-1, -1, -1]]
    taken, shared, union, counts = join(agree, ints(10), left, right, 800_000, 0, np.arange(3), np.arange(3))
    assert [x.tolist() for x in (taken, shared, union)] == [[0, 2], [9, 10], [10, 10]]
    assert counts == (3, 2, 0)
    taken, shared, union, counts = join(agree, ints(-1), left, right, 800_000, 0, np.arange(3), np.arange(3))
    assert [x.tolist() for x in (taken, shared, union)] == [[0, 1], [-1, -1], [-1, -1]]
    assert counts == (2, 2, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_join_by_hand(kind: str) -> None:
    left, right = (np.array([p[side] for p in ALL], np.int64) for side in (0, 1))
    nodes, parent = ints(10, 3, 11, 6, 7), np.arange(12)  # members are other nodes, in an order of their own
    taken, shared, union, counts = kernel("sweep", kind).join(*tape(FAMILY), left, right, 500_000, 99, nodes, parent)
    # 1-0 3/6; 2-0 4/5; 2-1 inside; 3-0 2/7 no; 3-1 4/6; 3-2 inside; 4-0 4/6; the rest inside
    assert [ALL[i] for i in taken] == [(1, 0), (2, 0), (3, 1), (4, 0)]
    assert list(zip(shared.tolist(), union.tolist(), strict=True)) == [(3, 6), (4, 5), (4, 6), (4, 6)]
    assert counts == (5, 4, 0)
    for node in range(12):
        root = node
        while parent[root] != root:
            assert parent[root] < root
            root = parent[root]
        assert root == (3 if node in (3, 6, 7, 10, 11) else node)


@pytest.mark.parametrize("kind", KINDS)
def test_walks_refuse_what_would_write_out_of_bounds(kind: str) -> None:
    items, offsets = tape([{1}, {1}])
    good = [np.full(2, -1, np.int64) for _ in range(3)]
    sweep, join = kernel("sweep", kind).sweep, kernel("sweep", kind).join
    for nodes, state, rule, error in [
        (ints(0, 2), good, LOWEST, IndexError),
        (ints(-1, 0), good, LOWEST, IndexError),
        (ints(0), good, LOWEST, ValueError),
        (ints(0, 1), [good[0], good[1], good[2][:1]], LOWEST, ValueError),
        (ints(0, 1), [good[0], good[1], good[2].astype(np.int32)], LOWEST, ValueError),
        (ints(0, 1), good, 3, ValueError),
    ]:
        with pytest.raises(error):
            sweep(items, offsets, ints(1), ints(0), 1, 9, rule, nodes, *state)
    with pytest.raises(IndexError):
        join(items, offsets, ints(1), ints(0), 1, 9, ints(0, 2), np.arange(2))
    with pytest.raises(ValueError, match="neither"):
        join(items.astype(np.float64), offsets, ints(1), ints(0), 1, 9, ints(0, 1), np.arange(2))
    with pytest.raises(ValueError, match="known"):
        join(ints(5, 5), ints(10), ints(1), ints(0), 1, 9, ints(0, 1), np.arange(2))
    with pytest.raises(IndexError):
        join(ints(5), ints(10), ints(2), ints(0), 1, 9, ints(0, 1), np.arange(2))


@settings(max_examples=40)
@given(
    st.lists(st.sets(st.integers(0, 11), max_size=8), min_size=2, max_size=9),
    st.integers(0, 2**36 - 1),
    st.sampled_from([1, 250_000, 500_000, 666_667, 1_000_000]),
    st.integers(2, 9),
)
def test_backends_walk_alike(sets: list[set[int]], chosen: int, ppm: int, limit: int) -> None:
    pairs = [(hi, lo) for hi in range(len(sets)) for lo in range(hi)]
    pairs = [pair for bit, pair in enumerate(pairs) if chosen >> bit & 1]
    left, right = (np.array([p[side] for p in pairs], np.int64) for side in (0, 1))
    for dtype in (np.uint64, np.uint32):
        items, offsets = tape(sets, dtype)
        for rule in (LOWEST, BEST, PARTNER):
            results = []
            for kind in KINDS:
                state = [np.full(len(sets), -1, np.int64) for _ in range(3)]
                counts = kernel("sweep", kind).sweep(
                    items, offsets, left, right, ppm, limit, rule, np.arange(len(sets)), *state
                )
                results.append(([s.tolist() for s in state], counts))
            assert results[0] == results[1]
        joined = []
        for kind in KINDS:
            *found, counts = kernel("sweep", kind).join(
                items, offsets, left, right, ppm, limit, np.arange(len(sets)), np.arange(len(sets))
            )
            joined.append(([x.tolist() for x in found], counts))
        assert joined[0] == joined[1]


# ---- components --------------------------------------------------------------------------------------


def search(m: int, edges: list[tuple[int, int]]) -> tuple[list[int], list[int], list[int]]:
    """parent, root, depth by levels of plain sets."""
    near: dict[int, set[int]] = {i: set() for i in range(m)}
    for a, b in edges:
        near[a].add(b)
        near[b].add(a)
    parent, root, depth = [-1] * m, [-1] * m, [0] * m
    for start in range(m):
        level, done = {start}, set()
        while level and root[start] in (-1, start):
            for node in level:
                root[node] = start
            done |= level
            following = set().union(*(near[node] for node in level)) - done
            for node in following:
                parent[node] = min(near[node] & level)
                depth[node] = depth[parent[node]] + 1
            level = following
    return parent, root, depth


@pytest.mark.parametrize("kind", KINDS)
def test_components_by_hand(kind: str) -> None:
    components, tree = kernel("components", kind).components, kernel("components", kind).tree
    assert components(6, ints(3, 4, 4), ints(1, 2, 2)).tolist() == [0, 1, 2, 1, 2, 5]
    assert components(3, ints(2, 2), ints(2, 2)).tolist() == [0, 1, 2]
    assert components(0, ints(), ints()).tolist() == []
    parent, root, depth = tree(6, ints(5, 5, 4, 4, 3), ints(4, 3, 1, 1, 1))
    assert parent.tolist() == [-1, -1, -1, 1, 1, 3]
    assert root.tolist() == [0, 1, 2, 1, 1, 1]
    assert depth.tolist() == [0, 0, 0, 1, 1, 2]
    for wrong in ((ints(3), ints(0)), (ints(0), ints(-1))):
        with pytest.raises(IndexError):
            components(3, *wrong)
        with pytest.raises(IndexError):
            tree(3, *wrong)
    with pytest.raises(ValueError, match="right"):
        components(3, ints(1, 2), ints(0))


@settings(max_examples=60)
@given(st.integers(1, 14), st.lists(st.tuples(st.integers(0, 13), st.integers(0, 13)), max_size=24))
def test_components_against_a_search(m: int, edges: list[tuple[int, int]]) -> None:
    edges = [(a % m, b % m) for a, b in edges]
    left, right = (np.array([e[side] for e in edges], np.int64) for side in (0, 1))
    parent, root, depth = search(m, edges)
    for kind in KINDS:
        assert kernel("components", kind).components(m, left, right).tolist() == root
        assert [x.tolist() for x in kernel("components", kind).tree(m, left, right)] == [parent, root, depth]


@pytest.mark.parametrize("order", ["forward", "backward", "shuffled"])
def test_path_of_400_000_edges(order: str, rng: np.random.Generator) -> None:
    n = 400_000
    low = np.arange(n - 1)
    if order == "backward":
        low = low[::-1].copy()
    elif order == "shuffled":
        rng.shuffle(low)
    flip = rng.random(n - 1) < 0.5
    left, right = np.where(flip, low, low + 1), np.where(flip, low + 1, low)
    assert not kernel("components", "cpu").components(n, left, right).any()
    parent, root, depth = kernel("components", "cpu").tree(n, left, right)
    assert not root.any()
    assert np.array_equal(parent, np.arange(-1, n - 1))
    assert np.array_equal(depth, np.arange(n))
    if order == "shuffled":  # the definition takes a while; once is enough
        assert not kernel("components", "ref").components(n, left, right).any()
