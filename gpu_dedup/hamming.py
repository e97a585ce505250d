"""Hamming: fingerprints of 64 bits that differ in few bits - all of them, each pair once, with no cap.

    equal first    documents of one fingerprint form a group, known by its lowest document; only different fingerprints
                   are searched. m equal ones cost m, not m * m / 2
    tables         a fingerprint is cut into B blocks; a table leaves d of them out, so there are C(B, d) tables, and
                   two fingerprints at distance d or less are in one bucket of one of them (Manku, Jain, Das Sarma:
                   Detecting near-duplicates for web crawling, WWW 2007). All bits are alike; 63 is no sign. B = d is
                   the degenerate table of one bucket, all against all, for few fingerprints
    how many       B is the number with the least work: each table costs VALUE_COST comparisons for each fingerprint,
                   and n (n - 1) / 2**(1 + key bits) chance meetings. With B so large that a key has log2 n bits these
                   are less than n / 2 in a table, so the least work is linear in n, with a factor that grows with d;
                   see `plan`
    not random     real fingerprints crowd: a bucket may be far larger than chance says. Nothing is left out for that;
                   where the comparisons or the pairs would go beyond what was allowed the search ends with the figure

The answer is sorted and does not depend on threads, slices, the order of tables or their number.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from gpu_dedup.backend import Backend
from gpu_dedup.batch import I64, MAX_PAIRED, U64, pack_pairs, pair_slices, unpack_pairs
from gpu_dedup.errors import InputError, InternalError, RecipeError, RunError
from gpu_dedup.recipe import MAX_DISTANCE, whole

BITS = 64
GOLDEN = 0x9E3779B97F4A7C15  # step between the starts of the tables' keys, as in kernels/mix64.py
DEAR_DISTANCE = 5  # from here on the cost is said before the search
COMPARED_PER_SECOND = (
    1e9  # measured: 0.7e9 to 1.5e9 on one core of an AMD EPYC (Zen 5), see benchmarks/bench_hamming.py
)
MAX_VALUES = MAX_PAIRED
MAX_TABLES = 1024
VALUE_COST = 32  # comparisons that a fingerprint costs in a table: its key, its place in a bucket
SLICE_PAIRS = 1 << 20  # pairs in flight per thread
MOST_COMPARED = 1 << 40  # pairs that a search may compare: some twenty minutes of a core
BYTES_PER_VALUE = (
    72  # of a table at work, at most: keys 8, and what `buckets` takes (collide.BYTES_PER_HEAD_AND_THREAD)
)
BYTES_PER_PAIR = 24  # of a pair that was found, while pairs are sorted

ParallelMap = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]


@dataclass(frozen=True)
class Plan:
    """Tables for n different fingerprints.

    blocks    B; masks has a mask for each of the C(B, d) tables
    key_bits  bits of the shortest key
    meetings  pairs that share a key by chance, expected over all tables for random fingerprints, rounded up
    compared  the work: meetings and VALUE_COST a fingerprint and table
    """

    n: int
    distance: int
    blocks: int
    key_bits: int
    masks: tuple[int, ...]
    meetings: int
    compared: int

    @property
    def tables(self) -> int:
        return len(self.masks)


def block_masks(blocks: int) -> list[int]:
    """Disjoint masks of so many blocks of 64 bits, low bits first; the first ones have a bit more where 64 does not
    divide."""
    width, rest = divmod(BITS, blocks)
    out, at = [], 0
    for i in range(blocks):
        bits = width + (i < rest)
        out.append(((1 << bits) - 1) << at)
        at += bits
    return out


def _meetings(n: int, distance: int, blocks: int) -> tuple[Fraction, int]:
    """Expected pairs of random fingerprints that share a key, over all tables; bits of the shortest key."""
    width, wide = divmod(BITS, blocks)
    pairs = Fraction(n * (n - 1), 2)
    total, shortest = Fraction(0), BITS
    for j in range(max(0, distance - (blocks - wide)), min(wide, distance) + 1):  # wide blocks among those left out
        tables = math.comb(wide, j) * math.comb(blocks - wide, distance - j)
        bits = BITS - distance * width - j
        total += tables * pairs / 2**bits
        shortest = min(shortest, bits)
    return total, shortest


@lru_cache(maxsize=256)
def plan(n: int, distance: int) -> Plan:
    """The cheapest tables for n different fingerprints and a distance of 0 to 8.

    Raises RecipeError for another distance.
    """
    check_distance(distance)
    if distance == 0 or n < 2:
        return Plan(n, distance, 0, BITS, (), 0, 0)
    best: tuple[int, int, int, int] | None = None
    for blocks in range(distance, BITS + 1):
        tables = math.comb(blocks, distance)
        if tables > MAX_TABLES:
            break
        expected, bits = _meetings(n, distance, blocks)
        meetings = math.ceil(expected)
        compared = meetings + tables * VALUE_COST * n
        if best is None or compared < best[0]:
            best = compared, blocks, bits, meetings
    assert best is not None
    compared, blocks, bits, meetings = best
    parts = block_masks(blocks)
    whole = (1 << BITS) - 1
    masks = tuple(whole - sum(parts[i] for i in out) for out in itertools.combinations(range(blocks), distance))
    return Plan(n, distance, blocks, bits, masks, meetings, compared)


def cost_text(chosen: Plan) -> str:
    """What a plan costs, in a line."""
    seconds = chosen.compared / COMPARED_PER_SECOND
    return (
        f"distance {chosen.distance} among {chosen.n:,} fingerprints takes {chosen.tables:,} tables and some "
        f"{chosen.compared:.2g} comparisons, {seconds:,.0f} s of a core"
    )


def check_distance(distance: int) -> None:
    if not 0 <= distance <= MAX_DISTANCE:
        raise RecipeError(f"distance {distance} is outside 0 to {MAX_DISTANCE}; give a number of bits, such as 3")


def start_of(table: int) -> int:
    """What keeps the keys of one table from meeting those of another."""
    return (table + 1) * GOLDEN % (1 << BITS)


@dataclass(frozen=True)
class SearchStats:
    """What the tables did.

    different  fingerprints that are unlike all others; `equal` documents that share theirs with an earlier one
    compared   pairs of different fingerprints that met in a table, counted in each
    buckets    keys with two fingerprints or more, in all tables; `largest` of them
    histogram  histogram[j] buckets have 2**j to 2**(j+1) - 1 fingerprints; no trailing zeros
    """

    different: int = 0
    equal: int = 0
    tables: int = 0
    compared: int = 0
    buckets: int = 0
    largest: int = 0
    histogram: tuple[int, ...] = ()


@dataclass(frozen=True)
class Near:
    """Documents whose fingerprints are near, by groups of equal fingerprints.

    leader  int64[m]: the lowest document with the same fingerprint
    hi, lo  int64[p]: pairs of leaders within the distance, hi > lo, sorted by (hi, lo), each once
    """

    leader: I64
    hi: I64
    lo: I64
    stats: SearchStats = field(default_factory=SearchStats)

    @property
    def count(self) -> int:
        """Pairs of documents within the distance: in groups, and between them."""
        size = np.bincount(self.leader, minlength=len(self.leader)).astype(np.int64)
        within = int((size * (size - 1) // 2).sum())
        return within + int((size[self.hi] * size[self.lo]).sum())

    def pairs(self) -> tuple[I64, I64]:
        """hi, lo int64: all pairs of documents within the distance, sorted by (hi, lo), each once; `count` of them."""
        names = np.unique(self.leader)
        return self._between(np.concatenate([names, self.hi]), np.concatenate([names, self.lo]))

    def farther(self, apart: I64, distance: int) -> tuple[I64, I64]:
        """hi, lo int64, sorted: pairs of documents whose groups are more than `distance` bits apart.

        apart  int64[p]: bits between hi and lo of each pair of leaders
        """
        far = apart > distance
        return self._between(self.hi[far], self.lo[far])

    def nearer(self, apart: I64, distance: int) -> Near:
        """The same documents at a smaller distance."""
        near = apart <= distance
        return Near(self.leader, self.hi[near], self.lo[near], self.stats)

    def _between(self, one: I64, other: I64) -> tuple[I64, I64]:
        """hi, lo: all pairs of members of the groups of these leaders; of a group with itself each pair once."""
        order = np.argsort(self.leader, kind="stable")
        names, size = np.unique(self.leader, return_counts=True)
        begin = np.zeros(len(self.leader) + 1, np.int64)
        begin[names] = np.cumsum(size) - size
        many = np.zeros(len(self.leader) + 1, np.int64)
        many[names] = size
        total = many[one] * many[other]
        which = np.repeat(np.arange(len(one)), total)
        inside = np.arange(len(which)) - np.repeat(np.cumsum(total) - total, total)
        left = order[begin[one][which] + inside // many[other][which]]
        right = order[begin[other][which] + inside % many[other][which]]
        keep = (one[which] != other[which]) | (left > right)
        left, right = left[keep], right[keep]
        hi, lo = np.maximum(left, right), np.minimum(left, right)
        sort = np.lexsort((lo, hi))
        return hi[sort], lo[sort]


def _equal(values: U64, backend: Backend) -> I64:
    """int64[m]: the lowest position with the same value."""
    leader = np.arange(len(values), dtype=np.int64)
    members, starts = backend.buckets(values, np.array([0, len(values)], np.int64))
    leader[members] = np.repeat(members[starts[:-1]], np.diff(starts))
    return leader


class _Search:
    """What the tables share. Called from several threads."""

    def __init__(self, values: U64, chosen: Plan, backend: Backend, room: int) -> None:
        self.values, self.plan, self.backend, self.room = values, chosen, backend, room
        self.most = MOST_COMPARED // max(chosen.tables, 1)
        self.masks = np.array(chosen.masks, np.uint64)

    def table(self, number: int) -> tuple[U64, I64, int]:
        """Pairs found in a table and in none before it, as hi << 32 | lo; sizes of its buckets; pairs compared."""
        values, backend = self.values, self.backend
        keys = backend.hamming_keys(values, self.plan.masks[number], start_of(number))
        members, starts = backend.buckets(keys, np.array([0, len(values)], np.int64))
        del keys
        offsets = backend.pair_offsets(starts, len(values) + 1, 1)
        compared = int(offsets[-1])
        if compared > self.most:
            raise RunError(
                f"distance {self.plan.distance} among {len(values):,} fingerprints: table {number + 1} of "
                f"{self.plan.tables} has {compared:,} pairs to compare (the largest bucket holds "
                f"{int(np.diff(starts).max()):,}), over {self.most:,}; lower --distance, or use --method minhash"
            )
        found: list[U64] = []
        count = 0
        for first, last in pair_slices(offsets, SLICE_PAIRS):
            hi, lo = backend.near_pairs(
                values, members, starts, offsets, first, last, self.masks[:number], self.plan.distance
            )
            count += len(hi)
            self.check_room(count)
            found.append(pack_pairs(hi, lo))
        return np.concatenate([np.zeros(0, np.uint64), *found]), np.diff(starts), compared

    def check_room(self, count: int) -> None:
        if count > self.room:
            raise RunError(
                f"distance {self.plan.distance} among {len(self.values):,} fingerprints: more than {self.room:,} pairs "
                f"are near ({self.room * BYTES_PER_PAIR >> 20:,} MiB); lower --distance, or give more --memory"
            )


def join(
    values: U64,
    distance: int,
    backend: Backend,
    parallel_map: ParallelMap = map,
    progress: Callable[[int], None] = lambda done: None,
    memory: int = 1 << 40,
) -> Near:
    """All pairs of fingerprints at a distance or less; the rules are at the head of this file.

    values        uint64[m]: fingerprint of every document, in keeper order. A document without one must not be here:
                  all such would be equal
    distance      most bits that may differ, 0 to 8
    parallel_map  (function, items) -> results in the order of the items, on as many threads as there are
    progress      called with 1 after each table
    memory        bytes that the search may take: BYTES_PER_VALUE a fingerprint for a table at work, BYTES_PER_PAIR for
                  every pair found. (Each further thread has a table of its own at work.)

    Raises RecipeError for another distance; RunError, with the figure, for 2**32 fingerprints or more, for too little
    memory and for more than MOST_COMPARED comparisons.
    """
    check_distance(distance)
    m = len(values)
    if m >= MAX_VALUES:
        raise RunError(f"{m} distinct documents are more than {MAX_VALUES - 1}; run on shards of the input")
    if m * BYTES_PER_VALUE > memory:
        raise RunError(
            f"{m:,} fingerprints need {m * BYTES_PER_VALUE >> 20:,} MiB for a table at work, and {memory >> 20:,} MiB "
            "are allowed; give more --memory"
        )
    leader = _equal(np.ascontiguousarray(values, np.uint64), backend)
    places = np.flatnonzero(leader == np.arange(m))
    chosen = plan(len(places), distance)
    if chosen.compared > MOST_COMPARED:
        raise RunError(
            f"distance {distance} among {len(places):,} different fingerprints costs some {chosen.compared:.2g} "
            f"comparisons in {chosen.tables} tables, over {MOST_COMPARED:.2g}; lower --distance"
        )
    search = _Search(values[places], chosen, backend, max(1, memory // BYTES_PER_PAIR))
    packed: list[U64] = [np.zeros(0, np.uint64)]
    histogram = np.zeros(BITS, np.int64)
    count = compared = largest = 0
    for pairs, sizes, looked in parallel_map(search.table, range(chosen.tables)):
        packed.append(pairs)
        count += len(pairs)
        search.check_room(count)
        compared += looked
        if len(sizes):
            largest = max(largest, int(sizes.max()))
            histogram += np.bincount(np.frexp(sizes.astype(np.float64))[1] - 1, minlength=BITS)
        progress(1)
    every = np.concatenate(packed)
    del packed
    every.sort()
    if bool((every[1:] == every[:-1]).any()):
        raise InternalError("a pair of fingerprints came twice")
    one, other = unpack_pairs(every)
    hi, lo = places[one], places[other]
    stats = SearchStats(
        different=len(places),
        equal=m - len(places),
        tables=chosen.tables,
        compared=compared,
        buckets=int(histogram.sum()),
        largest=largest,
        histogram=tuple(np.trim_zeros(histogram, "b").tolist()),
    )
    return Near(leader, hi, lo, stats)


def _fingerprints(values: Any) -> U64:
    """uint64[n] of an array of such, or of whole numbers of 0 to 2**64 - 1. Raises InputError."""
    try:
        if not isinstance(values, np.ndarray):
            values = np.array([operator.index(value) for value in values], np.uint64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"fingerprints are uint64[n], or a list of whole numbers from 0 to 2**{BITS} - 1") from None
    if values.dtype != np.uint64 or values.ndim != 1:
        raise InputError(f"fingerprints are uint64[n], not {values.dtype}{list(values.shape)}")
    return np.ascontiguousarray(values)


class HammingIndex:
    """A set of fingerprints that can be asked which of them are near others, by the same tables.

    values    uint64[n]; equal ones are all found
    distance  most bits that may differ, 0 to 8

    Memory: 16 bytes a fingerprint and table, and the fingerprints. Read by any number of threads.
    """

    def __init__(self, values: U64, distance: int, backend: Backend) -> None:
        self.distance = whole("distance", distance)
        check_distance(self.distance)
        self.values = _fingerprints(values)
        self.plan = plan(len(self.values), self.distance)
        self._backend = backend
        self._masks = self.plan.masks or ((1 << BITS) - 1,)
        self._tables: list[tuple[U64, I64]] = []
        for number, mask in enumerate(self._masks):
            keys = backend.hamming_keys(self.values, mask, start_of(number))
            order = np.argsort(keys, kind="stable").astype(np.int64)
            self._tables.append((keys[order], order))

    def query(self, fingerprints: U64) -> tuple[I64, I64, I64]:
        """query, row, distance int64[p]: every fingerprint of the set within the distance of each that is asked for,
        sorted by (query, row), each once.

        fingerprints  uint64[q]; a text without one has none to ask for
        """
        asked = _fingerprints(fingerprints)
        hits: list[tuple[I64, I64, I64]] = []
        for number, (keys, order) in enumerate(self._tables):
            wanted = self._backend.hamming_keys(asked, self._masks[number], start_of(number))
            begin, end = np.searchsorted(keys, wanted, "left"), np.searchsorted(keys, wanted, "right")
            ends = np.cumsum(end - begin)
            first = 0
            while first < len(asked):  # so many queries at a time that their buckets stay small
                before = int(ends[first - 1]) if first else 0
                last = max(first + 1, int(np.searchsorted(ends, before + SLICE_PAIRS, "right")))
                count = (end - begin)[first:last]
                query = np.repeat(np.arange(first, first + len(count)), count)
                inside = np.arange(len(query)) - np.repeat(np.cumsum(count) - count, count)
                row = order[np.repeat(begin[first:last], count) + inside]
                both = np.concatenate([asked[first:last], self.values[row]])
                right = len(asked[first:last]) + np.arange(len(row))
                apart = self._backend.hamming_distances(both, (query - first).astype(np.int64), right.astype(np.int64))
                near = apart <= self.distance
                hits.append((query[near].astype(np.int64), row[near], apart[near]))
                first = last
        query, row, apart = (
            np.concatenate([np.zeros(0, np.int64), *(hit[i] for hit in hits)]) for i in range(3)
        )  # fmt: skip
        sort = np.lexsort((row, query))
        query, row, apart = query[sort], row[sort], apart[sort]
        fresh = np.ones(len(query), np.bool_)
        fresh[1:] = (query[1:] != query[:-1]) | (row[1:] != row[:-1])
        return query[fresh], row[fresh], apart[fresh]


# ---------------------------------------------------------------------------------------------------------------------
# What SimHash finds, as a formula.


def bit_chance(similarity: float, ratio: float = 1.0) -> float:
    """Chance that a bit of the SimHashes of two sets differs.

    similarity  Jaccard, 0 to 1
    ratio       size of the smaller set over that of the larger; a similarity above it cannot be, and counts as it

    angle / pi (Charikar 2002, after Goemans and Williamson), with cos(angle) = |A and B| / sqrt(|A| |B|) of the sets'
    0/1 vectors: 2 s / (1 + s) where both are equally large. Exact for many shingles, where sums of +1 and -1 are
    normal; sets of a few dozen differ from it in the second digit, and small even ones have ties, which give 0.
    """
    similarity = min(similarity, ratio)
    shared = similarity * (1 + ratio) / (1 + similarity)  # of a larger set of size 1
    return math.acos(min(1.0, shared / math.sqrt(ratio))) / math.pi


@dataclass(frozen=True)
class Forecast:
    """What happens to a pair of one similarity: bits that differ on average, and the chance that it is found."""

    similarity: float
    bits: float
    found: float


FORECAST = tuple(s / 100 for s in (50, 60, 70, 80, 85, 90, 95, 97, 99))


def forecast(distance: int) -> list[Forecast]:
    """The curve of a distance, for sets of equal size and many shingles; see `bit_chance`."""
    return [Forecast(s, BITS * bit_chance(s), chance_within(s, distance)) for s in FORECAST]


@dataclass(frozen=True)
class LevelForecast:
    """What a cascade does with a pair of one similarity.

    similarity  true Jaccard similarity of the pair
    near        chance that it is a match of level 1
    between     chance that its bits are those of level 2
    bands       chance that bands bring it together
    far         chance that it is found by level 2, before its Levenshtein similarity
    found       near + far
    """

    similarity: float
    near: float
    between: float
    bands: float
    far: float
    found: float


def level_forecast(
    curve: Iterable[tuple[float, float]], distance: int, reach: int, far_distance: int, jaccard: float
) -> list[LevelForecast]:
    """The curve of a cascade, bands and bits of a pair taken as independent.

    curve    similarity, and the chance that bands bring such a pair together
    reach    bits to which fingerprints are searched; farther pairs have to meet in bands
    jaccard  least similarity of level 2
    """
    out = []
    for s, bands in curve:
        near = chance_within(s, distance)
        between = max(0.0, chance_within(s, far_distance) - near)
        known = max(0.0, chance_within(s, reach) - near)
        far = 0.0 if s < jaccard - 1e-9 else known + (between - known) * bands
        out.append(LevelForecast(s, near, between, bands, far, min(1.0, near + far)))
    return out


def chance_within(similarity: float, distance: int, ratio: float = 1.0) -> float:
    """Chance that the SimHashes of two sets of this Jaccard similarity differ in at most `distance` bits.

    The binomial of 64 bits, each with `bit_chance`: bits of a shingle hash are independent, so the sums are.
    """
    p = bit_chance(similarity, ratio)
    return min(1.0, sum(math.comb(BITS, i) * p**i * (1 - p) ** (BITS - i) for i in range(distance + 1)))
