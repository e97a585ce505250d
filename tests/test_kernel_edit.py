"""edit kernel: answers by hand, the textbook recurrence as the oracle, bands and blocks at their edges."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

KINDS = ("ref", "cpu")


def edit(kind: str, one: Sequence[int] | str, other: Sequence[int] | str, ppm: int = 0) -> tuple[int, int]:
    a, b = (([ord(c) for c in x] if isinstance(x, str) else list(x)) for x in (one, other))
    items = np.array([*a, *b], np.uint32)
    offsets = np.array([0, len(a), len(a) + len(b)], np.int64)
    kernel = importlib.import_module(f"gpu_dedup.kernels.edit_{kind}")
    ahead = kernel.edit(items, offsets, np.array([0]), np.array([1]), ppm)
    back = kernel.edit(items, offsets, np.array([1]), np.array([0]), ppm)
    assert [x.tolist() for x in ahead] == [x.tolist() for x in back], "not symmetrical"
    assert ahead[0].dtype == ahead[1].dtype == np.int64
    return int(ahead[0][0]), int(ahead[1][0])


def textbook(a: Sequence[Any], b: Sequence[Any]) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def expected(a: Sequence[Any], b: Sequence[Any], ppm: int) -> tuple[int, int]:
    longest = max(len(a), len(b))
    same = longest - textbook(a, b)
    if longest == 0:
        return (0 if ppm == 0 else -1), 0
    return (same if same * 10**6 >= ppm * longest else -1), longest


@pytest.mark.parametrize("kind", KINDS)
def test_hand_written(kind: str) -> None:
    assert edit(kind, "kitten", "sitting") == (4, 7)
    assert edit(kind, "flaw", "lawn") == (2, 4)
    assert edit(kind, "", "abc") == (0, 3)
    assert edit(kind, "same", "same") == (4, 4)
    assert edit(kind, "abc", "xyz") == (0, 3)
    assert edit(kind, "数据去重", "数据集去重") == (4, 5)
    assert edit(kind, [0, 2**32 - 1, 5], [2**32 - 1, 0, 5]) == (1, 3)
    assert edit(kind, "", "") == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_threshold_is_exact(kind: str) -> None:
    one, other = "abcdefg", "abcdeXY"  # 5/7 = 0.7142857...
    assert edit(kind, one, other, 714_285) == (5, 7)
    assert edit(kind, one, other, 714_286) == (-1, 7)
    assert edit(kind, "abcde", "abcdX", 800_000) == (4, 5)
    assert edit(kind, "abcde", "abcdX", 800_001) == (-1, 5)
    assert edit(kind, "abcd", "abcde", 800_000) == (4, 5)
    assert edit(kind, "abcd", "abcde", 800_001) == (-1, 5)
    assert edit(kind, "abc", "abc", 1_000_000) == (3, 3)
    assert edit(kind, "abc", "abd", 1_000_000) == (-1, 3)
    assert edit(kind, "", "", 1) == (-1, 0)  # two empty texts are not similar
    assert edit(kind, "", "a", 1) == (-1, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_pair_of_short_texts(kind: str) -> None:
    """All texts of up to five of two letters, and shorter ones of three: at every bound there is."""
    texts = [t for n in range(6) for t in itertools.product((7, 8), repeat=n)]
    texts += [t for n in range(4) for t in itertools.product((7, 8, 9), repeat=n) if 9 in t]
    items = np.array([c for t in texts for c in t], np.uint32)
    offsets = np.cumsum([0, *map(len, texts)])
    left, right = (x.ravel() for x in np.divmod(np.arange(len(texts) ** 2), len(texts)))
    distance = {(a, b): textbook(texts[a], texts[b]) for a, b in zip(left.tolist(), right.tolist(), strict=True)}
    kernel = importlib.import_module(f"gpu_dedup.kernels.edit_{kind}")
    for ppm in (0, 1, 200_000, 200_001, 400_000, 600_000, 800_000) if kind == "cpu" else (0, 1):
        same, longest = kernel.edit(items, offsets, left, right, ppm)
        for a, b, got, whole in zip(left.tolist(), right.tolist(), same.tolist(), longest.tolist(), strict=True):
            right_answer = whole - distance[a, b]
            meets = right_answer * 10**6 >= ppm * whole and (whole > 0 or ppm == 0)
            assert got == (right_answer if meets else -1), (texts[a], texts[b], ppm)


def test_short_text_at_any_place_of_a_long_one() -> None:
    """The path runs along the first row, the last row, or both, at the least bound that lets it."""
    long = list(range(100, 400))
    for short in (1, 2, 63, 64, 65, 128, 130):
        for at in (0, 1, 60, 64, 150, 300 - short):
            inside = [1, *long[at : at + short], 2]
            around = [3, *long, 4]
            distance = len(around) - short  # both ends are replaced, or left out
            assert edit("cpu", inside, around, 0) == (len(around) - distance, len(around))
            share = short * 10**6 // len(around)
            assert edit("cpu", inside, around, share) == (short, len(around))
            assert edit("cpu", inside, around, share + 1) == (-1, len(around))


def test_all_changes_at_one_end_at_the_least_bound() -> None:
    """The cost is spent before the path comes into the next blocks (or only after it left the others), but for the
    difference of the lengths: nothing may be cut off that a path of exactly this cost needs."""
    for n in (65, 128, 200, 330):
        text = list(range(100, 100 + n))
        for changes in (1, 7, 31, 32, 33, 60):
            for extra in (1, 2, 40):
                early = [*range(1000, 1000 + changes), *text[changes:], *range(2000, 2000 + extra)]
                late = [*range(2000, 2000 + extra), *text[: n - changes], *range(1000, 1000 + changes)]
                for other in (early, late):
                    same, longest = n - changes, n + extra
                    share = same * 10**6 // longest
                    assert edit("cpu", text, other, share) == (same, longest)
                    assert edit("cpu", text, other, share + 1) == (-1, longest)


words = st.lists(st.integers(0, 3), max_size=90) | st.lists(st.integers(0, 400), max_size=140)


@settings(max_examples=80)
@given(words, words, st.sampled_from([0, 1, 300_000, 600_000, 800_000, 950_000, 1_000_000]))
def test_against_the_textbook(a: list[int], b: list[int], ppm: int) -> None:
    for kind in KINDS:
        assert edit(kind, a, b, ppm) == expected(a, b, ppm)


def changed(rng: np.random.Generator, text: list[int], edits: int, symbols: int) -> list[int]:
    out = list(text)
    for _ in range(edits):
        at = int(rng.integers(0, len(out) + 1))
        what = rng.integers(0, 3)
        if what == 0:
            out.insert(at, int(rng.integers(symbols)))
        elif at < len(out):
            if what == 1:
                del out[at]
            else:
                out[at] = int(rng.integers(symbols))
    return out


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 320])
def test_edges_of_blocks(n: int, rng: np.random.Generator) -> None:
    """Few and many edits, drifts (a block moved from one end to the other) and lengths that differ."""
    for symbols in (1, 2, 30, 2000):
        for edits in (0, 1, 5, n // 5, n // 2):
            a = rng.integers(0, symbols, n).tolist()
            b = changed(rng, a, edits, symbols)
            if edits % 2:
                cut = int(rng.integers(0, len(b) + 1))
                b = b[cut:] + b[:cut]
            a, b = [9999, *a, 9998], [9997, *b, 9996]  # ends that cannot be cut off
            for ppm in (0, 500_000, 800_000, 900_000):
                assert edit("cpu", a, b, ppm) == expected(a, b, ppm)


def test_long_texts_against_the_definition(rng: np.random.Generator) -> None:
    for n, symbols, share in ((3000, 60, 0.02), (3000, 60, 0.15), (2500, 4000, 0.18), (2000, 20, 0.6)):
        a = rng.integers(0, symbols, n).tolist()
        b = changed(rng, a, int(n * share), symbols)
        for ppm in (0, 800_000):
            assert edit("cpu", a, b, ppm) == edit("ref", a, b, ppm)


@pytest.mark.parametrize("kind", KINDS)
def test_long_texts_with_a_known_distance(kind: str) -> None:
    """Items that occur once: replacing every seventh costs one each, and one move by k costs 2 k."""
    n = 2100
    a = list(range(n))
    replaced = [x + 10_000 if x % 7 == 3 else x for x in a]
    assert edit(kind, a, replaced) == (n - n // 7, n)
    assert edit(kind, a, replaced, 857_142) == (n - n // 7, n)
    assert edit(kind, a, replaced, 857_143) == (-1, n)
    moved = a[150:] + a[:150]
    assert edit(kind, a, moved) == (n - 300, n)
    assert edit(kind, a, a[150:]) == (n - 150, n)
    assert edit(kind, a, [*range(50_000, 50_300), *a]) == (n, n + 300)


@pytest.mark.parametrize("kind", KINDS)
def test_many_pairs_share_one_array(kind: str) -> None:
    texts = ["abc", "", "abd", "xabc", "abc"]
    items = np.array([ord(c) for t in texts for c in t], np.uint32)
    offsets = np.cumsum([0, *map(len, texts)])
    left, right = (x.ravel() for x in np.divmod(np.arange(25), 5))
    kernel = importlib.import_module(f"gpu_dedup.kernels.edit_{kind}")
    same, longest = kernel.edit(items, offsets, left, right, 700_000)
    pairs = [expected(texts[a], texts[b], 700_000) for a, b in zip(left, right, strict=True)]
    assert list(zip(same.tolist(), longest.tolist(), strict=True)) == pairs
    assert [len(x) for x in kernel.edit(items, offsets, left[:0], right[:0], 0)] == [0, 0]
