"""Which heads go and who stands for them: every rule by hand, then against the rules in plain Python."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from decisions import Pairs, expected_witness, jaccard, levenshtein, run, same, settled, true_matches
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup import cluster
from gpu_dedup.backend import Backend, host_backend
from gpu_dedup.errors import InternalError

# Neighbours share 82 of 100 items in all (0.82), two steps apart 73 of 109 (0.67), far ends nothing.
CHAIN = [set(range(9 * i, 9 * i + 91)) for i in range(12)]
CHAIN_PAIRS = Pairs.of((hi, lo) for hi in range(12) for lo in range(hi) if hi - lo <= 2)


def chain_is_what_it_says() -> None:
    assert jaccard(CHAIN[0], CHAIN[1]) == (82, 100)
    assert jaccard(CHAIN[0], CHAIN[2]) == (73, 109)
    assert jaccard(CHAIN[0], CHAIN[11]) == (0, 182)


def test_chain_with_representatives(backend: Backend) -> None:
    chain_is_what_it_says()
    found, _ = run(backend, settled(threshold_ppm=750_000), CHAIN, CHAIN_PAIRS)
    assert found.witness.tolist() == [-1, 0, -1, 2, -1, 4, -1, 6, -1, 8, -1, 10]
    assert found.shared[1::2].tolist() == [82] * 6
    assert found.union[1::2].tolist() == [100] * 6
    assert set(found.shared[::2].tolist() + found.union[::2].tolist() + found.linked.tolist()) == {-1}
    assert found.stats == {
        "verified": 11,  # 1-0, 2-0, 3-2, 4-2, ...: never a pair with a head that went
        "matched": 6,
        "over_cap": 0,
        "parts": 1,
        "components": 1,
        "largest_component": 12,
        "clusters": 6,
        "largest_cluster": 2,
        "weakest": [82, 100],
        "longest_chain": 1,
    }


def test_chain_connected(backend: Backend) -> None:
    found, _ = run(backend, settled(threshold_ppm=750_000, cluster="connected"), CHAIN, CHAIN_PAIRS)
    assert found.witness.tolist() == [-1] + [0] * 11
    assert found.linked.tolist() == list(range(-1, 11))
    assert found.linked_shared.tolist() == [-1] + [82] * 11
    assert found.linked_union.tolist() == [-1] + [100] * 11
    assert list(zip(found.shared.tolist(), found.union.tolist(), strict=True)) == [
        (-1, -1),
        *(jaccard(CHAIN[i], CHAIN[0]) for i in range(1, 12)),
    ]
    assert found.stats["weakest"] == [0, 182]
    assert found.stats["longest_chain"] == 11
    assert (found.stats["clusters"], found.stats["largest_cluster"]) == (1, 12)
    # asked for: the 11 neighbours, and the 10 pairs two steps apart, which come before the link is there
    assert (found.stats["verified"], found.stats["matched"]) == (21, 11)


def test_chain_without_a_kept_copy(backend: Backend) -> None:
    found, _ = run(backend, settled(threshold_ppm=750_000, keep="none"), CHAIN, CHAIN_PAIRS)
    assert found.witness.tolist() == [1, *range(11)]
    assert found.shared.tolist() == [82] * 12


@pytest.mark.parametrize("rule", ["representative", "connected", "none"])
def test_a_candidate_cluster_that_verification_splits(backend: Backend, rule: str) -> None:
    """Candidates tie 1, 2, 3, 4 and 5 together; true are only 1-3 and 2-4."""
    sets = [{0}, {1, 2, 3, 4}, {5, 6, 7, 8}, {1, 2, 3, 4, 9}, {5, 6, 7, 8, 9}, {9, 10}]
    pairs = Pairs.of([(1, 2), (2, 3), (3, 4), (1, 3), (2, 4), (4, 5)])
    changes = {"keep": "none"} if rule == "none" else {"cluster": rule}
    found, _ = run(backend, settled(**changes), sets, pairs)
    assert found.witness.tolist() == [-1, 3 if rule == "none" else -1, 4 if rule == "none" else -1, 1, 2, -1]
    assert found.shared[[3, 4]].tolist() == [4, 4]
    assert found.stats["components"] == 1
    assert found.stats["largest_component"] == 5
    assert found.stats["clusters"] == (4 if rule == "none" else 2)


@pytest.mark.parametrize("order", ["ascending", "shuffled"])
def test_path_of_400_000_links(order: str, rng: np.random.Generator) -> None:
    """One stays, whatever the order of ranks along the path; nothing recurses."""
    n = 400_000
    rank = np.arange(n) if order == "ascending" else rng.permutation(n)
    hi, lo = np.maximum(rank[1:], rank[:-1]), np.minimum(rank[1:], rank[:-1])
    by = np.lexsort((lo, hi))
    pairs = Pairs(hi[by], lo[by], np.full(n - 1, 19))
    recipe = settled(cluster="connected", verify="signature")
    found, _ = run(host_backend("numba"), recipe, [()] * n, pairs)
    assert np.array_equal(np.flatnonzero(found.witness < 0), [0])
    assert not found.witness[1:].any()
    # linked is the neighbour on the way to rank 0
    place = np.empty(n, np.int64)
    place[rank] = np.arange(n)
    toward = np.where(place > place[0], place - 1, place + 1)
    assert np.array_equal(found.linked[1:], rank[toward[1:]])
    assert set(found.linked_shared[1:].tolist()) == {19}
    assert found.stats["longest_chain"] == max(place[0], n - 1 - place[0])
    assert (found.stats["clusters"], found.stats["largest_cluster"]) == (1, n)
    # a row beside rank 0 is a candidate with it; others are not, and nobody can say how similar they are
    assert np.count_nonzero(found.shared >= 0) == len([p for p in (place[0] - 1, place[0] + 1) if 0 <= p < n])


def test_linked_is_the_parent_nearest_to_the_kept_head(backend: Backend) -> None:
    """0-1, 1-2, 0-3, 3-4, 2-4 would close a circle: it comes last and is not even looked at."""
    base = set(range(40))
    sets = [base, base | {100}, base | {100, 101}, base | {102}, base | {102, 103}]
    pairs = Pairs.of([(1, 0), (2, 1), (3, 0), (4, 3), (4, 2)])
    found, _ = run(backend, settled(cluster="connected"), sets, pairs)
    assert found.linked.tolist() == [-1, 0, 1, 0, 2]  # 4-2 comes before 4-3 in (hi, lo) order
    assert found.stats["verified"] == 4
    assert found.witness.tolist() == [-1, 0, 0, 0, 0]
    assert (found.shared[4], found.union[4]) == (40, 42)
    assert (found.linked_shared[4], found.linked_union[4]) == (40, 44)


def test_signature_and_none(backend: Backend) -> None:
    """20 slots: 16 equal ones are 0.8."""
    equal = {(1, 0): 16, (2, 0): 15, (2, 1): 17, (3, 2): 20, (4, 3): 19}
    pairs = Pairs.of(equal, lambda hi, lo: equal[hi, lo])
    sets: list[Any] = [()] * 6
    found, _ = run(backend, settled(verify="signature"), sets, pairs)
    assert found.witness.tolist() == [-1, 0, -1, 2, -1, -1]
    assert found.shared.tolist() == [-1, 16, -1, 20, -1, -1]
    assert found.union.tolist() == [-1, 20, -1, 20, -1, -1]
    best = {(2, 0): 16, (2, 1): 17, (3, 0): 18, (3, 1): 18}
    found, _ = run(
        backend, settled(verify="signature", witness="best"), sets, Pairs.of(best, lambda hi, lo: best[hi, lo])
    )
    assert found.witness.tolist() == [-1, -1, 1, 0, -1, -1]
    found, _ = run(backend, settled(verify="none"), sets, pairs)
    assert found.witness.tolist() == [-1, 0, 0, -1, 3, -1]
    assert set(found.shared.tolist() + found.union.tolist()) == {-1}
    assert (found.stats["verified"], found.stats["matched"], found.stats["weakest"]) == (0, 3, None)
    found, _ = run(backend, settled(verify="none", cluster="connected"), sets, pairs)
    assert found.witness.tolist() == [-1, 0, 0, 0, 0, -1]
    assert found.linked.tolist() == [-1, 0, 0, 2, 3, -1]
    assert set(found.shared.tolist() + found.linked_shared.tolist()) == {-1}
    assert (found.stats["longest_chain"], found.stats["parts"]) == (3, 0)
    found, _ = run(backend, settled(verify="none", keep="none"), sets, pairs)
    assert found.witness.tolist() == [1, 0, 0, 2, 3, -1]


def test_signature_connected_measures_what_is_known(backend: Backend) -> None:
    equal = {(1, 0): 16, (2, 0): 15, (2, 1): 17, (3, 2): 20}
    pairs = Pairs.of(equal, lambda hi, lo: equal[hi, lo])
    recipe = settled(verify="signature", cluster="connected")
    found, _ = run(backend, recipe, [()] * 4, pairs)
    assert found.witness.tolist() == [-1, 0, 0, 0]
    assert found.shared.tolist() == [-1, 16, 15, -1]  # 2-0 is a candidate below the threshold, 3-0 none
    assert found.union.tolist() == [-1, 20, 20, -1]
    assert found.stats["weakest"] == [15, 20]
    full = {**equal, (3, 0): 14}
    found, _ = run(
        backend, recipe, [()] * 4, pairs, agreements=lambda a, b: np.array([full[p] for p in zip(a, b, strict=True)])
    )
    assert found.shared.tolist() == [-1, 16, 15, 14]
    assert found.stats["weakest"] == [14, 20]


def test_edit_and_its_cap(backend: Backend) -> None:
    texts = [
        "deduplicate",
        "deduplicated",
        "deduplicates!",
        "other",
        "数据集去重工具",
        "数据去重工具",
        "deduplicate" + "d" * 9,
    ]
    sets = [[ord(c) for c in t] for t in texts]
    pairs = Pairs.of((hi, lo) for hi in range(7) for lo in range(hi))
    found, _ = run(backend, settled(verify="edit", edit_max_chars=13), sets, pairs)
    assert found.witness.tolist() == [-1, 0, 0, -1, -1, 4, -1]
    assert found.shared[[1, 2, 5]].tolist() == [11, 11, 6]
    assert found.union[[1, 2, 5]].tolist() == [12, 13, 7]
    assert found.stats["over_cap"] == 3  # 6 is asked to be compared with 0, 3 and 4, which stay
    found, _ = run(backend, settled(verify="edit", edit_max_chars=11, cluster="connected"), sets, pairs)
    assert found.witness.tolist() == [-1, -1, -1, -1, -1, 4, -1]
    found, _ = run(backend, settled(verify="edit", threshold_ppm=600_000, cluster="connected"), sets, pairs)
    assert found.witness.tolist() == [-1, 0, 0, -1, -1, 4, 0]
    assert (found.shared[6], found.union[6]) == (11, 20) if found.linked[6] == 1 else levenshtein(sets[6], sets[0])


def test_edit_connected_measures_below_the_threshold(backend: Backend) -> None:
    texts = ["aaaaaaaaaa", "aaaaaaaabb", "aaaaaabbbb", "aaaabbbbbb", "aabbbbbbbb", "bbbbbbbbbb"]
    sets = [[ord(c) for c in t] for t in texts]
    pairs = Pairs.of((i + 1, i) for i in range(5))
    found, _ = run(backend, settled(verify="edit", cluster="connected"), sets, pairs)
    assert found.witness.tolist() == [-1, 0, 0, 0, 0, 0]
    assert found.shared.tolist() == [-1, 8, 6, 4, 2, 0]
    assert found.union.tolist() == [-1] + [10] * 5
    assert found.stats["weakest"] == [0, 10]


def test_no_heads_no_candidates(backend: Backend) -> None:
    for verify in ("exact", "edit", "signature", "none"):
        for changes in ({}, {"cluster": "connected"}, {"keep": "none"}):
            for sets in ([], [{1}, {1}]):
                found, source = run(backend, settled(verify=verify, **changes), sets, Pairs.of([]))
                assert found.witness.tolist() == [-1] * len(sets)
                assert source.loads == []
                assert found.stats["weakest"] is None
                assert found.stats["longest_chain"] == found.stats["parts"] == found.stats["components"] == 0


def test_empty_sets_never_match(backend: Backend) -> None:
    sets: list[set[int]] = [set(), set(), {1}, {1}]
    pairs = Pairs.of([(1, 0), (2, 0), (3, 2), (3, 1)])
    for changes in ({}, {"cluster": "connected"}, {"keep": "none"}):
        found, _ = run(backend, settled(threshold_ppm=1, **changes), sets, pairs)
        assert found.witness.tolist() == [-1, -1, 3 if changes.get("keep") else -1, 2]


@pytest.mark.parametrize(
    "pairs",
    [
        Pairs(*(np.array(x, np.int64) for x in ([2, 1], [0, 0], [0, 0]))),
        Pairs(*(np.array(x, np.int64) for x in ([1, 1], [0, 0], [0, 0]))),
        Pairs(*(np.array(x, np.int64) for x in ([1], [1], [0]))),
        Pairs(*(np.array(x, np.int64) for x in ([3], [0], [0]))),
        Pairs(*(np.array(x, np.int64) for x in ([1], [-1], [0]))),
    ],
    ids=["unsorted", "twice", "itself", "no such head", "negative"],
)
def test_candidates_that_are_none(backend: Backend, pairs: Pairs) -> None:
    for changes in ({}, {"cluster": "connected"}):
        with pytest.raises(InternalError, match="candidates"):
            run(backend, settled(**changes), [{1}, {1}, {1}], pairs)


def test_a_wrong_verifier_is_caught(backend: Backend) -> None:
    """The invariants are held whatever the kernels say."""

    class Wrong:
        counts: Any = None

        def __init__(self, witness: list[int], shared: int) -> None:
            self.answer, self.shared = witness, shared

        def sweep(self, pairs: Any, rule: int, witness: Any, shared: Any, union: Any, progress: Any) -> None:
            witness[:], shared[:], union[:] = self.answer, self.shared, 10

    for answer, shared, words in (
        ([1, 0, -1], 9, "does not stay"),
        ([2, -1, -1], 9, "does not stay"),
        ([-1, 0, -1], 7, "below"),
    ):
        with pytest.raises(InternalError, match=words):
            cluster.decide(Pairs.of([]), 3, settled(), backend, Wrong(answer, shared), print)


FAMILIES = st.lists(st.frozensets(st.integers(0, 13), max_size=9), min_size=1, max_size=16)
RULES = (
    {},
    {"witness": "best"},
    {"cluster": "connected"},
    {"keep": "none"},
)


@settings(max_examples=70)
@given(
    FAMILIES,
    st.integers(0, 2**120 - 1) | st.just(2**120 - 1),
    st.sampled_from([1, 500_000, 600_000, 800_000, 1_000_000]),
)
def test_rules_against_plain_python(sets: list[frozenset[int]], chosen: int, ppm: int) -> None:
    m = len(sets)
    every = [(hi, lo) for hi in range(m) for lo in range(hi)]
    pairs = Pairs.of(pair for bit, pair in enumerate(every) if chosen >> bit & 1)
    for verify in ("exact", "edit"):
        ordered = [sorted(s) for s in sets]
        measure = jaccard if verify == "exact" else levenshtein
        for changes in RULES:
            recipe = settled(verify=verify, threshold_ppm=ppm, edit_max_chars=7, **changes)
            matches = true_matches(recipe, ordered, pairs)
            found, _ = run(host_backend("numba"), recipe, ordered, pairs)
            witness = found.witness.tolist()
            assert witness == expected_witness(recipe, m, matches)
            assert same(found, run(host_backend("numpy"), recipe, ordered, pairs)[0])
            gone = [i for i in range(m) if witness[i] >= 0]
            for i in gone:
                assert (found.shared[i], found.union[i]) == measure(ordered[i], ordered[witness[i]])
            if changes == {}:
                for i in gone:  # every removed head names a kept head before it, truly similar
                    assert witness[i] < i
                    assert witness[witness[i]] < 0
                    assert found.shared[i] * 10**6 >= ppm * found.union[i]
                kept = set(range(m)) - set(gone)
                assert not [p for p in matches if set(p) <= kept], "something removable is left"
            if changes.get("cluster") == "connected":
                links = {(i, int(found.linked[i])) for i in gone}
                for i, other in links:
                    numbers = matches[max(i, other), min(i, other)]
                    assert (found.linked_shared[i], found.linked_union[i]) == numbers
                    while i != witness[gone[0]] and witness[i] >= 0:  # links lead to the kept head
                        i = int(found.linked[i])
                assert len(links) == len(gone)
            least = min((Fraction(int(found.shared[i]), int(found.union[i])) for i in gone), default=None)
            weakest = found.stats["weakest"]
            assert least == (None if weakest is None else Fraction(*weakest))
