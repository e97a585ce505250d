"""The field of the text when nobody names it: taken only where one alone can be meant, and said."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import harness
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpu_dedup import Recipe, cli
from gpu_dedup.errors import InputError
from gpu_dedup.read import discover, guess_text_field
from gpu_dedup.read.guess import LONG, RECORDS, choose

LONGER = "a sentence of some length that goes on and on, " * 4
FORMATS = ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrow", "a.csv"]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".arrow":
        table = pa.Table.from_pylist(rows)
        with pa.ipc.new_file(path, table.schema) as made:
            made.write_table(table)
    else:
        harness.write_rows(path, rows)
    return path


def guess(path: Path) -> str | None:
    found = guess_text_field(discover([str(path)], None))
    return found and found.field


@pytest.mark.parametrize(
    ("records", "field"),
    [
        ([{"content": 5}], "content"),
        ([{"text": 5, "content": 500}], None),
        ([{"text": None, "content": 500}], "content"),  # a text that is no string is no text
        ([{"content": 5, "body": 5}], None),
        ([{"content": None, "body": 5}], "body"),
        ([{"id": 5, "story_of_it": LONG}], "story_of_it"),
        ([{"id": 5, "story_of_it": LONG - 1}], None),
        ([{"a": LONG, "b": LONG}], None),
        ([{"a": LONG, "content": 1}], "content"),
        ([{"a": LONG}, {"a": 2}, {"a": 3 * LONG}, {"a": LONG}], "a"),
        ([{"a": LONG}, {"b": 1}], "a"),
        ([{"a": LONG}, {"b": 1}, {"b": 1}], None),  # in too few of them
        ([{"Content": 5}], None),
        ([{}], None),
    ],
)
def test_choice(records: list[dict[str, int | None]], field: str | None) -> None:
    found = choose(records)
    assert (found and found.field) == field


@pytest.mark.parametrize("name", FORMATS)
def test_fields_of_files(tmp_path: Path, name: str) -> None:
    rows: list[dict[str, Any]] = [
        {"id": i, "score": 0.5, "url": "http://x", "words": LONGER + str(i)} for i in range(4)
    ]
    assert guess(write(tmp_path / "long" / name, rows)) == "words"
    for row in rows:
        row["body"] = "short"
    assert guess(write(tmp_path / "usual" / name, rows)) == "body"
    for row in rows:
        row["text"] = ""
    assert guess(write(tmp_path / "text" / name, rows)) is None


def test_odd_records_are_passed_over(tmp_path: Path) -> None:
    lines = [
        b"\n",
        b"no json\n",
        b"[1]\n",
        b"\xff\n",
        b"[" * 2000 + b"\n",
        b'{"content": "\\ud800", "n": ' + b"9" * 5000 + b"}\n",
    ]
    assert guess(harness.write_lines(tmp_path / "a.jsonl", lines)) == "content"
    harness.write_lines(tmp_path / "empty" / "a.jsonl", [])
    harness.write_lines(tmp_path / "empty" / "b.jsonl", [b"\n"])
    harness.write_lines(tmp_path / "empty" / "c.jsonl", [b'{"body": "x"}'])
    assert guess(tmp_path / "empty") == "body"
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "a.parquet").write_bytes(b"PAR1 and no more")
    harness.write_lines(tmp_path / "damaged" / "b.jsonl", [b'{"body": "x"}'])
    assert guess(tmp_path / "damaged") == "body"


def test_only_the_first_records_are_looked_at(tmp_path: Path) -> None:
    rows = [{"content": "x"}] * RECORDS + [{"text": "y"}]
    assert guess(harness.write_rows(tmp_path / "a.jsonl", rows)) == "content"
    assert guess(harness.write_rows(tmp_path / "b.jsonl", rows[1:])) is None


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()]
)
def test_text_types_of_columns(tmp_path: Path, kind: Any) -> None:
    table = pa.table({"n": [1, 2], "words": pa.array([LONGER, None], pa.string()).cast(kind), "none": pa.nulls(2)})
    pq.write_table(table, tmp_path / "a.parquet")
    assert guess(tmp_path / "a.parquet") == "words"


def test_a_run_says_what_it_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": i, "content": LONGER, "title": f"t{i}"} for i in range(3)]
    source = harness.write_rows(tmp_path / "in" / "a.jsonl", rows)
    ran = harness.run(source, tmp_path / "out")
    assert ran.groups == {"0": ["1", "2"]}
    assert ran.report["result"]["recipe"]["text_field"] == ["content"]
    assert any("took content" in line and "--text-field" in line for line in ran.report["result"]["warnings"])
    named = harness.run(source, tmp_path / "named", Recipe(text_field=("content",)))
    assert named.report["result"]["fingerprint"] == ran.report["result"]["fingerprint"]
    assert named.report["result"]["warnings"] == []
    assert cli.main(["run", str(source), "-o", str(tmp_path / "said")]) == 0
    said = capsys.readouterr()
    assert "took content" in said.err
    assert "took content" in said.out
    assert cli.main(["explain", str(source)]) == 0
    said = capsys.readouterr()
    assert "took content" in said.err
    assert ran.report["result"]["fingerprint"] in said.out


def test_a_named_field_is_the_field(tmp_path: Path) -> None:
    source = harness.write_rows(tmp_path / "a.jsonl", [{"content": LONGER, "title": "x"}])
    with pytest.raises(
        InputError, match=r'no field "text" \(fields here: content, title; name the right one with --text-field'
    ):
        harness.run(source, tmp_path / "out", Recipe(text_field=("text",)))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a.jsonl", r'a.jsonl:1: no field "text" \(fields here: content, body; name the right one with --text-field'),
        (
            "a.parquet",
            r"a.parquet: no column text \(columns here: content, body\); name the right one with --text-field",
        ),
    ],
)
def test_where_two_could_be_meant_the_fields_are_listed(tmp_path: Path, name: str, words: str) -> None:
    source = harness.write_rows(tmp_path / name, [{"content": LONGER, "body": "x"}])
    with pytest.raises(InputError, match=words):
        harness.run(source, tmp_path / "out")


def test_the_fingerprint_is_that_of_text() -> None:
    values = {"bands": 9, "rows": 13, "sieve_cut": 0}
    assert Recipe(**values).fingerprint() == Recipe(text_field=("text",), **values).fingerprint()
    assert json.loads(json.dumps(Recipe(**values).as_dict()))["text_field"] == ["text"]
