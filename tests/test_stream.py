"""Methods bloom and lshbloom, whole runs: the sequential answer by sets, capacity, saved filters, memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpu_dedup import BloomFilter, Recipe, Report, Run, bloom, dedup
from gpu_dedup.backend import host_backend
from gpu_dedup.batch import Tape
from gpu_dedup.errors import InputError, RecipeError, RunError
from gpu_dedup.kernels import sketch_ref
from gpu_dedup.normalise import step_bits
from gpu_dedup.pipeline import settle
from gpu_dedup.recipe import PPM
from gpu_dedup.sketches import permutations

RUN = Run(threads=2, backend="numba", progress=False)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def ids(folder: Path, *names: str) -> list[int]:
    return [
        json.loads(line)["id"] for name in names for line in (folder / name).read_text(encoding="utf-8").splitlines()
    ]


def log(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "_gpu_dedup" / "removed.parquet").to_pylist()
    return rows


def seen_before(keys: list[Any]) -> list[int]:
    met: set[Any] = set()
    return [i for i, key in enumerate(keys) if key in met or met.add(key)]  # type: ignore[func-returns-value]


def some_rows(rng: np.random.Generator, n: int, kinds: int) -> list[dict[str, Any]]:
    picks = rng.integers(0, kinds, n).tolist()
    return [
        {"id": i, "text": f"text number {pick}", "url": f"https://x.example/{pick % 7}"} for i, pick in enumerate(picks)
    ]


RECIPE = Recipe(method="bloom", capacity=1000, fp_rate_ppb=1)


# ----------------------------------------------------------------------------------------------------------- the answer


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("batch", [1, 700, 1 << 20])
def test_rows_seen_before_go(tmp_path: Path, rng: np.random.Generator, backend: str, batch: int) -> None:
    rows = some_rows(rng, 300, 120)
    rows[5]["text"] = rows[9]["text"] = ""
    a, b = write(tmp_path / "in" / "a.jsonl", rows[:170]), write(tmp_path / "in" / "b.jsonl", rows[170:])
    out = tmp_path / "out"
    report = dedup([a, b], out, RECIPE, Run(threads=2, backend=backend, batch_bytes=batch, progress=False))
    gone = seen_before([row["text"] for row in rows])
    kept = [i for i in range(300) if i not in set(gone)]
    assert ids(out, "a.jsonl", "b.jsonl") == kept
    found = log(out)
    assert [(entry["file"], entry["row"]) for entry in found] == [
        ("a.jsonl", i) if i < 170 else ("b.jsonl", i - 170) for i in gone
    ]
    for entry in found:
        assert entry["reason"] == "bloom"
        assert entry["guarantee"] == "probabilistic"
        assert entry["action"] == "remove"
        for name in ("kept_file", "kept_row", "kept_id", "similarity", "shared", "union", "witness_kept"):
            assert entry[name] is None
    assert report.counts.by_reason == {
        "exact": 0, "near": 0, "exact+near": 0, "no-text": 0, "bad-row": 0, "bloom": len(gone), "key": 0
    }  # fmt: skip
    assert report.filter is not None
    assert (report.filter.held, report.filter.asked, report.filter.before) == (len(kept), 300, 0)
    assert report.filter.wrong < 1e-6
    # The same rows stay as by classes.
    dedup([a, b], tmp_path / "exact", Recipe(method="exact"), RUN)
    assert ids(tmp_path / "exact", "a.jsonl", "b.jsonl") == kept
    assert Report.from_dict(json.loads(report.to_json())) == report


def test_the_same_answer_where_chance_hits_abound(tmp_path: Path, rng: np.random.Generator) -> None:
    """A filter far over its capacity: what goes by chance is the same for any backend, batch and number of threads."""
    path = write(tmp_path / "a.jsonl", some_rows(rng, 3000, 2500))
    recipe = Recipe(method="bloom", capacity=500, fp_rate_ppb=10_000_000)
    results = []
    for number, (backend, threads, batch) in enumerate(
        [("numpy", 1, 1 << 20), ("numba", 1, 1), ("numba", 3, 5000), ("numba", 2, 1 << 20)]
    ):
        out = tmp_path / str(number)
        run = Run(backend=backend, threads=threads, batch_bytes=batch, on_full="warn", progress=False)
        report = dedup(path, out, recipe, run)
        results.append((ids(out, "a.jsonl"), report.to_dict()["result"]))
        assert any("over its capacity 500" in warning for warning in report.warnings)
    assert all(result == results[0] for result in results[1:])
    true = 3000 - len(seen_before([row["text"] for row in map(json.loads, path.read_text().splitlines())]))
    assert len(results[0][0]) < true - 100
    found = results[0][1]["filter"]
    assert 0.8 < found["wrong"] / (true - len(results[0][0])) < 1.25
    assert (found["asked"], found["new"]) == (3000, len(results[0][0]))
    assert "rows, it is expected, went although they were new" in report.summary()
    assert f"3,000  rows were looked up; {found['new']:,} were new to it" in report.summary()


@pytest.mark.parametrize("method", ["bloom", "lshbloom"])
def test_what_goes_by_chance_far_over_capacity(tmp_path: Path, method: str, rng: np.random.Generator) -> None:
    """No two rows are alike: all that go go by chance. The filter is full long before the end."""
    words = rng.integers(0, 1 << 40, (2000, 8))
    rows = [{"id": i, "text": " ".join(f"{word:x}" for word in line)} for i, line in enumerate(words.tolist())]
    path = write(tmp_path / "a.jsonl", rows)
    recipe = Recipe(method=method, capacity=100, fp_rate_ppb=10_000_000)
    run = Run(backend="numba", on_full="warn", max_removed_ppm=PPM, dry_run=True, progress=False)
    report = dedup(path, None, recipe, run)
    assert report.filter is not None
    went = 2000 - report.counts.kept
    assert went > 1000
    assert 0.85 * went < report.filter.wrong <= went
    assert f"{report.filter.wrong:,.0f}  rows, it is expected, went" in report.summary()


def test_what_goes_by_chance_is_not_what_copies_are(tmp_path: Path, rng: np.random.Generator) -> None:
    """Half of the rows are copies, in a filter that is over capacity by half."""
    rows = [{"id": i, "text": f"line {i % 1500}"} for i in range(3000)]
    path = write(tmp_path / "a.jsonl", rows)
    recipe = Recipe(method="bloom", capacity=1000, fp_rate_ppb=50_000_000)
    report = dedup(path, None, recipe, Run(backend="numba", on_full="warn", dry_run=True, progress=False))
    assert report.filter is not None
    assert 0.6 < report.filter.wrong / (1500 - report.counts.kept) < 1.6


def test_a_saved_filter_that_is_full_says_what_works(tmp_path: Path) -> None:
    saved = str(tmp_path / "f")
    recipe = Recipe(method="bloom", capacity=20)
    run = Run(bloom=saved, backend="numba", progress=False)
    for name in ("a", "b"):
        write(tmp_path / f"{name}.jsonl", [{"id": i, "text": f"{name} {i}"} for i in range(15)])
    dedup(tmp_path / "a.jsonl", tmp_path / "1", recipe, run)
    words = "is as large as it was made: make a new filter of a larger --capacity from all inputs, .* --on-full warn"
    with pytest.raises(RunError, match=words):
        dedup(tmp_path / "b.jsonl", tmp_path / "2", recipe, run)
    more = Run(bloom=saved, on_full="warn", backend="numba", progress=False)
    assert dedup(tmp_path / "b.jsonl", tmp_path / "2", recipe, more).counts.kept == 15
    both = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    new = Run(bloom=str(tmp_path / "g"), backend="numba", progress=False)
    assert dedup(both, tmp_path / "3", recipe.with_(capacity=40), new).counts.kept == 30


def test_a_key_field(tmp_path: Path, rng: np.random.Generator) -> None:
    rows = some_rows(rng, 60, 40)
    del rows[3]["text"]  # nobody asks for it
    path = write(tmp_path / "a.jsonl", rows)
    report = dedup(path, tmp_path / "out", RECIPE.with_(key_field="url"), RUN)
    gone = set(seen_before([row["url"] for row in rows]))
    assert ids(tmp_path / "out", "a.jsonl") == [i for i in range(60) if i not in gone]
    assert "exact copies of url" in report.summary()
    rows[4]["url"] = None
    with pytest.raises(InputError, match=r"a\.jsonl:5"):
        dedup(write(path, rows), tmp_path / "bad", RECIPE.with_(key_field="url"), RUN)


def test_flags_bad_rows_and_empty_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"id": 0, "text": "x"}\n\n{"id": 2}\n{"id": 3, "text": "x"}\n{"id": 4, "text": ""}\n{"id": 5, "text": ""}\n'
    )
    recipe = RECIPE.with_(on_bad_row="skip", action="flag")
    report = dedup(path, tmp_path / "flag", recipe, RUN)
    assert ids(tmp_path / "flag", "a.jsonl") == [0, 3, 4, 5]
    assert [(e["row"], e["reason"], e["action"]) for e in log(tmp_path / "flag")] == [
        (2, "bad-row", "remove"), (3, "bloom", "flag"), (5, "bloom", "flag"),
    ]  # fmt: skip
    assert (report.counts.flagged, report.counts.no_text, report.counts.blank) == (2, 2, 1)
    dedup(path, tmp_path / "drop", RECIPE.with_(on_bad_row="keep", on_no_text="drop"), RUN)
    assert [(e["row"], e["reason"]) for e in log(tmp_path / "drop")] == [(3, "bloom"), (4, "no-text"), (5, "no-text")]


def test_a_bad_file_leaves_nothing_in_the_filter(tmp_path: Path) -> None:
    """Rows of a file that breaks off are not seen: or their copies in a later file would go and nothing stayed."""
    import gzip

    rows = [{"id": i, "text": f"t{i}"} for i in range(2000)]
    whole = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    (tmp_path / "a.jsonl.gz").write_bytes(whole[:-20])
    write(tmp_path / "b.jsonl", rows)
    run = Run(threads=2, backend="numba", batch_bytes=4096, progress=False)
    inputs = [tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl"]
    report = dedup(inputs, tmp_path / "out", RECIPE.with_(on_bad_file="skip", capacity=3000), run)
    assert report.inputs[0].problem
    assert ids(tmp_path / "out", "b.jsonl") == list(range(2000))


# ------------------------------------------------------------------------------------------------------------- capacity


def test_distinct_rows_within_capacity_stay(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"id": i, "text": f"unique line number {i * i}"} for i in range(2000)])
    report = dedup(path, tmp_path / "out", Recipe(method="bloom", capacity=4000, fp_rate_ppb=1_000_000), RUN)
    assert report.counts.kept >= 1990
    assert report.filter is not None
    assert report.filter.wrong < 0.1
    assert report.warnings == []


def test_over_capacity_stops_with_the_row(tmp_path: Path) -> None:
    rows = [{"id": i, "text": f"unique line number {i // 2}"} for i in range(2000)]
    path = write(tmp_path / "a.jsonl", rows)
    recipe = Recipe(method="bloom", capacity=100, fp_rate_ppb=10_000_000)
    # Where it stops follows from the filter alone.
    filter = BloomFilter(100, "0.01")
    new = filter.add_if_new([row["text"] for row in rows])
    line = int(np.flatnonzero(new)[100]) + 1
    for batch in (1, 1 << 20):
        with pytest.raises(RunError, match=rf"a\.jsonl:{line}: more than --capacity 100 .* --on-full warn") as caught:
            dedup(path, tmp_path / "out", recipe, Run(backend="numba", batch_bytes=batch, progress=False))
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists()


def test_what_no_filter_can_be(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"id": 0, "text": "x"}])
    for recipe, run, words in (
        (Recipe(method="bloom"), RUN, "needs --capacity N"),
        (Recipe(method="lshbloom"), RUN, "needs --capacity N"),
        (RECIPE.with_(capacity=10**10), Run(memory=10**9, progress=False), "over --memory 1 GB"),
        (RECIPE.with_(capacity=2**61), RUN, "lower --capacity"),
        (Recipe(method="lshbloom", capacity=9, fp_rate_ppb=16), RUN, "for each of 17 bands"),
        (RECIPE.with_(limit=1), Run(bloom="f", progress=False), "limit stops inside a file"),
        (Recipe(), Run(bloom="f", progress=False), "bloom means nothing with method minhash"),
        (Recipe(method="exact"), Run(on_full="warn", progress=False), "on-full means nothing with method exact"),
        (RECIPE, Run(audit=5, progress=False), "drop --audit"),
        (RECIPE, Run(keep_work=True, progress=False), "keeps nothing of a row"),
        (Recipe(method="lshbloom", capacity=9), Run(audit=5, progress=False), "knows no pairs"),
    ):
        with pytest.raises((RecipeError, RunError), match=words):
            dedup(path, tmp_path / "out", recipe, run)
    for values, words in (
        ({"method": "bloom", "keep": "longest"}, "keep means nothing .* keeps the first copy"),
        ({"method": "bloom", "verify": "none"}, "verify means nothing"),
        ({"method": "lshbloom", "min_shingles": 3}, "min-shingles means nothing"),
        ({"method": "lshbloom", "cluster": "connected"}, "keeps the first copy"),
        ({"method": "lshbloom", "key_field": "url"}, "use method bloom"),
        ({"method": "bloom", "key_field": "url", "key_action": "flag"}, "drop key-action, and use action"),
        ({"method": "bloom", "fp_rate_ppb": 0}, "fp-rate 0 is outside"),
    ):
        with pytest.raises(RecipeError, match=words):
            Recipe(**values)


# -------------------------------------------------------------------------------------------------------- saved filters


def test_go_on_from_a_saved_filter(tmp_path: Path, rng: np.random.Generator) -> None:
    rows = some_rows(rng, 300, 120)
    first, second = write(tmp_path / "a.jsonl", rows[:170]), write(tmp_path / "b.jsonl", rows[170:])
    saved = str(tmp_path / "seen.bloom")
    run = Run(threads=2, backend="numba", bloom=saved, progress=False)
    dedup(first, tmp_path / "1", RECIPE, run)
    report = dedup(second, tmp_path / "2", RECIPE, run)
    dedup([first, second], tmp_path / "both", RECIPE, RUN)
    assert ids(tmp_path / "1", "a.jsonl") + ids(tmp_path / "2", "b.jsonl") == ids(
        tmp_path / "both", "a.jsonl", "b.jsonl"
    )
    assert report.filter is not None
    assert 0 < report.filter.before < report.filter.held
    assert sorted(BloomFilter.load(saved).inputs.values()) == ["a.jsonl", "b.jsonl"]

    # The same input again: refused, and the filter is as it was.
    before, counts = Path(saved).read_bytes(), BloomFilter.load(saved).counts
    copy = tmp_path / "other name.jsonl"
    copy.write_bytes(first.read_bytes())
    for path in (first, copy):
        with pytest.raises(RunError, match=r"holds the rows of this file already \(as a.jsonl\).*--again"):
            dedup(path, tmp_path / "3", RECIPE, run)
    assert not (tmp_path / "3").exists()
    report = dedup(first, tmp_path / "4", RECIPE, Run(bloom=saved, again=True, progress=False))
    assert report.counts.kept == 0
    assert BloomFilter.load(saved).counts == counts  # rows that were seen change nothing
    assert Path(saved).read_bytes() == before


def test_a_file_without_rows_is_no_file_that_was_seen(tmp_path: Path) -> None:
    saved = str(tmp_path / "f")
    run = Run(bloom=saved, backend="numba", progress=False)
    table = pa.table({"id": pa.array([], pa.int64()), "text": pa.array([], pa.string())})
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "empty.jsonl").write_bytes(b"")
        pq.write_table(table, folder / "empty.parquet")
        write(folder / "rows.jsonl", [{"id": 0, "text": name}])
        report = dedup([str(folder)], tmp_path / f"out {name}", RECIPE, run)
        assert report.counts.kept == 1
    assert sorted(BloomFilter.load(saved).inputs.values()) == ["rows.jsonl", "rows.jsonl"]


def test_a_filter_of_other_keys_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"id": 0, "text": "x"}])
    saved = str(tmp_path / "f")
    run = Run(bloom=saved, backend="numba", progress=False)
    dedup(path, tmp_path / "out", RECIPE, run)
    for recipe, words in (
        (RECIPE.with_(capacity=999), "capacity 999 here, there 1,000"),
        (RECIPE.with_(fp_rate_ppb=2), "fp-rate 0.000000002 here, there 0.000000001"),
        (RECIPE.with_(normalize=("lower",)), "normalize"),
        (RECIPE.with_(strip=("x",)), "keys of strip"),
        (RECIPE.with_(key_field="text"), "keys of kind 'key-field' here, there 'texts'"),
        (Recipe(method="lshbloom", capacity=1000, fp_rate_ppb=17), "method lshbloom here, there bloom"),
    ):
        with pytest.raises(RecipeError, match=words) as caught:
            dedup(path, tmp_path / "no", recipe, run)
        assert "\n" not in str(caught.value)
    with pytest.raises(RunError, match=r"there is no folder .*; make it"):
        dedup(path, tmp_path / "no", RECIPE, Run(bloom=str(tmp_path / "none" / "f"), progress=False))
    with pytest.raises(InputError, match="Is a directory"):
        dedup(path, tmp_path / "no", RECIPE, Run(bloom=str(tmp_path), progress=False))
    Path(saved).write_bytes(b"something else")
    with pytest.raises(InputError, match="not a Bloom filter"):
        dedup(path, tmp_path / "no", RECIPE, run)
    assert not (tmp_path / "no").exists()


def test_the_filter_is_saved_with_the_output_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl", [{"id": 0, "text": "x"}])
    saved = tmp_path / "f"
    run = Run(bloom=str(saved), backend="numba", progress=False)
    dedup(path, None, RECIPE, Run(bloom=str(saved), backend="numba", progress=False, dry_run=True))
    assert not saved.exists()
    from gpu_dedup.write import OutputFolder

    def fail(self: Any, report: Any) -> None:
        raise RuntimeError("no output")

    with monkeypatch.context() as patch:
        patch.setattr(OutputFolder, "commit", fail)
        with pytest.raises(RuntimeError, match="no output"):
            dedup(path, tmp_path / "out", RECIPE, run)
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl"]
    dedup(path, tmp_path / "out", RECIPE, run)
    assert saved.exists()


# ------------------------------------------------------------------------------------------------------------- lshbloom


def band_sets(texts: list[str], recipe: Recipe) -> list[list[int] | None]:
    """Band keys of each text by the definition's kernels; None for a text without a sketch."""
    assert recipe.bands is not None
    assert recipe.rows is not None
    numpy = host_backend("numpy")
    tape = numpy.normalise(Tape.of(texts), step_bits(recipe.steps))
    a, b = permutations(recipe.seed, recipe.slots)
    every = np.arange(len(texts), dtype=np.int64)
    spec = recipe.spec
    signatures, _, kept = sketch_ref.sketch(
        tape.blob, tape.offsets, every, spec.unit_code, spec.n, np.zeros(0, np.uint64), a, b
    )
    keys = numpy.band_keys(signatures, recipe.bands, recipe.rows).tolist()
    return [own if count else None for own, count in zip(keys, kept.tolist(), strict=True)]


@pytest.mark.parametrize(("backend", "batch"), [("numpy", 1 << 20), ("numba", 1), ("numba", 4000)])
def test_lshbloom_is_a_set_for_each_band(tmp_path: Path, rng: np.random.Generator, backend: str, batch: int) -> None:
    words = [f"w{i}" for i in range(400)]
    texts = []
    for i in range(80):
        base = [words[j] for j in np.random.default_rng(i % 25).integers(0, 400, 60)]
        for j in rng.integers(0, 60, int(rng.integers(0, 6))):
            base[j] = words[int(rng.integers(0, 400))]
        texts.append(" ".join(base))
    texts[7] = texts[50] = "..."
    texts[8] = ""
    recipe = settle(Recipe(method="lshbloom", capacity=1000, fp_rate_ppb=100, num_perm=64, recall_ppm=900_000))
    met: list[set[int]] = [set() for _ in range(recipe.bands or 0)]
    gone = []
    for i, own in enumerate(band_sets(texts, recipe)):
        if own is None:
            continue
        if any(key in band for key, band in zip(own, met, strict=True)):
            gone.append(i)
        for key, band in zip(own, met, strict=True):  # also of a row that goes
            band.add(key)
    assert 8 < len(gone) < 60
    path = write(tmp_path / "a.jsonl", [{"id": i, "text": text} for i, text in enumerate(texts)])
    out = tmp_path / "out"
    report = dedup(path, out, recipe, Run(threads=2, backend=backend, batch_bytes=batch, progress=False))
    assert ids(out, "a.jsonl") == [i for i in range(80) if i not in set(gone)]
    assert {(e["reason"], e["guarantee"]) for e in log(out)} == {("bloom", "probabilistic")}
    assert report.filter is not None
    assert report.filter.tables == recipe.bands
    assert report.counts.no_text == 3
    assert len(report.forecast) == 10
    assert report.collisions is None
    shape, tables = bloom.shape_of(recipe)
    assert report.filter.bytes == shape.nbytes * tables


def test_lshbloom_goes_on_and_guards(tmp_path: Path) -> None:
    texts = ["one two three four five six seven eight nine ten"] * 1500
    path = write(tmp_path / "a.jsonl", [{"id": i, "text": text} for i, text in enumerate(texts)])
    recipe = Recipe(method="lshbloom", capacity=2000)
    with pytest.raises(RunError, match="--max-removed"):
        dedup(path, tmp_path / "out", recipe, RUN)
    run = Run(backend="numba", bloom=str(tmp_path / "f"), max_removed_ppm=1_000_000, progress=False)
    dedup(path, tmp_path / "out", recipe, run)
    assert ids(tmp_path / "out", "a.jsonl") == [0]
    near = write(tmp_path / "b.jsonl", [{"id": 0, "text": "ONE  two three four five six seven eight nine ten"}])
    assert dedup(near, tmp_path / "2", recipe, run).counts.kept == 0
    full = Recipe(method="lshbloom", capacity=1)
    other = write(tmp_path / "c.jsonl", [{"id": i, "text": f"some text about the number {i}"} for i in range(5)])
    with pytest.raises(RunError, match="more than --capacity 1 different rows have come"):
        dedup(other, tmp_path / "3", full, RUN)


# -------------------------------------------------------------------------------------------------------- other ways in


def test_texts_in_memory(tmp_path: Path) -> None:
    from gpu_dedup import dedup_texts

    run = Run(bloom=str(tmp_path / "f"), backend="numba", progress=False)
    assert dedup_texts(["a", "b", "a"], RECIPE, run).keep.tolist() == [True, True, False]
    assert dedup_texts(["c", "b"], RECIPE, run).keep.tolist() == [True, False]
    assert len(BloomFilter.load(tmp_path / "f")) == 3


def test_processes_make_no_difference(tmp_path: Path, rng: np.random.Generator) -> None:
    paths = [write(tmp_path / f"{i}.jsonl", some_rows(rng, 50, 60)) for i in range(3)]
    results = []
    for processes in (1, 3):
        report = dedup(paths, tmp_path / f"out{processes}", RECIPE, RUN, processes=processes)
        results.append(report.to_dict()["result"])
    assert results[0] == results[1]


# --------------------------------------------------------------------------------------------------------------- memory


def test_rows_leave_only_bytes(tmp_path: Path) -> None:
    """No digest, length or witness of a row is held: a byte of each is."""
    from gpu_dedup.pipeline.stream import stream_outcome

    status = np.zeros(100_000, np.uint8)
    outcome, _ = stream_outcome(RECIPE, status, np.zeros(100_000, np.uint8))
    arrays = [value for value in vars(outcome).values() if isinstance(value, np.ndarray)]
    assert sum(array.nbytes for array in arrays) == 100_000
    assert outcome.reason.nbytes == 100_000


# ------------------------------------------------------------------------------------------------- killed at the end


def test_a_filter_whose_run_was_killed_before_it_had_its_name_gets_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, saved = write(tmp_path / "in.jsonl", [{"id": i, "text": f"text {i}"} for i in range(20)]), tmp_path / "f"
    empty = write(tmp_path / "none.jsonl", [])  # without rows, so that the filter does not list it
    inputs = [str(source), str(empty)]
    run = Run(threads=1, backend="numpy", bloom=str(saved))
    code = (
        "import os, sys; real = os.replace; *inputs, out, saved = sys.argv[1:]\n"
        "def killed(old, new): os._exit(9) if os.fsdecode(new) == saved else real(old, new)\n"
        "os.replace = killed\n"
        "from gpu_dedup import Recipe, Run, dedup\n"
        "recipe = Recipe(method='bloom', capacity=1000, fp_rate_ppb=1)\n"
        "dedup(inputs, out, recipe, Run(threads=1, backend='numpy', bloom=saved))\n"
    )
    command = [sys.executable, "-c", code, *inputs, str(tmp_path / "out"), str(saved)]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 9
    assert (tmp_path / "out" / "_gpu_dedup" / "report.json").exists()
    assert not saved.exists()
    dedup(inputs, str(tmp_path / "out"), RECIPE, run)
    assert "already done" in capfd.readouterr().err
    assert BloomFilter.load(saved).counts == [20]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "in.jsonl", "none.jsonl", "out"]
    dedup(inputs, str(tmp_path / "out"), RECIPE, run)  # and once more, as it has its name now
    assert "already done" in capfd.readouterr().err
    more = write(tmp_path / "more.jsonl", [{"id": i, "text": f"text {i}"} for i in range(15, 25)])
    dedup([str(more)], str(tmp_path / "out2"), RECIPE, run)
    assert ids(tmp_path / "out2", "more.jsonl") == [20, 21, 22, 23, 24]


def test_what_gone_processes_left_beside_a_filter_goes(tmp_path: Path) -> None:
    source, saved = write(tmp_path / "in.jsonl", [{"id": 1, "text": "a"}]), tmp_path / "f"
    old, new, other = (tmp_path / name for name in ("f.4194305.tmp", "f.4194306.tmp", "f.notes.tmp"))
    for path in (old, new, other):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    os.utime(other, (1, 1))
    dedup(
        [str(source)], str(tmp_path / "out"), RECIPE, Run(threads=1, backend="numpy", bloom=str(saved), progress=False)
    )
    assert not old.exists()
    assert new.exists()
    assert other.exists()


@pytest.mark.parametrize("name", ["out/in.jsonl", "out/_gpu_dedup/report.json", "out/new"])
def test_files_in_the_output_folder_are_refused_before_any_work(tmp_path: Path, name: str) -> None:
    source = write(tmp_path / "in.jsonl", [{"id": 1, "text": "a"}])
    place = str(tmp_path / name)
    with pytest.raises(RunError, match=r"bloom .* lies in the output folder; name a file outside"):
        dedup([str(source)], str(tmp_path / "out"), RECIPE, Run(bloom=place))
    tfidf = Recipe(method="simhash", weights="tfidf")
    with pytest.raises(RunError, match=r"save-df-table .* lies in the output folder; name a file outside"):
        dedup([str(source)], str(tmp_path / "out"), tfidf, Run(save_df_table=place))
    assert not (tmp_path / "out").exists()
