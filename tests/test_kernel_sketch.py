"""The fused sketch: against the oracle end to end, against its two halves, and in bounded memory."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import oracle
import pytest
from hashes import PIECES, UNIT_NAMES, nasty, shingle_hash, shingle_hashes, signature
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup.batch import Tape
from gpu_dedup.kernels import minhash_cpu, shingle_cpu, sketch_cpu, sketch_ref
from gpu_dedup.sketches import permutations

BOTH = pytest.mark.parametrize("kernel", [sketch_ref, sketch_cpu], ids=["numpy", "numba"])
NONE = np.zeros(0, np.uint64)
TOKEN = 0
EMPTY = 2**32 - 1


def everything(tape: Tape) -> np.ndarray:
    return np.arange(len(tape), dtype=np.int64)


def same(tape: Tape, unit: int, n: int, k: int = 23, select: np.ndarray | None = None, stop: np.ndarray = NONE) -> None:
    chosen = everything(tape) if select is None else select
    a, b = permutations(11, k)
    want = sketch_ref.sketch(tape.blob, tape.offsets, chosen, unit, n, stop, a, b)
    got = sketch_cpu.sketch(tape.blob, tape.offsets, chosen, unit, n, stop, a, b)
    for left, right in zip(want, got, strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right, err_msg=f"{UNIT_NAMES[unit]}:{n}")


@BOTH
@pytest.mark.parametrize("unit", range(5), ids=UNIT_NAMES)
def test_oracle(kernel: ModuleType, unit: int, pyrng: random.Random) -> None:
    texts = ["", "...", "a", *(nasty(pyrng, pyrng.randint(1, 30)) for _ in range(20))]
    tape = Tape.of(texts)
    a, b = permutations(5, 20)
    for n in (1, 5):
        signatures, units, kept = kernel.sketch(tape.blob, tape.offsets, everything(tape), unit, n, NONE, a, b)
        hashes = [shingle_hashes(text, UNIT_NAMES[unit], n) for text in texts]
        assert signatures.tolist() == [signature(one, a.tolist(), b.tolist()) for one in hashes]
        assert units.tolist() == [len(oracle.units(text, UNIT_NAMES[unit])) for text in texts]
        assert kept.tolist() == [len(one) for one in hashes]


@BOTH
def test_golden(kernel: ModuleType) -> None:
    tape = Tape.of(["the quick brown fox jumps over the lazy dog"])
    a, b = permutations(0, 4)
    signatures, units, kept = kernel.sketch(tape.blob, tape.offsets, everything(tape), TOKEN, 5, NONE, a, b)
    assert [hex(slot) for slot in signatures[0].tolist()] == ["0x9868419", "0xef03dce", "0x44a36cf8", "0x33932848"]
    assert (units.tolist(), kept.tolist()) == ([9], [5])


@BOTH
def test_texts_without_shingles_have_no_sketch(kernel: ModuleType) -> None:
    """No unit, or all shingles stopped: kept is 0 and every slot says so."""
    tape = Tape.of(["", "--- ...", "stop me", "stop me now", "\u00ad"])
    stop = np.array([shingle_hash(["stop", "me"])], np.uint64)
    a, b = permutations(0, 40)
    signatures, units, kept = kernel.sketch(tape.blob, tape.offsets, everything(tape), TOKEN, 2, stop, a, b)
    assert units.tolist() == [0, 0, 2, 3, 0]
    assert kept.tolist() == [0, 0, 0, 1, 0]
    assert [bool((row == EMPTY).all()) for row in signatures] == [True, True, True, False, True]
    assert signatures[3].tolist() == signature([shingle_hash(["me", "now"])], a.tolist(), b.tolist())


@BOTH
def test_arguments_that_leave_the_arrays_are_refused(kernel: ModuleType) -> None:
    tape = Tape.of(["a b"])
    a, b = permutations(0, 4)
    with pytest.raises(ValueError, match="select"):
        kernel.sketch(tape.blob, tape.offsets, np.array([1], np.int64), TOKEN, 1, NONE, a, b)
    with pytest.raises(ValueError, match="offsets"):
        kernel.sketch(tape.blob[:-1], tape.offsets, everything(tape), TOKEN, 1, NONE, a, b)
    with pytest.raises(ValueError, match="same length"):
        kernel.sketch(tape.blob, tape.offsets, everything(tape), TOKEN, 1, NONE, a, b[1:])


def test_equals_its_two_halves(pyrng: random.Random) -> None:
    tape = Tape.of([nasty(pyrng, pyrng.randint(0, 3000)) for _ in range(12)])
    a, b = permutations(9, 119)
    for unit in range(5):
        hashes, offsets, _ = shingle_cpu.shingle(tape.blob, tape.offsets, everything(tape), unit, 5, NONE)
        signatures, _, kept = sketch_cpu.sketch(tape.blob, tape.offsets, everything(tape), unit, 5, NONE, a, b)
        np.testing.assert_array_equal(signatures, minhash_cpu.minhash(hashes, offsets, a, b))
        np.testing.assert_array_equal(kept, offsets[1:] - offsets[:-1])


@pytest.mark.parametrize("n", [1, 8, 9, 40, 1000])
def test_parity_over_blocks(n: int, pyrng: random.Random) -> None:
    texts = [
        "",
        *(" ".join(nasty(pyrng, 4) for _ in range(count)) for count in (1, 250, 1100, 2500)),
        "中" * 1025,
        "é" * 900,
    ]
    for unit in range(5):
        same(Tape.of(texts), unit, n)


def test_select_stop_and_offset(pyrng: random.Random) -> None:
    whole = Tape.of([nasty(pyrng, 40) for _ in range(30)])
    tape = Tape(whole.blob, whole.offsets[2:-2])
    found, _, _ = shingle_cpu.shingle(tape.blob, tape.offsets, everything(tape), TOKEN, 2, NONE)
    stop = np.unique(found[::3])
    same(tape, TOKEN, 2, select=np.array([25, 0, 7, 7], np.int64), stop=stop)
    same(tape, TOKEN, 2, select=np.zeros(0, np.int64), stop=stop)


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=40).map("".join), max_size=5), st.integers(1, 10))
@settings(max_examples=40)
def test_parity_on_anything(texts: list[str], n: int) -> None:
    for unit in range(5):
        same(Tape.of(texts), unit, n)


def test_the_same_text_has_the_same_sketch_anywhere(pyrng: random.Random) -> None:
    texts = [nasty(pyrng, pyrng.randint(1, 200)) for _ in range(20)]
    a, b = permutations(2, 48)

    def of(some: list[str]) -> list[list[int]]:
        tape = Tape.of(some)
        return sketch_cpu.sketch(tape.blob, tape.offsets, everything(tape), TOKEN, 5, NONE, a, b)[0].tolist()

    alone = [of([text])[0] for text in texts]
    assert of(texts) == alone
    assert of(texts[::-1]) == alone[::-1]


MEMORY = """
import resource
import numpy as np
from gpu_dedup.kernels import sketch_cpu
from gpu_dedup.sketches import permutations

text = np.frombuffer(b"the cat sat on the mat, and the dog sat too; " * 1_000_000 + bytes(64), np.uint8)
a, b = permutations(0, 260)
none = np.zeros(0, np.uint64)

def run(size):
    return sketch_cpu.sketch(text, np.array([0, size], np.int64), np.zeros(1, np.int64), 0, 5, none, a, b)

run(1000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
_, units, _ = run(len(text) - 64)
print(units[0], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_scratch_does_not_grow_with_the_text() -> None:
    """45 MB of text, 11 million shingles, 260 slots: less than 8 MB more than a text of 1 KB took."""
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", MEMORY], cwd=root, capture_output=True, text=True, check=True)
    units, grown_kb = (int(word) for word in done.stdout.split())
    assert units == 11_000_000
    assert grown_kb < 8192
