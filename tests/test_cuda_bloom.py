"""Bloom filters on the device, bit for bit as on the host: the kernels, filters behind the seam, whole runs.

Each body runs on the stand-in for CuPy, where the kernels themselves are executed on the CPU, and on CuPy where there
is a GPU.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from hashes import ALL, GOLDEN, mix

from gpu_dedup import BloomFilter, Recipe, Run, dedup
from gpu_dedup.kernels import bloom_ref


def some_keys(rng, n):
    return rng.integers(0, 2**64 - 1, (n, 2), dtype=np.uint64, endpoint=True)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize(("blocks", "hashes", "n"), [(1, 28, 90), (2, 7, 300), (5, 8, 130), (700, 14, 400), (3, 1, 1)])
def test_small_cuda(device_cupy, rng, width, blocks, hashes, n):
    bloom = importlib.import_module("gpu_dedup.kernels.bloom_cuda")
    keys = rng.integers(0, 2**64 - 1, (n, width), dtype=np.uint64, endpoint=True)
    keys[rng.integers(0, n, n // 3)] = keys[rng.integers(0, n, n // 3)]
    words = np.zeros((blocks, 8), np.uint64)
    table = device_cupy.asarray(words)
    for part in (keys[: n // 2], keys[n // 2 :], keys[:0]):
        expected = np.zeros(len(part), np.uint8)
        bloom_ref.add(words, part, hashes, expected, 0, blocks)
        assert np.array_equal(bloom.add(table, device_cupy.asarray(part), hashes).get(), expected)
        assert np.array_equal(table.get(), words)
    fresh = rng.integers(0, 2**64 - 1, (257, width), dtype=np.uint64, endpoint=True)
    for asked in (keys, fresh):
        got = bloom.ask(table, device_cupy.asarray(asked), hashes).get()
        assert np.array_equal(got, bloom_ref.ask(words, asked, hashes))
    assert bloom.fill(table).get().tolist() == bloom_ref.fill(words).tolist()


def test_small_cuda_one_key_many_times(device_cupy):
    bloom = importlib.import_module("gpu_dedup.kernels.bloom_cuda")
    keys = device_cupy.asarray(np.full((500, 1), 9, np.uint64))
    table = device_cupy.zeros((4, 8), np.uint64)
    assert bloom.add(table, keys, 20).get().tolist() == [0] + [1] * 499


def test_cuda_block_numbers_of_the_largest_tables(device_cupy):
    cuda = importlib.import_module("gpu_dedup.kernels.cuda")
    keys = np.array([[0], [1], [2**63], [ALL]], np.uint64)
    for blocks in (2**32, 2**57):
        out = cuda.empty(4, np.uint64)
        cuda.launch(
            "bloom",
            "block_numbers",
            4,
            (device_cupy.asarray(keys), np.int64(4), np.uint32(1), np.uint64(blocks), out),
        )
        assert out.get().tolist() == [mix(key + GOLDEN & ALL) * blocks >> 64 for (key,) in keys.tolist()]


def test_small_kernels_under_the_sanitizers(emulated):
    """All tests named test_small_..., built with ASan and UBSan."""
    if emulated.SANITIZE:
        pytest.skip("this is that run")
    if emulated.sanitizer_environment() is None:
        pytest.skip("libasan or libubsan is missing")
    emulated.sanitized_pytest(__file__, "-k", "test_small_ and standin and not sanitizers")


def test_a_filter(device_cupy, rng, tmp_path):
    gpu = importlib.import_module("gpu_dedup.backend.cuda").cuda_backend(0)
    keys = some_keys(rng, 700)
    keys[500:] = keys[rng.integers(0, 500, 200)]
    there, here = BloomFilter(300, "0.05", backend=gpu), BloomFilter(300, "0.05")
    for start in (0, 300):
        assert np.array_equal(there.add_if_new(keys[start : start + 300]), here.add_if_new(keys[start : start + 300]))
    fresh = some_keys(rng, 300)
    assert np.array_equal(there.contains(fresh), here.contains(fresh))
    assert there.fill() == here.fill()
    there.save(tmp_path / "f")
    assert np.array_equal(there.add_if_new(keys[600:]), here.add_if_new(keys[600:]))  # it goes on where it was
    there.save(tmp_path / "f")
    loaded = BloomFilter.load(tmp_path / "f", backend=gpu)
    assert np.array_equal(loaded._words, here._words)
    there.merge(loaded)
    assert np.array_equal(there._words, here._words)
    assert np.array_equal(there.contains(fresh), here.contains(fresh))


def test_little_device_memory(standin, rng):
    """A table that the device has no room for stays on the host; a batch that does not fit is cut."""
    standin.reset(seed=3, memory=300 << 20)
    cuda = importlib.import_module("gpu_dedup.backend.cuda")
    gpu = cuda.cuda_backend(0)
    keys = some_keys(rng, 3000)
    large = BloomFilter(100_000_000, "0.01", backend=gpu)
    assert isinstance(large._tables[0], np.ndarray)
    small, here = BloomFilter(2000, "0.01", backend=gpu), BloomFilter(2000, "0.01")
    assert isinstance(small._tables[0], cuda.DeviceTable)
    used = gpu._tables
    assert used == small.nbytes
    assert np.array_equal(small.add_if_new(keys), here.add_if_new(keys))
    large.add(keys)
    assert large.contains(keys).all()
    del small
    assert gpu._tables == 0


def test_whole_runs(device_cupy, tmp_path, rng):
    picks = rng.integers(0, 150, 200).tolist()
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": i, "text": f"number {pick}"}) + "\n" for i, pick in enumerate(picks)))
    for number, recipe in enumerate(
        (
            Recipe(method="bloom", capacity=50, fp_rate_ppb=100_000_000),
            Recipe(method="lshbloom", capacity=50, fp_rate_ppb=500_000_000, bands=3, rows=4, shingle="token:2"),
        )
    ):
        results = []
        for backend in ("cuda", "numpy"):
            out = tmp_path / f"{backend}{number}"
            run = Run(
                backend=backend, threads=2, batch_bytes=3000, on_full="warn", bloom=f"{out}.bloom", progress=False
            )
            report = dedup(path, out, recipe, run)
            kept = (out / "a.jsonl").read_bytes()
            results.append((report.to_dict()["result"], kept, Path(f"{out}.bloom").read_bytes()))
        assert results[0] == results[1]
