"""Verify: the true similarity of candidate pairs, computed only where a rule of `cluster` asks for it.

What is compared (shingle sets, code points) is too much to hold for all heads at once. Candidates fall into components
that never meet, so whole components are packed into parts that fit in memory; a part is loaded, and its components are
walked by threads, each in the order that the rule needs. A component larger than the memory is walked in pieces, in an
order that asks for the same pairs. So neither the answer nor the number of pairs looked at depends on memory or
threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpu_dedup.backend import BEST, LOWEST, PARTNER, Backend
from gpu_dedup.batch import I64, Bool, pack_pairs
from gpu_dedup.errors import InternalError
from gpu_dedup.recipe import Recipe

Array = npt.NDArray[Any]
Progress = Callable[[int], None]

SLICE_BYTES = 16 << 20  # a part is loaded in slices of at least so much, side by side
MAX_SLICES = 64
TASK_BYTES = 4 << 20  # a part is walked in tasks that compare at least so much
MAX_TASKS = 128
WINDOW = 1 << 16  # pairs that are looked at together where not all of a component fits
NO_LIMIT = 1 << 62


class Pairs(Protocol):
    """Candidates: hi, lo int64[p] with lo < hi, sorted by (hi, lo), unique; agree int64[p] equal sketch slots."""

    @property
    def hi(self) -> I64: ...
    @property
    def lo(self) -> I64: ...
    @property
    def agree(self) -> I64: ...


class ItemSource(Protocol):
    """Where the compared things come from. `load` is called from several threads at once."""

    def load(self, heads: I64, /) -> tuple[Any, I64]:
        """items, offsets int64[len(heads) + 1] of ascending heads: shingle sets (uint64, ascending and unique) under
        verify=exact, code points (uint32) under verify=edit."""
        ...


@dataclass(frozen=True)
class Whole:
    """All items that verification may ask for, in memory.

    items, offsets int64[n + 1]   as `ItemSource.load` gives them, of n heads in any order
    place int64[m]                head -> its number among them
    heads int64[n]                number -> head
    """

    items: Any
    offsets: I64
    place: I64
    heads: I64


class ParallelMap(Protocol):
    """Results in the order of the items, worked out by threads."""

    def __call__(self, work: Callable[[Any], Any], items: Iterable[Any], /) -> Iterator[Any]: ...


@dataclass
class Counts:
    """What verification did. Only `parts` depends on the memory."""

    verified: int = 0  # pairs whose similarity was computed
    matched: int = 0  # of these, at the threshold or above
    over_cap: int = 0  # pairs that a rule asked for, with a text over edit_max_chars: no match
    parts: int = 0  # loads of whole components; a component in pieces counts as one
    components: int = 0  # sets of heads that candidates hold together
    largest_component: int = 0  # heads in the largest

    def add(self, counts: tuple[int, int, int]) -> None:
        self.verified += counts[0]
        self.matched += counts[1]
        self.over_cap += counts[2]


@dataclass(frozen=True)
class Forest:
    """Matches that join components, each with its numbers: hi, lo, shared, union int64[q]."""

    hi: I64
    lo: I64
    shared: I64
    union: I64


@dataclass(frozen=True)
class _Part:
    """Components that are loaded together.

    heads  int64[h], ascending
    tasks  pairs of each task: positions in the candidates, in (hi, lo) order; a slice where they stand together
    fits   False for one component that is larger than a part may be
    """

    heads: I64
    tasks: list[slice | I64]
    fits: bool


class Verifier:
    """Similarities of heads, within a memory, by threads.

    recipe        settled
    items         None if nothing is loaded: verify=signature, verify=none, or no candidates
    sizes         int64[m]: at most so many bytes of items for each head
    memory        bytes of items that may be held at once; never less than two heads
    parallel_map  called from one thread only
    agreements    equal slots of pairs of heads (int64, int64 -> int64), for pairs that are no candidates:
                  verify=signature measures the rows of connected clusters with it; their similarity is unknown (-1)
                  without it
    whole         what `items` would load, if it is in memory; then `memory` means nothing
    """

    def __init__(
        self,
        recipe: Recipe,
        backend: Backend,
        items: ItemSource | None,
        sizes: I64,
        memory: int,
        parallel_map: ParallelMap,
        agreements: Callable[[I64, I64], I64] | None = None,
        whole: Whole | None = None,
    ) -> None:
        self.counts = Counts()
        self._recipe = recipe
        self._backend = backend
        self._items = items
        self._sizes = sizes
        # While slices of a part are put together, and while a block is put beside another, everything is there twice.
        self._room = max(memory // 2, 1) if whole is None else NO_LIMIT
        self._whole = whole
        self._map = parallel_map
        self._agreements = agreements
        self._ppm = recipe.threshold_ppm
        self._limit = recipe.edit_max_chars if recipe.verify == "edit" else NO_LIMIT
        self._known = recipe.verify in ("signature", "none")
        self._local = np.empty(0, np.int64)

    # ---- the three things that rules ask for -------------------------------------------------------------------------

    def sweep(self, pairs: Pairs, rule: int, witness: I64, shared: I64, union: I64, progress: Progress) -> None:
        """Find the heads that go under a rule (LOWEST, BEST, PARTNER of `backend`), and their witness.

        witness, shared, union  int64[m], changed: -1 where a head stays
        progress                told the number of candidates done with, now and then; all of them in the end
        """
        self._check(pairs, len(witness))
        state = (witness, shared, union)
        if self._known:
            nodes = np.arange(len(witness), dtype=np.int64)
            items, whole = self._similarities(pairs)
            counts = self._backend.sweep(items, whole, pairs.hi, pairs.lo, self._ppm, self._limit, rule, nodes, *state)
            self._plan(pairs, len(witness), only_count=True)
            self._count_known(counts)
            progress(len(pairs.hi))
            return
        for part in self._plan(pairs, len(witness)):
            if part.fits:

                def work(items: Any, offsets: I64, left: I64, right: I64, nodes: I64) -> tuple[int, int, int]:
                    return self._backend.sweep(items, offsets, left, right, self._ppm, self._limit, rule, nodes, *state)

                for _, counts in self._walk(pairs, part, work, progress):
                    self.counts.add(counts)
            else:
                self._sweep_in_blocks(pairs, part, rule, state, progress)

    def join(self, pairs: Pairs, m: int, progress: Progress, parent: I64 | None = None) -> Forest:
        """Matches that hold the clusters of all matches together, taken in the order of the candidates: a pair inside a
        cluster is not looked at. They are a forest; its components are those of all matches.

        parent  int64[m], changed: the union-find that earlier calls over other pairs left; None for the first
        """
        self._check(pairs, m)
        if parent is None:
            parent = np.arange(m, dtype=np.int64)
        found: list[tuple[I64, I64, I64, I64]] = []
        if self._known:
            items, whole = self._similarities(pairs)
            nodes = np.arange(m, dtype=np.int64)
            taken, shared, union, counts = self._backend.join(
                items, whole, pairs.hi, pairs.lo, self._ppm, self._limit, nodes, parent
            )
            self._plan(pairs, m, only_count=True)
            self._count_known(counts)
            progress(len(pairs.hi))
            return Forest(pairs.hi[taken], pairs.lo[taken], shared, union)
        for part in self._plan(pairs, m):
            if part.fits:

                def work(items: Any, offsets: I64, left: I64, right: I64, nodes: I64) -> Any:
                    return self._backend.join(items, offsets, left, right, self._ppm, self._limit, nodes, parent)

                for task, (taken, shared, union, counts) in self._walk(pairs, part, work, progress):
                    self.counts.add(counts)
                    found.append((pairs.hi[task][taken], pairs.lo[task][taken], shared, union))
            else:
                found += self._join_in_windows(pairs, part, parent, progress)
        columns = [np.concatenate([f[c] for f in found]) if found else np.empty(0, np.int64) for c in range(4)]
        return Forest(*columns)

    def measure(self, pairs: Pairs, left: I64, right: I64, least_ppm: int = 0) -> tuple[I64, I64]:
        """shared, union int64[q] of chosen pairs of heads, right < left; -1 if unknown.

        least_ppm  under verify=edit, shared is -1 for pairs below this similarity, which is found out sooner
        """
        q = len(left)
        shared, union = np.full(q, -1, np.int64), np.full(q, -1, np.int64)
        if q == 0 or self._recipe.verify == "none":
            return shared, union
        if self._recipe.verify == "signature":
            if self._agreements is not None:
                return self._agreements(left, right), np.full(q, self._recipe.slots, np.int64)
            at, there = _find_pairs(pairs, left, right)
            shared[there] = pairs.agree[at[there]]
            union[there] = self._recipe.slots
            return shared, union
        order = np.lexsort((left, right))  # pairs with one head in common stand together
        done = 0
        while done < q:
            window = order[done : done + WINDOW]
            window = window[: self._fitting(left[window], right[window])]
            done += len(window)
            one, other = left[window], right[window]
            items, offsets, local, _ = self._at_hand(_members(one, other))
            cuts = np.array_split(np.arange(len(window)), min(len(window), MAX_TASKS))

            def work(
                cut: I64, items: Any = items, offsets: I64 = offsets, one: I64 = local[one], other: I64 = local[other]
            ) -> tuple[I64, I64]:
                if self._recipe.verify == "exact":
                    return self._backend.jaccard(items, offsets, one[cut], other[cut])
                return self._backend.edit(items, offsets, one[cut], other[cut], least_ppm)

            for cut, (both, whole) in zip(cuts, self._map(work, cuts), strict=True):
                shared[window[cut]], union[window[cut]] = both, whole
        return shared, union

    # ---- similarities that are known already -------------------------------------------------------------------------

    def _similarities(self, pairs: Pairs) -> tuple[I64, I64]:
        whole = self._recipe.slots if self._recipe.verify == "signature" else -1
        return pairs.agree, np.array([whole], np.int64)

    def _count_known(self, counts: tuple[int, int, int]) -> None:
        self.counts.add(counts)
        if self._recipe.verify == "none":
            self.counts.verified = 0

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _check(self, pairs: Pairs, m: int) -> None:
        hi, lo = pairs.hi, pairs.lo
        if not len(hi):
            return
        rising = (hi[1:] > hi[:-1]) | ((hi[1:] == hi[:-1]) & (lo[1:] > lo[:-1]))
        if int(lo.min()) < 0 or int(hi[-1]) >= m or bool((lo >= hi).any()) or not bool(rising.all()):
            raise InternalError("candidates must be pairs lo < hi of heads, sorted by (hi, lo), each once")
        if not self._known and self._items is None:
            raise InternalError(f"verify={self._recipe.verify} needs a source of items")

    def _plan(self, pairs: Pairs, m: int, only_count: bool = False) -> list[_Part]:
        """Parts that hold every component of the candidates once, in the order of their lowest heads."""
        hi, lo = pairs.hi, pairs.lo
        if not len(hi):
            return []
        label = self._backend.components(m, hi, lo)
        member = np.zeros(m, np.bool_)
        member[hi] = True
        member[lo] = True
        heads = np.flatnonzero(member)
        number = np.zeros(m, np.int64)
        lowest = heads[label[heads] == heads]
        number[lowest] = np.arange(len(lowest))
        component = number[label[heads]]
        self.counts.components = len(lowest)
        self.counts.largest_component = int(np.bincount(component).max())
        if only_count:
            return []
        # (sums of whole numbers below 2**53: exact in the float64 of bincount)
        weight = np.bincount(component, self._sizes[heads], len(lowest)).astype(np.int64)
        pair_component = number[label[hi]]
        cost = np.bincount(pair_component, self._sizes[hi] + self._sizes[lo] + 64, len(lowest)).astype(np.int64)

        part_of = np.empty(len(lowest), np.int64)
        task_of = np.empty(len(lowest), np.int64)
        large = np.flatnonzero(weight > self._room)
        small = np.flatnonzero(weight <= self._room)
        groups = [small[start:stop] for start, stop in _packed(weight[small], self._room)] + [
            large[[i]] for i in range(len(large))
        ]
        tasks = 0
        ends = []
        for part, group in enumerate(groups):
            part_of[group] = part
            before = np.cumsum(cost[group]) - cost[group]
            least = max(int(cost[group].sum()) // MAX_TASKS, TASK_BYTES)
            task_of[group] = tasks + np.unique(before // least, return_inverse=True)[1]
            tasks = int(task_of[group[-1]]) + 1
            ends.append(tasks)
        self.counts.parts += len(groups)

        by_task: list[slice | I64]
        if tasks == 1:
            by_task = [slice(0, len(hi))]
        else:
            task = task_of[pair_component]
            # narrow keys are sorted by counting
            order = np.argsort(task.astype(np.uint16) if tasks <= 1 << 16 else task, kind="stable")
            by_task = list(np.split(order, np.cumsum(np.bincount(task, minlength=tasks))[:-1]))
        head_part = part_of[component]
        by_part = np.split(
            heads[np.argsort(head_part, kind="stable")], np.cumsum(np.bincount(head_part, minlength=len(groups)))[:-1]
        )
        starts = [0, *ends[:-1]]
        fits = len(groups) - len(large)
        return [_Part(by_part[i], by_task[starts[i] : ends[i]], i < fits) for i in range(len(groups))]

    def _walk(
        self, pairs: Pairs, part: _Part, work: Callable[..., Any], progress: Progress
    ) -> Iterator[tuple[slice | I64, Any]]:
        """(task, work(items, offsets, left, right, heads)) for each task of a part that fits, in order."""
        items, offsets, local, heads = self._at_hand(part.heads)

        def run(task: slice | I64) -> Any:
            return work(items, offsets, local[pairs.hi[task]], local[pairs.lo[task]], heads)

        for task, result in zip(part.tasks, self._map(run, part.tasks), strict=True):
            yield task, result
            progress(len(pairs.hi[task]))

    # ---- components that do not fit ----------------------------------------------------------------------------------

    def _sweep_in_blocks(
        self, pairs: Pairs, part: _Part, rule: int, state: tuple[I64, I64, I64], progress: Progress
    ) -> None:
        """`sweep` over one component, block by block of its heads in rank order, each against all earlier heads and
        then inside itself.

        A head of a block sees its candidates in ascending order as ever, and the fate of earlier heads is final before
        it is asked for. (PARTNER: whether a pair is wanted depends on earlier pairs of its two heads alone, and those
        come first here too.) So the same pairs are looked at as in one go.
        """
        positions = part.tasks[0]
        hi, lo = pairs.hi[positions], pairs.lo[positions]
        witness = state[0]
        half = self._room // 2

        def wanted(high: I64, low: I64) -> Bool:
            stays = witness[low] < 0
            if rule == BEST:
                return stays
            return stays & (witness[high] < 0) if rule == LOWEST else stays | (witness[high] < 0)

        def sweep(items: Any, offsets: I64, heads: I64, high: I64, low: I64) -> None:
            local = self._numbered(heads)
            self.counts.add(
                self._backend.sweep(
                    items, offsets, local[high], local[low], self._ppm, self._limit, rule, heads, *state
                )
            )

        assert rule in (LOWEST, BEST, PARTNER)
        for start, stop in _packed(self._sizes[part.heads], half):
            first, last = part.heads[start], part.heads[stop - 1]
            here = slice(np.searchsorted(hi, first), np.searchsorted(hi, last, "right"))
            high, low = hi[here], lo[here]
            if not len(high):
                continue
            outside = low < first
            block = _members(high, low[~outside])
            items, offsets = self._load(block)
            far_high, far_low = high[outside], low[outside]
            early = np.unique(far_low[wanted(far_high, far_low)])
            for begin, end in _packed(self._sizes[early], half):
                now = (far_low >= early[begin]) & (far_low <= early[end - 1])
                now[now] = wanted(far_high[now], far_low[now])
                if not now.any():
                    continue
                others = np.unique(far_low[now])
                more, more_offsets = self._load(others)
                both = np.concatenate([items, more])
                cuts = np.concatenate([offsets, offsets[-1] + more_offsets[1:]])
                sweep(both, cuts, np.concatenate([block, others]), far_high[now], far_low[now])
            sweep(items, offsets, block, high[~outside], low[~outside])
            progress(len(high))

    def _join_in_windows(
        self, pairs: Pairs, part: _Part, parent: I64, progress: Progress
    ) -> list[tuple[I64, I64, I64, I64]]:
        """`join` over one component, run by run of pairs whose heads fit: which are taken depends on their order."""
        positions = part.tasks[0]
        hi, lo = pairs.hi[positions], pairs.lo[positions]
        found = []
        done = 0
        while done < len(hi):
            high, low = hi[done : done + WINDOW], lo[done : done + WINDOW]
            apart = np.flatnonzero(_roots(parent, high) != _roots(parent, low))
            step = len(high)
            if len(apart):
                count = self._fitting(high[apart], low[apart])
                if count < len(apart):
                    step = int(apart[count])
                high, low = high[apart[:count]], low[apart[:count]]
                heads = _members(high, low)
                items, offsets = self._load(heads)
                local = self._numbered(heads)
                taken, shared, union, counts = self._backend.join(
                    items, offsets, local[high], local[low], self._ppm, self._limit, heads, parent
                )
                self.counts.add(counts)
                found.append((high[taken], low[taken], shared, union))
            progress(step)
            done += step
        return found

    # ---- loading -----------------------------------------------------------------------------------------------------

    def _load(self, heads: I64) -> tuple[Any, I64]:
        """Items of ascending heads, offsets from 0; large loads are cut into slices that threads load side by side."""
        assert self._items is not None
        total = int(self._sizes[heads].sum())
        slices = min(MAX_SLICES, total // SLICE_BYTES + 1, len(heads))
        if slices == 1:
            items, offsets = self._loaded(heads)
            return items[offsets[0] : offsets[-1]], offsets - offsets[0]
        before = np.cumsum(self._sizes[heads]) - self._sizes[heads]
        cuts = np.searchsorted(before, [total * i // slices for i in range(1, slices)])
        pieces = [piece for piece in np.split(heads, cuts) if len(piece)]
        dtype = np.dtype(np.uint64 if self._recipe.verify == "exact" else np.uint32)
        # Pages that `sizes` promised and no item came for are never touched.
        items = np.empty(total // dtype.itemsize, dtype)
        offsets = np.zeros(len(heads) + 1, np.int64)
        at = done = 0
        for piece, (some, cut) in zip(pieces, self._map(self._loaded, pieces), strict=True):
            count = int(cut[-1] - cut[0])
            items[at : at + count] = some[cut[0] : cut[-1]]
            offsets[done + 1 : done + len(piece) + 1] = cut[1:] + (at - cut[0])
            at += count
            done += len(piece)
        return items[:at], offsets

    def _loaded(self, heads: I64) -> tuple[Any, I64]:
        assert self._items is not None
        items, offsets = self._items.load(heads)
        wanted = np.uint64 if self._recipe.verify == "exact" else np.uint32
        if items.dtype != wanted or len(offsets) != len(heads) + 1:
            raise InternalError(f"{len(offsets) - 1} sets of {items.dtype} came for {len(heads)} heads")
        if bool((np.diff(offsets) * items.itemsize > self._sizes[heads]).any()):
            raise InternalError("more items came for a head than its size allows")
        return items, offsets

    def _at_hand(self, heads: I64) -> tuple[Any, I64, I64, I64]:
        """Items and offsets of these heads, and perhaps of others; the table from a head to its number there, and the
        heads by number."""
        if self._whole is not None:
            return self._whole.items, self._whole.offsets, self._whole.place, self._whole.heads
        return *self._load(heads), self._numbered(heads), heads

    def _numbered(self, heads: I64) -> I64:
        """Table from a head to its place in `heads`; other entries mean nothing. One table, changed by each call."""
        if len(self._local) < len(self._sizes):
            self._local = np.empty(len(self._sizes), np.int64)
        self._local[heads] = np.arange(len(heads))
        return self._local

    def _fitting(self, left: I64, right: I64) -> int:
        """How many pairs from the start have heads that fit together; one or more."""
        both = np.stack([left, right], axis=1).ravel()
        heads, first = np.unique(both, return_index=True)
        order = np.argsort(first)
        over = np.flatnonzero(np.cumsum(self._sizes[heads[order]]) > self._room)
        return max(1, int(first[order[over[0]]]) // 2) if len(over) else len(left)


def _members(left: I64, right: I64) -> I64:
    return np.unique(np.concatenate([left, right]))


def _packed(weights: I64, room: int) -> list[tuple[int, int]]:
    """Runs start:stop of things in order, each as long as its weights fit in `room`; one thing or more."""
    total = np.cumsum(weights)
    out = []
    start = 0
    while start < len(total):
        before = int(total[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(total, before + room, "right")))
        out.append((start, stop))
        start = stop
    return out


def _roots(parent: I64, nodes: I64) -> I64:
    """Top of each node's chain in a union-find."""
    nodes = parent[nodes]
    while True:
        higher = parent[nodes]
        if np.array_equal(higher, nodes):
            return nodes
        nodes = higher


def _find_pairs(pairs: Pairs, hi: I64, lo: I64) -> tuple[I64, Bool]:
    """Position of each (hi, lo) among the candidates, and whether it is there."""
    if not len(pairs.hi):
        return np.zeros(len(hi), np.int64), np.zeros(len(hi), np.bool_)
    keys, wanted = pack_pairs(pairs.hi, pairs.lo), pack_pairs(hi, lo)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return at, keys[at] == wanted
