"""Numbers behind the pictures of the report: likeness of near copies, agreement of their bands, sizes of groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu_dedup.batch import I64
from gpu_dedup.cluster import Gone
from gpu_dedup.pipeline.near import Heads
from gpu_dedup.pipeline.outcome import Outcome
from gpu_dedup.pipeline.survey import Survey
from gpu_dedup.recipe import Recipe
from gpu_dedup.report import GROUPS_LISTED, MEMBERS_LISTED, Likeness

SAMPLE = 1 << 16  # pairs whose bands are compared


def likeness(recipe: Recipe, survey: Survey, heads: Heads, decision: Gone) -> list[Likeness]:
    """Near copies by similarity: each head that goes, with its witness, or the neighbour that linked it.

    Bands are compared where verification is by true Jaccard similarity, which the S-curve is about. The answer depends
    on the decision alone.
    """
    partner, shared, union = decision.witness, decision.shared, decision.union
    if decision.linked is not None and decision.linked_shared is not None and decision.linked_union is not None:
        partner, shared, union = decision.linked, decision.linked_shared, decision.linked_union
    gone = np.flatnonzero((partner >= 0) & (union > 0))
    if not len(gone):
        return []
    percent = shared[gone] * 100 // union[gone]
    counts = np.bincount(percent, minlength=101)
    sampled, bands, squares = (np.zeros(101, np.int64) for _ in range(3))
    # (Not of a cascade, which also finds pairs without a band in common.)
    if recipe.method == "minhash" and recipe.verify == "exact" and survey.sketches is not None:
        chosen = np.arange(0, len(gone), -(-len(gone) // SAMPLE))
        one, other = heads.sketch.take(decision.head[gone[chosen]]), heads.sketch.take(partner[gone[chosen]])
        agree = np.zeros(len(chosen), np.int64)
        for table in survey.sketches.keys:
            agree += table.take(one) == table.take(other)
        sampled = np.bincount(percent[chosen], minlength=101)
        np.add.at(bands, percent[chosen], agree)
        np.add.at(squares, percent[chosen], agree * agree)
    return [
        Likeness(p, int(counts[p]), int(sampled[p]), int(bands[p]), int(squares[p]))
        for p in np.flatnonzero(counts).tolist()
    ]


@dataclass
class Groups:
    """Kept rows that stand for others: how many, and the largest (global rows and sizes, themselves included).

    by_size  groups by size: key 2**i counts sizes from 2**i to 2**(i+1) - 1
    members  some rows of each of the largest: the least similar one, then the first ones
    """

    count: int
    by_size: dict[str, int]
    rows: I64
    sizes: I64
    members: list[list[int]]

    @classmethod
    def of(cls, recipe: Recipe, outcome: Outcome) -> Groups:
        witness = outcome.witness
        if recipe.keep == "none":  # nobody stands for anybody
            witness = witness[:0]
        rows, counts = np.unique(witness, return_counts=True)
        sizes = counts + 1
        powers, groups = np.unique(np.frexp(sizes.astype(np.float64))[1] - 1, return_counts=True)
        by_size = {str(2**power): count for power, count in zip(powers.tolist(), groups.tolist(), strict=True)}
        largest = np.lexsort((rows, -sizes))[:GROUPS_LISTED]
        inside = np.flatnonzero(np.isin(outcome.witness, rows[largest]))
        by_row = [inside[outcome.witness[inside] == row] for row in rows[largest].tolist()]
        members = [_some(outcome, outcome.rows[places]) for places in by_row]
        return cls(len(rows), by_size, rows[largest], sizes[largest], members)

    @property
    def excerpts(self) -> I64:
        """Rows whose texts the report shows, ascending."""
        every = [*self.rows.tolist(), *(row for rows in self.members for row in rows)]
        return np.unique(np.array(every, np.int64))


def _some(outcome: Outcome, rows: I64) -> list[int]:
    """The least similar of these rows (the earlier among equals), then the first others that are no exact copies, then
    the first ones."""
    about = outcome.about(rows)
    union = about.union
    likeness = np.where(union > 0, about.shared / np.maximum(union, 1), 2.0)
    order = [int(rows[np.argmin(likeness)]), *rows[union > 0].tolist(), *rows[:MEMBERS_LISTED].tolist()]
    return list(dict.fromkeys(order))[:MEMBERS_LISTED]
