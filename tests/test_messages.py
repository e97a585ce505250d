"""What a stranger reads who has made a mistake: one line, with the place, the value and the remedy, and exit code 2."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import harness
import pyarrow as pa
import pytest

from gpu_dedup import cli
from gpu_dedup.pipeline import dedup
from gpu_dedup.recipe import Recipe
from gpu_dedup.run import Run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ok.jsonl").write_bytes(b'{"id": 1, "text": "a b c", "score": 1}\n' * 2)
    (tmp_path / "case.jsonl").write_bytes(b'{"id": 1, "Text": "a b c"}\n')
    (tmp_path / "table.csv").write_bytes(b"id,Body Text\n1,a\n")
    harness.write_rows(tmp_path / "table.parquet", [{"id": 1, "Content": "a"}])
    with pa.ipc.new_file(str(tmp_path / "table.arrow"), pa.schema([("texts", pa.string())])) as writer:
        writer.write_table(pa.table({"texts": ["a"]}))
    (tmp_path / "shop" / "crawl").mkdir(parents=True)
    (tmp_path / "notes.docx").write_bytes(b"PK")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_bytes(b"")
    return tmp_path


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line that the program ends with. Nothing else is said with --quiet, and nothing is left."""
    before = sorted(os.listdir("."))
    code = cli.main([*arguments, "--quiet"] if arguments[0] == "run" else list(arguments))
    said = capsys.readouterr()
    assert (code, said.out) == (2, ""), said
    assert said.err.startswith("gpu-dedup: ")
    assert said.err.count("\n") == 1
    assert sorted(os.listdir(".")) == before
    return said.err.removeprefix("gpu-dedup: ").rstrip("\n").replace(f"{os.getcwd()}/", "")


RUN = ("run", "ok.jsonl", "-o", "out")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        # the field
        (
            ("run", "case.jsonl", "-o", "out", "--text-field", "text"),
            'case.jsonl:1: no field "text" (fields here: id, Text; is it Text?; name the right one with --text-field); '
            "mend it, or pass --on-bad-row skip (left out) or keep (copied)",
        ),
        (
            ("run", "table.csv", "-o", "out", "--text-field", "body_text"),
            "table.csv: no column body_text (columns here: id, Body Text; is it Body Text?); name the right one with "
            "--text-field, or pass --on-bad-file skip",
        ),
        (
            ("run", "table.parquet", "-o", "out", "--text-field", "contents"),
            "table.parquet: no column contents (columns here: id, Content; is it Content?); name the right one with "
            "--text-field, or pass --on-bad-file skip",
        ),
        (
            ("run", "table.arrow", "-o", "out", "--text-field", "url"),
            "table.arrow: no column url (columns here: texts); name the right one with --text-field, or pass "
            "--on-bad-file skip",
        ),
        (
            (*RUN, "--keep", "max:Score"),
            "keep max:Score: no row has a value in the field 'Score' (fields here: id, text, score; is it score?); "
            "name a field that rows have, or keep by another rule",
        ),
        (
            ("run", "ok.jsonl", "-o", "out", "--method", "bloom", "--capacity", "9", "--key-field", "url"),
            'ok.jsonl:1: no field "url" (fields here: id, text, score; name the right one with --key-field)',
        ),
        (
            ("run", "table.csv", "-o", "out", "--method", "bloom", "--capacity", "9", "--key-field", "ID"),
            "table.csv: no column ID (columns here: id, Body Text; is it id?); name the right one with --key-field, or",
        ),
        (
            ("run", "table.parquet", "-o", "out", "--method", "bloom", "--capacity", "9", "--key-field", "id"),
            "table.parquet: column id holds int64, not text; name another with --key-field, or",
        ),
        # the path
        (("run", "OK.jsonl", "-o", "out"), "OK.jsonl: no such file or folder; is it ok.jsonl?"),
        (("run", "shop/craw/", "-o", "out"), "shop/craw/: no such file or folder; is it shop/crawl?"),
        (("run", "other.jsonl", "-o", "out"), "other.jsonl: no such file or folder; check the name"),
        (("run", "*.jsonl.gz", "-o", "out"), "*.jsonl.gz: no file matches; check the pattern"),
        (("show", "nowhere", "1"), "nowhere: no finished run of gpu-dedup here; give the folder of run -o"),
        (
            ("undo", "shop", "-o", "x"),
            "shop/_gpu_dedup/report.json: no finished run of gpu-dedup here; give the folder of run -o",
        ),
        # the output
        (("run", "ok.jsonl"), "-o is missing: name a new folder for the result, or pass --dry-run"),
        (("run", "ok.jsonl", "-o", "ok.jsonl"), "ok.jsonl: is a file; give a folder, new or empty"),
        (
            ("run", "ok.jsonl", "-o", "full"),
            "full: is not empty (thesis.txt) and not an output of gpu-dedup; choose a new or an empty folder",
        ),
        (("run", "shop", "-o", "shop"), "shop: no input in this folder"),
        # the machine
        ((*RUN, "--memory", "8"), "memory 8 bytes is too little; the least that works is 256MB"),
        ((*RUN, "--device", "cpu", "--gpus", "1"), "gpus 1 asks for GPUs but device or backend is a CPU's; drop one"),
        ((*RUN, "--backend", "cuda", "--device", "cpu"), "backend cuda runs on the GPU but device is cpu; drop one"),
        # options beside each other
        ((*RUN, "--method", "exact", "--threshold", "0.7"), "--threshold means nothing with --method exact; drop it"),
        ((*RUN, "--method", "cascade", "--keep", "none"), "cascade decides by the rank rule alone; drop keep none"),
        ((*RUN, "--method", "cascade", "--far-jaccard", "0"), "far-jaccard 0 is outside 0 to 1 (more than 0); give"),
        ((*RUN, "--method", "cascade", "--far-jaccard", "2"), "far-jaccard 2 is outside 0 to 1; give"),
        (
            (*RUN, "--method", "bloom"),
            "--method bloom needs --capacity N: the most different rows that its filter will hold, those of later runs "
            "included (gpu-dedup explain --method bloom INPUT proposes one)",
        ),
        (
            (*RUN, "--method", "bloom", "--capacity", "1M"),
            "capacity '1M' is not a whole number; give digits alone, such as 1000000",
        ),
        (
            (*RUN, "--method", "simhash", "--weights", "tfidf", "--save-df-table", "shop"),
            "save-df-table 'shop' is a folder; name a file for the table",
        ),
        ((*RUN, "--bands", "3"), "bands and rows go together; give both, or neither to have them solved"),
        ((*RUN, "--lines"), "lines is for plain text, and no input is plain text; drop it, or pass --format txt"),
        ((*RUN, "--lines", "--format", "csv"), "lines is for plain text, and the format is csv; drop one"),
        ((*RUN, "--report", "log"), "report names a folder for what -o - leaves; here it is in the output folder"),
        (
            (*RUN, "--write", "mask", "--keep-removed"),
            "write mask leaves the input as it is, so keep-removed has nothing",
        ),
        ((*RUN, "--limit", "1", "--keep-removed"), "keep-removed is for getting all of the input back, and --limit"),
        # the name of an option, or of a choice
        ((*RUN, "--treshold", "0.8"), "No such option '--treshold'. (Did you mean one of:"),
        ((*RUN, "--method", "minhsh"), "method 'minhsh' is unknown; choose one of minhash,"),
        ((*RUN, "--threshold", "80"), "threshold 80 is outside 0 to 1; give a share such as 0.8"),
        ((*RUN, "--format", "xml"), "format 'xml' is unknown; choose one of jsonl, csv, tsv, txt, parquet, arrow"),
    ],
)
def test_a_mistake_and_its_line(
    arguments: tuple[str, ...], line: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mistake(capsys, *arguments).startswith(line)


@pytest.mark.parametrize("method", ["bloom", "lshbloom"])
def test_explain_proposes_a_capacity(here: Path, capsys: pytest.CaptureFixture[str], method: str) -> None:
    harness.write_rows(here / "rows.parquet", [{"id": i, "text": f"text {i}"} for i in range(250)])
    assert cli.main(["explain", "--method", method, "rows.parquet"]) == 0
    said = capsys.readouterr()
    assert "no --capacity: reckoned with 380, half as many again as there seem to be rows" in said.err
    assert "capacity 380" in said.out
    assert cli.main(["explain", "--method", method, "--documents", "1000000"]) == 0
    assert "reckoned with 1500000" in capsys.readouterr().err


def test_an_unknown_kind_of_file_lists_the_known(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = mistake(capsys, "run", "notes.docx", "-o", "out")
    assert said.startswith("notes.docx: unknown kind of file; known endings are .jsonl, ")
    assert said.endswith("; or say what it is with --format")
    for ending in (".csv", ".tsv", ".txt", ".md", ".parquet", ".arrow", ".feather"):
        assert ending in said


def test_a_gpu_that_is_asked_for_and_missing(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_dedup import backend
    from gpu_dedup.errors import RunError

    def no_gpu() -> Any:
        raise RunError("the GPU backend needs CuPy, which is not installed; pip install 'gpu-dedup[cuda13]'")

    monkeypatch.setattr(backend, "_gpu", no_gpu)
    for options in (("--device", "gpu"), ("--backend", "cuda"), ("--gpus", "2")):
        said = mistake(capsys, *RUN, *options)
        assert said.startswith("the GPU backend needs CuPy, which is not installed; pip install")


def test_what_may_not_be_read_or_written(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    access = os.access  # permissions do not bind root, so the answer is given here
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: not str(path).endswith("ok.jsonl") and access(path, mode))
        assert mistake(capsys, *RUN) == "ok.jsonl: no permission to read; change it or leave out the file"
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: mode == os.R_OK)
        said = mistake(capsys, *RUN)
        assert said.endswith(": no permission to write; change the permission, or choose another output folder")


def test_a_disk_that_is_full(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(os, "writev", full)
    said = mistake(capsys, *RUN)
    assert said.startswith("out/_gpu_dedup/tmp/new/ok.jsonl: no space left on the disk; free some, or choose another")


def test_an_id_field_that_no_row_has_is_told(here: Path, tmp_path: Path) -> None:
    report = dedup("ok.jsonl", "out", Recipe(id_field="ID"), Run(progress=False))
    assert (
        "no row of the log has a value in the id field 'ID' (fields here: id, text, score; is it id?); "
        "name another with --id-field"
    ) in report.warnings
    for recipe in (Recipe(id_field="score"), Recipe()):
        report = dedup("ok.jsonl", str(tmp_path / f"out-{recipe.id_field}"), recipe, Run(progress=False))
        assert not any("id field" in warning for warning in report.warnings)
