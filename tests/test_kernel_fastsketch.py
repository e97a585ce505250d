"""Fast similarity sketch: Python integers as oracle, parity, scratch, and whether it keeps what its head promises."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import oracle
import pytest
from hashes import PIECES, UNIT_NAMES, fast_signature, nasty, shingle_hash, shingle_hashes
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup.batch import Tape
from gpu_dedup.kernels import fastsketch_cpu, fastsketch_ref, shingle_cpu
from gpu_dedup.recipe import Recipe
from gpu_dedup.sketches import numbers_of, permutations

BOTH = pytest.mark.parametrize("kernel", [fastsketch_ref, fastsketch_cpu], ids=["numpy", "numba"])
EMPTY = 2**32 - 1
LEVEL = 2**31
NONE = np.zeros(0, np.uint64)
TOKEN, WORD = 0, 1


def offsets_of(counts: list[int], first: int = 0) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64) + first


def numbers(slots: int, seed: int = 11) -> tuple[np.ndarray, np.ndarray]:
    return permutations(seed, slots + 2)


def random_hashes(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(0, 2**64 - 1, count, dtype=np.uint64, endpoint=True)


@BOTH
def test_by_hand(kernel: ModuleType) -> None:
    """Four slots; a shingle's bin is the top two bits of its low half, its value half of its high half."""
    low = [0x00000000, 0x3FFFFFFF, 0x80000000, 0xFFFFFFFF]  # bins 0, 0, 2, 3
    high = [10, 6, 20, 0xFFFFFFFF]
    hashes = np.array([x << 32 | w for x, w in zip(high, low, strict=True)], np.uint64)
    a = np.array([1, 1, 1, 3, 1, 1], np.uint32)
    b = np.array([0, 0, 0, 5, 0, 0], np.uint32)
    # Bin 1 stays empty: 3 x + 5 = 35, 23, 65, 2 (modulo 2**32), and half of the least is 1.
    assert kernel.fastsketch(hashes, offsets_of([4]), a, b).tolist() == [[3, LEVEL + 1, 10, 2**31 - 1]]
    # The third alone: bins 0, 1, 3 take it, by their own numbers.
    alone = [LEVEL + 10, LEVEL + 32, 10, LEVEL + 10]
    assert kernel.fastsketch(hashes, np.array([2, 2, 3], np.int64), a, b).tolist() == [[EMPTY] * 4, alone]
    assert kernel.fastsketch(hashes, offsets_of([4]), a, b).dtype == np.uint32


@BOTH
@pytest.mark.parametrize("slots", [1, 2, 15, 16, 17, 31, 32, 33, 119, 128, 1024])
def test_oracle_for_any_number_of_slots(kernel: ModuleType, slots: int, rng: np.random.Generator) -> None:
    counts = [3, 0, 1, 20, 40] if slots > 200 else [3, 0, 1, 20, 16, 90, 300]
    hashes = random_hashes(rng, sum(counts))
    a, b = numbers(slots, slots)
    bounds = offsets_of(counts)
    expected = [fast_signature(hashes[i:j].tolist(), a.tolist(), b.tolist()) for i, j in pairwise(bounds)]
    assert kernel.fastsketch(hashes, bounds, a, b).tolist() == expected


@BOTH
def test_golden(kernel: ModuleType) -> None:
    """Seed 0, eight slots, five shingles: the same for ever."""
    tape = Tape.of(["the quick brown fox jumps over the lazy dog"])
    a, b = permutations(0, 10)
    one = np.zeros(1, np.int64)
    signatures, units, kept = kernel.fast_sketch(tape.blob, tape.offsets, one, TOKEN, 5, NONE, a, b)
    assert [hex(slot) for slot in signatures[0].tolist()] == GOLDEN
    assert (units.tolist(), kept.tolist()) == ([9], [5])


GOLDEN = [
    "0x12c5a02a",
    "0x99c99424",
    "0x960bdd65",
    "0x978e6420",
    "0x99520c1e",
    "0x7781ee7",
    "0x700ddd7b",
    "0x87fa8d42",
]  # by tests/hashes.py


def test_parity_of_every_way_to_fill(rng: np.random.Generator) -> None:
    """Counts over block edges and few kinds of shingles, so that from none to nearly all bins stay empty."""
    counts = [0, 1, 20, 50, 119, 200, 400, 700, 900, 1023, 1024, 1025, 2049, 5000, 7, 0]
    for kinds in (1, 30, 150, 600, 10_000):
        hashes = random_hashes(rng, kinds)[rng.integers(0, kinds, sum(counts) + 9)]
        for slots in (16, 119, 260):
            a, b = numbers(slots)
            want, got = (
                kernel.fastsketch(hashes, offsets_of(counts, 5), a, b) for kernel in (fastsketch_ref, fastsketch_cpu)
            )
            np.testing.assert_array_equal(want, got, err_msg=f"{kinds} kinds, {slots} slots")


def test_parity_around_what_is_held(rng: np.random.Generator) -> None:
    counts = [fastsketch_cpu.HELD + more for more in (-1, 0, 1, 1500)]
    hashes = random_hashes(rng, 60)[rng.integers(0, 60, sum(counts))]
    a, b = numbers(119)
    want, got = (kernel.fastsketch(hashes, offsets_of(counts), a, b) for kernel in (fastsketch_ref, fastsketch_cpu))
    np.testing.assert_array_equal(want, got)
    assert (got >= LEVEL).any(axis=1).all()


@BOTH
def test_order_and_repeats_do_not_matter(kernel: ModuleType, rng: np.random.Generator) -> None:
    for n in (30, 500):
        hashes = random_hashes(rng, n)
        a, b = numbers(64)
        once = kernel.fastsketch(hashes, offsets_of([n]), a, b)
        again = np.concatenate([rng.permutation(hashes), hashes[:20]])
        np.testing.assert_array_equal(kernel.fastsketch(again, offsets_of([n + 20]), a, b), once)
        # The union's minimum is the minimum of both: no shingle ever raises a slot.
        halves = kernel.fastsketch(hashes, offsets_of([n // 3, n - n // 3]), a, b)
        np.testing.assert_array_equal(halves.min(axis=0), once[0])


@BOTH
def test_nothing_and_what_is_refused(kernel: ModuleType) -> None:
    a, b = numbers(4)
    assert kernel.fastsketch(NONE, offsets_of([]), a, b).shape == (0, 4)
    assert (kernel.fastsketch(NONE, offsets_of([0]), a, b) == EMPTY).all()
    for bounds in ([0, 1], [-1, 0], [0, -1]):
        with pytest.raises(ValueError, match="hash_offsets"):
            kernel.fastsketch(NONE, np.array(bounds, np.int64), a, b)
    tape = Tape.of(["a b"])
    for bad in ((a, b[1:]), (a[:2], b[:2]), permutations(0, 1027)):
        with pytest.raises(ValueError, match="same length"):
            kernel.fastsketch(NONE, offsets_of([0]), *bad)
        with pytest.raises(ValueError, match="same length"):
            kernel.fast_sketch(tape.blob, tape.offsets, np.zeros(1, np.int64), TOKEN, 1, NONE, *bad)
    with pytest.raises(ValueError, match="select"):
        kernel.fast_sketch(tape.blob, tape.offsets, np.ones(1, np.int64), TOKEN, 1, NONE, a, b)


# ------------------------------------------------------------------------------------------------------------ from text


def everything(tape: Tape) -> np.ndarray:
    return np.arange(len(tape), dtype=np.int64)


def same(tape: Tape, unit: int, n: int, slots: int = 23, stop: np.ndarray = NONE) -> None:
    arguments = (tape.blob, tape.offsets, everything(tape), unit, n, stop, *numbers(slots))
    for want, got in zip(fastsketch_ref.fast_sketch(*arguments), fastsketch_cpu.fast_sketch(*arguments), strict=True):
        assert want.dtype == got.dtype
        np.testing.assert_array_equal(want, got, err_msg=f"{UNIT_NAMES[unit]}:{n}")


@BOTH
@pytest.mark.parametrize("unit", range(5), ids=UNIT_NAMES)
def test_texts_by_the_oracle(kernel: ModuleType, unit: int, pyrng: random.Random) -> None:
    texts = ["", "...", "a", *(nasty(pyrng, pyrng.randint(1, 30)) for _ in range(20))]
    tape = Tape.of(texts)
    a, b = numbers(20)
    signatures, units, kept = kernel.fast_sketch(tape.blob, tape.offsets, everything(tape), unit, 5, NONE, a, b)
    hashes = [shingle_hashes(text, UNIT_NAMES[unit], 5) for text in texts]
    assert signatures.tolist() == [fast_signature(one, a.tolist(), b.tolist()) for one in hashes]
    assert units.tolist() == [len(oracle.units(text, UNIT_NAMES[unit])) for text in texts]
    assert kept.tolist() == [len(one) for one in hashes]


@BOTH
def test_texts_without_shingles_have_no_sketch(kernel: ModuleType) -> None:
    tape = Tape.of(["", "--- ...", "stop me", "stop me now", "\u00ad"])
    stop = np.array([shingle_hash(["stop", "me"])], np.uint64)
    a, b = numbers(40)
    signatures, units, kept = kernel.fast_sketch(tape.blob, tape.offsets, everything(tape), TOKEN, 2, stop, a, b)
    assert units.tolist() == [0, 0, 2, 3, 0]
    assert kept.tolist() == [0, 0, 0, 1, 0]
    assert [bool((row == EMPTY).all()) for row in signatures] == [True, True, True, False, True]
    assert signatures[3].tolist() == fast_signature([shingle_hash(["me", "now"])], a.tolist(), b.tolist())


def test_long_texts_that_leave_bins_empty(pyrng: random.Random) -> None:
    """More shingles than are held, of few kinds; the last but one brings a new kind to the very end."""
    held = fastsketch_cpu.HELD
    few = " ".join(pyrng.choice("abc") for _ in range(held + 3000))
    texts = [
        few,
        "a b " * held,
        few + " x y z",
        " ".join(f"w{i}" for i in range(3000)),
        few[: 2 * held],
        "one two three",
    ]
    # Shingles just as many as are held, one more, and one fewer.
    texts += [" ".join(f"w{i % 50}" for i in range(held + 1 + more)) for more in (-1, 0, 1)]
    stop = np.array([shingle_hash(["a", "b"])], np.uint64)
    for slots in (40, 300):
        same(Tape.of(texts), WORD, 2, slots)
        same(Tape.of(texts), WORD, 2, slots, stop)


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=40).map("".join), max_size=5), st.integers(1, 10))
@settings(max_examples=30)
def test_parity_on_anything(texts: list[str], n: int) -> None:
    for unit in range(5):
        same(Tape.of(texts), unit, n)


def test_equals_its_two_halves(pyrng: random.Random) -> None:
    tape = Tape.of([nasty(pyrng, pyrng.randint(0, 3000)) for _ in range(12)])
    a, b = numbers(119)
    for unit in range(5):
        hashes, offsets, _ = shingle_cpu.shingle(tape.blob, tape.offsets, everything(tape), unit, 5, NONE)
        made = fastsketch_cpu.fast_sketch(tape.blob, tape.offsets, everything(tape), unit, 5, NONE, a, b)
        np.testing.assert_array_equal(made[0], fastsketch_cpu.fastsketch(hashes, offsets, a, b))
        np.testing.assert_array_equal(made[2], offsets[1:] - offsets[:-1])


MEMORY = """
import resource
import numpy as np
from gpu_dedup.kernels import fastsketch_cpu
from gpu_dedup.sketches import permutations

text = np.frombuffer(b"the cat sat on the mat, and the dog sat too; " * 1_000_000 + bytes(64), np.uint8)
a, b = permutations(0, 262)
none = np.zeros(0, np.uint64)

def run(size):
    return fastsketch_cpu.fast_sketch(text, np.array([0, size], np.int64), np.zeros(1, np.int64), 0, 5, none, a, b)

run(1000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
_, units, _ = run(len(text) - 64)
print(units[0], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_scratch_does_not_grow_with_the_text() -> None:
    """45 MB of text that leaves most of 260 bins empty and is read twice for it: less than 8 MB more than 1 KB took."""
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", MEMORY], cwd=root, capture_output=True, text=True, check=True)
    units, grown_kb = (int(word) for word in done.stdout.split())
    assert units == 11_000_000
    assert grown_kb < 8192


# ------------------------------------------------------------------------------------------------------------- promises


@pytest.mark.parametrize("n", [20, 60, 119, 300, 2000])
@pytest.mark.parametrize("tenths", [2, 5, 8])
def test_the_estimate_is_unbiased_and_sharper_than_minhash(n: int, tenths: int) -> None:
    """Pairs of n shingles each in the union, J = tenths / 10, 119 slots: bias and variance against J (1 - J) / t.

    The seed is fixed, so this cannot fail by chance on one machine and pass on another. Bounds: 4 standard errors and
    0.003 for the bias; the variance below theory but for its own error, and the share of it that is drawn without
    replacement gone: of n shingles that all fill bins, a share of t / n.
    """
    pairs, slots = 600, 119
    rng = np.random.default_rng(1000 * n + tenths)
    shared = n * tenths // 10
    left = (n - shared) // 2
    hashes = random_hashes(rng, pairs * n).reshape(pairs, n)
    sets = [np.concatenate([row[:shared], row[shared : shared + left]]) for row in hashes]
    sets += [np.concatenate([row[:shared], row[shared + left :]]) for row in hashes]
    a, b = permutations(20240607, slots + 2)
    made = fastsketch_cpu.fastsketch(np.concatenate(sets), offsets_of([len(s) for s in sets]), a, b)
    agree = (made[:pairs] == made[pairs:]).sum(axis=1) / slots
    true = shared / n
    theory = true * (1 - true) / slots
    assert abs(agree.mean() - true) < 0.003 + 4 * (theory / pairs) ** 0.5
    filled = 1 - (1 - 1 / slots) ** n  # share of the bins that the union fills
    without_replacement = filled * (1 - filled * slots / n)
    expected = theory * (1 - filled + without_replacement)
    assert 0.8 * expected < agree.var() < 1.25 * expected
    assert expected <= theory


def test_numbers_of_a_recipe() -> None:
    shape = Recipe(bands=17, rows=7, seed=3)
    assert [len(v) for v in numbers_of(shape)] == [119, 119]
    for one, other in zip(numbers_of(shape.with_(sketch="fast")), permutations(3, 121), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [len(v) for v in numbers_of(Recipe(method="exact"))] == [0, 0]
