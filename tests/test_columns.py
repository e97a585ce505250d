"""Arrow arrays that are laid out by hand, against those of pyarrow itself; and that pandas is never imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_dedup import columns


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=70))
def test_integers(values: list[int | None]) -> None:
    absent = np.array([v is None for v in values], bool)
    made = columns.integers(np.array([v or 0 for v in values], np.int64), absent)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.int64()))
    assert made.null_count == absent.sum()


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=False)), max_size=70))
def test_floats(values: list[float | None]) -> None:
    made = columns.floats(np.array([np.nan if v is None else v for v in values], np.float64))
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.float64()))


@given(st.lists(st.one_of(st.none(), st.booleans()), max_size=70))
def test_flags(values: list[bool | None]) -> None:
    made = columns.flags(np.array([bool(v) for v in values], bool), np.array([v is None for v in values], bool))
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.bool_()))


@given(st.lists(st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]))), max_size=70))
def test_texts(values: list[str | None]) -> None:
    made = columns.texts(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.large_string()))


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=70), st.integers(0, 9))
def test_numbers(values: list[int | None], start: int) -> None:
    array = pa.array(values, pa.int64())[start:]
    there = [v is not None for v in values[start:]]
    assert columns.numbers(array)[there].tolist() == [v for v in values[start:] if v is not None]


def test_named() -> None:
    made = columns.named(("no", None, "yes"), np.array([2, 0, 1, 2]), np.array([False, False, False, True]))
    assert made.type == pa.string()
    assert made.to_pylist() == ["yes", "no", None, None]


@pytest.mark.parametrize(
    "given",
    [[1, None, 3], ["a", None], [], np.arange(3, dtype=np.int32), np.array([1.5, np.nan]), np.array([True, False])],
    ids=str,
)
def test_columns(given: object) -> None:
    expected = pa.array(given, from_pandas=True)
    made = columns.column(given)
    assert made.to_pylist() == expected.to_pylist()
    assert columns.column(made) is made
    assert columns.column(pa.chunked_array([made, made])).to_pylist() == 2 * expected.to_pylist()


def test_a_run_never_imports_pandas(tmp_path: Path) -> None:
    """A pandas that leaves a file when it is imported stands in for one that takes 0.2 s."""
    (tmp_path / "pandas.py").write_text("open('imported', 'w').close()\n", encoding="utf-8")
    text = "one text that comes two times in this file of lines, so that something is removed"
    lines = [json.dumps({"id": number, "text": text}) for number in range(2)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "gpu_dedup", "run", "in.jsonl", "-o", "out", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "imported").exists()
    report = json.loads((tmp_path / "out" / "_gpu_dedup" / "report.json").read_bytes())
    assert report["result"]["counts"]["removed"] == 1
