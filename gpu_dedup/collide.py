"""Collide: which documents meet in a band, and which of these pairs are worth verifying.

Documents are heads of exact classes, numbered in keeper order: head 0 would be kept before head 1. A *bucket* is the
set of all heads with one band key, two or more; always the whole set, never that of a batch or a shard.

    the cap rule   a bucket of at most `bucket_cap` heads gives all its pairs. A larger one pairs each head with the
                   `cap_lowest` lowest of the bucket, then is split by `cap_splits` further keys of `cap_slots` slots
                   from outside the band: heads of the bucket that agree in such a key form a smaller bucket, under the
                   same rule, but split no further. So 5,000 copies of a licence with a word changed in each cost some
                   9 x 5,000 x 32 pairs in a band, not 12.5 million, and real near-copies among them still meet. Memory
                   and time stay linear in the number of heads.
    further keys   split number i of band t takes, of the slots outside the band in cyclic order from the band's end on,
                   those at i * cap_slots ... i * cap_slots + cap_slots - 1, modulo their number. With fewer than
                   `cap_slots` slots outside, all of them; with none, no split. A split with the slots of an earlier
                   one would add nothing and is left out. Depends on the recipe's bands, rows and cap fields alone.
    the sieve      a pair with fewer equal slots than the recipe's cut goes; see `bands.sieve_cut`. No sieve where
                   nothing is verified.

The answer is a set of pairs, sorted: it does not depend on threads, slices or the order of bands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from gpu_dedup.backend import Backend
from gpu_dedup.batch import I64, MAX_PAIRED, U32, U64, absent, pack_pairs, pair_slices, unpack_pairs
from gpu_dedup.errors import InternalError, RecipeError, RunError
from gpu_dedup.recipe import Recipe

GOLDEN = 0x9E3779B97F4A7C15  # step between the starts of key chains, as in kernels/mix64.py
MAX_HEADS = MAX_PAIRED
SLICE_PAIRS = 1 << 16  # pairs in flight per thread: hi, lo and agreement stay in the L2 cache
STORED_SLICE_PAIRS = 1 << 20  # the same where signatures are on disk: fewer, more nearly sequential reads
SPLIT_HEADS = 1 << 20  # heads of large buckets that are split at a time (a larger bucket goes alone)
SPLIT_BLOCK = 1 << 15  # signatures gathered at a time for further keys
HEAVY = 5  # large buckets that the stats name
HEAVY_MEMBERS = 16  # heads named of each

# Host memory that a band in flight takes per head, at most, pairs aside: keys 8, partition scratch 16, lowest 8, and up
# to 32 for the hash table where all heads have one key. Usually 36. For the plan of a run: times the threads.
BYTES_PER_HEAD_AND_THREAD = 64


class Signatures(Protocol):
    """Sketches of m heads, in memory or on disk.

    array  uint32[m, k], or None where they are not in memory
    """

    @property
    def array(self) -> U32 | None: ...

    def take(self, rows: I64) -> U32:
        """uint32[len(rows), k]: signatures of these heads; called from several threads, rows ascending and unique."""
        ...


ParallelMap = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]
KeyParts = Callable[[int], Iterable[tuple[I64, U64]]]


@dataclass(frozen=True)
class HeavyBucket:
    """A bucket over the cap: its band, its size, and its lowest members (ranks, at most 16)."""

    band: int
    size: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class CollideStats:
    """What the bands did, over all of them; a pair that meets in three bands counts three times in pairs_*.

    pairs_before  pairs that the cap rule gave
    pairs_after   of these, pairs that passed the sieve
    buckets       band keys with two heads or more
    largest       size of the largest bucket of each band, 0 where no two heads meet
    capped        buckets over the cap
    histogram     histogram[j] buckets have 2**j to 2**(j+1) - 1 heads; no trailing zeros
    heavy         the largest buckets over the cap, by size, band; one for each lowest head, as a group of copies meets
                  in many bands
    """

    pairs_before: int = 0
    pairs_after: int = 0
    buckets: int = 0
    largest: tuple[int, ...] = ()
    capped: int = 0
    histogram: tuple[int, ...] = ()
    heavy: tuple[HeavyBucket, ...] = ()


@dataclass(frozen=True)
class Candidates:
    """Pairs of heads to verify: unique, sorted by (hi, lo).

    hi     int64[p], the rank that would go
    lo     int64[p], lower than hi
    agree  int64[p], equal slots of the two sketches
    """

    hi: I64
    lo: I64
    agree: I64
    stats: CollideStats

    def __len__(self) -> int:
        return len(self.hi)

    @classmethod
    def counted(cls, count: int, stats: CollideStats) -> Candidates:
        """What is left when all is decided: so many pairs, in no memory."""
        return cls(absent(count), absent(count), absent(count), stats)


class _PairSet:
    """Pairs as hi << 32 | lo, made unique now and then: repeats over bands and splits take no lasting memory."""

    def __init__(self) -> None:
        self._unique: U64 = np.empty(0, np.uint64)
        self._loose: list[U64] = []
        self._loose_count = 0

    def add(self, packed: U64) -> None:
        if not len(packed):
            return
        self._loose.append(packed)
        self._loose_count += len(packed)
        if self._loose_count > len(self._unique) + (1 << 20):  # each pair is sorted O(log) times in all
            self._merge()

    def _merge(self) -> None:
        every = np.concatenate([self._unique, *self._loose])
        self._loose, self._loose_count = [], 0
        self._unique = np.empty(0, np.uint64)
        every.sort()
        fresh = np.ones(len(every), np.bool_)
        np.not_equal(every[1:], every[:-1], out=fresh[1:])
        self._unique = every[fresh]

    def sorted(self) -> U64:
        if self._loose:
            self._merge()
        return self._unique


def split_slots(recipe: Recipe, band: int) -> list[I64]:
    """Slots of each further key of a band, ascending, int64[<= cap_slots] each; see "further keys" above."""
    if recipe.bands is None or recipe.rows is None:
        raise RecipeError("the recipe is not settled: bands and rows are still to be solved")
    slots, rows = recipe.bands * recipe.rows, recipe.rows
    outside = slots - rows
    width = min(recipe.cap_slots, outside)
    seen: list[tuple[int, ...]] = []
    for split in range(recipe.cap_splits if outside else 0):
        places = ((split * recipe.cap_slots + i) % outside for i in range(width))
        chosen = tuple(sorted((band * rows + rows + place) % slots for place in places))
        if chosen not in seen:
            seen.append(chosen)
    return [np.array(chosen, np.int64) for chosen in seen]


def _gather(signatures: Signatures, rows: I64) -> tuple[U32, I64]:
    """An array that holds the signatures of `rows`, and where in it each of them is."""
    array = signatures.array
    if array is not None:
        return array, rows
    unique, place = np.unique(rows, return_inverse=True)
    return signatures.take(unique), place.astype(np.int64, copy=False).reshape(-1)


@dataclass
class _Band:
    """One band's work: pairs that passed the sieve, and counts."""

    pairs: _PairSet = field(default_factory=_PairSet)
    before: int = 0
    after: int = 0
    sizes: I64 = field(default_factory=lambda: np.empty(0, np.int64))  # histogram of bucket sizes by powers of two
    largest: int = 0
    capped: int = 0
    heavy: list[HeavyBucket] = field(default_factory=list)


class _Collider:
    """What the bands share. Called from several threads; it holds no state of a band."""

    def __init__(
        self, band_keys: Callable[[int], U64], signatures: Signatures, heads: int, recipe: Recipe, backend: Backend,
        key_parts: KeyParts | None = None,
    ) -> None:  # fmt: skip
        self.band_keys, self.signatures, self.heads, self.key_parts = band_keys, signatures, heads, key_parts
        self.recipe, self.backend = recipe, backend
        self.cut = 0 if recipe.verify == "none" else recipe.sieve_cut or 0
        self.slice_pairs = SLICE_PAIRS if signatures.array is not None else STORED_SLICE_PAIRS

    def band(self, band: int) -> _Band:
        out = _Band()
        met = 0
        parts = [(None, self.band_keys(band))] if self.key_parts is None else self.key_parts(band)
        for ranks, keys in parts:
            met += len(keys)
            self._part(band, ranks, keys, out)
        if met != self.heads:
            raise InternalError(f"band {band} has {met} keys for {self.heads} heads")
        out.heavy = sorted(out.heavy, key=lambda bucket: (-bucket.size, bucket.members))[:HEAVY]
        return out

    def _part(self, band: int, ranks: I64 | None, keys: U64, out: _Band) -> None:
        """Whole buckets of a band; `ranks`, ascending, are those of the heads with these keys, None for all heads."""
        members, starts = self.backend.buckets(keys, np.array([0, len(keys)], np.int64))
        del keys
        size = np.diff(starts)
        if not len(size):
            return
        if ranks is not None:
            members = ranks[members]
        self._pairs(members, starts, None, out)
        power = np.frexp(size.astype(np.float64))[1] - 1  # floor(log2), exact below 2**53
        sizes = np.bincount(power, minlength=len(out.sizes)).astype(np.int64)
        sizes[: len(out.sizes)] += out.sizes
        out.sizes = sizes
        out.largest = max(out.largest, int(size.max()))
        large = np.flatnonzero(size > self.recipe.bucket_cap)
        out.capped += len(large)
        # A bucket's number grows with its lowest head, so a stable sort by size breaks ties towards the lowest.
        for bucket in large[np.argsort(-size[large], kind="stable")][:HEAVY].tolist():
            lowest = members[starts[bucket] : starts[bucket + 1]][:HEAVY_MEMBERS]
            out.heavy.append(HeavyBucket(band, int(size[bucket]), tuple(lowest.tolist())))
        self._split(band, members, starts, large, out)

    def _pairs(self, members: I64, starts: I64, heads: I64 | None, out: _Band) -> None:
        """Sieve the pairs of some buckets; `heads` maps members to ranks where they are not ranks themselves."""
        recipe = self.recipe
        offsets = self.backend.pair_offsets(starts, recipe.bucket_cap, recipe.cap_lowest)
        for first, last in pair_slices(offsets, self.slice_pairs):
            hi, lo = self.backend.bucket_pairs(members, starts, offsets, first, last)
            if heads is not None:
                hi, lo = heads[hi], heads[lo]
            out.before += len(hi)
            if self.cut:
                passed = self._agreements(hi, lo) >= self.cut
                hi, lo = hi[passed], lo[passed]
            out.after += len(hi)
            out.pairs.add(pack_pairs(hi, lo))

    def _split(self, band: int, members: I64, starts: I64, large: I64, out: _Band) -> None:
        """Pairs of the large buckets' further keys, whole buckets at a time."""
        every_slots = split_slots(self.recipe, band)
        if not every_slots:
            return
        at = 0
        while at < len(large):
            stop, total = at, 0
            while stop < len(large) and (stop == at or total < SPLIT_HEADS):
                total += int(starts[large[stop] + 1] - starts[large[stop]])
                stop += 1
            group = large[at:stop]
            at = stop
            heads = np.concatenate([members[starts[b] : starts[b + 1]] for b in group.tolist()])
            segments = np.concatenate(([0], np.cumsum(starts[group + 1] - starts[group]))).astype(np.int64)
            for key in self._further_keys(band, heads, every_slots):
                inner, inner_starts = self.backend.buckets(key, segments)
                self._pairs(inner, inner_starts, heads, out)

    def _further_keys(self, band: int, heads: I64, every_slots: list[I64]) -> U64:
        """uint64[splits, len(heads)]; the chain's start names band and split, beyond those of the bands themselves."""
        assert self.recipe.bands is not None
        number = self.recipe.bands + band * self.recipe.cap_splits
        out = np.empty((len(every_slots), len(heads)), np.uint64)
        for start in range(0, len(heads), SPLIT_BLOCK):
            table, place = _gather(self.signatures, heads[start : start + SPLIT_BLOCK])
            rows = np.ascontiguousarray(table[place])
            for split, slots in enumerate(every_slots):
                begin = (number + split + 1) * GOLDEN % (1 << 64)
                out[split, start : start + len(rows)] = self.backend.slot_keys(rows, slots, begin)
        return out

    def _agreements(self, hi: I64, lo: I64) -> I64:
        if self.signatures.array is not None:
            return self.backend.agreements(self.signatures.array, hi, lo)
        table, place = _gather(self.signatures, np.concatenate([hi, lo]))
        return self.backend.agreements(table, place[: len(hi)], place[len(hi) :])

    def candidates(self, packed: U64, stats: CollideStats) -> Candidates:
        hi, lo = unpack_pairs(packed)
        agree = np.empty(len(hi), np.int64)
        for start in range(0, len(hi), STORED_SLICE_PAIRS):
            stop = start + STORED_SLICE_PAIRS
            agree[start:stop] = self._agreements(hi[start:stop], lo[start:stop])
        return Candidates(hi, lo, agree, stats)


def collide(
    band_keys: Callable[[int], U64],
    signatures: Signatures,
    m: int,
    recipe: Recipe,
    backend: Backend,
    parallel_map: ParallelMap,
    progress: Callable[[int], None],
    key_parts: KeyParts | None = None,
) -> Candidates:
    """Pairs of heads that meet in a band and pass the sieve; the rules are at the head of this file.

    band_keys     band -> uint64[m]: key of every head, in keeper order; called once a band, from several threads
    signatures    sketches of the same heads
    m             number of heads. A head without a sketch must not be among them: all such have equal keys
    recipe        with bands and rows, and a sieve cut unless nothing is verified
    parallel_map  (function, items) -> results in the order of the items, on as many threads as there are
    progress      called with 1 after each band
    key_parts     band -> (ranks int64, ascending; their keys) part by part, in place of band_keys where all heads are
                  too many at a time. All heads of one key are in one part

    Memory: BYTES_PER_HEAD_AND_THREAD per head (of a part) for each band in flight, and 8 to 24 bytes per pair that
    passes.
    Raises RecipeError for a recipe without bands or cut, RunError for 2**32 heads or more.
    """
    if recipe.bands is None or recipe.rows is None or (recipe.verify != "none" and recipe.sieve_cut is None):
        raise RecipeError("the recipe is not settled: bands, rows and sieve cut are still to be solved")
    if m >= MAX_HEADS:
        raise RunError(f"{m} distinct documents are more than {MAX_HEADS - 1}; run on shards of the input")
    collider = _Collider(band_keys, signatures, m, recipe, backend, key_parts)
    pairs = _PairSet()
    before = after = capped = 0
    largest: list[int] = []
    histogram: I64 = np.zeros(0, np.int64)
    heavy: dict[int, HeavyBucket] = {}
    for band in parallel_map(collider.band, range(recipe.bands)):
        pairs.add(band.pairs.sorted())
        before, after, capped = before + band.before, after + band.after, capped + band.capped
        largest.append(band.largest)
        if len(band.sizes) > len(histogram):
            histogram = np.append(histogram, np.zeros(len(band.sizes) - len(histogram), np.int64))
        histogram[: len(band.sizes)] += band.sizes
        for bucket in band.heavy:
            known = heavy.get(bucket.members[0])
            if known is None or bucket.size > known.size:
                heavy[bucket.members[0]] = bucket
        progress(1)
    stats = CollideStats(
        pairs_before=before,
        pairs_after=after,
        buckets=int(histogram.sum()),
        largest=tuple(largest),
        capped=capped,
        histogram=tuple(histogram.tolist()),
        heavy=tuple(sorted(heavy.values(), key=lambda b: (-b.size, b.band, b.members))[:HEAVY]),
    )
    return collider.candidates(pairs.sorted(), stats)
