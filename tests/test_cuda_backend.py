"""The CUDA backend behind the seam: every function against NumPy, whole runs bit for bit, little memory, refusals.

The stand-in for CuPy (tests/cuda/standin) queues work and runs it late, in an order of chance; memory that was given
back is poison. On a machine with a GPU the bodies under `gpu` run on it as well.
"""

from __future__ import annotations

import gc
import gzip
import importlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import corpora
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpu_dedup.backend import BEST, COUNT, LOWEST, PARTNER, SET, TFIDF, choose_backend, host_backend, warm
from gpu_dedup.batch import Tape
from gpu_dedup.errors import RunError
from gpu_dedup.kernels.normalise_ref import ACCENTS, HTML, LOWER, WHITESPACE
from gpu_dedup.pipeline import dedup
from gpu_dedup.recipe import Recipe
from gpu_dedup.run import Run
from gpu_dedup.sketches import permutations

REPO = Path(__file__).resolve().parent.parent
LOWER_WHITE = 4 | 32  # any steps do: normalising is the host's


def opened():
    """The backend of the CuPy that this test has."""
    return importlib.import_module("gpu_dedup.backend.cuda").cuda_backend(0)


@pytest.fixture
def gpu(device_cupy):
    return opened()


AWKWARD = [
    "",
    "x",
    "the quick brown fox jumps over the lazy dog again and again",
    "the quick brown fox jumps over the lazy dog again and again and",
    "-----",
    "清晨港口还没有完全醒来几只海鸥沿着防波堤慢慢走动",
    "清晨港口还没有完全醒来几只海鸥沿着防波堤慢慢跑动",
    "zero\u200dwidth \U0001f600\U0001f601 caf\u00e9 \u0e01\u0e02\u0e03 \uac00\uac01 " * 9,
    "same " * 400,
    " ".join(f"w{i}" for i in range(900)),
    "",
    "\U00010348" * 33,
]


def awkward_tape(before: int = 3) -> Tape:
    """The texts at an odd address, and an offset that does not begin at 0."""
    made = Tape.of(AWKWARD)
    blob = np.concatenate([np.full(before, 0x41, np.uint8), made.blob, np.full(5, 0x42, np.uint8)])
    return Tape(blob, made.offsets + before)


def same(found, wanted):
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert np.array_equal(found, wanted)


# ------------------------------------------------------------------------------------------------- function by function


def check_fingerprints(gpu, stays=True):
    reference = host_backend("numpy")
    tape = awkward_tape()
    select = np.array([3, 2, 9, 0, 8, 5, 6, 7, 1, 4, 11, 2], np.int64)
    no_idf = np.zeros(0, np.uint32)
    idf = np.random.default_rng(9).integers(1, 1 << 20, 1 << 24, dtype=np.uint32)
    for normal, unit, n in ((gpu.normalise(tape, LOWER_WHITE), 0, 2), (tape, 2, 4)):
        some = reference.shingle_sets(normal, select[4:6], unit, n, np.zeros(0, np.uint64))[0]
        for stop in (np.zeros(0, np.uint64), np.unique(some[::2])):
            arguments = (normal, select, unit, n, stop)
            for rule, weights, top in ((SET, no_idf, 0), (COUNT, no_idf, 0), (TFIDF, idf, 0), (TFIDF, idf, 20)):
                found = gpu.fingerprints(*arguments, rule, weights, top)
                wanted = reference.fingerprints(*arguments, rule, weights, top)
                for name in ("values", "units", "kept"):
                    same(getattr(found, name), getattr(wanted, name))
            found, wanted = gpu.cells(*arguments), reference.cells(*arguments)
            same(np.sort(found[0]), np.sort(wanted[0]))
            assert found[1] == wanted[1]
    table = np.zeros(1 << 24, np.uint32)
    gpu.add_cells(table, found[0])
    assert int(table.sum()) == len(found[0])
    assert idf.flags.writeable is not stays, "the weights stay on the device while their array lives"


def check_text(gpu, slots=37, stop_from=2):
    reference = host_backend("numpy")
    tape = awkward_tape()
    select = np.array([3, 2, 9, 0, 8, 5, 6, 7, 1, 4, 11, 2], np.int64)
    a, b = permutations(7, slots)
    page, ends = Tape.of([f"<p>{text} &eacute;</p>" for text in AWKWARD]), Tape.of(["again and", "x"])
    plain = gpu.normalise(page, HTML | LOWER | ACCENTS | WHITESPACE)
    assert plain.to_list() == reference.normalise(page, HTML | LOWER | ACCENTS | WHITESPACE).to_list()
    trimmed = gpu.trim(plain, ends, True, 30)
    assert trimmed.to_list() == reference.trim(plain, ends, True, 30).to_list()
    assert gpu.trim(plain, Tape.of([]), True, 0) is plain
    for normal in (gpu.normalise(tape, LOWER_WHITE), tape, trimmed):
        same(gpu.digest(normal), reference.digest(normal))
        for unit, n in ((0, 3), (1, 2), (2, 5), (3, 7), (4, 1)):
            stop = np.unique(
                reference.shingle_sets(normal, select[stop_from : stop_from + 1], unit, n, np.zeros(0, np.uint64))[0][
                    ::2
                ]
            )
            for stops in (np.zeros(0, np.uint64), stop):
                for method in ("fast_sketch", "sketch"):
                    found = getattr(gpu, method)(normal, select, unit, n, stops, a, b)
                    wanted = getattr(reference, method)(normal, select, unit, n, stops, a, b)
                    for name in ("signatures", "units", "kept"):
                        same(getattr(found, name), getattr(wanted, name))
                for one, other in zip(
                    gpu.shingle_sets(normal, select, unit, n, stops),
                    reference.shingle_sets(normal, select, unit, n, stops),
                    strict=True,
                ):
                    same(one, other)
            same(gpu.band_keys(found.signatures, 6, 6), reference.band_keys(wanted.signatures, 6, 6))
            same(gpu.band_keys(wanted.signatures, 37, 1), reference.band_keys(wanted.signatures, 37, 1))
            chosen = np.array([5, 0, 36], np.int64)
            same(
                gpu.slot_keys(found.signatures, chosen, 2**64 - 1),
                reference.slot_keys(wanted.signatures, chosen, 2**64 - 1),
            )


def check_collisions(gpu, rng, n=700):
    reference = host_backend("numpy")
    keys = rng.integers(0, n // 3, n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    keys[rng.integers(0, n, n // 5)] = 12345  # one large bucket
    signatures = rng.integers(0, 2, (n, 29), dtype=np.uint32)
    for segments in (np.array([0, n]), np.array([0, 0, n // 7, n // 2, n])):
        members, starts = gpu.buckets(keys, segments)
        wanted = reference.buckets(keys, segments)
        same(members, wanted[0])
        same(starts, wanted[1])
        offsets = gpu.pair_offsets(starts, 20, 4)
        same(offsets, reference.pair_offsets(starts, 20, 4))
        for first, last in ((0, len(members)), (3, len(members) // 2)):
            high, low = gpu.bucket_pairs(members, starts, offsets, first, last)
            for one, other in zip((high, low), reference.bucket_pairs(*wanted, offsets, first, last), strict=True):
                same(one, other)
            agree = gpu.agreements(signatures, high, low)
            same(agree, reference.agreements(signatures, high, low))
            passed = agree >= 14
            same(
                gpu.agreements(signatures, high[passed], low[passed]),
                reference.agreements(signatures, high[passed], low[passed]),
            )


def check_verification(gpu, rng, members=60):
    reference = host_backend("numpy")
    sets = [np.unique(rng.integers(0, 90, rng.integers(0, 60), dtype=np.uint64)) for _ in range(members)]
    items = np.concatenate(sets)
    offsets = np.zeros(members + 1, np.int64)
    offsets[1:] = np.cumsum([len(s) for s in sets])
    left = rng.integers(1, members, 400)
    pairs = np.unique(np.stack([left, rng.integers(0, left)], 1), axis=0)
    left, right = (np.ascontiguousarray(pairs[:, i]) for i in range(2))
    for one, other in zip(
        gpu.jaccard(items, offsets, left, right), reference.jaccard(items, offsets, left, right), strict=True
    ):
        same(one, other)
    nodes = rng.permutation(members).astype(np.int64)
    known = rng.integers(0, 20, len(left))
    points = (items % np.uint64(50)).astype(np.uint32)
    for values, ends in ((items, offsets), (known, np.array([20])), (points, offsets)):
        for rule in (LOWEST, BEST, PARTNER):
            states = [[np.full(members, -1, np.int64) for _ in range(3)] for _ in range(2)]
            counts = [
                backend.sweep(values, ends, left, right, 400_000, 45, rule, nodes, *state)
                for backend, state in zip((gpu, reference), states, strict=True)
            ]
            assert counts[0] == counts[1]
            for one, other in zip(*states, strict=True):
                same(one, other)
        parents = [np.arange(members, dtype=np.int64) for _ in range(2)]
        joined = [
            backend.join(values, ends, left, right, 400_000, 45, nodes, parent)
            for backend, parent in zip((gpu, reference), parents, strict=True)
        ]
        assert joined[0][3] == joined[1][3]
        for one, other in zip(joined[0][:3], joined[1][:3], strict=True):
            same(one, other)
    same(gpu.components(members, left, right), reference.components(members, left, right))


def test_text(gpu):
    check_text(gpu)


def test_fingerprints(gpu):
    check_fingerprints(gpu)


def test_collisions(gpu, rng):
    check_collisions(gpu, rng)


def test_verification(gpu, rng):
    check_verification(gpu, rng)


def test_nothing_at_all(gpu):
    none, empty = np.zeros(0, np.int64), Tape.of([])
    a, b = permutations(0, 20)
    stop = np.zeros(0, np.uint64)
    assert gpu.digest(empty).shape == (0, 2)
    made = gpu.sketch(gpu.normalise(empty, 0), none, 0, 5, stop, a, b)
    assert made.signatures.shape == (0, 20)
    assert gpu.band_keys(made.signatures, 4, 5).shape == (0, 4)
    assert gpu.slot_keys(made.signatures, np.array([1]), 5).shape == (0,)
    items, offsets = gpu.shingle_sets(empty, none, 0, 5, stop)
    assert (len(items), offsets.tolist()) == (0, [0])
    members, starts = gpu.buckets(np.zeros(0, np.uint64), np.array([0, 0]))
    assert (len(members), starts.tolist()) == (0, [0])
    assert gpu.pair_offsets(starts, 9, 3).tolist() == [0]
    assert gpu.agreements(made.signatures, none, none).tolist() == []
    assert [v.tolist() for v in gpu.jaccard(items, np.zeros(3, np.int64), none, none)] == [[], []]


def test_arguments_are_checked_before_the_device_sees_them(gpu):
    signatures = np.zeros((3, 8), np.uint32)
    one = np.array([0], np.int64)
    with pytest.raises(IndexError, match="row outside 0 to 2"):
        gpu.agreements(signatures, one, np.array([3]))
    with pytest.raises(ValueError, match="do not fit 8 slots"):
        gpu.band_keys(signatures, 3, 3)
    with pytest.raises(ValueError, match="leave the signature"):
        gpu.slot_keys(signatures, np.array([8]), 0)
    with pytest.raises(ValueError, match="segments must rise"):
        gpu.buckets(np.zeros(4, np.uint64), np.array([0, 3]))
    with pytest.raises(IndexError, match="set outside"):
        gpu.jaccard(np.zeros(2, np.uint64), np.array([0, 1, 2]), one, np.array([2]))
    with pytest.raises(IndexError, match="members 0 to 9 of 2"):
        gpu.bucket_pairs(np.array([0, 1]), np.array([0, 2]), np.array([0, 0, 1]), 0, 9)
    tape = awkward_tape()
    with pytest.raises(ValueError, match="select"):
        gpu.sketch(tape, np.array([13]), 0, 5, np.zeros(0, np.uint64), *permutations(0, 16))


# ------------------------------------------------------------------------------------------------------- little memory


@pytest.mark.parametrize("budget", [20_000, 300_000])
def test_work_is_cut_to_the_budget(gpu, rng, budget):
    """No copy stays, and every function takes its road for what does not fit."""
    gpu._budget, gpu._residents.room = budget, 0
    check_text(gpu)
    check_fingerprints(gpu, stays=False)
    check_collisions(gpu, rng)
    check_verification(gpu, rng)
    assert gpu._budget == budget
    assert gpu._residents.used == 0


def test_out_of_memory_halves_the_batch_and_says_so_once(standin, rng):
    gpu = opened()
    said: list[str] = []
    gpu.note = said.append
    before = gpu._budget
    keys = rng.integers(0, 40_000, 100_000, dtype=np.uint64)
    wanted = host_backend("numba").buckets(keys, np.array([0, len(keys)]))
    standin.devices[0].memory = 4 << 20  # as if somebody else had taken the rest
    for _ in range(2):
        found = gpu.buckets(keys, np.array([0, len(keys)]))
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    assert gpu._budget < before
    assert len(said) == 1
    assert said[0].endswith("ran out of memory; smaller batches from here on (the answer is the same)")
    assert "\n" not in said[0]


def test_no_batch_small_enough_ends_the_run(standin):
    gpu = opened()
    standin.devices[0].memory = 1 << 10
    with pytest.raises(RunError, match=r"too little memory .* even for batches of 8 MiB; .* --device cpu"):
        gpu.digest(awkward_tape())


def test_a_failed_batch_leaves_no_memory_behind(standin):
    gpu = opened()
    a, b = permutations(0, 64)
    every = np.arange(len(AWKWARD), dtype=np.int64)
    used = standin.devices[0].used
    for memory in (4 << 20, 1 << 30):
        standin.devices[0].memory = memory
        made = gpu.sketch(awkward_tape(), every, 3, 5, np.zeros(0, np.uint64), a, b)
        del made
        gc.collect()
        standin.wait_device()
        assert standin.devices[0].used == used


def test_a_sort_that_went_wrong_is_done_again(standin):
    """Near the end of memory CuPy's sort has returned unsorted data without an error."""
    gpu = opened()
    said: list[str] = []
    gpu.note = said.append
    standin.break_sort = True
    members, starts = gpu.buckets(np.array([7, 3, 7, 1, 3], np.uint64), np.array([0, 5]))
    assert (members.tolist(), starts.tolist()) == ([0, 2, 1, 4], [0, 2, 4])
    assert len(said) == 1


def test_a_device_that_always_sorts_wrongly_ends_the_run(standin, monkeypatch):
    gpu = opened()
    cupy = importlib.import_module("cupy")
    real = cupy.argsort

    def broken(keys):
        standin.break_sort = True
        return real(keys)

    monkeypatch.setattr(cupy, "argsort", broken)
    with pytest.raises(RunError, match=r"GPU 0, .*sorted 9 keys wrongly.*even for batches of .*--device cpu"):
        gpu.buckets(np.arange(9, dtype=np.uint64), np.array([0, 9]))


def test_a_device_that_adds_wrongly_ends_the_run(standin):
    gpu = opened()
    standin.break_scan = True
    with pytest.raises(RunError, match=r"GPU 0, .*wrong sums.*nvidia-smi.*--device cpu"):
        gpu.buckets(np.arange(9, dtype=np.uint64), np.array([0, 9]))


# ------------------------------------------------------------------------------------------------- copies on the device


def test_text_goes_up_once_for_a_batch(standin, monkeypatch):
    gpu = opened()
    cupy = importlib.import_module("cupy")
    texts: list[int] = []
    real = cupy.asarray

    def counting(array, *rest, **more):
        if array.dtype == np.uint8 and array.size > 5000 and array.size == normal.nbytes:
            texts.append(array.size)
        return real(array, *rest, **more)

    monkeypatch.setattr(cupy, "asarray", counting)
    normal = gpu.normalise(awkward_tape(), 0)
    a, b = permutations(0, 16)
    every = np.arange(len(AWKWARD), dtype=np.int64)
    gpu.digest(normal)
    gpu.sketch(normal, every, 0, 5, np.zeros(0, np.uint64), a, b)
    gpu.shingle_sets(normal, every, 0, 5, np.zeros(0, np.uint64))
    assert len(texts) == 1


def test_a_table_goes_up_once_and_is_let_go(standin, rng):
    gpu = opened()
    signatures = rng.integers(0, 9, (50, 16), dtype=np.uint32)
    rows = np.arange(49, dtype=np.int64)
    gpu.agreements(signatures, rows, rows + 1)
    copy = gpu._residents.get(signatures)
    assert copy is not None
    gpu.agreements(signatures, rows, rows + 1)
    assert gpu._residents.get(signatures) is copy
    assert gpu._residents.get(signatures.copy()) is None
    with pytest.raises(ValueError, match="read-only"):
        signatures[0, 0] = 1
    del signatures, copy
    gc.collect()
    assert gpu._residents.used == 0


def test_many_threads_share_one_device(standin, rng):
    """Answers do not get mixed up, whoever comes first, with memory that is given back by other threads."""
    gpu = opened()
    tapes = [
        Tape.of([" ".join(f"w{rng.integers(99)}" for _ in range(30 + 40 * i)) for _ in range(6)]) for i in range(6)
    ]
    a, b = permutations(3, 24)
    every = np.arange(6, dtype=np.int64)
    wanted = [host_backend("numpy").sketch(t, every, 0, 3, np.zeros(0, np.uint64), a, b).signatures for t in tapes]
    problems: list[str] = []

    def work(number: int) -> None:
        for turn in range(3):
            at = (number + turn) % 6
            made = gpu.sketch(gpu.normalise(tapes[at], 0), every, 0, 3, np.zeros(0, np.uint64), a, b)
            if not np.array_equal(made.signatures, wanted[at]):
                problems.append(f"thread {number}, tape {at}")
            if not np.array_equal(
                gpu.band_keys(made.signatures, 4, 6), host_backend("numpy").band_keys(wanted[at], 4, 6)
            ):
                problems.append(f"thread {number}, keys of {at}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_not_after_a_fork(standin, monkeypatch):
    gpu = opened()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RunError, match=r"before a fork"):
        gpu.digest(awkward_tape())


# ---------------------------------------------------------------------------------------------------------- whole runs

RECIPES: dict[str, dict[str, object]] = {
    "default": {},
    "characters, connected": {"shingle": "char:5", "cluster": "connected", "threshold_ppm": 600_000},
    "small cap, best witness": {
        "bucket_cap": 2,
        "cap_lowest": 1,
        "witness": "best",
        "bands": 40,
        "rows": 2,
        "sieve_cut": 9,
    },
    "edit": {"verify": "edit", "keep": "longest"},
    "signature": {"verify": "signature", "keep": "none"},
    "stop shingles": {"shingle": "word:2", "stop_shingles": ("of the", "in the"), "min_shingles": 3},
    "simhash": {"method": "simhash", "distance": 4, "threshold_ppm": 600_000},
    "cascade": {"method": "cascade", "distance": 2, "far_distance": 10, "search_distance": 4, "far_action": "flag"},
    "tfidf": {"method": "simhash", "weights": "tfidf", "top_terms": 30, "distance": 6, "shingle": "token:3"},
    "exact": {"method": "exact"},
    "what counts": {
        "normalize": ("html", "nfc", "lower", "accents", "whitespace"), "strip": ("the", "of"), "max_chars": 200,
    },
}  # fmt: skip

WHOLE = """
import json, sys
from pathlib import Path
sys.path[:0] = json.loads(sys.argv[1])
from gpu_dedup import Recipe, Run, dedup
source, out, recipes = sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4])
for number, (name, options) in enumerate(recipes.items()):
    recipe = Recipe(**{k: tuple(v) if isinstance(v, list) else v for k, v in options.items()})
    size = (4 << 20, 9_000, 1_500)[number % 3]
    dedup([source], str(out / name), recipe, Run(device="gpu", threads=3, batch_bytes=size, progress=False))
import cupy
print(cupy.__file__)
"""


def answer(folder: Path):
    """All that a run must not change: every byte of JSON lines, every row of tables and of the log, every count."""
    lines = {p.name: p.read_bytes() for p in sorted(folder.glob("*.jsonl"))}
    zipped = {p.name: gzip.decompress(p.read_bytes()) for p in sorted(folder.glob("*.gz"))}
    tables = {p.name: pq.read_table(p).to_pylist() for p in sorted(folder.glob("*.parquet"))}
    log = pq.read_table(folder / "_gpu_dedup" / "removed.parquet").to_pylist()
    report = json.loads((folder / "_gpu_dedup" / "report.json").read_text())
    return (lines, zipped, tables, log, report["result"]), report["machine"]["backend"]


@pytest.mark.parametrize("kind", ["standin", "gpu"])
def test_whole_runs_give_the_same_bits(tmp_path, request, kind):
    """`--device gpu` against NumPy, in a process that finds the stand-in, or CuPy, as any user's does."""
    paths = [str(REPO)]
    environment = dict(os.environ)
    if kind == "standin":
        request.getfixturevalue("emulated")
        paths.insert(0, str(REPO / "tests" / "cuda" / "standin"))
        environment["GPU_DEDUP_STANDIN"] = "seed=5"
    else:
        from conftest import cuda_missing, require_cuda

        if (reason := cuda_missing()) is not None:
            if require_cuda():
                pytest.fail(f"GPU_DEDUP_REQUIRE_CUDA=1, but cuda cannot be tested: {reason}")
            pytest.skip(f"cuda: {reason}")
    corpus = corpora.planted("cuda", clusters=8, loners=8, huge=40_000)
    rows = [{"id": r["id"], "text": r["text"]} for r in corpus.rows if isinstance(r["text"], str)]
    plain = [row for row in rows if not any("\ud800" <= c <= "\udfff" for c in row["text"])]  # Parquet's are UTF-8
    half = len(rows) // 2
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.jsonl").write_bytes(corpora.lines(rows[:half]))
    (source / "b.jsonl.gz").write_bytes(gzip.compress(corpora.lines(rows[half:])))
    pq.write_table(pa.table({n: [row[n] for row in plain[:20]] for n in ("id", "text")}), source / "c.parquet")
    arguments = [json.dumps(paths), str(source), str(tmp_path / "gpu"), json.dumps(RECIPES)]
    done = subprocess.run(
        [sys.executable, "-c", WHOLE, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert ("standin" in done.stdout.splitlines()[-1]) == (kind == "standin")
    removed = 0
    for name, options in RECIPES.items():
        dedup([str(source)], str(tmp_path / "numpy" / name), Recipe(**options), Run(backend="numpy", progress=False))
        found, wanted = answer(tmp_path / "gpu" / name), answer(tmp_path / "numpy" / name)
        assert found[1] == "cuda"
        for one, other in zip(found[0], wanted[0], strict=True):
            assert one == other, name
        assert found[0][0], "JSON lines were compared"
        removed += len(found[0][3])
    assert removed > 100


# ------------------------------------------------------------------------------------------------- choice and refusals


def test_auto_takes_the_gpu_where_it_is_worth_it(standin):
    backend, why = choose_backend(Run(), 1 << 30)
    assert backend.name == "cuda"
    assert why.startswith("GPU 0, Stand-in for a GPU, ")
    assert choose_backend(Run(), 1000)[0].name == "numpy"
    backend, why = choose_backend(Run(), 10 << 20)
    assert (backend.name, why) == ("numba", "CPU; under 128 MiB of input a GPU is not worth its start")
    assert choose_backend(Run(device="cpu"), 1 << 30)[1] == "CPU asked for"
    assert choose_backend(Run(backend="cuda"), 0)[1].startswith("asked for; GPU 0")


def test_auto_says_why_not(standin):
    standin.reset(devices=0)
    backend, why = choose_backend(Run(), 1 << 30)
    assert backend.name == "numba"
    assert why.startswith("CPU; the driver finds no GPU; check nvidia-smi")


def refused() -> str:
    """The words of a refusal; they are the same for --device gpu and --backend cuda, one line, and name the CPU."""
    texts = []
    for run in (Run(device="gpu"), Run(backend="cuda")):
        with pytest.raises(RunError) as caught:
            choose_backend(run, 1 << 30)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert "\n" not in texts[0]
    assert "or run with --device cpu, which gives the same answer" in texts[0]
    return texts[0]


def test_without_cupy(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "cupy" else real(name, *rest))
    importlib.import_module("gpu_dedup.backend.cuda").cuda_backend.cache_clear()
    text = refused()
    assert "needs CuPy, which is not installed" in text
    assert "pip install 'gpu-dedup[cuda13]'" in text
    assert "'gpu-dedup[cuda12]'" in text
    backend, why = choose_backend(Run(), 1 << 30)
    assert (backend.name, why) == ("numba", "CPU; for a GPU install gpu-dedup[cuda12] or [cuda13]")


def test_cupy_that_does_not_load(tmp_path, monkeypatch):
    """Its own process: a module that failed to load must not linger in this one."""
    (tmp_path / "cupy").mkdir()
    (tmp_path / "cupy" / "__init__.py").write_text("raise ImportError('libcudart.so.13: cannot open\\nmore')")
    code = (
        "from gpu_dedup.backend import choose_backend; from gpu_dedup.run import Run\n"
        "from gpu_dedup.errors import RunError\n"
        "try: choose_backend(Run(device='gpu'), 0)\n"
        "except RunError as error: print(error)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPO)])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(
        "CuPy is installed but does not load (libcudart.so.13: cannot open); pip install 'gpu-"
    )


def test_without_a_driver(standin):
    standin.driver_missing = True
    assert refused().startswith("no NVIDIA driver on this machine; install one (nvidia-smi must work")


def test_without_a_gpu(standin, monkeypatch):
    standin.reset(devices=0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert refused().startswith("the driver finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES (now '')")


def test_with_a_driver_older_than_cupy(standin, monkeypatch):
    runtime = importlib.import_module("cupy").cuda.runtime

    def too_old():
        raise runtime.CUDARuntimeError(35)

    monkeypatch.setattr(runtime, "getDeviceCount", too_old)
    monkeypatch.setattr(runtime, "driverGetVersion", lambda: 12040)
    monkeypatch.setattr(runtime, "runtimeGetVersion", lambda: 13000)
    text = refused()
    assert text.startswith("the driver knows CUDA 12.4, but this CuPy is made for CUDA 13.0; update the driver")
    assert "pip install 'gpu-dedup[cuda12]'" in text


def test_with_a_gpu_that_is_too_full(standin):
    standin.reset(memory=100 << 20)
    assert "has 100 MiB of 100 MiB free; at least 256 MiB are needed; end what else runs on it" in refused()


def test_with_a_gpu_that_is_too_old(standin, monkeypatch):
    runtime = importlib.import_module("cupy").cuda.runtime
    properties = {**runtime.getDeviceProperties(0), "major": 6, "minor": 1}
    monkeypatch.setattr(runtime, "getDeviceProperties", lambda index: properties)
    assert "has compute capability 6.1; 7.0 is the least that works" in refused()


def test_without_a_compiler(standin, monkeypatch):
    cupy = importlib.import_module("cupy")

    def broken(**_):
        raise OSError("libnvrtc.so.12: cannot open shared object file\nsecond line")

    monkeypatch.setattr(cupy, "RawModule", broken)
    text = refused()
    assert text.startswith(
        "GPU 0 does not run a small kernel (libnvrtc.so.12: cannot open shared object file); install NVRTC"
    )
    assert "pip install 'gpu-dedup[cuda12]'" in text


def test_with_a_gpu_that_adds_wrongly(standin):
    cuda = importlib.import_module("gpu_dedup.backend.cuda")
    standin.break_scan = True
    with pytest.raises(RunError, match=r"does not run a small kernel .*wrong sums"):
        cuda.cuda_backend(0)


def test_a_gpu_that_does_not_exist(standin):
    with pytest.raises(RunError, match="GPU 1 does not exist; there are 1, from 0 on"):
        importlib.import_module("gpu_dedup.backend.cuda").cuda_backend(1)


def test_the_second_gpu(standin):
    """Everything stays on the device that was chosen, whichever is current."""
    standin.reset(devices=2)
    cuda = importlib.import_module("gpu_dedup.backend.cuda")
    second = cuda.cuda_backend(1)
    assert second.facts.index == 1
    before = standin.devices[0].used
    tape = awkward_tape()
    same(second.digest(tape), host_backend("numpy").digest(tape))
    assert standin.devices[0].used == before


# -------------------------------------------------------------------------------------------------------- kernel cache


def test_kernel_cache_goes_where_it_can_be_written(tmp_path, monkeypatch):
    device = importlib.import_module("gpu_dedup.backend.cuda_device")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)
    assert device.kernel_cache() == str(tmp_path / "cache" / "gpu-dedup" / "cupy") == os.environ["CUPY_CACHE_DIR"]
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "own"))
    assert device.kernel_cache() == str(tmp_path / "own")
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(blocked / "x"))
    assert device.kernel_cache() == str(tmp_path / "cache" / "gpu-dedup" / "cupy")


def test_no_place_for_a_kernel_cache(monkeypatch):
    device = importlib.import_module("gpu_dedup.backend.cuda_device")
    importlib.import_module("gpu_dedup.backend.cuda").cuda_backend.cache_clear()
    monkeypatch.setenv("CUPY_CACHE_DIR", "/proc/nowhere")
    monkeypatch.setattr(device, "_usable", lambda folder: False)
    text = refused()
    assert text.startswith("no folder for compiled GPU kernels can be written (tried /proc/nowhere, ")
    assert "set CUPY_CACHE_DIR to one that can" in text


def test_every_kernel_is_compiled_before_threads_come(standin):
    """`warm` touches each kernel that a run may launch, so that no thread waits for a compiler."""
    gpu = opened()
    said: list[str] = []
    warm(gpu, said.append)
    assert gpu.note == said.append
    cuda = importlib.import_module("gpu_dedup.kernels.cuda")
    touched = {name for _, _, name in cuda._functions}
    own = {"ranks", "collide", "jaccard", "shingle_sets"}
    kernels = {
        name.split("(")[0].split()[-1]
        for stem in own
        for name in cuda.source(stem).split("__global__ void __launch_bounds__")[1:]
        for name in [name.partition(")")[2]]
    }
    # Buckets in segments come where a bucket is over the cap, the repeats of shingles are counted for SimHash's tfidf.
    lazy = {"segment_keys", "set_starts"}
    assert kernels - lazy <= touched


def test_what_a_sort_throws_is_out_of_memory_too(standin, monkeypatch):
    """Thrust's bad_alloc comes as a plain MemoryError; NumPy's own kind means that the host is full."""
    gpu = opened()
    said: list[str] = []
    gpu.note = said.append
    cupy = importlib.import_module("cupy")
    real, errors = cupy.argsort, [MemoryError("std::bad_alloc")]

    def sort(keys):
        if errors:
            raise errors.pop()
        return real(keys)

    monkeypatch.setattr(cupy, "argsort", sort)
    keys = np.array([4, 1, 4], np.uint64)
    assert gpu.buckets(keys, np.array([0, 3]))[0].tolist() == [0, 2]
    assert len(said) == 1
    with pytest.raises(MemoryError) as caught:
        np.empty(1 << 50, np.float64)
    errors.append(caught.value)
    with pytest.raises(MemoryError, match="Unable to allocate"):
        gpu.buckets(keys, np.array([0, 3]))


def test_a_broken_gpu_does_not_empty_the_cache_of_compiled_code(standin, monkeypatch, tmp_path):
    from gpu_dedup.kernels import jit

    gpu = opened()
    (tmp_path / "kernel.nbi").write_bytes(b"x")
    monkeypatch.setattr(jit, "CACHE_DIR", str(tmp_path))
    standin.break_scan = True
    with pytest.raises(RunError, match="wrong sums"):
        warm(gpu, lambda text: None)
    assert (tmp_path / "kernel.nbi").exists()
    assert not gpu.warmed
