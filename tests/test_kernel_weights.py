"""Document frequencies: cells against the oracle, counts that add up, the integer logarithm against exact powers."""

from __future__ import annotations

import random
from collections import Counter
from types import ModuleType

import numpy as np
import pytest
from hashes import PIECES, UNIT_NAMES, nasty, shingle_hash, shingle_hashes
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup.batch import Tape
from gpu_dedup.kernels import weights_cpu, weights_ref
from gpu_dedup.kernels.weights_ref import CELLS, ONE, idf, log2_16

BOTH = pytest.mark.parametrize("kernel", [weights_ref, weights_cpu], ids=["numpy", "numba"])
NONE = np.zeros(0, np.uint64)


def everything(tape: Tape) -> np.ndarray:
    return np.arange(len(tape), dtype=np.int64)


def expected(texts: list[str], unit: str, n: int) -> tuple[Counter[int], int]:
    hashes = [{h >> 40 for h in shingle_hashes(text, unit, n)} for text in texts]
    return Counter(cell for own in hashes for cell in own), sum(1 for own in hashes if own)


@BOTH
@pytest.mark.parametrize("unit", range(5), ids=UNIT_NAMES)
def test_cells_by_the_oracle(kernel: ModuleType, unit: int, pyrng: random.Random) -> None:
    texts = ["", "...", "a a a", "a", *(nasty(pyrng, pyrng.randint(1, 60)) for _ in range(15))]
    tape = Tape.of(texts)
    for n in (1, 4):
        cells, documents = kernel.cells(tape.blob, tape.offsets, everything(tape), unit, n, NONE)
        assert cells.dtype == np.uint32
        assert (Counter(cells.tolist()), documents) == expected(texts, UNIT_NAMES[unit], n)


@BOTH
def test_long_texts_and_stops(kernel: ModuleType) -> None:
    texts = [
        " ".join(f"w{i}" for i in range(5000)),
        "one " * 4000,
        "one " * 1500 + " ".join(f"v{i}" for i in range(3000)),
    ]
    tape = Tape.of([*texts, "one"])
    stop = np.array([shingle_hash(["one"])], np.uint64)
    found, documents = kernel.cells(tape.blob, tape.offsets, everything(tape), 0, 1, stop)
    one = shingle_hash(["one"]) >> 40
    wanted, _ = expected(texts, "token", 1)
    assert documents == 2
    assert Counter(found.tolist()) == Counter({cell: count for cell, count in wanted.items() if cell != one})


@BOTH
def test_a_document_counts_once_in_a_cell(kernel: ModuleType) -> None:
    """Two words of one cell, found by trying."""
    seen: dict[int, str] = {}
    for i in range(200_000):
        cell = shingle_hash([f"w{i}"]) >> 40
        if cell in seen:
            break
        seen[cell] = f"w{i}"
    tape = Tape.of([f"w{i} {seen[cell]} w{i}", f"w{i}", seen[cell]])
    found, documents = kernel.cells(tape.blob, tape.offsets, everything(tape), 0, 1, NONE)
    assert found.tolist() == [cell] * 3
    assert documents == 3


@BOTH
def test_tables_of_shards_add(kernel: ModuleType, pyrng: random.Random) -> None:
    tape = Tape.of([nasty(pyrng, 40) for _ in range(20)])
    whole, parts = np.zeros(CELLS, np.uint32), [np.zeros(CELLS, np.uint32) for _ in range(2)]
    everyone = everything(tape)
    kernel.add(whole, kernel.cells(tape.blob, tape.offsets, everyone, 0, 2, NONE)[0])
    for table, some in zip(parts, (everyone[::2], everyone[1::2]), strict=True):
        kernel.add(table, kernel.cells(tape.blob, tape.offsets, np.ascontiguousarray(some), 0, 2, NONE)[0])
    assert whole.sum() > 100
    np.testing.assert_array_equal(whole, parts[0] + parts[1])


@BOTH
def test_add_counts_and_refuses(kernel: ModuleType) -> None:
    table = np.zeros(CELLS, np.uint32)
    kernel.add(table, np.array([3, 0, 3, CELLS - 1, 3], np.uint32))
    assert (table[0], table[3], table[CELLS - 1], int(table.sum())) == (1, 3, 1, 5)
    with pytest.raises(ValueError, match="cell 16777216"):
        kernel.add(table, np.array([CELLS], np.uint32))
    with pytest.raises(ValueError, match="table"):
        kernel.add(table[:-1], np.zeros(0, np.uint32))


def exact(value: int) -> int:
    """floor(2**16 log2(value)) by whole numbers: the largest k with 2**k <= value**(2**16)."""
    return (value ** (1 << 16)).bit_length() - 1


def test_logarithm_by_hand() -> None:
    assert log2_16(np.array([1, 2, 4, 1 << 31, 1 << 32, 1 << 63], np.uint64)).tolist() == [
        0, 1 << 16, 2 << 16, 31 << 16, 32 << 16, 63 << 16,
    ]  # fmt: skip
    # log2(3) = 1.58496 25007 21156 18145..., times 65536
    assert log2_16(np.array([3], np.uint64))[0] == 103_872
    assert log2_16(np.array([10], np.uint64))[0] == 217_705


@pytest.mark.parametrize("value", [5, 7, 255, 257, 65_535, 65_537, 10**6, 2**32 - 1, 2**32 + 1, 2**33 + 12_345])
def test_logarithm_is_exact_or_two_units_below(value: int) -> None:
    found = int(log2_16(np.array([value], np.uint64))[0])
    assert 0 <= exact(value) - found <= 2


def test_logarithm_never_falls() -> None:
    found = log2_16(np.arange(1, 1 << 18, dtype=np.uint64)).astype(np.int64)
    assert (np.diff(found) >= 0).all()
    high = log2_16(np.arange(2**32 - 5000, 2**32 + 5000, dtype=np.uint64)).astype(np.int64)
    assert (np.diff(high) >= 0).all()


def test_idf() -> None:
    table = np.zeros(CELLS, np.uint32)
    table[:5] = [7, 3, 1, 0, 6]
    found = idf(table, 7)
    assert found.dtype == np.uint32
    # log2 of 8/8, 8/4, 8/2, 8/1, and 1 more
    assert found[:4].tolist() == [ONE, 2 * ONE, 3 * ONE, 4 * ONE]
    assert found[4] == 4 * ONE - int(log2_16(np.array([7], np.uint64))[0])
    table[9] = 2**32 - 2
    table[10] = 70_000
    found = idf(table, 2**32 - 2)
    assert found[9] == ONE
    most = int(log2_16(np.array([2**32 - 1], np.uint64))[0]) + ONE
    assert found[10] == most - int(log2_16(np.array([70_001], np.uint64))[0])
    assert int(found.max()) == most < 1 << 22
    with pytest.raises(ValueError, match="6 documents"):
        idf(np.full(CELLS, 7, np.uint32), 6)


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=30).map("".join), max_size=4), st.integers(1, 4))
@settings(max_examples=25)
def test_parity_on_anything(texts: list[str], n: int) -> None:
    tape = Tape.of(texts)
    for unit in range(5):
        want = weights_ref.cells(tape.blob, tape.offsets, everything(tape), unit, n, NONE)
        got = weights_cpu.cells(tape.blob, tape.offsets, everything(tape), unit, n, NONE)
        np.testing.assert_array_equal(np.sort(want[0]), np.sort(got[0]))
        assert want[1] == got[1]
