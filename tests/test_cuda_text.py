"""CUDA kernels on text against their definitions, bit for bit: on the stand-in for CuPy, and on a GPU if there is one.

What `test_small_...` covers runs a second time under ASan and UBSan, with device arrays that are heap blocks of their
exact size.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import hashes as oracle_hashes
import numpy as np
import pytest
import xxhash
from cuda_fixtures import need

from gpu_dedup.batch import Tape
from gpu_dedup.kernels import (
    bandkeys_ref,
    digest_ref,
    fastsketch_ref,
    minhash_ref,
    shingle_ref,
    simhash_cpu,
    simhash_ref,
    sketch_ref,
)
from gpu_dedup.kernels.units_ref import unit_hashes

REPO = Path(__file__).resolve().parent.parent
UNITS = range(5)
TOKEN, WORD, CHAR, BYTE, CODE = UNITS
TILE = 4096  # bytes of a tile of units.cu
NONE = np.zeros(0, np.uint64)
IGNORABLE = "\u00ad"  # two bytes, skipped by token and code


def kernel(stem: str) -> ModuleType:
    """The launchers `<stem>_cuda`, bound to the CuPy that the fixture put in place."""
    return importlib.import_module(f"gpu_dedup.kernels.{stem}_cuda")


def on_device(cupy: ModuleType, blob: np.ndarray, shift: int = 0) -> Any:
    """A device copy whose address is `shift` past a multiple of 16."""
    return cupy.asarray(np.concatenate([np.full(shift, 0x78, np.uint8), blob]))[shift:]


def offsets_of(counts: Sequence[int], base: int = 0) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64) + base


def permutations(k: int) -> tuple[np.ndarray, np.ndarray]:
    draws = np.array(oracle_hashes.draws(k, k), np.uint64)
    return (draws & np.uint64(0xFFFFFFFF)).astype(np.uint32) | np.uint32(1), (draws >> np.uint64(32)).astype(np.uint32)


def same(got: Sequence[Any], want: Sequence[np.ndarray]) -> None:
    assert len(got) == len(want)
    for device, host in zip(got, want, strict=True):
        found = device.get()
        assert found.dtype == host.dtype
        np.testing.assert_array_equal(found, host)


AWKWARD = [
    "", "a", " ", "\u00e9", "\u4e2d", "\U00020bb7", IGNORABLE, "\u200d", "a\u00adb", "\u00ada\u00ad", "x y z", "-----",
    "\ud800", "a\ud800b", "\x00", "no end", "no\u00ad", "", "\u00ad", "next", "a" * 15, "b" * 16, "c" * 17, "d" * 31,
    "e" * 33, "\u4e2d\u6587" * 9, "a+b-c.d_e", "\U0001f468\u200d\U0001f469 \u2764\ufe0f", "\u0e44\u0e17\u0e22 abc",
    "\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8", "", "",
]  # fmt: skip


def awkward(pyrng: random.Random) -> Tape:
    return Tape.of([*AWKWARD, *(oracle_hashes.nasty(pyrng, pyrng.choice([1, 3, 20, 150])) for _ in range(25))])


def mixed(tape: Tape) -> np.ndarray:
    """Every document, the last ones first, some twice."""
    count = len(tape)
    return np.array([*range(count - 1, count // 2, -1), 0, 0, 1, *range(count)], np.int64)


# ------------------------------------------------------------------------------------------------- units and shingles


@pytest.mark.parametrize("unit", UNITS)
def test_units_by_the_oracle(device_cupy, unit):
    """The oracle is Python integers and strings: neither NumPy's definition nor its tables."""
    texts = ["one two, three", "caf\u00e9 \u4e2d\u6587 a\u00adb", "nine_bytes sevenby eightbyt ninebytes " + "x" * 40]
    tape = Tape.of(texts)
    found, rows = kernel("units").units(
        on_device(device_cupy, tape.blob), tape.offsets, np.arange(3, dtype=np.int64), unit
    )
    wanted = [oracle_hashes.shingle_hashes(text, oracle_hashes.UNIT_NAMES[unit], 1) for text in texts]
    # A shingle of one unit is mix(hash + GOLDEN).
    mixed_hashes = [oracle_hashes.mix((h + oracle_hashes.GOLDEN) & oracle_hashes.ALL) for h in found.get().tolist()]
    assert mixed_hashes == [h for own in wanted for h in own]
    assert rows.get().tolist() == offsets_of([len(own) for own in wanted]).tolist()


@pytest.mark.parametrize("unit", UNITS)
def test_small_awkward_texts(device_cupy, pyrng, unit):
    tape = awkward(pyrng)
    select = mixed(tape)
    for shift in (0, 5):
        blob = on_device(device_cupy, tape.blob, shift)
        for n in (1, 5, 40):
            want = shingle_ref.shingle(tape.blob, tape.offsets, select, unit, n, NONE)
            same(kernel("shingle").shingle(blob, tape.offsets, select, unit, n, NONE), want)
            stop = np.unique(want[0])[::3]
            want = shingle_ref.shingle(tape.blob, tape.offsets, select, unit, n, stop)
            same(kernel("shingle").shingle(blob, tape.offsets, select, unit, n, stop), want)


def test_small_offsets_above_zero_at_any_alignment(device_cupy):
    """The blob's address, the first text's place in it and the texts' lengths, each modulo 16."""
    text = "\u00e9t\u00e9 a\u4e2db \U00020bb7 words, and more"
    data = text.encode()
    for shift in range(16):
        tape = Tape.of([b"#" * ((7 * shift) % 16), *[data[: len(data.decode()[: 3 + i].encode())] for i in range(9)]])
        select = np.arange(1, 10, dtype=np.int64)
        blob = on_device(device_cupy, tape.blob, shift)
        for unit in (TOKEN, CHAR):
            want = shingle_ref.shingle(tape.blob, tape.offsets, select, unit, 2, NONE)
            same(kernel("shingle").shingle(blob, tape.offsets, select, unit, 2, NONE), want)


IN_RUN = [
    "ab" + IGNORABLE * 5000 + "cd",  # one unit over three tiles
    "ab" + IGNORABLE * 5000 + " cd",
    "ab" + IGNORABLE * 5000,
    IGNORABLE * 5000 + "cd",
    IGNORABLE * 5000,
    "\u4e2d" + IGNORABLE * 5000 + "cd",
    " " + IGNORABLE * 5000 + "cd" + IGNORABLE * 2100 + "\u4e2d",
    "\U000e0001" * 3000 + "x",
    "x" * TILE,
    "x" * (TILE - 1),
    " " * TILE + "a",
    "",
    "y",
]


@pytest.mark.parametrize("unit", [TOKEN, WORD, CODE])
def test_runs_and_ignorables_over_many_tiles(device_cupy, unit):
    """What decides about a unit may stand thousands of bytes before it, in another tile, or in another document."""
    for texts in (IN_RUN, IN_RUN[::-1], ["x", *IN_RUN]):
        tape = Tape.of(texts)
        select = np.arange(len(tape), dtype=np.int64)
        found, rows = kernel("units").units(on_device(device_cupy, tape.blob), tape.offsets, select, unit)
        want = [unit_hashes(tape[i], unit) for i in range(len(tape))]
        np.testing.assert_array_equal(found.get(), np.concatenate(want))
        assert rows.get().tolist() == offsets_of([len(own) for own in want]).tolist()


@pytest.mark.parametrize("unit", UNITS)
def test_tile_edges(device_cupy, pyrng, unit):
    """Characters of every width over the edges of threads (16 bytes) and tiles, at four alignments."""
    for pad in (0, 1, 2, 3):
        tape = Tape.of(["x" * pad + oracle_hashes.nasty(pyrng, 3000)])
        select = np.zeros(1, np.int64)
        want = shingle_ref.shingle(tape.blob, tape.offsets, select, unit, 3, NONE)
        same(kernel("shingle").shingle(on_device(device_cupy, tape.blob), tape.offsets, select, unit, 3, NONE), want)
    for size in (TILE - 1, TILE, TILE + 1, 2 * TILE):  # the text's end at a tile's edge
        tape = Tape.of([("ab " * TILE)[: size - 1] + "z", "b"])
        select = np.arange(2, dtype=np.int64)
        want = shingle_ref.shingle(tape.blob, tape.offsets, select, unit, 2, NONE)
        same(kernel("shingle").shingle(on_device(device_cupy, tape.blob), tape.offsets, select, unit, 2, NONE), want)


def test_a_long_text_among_short_ones(device_cupy, pyrng):
    """400 KB, one unit of 60 KB in it; the longest windows there may be."""
    words = [oracle_hashes.nasty(pyrng, 2) for _ in range(300)]
    text = " ".join(pyrng.choice(words) for _ in range(35_000))
    tape = Tape.of(["a", text[: len(text) // 2] + " " + "f0" * 30_000 + " " + text[len(text) // 2 :], "", "b c"])
    assert len(tape[1]) > 400_000
    select = np.arange(4, dtype=np.int64)
    blob = on_device(device_cupy, tape.blob, 9)
    for unit, n in ((TOKEN, 5), (CODE, 1000)):
        want = shingle_ref.shingle(tape.blob, tape.offsets, select, unit, n, NONE)
        same(kernel("shingle").shingle(blob, tape.offsets, select, unit, n, NONE), want)


def test_small_bytes_that_are_no_utf8_lead_nowhere(device_cupy, rng):
    """Such texts never reach a kernel; if one did, its units would be nonsense, but inside the arrays."""
    data = rng.integers(128, 256, 9000, dtype=np.uint8)
    offsets = offsets_of([0, 1, 2, 3, 4090, 4000, 904])
    select = np.arange(7, dtype=np.int64)
    for unit in (TOKEN, WORD, CHAR, CODE):
        found, rows = kernel("units").units(on_device(device_cupy, data), offsets, select, unit)
        bounds = rows.get()
        assert (np.diff(bounds) >= 0).all()
        assert bounds[-1] == found.size <= 9000


def test_all_stopped_and_nothing_at_all(device_cupy):
    tape = Tape.of(["a b c", "", "d"])
    select = np.arange(3, dtype=np.int64)
    blob = on_device(device_cupy, tape.blob)
    stop = np.unique(shingle_ref.shingle(tape.blob, tape.offsets, select, TOKEN, 1, NONE)[0])
    want = shingle_ref.shingle(tape.blob, tape.offsets, select, TOKEN, 1, stop)
    assert want[0].size == 0
    same(kernel("shingle").shingle(blob, tape.offsets, select, TOKEN, 1, stop), want)
    a, b = permutations(3)
    same(
        kernel("sketch").sketch(blob, tape.offsets, select, TOKEN, 1, stop, a, b),
        sketch_ref.sketch(tape.blob, tape.offsets, select, TOKEN, 1, stop, a, b),
    )
    nobody = np.zeros(0, np.int64)
    for unit in UNITS:
        same(
            kernel("shingle").shingle(blob, tape.offsets, nobody, unit, 1, NONE),
            shingle_ref.shingle(tape.blob, tape.offsets, nobody, unit, 1, NONE),
        )
        same(
            kernel("sketch").sketch(blob, tape.offsets, nobody, unit, 1, NONE, a, b),
            sketch_ref.sketch(tape.blob, tape.offsets, nobody, unit, 1, NONE, a, b),
        )
    empty = np.zeros(0, np.uint8)
    same(
        kernel("sketch").sketch(device_cupy.asarray(empty), np.zeros(3, np.int64), select[:2], CHAR, 1, NONE, a, b),
        sketch_ref.sketch(empty, np.zeros(3, np.int64), select[:2], CHAR, 1, NONE, a, b),
    )


# --------------------------------------------------------------------------------------------------- sketches, minima


@pytest.mark.parametrize("slots", [1, 17, 119, 128, 260, 1000])
def test_slot_counts(device_cupy, pyrng, slots):
    tape = awkward(pyrng)
    select = mixed(tape)
    a, b = permutations(slots)
    want = sketch_ref.sketch(tape.blob, tape.offsets, select, TOKEN, 3, NONE, a, b)
    same(
        kernel("sketch").sketch(on_device(device_cupy, tape.blob, 3), tape.offsets, select, TOKEN, 3, NONE, a, b), want
    )


@pytest.mark.parametrize("unit", UNITS)
def test_batches_do_not_matter(device_cupy, pyrng, unit):
    tape = awkward(pyrng)
    select = mixed(tape)
    a, b = permutations(20)
    stop = np.unique(shingle_ref.shingle(tape.blob, tape.offsets, select, unit, 2, NONE)[0])[::4]
    want = sketch_ref.sketch(tape.blob, tape.offsets, select, unit, 2, stop, a, b)
    blob = on_device(device_cupy, tape.blob)
    for batch in (700, 1 << 30):
        same(kernel("sketch").sketch(blob, tape.offsets, select, unit, 2, stop, a, b, batch=batch), want)


def test_small_minhash_over_tile_edges(device_cupy, rng):
    """A tile has 256 groups of four shingles: rows that fill one, cross one, or lie in many."""
    for counts in ([0, 1, 2, 3, 4, 5, 0, 0], [1024], [1023, 1], [1025, 0, 7], [3] * 700, [2050, 1, 1, 5000, 0], [0, 0]):
        hashes = rng.integers(0, 2**64 - 1, sum(counts) + 9, dtype=np.uint64, endpoint=True)
        bounds = offsets_of(counts, 5)  # the first offset above 0
        for slots in (1, 33):
            a, b = permutations(slots)
            got = kernel("minhash").minhash(device_cupy.asarray(hashes), device_cupy.asarray(bounds), a, b)
            same([got], [minhash_ref.minhash(hashes, bounds, a, b)])


def test_minhash_in_every_order_of_threads_and_blocks(emulated, rng):
    module = emulated.load("minhash.cu")
    counts = [1025, 0, 1100, 2, 4000, 1]  # the first has one group too many for one tile
    hashes = rng.integers(0, 2**64 - 1, sum(counts), dtype=np.uint64, endpoint=True)
    hashes[:1024] = hashes[0]  # its 1,025th shingle, alone in the next tile, then decides about half the slots
    bounds = offsets_of(counts)
    groups = offsets_of([-(-count // 4) for count in counts])
    tiles = -(-int(groups[-1]) // 256)
    rows_at = np.searchsorted(groups[:-1], np.arange(tiles + 1) * 256, side="right") - 1
    a, b = permutations(70)
    out = np.full((len(counts), 70), 0xFFFFFFFF, np.uint32)
    # Two blocks of 64 across the slots: the second has lanes without a slot.
    arguments = (hashes, bounds, groups, rows_at.astype(np.int64), np.int64(len(counts)), a, b, np.uint32(70), out)
    module.run("minhash", (tiles, 2), (64,), arguments)
    np.testing.assert_array_equal(out, minhash_ref.minhash(hashes, bounds, a, b))


@pytest.mark.parametrize("slots", [1, 119, 1024])
def test_fast_sketch_of_texts(device_cupy, pyrng, slots):
    tape = awkward(pyrng)
    select = mixed(tape)
    a, b = permutations(slots + 2)
    for unit in UNITS if slots == 119 else (TOKEN,):
        stop = np.unique(shingle_ref.shingle(tape.blob, tape.offsets, select, unit, 2, NONE)[0])[::4]
        want = fastsketch_ref.fast_sketch(tape.blob, tape.offsets, select, unit, 2, stop, a, b)
        blob = on_device(device_cupy, tape.blob, 3)
        for batch in (700, 1 << 30):
            found = kernel("fastsketch").fast_sketch(blob, tape.offsets, select, unit, 2, stop, a, b, batch=batch)
            same(found, want)


def test_small_fast_sketch_over_edges_of_pieces(device_cupy, rng):
    """A piece has 1,024 shingles and a block four pieces: rows that fill one, cross one, or lie in many, with all
    shingles different or of few kinds, so that from none to all bins but one stay empty."""
    counts = [0, 1, 2, 5, 0, 127, 128, 129, 1023, 1024, 1025, 0, 5000, 0, 0]
    for kinds in (1, 40, 100_000):
        hashes = rng.integers(0, 2**64 - 1, kinds, dtype=np.uint64, endpoint=True)[
            rng.integers(0, kinds, sum(counts) + 9)
        ]
        bounds = offsets_of(counts, 5)  # the first offset above 0
        for slots in (1, 33, 70):
            a, b = permutations(slots + 2)
            got = kernel("fastsketch").fastsketch(device_cupy.asarray(hashes), device_cupy.asarray(bounds), a, b)
            same([got], [fastsketch_ref.fastsketch(hashes, bounds, a, b)])
    nothing = device_cupy.asarray(np.zeros(0, np.uint64))
    for counts in ([], [0], [0] * 9):
        got = kernel("fastsketch").fastsketch(nothing, device_cupy.asarray(offsets_of(counts)), a, b)
        same([got], [np.full((len(counts), 70), 0xFFFFFFFF, np.uint32)])


def test_fast_sketch_in_every_order_of_threads_and_blocks(emulated, rng):
    module = emulated.load("fastsketch.cu")
    counts = [1025, 0, 100, 2, 4000, 1]
    hashes = rng.integers(0, 2**64 - 1, sum(counts), dtype=np.uint64, endpoint=True)
    hashes[:1024] = hashes[0]  # its 1,025th shingle is alone in the next piece
    hashes[1127:5127] = hashes[1127:1157].repeat(134)[:4000]  # thirty kinds over four pieces, each with some of them
    bounds = offsets_of(counts)
    pieces = offsets_of([-(-count // 1024) for count in counts])
    blocks = -(-int(pieces[-1]) // 4)
    rows_at = np.searchsorted(pieces[:-1], np.arange(blocks + 1) * 4, side="right") - 1
    a, b = permutations(72)
    out = np.zeros((len(counts), 70), np.uint32)
    module.run("clear", (-(-out.size // 256),), (256,), (out, np.int64(out.size)))
    arguments = (hashes, bounds, pieces, rows_at.astype(np.int64), np.int64(len(counts)), a, b, np.uint32(70), out)
    for name in ("throw_pieces", "fill_pieces"):
        module.run(name, (blocks,), (128,), arguments)
    np.testing.assert_array_equal(out, fastsketch_ref.fastsketch(hashes, bounds, a, b))


def test_shapes_of_blocks(standin):
    shape = kernel("minhash").shape
    for slots in (1, 17, 32, 33, 119, 128, 260, 512, 513, 1000, 4096):
        blocks, threads = shape(slots)
        assert threads % 32 == 0
        assert 32 <= threads <= 512
        assert blocks * threads >= slots > blocks * threads - 32 * blocks  # less than a warp idle in each block
    assert shape(119) == (1, 128)
    assert shape(260) == (1, 288)


# -------------------------------------------------------------------------------------------------------------- digests


def test_digests_by_xxhash(device_cupy, rng):
    sizes = [
        0,
        1,
        3,
        4,
        5,
        7,
        8,
        9,
        11,
        12,
        31,
        32,
        33,
        63,
        64,
        100,
        4095,
        4096,
        4097,
        4100,
        8191,
        8192,
        12_289,
        0,
        70_000,
    ]
    data = rng.integers(0, 256, sum(sizes), dtype=np.uint8)
    offsets = offsets_of(sizes)
    found = kernel("digest").digest(on_device(device_cupy, data, 1), offsets).get()
    for column, seed in enumerate((0, oracle_hashes.GOLDEN)):
        for i in range(len(sizes)):
            text = data[offsets[i] : offsets[i + 1]].tobytes()
            parts = [xxhash.xxh64_intdigest(text[at : at + 4096], seed) for at in range(0, len(text), 4096)]
            joined = b"".join(part.to_bytes(8, "little") for part in [*parts, len(text)])
            assert int(found[i, column]) == xxhash.xxh64_intdigest(joined, seed), (sizes[i], seed)


def test_small_digests_at_every_alignment(device_cupy, rng):
    data = rng.integers(0, 256, 700, dtype=np.uint8)
    for shift in range(16):
        sizes = [shift, 0, 5, 40 + shift, 1, 32, 300]
        offsets = offsets_of(sizes, shift)
        got = kernel("digest").digest(on_device(device_cupy, data, 15 - shift), offsets, batch=90)
        same([got], [digest_ref.digest(data, offsets)])
    same([kernel("digest").digest(on_device(device_cupy, data), np.zeros(1, np.int64))], [np.zeros((0, 2), np.uint64)])


# ----------------------------------------------------------------------------------------------------------------- keys


def test_small_band_and_slot_keys(device_cupy, rng):
    for m, k in ((0, 8), (1, 1), (300, 119), (7, 260)):
        signatures = rng.integers(0, 2**32, (m, k), dtype=np.uint32)
        device = device_cupy.asarray(signatures)
        for bands, rows in ((1, 1), (k, 1), (1, k), (k // 7 or 1, min(k, 7)), (k // 4 or 1, min(k, 4))):
            got = kernel("bandkeys").band_keys(device, bands, rows)
            same([got], [bandkeys_ref.band_keys(signatures, bands, rows)])
        for count in (0, 1, 4, 5):
            slots = rng.integers(0, k, count).astype(np.int64)
            got = kernel("bandkeys").slot_keys(device, slots, 2**64 - 1 - count)
            same([got], [bandkeys_ref.slot_keys(signatures, slots, 2**64 - 1 - count)])


def test_keys_by_the_oracle(device_cupy):
    signatures = np.array([[1, 2, 3, 0xFFFFFFFF, 5]], np.uint32)
    data = signatures[0].tobytes()
    keys = kernel("bandkeys").band_keys(device_cupy.asarray(signatures), 2, 2).get()
    golden = oracle_hashes.GOLDEN
    assert keys[0].tolist() == [oracle_hashes.chain(data[:8], golden), oracle_hashes.chain(data[8:16], 2 * golden)]


# -------------------------------------------------------------------------------------------------------------- SimHash

SIMHASH: list[tuple[list[int], int]] = [
    ([], 0),
    ([5], 5),
    ([2**64 - 1], 2**64 - 1),
    ([0b01, 0b11], 0b01),  # bit 1 is a tie: not set
    ([0b001, 0b011, 0b110], 0b011),
    ([1 << 63, (1 << 63) | 1, 7], 1 << 63 | 1),
]


def simhash_oracle(values: Sequence[int]) -> int:
    sums = [sum(1 if (h >> i) & 1 else -1 for h in values) for i in range(64)]
    return sum(1 << i for i, total in enumerate(sums) if total > 0)


def simhash_cases(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    counts = [len(values) for values, _ in SIMHASH] + [1, 31, 32, 33, 0, 0, 255, 256, 257, 2, 254, 255, 700, 3, 3, 0]
    hashes = rng.integers(0, 2**64 - 1, sum(counts) + 7, dtype=np.uint64, endpoint=True)
    written = [h for values, _ in SIMHASH for h in values]
    hashes[3 : 3 + len(written)] = np.array(written, np.uint64)
    return hashes, offsets_of(counts, 3)


@pytest.mark.parametrize("module", [simhash_ref, simhash_cpu], ids=lambda module: module.__name__.rpartition(".")[2])
def test_simhash_on_the_host(module, rng):
    hashes, bounds = simhash_cases(rng)
    found = module.simhash(hashes, bounds)
    assert found.dtype == np.uint64
    assert found[: len(SIMHASH)].tolist() == [answer for _, answer in SIMHASH]
    for i in range(len(bounds) - 1):
        assert int(found[i]) == simhash_oracle(hashes[bounds[i] : bounds[i + 1]].tolist())
    again = np.concatenate([hashes[:3], *[rng.permutation(hashes[x:y]) for x, y in itertools.pairwise(bounds)]])
    np.testing.assert_array_equal(module.simhash(again, bounds), found)
    assert module.simhash(NONE, np.zeros(1, np.int64)).size == 0
    for wrong in ([0, 1], [-1, 0], [0, -1]):
        with pytest.raises(ValueError, match="hash_offsets"):
            module.simhash(NONE, np.array(wrong, np.int64))


def test_simhash_counts_past_a_byte():
    """More hashes with a bit set than a byte counts, and one clear short of half."""
    ones = np.full(1000, 2**64 - 1, np.uint64)
    hashes = np.concatenate([ones, np.zeros(999, np.uint64), ones, np.zeros(1000, np.uint64)])
    for module in (simhash_ref, simhash_cpu):
        assert module.simhash(hashes, offsets_of([1999, 2000])).tolist() == [2**64 - 1, 0]


def test_small_simhash_on_the_device(device_cupy, rng):
    hashes, bounds = simhash_cases(rng)
    got = kernel("simhash").simhash(device_cupy.asarray(hashes), device_cupy.asarray(bounds))
    same([got], [simhash_ref.simhash(hashes, bounds)])
    ones = np.concatenate([np.full(1000, 2**64 - 1, np.uint64), np.zeros(999, np.uint64)])
    got = kernel("simhash").simhash(device_cupy.asarray(ones), device_cupy.asarray(offsets_of([1999])))
    assert got.get().tolist() == [2**64 - 1]
    for bounds in (np.zeros(1, np.int64), np.zeros(3, np.int64)):
        got = kernel("simhash").simhash(device_cupy.asarray(NONE), device_cupy.asarray(bounds))
        assert got.get().tolist() == [0] * (len(bounds) - 1)


def weights_of_cells(rng: np.random.Generator) -> np.ndarray:
    """Few kinds of weights, so that many terms weigh the same, and the largest there may be."""
    made = rng.integers(1, 4, simhash_ref.CELLS, dtype=np.uint32)
    made[::5] = simhash_ref.LARGEST_IDF - 1
    return made


@pytest.mark.parametrize("unit", UNITS)
def test_small_fingerprints(device_cupy, pyrng, rng, unit):
    tape = awkward(pyrng)
    select = mixed(tape)
    launcher = kernel("simhash")
    weights = weights_of_cells(rng)
    weights_d, none_d = device_cupy.asarray(weights), device_cupy.asarray(np.zeros(0, np.uint32))
    blob = on_device(device_cupy, tape.blob, 5)
    stop = np.unique(shingle_ref.shingle(tape.blob, tape.offsets, select, unit, 2, NONE)[0])[::3]
    for rule, idf, idf_d, tops in (
        (simhash_ref.SET, np.zeros(0, np.uint32), none_d, (0,)),
        (simhash_ref.COUNT, np.zeros(0, np.uint32), none_d, (0,)),
        (simhash_ref.TFIDF, weights, weights_d, (0, 1, 9)),
    ):
        for top, stops, batch in itertools.product(tops, (NONE, stop), (1 << 26, 1000)):
            want = simhash_ref.fingerprints(tape.blob, tape.offsets, select, unit, 2, stops, rule, idf, top)
            got = launcher.fingerprints(blob, tape.offsets, select, unit, 2, stops, rule, idf_d, top, batch)
            same(got, want)


def test_small_fingerprints_of_long_rows(device_cupy, rng):
    """Rows over many warps, and terms that repeat more often than a byte counts."""
    words = rng.integers(0, 700, 3000)
    texts = [" ".join(f"w{i}" for i in words), "", "again " * 900 + "once", " ".join(f"v{i}" for i in range(600))]
    tape = Tape.of(texts)
    select = np.arange(len(texts), dtype=np.int64)
    weights = weights_of_cells(rng)
    for rule, idf, top in (
        (simhash_ref.SET, np.zeros(0, np.uint32), 0),
        (simhash_ref.COUNT, np.zeros(0, np.uint32), 0),
        (simhash_ref.TFIDF, weights, 0),
        (simhash_ref.TFIDF, weights, 300),
    ):
        want = simhash_ref.fingerprints(tape.blob, tape.offsets, select, TOKEN, 1, NONE, rule, idf, top)
        blob, idf_d = on_device(device_cupy, tape.blob), device_cupy.asarray(idf)
        same(kernel("simhash").fingerprints(blob, tape.offsets, select, TOKEN, 1, NONE, rule, idf_d, top), want)


def test_small_cells(device_cupy, pyrng):
    tape = awkward(pyrng)
    select = mixed(tape)
    for unit in UNITS:
        hashes, rows, _ = shingle_ref.shingle(tape.blob, tape.offsets, select, unit, 2, NONE)
        # Hashes of one row that share a cell, which no text of this size has by itself.
        hashes = hashes & np.uint64(0x00FF_0000_0000_00FF)
        found = kernel("weights").cells(device_cupy.asarray(hashes), device_cupy.asarray(rows), len(hashes)).get()
        want = [np.unique(hashes[a:b] >> np.uint64(40)) for a, b in itertools.pairwise(rows)]
        assert found.dtype == np.uint32
        assert found.tolist() == np.concatenate(want).tolist()
        assert len(found) < len(hashes)
    assert kernel("weights").cells(device_cupy.asarray(NONE), device_cupy.asarray(np.zeros(3, np.int64)), 0).size == 0


# ---------------------------------------------------------------------------------------- addresses, orders, refusals


def test_offsets_of_more_than_32_bits(emulated):
    """A blob whose first byte has number 2**33: arithmetic in 32 bits would miss it by gigabytes."""
    base = 1 << 33
    data = np.frombuffer(b"0123456789abcdefghijklmnopqrstuvwxyz", np.uint8)
    starts = np.array([base + 20, base + 3, base], np.int64)
    offsets = offsets_of([16, 5, 9])
    staged = np.zeros(256, np.uint32)
    arguments = (
        emulated.Shifted(data, base), np.int64(base + data.size), starts, offsets, np.int64(3), np.zeros(2, np.int64),
        np.int64(256), staged,
    )  # fmt: skip
    arguments[5][1] = 2
    emulated.load("tape.cu").run("gather", (1,), (256,), arguments)
    assert staged.tobytes() == (b"klmnopqrstuvwxyz" + b"34567" + b"012345678").ljust(1024, b"\0")


@pytest.mark.parametrize("seed", range(4))
def test_orders_of_threads_and_of_work(standin, pyrng, seed):
    """Seeds of the stand-in: other orders of threads, blocks and queued work, other bytes in memory not yet written."""
    standin.reset(seed=seed)
    cupy = importlib.import_module("cupy")
    tape = awkward(pyrng)
    select = mixed(tape)
    a, b = permutations(40)
    blob = on_device(cupy, tape.blob, 1)
    stop = np.unique(shingle_ref.shingle(tape.blob, tape.offsets, select, CODE, 2, NONE)[0])[::5]
    same(
        kernel("sketch").sketch(blob, tape.offsets, select, CODE, 2, stop, a, b, batch=2000),
        sketch_ref.sketch(tape.blob, tape.offsets, select, CODE, 2, stop, a, b),
    )
    same([kernel("digest").digest(blob, tape.offsets)], [digest_ref.digest(tape.blob, tape.offsets)])
    used = set(standin.launches)
    assert {"gather", "tile_states", "unit_mark", "unit_hash", "shingle", "stop_compact", "minhash"} <= used


def test_a_wrong_scan_is_noticed_before_it_is_used(standin):
    cupy = importlib.import_module("cupy")
    tape = Tape.of(["some words here"])
    standin.break_scan = True
    with pytest.raises(RuntimeError, match="wrong sums at 1 of"):
        kernel("units").units(on_device(cupy, tape.blob), tape.offsets, np.zeros(1, np.int64), TOKEN)


@pytest.mark.parametrize("texts", [["a" * 60_000], ["ab"] * 20_000, ["", "x"] * 20_000], ids=["long", "short", "empty"])
def test_memory_is_as_said(standin, monkeypatch, texts):
    """What callers count on when they cut batches; the blob itself and the answer are theirs."""
    cupy = importlib.import_module("cupy")
    device = standin.devices[0]
    most = 0
    reserve = type(device).reserve

    def counted(self: Any, size: int) -> None:
        nonlocal most
        reserve(self, size)
        most = max(most, self.used)

    monkeypatch.setattr(type(device), "reserve", counted)
    tape = Tape.of(texts)
    select = np.arange(len(tape), dtype=np.int64)
    blob = on_device(cupy, tape.blob)
    a, b = permutations(1)
    overhead = 300_000  # tables, and arrays rounded up
    for stop, each in ((NONE, kernel("sketch").PEAK), (np.array([5], np.uint64), kernel("sketch").PEAK_WITH_STOPS)):
        before = device.used
        most = before
        kept = kernel("sketch").sketch(blob, tape.offsets, select, CHAR, 2, stop, a, b, batch=1 << 30)
        room = each * (tape.nbytes + kernel("sketch").PER_TEXT * len(tape))
        assert room // 4 < most - before - 20 * len(tape) <= room + overhead
        del kept
        before = most = device.used
        kept = kernel("fastsketch").fast_sketch(
            blob, tape.offsets, select, CHAR, 2, stop, *permutations(3), batch=1 << 30
        )
        assert most - before - 20 * len(tape) <= room + overhead
        del kept
    before = most = device.used
    kept = kernel("digest").digest(blob, tape.offsets)
    room = kernel("digest").PEAK * (tape.nbytes + kernel("digest").PER_TEXT * len(tape))
    assert room // 4 < most - before - 16 * len(tape) <= room + overhead
    del kept


def test_what_is_refused(standin):
    cupy = importlib.import_module("cupy")
    blob = cupy.asarray(np.zeros(10, np.uint8))
    one = np.zeros(1, np.int64)
    a, b = permutations(4)
    bad = np.array([0, 11], np.int64)
    for call in (
        lambda: kernel("units").units(blob, bad, one, TOKEN),
        lambda: kernel("shingle").shingle(blob, bad, one, TOKEN, 1, NONE),
        lambda: kernel("sketch").sketch(blob, bad, one, TOKEN, 1, NONE, a, b),
        lambda: kernel("digest").digest(blob, bad),
    ):
        with pytest.raises(ValueError, match="leave the blob of 10 bytes"):
            call()
    good = np.array([0, 10], np.int64)
    with pytest.raises(ValueError, match="outside 0 to 0"):
        kernel("units").units(blob, good, one + 1, TOKEN)
    with pytest.raises(ValueError, match="unit 9"):
        kernel("units").units(blob, good, one, 9)
    with pytest.raises(ValueError, match="n 1001"):
        kernel("shingle").shingle(blob, good, one, TOKEN, 1001, NONE)
    with pytest.raises(ValueError, match="same length"):
        kernel("sketch").sketch(blob, good, one, TOKEN, 1, NONE, a, b[:2])
    signatures = cupy.asarray(np.zeros((2, 4), np.uint32))
    with pytest.raises(ValueError, match="do not fit 4 slots"):
        kernel("bandkeys").band_keys(signatures, 2, 3)
    with pytest.raises(ValueError, match="leave the signature of 4"):
        kernel("bandkeys").slot_keys(signatures, np.array([4], np.int64), 0)
    with pytest.raises(ValueError, match="device array of 2147483648 elements"):
        importlib.import_module("gpu_dedup.kernels.cuda").empty(1 << 31, np.uint8)


def test_batches_are_cut_by_bytes():
    from gpu_dedup.kernels.tape_cuda import LARGEST, batches

    offsets = offsets_of([10, 0, 5, 100, 0, 3, 3, 3])
    everyone = np.arange(8, dtype=np.int64)
    assert batches(offsets, everyone, 15) == [(0, 3), (3, 4), (4, 8)]
    assert batches(offsets, everyone, 1) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8)]
    assert batches(offsets, everyone, 1 << 40) == [(0, 8)]
    assert batches(offsets, everyone[::-1].copy(), 9) == [(0, 4), (4, 5), (5, 7), (7, 8)]
    assert batches(offsets, everyone[:0], 9) == []
    assert batches(offsets, everyone, 20, 4) == [(0, 2), (2, 3), (3, 4), (4, 7), (7, 8)]
    huge = offsets_of([5, LARGEST, LARGEST])
    assert batches(huge, np.array([1, 2, 0], np.int64), 1 << 40) == [(0, 1), (1, 2), (2, 3)]
    with pytest.raises(ValueError, match=r"text 1 has 2147475457 bytes; at most 2147475456 fit"):
        batches(offsets_of([5, LARGEST + 1]), np.array([0, 1], np.int64), 9)


# ------------------------------------------------------------------------------------------------------ the house rules


def test_sources_are_whole():
    from gpu_dedup.kernels.cuda import source

    for path in sorted((REPO / "kernels").glob("*.cu")):
        text = source(path.stem)
        assert "#include" not in text
        assert "#pragma once" not in text
        assert text.startswith(f'#line 1 "{path.name}"\n')
        for helper in (REPO / "kernels").glob("*.cuh"):
            assert text.count(f'#line 1 "{helper.name}"') <= 1
    # Lines keep their numbers: an error of the compiler names the place in the file.
    lines = source("units").split("\n")
    at = next(i for i, line in enumerate(lines) if "unit_mark(" in line)
    start = max(i for i in range(at) if lines[i].startswith("#line") and lines[i].endswith('"units.cu"'))
    number = int(lines[start].split()[1]) + at - start - 1
    assert (REPO / "kernels" / "units.cu").read_text(encoding="utf-8").split("\n")[number - 1] == lines[at]


def test_importing_launchers_loads_no_cuda():
    stems = "cuda tape_cuda units_cuda shingle_cuda sketch_cuda minhash_cuda digest_cuda bandkeys_cuda simhash_cuda"
    names = ", ".join([*stems.split(), "fastsketch_cuda", "weights_cuda"])
    code = f"from gpu_dedup.kernels import {names}\nimport sys\nassert not {{'cupy', 'numba'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=REPO, check=True)


def test_actions_are_those_of_the_other_backend():
    from gpu_dedup.kernels.unicode import class_table
    from gpu_dedup.kernels.units_cpu import actions as by_class
    from gpu_dedup.kernels.units_cuda import actions

    for unit in UNITS:
        np.testing.assert_array_equal(actions(unit), by_class(unit)[class_table()[1]])


def test_small_kernels_under_the_sanitizers(emulated):
    """All tests named test_small_..., built with ASan and UBSan."""
    if emulated.SANITIZE:
        pytest.skip("this is that run")
    if emulated.sanitizer_environment() is None:
        need("libasan or libubsan is missing")
    chosen = "test_small_ and standin and not sanitizers"
    emulated.sanitized_pytest(str(Path(__file__)), "-k", chosen)


def test_the_inner_loop_costs_at_most_1_9_instructions():
    spec = importlib.util.spec_from_file_location("sass_minhash", REPO / "benchmarks" / "sass_minhash.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    nvcc, nvdisasm = script.tool("nvcc"), script.tool("nvdisasm")
    if nvcc is None or nvdisasm is None or shutil.which("g++") is None:
        pytest.skip("nvcc or nvdisasm is missing (CUDA toolkit, or pip install nvidia-cuda-nvdisasm)")
    row = script.measure(nvcc, nvdisasm, 90)
    assert row["per_shingle_and_slot"] <= 1.9
    assert row["spilled_bytes"] == 0
    assert row["registers"] <= 32  # 2,048 threads on a multiprocessor
