"""Bands: how a sketch is cut so that similar documents meet, and what chance a pair of them has.

A pair of true similarity s agrees in each sketch slot with probability s, slots independent. It meets when all `rows`
slots of at least one of `bands` bands agree: chance 1 - (1 - s**rows)**bands (Leskovec, Rajaraman, Ullman, *Mining of
Massive Datasets*, 3.4). The sieve then asks for `cut` equal slots over all bands, a binomial tail.

What becomes part of a recipe (bands, rows, cut) is decided with whole numbers, so that no machine rounds its way to
another answer; what is only shown is a float.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from gpu_dedup.errors import RecipeError
from gpu_dedup.recipe import MAX_SLOTS, PPM, Recipe

SIEVE_LOSS_PPM = 100  # share of true pairs at the threshold that the sieve may lose
FAIR_CHANCE_PPM = 900_000  # a lower chance at the threshold is worth a warning
FORECAST_PPM = tuple(range(500_000, 1_000_000, 50_000))


def chance(s: float, bands: int, rows: int) -> float:
    """Chance that a pair of similarity s meets in a band: 1 - (1 - s**rows)**bands, exact to a few ulp also near 0."""
    if not 0 <= s <= 1:
        raise ValueError(f"similarity {s} is outside 0 to 1")
    agree = s**rows
    return 1.0 if agree == 1 else -math.expm1(bands * math.log1p(-agree))


def exact_chance(similarity_ppm: int, bands: int, rows: int) -> Fraction:
    """`chance` as a fraction."""
    return 1 - (1 - Fraction(similarity_ppm, PPM) ** rows) ** bands


def _reaches(similarity: Fraction, bands: int, rows: int, recall_ppm: int) -> bool:
    """chance >= recall, in integers: (q**r - p**r)**b * PPM <= (PPM - recall) * q**(r b) for the similarity p/q."""
    p, q = similarity.numerator, similarity.denominator
    miss: int = (q**rows - p**rows) ** bands
    every: int = q ** (rows * bands)
    return miss * PPM <= (PPM - recall_ppm) * every


def _least_bands(similarity: Fraction, rows: int, most: int, recall_ppm: int) -> int | None:
    """Fewest bands, at most `most`, that reach the recall; None if none do. The chance rises with the bands."""
    if most < 1 or not _reaches(similarity, most, rows, recall_ppm):
        return None
    low, high = 0, most  # high reaches, low does not
    while high - low > 1:
        middle = (low + high) // 2
        if _reaches(similarity, middle, rows, recall_ppm):
            high = middle
        else:
            low = middle
    return high


def _share(value: float | Fraction) -> str:
    """A share as text that never rounds up to 1 or down to 0."""
    value = float(value)
    for digits in (4, 6, 9):
        text = f"{value:.{digits}f}".rstrip("0").rstrip(".")
        if text not in ("0", "1") or value in (0.0, 1.0):
            return text
    return f"{value:.3g}"


def _percent(value: float | Fraction) -> str:
    """A share for people: '40 %', '0.002 %'."""
    percent = 100 * float(value)
    if percent >= 99.5:
        return f"{math.floor(100 * percent) / 100:g} %"
    return f"{percent:.0f} %" if percent >= 9.5 else f"{percent:.1g} %"


def solve(threshold_ppm: int, recall_ppm: int, num_perm: int) -> tuple[int, int]:
    """Bands and rows: the most rows for which some number of bands reaches the recall, then the fewest such bands.

    More rows make fewer false candidates, so the most selective cut that keeps the promise is taken; 0.8, 0.98 and 128
    give 17 bands x 7 rows.

    threshold_ppm  similarity at which the recall is promised, millionths
    recall_ppm     wanted chance of meeting there, millionths
    num_perm       sketch slots there are: bands * rows <= num_perm
    Raises RecipeError where even one row a band falls short, with what can be reached and what would help.
    """
    similarity = Fraction(threshold_ppm, PPM)
    for rows in range(num_perm, 0, -1):
        bands = _least_bands(similarity, rows, num_perm // rows, recall_ppm)
        if bands is not None:
            return bands, rows
    best = exact_chance(threshold_ppm, num_perm, 1)
    help_ = []
    needed = _least_bands(similarity, 1, MAX_SLOTS, recall_ppm)
    if needed is not None:
        help_.append(f"num-perm {needed} or more")
    if best * PPM >= 1:
        help_.append(f"recall {_share(Fraction(math.floor(best * PPM), PPM))} or less")
    help_.append("a higher threshold")
    raise RecipeError(
        f"recall {_share(Fraction(recall_ppm, PPM))} at threshold {_share(similarity)} is out of reach with num-perm "
        f"{num_perm}: {num_perm} bands x 1 row find {_percent(best)} of such pairs; give {' or '.join(help_)}"
    )


def _tail(similarity: Fraction, slots: int, cut: int) -> Fraction:
    """P[Binomial(slots, similarity) < cut], exactly."""
    p, q = similarity.numerator, similarity.denominator
    total = sum(math.comb(slots, i) * p**i * (q - p) ** (slots - i) for i in range(min(cut, slots + 1)))
    return Fraction(total, q**slots)


def sieve_cut(threshold_ppm: int, slots: int, loss_ppm: int = SIEVE_LOSS_PPM) -> tuple[int, Fraction]:
    """Fewest equal slots to ask of a candidate, and the share of pairs at the threshold that this loses.

    The largest cut with P[Binomial(slots, threshold) < cut] <= loss_ppm / 10**6; 0 asks nothing. In whole numbers.
    """
    similarity = Fraction(threshold_ppm, PPM)
    p, q = similarity.numerator, similarity.denominator
    every = q**slots
    lost = 0
    for cut in range(slots + 1):
        more = lost + math.comb(slots, cut) * p**cut * (q - p) ** (slots - cut)  # P[X < cut + 1] * every
        if more * PPM > loss_ppm * every:
            return cut, Fraction(lost, every)
        lost = more
    return slots, Fraction(lost, every)  # only where loss_ppm allows to lose everything


def sieve_loss(s: float, slots: int, cut: int) -> float:
    """Share of pairs of similarity s (to a millionth) with fewer than `cut` equal slots of `slots`."""
    if not 0 <= s <= 1:
        raise ValueError(f"similarity {s} is outside 0 to 1")
    return float(_tail(Fraction(round(s * PPM), PPM), slots, cut))


def _shape(recipe: Recipe) -> tuple[int, int]:
    """Bands and rows of a recipe that has them."""
    if recipe.bands is None or recipe.rows is None:
        raise RecipeError("the recipe is not settled: bands and rows are still to be solved")
    return recipe.bands, recipe.rows


def cut_of(recipe: Recipe) -> int:
    """The sieve's cut under a recipe with bands and rows: 0 without a verification, else the given or solved one."""
    if recipe.verify == "none" or recipe.method != "minhash":
        return 0
    if recipe.sieve_cut is not None:
        return recipe.sieve_cut
    return sieve_cut(recipe.threshold_ppm, recipe.slots)[0]


def _found(s: float, bands: int, rows: int, cut: int) -> float:
    """P[a band agrees in full and at least `cut` slots agree]: both at once, they are not independent.

    The pairs with `cut` slots but no full band are counted by a walk over the bands: the number of equal slots in a
    band that is not full is binomial with its top left out; a sum over bands is a convolution.
    """
    slots = bands * rows
    each = np.array([math.comb(rows, i) * s**i * (1 - s) ** (rows - i) for i in range(rows)])
    no_full = np.ones(1)
    for _ in range(bands):
        no_full = np.convolve(no_full, each)  # no_full[x]: no band full and x equal slots
    enough = 1 - sieve_loss(s, slots, cut)
    return min(1.0, max(0.0, enough - float(no_full[cut:].sum())))


@dataclass(frozen=True)
class Forecast:
    """What happens to a pair of one similarity, on its way to verification.

    similarity  true Jaccard similarity of the pair
    bands       chance that it meets in a band
    sieve_loss  chance that it has too few equal slots for the sieve, whether it meets or not
    found       chance that it is verified: it meets and passes the sieve
    """

    similarity: float
    bands: float
    sieve_loss: float
    found: float


def forecast(recipe: Recipe) -> list[Forecast]:
    """The S-curve of a recipe with bands and rows, at similarities 0.5, 0.55 ... 0.95.

    Holds for pairs that no full bucket parts (see `collide`: a bucket over the cap gives up some of its pairs).
    """
    bands, rows = _shape(recipe)
    cut = cut_of(recipe)
    similarities = [ppm / PPM for ppm in FORECAST_PPM]
    return [
        Forecast(s, chance(s, bands, rows), sieve_loss(s, bands * rows, cut), _found(s, bands, rows, cut))
        for s in similarities
    ]


def _advice(threshold_ppm: int, recall_ppm: int, num_perm: int) -> str:
    """'17 bands x 7 rows (119 slots) finds 98 %': within num_perm, or with more slots where these fall short."""
    shape = (MAX_SLOTS, 1)  # the best there is
    for slots in (num_perm, 2 * num_perm, 4 * num_perm, MAX_SLOTS):
        try:
            shape = solve(threshold_ppm, recall_ppm, min(slots, MAX_SLOTS))
            break
        except RecipeError:
            continue
    bands, rows = shape
    found = _percent(exact_chance(threshold_ppm, bands, rows))
    return f"{bands} bands x {rows} rows ({bands * rows} slots) finds {found}"


def warnings(recipe: Recipe) -> list[str]:
    """What a user should know about a recipe with bands and rows before a run; one line each, the remedy in it.

    A chance under 0.9 at the threshold, bands and rows that look swapped, slots of num-perm that are not used or not
    there, a given sieve cut that loses ten times what the solved one may.
    """
    bands, rows = _shape(recipe)
    slots = bands * rows
    threshold = _share(Fraction(recipe.threshold_ppm, PPM))
    found = exact_chance(recipe.threshold_ppm, bands, rows)
    recall_ppm = max(recipe.recall_ppm, FAIR_CHANCE_PPM)
    out = []
    if found * PPM < FAIR_CHANCE_PPM:
        swapped = exact_chance(recipe.threshold_ppm, rows, bands)
        shape = f"{bands} bands x {rows} rows"
        if swapped * PPM >= FAIR_CHANCE_PPM:
            out.append(
                f"{shape} finds {_percent(found)} of pairs at the threshold {threshold}, "
                f"but {rows} bands x {bands} rows finds {_percent(swapped)}: are bands and rows swapped?"
            )
        else:
            better = _advice(recipe.threshold_ppm, recall_ppm, max(recipe.num_perm, slots))
            out.append(
                f"{shape} finds {_percent(found)} of pairs at the threshold {threshold}; "
                f"{better}: give those, or give neither and have them solved for recall "
                f"{_share(Fraction(recall_ppm, PPM))}"
            )
    if slots > recipe.num_perm:
        out.append(
            f"num-perm {recipe.num_perm} has no effect: {bands} bands x {rows} rows need {slots} slots, which are "
            f"computed; give num-perm {slots}, or fewer bands or rows"
        )
    spare = recipe.num_perm - slots
    if spare >= rows and not _is_solved(recipe):
        more = recipe.num_perm // rows
        out.append(
            f"{spare} of {recipe.num_perm} slots of num-perm are left unused by {bands} bands x {rows} rows; "
            f"{more} bands find {_percent(exact_chance(recipe.threshold_ppm, more, rows))} "
            f"instead of {_percent(found)}"
        )
    cut = cut_of(recipe)
    if cut:
        lost = _tail(Fraction(recipe.threshold_ppm, PPM), slots, cut)
        if lost * PPM > 10 * SIEVE_LOSS_PPM:
            fair, _ = sieve_cut(recipe.threshold_ppm, slots)
            out.append(
                f"sieve-cut {cut} of {slots} slots loses {_percent(lost)} of pairs at the threshold {threshold}; "
                f"{fair} loses at most 0.01 %"
            )
    return out


def _is_solved(recipe: Recipe) -> bool:
    """True where bands and rows are what the solver gives, so that unused slots are its choice and cost nothing."""
    try:
        return (recipe.bands, recipe.rows) == solve(recipe.threshold_ppm, recipe.recall_ppm, recipe.num_perm)
    except RecipeError:
        return False
