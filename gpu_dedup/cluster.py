"""Cluster: which heads go, and which head stands for each of them.

    representative  in keeper order a head goes if it matches a head before it that stays; its witness is the
                    lowest-ranked of these (witness=best: the most similar one, the lowest-ranked among equals)
    connected       components of matches; the lowest-ranked head of each stays and is the witness of all others
    keep=none       every head with a match goes; its witness is the lowest-ranked head that it matches

A match is decided by what `verify` compares; here only the order of asking is known.

Candidates come as a list of pairs, or as a `Crowd`: groups of heads that are all candidates of one another, and of all
heads of neighbouring groups. A crowd of m heads has up to m * m / 2 pairs, so they are made when they are asked for:
under `representative` and a keeper a head is held against those that stay alone, in the order of a list of all pairs
and with the same answer. So a group of m copies costs m comparisons. Under `connected` and keep=none every pair counts;
they are made in runs, and where they are more than MOST_PAIRS the run ends with the figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from gpu_dedup.backend import BEST, LOWEST, PARTNER, Backend
from gpu_dedup.batch import I64, Bool, absent, pack_pairs, unpack_pairs
from gpu_dedup.errors import InternalError, RunError
from gpu_dedup.recipe import PPM, Recipe

Progress = Callable[[int], None]

CROWD_PAIRS = 1 << 21  # pairs of a crowd that are made at a time: some 60 bytes each
NEAR_LEVEL, FAR_LEVEL = 1, 2  # of a match, as in kernels/levels_ref.py
STAYS_STATE, FLAGGED_STATE, REMOVED_STATE = 0, 1, 2
MAX_ROUNDS = 32  # of asking for far matches
MOST_PAIRS = 1 << 36  # pairs of a crowd that are made where a rule needs all of them: half an hour of a core


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
    def join(self, pairs: Any, m: int, progress: Progress, parent: I64 | None = None, /) -> Verified: ...
    def measure(self, pairs: Any, left: I64, right: I64, /) -> tuple[I64, I64]: ...


@dataclass(frozen=True)
class Decision:
    """One entry per head, in keeper order.

    witness         int64[m] the head that stands for one that goes; -1 where it stays
    shared, union   int64[m] similarity with the witness as whole numbers; -1 where it stays or it is unknown
    linked          int64[m] cluster=connected: the neighbour through which a head that goes hangs on its cluster
                    (its parent in the breadth-first tree, from the kept head, over the matches taken); else -1
    linked_shared, linked_union   int64[m] similarity with that neighbour
    distance        int64[m] bits in which the fingerprints of a head and its witness differ; -1 where nobody asked
    level, flagged  int64[m], bool[m], of the method with levels alone: the level of the match with the witness, -1
                    where a head stays; the match is for review, and the head is not removed
    edit_same, edit_longest   int64[m], likewise: code points behind the Levenshtein similarity with the witness of a
                    far match, else -1
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
    distance: I64
    stats: dict[str, Any] = field(default_factory=dict)
    level: I64 | None = None
    flagged: Bool | None = None
    edit_same: I64 | None = None
    edit_longest: I64 | None = None


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
    out = _Deciding(m, recipe, backend, verifier)
    if recipe.cluster == "connected":
        out.connect(candidates, verifier.join(candidates, m, progress))
    else:
        verifier.sweep(candidates, out.rule, out.witness, out.shared, out.union, progress)
    return out.decision()


@dataclass(frozen=True)
class Gone:
    """A decision as it is kept: entries for the heads that go alone, q of all of them; see `Decision`.

    head, witness   int64[q] ranks; head is ascending
    distance, level, flagged  None where nobody asked; linked and its numbers: only under cluster=connected
    """

    head: I64
    witness: I64
    shared: I64
    union: I64
    linked: I64 | None = None
    linked_shared: I64 | None = None
    linked_union: I64 | None = None
    distance: I64 | None = None
    level: I64 | None = None
    flagged: Bool | None = None
    edit_same: I64 | None = None
    edit_longest: I64 | None = None
    stats: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.head)

    @classmethod
    def of(cls, decision: Decision, recipe: Recipe, ranks: I64 | None = None) -> Gone:
        """ranks: ascending, of the heads that the decision is about; None: of all heads."""
        gone = np.flatnonzero(decision.witness >= 0)

        def named(numbers: I64) -> I64:
            return numbers if ranks is None else ranks[numbers]

        connected = recipe.cluster == "connected"
        return cls(
            named(gone),
            named(decision.witness[gone]),
            decision.shared[gone],
            decision.union[gone],
            named(decision.linked[gone]) if connected else None,
            decision.linked_shared[gone] if connected else None,
            decision.linked_union[gone] if connected else None,
            decision.distance[gone] if recipe.printed else None,
            None if decision.level is None else decision.level[gone],
            None if decision.flagged is None else decision.flagged[gone],
            None if decision.edit_same is None else decision.edit_same[gone],
            None if decision.edit_longest is None else decision.edit_longest[gone],
            decision.stats,
        )


class Groups(Protocol):
    """Heads in groups, as `hamming.join` gives them: a head is a candidate of all of its group and of those next to it.

    leader  int64[m]: lowest head of each one's group
    hi, lo  int64[p]: leaders of neighbouring groups
    count   pairs of heads in groups and between neighbours
    """

    @property
    def leader(self) -> I64: ...
    @property
    def hi(self) -> I64: ...
    @property
    def lo(self) -> I64: ...
    @property
    def count(self) -> int: ...


def decide_crowd(
    crowd: Crowd, m: int, recipe: Recipe, backend: Backend, verifier: Verifier, progress: Progress
) -> Decision:
    """`decide` over all pairs of neighbours, which are never in memory together.

    progress  told the number of heads done with; those that have a candidate in all

    Raises RunError where cluster=connected or keep=none would look at more than MOST_PAIRS pairs.
    """
    out = _Deciding(m, recipe, backend, verifier)
    every = crowd.heads
    if recipe.cluster != "connected" and out.rule != PARTNER:
        _settle(out, crowd, every, progress)
    else:
        if crowd.total > MOST_PAIRS:
            which = "cluster connected" if recipe.cluster == "connected" else "keep none"
            raise RunError(
                f"{crowd.total:,} pairs of texts are near, over the {MOST_PAIRS:,} that {which} looks at; use "
                "cluster representative with another keeper, lower --distance, or drop common parts of the texts"
            )
        parent = np.arange(m, dtype=np.int64)
        found: list[Verified] = []
        for run in crowd.runs(every, None):
            pairs = crowd.pairs(run, None)
            if recipe.cluster == "connected":
                found.append(verifier.join(pairs, m, lambda done: None, parent))
            else:
                verifier.sweep(pairs, PARTNER, out.witness, out.shared, out.union, lambda done: None)
            progress(len(run))
        if recipe.cluster == "connected":
            out.connect(NO_PAIRS, Forest.of(found))
    counts = verifier.counts
    label = backend.components(m, *crowd.edges())
    sizes = np.bincount(label[every], minlength=m) if len(every) else np.zeros(1, np.int64)
    counts.components, counts.largest_component = int(np.count_nonzero(sizes)), int(sizes.max())
    return out.decision()


@dataclass(frozen=True)
class FarMatches:
    """What a judge says of far pairs that it was asked about.

    matched        bool[q]
    shared, union  int64[q] of those that match
    same, longest  int64[q] of those that match: code points behind their Levenshtein similarity
    """

    matched: Bool
    shared: I64
    union: I64
    same: I64
    longest: I64


def decide_levels(
    crowd: Crowd, m: int, far: FarPairs, judge: Callable[[I64], FarMatches], recipe: Recipe, backend: Backend,
    counts: dict[str, int],
) -> Decision:  # fmt: skip
    """Decide under two kinds of match: near ones of a crowd, far ones pair by pair; see kernels/levels_ref.py.

    far     pairs that may be far matches, none of them near: hi, lo sorted by (hi, lo), each once
    judge   tells which of these pairs (by number, ascending) match
    counts  verified and over_cap, for the stats, when all has been asked

    Lazily, in rounds: all is decided as if pairs that nobody has judged were none; those that would change what becomes
    of their later head, given what has become of the earlier one, are judged next, for each head the first one, then
    the next two, four ... When none would change anything, this is the decision over all pairs: of the lowest head with
    another one some pair that was not judged would have mattered. Which pairs are judged depends on nothing else.
    """
    group, first, neighbours = crowd.graph
    waiting = np.arange(len(far.hi), dtype=np.int64)
    found = _Found()
    for turn in range(MAX_ROUNDS + 1):
        at, numbers = found.sorted()
        witness, level, state = backend.levels(
            group, first, neighbours, far.hi[at], far.lo[at], recipe.near_flags, recipe.far_flags
        )
        asked = np.flatnonzero(_matters(far.hi[waiting], far.lo[waiting], witness, state, recipe.far_flags, m))
        if not len(asked):
            break
        if turn < MAX_ROUNDS - 1:
            asked = asked[_place_in_run(far.hi[waiting[asked]]) < 1 << turn]
        else:  # a long chain, each link of which waits for the one before: all that is left, at once
            asked = np.arange(len(waiting))
        chosen = waiting[asked]
        found.add(chosen, judge(chosen))
        waiting = np.delete(waiting, asked)
    gone = np.flatnonzero(witness >= 0)
    none = [np.full(m, -1, np.int64) for _ in range(8)]
    shared, union = none[0], none[1]
    by_far = np.flatnonzero(level == FAR_LEVEL)
    if len(by_far):
        place = np.searchsorted(pack_pairs(far.hi[at], far.lo[at]), pack_pairs(by_far, witness[by_far]))
        for column, number in zip((shared, union, none[6], none[7]), numbers, strict=True):
            column[by_far] = number[place]
    if not bool(((witness[gone] < gone) & (state[witness[gone]] != REMOVED_STATE)).all()):
        raise InternalError("a head that goes names a witness that does not stay")
    left, right = crowd.edges()
    label = backend.components(m, np.concatenate([left, far.hi[at]]), np.concatenate([right, far.lo[at]]))
    sizes = np.bincount(label, minlength=1)
    many = sizes[sizes > 1]
    stands = np.unique(witness[gone], return_counts=True)[1]
    stats: dict[str, Any] = {
        **counts,
        "matched": crowd.total + len(at),
        "parts": 0,
        "components": len(many),
        "largest_component": int(many.max()) if len(many) else 0,
        "clusters": len(stands),
        "largest_cluster": int(stands.max()) + 1 if len(stands) else 0,
        "weakest": _weakest(shared[by_far], union[by_far]),
        "longest_chain": int(len(gone) > 0),
    }
    flagged = np.asarray(state == FLAGGED_STATE, np.bool_)
    return Decision(witness, shared, union, none[2], none[3], none[4], none[5], stats, level, flagged, none[6], none[7])


def _matters(hi: I64, lo: I64, witness: I64, state: I64, far_flags: bool, m: int) -> Bool:
    """bool[q]: if this pair matched, and nothing else were different, another thing would become of its later head."""
    before = np.where(witness < 0, m, witness)
    lower = lo < before[hi]  # than the witness that it has
    if far_flags:
        return np.asarray((state[lo] == STAYS_STATE) & (state[hi] != REMOVED_STATE) & lower, np.bool_)
    return np.asarray((state[lo] != REMOVED_STATE) & ((state[hi] != REMOVED_STATE) | lower), np.bool_)


def _place_in_run(values: I64) -> I64:
    """int64[q]: place of each item in its run of equal ones."""
    begins = np.concatenate([[True], values[1:] != values[:-1]])
    place = np.arange(len(values), dtype=np.int64)
    out: I64 = place - place[begins][np.cumsum(begins) - 1]
    return out


class _Found:
    """Far matches as they are found, by the numbers of their pairs."""

    def __init__(self) -> None:
        self._parts = [np.zeros((5, 0), np.int64)]

    def add(self, chosen: I64, told: FarMatches) -> None:
        here = np.flatnonzero(told.matched)
        columns = (chosen, told.shared, told.union, told.same, told.longest)
        self._parts.append(np.stack([column[here] for column in columns]))

    def sorted(self) -> tuple[I64, I64]:
        """Numbers of pairs, ascending, and int64[4, q]: shared, union, same, longest."""
        every = np.concatenate(self._parts, axis=1)
        every = every[:, np.argsort(every[0], kind="stable")]
        self._parts = [every]
        return every[0], every[1:]


def _settle(out: _Deciding, crowd: Crowd, block: I64, progress: Progress) -> None:
    """Decide about a block of heads in keeper order, all of which have been held against those that stay before it."""
    if not len(block):
        return
    staying = block[out.witness[block] < 0]
    asking = staying if out.rule == LOWEST else block
    if len(block) == 1 or crowd.count(asking, staying) <= 2 * CROWD_PAIRS:
        _sweep(out, crowd, asking, staying)
        progress(len(block))
        return
    half = len(block) // 2
    first, second = block[:half], block[half:]
    _settle(out, crowd, first, progress)
    # What stays of the first half is final, and comes before the second in every head's order of asking.
    staying = first[out.witness[first] < 0]
    asking = second[out.witness[second] < 0] if out.rule == LOWEST else second
    for run in crowd.runs(asking, staying):
        _sweep(out, crowd, run, staying)
    _settle(out, crowd, second, progress)


def _sweep(out: _Deciding, crowd: Crowd, asking: I64, staying: I64) -> None:
    pairs = crowd.pairs(asking, staying)
    if len(pairs.hi):
        out.verifier.sweep(pairs, out.rule, out.witness, out.shared, out.union, lambda done: None)


class FarPairs(Protocol):
    """Pairs: hi > lo, sorted by (hi, lo), each once."""

    @property
    def hi(self) -> I64: ...
    @property
    def lo(self) -> I64: ...


@dataclass(frozen=True)
class Pairs:
    """Candidates: hi > lo, sorted by (hi, lo), each once. agree is 0: there are no slots."""

    hi: I64
    lo: I64

    @property
    def agree(self) -> I64:
        return np.zeros(len(self.hi), np.int64)


NO_PAIRS = Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True)
class Forest:
    """Matches of several runs together."""

    hi: I64
    lo: I64
    shared: I64
    union: I64

    @classmethod
    def of(cls, parts: list[Verified]) -> Forest:
        none = np.zeros(0, np.int64)
        names = ("hi", "lo", "shared", "union")
        return cls(*(np.concatenate([none, *(getattr(part, name) for part in parts)]) for name in names))


class Crowd:
    """Pairs of heads in the same or neighbouring groups, made when asked for. Numbers of heads are ranks.

    heads  int64[h]: those that have a candidate at all, ascending
    total  number of pairs
    """

    def __init__(self, groups: Groups, m: int) -> None:
        leader = groups.leader
        self.total = groups.count
        size = np.bincount(leader, minlength=m) if m else np.zeros(0, np.int64)
        met = size > 1
        met[groups.hi] = True
        met[groups.lo] = True
        self._leader, self._hi, self._lo = leader, groups.hi, groups.lo
        self.heads: I64 = np.flatnonzero(met[leader]) if m else np.zeros(0, np.int64)
        names = np.flatnonzero(met)  # leaders of groups that matter; their places are the groups' numbers
        self._group = np.full(m, -1, np.int64)
        self._group[self.heads] = np.searchsorted(names, leader[self.heads])
        # Members of each group, ascending, and its neighbours, itself first.
        self._members = self.heads[np.argsort(self._group[self.heads], kind="stable")]
        self._begin = np.concatenate([[0], np.cumsum(size[names])]).astype(np.int64)
        own = np.arange(len(names), dtype=np.int64)
        one, other = np.searchsorted(names, groups.hi), np.searchsorted(names, groups.lo)
        source = np.concatenate([own, one, other])
        order = np.argsort(source, kind="stable")
        self._next = np.concatenate([own, other, one])[order].astype(np.int64)
        self._first = np.searchsorted(source[order], np.arange(len(names) + 1)).astype(np.int64)

    @property
    def graph(self) -> tuple[I64, I64, I64]:
        """group int64[m] of each head, -1 for none; first, neighbours: those next to each group, itself among them."""
        return self._group, self._first, self._next

    def edges(self) -> tuple[I64, I64]:
        """left, right int64: few pairs that hold together what all pairs hold together."""
        members = self.heads[self._leader[self.heads] != self.heads]
        return np.concatenate([members, self._hi]), np.concatenate([self._leader[members], self._lo])

    def _around(self, group: I64) -> tuple[I64, I64]:
        """place in `group` and number of each neighbour of these groups."""
        count = self._first[group + 1] - self._first[group]
        place = np.repeat(np.arange(len(group)), count)
        inside = np.arange(len(place)) - np.repeat(np.cumsum(count) - count, count)
        return place, self._next[np.repeat(self._first[group], count) + inside]

    def _partners(self, asking: I64, others: I64 | None) -> I64:
        """int64: how many of `others` (None: all heads) are in a group next to each that asks, itself perhaps too."""
        many = np.diff(self._begin)
        if others is not None:
            many = np.bincount(self._group[others], minlength=len(many))
        groups, where = np.unique(self._group[asking], return_inverse=True)
        place, near = self._around(groups)
        each = np.bincount(place, weights=many[near], minlength=len(groups)).astype(np.int64)  # exact below 2**53
        return each[where.reshape(-1)]

    def count(self, asking: I64, others: I64) -> int:
        """Pairs of one that asks and one of the others, in either order of rank, one with itself too."""
        return int(self._partners(asking, others).sum())

    def runs(self, asking: I64, others: I64 | None) -> Iterator[I64]:
        """The heads that ask (ascending) in runs of some CROWD_PAIRS pairs, one head or more."""
        ends = np.cumsum(self._partners(asking, others))
        first = 0
        while first < len(asking):
            before = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + CROWD_PAIRS, "right")))
            yield asking[first:last]
            first = last

    def pairs(self, asking: I64, others: I64 | None) -> Pairs:
        """All pairs (hi, lo) of one that asks and a lower one of the others (None: all heads), both ascending."""
        members, begin = self._members, self._begin
        if others is not None:
            group = self._group[others]
            members = others[np.argsort(group, kind="stable")]
            begin = np.concatenate([[0], np.cumsum(np.bincount(group, minlength=len(begin) - 1))]).astype(np.int64)
        place, near = self._around(self._group[asking])
        count = begin[near + 1] - begin[near]
        hi = np.repeat(asking[place], count)
        inside = np.arange(len(hi)) - np.repeat(np.cumsum(count) - count, count)
        lo = members[np.repeat(begin[near], count) + inside]
        packed = pack_pairs(hi[lo < hi], lo[lo < hi])
        packed.sort()
        return Pairs(*unpack_pairs(packed))


class _Deciding:
    """A decision in the making: the state of every head."""

    def __init__(self, m: int, recipe: Recipe, backend: Backend, verifier: Verifier) -> None:
        self.m, self.recipe, self.backend, self.verifier = m, recipe, backend, verifier
        self.witness, self.shared, self.union = (np.full(m, -1, np.int64) for _ in range(3))
        self.linked, self.linked_shared, self.linked_union = (
            np.full(m, -1, np.int64) if recipe.cluster == "connected" else absent(m) for _ in range(3)
        )
        self.chain: int | None = None
        self.rule = PARTNER if recipe.keep == "none" else BEST if recipe.witness == "best" else LOWEST

    def connect(self, candidates: Any, forest: Verified) -> None:
        """cluster=connected: who goes, from the matches that hold clusters together."""
        parent, root, depth = self.backend.tree(self.m, forest.hi, forest.lo)
        gone = np.flatnonzero(parent >= 0)
        self.witness[gone], self.linked[gone] = root[gone], parent[gone]
        # of the two ends of a match, the child is the one that has the other for its parent
        child = np.where(parent[forest.hi] == forest.lo, forest.hi, forest.lo)
        self.linked_shared[child], self.linked_union[child] = forest.shared, forest.union
        near, far = np.flatnonzero(depth == 1), np.flatnonzero(depth > 1)
        self.shared[near], self.union[near] = self.linked_shared[near], self.linked_union[near]
        self.shared[far], self.union[far] = self.verifier.measure(candidates, far, root[far])
        self.chain = int(depth.max()) if self.m else 0

    def decision(self) -> Decision:
        """The decision with its counts. Raises InternalError where a witness does not hold."""
        witness, shared, union = self.witness, self.shared, self.union
        _hold(self.recipe, witness, shared, union)
        counts = self.verifier.counts
        stats: dict[str, Any] = {
            name: getattr(counts, name)
            for name in ("verified", "matched", "over_cap", "parts", "components", "largest_component")
        }
        gone = np.flatnonzero(witness >= 0)
        sizes = np.unique(witness[gone], return_counts=True)[1]
        stats["clusters"] = len(sizes)
        stats["largest_cluster"] = int(sizes.max()) + 1 if len(sizes) else 0
        stats["weakest"] = _weakest(shared[gone], union[gone])
        stats["longest_chain"] = int((witness >= 0).any()) if self.chain is None else self.chain
        none = np.full(self.m, -1, np.int64) if self.recipe.printed else absent(self.m)
        return Decision(witness, shared, union, self.linked, self.linked_shared, self.linked_union, none, stats)


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
