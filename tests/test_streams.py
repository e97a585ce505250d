"""Standard input and standard output: `-` as INPUT, `-o -`. The program runs as a process of its own."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import harness
import pyarrow as pa
import pytest

from gpu_dedup import show
from gpu_dedup.errors import InputError, OutputError, RunError
from gpu_dedup.pipeline import dedup
from gpu_dedup.recipe import Recipe
from gpu_dedup.run import Run
from gpu_dedup.write.stream import LineStream

REPO = Path(__file__).resolve().parent.parent
LINES = b"".join(
    b'{"id": %d, "text": "some words that are here %d times, in a longer row"}\n' % (i, i // 2) for i in range(6)
)
KEPT = b"".join(LINES.splitlines(True)[::2])


def program(*arguments: str, stdin: bytes = b"", **more: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "gpu_dedup", *arguments],
        input=stdin,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(REPO), "PYTHONWARNINGS": "error"},
        timeout=120,
        **more,
    )


def test_from_standard_input_to_standard_output(tmp_path: Path) -> None:
    done = program("run", "-", "-o", "-", stdin=LINES, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == KEPT
    assert b"removed                 3  50.0 %" in done.stderr
    assert b"output                     standard output" in done.stderr
    assert list(tmp_path.iterdir()) == []
    quiet = program("run", "-", "-o", "-", "--quiet", "--text-field", "text", stdin=b"\xef\xbb\xbf" + LINES)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, b"\xef\xbb\xbf" + KEPT, b"")


def test_a_bad_row_of_standard_input_leaves_standard_output_empty() -> None:
    done = program("run", "-", "-o", "-", "--quiet", stdin=LINES + b"{\n")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"gpu-dedup: standard input:7: not valid JSON")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("stdin.jsonl", bytes),
        ("stdin.jsonl.gz", gzip.compress),
        ("stdin.jsonl.zst", lambda data: pa.compress(data, "zstd", asbytes=True)),
    ],
)
def test_from_standard_input_to_a_folder(name: str, pack: Any, tmp_path: Path) -> None:
    done = program("run", "-", "-o", str(tmp_path / "out"), "--checkpoint", "1B", stdin=pack(LINES))
    assert done.returncode == 0, done.stderr
    assert harness.read_bytes(tmp_path / "out" / name) == KEPT
    assert sorted(path.name for path in (tmp_path / "out" / "_gpu_dedup").iterdir()) == [
        "outputs.json",
        "removed.parquet",
        "report.html",
        "report.json",
    ]
    report = json.loads((tmp_path / "out" / "_gpu_dedup" / "report.json").read_bytes())
    assert report["machine"]["paths"] == ["-"]
    assert [row["file"] for row in harness.removed_rows(tmp_path / "out")] == [name] * 3
    with pytest.raises(InputError, match=r"standard input: is gone with the run, .*; save it to a file"):
        show.show(str(tmp_path / "out"), "0")


@pytest.fixture
def fed(tmp_path: Path) -> Any:
    """Lets descriptor 0 read these bytes until the test ends."""
    before = os.dup(0)

    def feed(data: bytes) -> None:
        (tmp_path / "fed").write_bytes(data)
        opened = os.open(tmp_path / "fed", os.O_RDONLY)
        os.dup2(opened, 0)
        os.close(opened)

    yield feed
    os.dup2(before, 0)
    os.close(before)


def test_standard_input_beside_files_and_in_other_formats(fed: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(LINES[: len(LINES) // 2])
    run = Run(progress=False)
    fed(LINES)
    report = dedup([str(tmp_path / "in"), "-"], str(tmp_path / "out"), Recipe(), run)
    assert [file.rel for file in report.inputs] == ["a.jsonl", "stdin.jsonl"]
    assert report.counts.kept == 3
    fed(b"id,text\n1,one of them\n2,One of them\n")
    dedup("-", str(tmp_path / "csv"), Recipe(format="csv"), run)
    assert (tmp_path / "csv" / "stdin.csv").read_bytes() == b"id,text\n1,one of them\n"
    fed(b"one of them\nONE of them\n\n")
    dedup(
        "-", str(tmp_path / "txt"), Recipe(format="txt", lines=True), Run(progress=False, work_dir=str(tmp_path / "w"))
    )
    assert (tmp_path / "txt" / "stdin.txt").read_bytes() == b"one of them\n\n"
    assert list((tmp_path / "w").iterdir()) == []
    fed(LINES)
    dry = dedup("-", None, Recipe(), Run(progress=False, dry_run=True))
    assert dry.counts.removed == 3
    (tmp_path / "in" / "stdin.jsonl").write_bytes(LINES)
    fed(LINES)
    with pytest.raises(InputError, match=r"stdin\.jsonl: is what standard input is called in the output; rename"):
        dedup([str(tmp_path / "in"), "-"], str(tmp_path / "twice"), Recipe(), run)
    with pytest.raises(InputError, match="-: standard input is given twice"):
        dedup(["-", "-"], str(tmp_path / "twice"), Recipe(), run)
    assert not (tmp_path / "twice").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_bytes(b"")
    with pytest.raises(OutputError, match="full: is not empty"):  # before anything is read
        dedup("-", str(tmp_path / "full"), Recipe(), run)


def test_files_to_standard_output_with_a_report(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + LINES.rstrip(b"\n")))
    (tmp_path / "b.jsonl").write_bytes(b"\xef\xbb\xbf" + b'{"text": "another"}\n')
    out = tmp_path / "log"
    done = program(
        "run", "a.jsonl.gz", "b.jsonl", "-o", "-", "--report", str(out), "--keep", "max:id", "--quiet", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    # The last line of the first file has no end of its own.
    rows = LINES.splitlines(True)[1::2]
    assert done.stdout == b"\xef\xbb\xbf" + b"".join(rows) + b'{"text": "another"}\n'
    assert [row["kept_id"] for row in harness.removed_rows(out)] == ["1", "3", "5"]
    assert "some words that are here" in show.show(str(out), "0")
    again = program("run", "b.jsonl", "-o", "-", "--report", str(out), cwd=tmp_path)
    assert (again.returncode, again.stdout) == (2, b"")
    assert b"holds the output of another run" in again.stderr


def test_a_reader_that_goes_away_is_an_error_here(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"".join(b'{"text": "row %d %s"}\n' % (i, b"x" * 290) for i in range(300)))
    code = f"{sys.executable} -m gpu_dedup run a.jsonl -o - --report log --quiet | head -c 100 >/dev/null"
    code += "; exit ${PIPESTATUS[0]}"
    done = subprocess.run(
        ["bash", "-c", code],
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr == (
        b"gpu-dedup: standard output: its reader has gone away before the end; nothing else was written\n"
    )
    assert not (tmp_path / "log").exists()


def test_a_full_disk_behind_standard_output() -> None:
    with open("/dev/full", "wb") as full, pytest.raises(OutputError, match="standard output: no space left"):
        LineStream(full.fileno()).write([memoryview(b"line\n")])


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.parquet", None, r"a\.parquet: -o - writes one stream of lines, and this is parquet; name a folder"),
        ("a.txt", b"text", r"this is txt"),
    ],
)
def test_what_is_no_stream_of_lines(name: str, data: bytes | None, message: str, tmp_path: Path) -> None:
    if data is None:
        harness.write_rows(tmp_path / name, [{"id": 1, "text": "one"}])
    else:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(RunError, match=message):
        dedup(str(tmp_path / name), "-", Recipe(), Run(progress=False))


def test_csv_is_a_stream_when_it_is_alone(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_bytes(b"text\none and the same\nOne and the same\n")
    done = program("run", "a.csv", "-o", "-", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"text\none and the same\n")
    two = program("run", "a.csv", "b.csv", "-o", "-", cwd=tmp_path)
    assert two.returncode == 2
    assert b"files of CSV have a header each" in two.stderr


def test_options_that_do_not_go_with_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    path = str(tmp_path / "a.jsonl")
    for output, run, message in (
        ("-", Run(dry_run=True), "dry-run writes nothing, and -o - is standard output"),
        ("-", Run(write="mask"), "--write mask needs a folder"),
        ("-", Run(keep_removed=True), "--keep-removed needs a folder"),
        (str(tmp_path / "out"), Run(report="log"), "report names a folder for what -o - leaves"),
    ):
        with pytest.raises(RunError, match=message):
            dedup(path, output, Recipe(), run)
    assert not (tmp_path / "out").exists()
