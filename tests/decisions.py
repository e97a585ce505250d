"""What the tests of verify and cluster share: items in memory, candidates, threads, and the rules in plain Python."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from gpu_dedup.backend import Backend
from gpu_dedup.cluster import Decision, decide
from gpu_dedup.recipe import Recipe
from gpu_dedup.verify import Verifier, Whole


@dataclass
class Pairs:
    """Candidates."""

    hi: Any
    lo: Any
    agree: Any

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]], agree: Callable[[int, int], int] = lambda hi, lo: 0) -> Pairs:
        ordered = sorted({(max(p), min(p)) for p in pairs})
        table = np.array(ordered, np.int64).reshape(len(ordered), 2)
        return cls(table[:, 0].copy(), table[:, 1].copy(), np.array([agree(*p) for p in ordered], np.int64))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self.hi.tolist(), self.lo.tolist(), strict=True))


@dataclass
class Source:
    """Items of heads out of memory; notes how many bytes each call handed out."""

    sets: Sequence[Sequence[int]]
    dtype: Any
    loads: list[tuple[int, int]] = field(default_factory=list)  # (heads, bytes)
    lock: Any = field(default_factory=threading.Lock)

    def load(self, heads: Any) -> tuple[Any, Any]:
        chosen = [self.sets[h] for h in heads.tolist()]
        assert heads.tolist() == sorted(set(heads.tolist())), "heads are asked for in ascending order, each once"
        offsets = np.cumsum([0, *map(len, chosen)])
        items = np.array([x for s in chosen for x in s], self.dtype)
        with self.lock:
            self.loads.append((len(heads), items.nbytes))
        return items, offsets

    def whole(self) -> Whole:
        """All items, the last head first."""
        heads = np.arange(len(self.sets))[::-1].copy()
        chosen = [self.sets[h] for h in heads.tolist()]
        items = np.array([x for s in chosen for x in s], self.dtype)
        return Whole(items, np.cumsum([0, *map(len, chosen)]), heads.copy(), heads)

    @property
    def sizes(self) -> Any:
        return np.array([len(s) * np.dtype(self.dtype).itemsize for s in self.sets], np.int64)


def threads(count: int) -> Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]:
    def parallel_map(work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        with ThreadPoolExecutor(count) as pool:
            yield from pool.map(work, items)

    return parallel_map


def settled(**changes: Any) -> Recipe:
    return Recipe(bands=4, rows=5, **changes)


def run(
    backend: Backend, recipe: Recipe, sets: Sequence[Sequence[int]], pairs: Pairs, memory: int = 1 << 30,
    workers: int = 1, agreements: Any = None,
) -> tuple[Decision, Source]:  # fmt: skip
    """Decide over sets (sorted here) or texts (code points), and hold what is true of every decision."""
    exact = recipe.verify != "edit"
    source = Source([sorted(s) for s in sets] if exact else sets, np.uint64 if exact else np.uint32)
    done: list[int] = []
    loaded = recipe.verify in ("exact", "edit")
    verifier = Verifier(recipe, backend, source if loaded else None, source.sizes, memory, threads(workers), agreements)
    decision = decide(pairs, len(sets), recipe, backend, verifier, done.append)
    assert sum(done) == len(pairs.hi), "progress tells of every candidate once"
    if loaded and len(sets):
        loads = len(source.loads)
        verifier = Verifier(recipe, backend, source, source.sizes, memory, threads(workers), agreements, source.whole())
        assert same(decide(pairs, len(sets), recipe, backend, verifier, done.append), decision)
        assert len(source.loads) == loads, "what is in memory is not loaded"
    for array in (
        decision.witness,
        decision.shared,
        decision.union,
        decision.linked,
        decision.linked_shared,
        decision.linked_union,
    ):
        assert array.dtype == np.int64
        assert len(array) == len(sets)
    return decision, source


def same(one: Decision, other: Decision) -> bool:
    """Equal in every array and in all stats that do not depend on the memory."""
    arrays = ("witness", "shared", "union", "linked", "linked_shared", "linked_union")
    stats = [{k: v for k, v in d.stats.items() if k != "parts"} for d in (one, other)]
    return all(np.array_equal(getattr(one, a), getattr(other, a)) for a in arrays) and stats[0] == stats[1]


# ---- the rules, in plain Python -------------------------------------------------------------------------


def jaccard(a: Sequence[int], b: Sequence[int]) -> tuple[int, int]:
    return len(set(a) & set(b)), len(set(a) | set(b))


def levenshtein(a: Sequence[int], b: Sequence[int]) -> tuple[int, int]:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    longest = max(len(a), len(b))
    return longest - row[-1], longest


def true_matches(recipe: Recipe, sets: Sequence[Sequence[int]], pairs: Pairs) -> dict[tuple[int, int], tuple[int, int]]:
    """Candidates that match, with their numbers."""
    measure = levenshtein if recipe.verify == "edit" else jaccard
    out = {}
    for hi, lo in pairs:
        if recipe.verify == "edit" and max(len(sets[hi]), len(sets[lo])) > recipe.edit_max_chars:
            continue
        shared, union = measure(sets[hi], sets[lo])
        if union and Fraction(shared, union) >= Fraction(recipe.threshold_ppm, 10**6):
            out[hi, lo] = shared, union
    return out


def expected_witness(recipe: Recipe, m: int, matches: dict[tuple[int, int], tuple[int, int]]) -> list[int]:
    """Witness of each head by the rules' words, -1 where it stays."""
    near: list[dict[int, tuple[int, int]]] = [{} for _ in range(m)]
    for (hi, lo), numbers in matches.items():
        near[hi][lo] = near[lo][hi] = numbers
    if recipe.keep == "none":
        return [min(others, default=-1) for others in near]
    witness = [-1] * m
    if recipe.cluster == "connected":
        for start in range(m):
            if witness[start] >= 0:
                continue
            cluster, stack = {start}, [start]
            while stack:
                for other in near[stack.pop()]:
                    if other not in cluster:
                        cluster.add(other)
                        stack.append(other)
            for member in cluster - {start}:
                witness[member] = start
        return witness
    for head in range(m):
        kept = [lo for lo in near[head] if lo < head and witness[lo] < 0]
        if kept and recipe.witness == "best":
            witness[head] = min(kept, key=lambda lo: (-Fraction(*near[head][lo]), lo))
        elif kept:
            witness[head] = min(kept)
    return witness
