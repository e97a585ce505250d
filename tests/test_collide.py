"""Collide against a plain oracle: buckets by the slots themselves, the cap rule by loops, agreement by counting.

The oracle groups by tuples of slots, never by hashed keys, and imports nothing of the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_dedup import collide as module
from gpu_dedup.backend import Backend
from gpu_dedup.collide import Candidates, collide, split_slots
from gpu_dedup.errors import InternalError, RecipeError, RunError
from gpu_dedup.recipe import Recipe


class InMemory:
    def __init__(self, array: np.ndarray) -> None:
        self.array: np.ndarray | None = array

    def take(self, rows: np.ndarray) -> np.ndarray:
        raise AssertionError("signatures in memory are read where they are")


class Stored:
    """Signatures that are not in memory: rows are asked for, ascending and once."""

    array = None

    def __init__(self, table: np.ndarray) -> None:
        self.table = table
        self.taken = 0

    def take(self, rows: np.ndarray) -> np.ndarray:
        assert rows.dtype == np.int64
        assert (rows[1:] > rows[:-1]).all()
        self.taken = max(self.taken, len(rows))
        return self.table[rows]


def threads(count: int) -> Callable[[Callable[[int], Any], Iterable[int]], Iterator[Any]]:
    def parallel_map(function: Callable[[int], Any], items: Iterable[int]) -> Iterator[Any]:
        with ThreadPoolExecutor(count) as pool:
            yield from pool.map(function, items)

    return parallel_map


def run(
    table: np.ndarray, recipe: Recipe, backend: Backend, signatures: Any = None, parallel_map: Any = map
) -> Candidates:
    assert recipe.bands is not None
    assert recipe.rows is not None
    keys = backend.band_keys(table, recipe.bands, recipe.rows)
    ticks: list[int] = []
    found = collide(
        lambda band: np.ascontiguousarray(keys[:, band]),
        signatures or InMemory(table),
        len(table),
        recipe,
        backend,
        parallel_map,
        ticks.append,
    )
    assert ticks == [1] * recipe.bands
    assert found.hi.dtype == found.lo.dtype == found.agree.dtype == np.int64
    return found


def triples(found: Candidates) -> list[tuple[int, int, int]]:
    return list(zip(found.hi.tolist(), found.lo.tolist(), found.agree.tolist(), strict=True))


def group(heads: list[int], table: list[list[int]], slots: list[int]) -> list[list[int]]:
    buckets: dict[tuple[int, ...], list[int]] = {}
    for head in heads:
        buckets.setdefault(tuple(table[head][slot] for slot in slots), []).append(head)
    return [bucket for bucket in buckets.values() if len(bucket) > 1]


def capped(bucket: list[int], recipe: Recipe) -> Iterator[tuple[int, int]]:
    for place, head in enumerate(bucket):
        below = bucket[:place]
        for other in below if len(bucket) <= recipe.bucket_cap else below[: recipe.cap_lowest]:
            yield head, other


def oracle(table: list[list[int]], bands: int, rows: int, recipe: Recipe, cut: int) -> tuple[Any, dict[str, Any]]:
    """Sorted (hi, lo, agree) and the counts, from the words at the head of collide.py."""
    slots = bands * rows
    given_pairs: list[tuple[int, int]] = []
    every: list[tuple[int, int, list[int]]] = []  # (band, size, members)
    for band in range(bands):
        for bucket in group(list(range(len(table))), table, list(range(band * rows, band * rows + rows))):
            every.append((band, len(bucket), bucket))
            given_pairs += capped(bucket, recipe)
            if len(bucket) <= recipe.bucket_cap:
                continue
            outside = [(band * rows + rows + i) % slots for i in range(slots - rows)]  # cyclic from the band's end
            done: list[set[int]] = []
            for split in range(recipe.cap_splits):
                if not outside:
                    break
                first = split * recipe.cap_slots
                width = min(recipe.cap_slots, len(outside))
                chosen = {outside[(first + i) % len(outside)] for i in range(width)}
                if chosen in done:
                    continue
                done.append(chosen)
                for inner in group(bucket, table, sorted(chosen)):
                    given_pairs += capped(inner, recipe)

    def agree(a: int, b: int) -> int:
        return sum(x == y for x, y in zip(table[a], table[b], strict=True))

    passed = [pair for pair in given_pairs if agree(*pair) >= cut]
    large = sorted((e for e in every if e[1] > recipe.bucket_cap), key=lambda e: (-e[1], e[0], e[2]))
    named: dict[int, tuple[int, int, list[int]]] = {}
    for entry in large:
        named.setdefault(entry[2][0], entry)
    sizes = [size for _, size, _ in every]
    counts = {
        "pairs_before": len(given_pairs),
        "pairs_after": len(passed),
        "buckets": len(every),
        "largest": tuple(max([size for b, size, _ in every if b == band], default=0) for band in range(bands)),
        "capped": len(large),
        "histogram": tuple(
            sum(size.bit_length() - 1 == power for size in sizes) for power in range(max(sizes, default=0).bit_length())
        ),
        "heavy": [(band, size, members[:16]) for band, size, members in list(named.values())[:5]],
    }
    return sorted({(a, b, agree(a, b)) for a, b in passed}), counts


def check(table: np.ndarray, recipe: Recipe, backend: Backend) -> Candidates:
    assert recipe.bands is not None
    assert recipe.rows is not None
    cut = 0 if recipe.verify == "none" else recipe.sieve_cut or 0
    expected, counts = oracle(table.tolist(), recipe.bands, recipe.rows, recipe, cut)
    found = run(table, recipe, backend)
    assert triples(found) == expected
    stats = found.stats
    for name in ("pairs_before", "pairs_after", "buckets", "largest", "capped", "histogram"):
        assert getattr(stats, name) == counts[name], name
    assert [(b.band, b.size, list(b.members)) for b in stats.heavy] == counts["heavy"]
    return found


SMALL = Recipe(bands=4, rows=2, sieve_cut=3, bucket_cap=4, cap_lowest=2, cap_splits=3, cap_slots=2)


def test_pairs_by_hand(backend: Backend) -> None:
    table = np.array(
        [
            [1, 1, 9, 9, 5, 5, 7, 7],
            [1, 1, 8, 8, 5, 5, 6, 6],  # meets head 0 in bands 0 and 2: four equal slots
            [1, 1, 0, 0, 0, 0, 0, 0],  # meets both in band 0 alone: two equal slots, too few for the sieve
            [2, 2, 2, 2, 2, 2, 2, 2],
            [3, 3, 9, 9, 3, 5, 7, 3],  # meets head 0 in band 1: slots 2, 3, 5, 6
        ],
        np.uint32,
    )
    found = run(table, SMALL, backend)
    assert triples(found) == [(1, 0, 4), (4, 0, 4)]
    assert len(found) == 2
    assert found.stats.pairs_before == 5  # band 0: three pairs; band 1: one; band 2: one
    assert found.stats.pairs_after == 3
    assert found.stats.buckets == 3
    assert found.stats.largest == (3, 2, 2, 0)
    assert found.stats.histogram == (0, 3)
    assert found.stats.capped == 0
    assert found.stats.heavy == ()
    unsieved = run(table, SMALL.with_(verify="none"), backend)
    assert triples(unsieved) == [(1, 0, 4), (2, 0, 2), (2, 1, 2), (4, 0, 4)]


@pytest.mark.parametrize("m", [0, 1, 2])
def test_next_to_nothing(backend: Backend, m: int) -> None:
    table = np.arange(m * 8, dtype=np.uint32).reshape(m, 8)
    found = run(table, SMALL, backend)
    assert triples(found) == []
    assert found.stats.largest == (0, 0, 0, 0)
    assert found.stats.histogram == ()


def test_split_slots_by_hand() -> None:
    # Slots 0-7, bands of two. Outside band 1, from its end on: 4 5 6 7 0 1.
    assert [s.tolist() for s in split_slots(SMALL, 1)] == [[4, 5], [6, 7], [0, 1]]
    assert [s.tolist() for s in split_slots(SMALL, 0)] == [[2, 3], [4, 5], [6, 7]]
    # Four at a time wrap around, and the fourth set would be the first again.
    wide = SMALL.with_(cap_splits=8, cap_slots=4)
    assert [s.tolist() for s in split_slots(wide, 1)] == [[4, 5, 6, 7], [0, 1, 4, 5], [0, 1, 6, 7]]
    # Fewer slots outside than asked for: all of them, once. None outside: no split.
    two = SMALL.with_(bands=2, rows=2, cap_slots=4)
    assert [s.tolist() for s in split_slots(two, 0)] == [[2, 3]]
    assert split_slots(SMALL.with_(bands=1, rows=8), 0) == []
    assert split_slots(SMALL.with_(cap_splits=0), 0) == []
    default = Recipe(bands=17, rows=7)
    for band in range(17):
        every = split_slots(default, band)
        assert [len(s) for s in every] == [4] * 8
        chosen = np.concatenate(every).tolist()
        assert len(set(chosen)) == 32  # no slot twice
        assert not set(chosen) & set(range(7 * band, 7 * band + 7))
        assert min(chosen) >= 0
        assert max(chosen) < 119
        assert all((s[1:] > s[:-1]).all() for s in every)
    with pytest.raises(RecipeError, match="not settled"):
        split_slots(Recipe(), 0)


@pytest.mark.parametrize("letters", [2, 3, 5, 40])
@pytest.mark.parametrize(
    "recipe",
    [
        SMALL,
        SMALL.with_(sieve_cut=0),
        SMALL.with_(verify="none"),
        SMALL.with_(cap_splits=0),
        SMALL.with_(cap_lowest=50),
        SMALL.with_(cap_slots=5, cap_splits=8),
        SMALL.with_(bands=1, rows=3, sieve_cut=1),
        SMALL.with_(bands=2, rows=1, sieve_cut=1, cap_slots=4),
        SMALL.with_(bands=5, rows=1, sieve_cut=2, bucket_cap=2, cap_lowest=1),
    ],
    ids=["small", "no cut", "none", "no splits", "lowest above cap", "wide", "one band", "one outside", "rows 1"],
)
def test_against_the_oracle(backend: Backend, recipe: Recipe, letters: int, rng: np.random.Generator) -> None:
    table = rng.integers(0, letters, (120, recipe.slots)).astype(np.uint32)
    check(table, recipe, backend)


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, Recipe]:
    bands, rows = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    recipe = Recipe(
        bands=bands,
        rows=rows,
        sieve_cut=draw(st.integers(0, bands * rows)),
        bucket_cap=draw(st.integers(2, 5)),
        cap_lowest=draw(st.integers(1, 4)),
        cap_splits=draw(st.integers(0, 4)),
        cap_slots=draw(st.integers(1, 4)),
    )
    row = st.lists(st.integers(0, 2), min_size=bands * rows, max_size=bands * rows)
    heads = draw(st.lists(row, max_size=30))
    return np.array(heads, np.uint32).reshape(len(heads), bands * rows), recipe


@given(tables())
def test_any_table_against_the_oracle(backend: Backend, case: tuple[np.ndarray, Recipe]) -> None:
    check(*case, backend)


def planted(rng: np.random.Generator, heads: int = 700) -> tuple[np.ndarray, Recipe]:
    """Lone heads, small groups, and two large buckets over the cap."""
    recipe = Recipe(bands=6, rows=3, sieve_cut=8, bucket_cap=16, cap_lowest=4, cap_splits=4, cap_slots=2)
    table = rng.integers(0, 2**32, (heads, 18), dtype=np.uint64).astype(np.uint32)
    table[100:300, :9] = table[100, :9]  # half of the slots in common
    table[250:400, 9:12] = table[250, 9:12]
    for head in range(0, heads - 1, 7):
        table[head + 1] = table[head]
        table[head + 1, rng.integers(0, 18, 4)] ^= np.uint32(1)
    return table[rng.permutation(heads)], recipe


def test_a_planted_corpus_against_the_oracle(backend: Backend, rng: np.random.Generator) -> None:
    found = check(*planted(rng), backend)
    assert found.stats.capped >= 4
    assert len(found.stats.heavy) >= 2
    assert len({bucket.members[0] for bucket in found.stats.heavy}) == len(found.stats.heavy)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_slices_threads_and_storage_change_nothing(
    backend: Backend, size: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, recipe = planted(rng, 300)
    table, recipe = table[:200], recipe
    whole = run(table, recipe, backend)
    assert whole.stats.capped > 0
    for name in ("SLICE_PAIRS", "STORED_SLICE_PAIRS", "SPLIT_HEADS", "SPLIT_BLOCK"):
        monkeypatch.setattr(module, name, size)
    for signatures in (InMemory(table), Stored(table)):
        for count in (1, 2, 7):
            again = run(table, recipe, backend, signatures, threads(count))
            assert triples(again) == triples(whole)
            assert again.stats == whole.stats
        if isinstance(signatures, Stored):
            # one member's pairs are never cut: 15 under the cap, and itself
            assert 0 < signatures.taken <= max(2 * size, recipe.bucket_cap)


def test_five_thousand_in_one_bucket_cost_linear_pairs(backend: Backend, rng: np.random.Generator) -> None:
    """All share band 0; two of them, far from the 32 lowest, are near-copies that a split alone brings together."""
    table = rng.integers(0, 2**32, (5000, 16), dtype=np.uint64).astype(np.uint32)
    table[:, :4] = (1, 2, 3, 4)
    table[4500] = table[4000]
    table[4500, [4, 8, 12]] ^= np.uint32(1)  # one slot in each other band
    recipe = Recipe(bands=4, rows=4, sieve_cut=10, cap_slots=3)
    found = run(table, recipe, backend)
    assert triples(found) == [(4500, 4000, 13)]
    lowest = sum(min(head, 32) for head in range(5000))
    assert lowest == 159_472
    assert found.stats.pairs_before == lowest + 1  # slots 13 to 15 are a further key, and whole
    assert found.stats.capped == 1
    assert found.stats.heavy[0].size == 5000
    assert found.stats.heavy[0].members == tuple(range(16))

    copies = np.repeat(table[:1], 5000, axis=0)  # the worst case: every band and every split one bucket
    worst = run(copies, recipe, backend)
    assert worst.stats.pairs_before == lowest * sum(1 + len(split_slots(recipe, band)) for band in range(4))
    assert worst.stats.largest == (5000, 5000, 5000, 5000)
    assert len(worst) == lowest
    assert worst.stats.histogram == (0,) * 12 + (4,)
    assert [bucket.band for bucket in worst.stats.heavy] == [0]  # one group, named once


def test_a_lower_threshold_only_adds(backend: Backend, rng: np.random.Generator) -> None:
    table, recipe = planted(rng)
    few = set(triples(run(table, recipe.with_(sieve_cut=12), backend)))
    assert few < set(triples(run(table, recipe.with_(sieve_cut=6), backend)))


def test_repeats_take_no_lasting_memory() -> None:
    pairs = module._PairSet()
    once = np.arange(0, 1 << 21, 7, dtype=np.uint64)
    for turn in range(12):
        pairs.add(np.random.default_rng(turn).permutation(once))
        assert pairs._loose_count <= len(once) + (1 << 20)
    pairs.add(np.empty(0, np.uint64))
    assert np.array_equal(pairs.sorted(), once)
    assert module._PairSet().sorted().tolist() == []


def test_what_is_refused(backend: Backend) -> None:
    table = np.zeros((3, 8), np.uint32)

    def call(recipe: Recipe, m: int = 3) -> Candidates:
        return collide(lambda band: np.zeros(3, np.uint64), InMemory(table), m, recipe, backend, map, lambda n: None)

    for recipe in (Recipe(), Recipe(bands=4, rows=2)):
        with pytest.raises(RecipeError, match="not settled"):
            call(recipe)
    assert len(call(Recipe(bands=4, rows=2, verify="none"))) == 3
    with pytest.raises(RunError, match="run on shards"):
        call(SMALL, 1 << 32)
    with pytest.raises(InternalError, match="band 0 has 3 keys for 4 heads"):
        call(SMALL, 4)


@pytest.mark.parametrize("parts", [1, 3, 50])
def test_keys_in_parts_give_the_same_pairs_and_counts(
    rng: np.random.Generator, backend: Backend, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    """Whole buckets in each part, large ones among them; ranks of a part have gaps."""
    recipe = Recipe(
        bands=3, rows=2, sieve_cut=1, bucket_cap=4, cap_lowest=2, cap_splits=2, cap_slots=1, threshold_ppm=500_000
    )
    table = rng.integers(0, 5, (400, 6)).astype(np.uint32)
    table[rng.integers(0, 400, 60)] = table[0]
    monkeypatch.setattr(module, "HEAVY_MEMBERS", 3)
    whole = run(table, recipe, backend)
    keys = backend.band_keys(table, 3, 2)

    def key_parts(band: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        which = keys[:, band] % np.uint64(parts)
        for part in range(parts):
            ranks = np.flatnonzero(which == part)
            yield ranks, np.ascontiguousarray(keys[ranks, band])

    def never(band: int) -> np.ndarray:
        raise AssertionError("all keys of a band were asked for at once")

    found = collide(never, InMemory(table), 400, recipe, backend, threads(2), lambda n: None, key_parts)
    assert len(whole) > 500
    assert whole.stats.capped > 10
    assert triples(found) == triples(whole)
    assert found.stats == whole.stats


def test_parts_that_lack_a_head_are_noticed(backend: Backend) -> None:
    recipe = Recipe(bands=1, rows=2, sieve_cut=1)
    table = np.zeros((4, 2), np.uint32)
    part = [(np.arange(3, dtype=np.int64), np.zeros(3, np.uint64))]
    with pytest.raises(InternalError, match="band 0 has 3 keys for 4 heads"):
        collide(
            lambda band: np.zeros(4, np.uint64),
            InMemory(table),
            4,
            recipe,
            backend,
            map,
            lambda n: None,
            lambda band: part,
        )
