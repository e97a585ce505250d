"""A run that was stopped goes on: from parts of the first pass, complete output files and half-done renames; and the
result is that of a run that nothing disturbed."""

from __future__ import annotations

import datetime
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import corpora
import harness
import numpy as np
import pytest

from gpu_dedup.backend import HostBackend
from gpu_dedup.batch import MISSING
from gpu_dedup.checkpoint import Checkpoint, DamagedPartError, PartFile, write_part
from gpu_dedup.errors import InputError, OutputError, RunError
from gpu_dedup.pipeline import dedup
from gpu_dedup.pipeline.resume import pack, unpack
from gpu_dedup.recipe import Recipe
from gpu_dedup.report import RemovalLog
from gpu_dedup.run import Run

MANY = int(os.environ.get("GPU_DEDUP_FAULTS", "0"))  # kills in the long mode; a dozen otherwise
SETTINGS = {"checkpoint": 6000, "batch_bytes": 2000, "backend": "numpy"}


def words(rng: random.Random, count: int) -> str:
    return " ".join(f"w{rng.randrange(4000)}" for _ in range(count))


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """Four files, of one of which (gzip) all rows come through; copies and near-copies across files."""
    rng = random.Random(7)
    texts = [words(rng, 40) for _ in range(60)]
    rows = []
    for number in range(120):
        text = texts[number % 60]
        if number >= 90:  # a near copy: one word of forty is another
            text = text.replace(text.split()[20], "changed", 1)
        rows.append({"id": number, "text": text, "score": (number * 7) % 13})
    rows[17] = {"id": 17, "text": None}
    folder = tmp_path / "in"
    paths = []
    for name, part in (("a.jsonl", rows[:50]), ("b.jsonl.gz", rows[50:60]), ("c.parquet", rows[60:80])):
        paths.append(harness.write_rows(folder / name, part))
    paths.append(harness.write_rows(folder / "d.jsonl", rows[80:]))
    return paths


RECIPE = Recipe(on_bad_row="skip", keep="max:score")


def outcome(out: Path) -> Any:
    """All that must not differ: bytes of lines, tables, the log, the result part of the report, the names there are."""
    names = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    # Killed between the report and the end, a run is a finished one; its lock file, which locks nothing, stays.
    names = [name for name in names if name != "_gpu_dedup/lock"]
    files = {name: harness.read_rows(out / name) for name in names if not name.startswith("_gpu_dedup")}
    report = json.loads((out / "_gpu_dedup" / "report.json").read_text())
    return names, files, harness.removed_rows(out), report["result"]


def interrupted(monkeypatch: pytest.MonkeyPatch, at: Callable[[], bool]) -> None:
    """Fail like Ctrl-C in the first pass once `at` says so."""
    real = HostBackend.sketch

    def sketch(*args: Any) -> Any:
        if at():
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(HostBackend, "sketch", sketch)


def parts_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("**/part-*.gdp"))


# ---- part files ------------------------------------------------------------------------------------------------------


def test_a_part_gives_back_what_was_written(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(7, dtype=np.uint8), "b": np.arange(12, dtype=np.uint64).reshape(6, 2),
        "c": np.zeros((0, 5), np.int64),
    }  # fmt: skip
    path = str(tmp_path / "part.gdp")
    size = write_part(path, {"k": [1, "é"]}, {"f": None}, arrays)
    assert os.path.getsize(path) == size
    part = PartFile(path)
    assert (part.key, part.facts, part.nbytes) == ({"k": [1, "é"]}, {"f": None}, size)
    for name, array in arrays.items():
        found = part.read(name)
        assert found.dtype == array.dtype
        assert found.shape == array.shape
        np.testing.assert_array_equal(found, array)
    assert "d" not in part
    assert os.listdir(tmp_path) == ["part.gdp"]


def test_every_cut_and_every_altered_byte_of_a_part_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "part.gdp"
    write_part(str(path), {"k": 1}, [2], {"a": np.arange(70, dtype=np.uint8), "b": np.arange(3, dtype=np.int64)})
    good = path.read_bytes()
    # Bytes that stand for nothing: what is left of the head, and the gaps before arrays begin.
    idle = {*range(40, 64), *range(64 + 70, 64 + 128), *range(64 + 128 + 24, 64 + 192), *range(12, 16)}
    for at in range(len(good)):
        path.write_bytes(good[:at])
        with pytest.raises(DamagedPartError):
            PartFile(str(path)).check()
        if at not in idle:
            path.write_bytes(good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :])
            with pytest.raises(DamagedPartError):
                PartFile(str(path)).check()
    path.write_bytes(good + b"x")
    with pytest.raises(DamagedPartError):
        PartFile(str(path))
    path.write_bytes(good[:8] + struct.pack("<I", 99) + good[12:])
    with pytest.raises(DamagedPartError, match="version"):
        PartFile(str(path))


def test_values_of_a_field_survive_and_nothing_else_is_made_of_bytes() -> None:
    values = [
        1, 2**80, -1.5, "text \ud800", None, MISSING, True, b"\x00\xff", Decimal("1.50"), datetime.date(2026, 1, 2),
        datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc), datetime.time(1, 2),
        datetime.timedelta(days=1), [1, "x"], {"a": None},
    ]  # fmt: skip
    data = pack(values)
    assert data is not None
    found = unpack(data)
    assert found == values
    assert found[5] is MISSING
    assert [type(value) for value in found] == [type(value) for value in values]
    assert pack([1, Path("x")]) is None
    import pickle

    evil = np.frombuffer(pickle.dumps([os.system]), np.uint8)
    with pytest.raises(pickle.UnpicklingError, match="no value of a field"):
        unpack(evil)


# ---- going on --------------------------------------------------------------------------------------------------------


def test_after_ctrl_c_the_finished_parts_are_not_sketched_again(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.run(inputs, tmp_path / "undisturbed", RECIPE, **SETTINGS)
    out = tmp_path / "out"
    rows_sketched: list[int] = []
    real = HostBackend.sketch
    limit = 50

    def sketch(self: HostBackend, tape: Any, select: Any, *args: Any) -> Any:
        if sum(rows_sketched) >= limit:
            raise KeyboardInterrupt
        rows_sketched.append(len(select))
        return real(self, tape, select, *args)

    monkeypatch.setattr(HostBackend, "sketch", sketch)
    with pytest.raises(KeyboardInterrupt):
        harness.run(inputs, out, RECIPE, threads=1, **SETTINGS)
    assert parts_of(out)
    assert not (out / "a.jsonl").exists()
    first, limit = sum(rows_sketched), 10**9
    rows_sketched.clear()
    again = harness.run(inputs, out, RECIPE, threads=1, **SETTINGS)
    assert any("going on from" in note for note in again.report["machine"]["notes"])
    monkeypatch.setattr(HostBackend, "sketch", real)
    total = json.loads((out / "_gpu_dedup" / "report.json").read_text())["result"]["collisions"]["documents"]
    assert 0 < sum(rows_sketched) <= total - first + 30, "at most what was not in a part when it stopped"
    assert outcome(out) == outcome(tmp_path / "undisturbed")
    assert not (out / "_gpu_dedup" / "work").exists()


@pytest.fixture
def left(inputs: list[Path], tmp_path: Path) -> Path:
    """A work folder with all parts of the first pass, kept."""
    work = tmp_path / "work"
    harness.run(inputs, tmp_path / "first", RECIPE, work_dir=str(work), keep_work=True, **SETTINGS)
    return work


def go_on(inputs: list[Path], tmp_path: Path, recipe: Recipe = RECIPE, name: str = "again", **settings: Any) -> Any:
    given = {**SETTINGS, "work_dir": str(tmp_path / "work"), "keep_work": True, **settings}
    harness.run(inputs, tmp_path / name, recipe, **given)
    return outcome(tmp_path / name)


def count_sketched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    rows: list[int] = []
    real = HostBackend.sketch

    def sketch(self: HostBackend, tape: Any, select: Any, *args: Any) -> Any:
        rows.append(len(select))
        return real(self, tape, select, *args)

    monkeypatch.setattr(HostBackend, "sketch", sketch)
    return rows


@pytest.mark.usefixtures("left")
@pytest.mark.parametrize(
    "change",
    [
        {}, {"threshold_ppm": 600_000}, {"threshold_ppm": 950_000}, {"keep": "first"}, {"keep": "longest"},
        {"keep": "min:id"}, {"cluster": "connected"}, {"bands": 30, "rows": 4}, {"verify": "signature"},
        {"action": "flag"}, {"on_bad_row": "keep"}, {"recall_ppm": 900_000},
    ],
    ids=str,
)  # fmt: skip
def test_another_threshold_bands_or_keeper_costs_no_hashing(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    recipe = RECIPE.with_(**change)
    harness.run(inputs, tmp_path / "plain", recipe, **SETTINGS)
    rows = count_sketched(monkeypatch)
    assert go_on(inputs, tmp_path, recipe) == outcome(tmp_path / "plain")
    assert sum(rows) == 0


@pytest.mark.usefixtures("left")
@pytest.mark.parametrize("change", [{"shingle": "char:7"}, {"seed": 1}, {"normalize": ("lower",)}, {"min_shingles": 5}])
def test_what_changes_sketches_makes_them_anew(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    recipe = RECIPE.with_(**change)
    harness.run(inputs, tmp_path / "plain", recipe, **SETTINGS)
    rows = count_sketched(monkeypatch)
    assert go_on(inputs, tmp_path, recipe) == outcome(tmp_path / "plain")
    assert sum(rows) > 50


def test_a_part_that_was_cut_or_altered_is_done_again_and_no_other(
    inputs: list[Path], left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = outcome(tmp_path / "first")
    parts = parts_of(left)
    assert len(parts) > 4
    before = {path: path.read_bytes() for path in parts}
    rows = count_sketched(monkeypatch)
    for number, harm in enumerate(
        (
            lambda data: data[:-3],
            lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
            lambda data: b"",
            lambda data: data + b"\0",
        )
    ):
        victim = parts[(number * 2 + 1) % len(parts)]
        victim.write_bytes(harm(before[victim]))
        rows.clear()
        assert go_on(inputs, tmp_path, name=f"again-{number}") == whole
        assert 0 < sum(rows) <= 40
        others = [path for path in parts if path != victim]
        assert all(path.read_bytes() == before[path] for path in others)
    parts[2].unlink()
    rows.clear()
    assert go_on(inputs, tmp_path, name="again-gone") == whole
    assert 0 < sum(rows) <= 40


@pytest.mark.usefixtures("left")
def test_a_file_that_changed_is_read_anew_and_no_other(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = inputs[3].read_bytes().splitlines(True)
    inputs[3].write_bytes(b"".join([*lines[:5], corpora.line({"id": "new", "text": "one two three four five six"})]))
    harness.run(inputs, tmp_path / "plain", RECIPE.with_(keep="first"), **SETTINGS)
    rows = count_sketched(monkeypatch)
    assert go_on(inputs, tmp_path, RECIPE.with_(keep="first")) == outcome(tmp_path / "plain")
    assert 0 < sum(rows) <= 30  # of d.jsonl, and what shares a part with it


@pytest.mark.usefixtures("left")
def test_other_batches_go_on_from_files_that_were_finished(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = count_sketched(monkeypatch)
    assert go_on(inputs, tmp_path, batch_bytes=777) == outcome(tmp_path / "first")
    assert sum(rows) == 0


def test_work_on_other_input_is_refused_and_fresh_gives_it_up(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    count = iter(range(1000))
    with monkeypatch.context() as patch:
        interrupted(patch, lambda: next(count) > 8)
        with pytest.raises(KeyboardInterrupt):
            harness.run(inputs, out, RECIPE, threads=1, **SETTINGS)
    with pytest.raises(RunError, match=r"unfinished work on other input.*--fresh"):
        harness.run(inputs[:2], out, RECIPE, **SETTINGS)
    assert parts_of(out), "it is still there"
    rows = count_sketched(monkeypatch)
    harness.run(inputs[:2], out, RECIPE, fresh=True, **SETTINGS)
    assert sum(rows) > 0
    assert not (out / "_gpu_dedup" / "work").exists()


def test_two_runs_do_not_share_a_work_folder(inputs: list[Path], left: Path, tmp_path: Path) -> None:
    held = Checkpoint(str(next(left.iterdir())), 1, [str(path) for path in inputs], 1)
    try:
        with pytest.raises(RunError, match="another run is at work"):
            go_on(inputs, tmp_path)
    finally:
        held.close(keep=True)
    go_on(inputs, tmp_path)


def test_small_inputs_and_checkpoint_0_leave_no_work(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, settings in (("small", {}), ("never", {"checkpoint": 0})):
        count = iter(range(1000))
        with monkeypatch.context() as patch:
            interrupted(patch, lambda count=count: next(count) > 8)  # type: ignore[misc]
            with pytest.raises(KeyboardInterrupt):
                harness.run(inputs, tmp_path / name, RECIPE, threads=1, batch_bytes=2000, backend="numpy", **settings)
        assert not (tmp_path / name).exists()
    with pytest.raises(RunError, match="keep-work"):
        Run(keep_work=True, checkpoint=0)


def test_a_finished_run_says_so_and_ends(inputs: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    first = harness.run(inputs, out, RECIPE, **SETTINGS)
    stamp = (out / "_gpu_dedup" / "report.json").stat().st_mtime_ns
    given = [str(path) for path in inputs]
    again = dedup(given, str(out), RECIPE, Run())
    assert "already done" in capfd.readouterr().err
    assert again.fingerprint == first.report["result"]["fingerprint"]
    assert (out / "_gpu_dedup" / "report.json").stat().st_mtime_ns == stamp
    with pytest.raises(OutputError, match="another run"):
        dedup(given, str(out), RECIPE.with_(seed=3), Run(progress=False))
    (out / "a.jsonl").unlink()
    with pytest.raises(OutputError, match="another run"):
        dedup(given, str(out), RECIPE, Run(progress=False))
    inputs[0].write_bytes(inputs[0].read_bytes())
    with pytest.raises(OutputError, match="another run"):
        dedup(given, str(out), RECIPE, Run(progress=False))


def test_a_bad_row_keeps_what_was_done(inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is passed over by an option, and nothing that was sketched before it is sketched again."""
    out = tmp_path / "out"
    lines = inputs[3].read_bytes().splitlines(True)
    inputs[3].write_bytes(b"".join([*lines[:30], b"{oops\n", *lines[30:]]))
    harness.run(inputs[2:], tmp_path / "plain", RECIPE, **SETTINGS)
    with pytest.raises(InputError, match=r"d\.jsonl:31"):
        harness.run(inputs[2:], out, RECIPE.with_(on_bad_row="error"), **SETTINGS)
    rows = count_sketched(monkeypatch)
    harness.run(inputs[2:], out, RECIPE, **SETTINGS)
    assert outcome(out) == outcome(tmp_path / "plain")
    assert 0 < sum(rows) <= 40, "none of c.parquet"


def test_what_was_decided_is_not_decided_again(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that stopped while it wrote looks for no collisions; one of another recipe does."""
    harness.run(inputs, tmp_path / "plain", RECIPE, **SETTINGS)
    out = tmp_path / "out"
    with monkeypatch.context() as patch:

        def full(*_: Any) -> None:
            raise OutputError("no space")

        patch.setattr(RemovalLog, "append", full)
        with pytest.raises(OutputError, match="no space"):
            harness.run(inputs, out, RECIPE, **SETTINGS)
    asked: list[int] = []
    real = HostBackend.buckets

    def buckets(self: HostBackend, *args: Any) -> Any:
        asked.append(1)
        return real(self, *args)

    monkeypatch.setattr(HostBackend, "buckets", buckets)
    harness.run(inputs, out, RECIPE, **SETTINGS)
    assert outcome(out) == outcome(tmp_path / "plain")
    assert not asked
    harness.run(inputs, out, RECIPE.with_(seed=9), overwrite=True, **SETTINGS)
    assert asked


# ---- kill -9 ---------------------------------------------------------------------------------------------------------

# The run, killing itself at the so-manieth call to the disk: before it, so that all that came earlier is there.
VICTIM = """
import json, os, signal, sys
at = int(sys.argv[1])
count = 0
def lethal(name):
    real = getattr(os, name)
    def call(*args, **more):
        global count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **more)
    setattr(os, name, call)
for name in ("fsync", "rename", "replace", "unlink", "mkdir", "rmdir", "makedirs"):
    lethal(name)
from gpu_dedup.pipeline import dedup
from gpu_dedup.recipe import Recipe
from gpu_dedup.report import RemovalLog
from gpu_dedup.run import Run
recipe, run = json.loads(sys.argv[3])
recipe = {name: tuple(value) if isinstance(value, list) else value for name, value in recipe.items()}
dedup(sys.argv[4:], sys.argv[2], Recipe(on_bad_row="skip", **recipe),
      Run(checkpoint=6000, batch_bytes=2000, backend="numpy", threads=1, **run))
print(count)
"""


def victim(at: int, out: Path, inputs: list[Path], recipe: Any, run: Any) -> list[str]:
    settings = json.dumps([{"keep": "max:score"} if recipe is None else recipe, run])
    return [sys.executable, "-c", VICTIM, str(at), str(out), settings, *map(str, inputs)]


def start(at: int, out: Path, inputs: list[Path], recipe: Any = None, **run: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(victim(at, out, inputs, recipe, run), capture_output=True, text=True, timeout=120)


def test_killed_at_many_points_it_goes_on_to_the_same_result(inputs: list[Path], tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    done = start(0, whole, inputs)
    assert done.returncode == 0, done.stderr
    calls = int(done.stdout)
    assert calls > 40
    points = range(1, calls + 1)
    chosen = random.Random(1).sample(points, min(calls, MANY or 8))
    out = tmp_path / "out"
    went_on = 0
    for at in sorted({*chosen, calls - 3}):
        killed = start(at, out, inputs)
        if killed.returncode != 0:
            assert killed.returncode == -signal.SIGKILL, killed.stderr
        again = start(0, out, inputs)
        assert again.returncode == 0, f"killed at call {at}: {again.stderr}"
        went_on += "going on" in again.stderr
        assert outcome(out) == outcome(whole), f"killed at call {at}"
        shutil.rmtree(out)
    assert went_on > 3


def test_killed_again_and_again_it_comes_to_an_end(inputs: list[Path], tmp_path: Path) -> None:
    """Each start gets a little further than the one before."""
    whole = tmp_path / "whole"
    assert start(0, whole, inputs).returncode == 0
    out = tmp_path / "out"
    kills = 0
    while (done := start(50, out, inputs)).returncode != 0:
        assert done.returncode == -signal.SIGKILL, done.stderr
        kills += 1
        assert kills < 40, "starts of 50 calls each do not get anywhere"
    assert kills > 0
    assert outcome(out) == outcome(whole)


@pytest.fixture
def every_format(tmp_path: Path) -> list[Path]:
    """Rows as in `inputs`, in gzip, Parquet, CSV and lines of plain text."""
    rng = random.Random(8)
    texts = [words(rng, 30) for _ in range(40)]
    texts = [text if i % 3 else text.replace(text.split()[9], "changed", 1) for i, text in enumerate(texts * 3)]
    folder = tmp_path / "mixed"
    rows = [{"id": i, "text": text} for i, text in enumerate(texts)]
    paths = [
        harness.write_rows(folder / "a.jsonl.gz", rows[:40]),
        harness.write_rows(folder / "b.parquet", rows[40:70]),
    ]
    harness.write_lines(folder / "c.csv", [b"id,text\n", *(f"{r['id']},{r['text']}\n".encode() for r in rows[70:100])])
    harness.write_lines(folder / "d.txt", [f"{text}\n".encode() for text in texts[100:]])
    return [*paths, folder / "c.csv", folder / "d.txt"]


WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "minhash": ({"keep": "longest"}, {}),
    "exact": ({"method": "exact", "normalize": ["lower"]}, {}),
    "simhash": ({"method": "simhash", "verify": "none", "distance": 8}, {}),
    "tfidf": ({"method": "simhash", "weights": "tfidf", "verify": "none"}, {"save_df_table": "frequencies"}),
    "cascade": ({"method": "cascade"}, {"keep_removed": True}),
    "connected": ({"cluster": "connected", "sketch": "fast"}, {"write": "mask"}),
    "bloom": ({"method": "bloom", "capacity": 1000}, {"bloom": "filter"}),
    "lshbloom": ({"method": "lshbloom", "capacity": 1000}, {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_method_and_format_goes_on(every_format: list[Path], tmp_path: Path, way: str) -> None:
    """Killed anywhere. A method that keeps nothing of a row begins anew; while names change it asks for --overwrite."""
    if not MANY and way not in ("exact", "tfidf", "bloom"):
        pytest.skip("in the long mode: set GPU_DEDUP_FAULTS")
    recipe, given = WAYS[way]
    recipe = {"lines": True, **recipe}

    def settings(name: str) -> dict[str, Any]:
        return {key: str(tmp_path / f"{name}-{value}") if value in ("filter", "frequencies") else value
                for key, value in given.items()}  # fmt: skip

    whole, files = tmp_path / "whole", ("filter", "frequencies")
    done = start(0, whole, every_format, recipe, **settings("whole"))
    assert done.returncode == 0, done.stderr
    calls = int(done.stdout)
    assert outcome(whole)[3]["counts"]["removed"] > 10
    points = random.Random(way).sample(range(1, calls + 1), min(calls, MANY // 4 or 1))
    for at in points:
        out = tmp_path / "out"
        killed = start(at, out, every_format, recipe, **settings("out"))
        if killed.returncode != 0:
            assert killed.returncode == -signal.SIGKILL, killed.stderr
        again = start(0, out, every_format, recipe, **settings("out"))
        if again.returncode != 0:
            # What a run was killed beside of: outputs with their names, or a file that this run has brought to its end.
            last = again.stderr.splitlines()[-1]
            assert re.search(r"errors\.\w+Error: .*(--overwrite|--again)", last), again.stderr
            taken = any((tmp_path / f"out-{name}").exists() for name in files)
            assert recipe.get("method") in ("bloom", "lshbloom") or taken, again.stderr
            for name in files if "--again" in last else ():
                (tmp_path / f"out-{name}").unlink(missing_ok=True)
            again = start(0, out, every_format, recipe, overwrite=True, **settings("out"))
        assert again.returncode == 0, f"killed at call {at} of {calls}: {again.stderr}"
        assert outcome(out) == outcome(whole), f"killed at call {at} of {calls}"
        for name in files:
            one, other = (tmp_path / f"{run}-{name}" for run in ("out", "whole"))
            assert one.exists() == other.exists()
            if one.exists():
                assert one.read_bytes() == other.read_bytes()
                one.unlink()
        shutil.rmtree(out)


def test_work_files_cut_short_anywhere(inputs: list[Path], tmp_path: Path) -> None:
    """A start that was killed late leaves files of every kind; each is cut or altered at random places."""
    whole = tmp_path / "whole"
    done = start(0, whole, inputs)
    calls = int(done.stdout)
    rng = random.Random(5)
    template = tmp_path / "template"
    kinds: set[str] = set()
    for before_the_end in (22, 34):  # among the renames, and while outputs are written
        killed = start(calls - before_the_end, template, inputs)
        assert killed.returncode == -signal.SIGKILL
        assert not (template / "_gpu_dedup" / "report.json").exists()
        files = sorted(path.relative_to(template) for path in template.rglob("*") if path.is_file())
        files = [path for path in files if path.parts[0] == "_gpu_dedup" and path.name != "lock"]
        for name in files if MANY else rng.sample(files, 2):
            for _ in range(max(1, MANY // 20)):
                out = tmp_path / "out"
                shutil.copytree(template, out)
                data = (out / name).read_bytes()
                at = rng.randrange(len(data)) if data else 0
                bit = bytes([data[at] ^ 1 << rng.randrange(8)]) if data else b"x"
                (out / name).write_bytes(data[:at] if rng.random() < 0.5 else data[:at] + bit + data[at + 1 :])
                again = start(0, out, inputs)
                if again.returncode != 0:  # never a wrong result: a list of names that nobody can read, for one
                    last = again.stderr.splitlines()[-1]
                    assert re.search(
                        r"errors\.(Output|Run)Error: .*(--overwrite|--fresh|(another|empty).* folder)", last
                    ), again.stderr
                    if name.name == "outputs.json":  # nobody can say any more what is whose
                        shutil.rmtree(out)
                    again = start(0, out, inputs, overwrite=True, fresh=True)
                assert again.returncode == 0, f"{name} at byte {at} of {len(data)}: {again.stderr}"
                assert outcome(out) == outcome(whole), f"{name} at byte {at} of {len(data)}"
                kinds.add(re.sub(r"\d.*", "", name.name))
                shutil.rmtree(out)
        shutil.rmtree(template)
    if MANY:
        assert kinds >= {"part-", "decision.gdp", "written.jsonl", "work.json"}


@pytest.mark.skipif(not MANY, reason="long mode: set GPU_DEDUP_FAULTS to a number of kills, such as 300")
def test_killed_at_any_moment(inputs: list[Path], tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    began = time.monotonic()
    assert start(0, whole, inputs).returncode == 0
    takes = time.monotonic() - began
    rng = random.Random(2)
    for _ in range(MANY):
        out = tmp_path / "out"
        with subprocess.Popen(
            victim(0, out, inputs, None, {}), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            time.sleep(rng.uniform(0.2, takes))
            process.kill()
        again = start(0, out, inputs)
        assert again.returncode == 0, again.stderr
        assert outcome(out) == outcome(whole)
        shutil.rmtree(out)


# ---- a full disk -----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("this user cannot mount a small file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_ends_in_one_line_and_the_work_is_kept(
    inputs: list[Path], tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.run(inputs, tmp_path / "plain", RECIPE, **SETTINGS)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(160 << 10))
    out = small_disk / "out"
    command = [
        sys.executable, "-m", "gpu_dedup", "run", *map(str, inputs), "-o", str(out), "--on-bad-row", "skip",
        "--keep", "max:score", "--checkpoint", "6000", "--batch-bytes", "2000", "--backend", "numpy",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert "no space left on the disk" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    ballast.unlink()
    rows = count_sketched(monkeypatch)
    harness.run(inputs, out, RECIPE, **SETTINGS)
    assert outcome(out) == outcome(tmp_path / "plain")
    assert sum(rows) < 100


def test_an_output_that_is_no_folder_is_not_read(inputs: list[Path], tmp_path: Path) -> None:
    """Whoever swaps input and output by mistake does not have the input loaded; a pipe is not waited for."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (pipe, inputs[0], Path("/dev/full")):
        with pytest.raises(OutputError):
            harness.run(inputs[1:], place, RECIPE)
