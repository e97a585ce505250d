"""Crowds: deciding over pairs that are made when asked for is deciding over the list of all of them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from decisions import Pairs, Source, expected_witness, run, same, settled, threads, true_matches
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup import cluster, hamming
from gpu_dedup.backend import Backend, host_backend
from gpu_dedup.cluster import Crowd, Decision, decide_crowd
from gpu_dedup.errors import RunError
from gpu_dedup.hamming import Near
from gpu_dedup.recipe import Recipe
from gpu_dedup.verify import Verifier

BEST = {"witness": "best"}  # needs a verification
RULES: tuple[dict[str, Any], ...] = ({}, BEST, {"cluster": "connected"}, {"keep": "none"})


def near_of(prints: list[int], distance: int = 1) -> Near:
    return hamming.join(np.array(prints, np.uint64), distance, host_backend("numpy"))


def all_pairs(prints: list[int], distance: int = 1) -> Pairs:
    return Pairs.of(
        (a, b)
        for a, b in itertools.combinations(range(len(prints)), 2)
        if (prints[a] ^ prints[b]).bit_count() <= distance
    )


def crowd(backend: Backend, recipe: Recipe, sets: list[Any], near: Near, memory: int = 1 << 30) -> Decision:
    exact = recipe.verify != "edit"
    source = Source([sorted(s) for s in sets] if exact else sets, np.uint64 if exact else np.uint32)
    loaded = recipe.verify in ("exact", "edit")
    verifier = Verifier(recipe, backend, source if loaded else None, source.sizes, memory, threads(2))
    done: list[int] = []
    met = Crowd(near, len(sets))
    decision = decide_crowd(met, len(sets), recipe, backend, verifier, done.append)
    assert sum(done) == len(met.heads)
    return decision


def corpus(rng: np.random.Generator, m: int) -> tuple[list[set[int]], list[int]]:
    """Sets around a few centres, and fingerprints that have little to do with them: many are equal."""
    centres = [rng.integers(0, 2**63, 30).tolist() for _ in range(4)]
    sets = []
    for _ in range(m):
        drop = int(rng.integers(0, 7))
        sets.append({*centres[int(rng.integers(4))][drop:], *rng.integers(0, 2**63, drop // 2).tolist()})
    prints = rng.choice([0b0, 0b1, 0b11, 0b111, 1 << 63, 0b1111000], m).tolist()
    return sets, [int(p) for p in prints]


@pytest.mark.parametrize(
    ("changes", "verify"),
    [(rule, verify) for rule in RULES for verify in ("exact", "edit", "none") if (rule, verify) != (BEST, "none")],
    ids=str,
)
@pytest.mark.parametrize("room", [1, 40, 1 << 21])
def test_a_crowd_is_the_list_of_its_pairs(
    room: int, changes: dict[str, Any], verify: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same witnesses, numbers and counts, however few pairs are made at a time."""
    monkeypatch.setattr(cluster, "CROWD_PAIRS", room)
    backend = host_backend("numba")
    sets, prints = corpus(rng, 70)
    lists = [sorted(x % 97 for x in s) for s in sets] if verify == "edit" else sets
    recipe = settled(verify=verify, edit_max_chars=32, **changes)
    pairs = all_pairs(prints)
    wanted, _ = run(backend, recipe, lists, pairs)
    near = near_of(prints)
    assert near.count == len(pairs.hi)
    for memory in (1 << 30, 2000):
        found = crowd(backend, recipe, lists, near, memory)
        assert same(found, wanted)
    if verify != "none":
        matches = true_matches(recipe, lists, pairs)
        assert found.witness.tolist() == expected_witness(recipe, len(lists), matches)


@given(
    st.lists(st.tuples(st.integers(0, 15), st.frozensets(st.integers(0, 9), min_size=1)), max_size=24),
    st.sampled_from(RULES), st.sampled_from([1, 7, 1 << 21]), st.integers(0, 2),
)  # fmt: skip
@settings(max_examples=120)
def test_any_crowd(docs: list[tuple[int, Any]], changes: dict[str, Any], room: int, distance: int) -> None:
    prints, sets = [p for p, _ in docs], [set(s) for _, s in docs]
    recipe = settled(threshold_ppm=500_000, **changes)
    pairs = all_pairs(prints, distance)
    backend = host_backend("numpy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "CROWD_PAIRS", room)
        found = crowd(backend, recipe, sets, near_of(prints, distance))
    wanted, _ = run(backend, recipe, sets, pairs)
    assert same(found, wanted)
    assert found.witness.tolist() == expected_witness(recipe, len(sets), true_matches(recipe, sets, pairs))


def test_copies_cost_no_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 heads of one fingerprint that all match: one comparison each, few pairs made."""
    made = 0
    real = cluster.Crowd.pairs

    def counting(self: Any, asking: Any, others: Any) -> Any:
        nonlocal made
        out = real(self, asking, others)
        made += len(out.hi)
        return out

    monkeypatch.setattr(cluster.Crowd, "pairs", counting)
    monkeypatch.setattr(cluster, "CROWD_PAIRS", 50_000)
    m = 20_000
    near = near_of([5] * m)
    recipe = settled()
    verifier = Verifier(recipe, host_backend("numba"), Source([[1, 2]] * m, np.uint64), np.full(m, 16), 1 << 30, map)
    decision = decide_crowd(Crowd(near, m), m, recipe, host_backend("numba"), verifier, lambda done: None)
    assert decision.witness.tolist() == [-1] + [0] * (m - 1)
    assert decision.stats["verified"] == m - 1
    assert made < 10 * m


def test_pairs_that_a_rule_needs_all_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    near = near_of([5] * 100)
    monkeypatch.setattr(cluster, "MOST_PAIRS", 4949)
    for changes, words in (({"cluster": "connected"}, "cluster connected"), ({"keep": "none"}, "keep none")):
        with pytest.raises(RunError, match=f"4,950 pairs of texts are near, over the 4,949 that {words} looks at"):
            crowd(host_backend("numpy"), settled(**changes), [{1}] * 100, near)
    assert crowd(host_backend("numpy"), settled(), [{1}] * 100, near).witness[1:].tolist() == [0] * 99


def test_nobody_and_no_pairs() -> None:
    for sets, prints in (([], []), ([{1}, {1}], [0, 0b11])):
        for changes in RULES:
            decision = crowd(host_backend("numpy"), settled(**changes), sets, near_of(prints))
            assert decision.witness.tolist() == [-1] * len(sets)
            assert decision.stats["components"] == 0
