"""Several processes, one for each GPU or none: the same bits as one, the same first error, and nothing left behind."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import corpora
import harness
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpu_dedup import distribute
from gpu_dedup.backend import WORTH_A_GPU, choose_backend, count_gpus, host_backend
from gpu_dedup.distribute import Channel, Job
from gpu_dedup.errors import InputError, InternalError, OutputError, RunError
from gpu_dedup.keep import KeeperColumn, KeeperError
from gpu_dedup.pipeline import dedup, shards
from gpu_dedup.pipeline.shards import cut
from gpu_dedup.progress import Progress
from gpu_dedup.recipe import Recipe
from gpu_dedup.run import Run

REPO = Path(__file__).resolve().parent.parent


# ------------------------------------------------------------------------------------------------------------- shards


def largest(sizes: list[int], runs: Any) -> int:
    return max(sum(max(size, 1) for size in sizes[a:b]) for a, b in runs)


def test_runs_of_files_by_hand() -> None:
    assert cut([5], 3) == [(0, 1)]
    assert cut([1, 1, 1, 1], 2) == [(0, 2), (2, 4)]
    assert cut([9, 1, 1, 1], 2) == [(0, 1), (1, 4)]
    assert cut([1, 1, 1, 9], 2) == [(0, 3), (3, 4)]
    assert cut([9, 1, 1], 3) == [(0, 1), (1, 2), (2, 3)]
    assert cut([0, 0, 0], 2) in ([(0, 1), (1, 3)], [(0, 2), (2, 3)])


def test_runs_of_files_are_whole_and_the_largest_is_the_least(rng: np.random.Generator) -> None:
    for _ in range(150):
        sizes = [int(size) for size in rng.integers(0, 12, rng.integers(1, 8)) ** 2]
        most = int(rng.integers(1, 6))
        runs = cut(sizes, most)
        assert [i for a, b in runs for i in range(a, b)] == list(range(len(sizes)))
        assert all(a < b for a, b in runs)
        assert len(runs) == min(most, len(sizes))
        inner = itertools.combinations(range(1, len(sizes)), len(runs) - 1)
        every = [list(itertools.pairwise([0, *places, len(sizes)])) for places in inner]
        assert largest(sizes, runs) == min(largest(sizes, one) for one in every)


def test_columns_join_as_if_appended(rng: np.random.Generator) -> None:
    """Also their errors: the same rows, kinds and words, wherever the cut is."""
    kinds: list[list[Any]] = [[1, 2.5, 2**60, None], ["a{b", "z", None], [True], [[1]], [float("nan"), None]]
    errors = 0
    for _ in range(400):
        pool = [kinds[k] for k in rng.integers(0, 5, rng.integers(1, 3))]
        values = [pool[k][int(rng.integers(0, len(pool[k])))] for k in rng.integers(0, len(pool), 7)]
        at = int(rng.integers(0, 8))

        def whole(values: list[Any] = values) -> KeeperColumn:
            column = KeeperColumn("max:x{y}")
            column.append(values)
            return column

        def joined(values: list[Any] = values, at: int = at) -> KeeperColumn:
            column = KeeperColumn("max:x{y}")
            for part in (values[:at], values[at:]):
                other = KeeperColumn("max:x{y}")
                try:
                    other.append(part)
                except KeeperError:
                    for row, kind, shown in other.met:
                        column.meet(len(column) + row, kind, shown)
                    raise AssertionError("met tells of the error") from None
                column.extend(pickle.loads(pickle.dumps(other)))
            return column

        wanted: list[int] | None = None
        told: tuple[str, tuple[int, ...]] | None = None
        try:
            wanted = whole().order(True).tolist()
        except KeeperError as error:
            told = str(error), error.rows
        if told is None:
            assert joined().order(True).tolist() == wanted
        else:
            errors += 1
            with pytest.raises(KeeperError) as caught:
                joined()
            assert (str(caught.value), caught.value.rows) == told
    assert errors > 50


# ---------------------------------------------------------------------------------------------------------- processes


def obey(argument: dict[str, Any], channel: Channel) -> Any:
    """The work of the tests below, in another process."""
    for _ in range(argument.get("steps", 0)):
        channel.advance(1)
    channel.advance(argument.get("leap", 0))
    if "note" in argument:
        channel.note(argument["note"])
    time.sleep(argument.get("sleep", 0))
    if "raise" in argument:
        raise argument["raise"]
    if "stop" in argument:
        print(argument.get("say", ""), file=sys.stderr, flush=True)
        os._exit(argument["stop"])
    if "signal" in argument:
        os.kill(os.getpid(), argument["signal"])
        time.sleep(60)
    return {"pid": os.getpid(), "bad": argument.get("bad", False), "mask": signal.pthread_sigmask(signal.SIG_BLOCK, [])}


def children() -> list[int]:
    """Processes that this one has started and that are not gone."""
    out = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue
            if int(text.rpartition(")")[2].split()[1]) == os.getpid():
                out.append(int(entry.name))
    return out


def go(tmp_path: Path, *arguments: dict[str, Any], notes: list[str] | None = None) -> tuple[list[Any], int]:
    done: list[int] = []
    jobs = [Job(f"shard {i}", argument, lambda n: f"after {n}") for i, argument in enumerate(arguments)]
    before = set(children())
    try:
        answers = distribute.run(
            obey, jobs, str(tmp_path), done.append, (notes if notes is not None else []).append, lambda a: a["bad"]
        )
    finally:
        assert set(children()) == before
    return answers, sum(done)


def test_answers_come_in_order_with_progress_and_notes(tmp_path: Path) -> None:
    notes: list[str] = []
    big = {"sleep": 0.3, "steps": 1000, "ballast": os.urandom(3 << 20)}  # more than a socket holds
    answers, done = go(tmp_path, big, {"steps": 500, "note": "hello"}, notes=notes)
    assert done == 1500
    assert notes == ["hello"]
    assert len({answer["pid"] for answer in answers} | {os.getpid()}) == 3
    assert all(signal.SIGINT in answer["mask"] for answer in answers)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_an_early_failure_is_the_one_that_counts(tmp_path: Path) -> None:
    answers, _ = go(tmp_path, {"sleep": 1}, {"sleep": 1.5, "bad": True}, {"bad": True}, {"sleep": 60})
    assert [answer["bad"] for answer in answers] == [False, True]


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (InputError("a.jsonl:3: bad"), InputError, "a.jsonl:3: bad"),
        (OSError(28, "No space left on device", "/x"), OSError, "[Errno 28] No space left on device: '/x'"),
        (MemoryError("no room"), MemoryError, "no room"),
        (ZeroDivisionError("by zero"), InternalError, "ZeroDivisionError: by zero"),
    ],
)
def test_an_error_there_is_the_same_error_here(tmp_path: Path, error: Exception, kind: type, words: str) -> None:
    started = time.monotonic()
    with pytest.raises(kind) as caught:
        go(tmp_path, {"sleep": 60}, {"raise": error})
    assert type(caught.value) is kind
    assert str(caught.value) == words
    assert "in obey" in str(caught.value.__cause__)
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"signal": signal.SIGKILL}, "shard 1 was ended by signal 9 (SIGKILL) after 7; "),
        ({"signal": signal.SIGSEGV}, "shard 1 was ended by signal 11 (SIGSEGV) after 7; "),
        (
            {"stop": 3, "say": "first\nlast\x07words\n"},
            "shard 1 ended with exit code 3 (it said: last words) after 7; ",
        ),
        ({"stop": 0}, "shard 1 ended with exit code 0 after 7; "),
    ],
)
def test_a_process_that_dies_is_one_line(tmp_path: Path, how: dict[str, Any], words: str) -> None:
    with pytest.raises(RunError) as caught:
        go(tmp_path, {"sleep": 60}, {"leap": 7, "sleep": 0.3, **how})
    assert str(caught.value).startswith("the process for " + words)
    assert "--gpus 1" in str(caught.value)
    assert "\n" not in str(caught.value)


def once_more(tmp_path: Path, first: dict[str, Any], second: dict[str, Any]) -> tuple[list[Any], list[int], list[str]]:
    """Two jobs, of which one has `first` to do, and `second` if that dies."""
    done: list[int] = []
    notes: list[str] = []
    jobs = [
        Job("shard 0", {"sleep": 0.5}, lambda n: f"after {n}"),
        Job("shard 1", first, lambda n: f"after {n}", lambda: second, "what was finished is in /x"),
    ]
    before = set(children())
    try:
        answers = distribute.run(obey, jobs, str(tmp_path), done.append, notes.append, lambda a: a["bad"])
    finally:
        assert set(children()) == before
    return answers, done, notes


def test_the_work_of_a_process_that_dies_is_given_to_another_one(tmp_path: Path) -> None:
    answers, done, notes = once_more(
        tmp_path, {"leap": 70, "sleep": 0.3, "signal": signal.SIGKILL}, {"steps": 50, "leap": 50}
    )
    assert len({answer["pid"] for answer in answers}) == 2
    assert sum(done) == 100, "what was told before is not told again"
    assert notes == [
        "the process for shard 1 was ended by signal 9 (SIGKILL) after 70; its work is given to another one"
    ]


def test_the_second_death_over_the_same_work_is_the_end(tmp_path: Path) -> None:
    dies = {"leap": 7, "sleep": 0.3, "signal": signal.SIGKILL}
    with pytest.raises(RunError) as caught:
        once_more(tmp_path, dies, {**dies, "leap": 5})
    assert str(caught.value).startswith(
        "the process for shard 1 was ended by signal 9 (SIGKILL) after 5, after another one before it; what was "
        "finished is in /x; if memory had run out"
    )
    with pytest.raises(InputError, match="x: bad"):
        once_more(tmp_path, dies, {"raise": InputError("x: bad")})


def test_a_process_that_never_begins_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribute, "BOOT", "import sys; sys.exit('no such thing as a GPU')")
    with pytest.raises(RunError, match=r"exit code 1 \(it said: no such thing as a GPU\) after 0; "):
        go(tmp_path, {}, {})
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(RunError, match=r"no process for shard 0 could be started \(No such file or directory\); "):
        go(tmp_path, {}, {})


# --------------------------------------------------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files of every kind whose copies are spread over all of them; bad rows, blank lines, a file cut short."""
    corpus = corpora.planted("several processes", clusters=9, loners=6)
    rows = [
        {"id": r["id"], "text": r["text"], "score": (i * 7) % 5 + (0.5 if i % 11 == 0 else 0)}
        for i, r in enumerate(corpus.rows)
        if isinstance(r["text"], str)
    ]
    plain = [row for row in rows if not any("\ud800" <= c <= "\udfff" for c in row["text"])]  # Parquet's are UTF-8
    out = tmp_path_factory.mktemp("several") / "in"
    parts = [rows[i::4] for i in range(4)]
    harness.write_lines(out / "a.jsonl", [corpora.line(row) for row in parts[0]] + [b"{broken\n", b"\n"])
    harness.write_lines(out / "b.jsonl.gz", [corpora.line(row) for row in parts[1]])
    (out / "c.jsonl.gz").write_bytes(gzip.compress(corpora.lines(rows[:20]))[:-30])
    pq.write_table(
        pa.table({name: [row[name] for row in plain[::3]] for name in ("id", "text", "score")}), out / "d.parquet"
    )
    harness.write_lines(out / "e.jsonl", [])
    harness.write_lines(out / "f.jsonl.zst", [corpora.line(row) for row in parts[2]])
    harness.write_lines(out / "g.jsonl", [corpora.line(row) for row in parts[3]] + [b'{"text": null}\n'])
    return out


SKIPPING = {"on_bad_row": "skip", "on_bad_file": "skip"}
RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    "a number decides": {"keep": "max:score", "cluster": "connected", "threshold_ppm": 600_000},
    "length decides": {"keep": "longest", "min_shingles": 3},
    "exact": {"method": "exact"},
}


def answer(out: Path) -> dict[str, Any]:
    """All that a run must not change: bytes of every file, the log, the report's result."""
    files = {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}
    report = json.loads(files.pop("_gpu_dedup/report.json"))
    del files["_gpu_dedup/report.html"]  # tells of the machine too
    files["result"] = json.dumps(report["result"]).encode()
    return files


@pytest.fixture(scope="module")
def wanted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    out = tmp_path_factory.mktemp("one process")
    for name, recipe in RECIPES.items():
        dedup([folder], out / name, Recipe(**SKIPPING, **recipe), Run(backend="numpy", progress=False))
    return {name: answer(out / name) for name in RECIPES}


@pytest.mark.parametrize(
    ("name", "processes", "settings"),
    [
        ("default", 2, {"backend": "numba", "threads": 3}),
        ("default", 5, {"backend": "numpy", "batch_bytes": 900}),
        ("a number decides", 3, {"backend": "numpy", "batch_bytes": 700}),
        ("length decides", 3, {"backend": "numpy"}),
        ("exact", 2, {"backend": "numpy"}),
    ],
)
def test_processes_change_nothing(
    folder: Path, tmp_path: Path, wanted: dict[str, Any], name: str, processes: int, settings: dict[str, Any]
) -> None:
    recipe = Recipe(**SKIPPING, **RECIPES[name])
    work = tmp_path / "work"
    report = dedup(
        [folder], tmp_path / "out", recipe, Run(progress=False, work_dir=str(work), **settings), processes=processes
    )
    found = answer(tmp_path / "out")
    assert list(found) == list(wanted[name])
    for path, data in wanted[name].items():
        assert found[path] == data, path
    assert report.counts.removed > 10
    assert [entry.problem is None for entry in report.inputs] == [True, True, False, True, True, True, True]
    assert report.machine.gpus == 0
    assert list(work.iterdir()) == []


def test_the_processes_were_there(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would also pass if nothing were distributed; and with a limit nothing is."""
    started: list[int] = []
    real = distribute.run

    def counting(work: Any, jobs: Any, *rest: Any) -> Any:
        started.append(len(jobs))
        return real(work, jobs, *rest)

    monkeypatch.setattr(distribute, "run", counting)
    files = [folder / "b.jsonl.gz", folder / "d.parquet"]
    run = Run(backend="numpy", progress=False)
    dedup(files, tmp_path / "a", None, run, processes=9)
    assert started == [2]
    report = dedup(files, tmp_path / "b", Recipe(limit=15), run, processes=2)
    assert (started, report.counts.read + report.counts.blank) == ([2], 15)
    assert report.machine.notes == ["the first 15 rows are counted in one process"]
    dedup(files[:1], tmp_path / "c", None, run, processes=2)
    assert started == [2]
    with pytest.raises(RunError, match="processes 0 is less than 1"):
        dedup(files, tmp_path / "d", None, run, processes=0)


def outcome(files: list[Path], out: Path, recipe: Recipe, processes: int | None) -> tuple[type, str]:
    with pytest.raises((InputError, KeeperError)) as caught:
        dedup(files, out, recipe, Run(backend="numpy", progress=False), processes=processes)
    assert not out.exists()
    return type(caught.value), str(caught.value)


def text(i: int) -> str:
    return " ".join(f"w{i * 31 + j}" for j in range(12))


CASES: dict[str, list[list[Any]]] = {
    # one list a file: the score of each row; "bad" for a row that is none
    "another kind in the second shard": [[1, 2], ["x", "y"]],
    "the kind is the first shard's": [["t"], [1, "s"]],
    "two kinds in a shard, the first of them the right one": [[1], [None, 2, "s", "bad"]],
    "no value at first": [[None, None], [None, "x"], [3]],
    "a list before another kind": [[1], [[4], "s"]],
    "a keeper's error before a bad row": [[1], ["s"], ["bad"]],
    "a bad row before a keeper's error": [[1], [2, "bad"], ["s"]],
    "bad rows in both": [[1, "bad"], ["bad"], [2]],
    "true": [[None], [True]],
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_error_in_input_order_is_the_one(name: str, tmp_path: Path) -> None:
    files = []
    for i, scores in enumerate(CASES[name]):
        rows = [b"{\n" if s == "bad" else corpora.line({"text": text(j), "score": s}) for j, s in enumerate(scores)]
        files.append(harness.write_lines(tmp_path / f"{i}.jsonl", rows))
    recipe = Recipe(keep="max:score")
    one = outcome(files, tmp_path / "out", recipe, None)
    assert outcome(files, tmp_path / "out", recipe, len(files)) == one
    assert ".jsonl:" in one[1]


class Watcher(Progress):
    """Calls `act` when the first bytes of a stage have been read."""

    def __init__(self, act: Any) -> None:
        super().__init__(False)
        self._act = act

    @contextlib.contextmanager
    def stage(self, name: str, total: int | None = None, unit: str = "B") -> Any:
        with super().stage(name, total, unit):
            yield lambda n: self._act()


def long_files(folder: Path, count: int = 3) -> list[Path]:
    """Some seconds of work for NumPy, each."""
    lines = [
        corpora.line({"text": " ".join(f"w{(i * 7919 + j * 104729) % 50021}" for j in range(60))}) for i in range(9000)
    ]
    return [harness.write_lines(folder / f"long {i}.jsonl", lines) for i in range(count)]


def test_a_process_that_is_killed_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = long_files(tmp_path)
    made: list[Any] = []
    popen = subprocess.Popen

    def recording(*arguments: Any, **more: Any) -> Any:
        made.append(popen(*arguments, **more))
        return made[-1]

    monkeypatch.setattr(distribute.subprocess, "Popen", recording)
    run = Run(backend="numpy", batch_bytes=50_000, work_dir=str(tmp_path / "work"))
    with pytest.raises(RunError) as caught:
        dedup(files, tmp_path / "out", None, run, Watcher(lambda: [one.kill() for one in made[1:]]), processes=2)
    line = str(caught.value)
    assert line.startswith("the process for shard 1 was ended by signal 9 (SIGKILL) at ")
    assert "long 2.jsonl or soon after (file 1 of its 1), after another one before it; " in line
    assert len(made) == 3
    assert "\n" not in line
    assert all(process.poll() is not None for process in made)
    assert not (tmp_path / "out").exists()
    assert list((tmp_path / "work").iterdir()) == []


def deadly(task: Any, channel: Channel) -> Any:
    """The work of a shard in a process that kills itself when it opens DEADLY_FILE, DEADLY_TIMES times in all."""
    from gpu_dedup.pipeline import survey

    real, name, marks = survey.open_source, os.environ["DEADLY_FILE"], Path(os.environ["DEADLY_MARKS"])

    def opening(source: Any, *arguments: Any, **more: Any) -> Any:
        if source.rel == name and len(list(marks.iterdir())) < int(os.environ["DEADLY_TIMES"]):
            (marks / str(os.getpid())).touch()
            time.sleep(0.3)  # the parts before it are on the disk
            os.kill(os.getpid(), signal.SIGKILL)
        return real(source, *arguments, **more)

    survey.open_source = opening  # type: ignore[assignment]
    return shards.survey_shard(task, channel)


@pytest.mark.parametrize(
    ("name", "victim", "settings"),
    [
        ("default", "g.jsonl", {"backend": "numba", "checkpoint": 3000, "batch_bytes": 1000}),
        ("a number decides", "g.jsonl", {"backend": "numpy", "checkpoint": 3000, "batch_bytes": 1000, "threads": 5}),
        ("exact", "a.jsonl", {"backend": "numpy", "checkpoint": 0}),
    ],
)
def test_a_process_that_kills_itself_is_replaced_and_nothing_changes(
    folder: Path, tmp_path: Path, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch, name: str, victim: str,
    settings: dict[str, Any],
) -> None:  # fmt: skip
    work = deadly

    def run(real: Any, *arguments: Any) -> Any:
        return distribute_run(work, *arguments)

    distribute_run = distribute.run
    monkeypatch.setattr(distribute, "run", run)
    (tmp_path / "marks").mkdir()
    for key, value in (("FILE", victim), ("MARKS", str(tmp_path / "marks")), ("TIMES", "1")):
        monkeypatch.setenv(f"DEADLY_{key}", value)
    place = tmp_path / "work"
    recipe = Recipe(**SKIPPING, **RECIPES[name])
    report = dedup(
        [folder], tmp_path / "out", recipe, Run(progress=False, work_dir=str(place), **settings), processes=2
    )
    found = answer(tmp_path / "out")
    assert {path: found[path] == data for path, data in wanted[name].items()} == dict.fromkeys(wanted[name], True)
    said = [note for note in report.machine.notes if "given to another one" in note]
    assert len(said) == 1
    assert "was ended by signal 9 (SIGKILL) at " in said[0]
    went_on = [note for note in report.machine.notes if "going on from" in note]
    assert len(went_on) == (settings["checkpoint"] > 0), report.machine.notes
    assert list(place.iterdir()) == []
    if not settings["checkpoint"]:
        return
    # Twice is the end, and the same command goes on, in several processes or in one.
    monkeypatch.setenv("DEADLY_TIMES", "3")
    with pytest.raises(RunError, match=rf"after another one before it; what was finished is in {place}/.*goes on"):
        dedup([folder], tmp_path / "b", recipe, Run(progress=False, work_dir=str(place), **settings), processes=2)
    assert list(place.glob("*/part-*.gdp"))
    assert not list(place.glob("*/shard-*"))
    monkeypatch.setattr(distribute, "run", distribute_run)
    again = Run(progress=False, work_dir=str(place), **settings)
    report = dedup([folder], tmp_path / "c", recipe, again, processes=2 if name == "default" else None)
    found = answer(tmp_path / "c")
    assert all(found[path] == data for path, data in wanted[name].items())
    assert any("going on from" in note for note in report.machine.notes)


SCRIPT = """
import sys
from gpu_dedup import Run, dedup
# No `if __name__ == "__main__"`: the processes must not run this again.
print("begins", flush=True)
dedup(sys.argv[2:], sys.argv[1], None, Run(backend="numpy", batch_bytes=50_000, progress=False), processes=2)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_processes_end_with_their_parent(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "in").mkdir()
    files = long_files(tmp_path / "in", 2)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    # A session of its own: SIGINT goes to all of it, as a terminal's Ctrl-C does.
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "out"), *map(str, files)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(REPO)},
        start_new_session=True,
    )  # fmt: skip
    found: list[int] = []
    for _ in range(600):
        task = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        found = [int(pid) for pid in task.read_text().split()] if task.exists() else []
        if len(found) == 2 or process.poll() is not None:
            break
        time.sleep(0.05)
    assert len(found) == 2, process.communicate()
    time.sleep(0.7)
    assert all(alive(pid) for pid in found)
    started = time.monotonic()
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.kill()
    out, err = process.communicate(timeout=30)
    while any(alive(pid) for pid in found) and time.monotonic() - started < 10:
        time.sleep(0.02)
    assert time.monotonic() - started < 2
    assert out == "begins\n"
    if number == signal.SIGINT:
        assert err.count("Traceback") == 1, err
        assert err.splitlines()[-1] == "KeyboardInterrupt"
        assert sorted(os.listdir(tmp_path)) == ["in", "script.py"]


SILENT = """
import sys
from test_distribute import obey
from gpu_dedup import distribute
jobs = [distribute.Job("one", {"sleep": 60}, str)]
distribute.run(obey, jobs, sys.argv[1], print, print, bool)
"""


def test_a_process_that_says_nothing_ends_with_its_parent(tmp_path: Path) -> None:
    """It cannot find out by telling of its progress."""
    paths = os.pathsep.join([str(REPO), str(REPO / "tests"), str(REPO / "tests" / "cuda")])
    process = subprocess.Popen([sys.executable, "-c", SILENT, str(tmp_path)], env={**os.environ, "PYTHONPATH": paths})
    found: list[int] = []
    for _ in range(600):
        found = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        if found or process.poll() is not None:
            break
        time.sleep(0.05)
    time.sleep(3)  # asleep by now
    assert len(found) == 1
    assert alive(found[0])
    process.kill()
    process.wait()
    started = time.monotonic()
    while alive(found[0]) and time.monotonic() - started < 10:
        time.sleep(0.02)
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("what", ["cut", "changed", "another count", "pickle"])
def test_results_that_were_changed_on_the_way_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    real = distribute.run

    def tampering(*arguments: Any) -> Any:
        answers = real(*arguments)
        path = answers[1].rest[0] if what == "pickle" else answers[1].arrays["digest"]
        with open(path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if what == "cut":
                file.truncate(size - 8)
            elif what == "another count":
                file.seek(40)
                file.write(b"\1")
            else:
                file.seek(size - 5)
                byte = file.read(1)
                file.seek(size - 5)
                file.write(bytes([byte[0] ^ 1]))
        return answers

    monkeypatch.setattr(distribute, "run", tampering)
    words = {
        "cut": "is damaged",
        "changed": "is damaged",
        "another count": "rows of",
        "pickle": "was changed by another",
    }
    files = [folder / "b.jsonl.gz", folder / "d.parquet"]
    with pytest.raises(OutputError, match=words[what]):
        dedup(files, tmp_path / "out", None, Run(backend="numpy", progress=False), processes=2)
    assert not (tmp_path / "out").exists()


def test_a_disk_that_is_full_there_is_the_same_line_here(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shards._own

    def gone(work: str, number: int) -> str:
        path = real(work, number)
        os.rmdir(path)
        return path

    monkeypatch.setattr(shards, "_own", gone)
    files = [folder / "b.jsonl.gz", folder / "d.parquet"]
    with pytest.raises(OutputError, match=r"shard-\d/table-.*; choose another folder with --work-dir"):
        dedup(files, tmp_path / "out", None, Run(backend="numpy", progress=False), processes=2)


# --------------------------------------------------------------------------------------------------------------- GPUs


@pytest.mark.parametrize("gpus", [2, 3])
def test_gpus_change_nothing(
    standin: Any, folder: Path, tmp_path: Path, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    """`--gpus N` on the stand-in, which the processes find as this one does, against NumPy in one process."""
    standin.reset(seed=gpus, devices=3)
    monkeypatch.setenv("GPU_DEDUP_STANDIN", f"seed={gpus},devices=3")
    told: list[Any] = []
    real = distribute.run

    def listening(work: Any, jobs: Any, *rest: Any) -> Any:
        told.extend(job.argument.place for job in jobs)
        return real(work, jobs, *rest)

    monkeypatch.setattr(distribute, "run", listening)
    for name in ("default", "a number decides") if gpus == 2 else ("default",):
        out = tmp_path / name
        run = Run(device="gpu", gpus=gpus, progress=False)
        report = dedup([folder], out, Recipe(**SKIPPING, **RECIPES[name]), run)
        found = answer(out)
        assert list(found) == list(wanted[name])
        for path, data in wanted[name].items():
            assert found[path] == data, path
        assert (report.machine.gpus, report.machine.backend) == (gpus, "cuda")
        assert f"cuda on {gpus} GPUs (asked for; GPU 0" in report.summary()
    assert {(place.backend, place.gpu) for place in told} == {("cuda", i) for i in range(gpus)}


def test_a_gpu_that_fails_is_named(standin: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too full by the time the processes look: they find that out, and the line is theirs."""
    standin.reset(devices=2)
    monkeypatch.setenv("GPU_DEDUP_STANDIN", f"devices=2,memory={100 << 20}")
    with pytest.raises(RunError, match=r"GPU [01], .* has 100 MiB of 100 MiB free"):
        dedup([folder], tmp_path / "out", Recipe(**SKIPPING), Run(device="gpu", gpus=2, progress=False))
    assert not (tmp_path / "out").exists()


def test_how_many_gpus(standin: Any) -> None:
    standin.reset(devices=4)
    importlib.import_module("gpu_dedup.backend.cuda").cuda_backend.cache_clear()
    gpu, _ = choose_backend(Run(gpus=2), 1000)  # asks for a GPU, however small the input
    assert gpu.name == "cuda"
    much = 100 * WORTH_A_GPU
    assert count_gpus(Run(), gpu, 50, much) == 4
    assert count_gpus(Run(), gpu, 3, much) == 3
    assert count_gpus(Run(), gpu, 50, 2 * WORTH_A_GPU) == 2
    assert count_gpus(Run(device="gpu"), gpu, 50, 10) == 1
    assert count_gpus(Run(gpus=3), gpu, 50, 10) == 3
    assert count_gpus(Run(gpus=3), gpu, 2, 10) == 2
    with pytest.raises(RunError, match="gpus 5 is more than there are: 4; "):
        count_gpus(Run(gpus=5), gpu, 50, much)
    assert count_gpus(Run(), host_backend("numpy"), 50, much) == 0


def test_fewer_files_than_gpus_is_said(
    standin: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.reset(devices=3)
    monkeypatch.setenv("GPU_DEDUP_STANDIN", "devices=3")
    report = dedup([folder / "g.jsonl"], tmp_path / "out", Recipe(**SKIPPING), Run(gpus=3, progress=False))
    assert report.machine.gpus == 1
    assert report.machine.notes == ["1 of 3 GPUs take part: there are no more files, and none is cut"]
    with pytest.raises(RunError, match="processes 2 are for a CPU"):
        dedup([folder / "g.jsonl"], tmp_path / "p", Recipe(**SKIPPING), Run(gpus=1, progress=False), processes=2)


@pytest.mark.parametrize("settings", [{"device": "cpu"}, {"backend": "numpy"}, {"backend": "numba"}])
def test_gpus_of_a_cpu_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(RunError, match="gpus 2 asks for GPUs but device or backend is a CPU's"):
        Run(gpus=2, **settings)
    with pytest.raises(RunError, match="gpus 0 is outside 1 to 1024"):
        Run(gpus=0)
