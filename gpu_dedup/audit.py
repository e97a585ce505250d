"""Audit: how many rows that stay should have gone? Sampled ones are compared with all others, without bands or sieve.

    population   the different texts that stay and took part in the search for near copies (heads of exact classes)
    sample       those with the lowest mix of row number and recipe: the same rows on every machine and run, and more
                 of them are a superset of fewer
    a miss       a sampled text that a search which finds every pair would not have left beside the others:
                   representative   a text that stays and comes earlier in keeper order is at or above the threshold
                   connected        so is any text of a cluster whose kept text comes earlier (a link over several
                                    texts that were all missed is not seen, so this is a lower bound)
                   keep=none        so is any other text
    recall       near copies that went / (near copies that went + misses), misses scaled from the sample to all

The interval is Wilson's for the share of misses (E. B. Wilson, JASA 22, 1927) at 95 %, cut to what the sample leaves
possible: at least the misses that were seen, at most all texts that were not looked at besides. Where all of the
population was looked at, the numbers are counts and both ends are the same. Whether a pair is a miss is decided in
whole numbers; only the estimate is a float, of operations that IEEE 754 rounds in one way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from gpu_dedup.batch import I64, Bool
from gpu_dedup.kernels.mix64 import GOLDEN, mix64_array
from gpu_dedup.recipe import Recipe

Z95 = 1.959963984540054  # normal quantile of 0.975


def sample(rows: I64, count: int, fingerprint: str) -> I64:
    """Positions, ascending, of `count` rows (all of them if there are no more).

    rows         int64[p] global row numbers, all different
    fingerprint  of the recipe, hexadecimal: another recipe looks at other rows

    Those with the lowest mix64(row * GOLDEN + first 64 bits of the fingerprint): one-to-one, so there are no ties.
    """
    start = np.uint64(int(fingerprint[:16], 16))
    drawn = mix64_array(rows.astype(np.uint64) * np.uint64(GOLDEN) + start)
    return np.sort(np.argsort(drawn, kind="stable")[:count]).astype(np.int64)


@dataclass
class Tally:
    """Misses of a sample, gathered from the pairs that brute force gives.

    recipe   settled
    witness  int64[m] of the decision: the head that stands for a head, -1 where it stays or nobody decided
    stays    bool[m] heads that are kept
    ranks    int64[n] the sampled heads
    partner  int64[n] the lowest-ranked head that makes a sampled one a miss; -1 where it is none
    shared, union   int64[n] of that pair
    """

    recipe: Recipe
    witness: I64
    stays: Bool
    ranks: I64
    partner: I64 = field(init=False)
    shared: I64 = field(init=False)
    union: I64 = field(init=False)

    def __post_init__(self) -> None:
        self.partner, self.shared, self.union = (np.full(len(self.ranks), -1, np.int64) for _ in range(3))

    @property
    def could_blame(self) -> Bool:
        """bool[m]: heads that can make another one a miss; the others need no look."""
        everybody = self.recipe.cluster == "connected" or self.recipe.keep == "none"
        return np.ones(len(self.stays), np.bool_) if everybody else self.stays

    def add(self, left: I64, right: I64, shared: I64, union: I64) -> None:
        """Pairs at or above the threshold: head, position in the sample, and their numbers. In any order."""
        rank = self.ranks[right]
        if self.recipe.keep == "none":
            miss = left != rank
        elif self.recipe.cluster == "connected":
            miss = np.where(self.witness[left] >= 0, self.witness[left], left) < rank
        else:
            miss = self.stays[left] & (left < rank)
        order = np.flatnonzero(miss)
        order = order[np.lexsort((left[order], right[order]))]
        sampled, first = np.unique(right[order], return_index=True)
        best = order[first]
        better = (self.partner[sampled] < 0) | (left[best] < self.partner[sampled])
        sampled, best = sampled[better], best[better]
        self.partner[sampled], self.shared[sampled], self.union[sampled] = left[best], shared[best], union[best]


@dataclass(frozen=True)
class Estimate:
    """What a sample says of all.

    misses_low, misses, misses_high   texts that stay and should have gone: 95 % interval and best guess
    recall_low, recall, recall_high   share of near copies that went; None where there were none, found or missed
    """

    misses: float
    misses_low: float
    misses_high: float
    recall: float | None
    recall_low: float | None
    recall_high: float | None


def wilson(hits: int, trials: int, z: float = Z95) -> tuple[float, float]:
    """Interval for a share of which `hits` of `trials` were seen; 0 to 1 without a trial."""
    if trials == 0:
        return 0.0, 1.0
    share, square = hits / trials, z * z
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    half = z / (1 + square / trials) * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials))
    # the formula gives 0 and 1 there, but for a rounding
    return 0.0 if hits == 0 else max(0.0, centre - half), 1.0 if hits == trials else min(1.0, centre + half)


def estimate(misses: int, sampled: int, population: int, removed: int) -> Estimate:
    """misses of `sampled` texts of a population that stays, beside `removed` near copies that went."""
    if sampled == population:
        guess = low = high = float(misses)
    else:
        least, most = wilson(misses, sampled)
        guess = misses / sampled * population if sampled else 0.0
        low = max(float(misses), least * population)
        high = min(float(population - (sampled - misses)), most * population)

    def recall(missed: float) -> float | None:
        return removed / (removed + missed) if removed + missed > 0 else None

    return Estimate(guess, low, high, recall(guess), recall(high), recall(low))
