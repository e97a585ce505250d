"""Text to SimHash: against Python integers end to end, the three rules of weights, tables that grow or collide."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import oracle
import pytest
from hashes import ALL, GOLDEN, PIECES, UNIT_NAMES, mix, nasty, shingle_hash, shingle_hashes
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup.batch import Tape
from gpu_dedup.kernels import shingle_cpu, simhash_cpu, simhash_ref
from gpu_dedup.kernels.simhash_ref import CELLS, COUNT, SET, TFIDF

BOTH = pytest.mark.parametrize("kernel", [simhash_ref, simhash_cpu], ids=["numpy", "numba"])
NONE = np.zeros(0, np.uint64)
NO_IDF = np.zeros(0, np.uint32)
TOKEN, WORD, CHAR, BYTE = range(4)


@pytest.fixture(scope="module")
def idf() -> np.ndarray:
    """Weights without a pattern, among them the largest and many that are equal."""
    made = np.random.default_rng(5).integers(1, 5, CELLS, dtype=np.uint32)
    made[::7] *= np.uint32(65_537)
    made[::1001] = simhash_ref.LARGEST_IDF - 1
    return made


def everything(tape: Tape) -> np.ndarray:
    return np.arange(len(tape), dtype=np.int64)


def simhash(weights: dict[int, int]) -> int:
    """The definition once more, from terms and their weights."""
    out = 0
    for bit in range(64):
        if sum(w if h >> bit & 1 else -w for h, w in weights.items()) > 0:
            out |= 1 << bit
    return out


def weighted(hashes: list[int], rule: int, idf: np.ndarray, top: int) -> dict[int, int]:
    counts = Counter(hashes)
    if rule == SET:
        return dict.fromkeys(counts, 1)
    if rule == COUNT:
        return dict(counts)
    weights = {h: count * int(idf[h >> 40]) for h, count in counts.items()}
    return dict(sorted(weights.items(), key=lambda entry: (-entry[1], entry[0]))[: top or None])


def rules(idf: np.ndarray) -> list[tuple[int, np.ndarray, int]]:
    return [(SET, NO_IDF, 0), (COUNT, NO_IDF, 0), *((TFIDF, idf, top) for top in (0, 1, 6, 10**6))]


def same(tape: Tape, unit: int, n: int, idf: np.ndarray, select: np.ndarray | None = None, stop=NONE) -> None:
    chosen = everything(tape) if select is None else select
    for rule, weights, top in rules(idf):
        want = simhash_ref.fingerprints(tape.blob, tape.offsets, chosen, unit, n, stop, rule, weights, top)
        got = simhash_cpu.fingerprints(tape.blob, tape.offsets, chosen, unit, n, stop, rule, weights, top)
        for left, right in zip(want, got, strict=True):
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right, err_msg=f"{UNIT_NAMES[unit]}:{n} rule {rule} top {top}")


@BOTH
def test_by_hand(kernel: ModuleType) -> None:
    """One shingle is its own fingerprint; of `a a b` the words decide by set or by count."""
    one, two = shingle_hash(["a"]), shingle_hash(["b"])
    tape = Tape.of(["a", "b", "a b", "a a b", "b a a a"])
    arguments = (tape.blob, tape.offsets, everything(tape), TOKEN, 1, NONE)
    values, units, kept = kernel.fingerprints(*arguments, SET, NO_IDF, 0)
    assert values.tolist() == [one, two, one & two, one & two, one & two]  # a tie is 0
    assert units.tolist() == kept.tolist() == [1, 1, 2, 3, 4]
    values, _, _ = kernel.fingerprints(*arguments, COUNT, NO_IDF, 0)
    assert values.tolist() == [one, two, one & two, one, one]
    even = np.ones(CELLS, np.uint32)
    even[two >> 40] = 3
    values, _, _ = kernel.fingerprints(*arguments, TFIDF, even, 0)
    assert values.tolist() == [one, two, two, two, one & two]
    values, _, _ = kernel.fingerprints(*arguments, TFIDF, even, 1)
    assert values.tolist() == [one, two, two, two, min(one, two)]  # of equal weights the lower hash


@BOTH
def test_golden(kernel: ModuleType) -> None:
    tape = Tape.of(["the quick brown fox jumps over the lazy dog and the quick brown fox jumps over the fence"])
    arguments = (tape.blob, tape.offsets, everything(tape), TOKEN, 2, NONE)
    found = [int(kernel.fingerprints(*arguments, *rule)[0][0]) for rule in rules(np.full(CELLS, 1 << 16, np.uint32))]
    wanted = [
        0x90AA427F65DC865B, 0x9088424F55FC875B, 0x9088424F55FC875B,
        0x25BD4E5B76FF24AC, 0x8088024F54390540, 0x9088424F55FC875B,
    ]  # fmt: skip
    assert [hex(value) for value in found] == [hex(value) for value in wanted]


@BOTH
@pytest.mark.parametrize("unit", range(5), ids=UNIT_NAMES)
def test_oracle(kernel: ModuleType, unit: int, pyrng: random.Random, idf: np.ndarray) -> None:
    texts = ["", "...", "a", "b b b b", *(nasty(pyrng, pyrng.randint(1, 30)) for _ in range(12))]
    tape = Tape.of(texts)
    for n in (1, 3):
        hashes = [shingle_hashes(text, UNIT_NAMES[unit], n) for text in texts]
        for rule, weights, top in rules(idf):
            found, units, kept = kernel.fingerprints(
                tape.blob, tape.offsets, everything(tape), unit, n, NONE, rule, weights, top
            )
            assert found.tolist() == [simhash(weighted(one, rule, weights, top)) for one in hashes]
            assert units.tolist() == [len(oracle.units(text, UNIT_NAMES[unit])) for text in texts]
            assert kept.tolist() == [len(one) for one in hashes]


@BOTH
def test_texts_without_shingles(kernel: ModuleType, idf: np.ndarray) -> None:
    """No unit, or all shingles stopped: 0 and kept 0, in every rule."""
    tape = Tape.of(["", "--- ...", "stop me", "stop me now", "\u00ad"])
    stop = np.array([shingle_hash(["stop", "me"])], np.uint64)
    for rule, weights, top in rules(idf):
        found, units, kept = kernel.fingerprints(
            tape.blob, tape.offsets, everything(tape), TOKEN, 2, stop, rule, weights, top
        )
        assert found.tolist() == [0, 0, 0, shingle_hash(["me", "now"]), 0]
        assert (units.tolist(), kept.tolist()) == ([0, 0, 2, 3, 0], [0, 0, 0, 1, 0])


@BOTH
def test_arguments_that_do_not_fit_are_refused(kernel: ModuleType, idf: np.ndarray) -> None:
    tape = Tape.of(["a b"])
    whole = (tape.blob, tape.offsets, everything(tape), TOKEN, 1, NONE)
    for rule, weights, top, word in (
        (3, NO_IDF, 0, "rule 3"), (TFIDF, NO_IDF, 0, "idf"), (TFIDF, idf[:-1], 0, "idf"), (SET, idf, 0, "idf"),
        (TFIDF, idf.astype(np.int64), 0, "idf"), (TFIDF, idf, -1, "top"), (COUNT, NO_IDF, 5, "top"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=word):
            kernel.fingerprints(*whole, rule, weights, top)
    with pytest.raises(ValueError, match="select"):
        kernel.fingerprints(tape.blob, tape.offsets, np.array([1], np.int64), TOKEN, 1, NONE, SET, NO_IDF, 0)


def test_parity_over_blocks(pyrng: random.Random, idf: np.ndarray) -> None:
    """Texts of several blocks: new shingles to the end (tables grow), the same few all along, and a turn to new ones
    after a block of repeats, when the guess of what will come was wrong."""
    words = [f"w{i}" for i in range(3000)]
    texts = ["", " ".join(words), "ab cd " * 2000, "a " * 1500 + " ".join(words), "中" * 1025, nasty(pyrng, 2500)]
    for unit, n in ((TOKEN, 1), (TOKEN, 5), (CHAR, 2), (BYTE, 9)):
        same(Tape.of(texts), unit, n, idf)


def test_a_table_that_outgrows_the_cache(idf: np.ndarray) -> None:
    """More different shingles than the first guess may ask for. The sums by NumPy's, as the definition takes long."""
    text = np.random.default_rng(2).integers(33, 127, simhash_cpu.IN_CACHE + 20_000, dtype=np.uint8).tobytes()
    tape = Tape.of([text, "short", text])
    arguments = (tape.blob, tape.offsets, everything(tape), BYTE, 6, NONE)
    sets, bounds = shingle_cpu.shingle_sets(*arguments)
    one = sets[bounds[0] : bounds[1]]
    assert len(one) == len(text) - 5 > simhash_cpu.IN_CACHE
    bits = np.unpackbits(one.view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
    weights = idf[(one >> np.uint64(40)).astype(np.int64)].astype(np.int64)
    for rule, factors in ((SET, np.ones(len(one), np.int64)), (TFIDF, weights)):
        sums = (factors[None, :] @ bits)[0].tolist()
        want = sum(1 << i for i, total in enumerate(sums) if 2 * total > int(factors.sum()))
        found = simhash_cpu.fingerprints(*arguments, rule, idf if rule == TFIDF else NO_IDF, 0)[0].tolist()
        assert (found[0], found[2]) == (want, want)


@pytest.mark.parametrize("odd", [1, 2**63 + 1, 0x9E3779B97F4A7C15])
def test_where_hashes_stand_does_not_matter(odd: int, pyrng: random.Random, idf: np.ndarray) -> None:
    """With the multiplier 2**63 + 1 or 1 hashes share places by their top bits, as planned by a hostile text."""
    tape = Tape.of([nasty(pyrng, 400) for _ in range(6)])
    arguments = (tape.blob, tape.offsets, everything(tape), CHAR, 2, NONE)
    for rule in rules(idf):
        want = simhash_cpu.fingerprints(*arguments, *rule)
        for left, right in zip(want, simhash_cpu.fingerprints(*arguments, *rule, np.uint64(odd)), strict=True):
            np.testing.assert_array_equal(left, right)


def test_tables_of_hashes_that_share_places() -> None:
    """All hashes at one place, and the last place, from which probing goes on at the first."""
    for base in (5, 2**64 - 40):
        given = np.array([base + i % 30 for i in range(90)], np.uint64)
        table = np.zeros(64, np.uint64)
        hashes = given.copy()
        left = simhash_cpu.first_seen(table, 6, np.uint64(1), hashes, len(given))
        assert hashes[:left].tolist() == list(dict.fromkeys(given.tolist()))
        table, counts = np.zeros(64, np.uint64), np.zeros(64, np.int64)
        terms = np.zeros(100, np.uint64)
        terms[0] = 77  # what was held before stays
        assert simhash_cpu.tally(table, counts, 6, np.uint64(1), given, len(given), terms, 1) == 31
        assert terms[:31].tolist() == [77, *dict.fromkeys(given.tolist())]
        larger, numbers = np.zeros(256, np.uint64), np.zeros(256, np.int64)
        simhash_cpu.move(table, counts, 6, 8, np.uint64(1), larger, numbers)
        assert not table.any()
        found = {int(h): int(c) for h, c in zip(larger, numbers, strict=True) if h}
        assert found == dict(Counter(given.tolist()))


def inverse_mix(z: int) -> int:
    """The number that mix64 takes to z."""
    mask = 2**64 - 1

    def unshift(value: int, by: int) -> int:
        out = value
        for _ in range(64 // by):
            out = value ^ (out >> by)
        return out

    z = unshift(z, 31) * pow(0x94D049BB133111EB, -1, 2**64) & mask
    z = unshift(z, 27) * pow(0xBF58476D1CE4E5B9, -1, 2**64) & mask
    return unshift(z, 30)


def word_of_hash_zero(rng: random.Random) -> str:
    """A word of 16 ASCII characters that, as a shingle by itself, has the hash 0: a free place's mark in hash tables.

    mix(unit + GOLDEN) = 0 for unit = -GOLDEN, and of any eight bytes the next eight follow from that."""
    while True:
        first = bytes(rng.randint(33, 126) for _ in range(8))
        so_far = mix((16 * GOLDEN + int.from_bytes(first, "little")) & ALL)
        second = ((inverse_mix(-GOLDEN & ALL) - so_far) & ALL).to_bytes(8, "little")
        if all(33 <= byte <= 126 for byte in second):
            return (first + second).decode()


@BOTH
def test_a_shingle_whose_hash_is_zero(kernel: ModuleType, pyrng: random.Random, idf: np.ndarray) -> None:
    zero = word_of_hash_zero(pyrng)
    assert shingle_hash([zero]) == 0
    texts = [zero, f"{zero} a", f"a {zero} {zero} b c", f"a b c {zero}", " ".join([zero] * 1500 + ["x", "y"])]
    tape = Tape.of(texts)
    for rule, weights, top in rules(idf):
        found = kernel.fingerprints(tape.blob, tape.offsets, everything(tape), WORD, 1, NONE, rule, weights, top)[0]
        hashes = [shingle_hashes(text, "word", 1) for text in texts]
        assert found.tolist() == [simhash(weighted(one, rule, weights, top)) for one in hashes]


def test_heaviest(pyrng: random.Random) -> None:
    for count in (2, 3, 50, 400):
        terms = [pyrng.getrandbits(64) for _ in range(count)]
        weights = [pyrng.randint(1, 6) for _ in range(count)]
        order = sorted(zip(weights, terms, strict=True), key=lambda entry: (-entry[0], entry[1]))
        for top in {1, 2, count // 2, count - 1} - {0, count}:
            w, t = np.array(weights, np.int64), np.array(terms, np.uint64)
            simhash_cpu.heaviest(w, t, count, top)
            assert sorted(zip(w[:top].tolist(), t[:top].tolist(), strict=True)) == sorted(order[:top])


def test_select_stop_and_offset(pyrng: random.Random, idf: np.ndarray) -> None:
    whole = Tape.of([nasty(pyrng, 40) for _ in range(30)])
    tape = Tape(whole.blob, whole.offsets[2:-2])
    found, _, _ = shingle_cpu.shingle(tape.blob, tape.offsets, everything(tape), TOKEN, 2, NONE)
    stop = np.unique(found[::3])
    same(tape, TOKEN, 2, idf, select=np.array([25, 0, 7, 7], np.int64), stop=stop)
    same(tape, TOKEN, 2, idf, select=np.zeros(0, np.int64), stop=stop)


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=25).map("".join), max_size=4), st.integers(1, 4))
@settings(max_examples=25)
def test_parity_on_anything(idf: np.ndarray, texts: list[str], n: int) -> None:
    for unit in range(5):
        same(Tape.of(texts), unit, n, idf)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_a_set_knows_no_order_and_no_count(words: list[int], rng: random.Random) -> None:
    """Words as shingles: any order with any repeats has the fingerprint of the set; a count knows no order."""
    again = [*words, *rng.choices(words, k=5)]
    rng.shuffle(again)
    shuffled = rng.sample(words, len(words))
    tape = Tape.of([" ".join(f"w{i}" for i in one) for one in (words, again, shuffled)])
    arguments = (tape.blob, tape.offsets, everything(tape), TOKEN, 1, NONE)
    values = simhash_cpu.fingerprints(*arguments, SET, NO_IDF, 0)[0]
    assert len(set(values.tolist())) == 1
    values = simhash_cpu.fingerprints(*arguments, COUNT, NO_IDF, 0)[0]
    assert values[0] == values[2]


def test_fingerprints_use_all_their_bits() -> None:
    """50,000 texts of twelve words have 50,000 fingerprints, and each bit is set in about half of them."""
    rng = np.random.default_rng(11)
    tape = Tape.of([" ".join(f"w{i}" for i in row) for row in rng.integers(0, 100_000, (50_000, 12)).tolist()])
    values = simhash_cpu.fingerprints(tape.blob, tape.offsets, everything(tape), TOKEN, 3, NONE, COUNT, NO_IDF, 0)[0]
    assert len(np.unique(values)) == len(values)
    shares = ((values[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)).mean(axis=0)
    tie = 252 / 1024 / 2  # ten shingles: half of the chance of a tie, which gives 0
    assert np.abs(shares - (0.5 - tie)).max() < 0.012, "5 standard deviations"


MEMORY = """
import resource
import numpy as np
from gpu_dedup.kernels import simhash_cpu

text = np.frombuffer(b"the cat sat on the mat, and the dog sat too; " * 1_000_000 + bytes(64), np.uint8)
none, no_idf = np.zeros(0, np.uint64), np.zeros(0, np.uint32)

def run(size, rule):
    every = np.zeros(1, np.int64)
    return simhash_cpu.fingerprints(text, np.array([0, size], np.int64), every, 0, 5, none, rule, no_idf, 0)

run(1000, 0), run(1000, 1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
units = [int(run(len(text) - 64, rule)[1][0]) for rule in (0, 1)]
print(*units, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_scratch_grows_with_different_shingles_alone() -> None:
    """45 MB of text, 11 million shingles, 11 of them different: less than 8 MB more than a text of 1 KB took."""
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", MEMORY], cwd=root, capture_output=True, text=True, check=True)
    one, two, grown_kb = (int(word) for word in done.stdout.split())
    assert one == two == 11_000_000
    assert grown_kb < 8192
