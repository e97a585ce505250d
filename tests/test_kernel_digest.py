"""Digests: published XXH64 vectors, the xxhash package as oracle, then Numba against the definition."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import oracle
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup.batch import Tape
from gpu_dedup.kernels import digest_cpu, digest_ref

BOTH = pytest.mark.parametrize("kernel", [digest_ref, digest_cpu], ids=["numpy", "numba"])
PRIME32 = 2654435761


def sanity_buffer(length: int) -> bytes:
    """The bytes over which xxHash's own self test is defined."""
    out, state = bytearray(), PRIME32
    for _ in range(length):
        out.append(state >> 56 & 0xFF)
        state = state * 11400714785074694797 % 2**64
    return bytes(out)


# xxHash's self test (tests/sanity_test of Cyan4973/xxHash): length, seed, XXH64.
PUBLISHED = [
    (0, 0, 0xEF46DB3751D8E999),
    (0, PRIME32, 0xAC75FDA2929B17EF),
    (1, 0, 0xE934A84ADB052768),
    (1, PRIME32, 0x5014607643A9B4C3),
    (4, 0, 0x9136A0DCA57457EE),
    (14, 0, 0x8282DCC4994E35C8),
    (14, PRIME32, 0xC3BD6BF63DEB6DF0),
    (222, 0, 0xB641AE8CB691C174),
    (222, PRIME32, 0x20CB8AB7AE10C14A),
]


def pair(data: bytes, s: int, t: int, before: int = 0) -> tuple[int, int]:
    array = np.frombuffer(b"\xaa" * before + data, np.uint8)
    g, h = digest_cpu.xxh64_pair(array, before, before + len(data), np.uint64(s), np.uint64(t))
    return int(g), int(h)


@pytest.mark.parametrize(("length", "seed", "expected"), PUBLISHED)
def test_published_xxh64(length: int, seed: int, expected: int) -> None:
    data = sanity_buffer(length)
    assert xxhash.xxh64_intdigest(data, seed) == expected
    assert pair(data, seed, 5)[0] == expected
    assert pair(data, 5, seed, before=3)[1] == expected


def test_xxh64_of_every_short_length() -> None:
    data = sanity_buffer(300)
    for length in range(300):
        expected = tuple(xxhash.xxh64_intdigest(data[:length], seed) for seed in (7, 2**64 - 1))
        assert pair(data[:length], 7, 2**64 - 1) == expected, length


@BOTH
def test_golden(kernel: ModuleType) -> None:
    tape = Tape.of(["", "a", "中文", "x" * 4096, "x" * 4097, "abc" * 5000])
    assert [[hex(word) for word in row] for row in kernel.digest(tape.blob, tape.offsets).tolist()] == [
        ["0x34c96acdcadb1bbb", "0x1722e35ebbc1e9a0"],
        ["0xe9df91f9a4e013ad", "0xe97a708b44391266"],
        ["0xbdf496cf415fd911", "0xa555bc6818b839e6"],
        ["0x982452189ffdc66e", "0x8b6a0579967b001d"],
        ["0x1ce44e95de4b2034", "0x8b505aa1de8e2cc8"],
        ["0xa799255bb60fc9eb", "0x2e359f68783625cc"],
    ]


@BOTH
def test_oracle_around_chunks(kernel: ModuleType, rng: np.random.Generator) -> None:
    lengths = [0, 1, 3, 4, 7, 8, 31, 32, 33, 63, 4095, 4096, 4097, 8191, 8192, 8193, 3 * 4096, 20_000]
    texts = ["".join(chr(c) for c in rng.integers(32, 127, length)) for length in lengths]
    tape = Tape.of(texts)
    assert [tuple(row) for row in kernel.digest(tape.blob, tape.offsets).tolist()] == [oracle.digest(t) for t in texts]


@BOTH
def test_offsets_and_neighbours_do_not_matter(kernel: ModuleType) -> None:
    whole = Tape.of(["prefix", "same", "", "same", "other", "suffix"])
    tape = Tape(whole.blob, whole.offsets[1:-1])
    rows = [tuple(row) for row in kernel.digest(tape.blob, tape.offsets).tolist()]
    assert rows == [oracle.digest(text) for text in ("same", "", "same", "other")]


@BOTH
def test_one_bit_changes_both_words(kernel: ModuleType) -> None:
    data = bytearray(sanity_buffer(9000))
    texts = [bytes(data)]
    for place in (0, 31, 4095, 4096, 8999):
        data[place] ^= 1
        texts.append(bytes(data))
        data[place] ^= 1
    texts += [bytes(data[:-1]), bytes(data) + b"\x00"]
    tape = Tape.of(texts)
    words = kernel.digest(tape.blob, tape.offsets)
    assert len(set(words[:, 0].tolist())) == len(set(words[:, 1].tolist())) == len(texts)


@BOTH
def test_nothing_and_what_is_refused(kernel: ModuleType) -> None:
    empty = Tape.of([])
    assert kernel.digest(empty.blob, empty.offsets).shape == (0, 2)
    blob = np.zeros(4, np.uint8)
    for offsets in ([0, 5], [-1, 4], [2, 1]):
        with pytest.raises(ValueError, match="offsets"):
            kernel.digest(blob, np.array(offsets, np.int64))


@given(st.lists(st.binary(max_size=9000), max_size=6))
@settings(max_examples=50)
def test_parity_on_any_bytes(texts: list[bytes]) -> None:
    tape = Tape.of(texts)
    want, got = (kernel.digest(tape.blob, tape.offsets) for kernel in (digest_ref, digest_cpu))
    np.testing.assert_array_equal(want, got)


def test_a_text_of_megabytes(rng: np.random.Generator) -> None:
    tape = Tape.of([rng.bytes(5_000_003), b"", rng.bytes(1 << 20)])
    want, got = (kernel.digest(tape.blob, tape.offsets) for kernel in (digest_ref, digest_cpu))
    np.testing.assert_array_equal(want, got)
