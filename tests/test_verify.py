"""Parts, slices, blocks and windows: whatever the memory and the threads, the same pairs are compared."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from decisions import Pairs, Source, expected_witness, run, same, settled, threads, true_matches
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup import verify
from gpu_dedup.backend import Backend, host_backend
from gpu_dedup.errors import InternalError
from gpu_dedup.verify import Verifier

RULES: tuple[dict[str, Any], ...] = ({}, {"witness": "best"}, {"cluster": "connected"}, {"keep": "none"})


@contextmanager
def steps(slice_bytes: int, task_bytes: int, window: int) -> Iterator[None]:
    """Small slices, tasks and windows, so that a few heads make many of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "SLICE_BYTES", slice_bytes)
        patch.setattr(verify, "TASK_BYTES", task_bytes)
        patch.setattr(verify, "WINDOW", window)
        yield


def families(rng: np.random.Generator, m: int, groups: int, size: int = 30) -> list[set[int]]:
    """Sets around a few centres, at similarities on both sides of 0.8, in no order."""
    centres = [rng.integers(0, 2**63, size).tolist() for _ in range(groups)]
    out = []
    for _ in range(m):
        centre = centres[int(rng.integers(groups))]
        drop = int(rng.integers(0, 7))
        out.append({*centre[drop:], *rng.integers(0, 2**63, drop // 2).tolist()})
    return out


def candidates(rng: np.random.Generator, sets: list[set[int]], noise: int) -> Pairs:
    near = [(a, b) for a, b in itertools.combinations(range(len(sets)), 2) if sets[a] & sets[b] and rng.random() < 0.7]
    far = [tuple(rng.choice(len(sets), 2, replace=False).tolist()) for _ in range(noise)]
    return Pairs.of(near + far)


@pytest.mark.parametrize("changes", RULES, ids=str)
@pytest.mark.parametrize("kind", ["exact", "edit"])
def test_memory_threads_and_steps_change_nothing(changes: dict[str, Any], kind: str, rng: np.random.Generator) -> None:
    """From memory for everything to less than two heads; slices and tasks of one head; windows of three pairs."""
    sets = families(rng, 90, 12)
    lists = [sorted(x % 97 for x in s) if kind == "edit" else sorted(s) for s in sets]
    recipe = settled(verify=kind, edit_max_chars=32, **changes)
    for noise in (0, 25):  # without noise a dozen components, with it a giant one
        pairs = candidates(rng, sets, noise)
        whole, _ = run(host_backend("numba"), recipe, lists, pairs)
        assert whole.witness.tolist() == expected_witness(recipe, 90, true_matches(recipe, lists, pairs))
        assert 20 < np.count_nonzero(whole.witness >= 0) < 90
        parts = set()
        for memory, workers, small in [
            (1 << 30, 2, True),
            (6000, 1, False),
            (6000, 7, True),
            (1500, 2, True),
            (1, 2, False),
        ]:
            with steps(1, 1, 3) if small else steps(1 << 20, 1 << 20, 1 << 16):
                found, _ = run(host_backend("numba"), recipe, lists, pairs, memory, workers)
            assert same(whole, found)
            parts.add(found.stats["parts"])
        assert len(parts) > 1 or noise


@settings(max_examples=40)
@given(
    st.lists(st.frozensets(st.integers(0, 9), max_size=7), min_size=2, max_size=12),
    st.integers(0, 2**66 - 1) | st.just(2**66 - 1),
    st.sampled_from([300_000, 500_000, 750_000]),
    st.integers(1, 400),
)
def test_any_memory_gives_the_same(sets: list[frozenset[int]], chosen: int, ppm: int, memory: int) -> None:
    every = [(hi, lo) for hi in range(len(sets)) for lo in range(hi)]
    pairs = Pairs.of(pair for bit, pair in enumerate(every) if chosen >> bit & 1)
    for changes in RULES:
        recipe = settled(threshold_ppm=ppm, **changes)
        whole, _ = run(host_backend("numba"), recipe, sets, pairs)
        with steps(1, 1, 2):
            assert same(whole, run(host_backend("numba"), recipe, sets, pairs, memory, 2)[0])
            assert same(whole, run(host_backend("numpy"), recipe, sets, pairs, memory)[0])


@pytest.mark.parametrize("changes", RULES, ids=str)
def test_no_load_passes_the_memory(backend: Backend, changes: dict[str, Any], rng: np.random.Generator) -> None:
    """A load is at most half of the memory (two heads at the least), as what is put together stands there twice."""
    sets = families(rng, 60, 5)
    pairs = candidates(rng, sets, 30)
    largest = max(len(s) for s in sets) * 8
    for memory in (1, 1000, 2000, 5000, 9000):
        _, source = run(backend, settled(**changes), sets, pairs, memory)
        assert source.loads
        for heads, nbytes in source.loads:
            assert nbytes <= max(memory // 2, 2 * largest)
            assert heads <= 2 or nbytes <= memory // 2


def test_every_head_is_loaded_once_where_it_fits(backend: Backend, rng: np.random.Generator) -> None:
    sets = families(rng, 80, 20)
    pairs = candidates(rng, sets, 0)
    needed = {x for pair in pairs for x in pair}
    for memory in (1 << 20, 4000):
        found, source = run(backend, settled(), sets, pairs, memory)
        assert sum(heads for heads, _ in source.loads) == len(needed)
        assert len(source.loads) == found.stats["parts"]
        assert (found.stats["parts"] > 3) == (memory == 4000)


def test_slices_side_by_side_are_put_together(rng: np.random.Generator) -> None:
    """Slices give what one load gives, also where a source's offsets start above 0 and sizes promise too much."""

    class Shifted(Source):
        def load(self, heads: Any) -> tuple[Any, Any]:
            items, offsets = super().load(heads)
            return np.concatenate([np.array([1, 2, 3], items.dtype), items]), offsets + 3

        @property
        def sizes(self) -> Any:
            return super().sizes + 800

    sets = [sorted(s) for s in families(rng, 50, 4)] + [[]] * 3
    pairs = Pairs.of((hi, lo) for hi in range(53) for lo in range(hi))
    whole, _ = run(host_backend("numba"), settled(), sets, pairs)
    for slice_bytes, workers in ((1, 3), (2000, 2), (1 << 30, 1)):
        source = Shifted(sets, np.uint64)
        state = [np.full(53, -1, np.int64) for _ in range(3)]
        with steps(slice_bytes, 1, 3):
            verifier = Verifier(settled(), host_backend("numba"), source, source.sizes, 1 << 30, threads(workers))
            verifier.sweep(pairs, 0, *state, lambda n: None)
        assert len(source.loads) == {1: 53, 2000: source.sizes.sum() // 2000 + 1, 1 << 30: 1}[slice_bytes]
        assert [s.tolist() for s in state] == [x.tolist() for x in (whole.witness, whole.shared, whole.union)]


def test_measure(backend: Backend, rng: np.random.Generator) -> None:
    """Chosen pairs, candidates or not, at any similarity, in any order."""
    sets = [sorted(s) for s in families(rng, 30, 3)]
    left, right = np.array([p for p in itertools.combinations(range(30), 2)], np.int64)[:, ::-1].T.copy()
    shuffled = rng.permutation(len(left))
    left, right = left[shuffled], right[shuffled]
    expected = [(len({*sets[a]} & {*sets[b]}), len({*sets[a]} | {*sets[b]})) for a, b in zip(left, right, strict=True)]
    for memory, window in ((1 << 30, 1 << 16), (3000, 50), (1, 5)):
        source = Source(sets, np.uint64)
        with steps(1 << 20, 1, window):
            verifier = Verifier(settled(), backend, source, source.sizes, memory, threads(2))
            shared, union = verifier.measure(Pairs.of([]), left, right)
        assert list(zip(shared.tolist(), union.tolist(), strict=True)) == expected
    shared, union = verifier.measure(Pairs.of([]), left[:0], right[:0])
    assert len(shared) == len(union) == 0


def test_a_source_that_breaks_its_word(backend: Backend) -> None:
    pairs = Pairs.of([(1, 0)])
    state = [np.full(2, -1, np.int64) for _ in range(3)]
    for source, sizes, words in [
        (Source([[1], [1]], np.uint32), 64, "uint32"),
        (Source([[1, 2], [1, 2]], np.uint64), 8, "more items"),
    ]:
        verifier = Verifier(settled(), backend, source, np.full(2, sizes), 1 << 20, threads(1))
        with pytest.raises(InternalError, match=words):
            verifier.sweep(pairs, 0, *state, print)
    with pytest.raises(InternalError, match="needs a source"):
        Verifier(settled(), backend, None, np.full(2, 8), 1 << 20, threads(1)).sweep(pairs, 0, *state, print)


def test_packing() -> None:
    def packed(weights: list[int], room: int) -> list[tuple[int, int]]:
        return verify._packed(np.array(weights, np.int64), room)

    assert packed([], 5) == []
    assert packed([1, 1, 1], 5) == [(0, 3)]
    assert packed([2, 3, 1, 9, 1, 4, 0], 5) == [(0, 2), (2, 3), (3, 4), (4, 7)]
    assert packed([9, 9], 5) == [(0, 1), (1, 2)]
    assert packed([0, 0, 6, 0], 5) == [(0, 2), (2, 3), (3, 4)]
