"""Bloom filters above the kernel: solved shapes against brute force, counts, files, merging, readers and a writer."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_dedup import BloomFilter, bloom
from gpu_dedup.backend import host_backend
from gpu_dedup.bloom import band_rate
from gpu_dedup.errors import InputError, OutputError, RecipeError, RunError, UserError
from gpu_dedup.kernels import bloom_ref
from gpu_dedup.recipe import PPB, ppb, ppb_text

REPO = Path(__file__).resolve().parent.parent


def some_keys(rng: np.random.Generator, n: int, width: int = 2) -> np.ndarray:
    return rng.integers(0, 2**64 - 1, (n, width), dtype=np.uint64, endpoint=True)


# ------------------------------------------------------------------------------------------------------- the arithmetic


def exact_cover(balls: int, k: int) -> Fraction:
    """P[k random bits of 512 all lie among the bits that `balls` random ones set], by inclusion and exclusion over
    the different bits of the k: another way than the product's, and in fractions."""
    different = [Fraction(1)] + [Fraction(0)] * k  # of how many are there d
    for j in range(k):
        different = [
            (different[d] * d + (different[d - 1] * (512 - d + 1) if d else 0)) / 512 if d <= j + 1 else Fraction(0)
            for d in range(k + 1)
        ]
    total = Fraction(0)
    for d, share in enumerate(different):
        covered = sum((-1) ** i * math.comb(d, i) * Fraction(512 - i, 512) ** balls for i in range(d + 1))
        total += share * covered
    return total


@pytest.mark.parametrize("k", [1, 2, 7, 13])
def test_cover_is_exact(k: int) -> None:
    for keys in (0, 1, 2, 9, 30):
        wanted = float(exact_cover(keys * k, k))
        assert math.isclose(bloom._covered()[keys * k, k - 1], wanted, rel_tol=1e-12, abs_tol=1e-300)


@pytest.mark.parametrize(("load", "k"), [(0.25, 3), (5, 9), (23.25, 12), (100, 1)])
def test_load_rate_is_the_mixture(load: float, k: int) -> None:
    top = int(load + 12 * load**0.5 + 20)
    wanted = 0.0
    chance = math.exp(-load)
    for keys in range(top):
        wanted += chance * float(bloom._covered()[keys * k, k - 1])
        chance *= load / (keys + 1)
    assert math.isclose(bloom.load_rate(load, k), wanted, rel_tol=1e-9)
    assert bloom.load_rate(0, k) == 0


# Bits a key of the smallest table, by rate. Putze, Sanders and Singler's table 1 has about 10 % to 40 % above the flat
# filter's 1.44 log2(1 / rate) in this range.
SHAPES = {
    100_000_000: (3, 4.84),
    10_000_000: (6, 9.92),
    1_000_000: (9, 15.55),
    100_000: (12, 22.04),
    10_000: (14, 29.68),
    1_000: (16, 38.87),
    100: (18, 49.95),
    10: (20, 63.5),
    1: (21, 80.31),
}


@pytest.mark.parametrize("rate", SHAPES)
def test_shapes(rate: int) -> None:
    shape = bloom.solve(1_000_000, rate)
    hashes, bits = SHAPES[rate]
    assert shape.hashes == hashes
    assert abs(shape.blocks * 512 / 1_000_000 - bits) < 0.01
    assert shape.rate(1_000_000) * PPB <= rate
    # No smaller table, whatever its hashes, meets the rate: fewer blocks by a hundredth do not.
    fewer = shape.blocks * 99 // 100
    assert all(bloom.load_rate(1_000_000 / fewer, k) * PPB > rate for k in range(1, 29))


def test_shapes_of_all_sizes() -> None:
    assert bloom.solve(1, 1000) == bloom.Shape(1, 16)
    assert bloom.solve(10**9, 1000).blocks == 75_919_336
    assert bloom.solve(10**9, 1000).nbytes == 75_919_336 * 64
    assert bloom.solve(10**15, 999_999_999).blocks >= 1
    for capacity, rate, words in (
        (0, 1000, "capacity 0 holds nothing"),
        (5, 0, "fp-rate 0 is outside"),
        (5, PPB, "fp-rate 1 is outside"),
        (2**62 - 1, 1, "takes .* bits"),
    ):
        with pytest.raises(RecipeError, match=words):
            bloom.solve(capacity, rate)
    assert bloom.band_rate(1000, 17) == 58
    with pytest.raises(RecipeError, match=r"under 0.000000001 for each of 17 bands; give 0.000000017"):
        bloom.band_rate(16, 17)


@pytest.mark.parametrize("rate", ["0.2", "0.01", "0.001"])
def test_the_rate_at_capacity_is_the_measured_one(rate: str, rng: np.random.Generator) -> None:
    filter = BloomFilter(40_000, rate)
    keys = some_keys(rng, 400_000)
    filter.add(keys[:40_000])
    fill = filter.fill()
    found = int(filter.contains(keys[40_000:]).sum())
    for expected in (fill.rate, filter.shape.rate(40_000)):
        mean = expected * 360_000
        assert abs(found - mean) < 6 * mean**0.5, (found, mean)
    assert filter.contains(keys[:40_000]).all()
    assert fill.rate < filter.fp_rate * 1.1
    wrong = 40_000 - len(filter)  # keys that were new and taken for seen
    mean = filter.shape.wrong(0, len(filter))
    assert abs(wrong - mean) < 6 * max(mean, 1) ** 0.5
    assert filter.warning() is None


def test_fill_by_hand() -> None:
    histogram = np.zeros(513, np.int64)
    histogram[0], histogram[256], histogram[512] = 2, 1, 1
    fill = bloom.Fill.of([histogram], 2)
    assert (fill.bits, fill.size, fill.share, fill.rate) == (768, 2048, 0.375, (0.25 + 1) / 4)
    both = bloom.Fill.of([histogram, histogram], 2)
    assert both.rate == 1 - (1 - 0.3125) ** 2


def test_over_capacity_is_said() -> None:
    filter = BloomFilter(100, "0.01")
    filter.add([f"key {i}" for i in range(2000)])
    assert filter.over_capacity
    text = filter.warning()
    assert text is not None
    assert "over its capacity 100" in text
    assert "of its bits are set" in text
    assert filter.fill().share > 0.9
    assert filter.fill().rate > 0.5


# ------------------------------------------------------------------------------------------------------------- the keys


@given(st.lists(st.text(max_size=3), max_size=30), st.integers(0, 30))
def test_a_set_with_room_to_spare(texts: list[str], cut: int) -> None:
    """At a rate of 10**-9 and a few keys the filter is the set."""
    for backend in ("numpy", "numba"):
        filter = BloomFilter(1000, "0.000000001", backend=host_backend(backend))
        met: set[str] = set()
        expected = []
        for text in texts:
            expected.append(text not in met)
            met.add(text)
        got = [*filter.add_if_new(texts[:cut]), *filter.add_if_new(texts[cut:])]
        assert got == expected
        assert len(filter) == len(met)
        assert filter.contains([*met, "another"]).tolist() == [True] * len(met) + [False]


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_give_the_sequential_answer(threads: int, rng: np.random.Generator) -> None:
    n = 1 << 18
    keys = some_keys(rng, n, 1)
    keys[rng.integers(0, n, n // 2)] = keys[rng.integers(0, n, n // 2)]
    # Far too small, so that chance hits abound.
    one, many = BloomFilter(n // 8, "0.01"), BloomFilter(n // 8, "0.01", threads=threads)
    assert np.array_equal(one.add_if_new(keys), many.add_if_new(keys))
    assert np.array_equal(one._words, many._words)
    assert one.counts == many.counts


def test_several_tables(rng: np.random.Generator) -> None:
    keys = some_keys(rng, 50, 3)
    keys[10, 1] = keys[2, 1]  # equal in one band alone
    keys[20] = keys[2]
    keys[30, 0] = keys[4, 2]  # equal words of different bands are nothing to each other
    filter = BloomFilter(1000, tables=3)
    new = filter.add_if_new(keys)
    assert np.flatnonzero(~new).tolist() == [10, 20]
    assert filter.counts == [49, 48, 49]
    assert len(filter) == 49
    assert filter.contains(keys).all()
    parts = [BloomFilter(1000) for _ in range(3)]
    for table, part in enumerate(parts):
        part.add(np.ascontiguousarray(keys[:, table]))
        assert np.array_equal(part._words[0], filter._words[table])


def test_kinds_of_keys(rng: np.random.Generator) -> None:
    filter = BloomFilter(100)
    filter.add(["one", b"two"])
    assert filter.contains([b"one", "two", "three"]).tolist() == [True, True, False]
    with pytest.raises(InputError, match="put the one key into a list"):
        filter.add("one")
    with pytest.raises(InputError, match="keys are str or bytes"):
        filter.add([1, 2])
    with pytest.raises(InputError, match="uint64"):
        filter.add(np.arange(3))
    with pytest.raises(InputError, match="keys of 1 words, but the filter holds keys of 2"):
        filter.add(np.arange(3, dtype=np.uint64))
    with pytest.raises(InputError, match="keys of 3 words; give 1 or 2"):
        filter.add(np.zeros((1, 3), np.uint64))
    with pytest.raises(InputError, match="keys of 2 words for 3 tables"):
        BloomFilter(100, tables=3).add(np.zeros((1, 2), np.uint64))
    assert BloomFilter(5).add_if_new([]).tolist() == []
    ints = BloomFilter(1000)
    assert ints.add_if_new(np.arange(500, dtype=np.uint64)).all()
    assert not ints.contains(np.arange(500, 1000, dtype=np.uint64)).any()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: BloomFilter("10"), "capacity is '10', a str; give a whole number"),
        (lambda: BloomFilter(1e6), "capacity is 1000000.0, a float"),
        (lambda: BloomFilter(True), "capacity is True, a bool"),
        (lambda: BloomFilter(10, None), "fp-rate None is not a number"),
        (lambda: BloomFilter(10, tables=0), "give 1 or more of each"),
        (lambda: BloomFilter(10, threads="2"), "threads is '2', a str"),
        (lambda: BloomFilter(10, keys=7), "keys 7 is no fingerprint"),
        (lambda: BloomFilter(10).add(5), "keys come in a list or a NumPy array, and this is a int"),
        (lambda: BloomFilter(10).contains(None), "and this is a NoneType"),
        (lambda: BloomFilter(10).merge({1, 2}), "and this is a set; load it first"),
        (lambda: BloomFilter(10).save(5), "5 is a int, and no path"),
        (lambda: BloomFilter.load(None), "None is a NoneType, and no path"),
    ],
)
def test_what_is_no_filter_key_or_path(wrong: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        wrong()
    assert "\n" not in str(caught.value)


def test_a_filter_is_not_merged_into_itself() -> None:
    filter = BloomFilter(10)
    filter.add(["a"])
    with pytest.raises(RecipeError, match="has all of its own keys already"):
        filter.merge(filter)
    assert len(filter) == 1


def test_the_rate_of_several_tables_is_that_of_each(rng: np.random.Generator) -> None:
    filter = BloomFilter(5000, "0.01", tables=4)
    filter.add(some_keys(rng, 5000, 4))
    asked = 1 - (1 - 0.01) ** 4
    assert 0.9 * asked < filter.fill().rate < 1.1 * asked
    found = filter.contains(some_keys(rng, 20_000, 4))
    assert 0.85 * asked < found.mean() < 1.15 * asked
    each = BloomFilter(5000, ppb_text(band_rate(ppb("fp-rate", "0.01"), 4)), tables=4)
    each.add(some_keys(rng, 5000, 4))
    assert each.fill().rate < 0.0105
    assert filter.warning() is None


def test_memory_that_is_not_there() -> None:
    with pytest.raises(RecipeError, match=r"takes [\d,]+ bytes of memory, which are not there"):
        BloomFilter(10**15)


def test_may_repeat_finds_every_repeat(rng: np.random.Generator) -> None:
    digests = some_keys(rng, 5000)
    digests[4000:] = digests[:1000]
    for backend in ("numpy", "numba"):
        rows = bloom.may_repeat(digests, "0.1", backend=host_backend(backend))
        assert set(range(4000, 5000)) <= set(rows.tolist())
        assert len(rows) < 1000 + 600
        assert rows.tolist() == sorted(rows.tolist())
    filter = BloomFilter(10_000, "0.000001")
    assert len(bloom.may_repeat(digests[:1000], filter=filter)) == 0
    assert bloom.may_repeat(digests[500:1500], filter=filter).tolist() == list(range(500))


# ----------------------------------------------------------------------------------------------------------- the files


def test_save_and_load(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "seen.bloom"
    filter = BloomFilter(5000, "0.001", keys="ab" * 16)
    filter.says, filter.inputs = {"method": "bloom"}, {"0123": "a.jsonl"}
    keys = some_keys(rng, 4000)
    filter.add(keys)
    filter.save(path)
    for mmap in (False, True):
        again = BloomFilter.load(path, mmap=mmap)
        for name in ("capacity", "fp_rate_ppb", "shape", "tables", "keys", "counts", "inputs", "says", "width"):
            assert getattr(again, name) == getattr(filter, name), name
        assert np.array_equal(again._words, filter._words)
        assert again.contains(keys).all()
        assert again.differs(filter) is None
        assert again.writable is not mmap
    with pytest.raises(RunError, match="to be read alone"):
        again.add(keys)
    again = BloomFilter.load(path)
    assert not again.add_if_new(keys).any()
    assert again.add_if_new(some_keys(rng, 100)).sum() > 90
    again.save(path)
    assert len(BloomFilter.load(path)) == len(again)
    assert [p.name for p in tmp_path.iterdir()] == ["seen.bloom"]


def test_the_file_as_described(tmp_path: Path) -> None:
    """Read by the page's description alone."""
    import struct

    import xxhash

    path = tmp_path / "f"
    filter = BloomFilter(100, "0.01")
    filter.add(["a", "b"])
    filter.save(path)
    raw = path.read_bytes()
    assert raw[:8] == b"GDBLOOM\0"
    version, hashes, blocks, tables, width, capacity, rate, trailer, words_sum, trailer_sum = struct.unpack_from(
        "<IIQIIQQQQQ", raw, 8
    )
    assert (version, hashes, blocks, tables, width, capacity, rate) == (1, 6, 2, 1, 2, 100, 10_000_000)
    assert raw[72:104] == bytes(32)
    assert struct.unpack_from("<Q", raw, 104)[0] == xxhash.xxh3_64_intdigest(raw[:104])
    words, end = raw[4096 : 4096 + 128], raw[4096 + 128 :]
    assert xxhash.xxh3_64_intdigest(words) == words_sum
    assert (len(end), xxhash.xxh3_64_intdigest(end)) == (trailer, trailer_sum)
    assert json.loads(end) == {"counts": [2], "inputs": {}, "says": {}}
    assert np.array_equal(np.frombuffer(words, "<u8").reshape(2, 8), filter._words[0])


def test_damage_is_found(tmp_path: Path) -> None:
    path = tmp_path / "f"
    filter = BloomFilter(1000)
    filter.add(["a"])
    filter.save(path)
    raw = path.read_bytes()

    def check(content: bytes, words: str) -> None:
        path.write_bytes(content)
        for mmap in (False, True):
            with pytest.raises(InputError, match=words) as caught:
                BloomFilter.load(path, mmap=mmap)
            assert str(caught.value).startswith(str(path))
            assert "\n" not in str(caught.value)

    check(b"", "not a Bloom filter")
    check(b"GDSPOOL\0" + raw[8:], "not a Bloom filter")
    check(raw[:8] + b"\2" + raw[9:], "format version 2")
    check(raw[:-1], "bytes, not")
    check(raw[:100], "damaged filter")
    for at in (16, 80, 112, 2000, 4095, 4096, 4096 + 777, len(raw) - 2):
        check(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :], "damaged filter")
    path.unlink()
    check_missing = pytest.raises(InputError, match="No such file")
    with check_missing:
        BloomFilter.load(path)


def test_merge(tmp_path: Path, rng: np.random.Generator) -> None:
    keys = some_keys(rng, 300)
    one, two, both = (BloomFilter(1000, "0.001") for _ in range(3))
    one.add(keys[:200])
    two.add(keys[100:])
    both.add(keys)
    one.inputs, two.inputs = {"1": "a"}, {"2": "b"}
    two.save(tmp_path / "two")
    one.merge(BloomFilter.load(tmp_path / "two", mmap=True))
    assert np.array_equal(one._words, both._words)
    assert one.counts == [400]  # at most: what both hold counts twice
    assert one.inputs == {"1": "a", "2": "b"}
    assert one.contains(keys).all()
    for other, words in (
        (BloomFilter(1001, "0.001"), "capacity 1,000 and 1,001"),
        (BloomFilter(1000, "0.002"), "fp-rate 0.001 and 0.002"),
        (BloomFilter(1000, "0.001", tables=2), "tables 1 and 2"),
        (BloomFilter(1000, "0.001", keys="x"), "keys '' and 'x'"),
    ):
        with pytest.raises(RecipeError, match=words):
            one.merge(other)
    ints = BloomFilter(1000, "0.001")
    ints.add(np.arange(3, dtype=np.uint64))
    with pytest.raises(RecipeError, match="keys of 2 words and of 1"):
        one.merge(ints)


def test_readers_keep_the_file_that_they_opened(tmp_path: Path) -> None:
    path = tmp_path / "f"
    writer = BloomFilter(1000)
    writer.add(["old"])
    writer.save(path)
    reader = BloomFilter.load(path, mmap=True)
    writer.add(["new"])
    writer.save(path)
    assert reader.contains(["old", "new"]).tolist() == [True, False]
    assert BloomFilter.load(path, mmap=True).contains(["old", "new"]).tolist() == [True, True]


def test_two_writers_do_not_lose_each_others_keys(tmp_path: Path) -> None:
    path = tmp_path / "f"
    first = BloomFilter(1000)
    first.save(path)
    second = BloomFilter.load(path)
    first.add(["a"])
    first.save(path)
    second.add(["b"])
    with pytest.raises(OutputError, match="was changed by somebody else"):
        second.save(path)
    with pytest.raises(OutputError, match="is there already"):
        BloomFilter(1000).save(path)
    assert BloomFilter.load(path).contains(["a", "b"]).tolist() == [True, False]
    path.unlink()
    with pytest.raises(OutputError, match="was changed by somebody else"):
        first.save(path)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    filter = BloomFilter(1000)
    filter.save(path)
    before = path.read_bytes()
    filter.add(["a"])
    with pytest.raises(RuntimeError, match="in between"), filter.saving(path):
        raise RuntimeError("in between")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    with pytest.raises(OutputError, match="another file for the filter"):
        filter.save(tmp_path / "no" / "folder")


def test_readers_beside_a_writer() -> None:
    """What was added before a question is always found, while one thread adds and others ask."""
    filter = BloomFilter(200_000, "0.0001")
    keys = np.arange(200_000, dtype=np.uint64)
    filter.contains(keys[:1])
    filter.add(keys[:1])
    done = 1
    lost: list[int] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            known = done
            lost.append(known - int(filter.contains(keys[:known]).sum()))

    readers = [threading.Thread(target=ask) for _ in range(2)]
    for reader in readers:
        reader.start()
    for start in range(0, 200_000, 5000):
        filter.add(keys[start : start + 5000])
        done = start + 5000
    stop.set()
    for reader in readers:
        reader.join()
    assert len(lost) > 2
    assert set(lost) == {0}


def test_another_process_reads_the_map(tmp_path: Path) -> None:
    path = tmp_path / "f"
    filter = BloomFilter(1000)
    filter.add(["a", "b"])
    filter.save(path)
    code = "import sys; from gpu_dedup import BloomFilter; f = BloomFilter.load(sys.argv[1], mmap=True)"
    code += "; print(f.contains(['a', 'c']).tolist())"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(REPO)},
    )  # fmt: skip
    assert done.stdout.strip() == "[True, False]"


def test_golden_file(tmp_path: Path) -> None:
    """A saved filter is good for as long as its version: its bits must not change by chance."""
    filter = BloomFilter(1000, "0.001")
    filter.add([f"https://example.org/{i}" for i in range(700)])
    assert hashlib.sha256(filter._words.tobytes()).hexdigest()[:16] == GOLDEN
    assert bloom_ref.fill(filter._words[0]).sum() == filter.shape.blocks


GOLDEN = "d1ca3df44dc90b26"
