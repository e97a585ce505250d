"""Cluster: which heads go, and which head stands for each of them.

    representative  in keeper order a head goes if it matches a head before it that stays; its witness is the
                    lowest-ranked of these (witness=best: the most similar one, the lowest-ranked among equals)
    connected       components of matches; the lowest-ranked head of each stays and is the witness of all others
    keep=none       every head with a match goes; its witness is the lowest-ranked head that it matches

A match is decided by what `verify` compares; here only the order of asking is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from gpu_dedup.backend import BEST, LOWEST, PARTNER, Backend
from gpu_dedup.batch import I64
from gpu_dedup.errors import InternalError
from gpu_dedup.recipe import PPM, Recipe

Progress = Callable[[int], None]


class Verified(Protocol):
    """What `Verifier.join` gives: matches that hold clusters together, a forest."""

    @property
    def hi(self) -> I64: ...
    @property
    def lo(self) -> I64: ...
    @property
    def shared(self) -> I64: ...
    @property
    def union(self) -> I64: ...


class Verifier(Protocol):
    """The part of `gpu_dedup.verify.Verifier` that rules lean on. `pairs` are the candidates: hi, lo, agree."""

    @property
    def counts(self) -> Any: ...
    def sweep(self, pairs: Any, rule: int, witness: I64, shared: I64, union: I64, progress: Progress, /) -> None: ...
    def join(self, pairs: Any, m: int, progress: Progress, /) -> Verified: ...
    def measure(self, pairs: Any, left: I64, right: I64, /) -> tuple[I64, I64]: ...


@dataclass(frozen=True)
class Decision:
    """One entry per head, in keeper order.

    witness         int64[m] the head that stands for one that goes; -1 where it stays
    shared, union   int64[m] similarity with the witness as whole numbers; -1 where it stays or it is unknown
    linked          int64[m] cluster=connected: the neighbour through which a head that goes hangs on its cluster
                    (its parent in the breadth-first tree, from the kept head, over the matches taken); else -1
    linked_shared, linked_union   int64[m] similarity with that neighbour
    stats           verified, matched, over_cap, components, largest_component: see `verify.Counts`
                    parts: loads of items; alone in depending on the memory
                    clusters: heads that stand for another one; largest_cluster: heads of the largest, with its witness
                    weakest: [shared, union] of the least similar head that goes and its witness; None if unknown
                    longest_chain: matches in a row from a head that goes to its witness, at most (above 1 only under
                    cluster=connected)
    """

    witness: I64
    shared: I64
    union: I64
    linked: I64
    linked_shared: I64
    linked_union: I64
    stats: dict[str, Any] = field(default_factory=dict)


def decide(
    candidates: Any, m: int, recipe: Recipe, backend: Backend, verifier: Verifier, progress: Progress
) -> Decision:
    """Decide which of m heads go.

    candidates  hi, lo, agree int64[p]: lo < hi, sorted by (hi, lo), unique
    recipe      settled
    verifier    `verify.Verifier` over the same recipe, backend and heads
    progress    told the number of candidates done with; p in all

    The decision depends on candidates, recipe and items alone: not on backend, memory, parts or threads.
    Raises InternalError if candidates break their promise or a witness does not hold.
    """
    witness, shared, union = (np.full(m, -1, np.int64) for _ in range(3))
    linked, linked_shared, linked_union = (np.full(m, -1, np.int64) for _ in range(3))
    longest = 0
    if recipe.cluster == "connected":
        forest = verifier.join(candidates, m, progress)
        parent, root, depth = backend.tree(m, forest.hi, forest.lo)
        gone = np.flatnonzero(parent >= 0)
        witness[gone], linked[gone] = root[gone], parent[gone]
        # of the two ends of a match, the child is the one that has the other for its parent
        child = np.where(parent[forest.hi] == forest.lo, forest.hi, forest.lo)
        linked_shared[child], linked_union[child] = forest.shared, forest.union
        near, far = np.flatnonzero(depth == 1), np.flatnonzero(depth > 1)
        shared[near], union[near] = linked_shared[near], linked_union[near]
        shared[far], union[far] = verifier.measure(candidates, far, root[far])
        longest = int(depth.max()) if m else 0
    else:
        rule = PARTNER if recipe.keep == "none" else BEST if recipe.witness == "best" else LOWEST
        verifier.sweep(candidates, rule, witness, shared, union, progress)
        longest = int((witness >= 0).any())
    _hold(recipe, witness, shared, union)

    counts = verifier.counts
    stats: dict[str, Any] = {
        name: getattr(counts, name)
        for name in ("verified", "matched", "over_cap", "parts", "components", "largest_component")
    }
    gone = np.flatnonzero(witness >= 0)
    sizes = np.unique(witness[gone], return_counts=True)[1]
    stats["clusters"] = len(sizes)
    stats["largest_cluster"] = int(sizes.max()) + 1 if len(sizes) else 0
    stats["weakest"] = _weakest(shared[gone], union[gone])
    stats["longest_chain"] = longest
    return Decision(witness, shared, union, linked, linked_shared, linked_union, stats)


def _hold(recipe: Recipe, witness: I64, shared: I64, union: I64) -> None:
    """Every head that goes names one that stays and ranks before it, and is a match of it where the rule says so."""
    gone = np.flatnonzero(witness >= 0)
    if recipe.keep != "none" and not bool(((witness[gone] < gone) & (witness[witness[gone]] < 0)).all()):
        raise InternalError("a head that goes names a witness that does not stay")
    if recipe.cluster == "representative" and recipe.verify != "none":
        both, whole = shared[gone], union[gone]
        if not bool(((whole > 0) & (both * PPM >= recipe.threshold_ppm * whole)).all()):
            raise InternalError("a head that goes names a witness below the threshold")


def _weakest(shared: I64, union: I64) -> list[int] | None:
    """[shared, union] of the least similarity; None if there is none that is known."""
    known = union > 0
    if not known.any():
        return None
    shared, union = shared[known], union[known]
    share = shared / union  # rounding keeps the order of fractions, though it may make neighbours equal
    least = share == share.min()
    lowest = sorted(set(zip(shared[least].tolist(), union[least].tolist(), strict=True)))
    return list(min(lowest, key=lambda pair: Fraction(*pair)))
