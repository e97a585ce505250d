"""Every 2**31 and 2**32: offsets, ranks, pairs, rows and files beyond them, simulated over memory and files that have
holes where nobody looks. What can only be crossed for real is in the long mode, GPU_DEDUP_LARGE=1.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from gpu_dedup.backend import SET, Backend, host_backend
from gpu_dedup.batch import MAX_PAIRED, Tape, pack_pairs, unpack_pairs
from gpu_dedup.checkpoint import PartFile, write_part
from gpu_dedup.collide import collide
from gpu_dedup.errors import InternalError, RunError
from gpu_dedup.hamming import join
from gpu_dedup.normalise import step_bits
from gpu_dedup.pipeline.emit import Ids, _places
from gpu_dedup.pipeline.survey import FileFacts, where_in
from gpu_dedup.progress import bytes_text
from gpu_dedup.recipe import Recipe
from gpu_dedup.spool import HEAD, Budget, RaggedTable, Table
from gpu_dedup.verify import _find_pairs

LARGE = bool(os.environ.get("GPU_DEDUP_LARGE"))
EDGES = [0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1]


# ---- pairs of ranks --------------------------------------------------------------------------------------------------


def test_pairs_of_ranks_sort_and_come_back_up_to_the_last() -> None:
    pairs = [(hi, lo) for hi in EDGES for lo in EDGES]
    random.Random(1).shuffle(pairs)
    hi, lo = (np.array(side, np.int64) for side in zip(*pairs, strict=True))
    packed = pack_pairs(hi, lo)
    assert packed.tolist() == [a * 2**32 + b for a, b in pairs]
    packed.sort()
    again = list(zip(*(side.tolist() for side in unpack_pairs(packed)), strict=True))
    assert again == sorted(pairs)
    for wrong in (2**32, -1):
        with pytest.raises(InternalError, match="32 bits"):
            pack_pairs(np.array([5, wrong], np.int64), np.array([1, 1], np.int64))
        with pytest.raises(InternalError, match="32 bits"):
            pack_pairs(np.array([5, 6], np.int64), np.array([wrong, 1], np.int64))


def test_a_pair_is_found_among_candidates_of_any_rank() -> None:
    """hi * base + lo would wrap in 64 bits from ranks of 3.04e9 on, and meet a pair that is another."""
    rng = random.Random(2)
    there = sorted({tuple(sorted((rng.randrange(2**32), rng.randrange(2**32)), reverse=True)) for _ in range(3000)})
    there += [(2**32 - 1, lo) for lo in EDGES[:-1]]
    hi, lo = (np.array(side, np.int64) for side in zip(*there, strict=True))
    pairs = SimpleNamespace(hi=hi, lo=lo)
    asked = [*rng.sample(there, 500), (2**32 - 1, 2**32 - 3), (2**31, 5), (2**32 - 2, 2**31)]
    at, known = _find_pairs(pairs, *(np.array(side, np.int64) for side in zip(*asked, strict=True)))
    assert known.tolist() == [pair in set(there) for pair in asked]
    assert [there[i] for i, good in zip(at.tolist(), known.tolist(), strict=True) if good] == asked[:500]


def test_more_documents_than_a_pair_can_name_are_refused_before_any_work() -> None:
    backend = host_backend("numba")

    def never(*_: Any) -> Any:
        raise AssertionError("begun")

    recipe = Recipe(bands=2, rows=2, sieve_cut=0)
    with pytest.raises(RunError, match=r"4294967296 distinct documents.*run on shards"):
        collide(never, SimpleNamespace(array=None, take=never), MAX_PAIRED, recipe, backend, never, never)
    values = np.broadcast_to(np.zeros(1, np.uint64), (MAX_PAIRED,))  # eight bytes that say they are 2**35
    with pytest.raises(RunError, match=r"4294967296 distinct documents.*run on shards"):
        join(values, 3, backend, never)


@pytest.mark.parametrize("name", ["numpy", "numba"])
def test_a_bucket_has_more_than_2_to_the_32_pairs(name: str) -> None:
    backend, n = host_backend(name), 100_000
    starts = np.array([0, 3, 3 + n], np.int64)
    members = np.concatenate([[7, 9, 12], np.arange(20, 20 + n)]).astype(np.int64)
    offsets = backend.pair_offsets(starts, n + 1, 1)
    assert int(offsets[-1]) == 3 + n * (n - 1) // 2 > 2**32
    hi, lo = backend.bucket_pairs(members, starts, offsets, n + 1, n + 3)  # of the two last members
    assert len(hi) == (n - 2) + (n - 1)
    assert set(hi.tolist()) == {20 + n - 2, 20 + n - 1}
    last = lo[hi == 20 + n - 1]
    assert np.array_equal(np.sort(last), np.arange(20, 20 + n - 1))


# ---- texts and items beyond 2**32 ------------------------------------------------------------------------------------


def far_memory(size: int) -> Any:
    """`size` bytes of memory of which only what is written to exists."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    try:
        return mmap.mmap(-1, size, flags=flags)
    except OSError:
        pytest.skip(f"this system gives no {size >> 30} GiB of addresses")


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


BASE = 2**33 + 5
TEXTS = [
    "", "a", "one two three four five six seven", "一二三四五六七八 and ASCII", "Ünï <b>cödé</b> &amp; ﬁ " * 40,
    "the same words again and again " * 30, "x" * 5000, "café naïve " * 9, "\ud800 lone",
]  # fmt: skip


@pytest.fixture(scope="module")
def tapes() -> tuple[Tape, Tape]:
    """The same texts, at the beginning of a blob and behind 2**33 bytes of one."""
    near = Tape.of(TEXTS)
    memory = far_memory(BASE + len(near.blob))
    blob = np.frombuffer(memory, np.uint8)
    writable = np.frombuffer(memoryview(memory), np.uint8)
    writable[BASE:] = near.blob
    return near, Tape(blob, near.offsets + BASE)


A, B = np.array([3, 5, 2**32 - 1, 9] * 4, np.uint32), np.array([1, 2, 3, 4] * 4, np.uint32)
NONE = np.zeros(0, np.uint64)


def flat(result: Any) -> list[Any]:
    """Arrays of a result, those of tapes from their first byte on."""
    if isinstance(result, Tape):
        return [result.blob[result.offsets[0] : result.offsets[-1]], result.offsets - result.offsets[0]]
    if isinstance(result, tuple):
        return list(result)
    if hasattr(result, "__dataclass_fields__"):
        return [getattr(result, name) for name in result.__dataclass_fields__]
    return [result]


EVERY_STEP = step_bits(("html", "nfkc", "lower", "accents", "digits", "punctuation", "whitespace"))
OPERATIONS: dict[str, Callable[[Backend, Tape, Any], Any]] = {
    "valid_utf8": lambda backend, tape, every: backend.valid_utf8(tape),
    "code_points": lambda backend, tape, every: backend.code_points(tape),
    "normalise": lambda backend, tape, every: backend.normalise(tape, EVERY_STEP),
    "normalise lower": lambda backend, tape, every: backend.normalise(tape, step_bits(("lower",))),
    "decode": lambda backend, tape, every: backend.decode(tape),
    "digest": lambda backend, tape, every: backend.digest(tape),
    "trim": lambda backend, tape, every: backend.trim(tape, Tape.of([" again"]), True, 600),
    "sketch": lambda backend, tape, every: backend.sketch(tape, every, 0, 3, NONE, A, B),
    "sketch by characters": lambda backend, tape, every: backend.sketch(tape, every, 2, 5, NONE, A, B),
    "fast_sketch": lambda backend, tape, every: backend.fast_sketch(tape, every, 0, 3, NONE, A, B),
    "shingle_sets": lambda backend, tape, every: backend.shingle_sets(tape, every, 0, 3, NONE),
    "fingerprints": lambda backend, tape, every: backend.fingerprints(
        tape, every, 0, 3, NONE, SET, np.zeros(0, np.uint32), 0
    ),
    "cells": lambda backend, tape, every: backend.cells(tape, every, 0, 3, NONE),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_texts_behind_2_to_the_33_bytes(tapes: tuple[Tape, Tape], operation: str) -> None:
    backend, work = host_backend("numba"), OPERATIONS[operation]
    near, far = tapes
    every = np.arange(len(TEXTS), dtype=np.int64)
    before = resident()
    expected, found = flat(work(backend, near, every)), flat(work(backend, far, every))
    assert resident() - before < 400 << 20, "holes were filled"
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(other, one)


def test_shingle_sets_and_code_points_behind_2_to_the_32_items() -> None:
    backend, rng = host_backend("numba"), np.random.default_rng(3)
    sets = [np.unique(rng.integers(0, 400, 150, dtype=np.uint64)) for _ in range(5)]
    offsets = np.concatenate([[0], np.cumsum([len(s) for s in sets])]).astype(np.int64)
    left, right = (side.astype(np.int64).ravel() for side in np.meshgrid(np.arange(5), np.arange(5)))
    wide = 2**32 + 3
    memory = far_memory((wide + int(offsets[-1])) * 8)
    items = np.frombuffer(memoryview(memory), np.uint64)
    items[wide:] = np.concatenate(sets)
    shared, union = backend.jaccard(items, offsets + wide, left, right)
    assert shared.tolist() == [
        len(set(sets[a].tolist()) & set(sets[b].tolist())) for a, b in zip(left, right, strict=True)
    ]
    assert union.tolist() == [
        len(set(sets[a].tolist()) | set(sets[b].tolist())) for a, b in zip(left, right, strict=True)
    ]
    assert np.array_equal(backend.simhash(items, offsets + wide), backend.simhash(np.concatenate(sets), offsets))
    texts = ["kitten", "sitting", "kitchen"]
    points, cuts = backend.decode(Tape.of(texts))
    far = np.frombuffer(memoryview(memory), np.uint32)
    far[wide : wide + len(points)] = points
    pairs = np.array([0, 0, 1], np.int64), np.array([1, 2, 2], np.int64)
    for one, other in zip(
        backend.edit(far, cuts + wide, *pairs, 1), backend.edit(points, cuts, *pairs, 1), strict=True
    ):
        np.testing.assert_array_equal(one, other)


# ---- tables and files with more than 2**32 bytes, items and rows -----------------------------------------------------


def grow_hole(table: Table, rows: int) -> None:
    """As if so many rows of a table in a file had been appended: a hole in the file."""
    assert table._file is not None
    table._file._flush()
    table._rows += rows
    end = HEAD + table._rows * table._row
    os.ftruncate(table._file._descriptor, end)
    os.lseek(table._file._descriptor, end, os.SEEK_SET)


def test_a_table_of_more_than_2_to_the_32_rows(tmp_path: Path) -> None:
    table = Table(np.uint32, 5, lambda: str(tmp_path), Budget(0))
    first = np.arange(50, dtype=np.uint32).reshape(10, 5)
    table.append(first)
    grow_hole(table, 2**32)
    table.append(first + 100)
    table.finish()
    n = len(table)
    assert (n, table.nbytes) == (2**32 + 20, (2**32 + 20) * 20)
    np.testing.assert_array_equal(table.slice(n - 10, n), first + 100)
    np.testing.assert_array_equal(table.take(np.array([n - 1, 3, 2**31, n - 10, 3], np.int64))[[0, 1, 3, 4]],
                                  [first[9] + 100, first[3], first[0] + 100, first[3]])  # fmt: skip
    table.close()


def test_sets_of_more_than_2_to_the_32_shingles_in_all(tmp_path: Path) -> None:
    """Ends of documents lie beyond 2**31 and 2**32 items, in one table and in reads that jump over it."""
    table = RaggedTable(np.uint64, lambda: str(tmp_path), Budget(0))
    documents = [np.arange(k, dtype=np.uint64) + 1000 * k for k in (3, 0, 5, 1)]
    offsets = np.concatenate([[0], np.cumsum([len(d) for d in documents])]).astype(np.int64)
    for step in (0, 2**31, 2**32):
        if step:  # one document that is a hole
            grow_hole(table._items, step)
            table._ends.append(np.array([len(table._items)], np.int64))
        table.append(np.concatenate(documents), offsets)
    table.finish()
    assert len(table) == 14
    assert table.lengths().tolist() == [3, 0, 5, 1, 2**31, 3, 0, 5, 1, 2**32, 3, 0, 5, 1]
    items, cuts = table.take(np.array([13, 0, 12, 7, 11, 2, 12], np.int64))
    for i, wanted in enumerate((3, 0, 2, 2, 1, 2, 2)):
        np.testing.assert_array_equal(items[cuts[i] : cuts[i + 1]], documents[wanted])
    table.close()


def test_a_part_of_more_than_2_to_the_32_bytes(tmp_path: Path) -> None:
    path = str(tmp_path / "part.gdp")
    write_part(path, {"k": 1}, None, {"a": np.arange(100, dtype=np.int64)})
    part = PartFile(path)
    dtype, shape, _, digest = part._arrays["a"]
    data = part.read("a")
    far = 2**32 + 64
    contents = {"a": [dtype, shape, far, digest]}
    text = json.dumps({"key": {"k": 1}, "facts": None, "arrays": contents}).encode()
    with open(path, "r+b") as file:
        file.seek(far)
        file.write(data.tobytes())
        file.write(text)
        file.seek(0)
        head = struct.pack(
            "<8sIIqqQ24x", b"GDPART\0\0", 1, 0, far + data.nbytes, len(text), xxhash.xxh3_64_intdigest(text)
        )
        file.write(head)
    found = PartFile(path)
    assert found.nbytes > 2**32
    np.testing.assert_array_equal(found.read("a"), data)


def test_rows_past_2_to_the_32_keep_their_places() -> None:
    sizes = [5, 2**32, 0, 7, 2**31]
    files, first = [], 0
    for number, rows in enumerate(sizes):
        source = SimpleNamespace(where=lambda row, number=number: f"{number}:{row + 1}")
        files.append(FileFacts(source, number, first, rows))  # type: ignore[arg-type]
        first += rows
    rows = np.array([0, 4, 5, 2**32 - 1, 2**32 + 4, 2**32 + 5, 2**32 + 11, 2**32 + 12, first - 1, -1], np.int64)
    file, local = _places(SimpleNamespace(files=files), rows)  # type: ignore[arg-type]
    assert file[:-1].tolist() == [0, 0, 1, 1, 1, 3, 3, 4, 4]
    assert local.tolist() == [0, 4, 0, 2**32 - 6, 2**32 - 1, 0, 6, 0, 2**31 - 1, -1]
    assert where_in(files, 2**32 + 11) == "3:7"
    assert where_in(files, first - 1) == f"4:{2**31}"
    ids = Ids(np.array([2, 2**32 + 11, 2**40], np.int64))
    assert ids.inside(2**32, 20).tolist() == [11]
    ids.add(np.array([2**32 + 11, 2**40], np.int64), ["far", 7])
    found, kinds = ids.look_up(np.array([2**40, -1, 2**32 + 11, 5], np.int64))
    assert found.to_pylist() == ["7", None, "far", None]
    assert pa.types.is_large_string(kinds.type), "types of a billion ids are more than 2**31 bytes"


def test_amounts_that_people_read() -> None:
    assert [bytes_text(10**k) for k in (9, 10, 13)] == ["1 GB", "10 GB", "10 TB"]
    assert bytes_text(2**32) == "4.29 GB"


# ---- for real --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not LARGE, reason="long mode: set GPU_DEDUP_LARGE=1; takes 5 GB of disk")
def test_a_file_of_more_than_2_to_the_32_bytes(tmp_path: Path) -> None:
    """A small beginning, one block again and again, and an end that is like the beginning but for a word."""
    rng = random.Random(4)
    words = [f"w{i}" for i in range(3000)]

    def line(key: str, text: str) -> bytes:
        return json.dumps({"id": key, "text": text}).encode() + b"\n"

    begin = [" ".join(rng.choices(words, k=60)) for _ in range(50)]
    block = b"".join(line("b", " ".join(rng.choices(words, k=400))) for _ in range(30_000))
    times = 2**32 // len(block) + 1
    path = tmp_path / "large.jsonl"
    with open(path, "wb") as file:
        file.writelines(line(f"a{i}", text) for i, text in enumerate(begin))
        for _ in range(times):
            file.write(block)
        file.writelines(line(f"z{i}", text.replace(text.split()[30], "other", 1)) for i, text in enumerate(begin))
    assert path.stat().st_size > 2**32
    out = tmp_path / "out"
    ran = harness.run(path, out, Recipe(), checkpoint=512_000_000, max_removed_ppm=1_000_000)
    counts = ran.report["result"]["counts"]
    rows = 100 + 30_000 * times
    assert counts["read"] == rows
    assert counts["by_reason"]["exact"] == 30_000 * (times - 1)
    assert counts["by_reason"]["near"] == 50
    kept = (out / "large.jsonl").read_bytes()
    assert kept == b"".join(line(f"a{i}", text) for i, text in enumerate(begin)) + block
    log = pq.read_table(out / "_gpu_dedup" / "removed.parquet", filters=[("reason", "=", "near")])
    assert log["row"].to_pylist() == list(range(rows - 50, rows))
    assert log["kept_row"].to_pylist() == list(range(50))
    assert log["id"].to_pylist() == [f"z{i}" for i in range(50)]
