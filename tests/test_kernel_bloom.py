"""Bloom tables: Python integers as oracle, the sequential answer, parity, positions beyond 32 bits."""

from __future__ import annotations

import mmap
from types import ModuleType

import numpy as np
import pytest
from hashes import ALL, GOLDEN
from hypothesis import given
from hypothesis import strategies as st

from gpu_dedup.kernels import bloom_cpu, bloom_ref

BOTH = pytest.mark.parametrize("kernel", [bloom_ref, bloom_cpu], ids=["numpy", "numba"])


def mix(z: int) -> int:
    z &= ALL
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & ALL
    z = (z ^ z >> 27) * 0x94D049BB133111EB & ALL
    return z ^ z >> 31


def positions(key: list[int], blocks: int, hashes: int) -> set[int]:
    """Bits of a key among blocks * 512, from the definition's words in whole numbers."""
    h1, h2 = mix(key[0] + GOLDEN), mix(key[-1] + 2 * GOLDEN)
    block = h1 * blocks // 2**64
    words = [mix(h2 + j * (h1 | 1)) for j in range(4)]
    return {block * 512 + (words[i // 7] >> 9 * (i % 7)) % 512 for i in range(hashes)}


class Sequential:
    """The filter one key at a time, bits as a set."""

    def __init__(self, blocks: int, hashes: int) -> None:
        self.blocks, self.hashes = blocks, hashes
        self.bits: set[int] = set()

    def add(self, key: list[int]) -> bool:
        own = positions(key, self.blocks, self.hashes)
        seen = own <= self.bits
        self.bits |= own
        return seen

    def words(self) -> list[list[int]]:
        out = [[0] * 8 for _ in range(self.blocks)]
        for bit in self.bits:
            out[bit // 512][bit % 512 // 64] |= 1 << bit % 64
        return out


def add(kernel: ModuleType, words: np.ndarray, keys: np.ndarray, hashes: int) -> list[bool]:
    seen = np.full(len(keys), 7, np.uint8)
    kernel.add(words, keys, hashes, seen, 0, len(words))
    assert set(seen.tolist()) <= {0, 1}
    return seen.astype(bool).tolist()


@BOTH
def test_golden(kernel: ModuleType) -> None:
    words = np.zeros((3, 8), np.uint64)
    assert add(kernel, words, np.array([[1], [2], [1]], np.uint64), 7) == [False, False, True]
    assert add(kernel, words, np.array([[1, 5]], np.uint64), 7) == [False]
    assert sorted(hex(word) for word in words.ravel().tolist() if word) == GOLDEN_WORDS


GOLDEN_WORDS = [
    "0x140048000000000",
    "0x20",
    "0x2000000000400000",
    "0x4",
    "0x800400500000",
    "0x810000000040",
    "0xc0001002",
]


@BOTH
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize(("blocks", "hashes"), [(1, 1), (1, 28), (3, 6), (5, 7), (7, 8), (64, 14), (65, 15), (9, 21)])
def test_sequential(kernel: ModuleType, width: int, blocks: int, hashes: int, rng: np.random.Generator) -> None:
    """Repeats and false positives are met as one key after the other meets them, over batches of any size."""
    keys = rng.integers(0, 2**64 - 1, (160, width), dtype=np.uint64, endpoint=True)
    keys[0], keys[1] = 0, ALL
    keys[rng.integers(0, 160, 60)] = keys[rng.integers(0, 160, 60)]
    oracle = Sequential(blocks, hashes)
    expected = [oracle.add(key) for key in keys.tolist()]
    for cuts in ([160], [1, 63, 64, 65, 129, 160], [0, 40, 40, 160]):
        words = np.zeros((blocks, 8), np.uint64)
        seen, start = [], 0
        for stop in cuts:
            seen += add(kernel, words, keys[start:stop], hashes)
            start = stop
        assert seen == expected
        assert words.tolist() == oracle.words()
    fresh = rng.integers(0, 2**64 - 1, (200, width), dtype=np.uint64, endpoint=True)
    assert kernel.ask(words, keys, hashes).all()
    got = kernel.ask(words, fresh, hashes).astype(bool).tolist()
    assert got == [positions(key, blocks, hashes) <= oracle.bits for key in fresh.tolist()]
    sizes = [sum(word.bit_count() for word in block) for block in oracle.words()]
    assert kernel.fill(words).tolist() == np.bincount(sizes, minlength=513).tolist()


@BOTH
def test_parts_are_the_whole(kernel: ModuleType, rng: np.random.Generator) -> None:
    keys = rng.integers(0, 2**64 - 1, (300, 2), dtype=np.uint64)
    keys[200:] = keys[:100]
    whole, parts = np.zeros((11, 8), np.uint64), np.zeros((11, 8), np.uint64)
    expected = add(kernel, whole, keys, 9)
    seen = np.full(300, 7, np.uint8)
    for first, last in ((7, 11), (0, 3), (3, 3), (3, 7)):
        kernel.add(parts, keys, 9, seen, first, last)
    assert seen.astype(bool).tolist() == expected
    assert np.array_equal(whole, parts)


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(1, 4), st.integers(1, 28), st.integers(0, 40))
def test_any_batch_gives_the_sequential_answer(picks: list[int], blocks: int, hashes: int, cut: int) -> None:
    keys = np.array([[p, p * p] for p in picks], np.uint64).reshape(-1, 2)
    oracle = Sequential(blocks, hashes)
    expected = [oracle.add(key) for key in keys.tolist()]
    for kernel in (bloom_ref, bloom_cpu):
        words = np.zeros((blocks, 8), np.uint64)
        seen = add(kernel, words, keys[:cut], hashes) + add(kernel, words, keys[cut:], hashes)
        assert seen == expected
        assert words.tolist() == oracle.words()


BITS = 8589934603  # over 2**33, and no power of two
BLOCKS = -(-BITS // 512)


def test_positions_beyond_32_bits(rng: np.random.Generator) -> None:
    """Half of all keys live beyond bit 2**32 of so large a table; most of it is never touched, nor allocated."""
    keys = rng.integers(0, 2**64 - 1, (2000, 1), dtype=np.uint64)
    block, bits = bloom_ref.places(keys, BLOCKS, 10)
    far = sum(int(b) * 512 + int(row.max()) >= 2**32 for b, row in zip(block, bits, strict=True))
    assert 900 < far < 1100
    memory = mmap.mmap(-1, BLOCKS * 64)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    words = np.frombuffer(memory, np.uint64).reshape(BLOCKS, 8)
    assert add(bloom_cpu, words, keys, 10) == [False] * 2000
    for b, row in zip(block.tolist(), bits.tolist(), strict=True):
        assert all(int(words[b, bit >> 6]) >> (bit & 63) & 1 for bit in row)
    assert bloom_cpu.ask(words, keys, 10).all()
    assert not bloom_cpu.ask(words, keys + np.uint64(1), 10).any()


def test_block_numbers_of_the_largest_tables() -> None:
    keys = np.array([[0], [1], [2**63], [ALL]], np.uint64)
    for blocks in (2**32 - 1, 2**32, 2**33 + 5, 2**57):
        block, _ = bloom_ref.places(keys, blocks, 1)
        assert block.tolist() == [mix(key + GOLDEN) * blocks >> 64 for (key,) in keys.tolist()]


@BOTH
def test_bits_are_independent_and_even(kernel: ModuleType, rng: np.random.Generator) -> None:
    """Counters as keys, as people number things: each bit as often as each other, false positives as reckoned."""
    keys = np.arange(20_000, dtype=np.uint64).reshape(-1, 1)
    _, bits = bloom_ref.places(keys, 1000, 14)
    counts = np.bincount(bits.ravel(), minlength=512)
    mean = bits.size / 512
    assert ((counts - mean) ** 2 / mean).sum() < 700  # chi squared, 511 degrees: 6 sigma
    words = np.zeros((1000, 8), np.uint64)
    add(kernel, words, keys[:12_000], 5)
    held = kernel.fill(words)
    expected = sum(count * (x / 512) ** 5 for x, count in enumerate(held.tolist())) / 1000
    found = kernel.ask(words, keys[12_000:], 5).mean()
    assert abs(found - expected) < 6 * (expected * (1 - expected) / 8000) ** 0.5


@BOTH
def test_bad_arguments(kernel: ModuleType) -> None:
    words, keys, seen = np.zeros((2, 8), np.uint64), np.zeros((3, 2), np.uint64), np.zeros(3, np.uint8)
    for bad, text in (
        ((words[:, :7], keys, 3, seen, 0, 2), "a table is"),
        ((words[:0], keys, 3, seen, 0, 0), "a table is"),
        ((words.view(np.int64), keys, 3, seen, 0, 2), "a table is"),
        ((words, keys[:, 0], 3, seen, 0, 2), "keys are"),
        ((words, keys.view(np.int64), 3, seen, 0, 2), "keys are"),
        ((words, keys, 0, seen, 0, 2), "hashes"),
        ((words, keys, 29, seen, 0, 2), "hashes"),
        ((words, keys, 3, seen, 0, 3), "blocks 0 to 3"),
        ((words, keys, 3, seen[:2], 0, 2), "seen is"),
    ):
        with pytest.raises(ValueError, match=text):
            kernel.add(*bad)
    with pytest.raises(ValueError, match="keys are"):
        kernel.ask(words, np.zeros((3, 3), np.uint64), 3)
    assert kernel.ask(words, np.zeros((0, 1), np.uint64), 3).shape == (0,)
