"""Bands: the S-curve, the solver and the sieve against tables of peers and exact fractions."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_dedup.bands import (
    FORECAST_PPM,
    chance,
    cut_of,
    exact_chance,
    forecast,
    sieve_cut,
    sieve_loss,
    solve,
    warnings,
)
from gpu_dedup.errors import RecipeError
from gpu_dedup.recipe import Recipe

# Chance at similarity 0.8 of shapes that are copied around, to three digits, and what they find elsewhere.
PEERS = [
    (0.8, 9, 13, 0.399),  # datasketch's defaults for 0.8 with 128 permutations
    (0.8, 20, 13, 0.677),
    (0.8, 14, 8, 0.924),  # datatrove's defaults
    (0.8, 17, 7, 0.982),
    (0.8, 13, 60, 0.0000199),  # bands and rows swapped
    (0.5, 20, 5, 0.470),  # Mining of Massive Datasets, figure 3.8
    (0.8, 20, 5, 0.9996),
    (0.2, 20, 5, 0.00638),
]


@pytest.mark.parametrize(("s", "bands", "rows", "expected"), PEERS)
def test_chance_of_known_shapes(s: float, bands: int, rows: int, expected: float) -> None:
    assert chance(s, bands, rows) == pytest.approx(expected, rel=2e-2 if expected < 0.01 else 1e-3)


def test_chance_at_the_ends() -> None:
    assert chance(0.0, 17, 7) == 0.0
    assert chance(1.0, 17, 7) == 1.0
    assert chance(1e-3, 17, 7) == pytest.approx(17e-21, rel=1e-12)  # 1 - (1 - x)**b would give 0
    assert chance(1 - 1e-12, 1, 1000) == pytest.approx(1 - 1e-9, rel=1e-12)
    for s in (-0.1, 1.1):
        with pytest.raises(ValueError, match="outside 0 to 1"):
            chance(s, 17, 7)


@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 20))
def test_chance_is_the_exact_one(ppm: int, bands: int, rows: int) -> None:
    exact = 1 - (1 - Fraction(ppm, 10**6) ** rows) ** bands
    assert exact_chance(ppm, bands, rows) == exact
    assert chance(ppm / 10**6, bands, rows) == pytest.approx(float(exact), rel=1e-12, abs=1e-300)


def _solve_by_trial(threshold: int, recall: int, num_perm: int) -> tuple[int, int] | None:
    """Every shape, judged by fractions."""
    for rows in range(num_perm, 0, -1):
        for bands in range(1, num_perm // rows + 1):
            if 1 - (1 - Fraction(threshold, 10**6) ** rows) ** bands >= Fraction(recall, 10**6):
                return bands, rows
    return None


def test_the_default_is_17_by_7() -> None:
    assert solve(800_000, 980_000, 128) == (17, 7)
    assert sieve_cut(800_000, 119)[0] == 78


@pytest.mark.parametrize(
    ("threshold", "recall", "num_perm", "expected"),
    [
        (1_000_000, 980_000, 128, (1, 128)),  # equal sets agree in every slot
        (1_000_000, 999_999, 16, (1, 16)),
        (500_000, 980_000, 128, (30, 3)),
        # The recall met with equality, which a rounded float may refuse: 1 - 1/2, 1 - (1/4)**2, 1 - (1 - 1/8)**1.
        (500_000, 500_000, 1, (1, 1)),
        (750_000, 937_500, 2, (2, 1)),
        (500_000, 125_000, 3, (1, 3)),
    ],
)
def test_solved_shapes(threshold: int, recall: int, num_perm: int, expected: tuple[int, int]) -> None:
    assert solve(threshold, recall, num_perm) == expected


@given(st.integers(1, 10**6), st.integers(1, 999_999), st.integers(1, 40))
def test_solver_against_trial_of_every_shape(threshold: int, recall: int, num_perm: int) -> None:
    expected = _solve_by_trial(threshold, recall, num_perm)
    if expected is None:
        with pytest.raises(RecipeError, match="out of reach"):
            solve(threshold, recall, num_perm)
    else:
        assert solve(threshold, recall, num_perm) == expected


def test_out_of_reach_says_what_helps_and_that_helps() -> None:
    with pytest.raises(RecipeError) as caught:
        solve(50_000, 980_000, 16)
    text = str(caught.value)
    assert text == (
        "recall 0.98 at threshold 0.05 is out of reach with num-perm 16: 16 bands x 1 row find 56 % of such pairs; "
        "give num-perm 77 or more or recall 0.5599 or less or a higher threshold"
    )
    assert solve(50_000, 980_000, 77) == (77, 1)
    assert solve(50_000, 559_800, 16) == (16, 1)
    with pytest.raises(RecipeError, match="num-perm 76"):
        solve(50_000, 980_000, 76)
    with pytest.raises(RecipeError) as caught:
        solve(1, 980_000, 1024)  # one pair in a million agrees in a slot: no number of slots is enough
    assert "num-perm 1024:" in str(caught.value)
    assert "or more" not in str(caught.value)
    assert "a higher threshold" in str(caught.value)


def _tail(p: Fraction, slots: int, cut: int) -> Fraction:
    return sum((math.comb(slots, i) * p**i * (1 - p) ** (slots - i) for i in range(cut)), Fraction(0))


@given(st.integers(1, 10**6), st.integers(1, 60), st.sampled_from([1, 100, 50_000]))
def test_sieve_cut_is_the_largest_that_keeps_the_promise(threshold: int, slots: int, loss: int) -> None:
    cut, lost = sieve_cut(threshold, slots, loss)
    p = Fraction(threshold, 10**6)
    assert 0 <= cut <= slots
    assert lost == _tail(p, slots, cut)
    assert lost * 10**6 <= loss
    assert cut == slots or _tail(p, slots, cut + 1) * 10**6 > loss


def test_sieve_by_hand() -> None:
    # Two slots at 1/2: P[X < 1] = 1/4, P[X < 2] = 3/4.
    assert sieve_cut(500_000, 2, 249_999) == (0, 0)
    assert sieve_cut(500_000, 2, 250_000) == (1, Fraction(1, 4))
    assert sieve_cut(500_000, 2, 750_000) == (2, Fraction(3, 4))
    assert sieve_cut(1_000_000, 128) == (128, 0)
    assert sieve_loss(0.5, 2, 1) == 0.25
    assert sieve_loss(0.5, 2, 0) == 0.0
    assert sieve_loss(1.0, 128, 128) == 0.0
    assert sieve_loss(0.8, 119, 78) == pytest.approx(7.357e-5, rel=1e-3)
    with pytest.raises(ValueError, match="outside 0 to 1"):
        sieve_loss(1.5, 2, 1)


def _found_by_counting(s: Fraction, bands: int, rows: int, cut: int) -> Fraction:
    """P[a band agrees and `cut` slots agree], over all 2**slots patterns of agreement."""
    total = Fraction(0)
    for pattern in itertools.product((0, 1), repeat=bands * rows):
        full = any(all(pattern[b * rows : (b + 1) * rows]) for b in range(bands))
        if full and sum(pattern) >= cut:
            total += s ** sum(pattern) * (1 - s) ** (bands * rows - sum(pattern))
    return total


@pytest.mark.parametrize(("bands", "rows", "cut"), [(3, 3, 5), (4, 2, 0), (1, 6, 6), (6, 1, 4), (2, 4, 8), (3, 2, 1)])
def test_forecast_counts_every_pattern_of_agreement(bands: int, rows: int, cut: int) -> None:
    rows_of = forecast(Recipe(bands=bands, rows=rows, sieve_cut=cut))
    assert [round(row.similarity * 10**6) for row in rows_of] == list(FORECAST_PPM)
    for row, ppm in zip(rows_of, FORECAST_PPM, strict=True):
        s = Fraction(ppm, 10**6)
        assert row.bands == pytest.approx(float(exact_chance(ppm, bands, rows)), rel=1e-12)
        assert row.sieve_loss == pytest.approx(float(_tail(s, bands * rows, cut)), rel=1e-12, abs=1e-15)
        assert row.found == pytest.approx(float(_found_by_counting(s, bands, rows, cut)), rel=1e-12, abs=1e-14)


def test_forecast_of_the_default() -> None:
    recipe = Recipe(bands=17, rows=7)
    assert cut_of(recipe) == 78
    rows = forecast(recipe)
    assert [row.similarity for row in rows] == [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95]
    assert [round(row.bands, 3) for row in rows] == [0.125, 0.23, 0.383, 0.575, 0.768, 0.912, 0.982, 0.999, 1.0, 1.0]
    for row in rows:
        # Both events grow with the agreement, so they help each other; and neither alone is exceeded.
        assert row.bands * (1 - row.sieve_loss) - 1e-12 <= row.found <= min(row.bands, 1 - row.sieve_loss) + 1e-12
    assert cut_of(recipe.with_(verify="none")) == 0  # nothing is verified, so nothing is sieved
    assert cut_of(recipe.with_(sieve_cut=5)) == 5
    for row in forecast(recipe.with_(verify="none")):
        assert row.sieve_loss == 0
        assert row.found == pytest.approx(row.bands, abs=1e-12)


def test_an_unsettled_recipe_has_no_curve() -> None:
    for function in (forecast, warnings):
        with pytest.raises(RecipeError, match="not settled"):
            function(Recipe())


def test_no_warning_for_solved_recipes() -> None:
    for threshold, num_perm in ((800_000, 128), (500_000, 128), (900_000, 256), (1_000_000, 64), (300_000, 128)):
        recipe = Recipe(threshold_ppm=threshold, num_perm=num_perm)
        bands, rows = solve(threshold, recipe.recall_ppm, num_perm)
        assert warnings(recipe.with_(bands=bands, rows=rows)) == []


def test_the_much_copied_9_by_13_is_named() -> None:
    assert warnings(Recipe(bands=9, rows=13)) == [
        "9 bands x 13 rows finds 40 % of pairs at the threshold 0.8; 17 bands x 7 rows (119 slots) finds 98 %: "
        "give those, or give neither and have them solved for recall 0.98"
    ]


def test_swapped_bands_and_rows_are_named() -> None:
    first, second = warnings(Recipe(bands=13, rows=60))
    assert first == (
        "13 bands x 60 rows finds 0.002 % of pairs at the threshold 0.8, "
        "but 60 bands x 13 rows finds 97 %: are bands and rows swapped?"
    )
    assert "num-perm 128 has no effect" in second
    assert "780" in second
    assert "swapped" in warnings(Recipe(bands=7, rows=17))[0]


def test_unused_slots_are_named() -> None:
    assert warnings(Recipe(bands=14, rows=8)) == [
        "16 of 128 slots of num-perm are left unused by 14 bands x 8 rows; 16 bands find 95 % instead of 92 %"
    ]
    assert warnings(Recipe(bands=17, rows=7, num_perm=256))[0].startswith("137 of 256 slots")
    assert warnings(Recipe(bands=16, rows=7)) == [
        "16 of 128 slots of num-perm are left unused by 16 bands x 7 rows; 18 bands find 99 % instead of 98 %"
    ]


def test_a_solved_low_recall_is_still_worth_a_word() -> None:
    bands, rows = solve(800_000, 500_000, 128)
    (text,) = warnings(Recipe(bands=bands, rows=rows, recall_ppm=500_000))
    assert "pairs at the threshold 0.8" in text
    assert "recall 0.9" in text


def test_a_hungry_sieve_is_named() -> None:
    (text,) = warnings(Recipe(bands=17, rows=7, sieve_cut=95))
    assert text.startswith("sieve-cut 95 of 119 slots loses 43 % of pairs")
    assert "78 loses" in text
    assert warnings(Recipe(bands=17, rows=7, sieve_cut=95, verify="none")) == []
    assert warnings(Recipe(bands=17, rows=7, sieve_cut=78)) == []
