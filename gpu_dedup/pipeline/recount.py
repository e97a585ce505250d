"""The audit's reading: sets of the sampled rows, then one more pass over the texts that they are compared with."""

from __future__ import annotations

import numpy as np

from gpu_dedup.audit import Tally, estimate, sample
from gpu_dedup.batch import I64, U64
from gpu_dedup.cluster import Gone
from gpu_dedup.errors import RunError
from gpu_dedup.pipeline.near import Heads
from gpu_dedup.pipeline.outcome import NEAR, STAYS, Outcome
from gpu_dedup.pipeline.pool import Pool
from gpu_dedup.pipeline.reread import Look, normal_texts, reread
from gpu_dedup.pipeline.survey import Sketcher, Survey
from gpu_dedup.progress import Progress
from gpu_dedup.recipe import Recipe
from gpu_dedup.report import MISSES_LISTED, Audit, Miss

DIGITS = 6  # of the shares in the report


def check_audit(recipe: Recipe) -> None:
    """Raises RunError where there is nothing that true shingle sets could be held against."""
    if recipe.method in ("exact", "bloom"):
        raise RunError(f"audit looks for missed near copies, and method {recipe.method} looks for none; drop --audit")
    if recipe.method == "lshbloom":
        raise RunError(
            "audit compares texts that stay with the texts removed, and method lshbloom knows no pairs; drop --audit"
        )
    if recipe.leveled:
        raise RunError(
            "audit compares pairs by one similarity, and method cascade decides by distance and two; drop --audit"
        )
    if recipe.verify != "exact":
        raise RunError(
            f"audit compares true shingle sets, and verify {recipe.verify} decides by something else; "
            "drop --audit, or use --verify exact"
        )


def audit_rows(
    survey: Survey,
    sketcher: Sketcher,
    pool: Pool,
    batch_bytes: int,
    heads: Heads,
    decision: Gone,
    outcome: Outcome,
    count: int,
    progress: Progress,
) -> Audit:
    """Compare `count` sampled texts that stay with all texts that could have made them go.

    heads     in keeper order; decision is about them
    outcome   of every row
    The sets of the sample are in memory, 16 bytes a shingle; all others come and go with their batch.
    """
    recipe = sketcher.recipe
    row_of = heads.rows.array
    stays = outcome.reason[row_of] == STAYS
    population = np.flatnonzero(stays)
    ranks = population[sample(row_of[population], count, recipe.fingerprint())]
    witness = np.full(len(heads), -1, np.int64)
    witness[decision.head] = decision.witness
    tally = Tally(recipe, witness, stays, ranks)
    others = np.flatnonzero(tally.could_blame)
    wanted = np.sort(row_of[others])
    rank_of_row = np.full(len(survey.status), -1, np.int64)
    rank_of_row[row_of] = np.arange(len(heads))

    with progress.stage("audit", survey.bytes_of(wanted) if len(ranks) else None) as advance:
        if len(ranks):
            index = sketcher.backend.audit_index(*_sets(survey, sketcher, pool, batch_bytes, row_of[ranks]))

            def work(look: Look) -> tuple[I64, I64, I64, I64, int]:
                normal = normal_texts(survey, sketcher, look)
                hashes, offsets = sketcher.shingle_sets(normal, look.select)
                left, right, shared, union = sketcher.backend.audit(hashes, offsets, index, recipe.threshold_ppm)
                return rank_of_row[look.wanted[left]], right, shared, union, survey.bytes_of(look.wanted)

            for left, right, shared, union, nbytes in reread(survey, sketcher, pool, batch_bytes, wanted, work):
                tally.add(left, right, shared, union)
                advance(nbytes)

    missed = np.flatnonzero(tally.partner >= 0)
    removed = int(np.count_nonzero(outcome.reason[row_of] == NEAR))
    numbers = estimate(len(missed), len(ranks), len(population), removed)

    def share(value: float | None) -> float | None:
        return None if value is None else round(value, DIGITS)

    out = Audit(
        sampled=len(ranks), kept=len(population), compared=len(wanted), removed=removed, missed=len(missed),
        misses=round(numbers.misses, DIGITS), misses_low=round(numbers.misses_low, DIGITS),
        misses_high=round(numbers.misses_high, DIGITS), recall=share(numbers.recall),
        recall_low=share(numbers.recall_low), recall_high=share(numbers.recall_high),
    )  # fmt: skip
    by_row = missed[np.argsort(row_of[ranks[missed]], kind="stable")]
    for position in by_row[:MISSES_LISTED]:
        facts, row = survey.place(int(row_of[ranks[position]]))
        like, like_row = survey.place(int(row_of[tally.partner[position]]))
        numbers_of = int(tally.shared[position]), int(tally.union[position])
        out.examples.append(Miss(facts.source.rel, row, like.source.rel, like_row, *numbers_of))
    return out


def _sets(survey: Survey, sketcher: Sketcher, pool: Pool, batch_bytes: int, rows: I64) -> tuple[U64, I64]:
    """Shingle sets of these global rows, in their order."""
    order = np.argsort(rows, kind="stable")

    def work(look: Look) -> tuple[U64, I64]:
        return sketcher.shingle_sets(normal_texts(survey, sketcher, look), look.select)

    parts = list(reread(survey, sketcher, pool, batch_bytes, rows[order], work))
    sizes = np.concatenate([np.diff(offsets) for _, offsets in parts])
    hashes = np.concatenate([hashes for hashes, _ in parts])
    ends = np.cumsum(sizes)
    # in input order so far; put each set where its row stands in `rows`
    place = np.empty(len(rows), np.int64)
    place[order] = np.arange(len(rows))
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(sizes[place], out=offsets[1:])
    gather = np.repeat((ends - sizes)[place] - offsets[:-1], sizes[place]) + np.arange(offsets[-1])
    return hashes[gather], offsets
