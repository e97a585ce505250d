"""The report and the log of removals: what is written is what is read, and sums that do not hold are refused."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpu_dedup import __version__
from gpu_dedup.batch import MISSING
from gpu_dedup.errors import InputError, InternalError, OutputError
from gpu_dedup.report import (
    COLUMNS,
    BadRow,
    Collisions,
    Counts,
    Group,
    HeavyBucket,
    InputFile,
    RemovalLog,
    Report,
    Verification,
    describe,
    id_text,
    log_files,
    removals,
    same_result,
    share_text,
    short_texts_warning,
)

RECIPE = {
    "method": "minhash", "shingle": "token:5", "bands": 17, "rows": 7, "threshold_ppm": 800_000, "keep": "first",
    "bucket_cap": 256, "normalize": ["nfkc", "lower", "whitespace"],
}  # fmt: skip


def sample() -> Report:
    report = Report(recipe=dict(RECIPE), fingerprint="0123456789abcdef" * 2)
    report.inputs = [
        InputFile("a.jsonl", "/data/a.jsonl", "jsonl", "", 5_000_000, "aa" * 8, 1200, 1000),
        InputFile("b.jsonl.gz", "/data/b.jsonl.gz", "jsonl", "gz", 1_000_000, "bb" * 8, 34, 30),
        InputFile("c.jsonl.gz", "/data/c.jsonl.gz", "jsonl", "gz", 77, None, 0, 0, "c.jsonl.gz: cut"),
    ]
    report.counts = Counts(read=1234, blank=2, bad=3, no_text=4, short=100, kept=1030, removed=204)
    report.counts.by_reason.update({"exact": 150, "near": 40, "exact+near": 11, "bad-row": 3})
    report.groups = 120
    report.largest_groups = [Group("a.jsonl", 17, "x\u001b[31m", 80), Group("b.jsonl.gz", 0, None, 3)]
    report.collisions = Collisions(
        documents=1080, pairs=900, candidates=70, buckets=300, largest=400, capped=1, histogram={"2": 299, "256": 1},
        heavy=[HeavyBucket(3, 400, ["all rights reserved by the"])],
    )  # fmt: skip
    report.verification = Verification(
        verified=60, matched=40, over_cap=0, components=30, largest_component=9, weakest=[81, 100]
    )
    report.bad_rows = [BadRow("a.jsonl", 8, 'no field "text"')] * 3
    report.bytes_read, report.text_bytes = 6_000_000, 9_000_000
    report.warnings = ["something to know"]
    machine = report.machine
    machine.output, machine.backend, machine.backend_why, machine.threads = "/out", "numba", "CPU", 2
    machine.start()
    machine.finish(3.0, {"read": 2.0, "verify": 0.5, "tiny": 0.0001})
    return report


def test_a_report_is_read_back_as_it_was(tmp_path: Path) -> None:
    report = sample()
    path = tmp_path / "report.json"
    report.save(str(path))
    assert Report.load(str(path)) == report
    assert os.listdir(tmp_path) == ["report.json"]


def test_machine_and_result_are_apart(tmp_path: Path) -> None:
    values = json.loads(sample().to_json())
    assert list(values) == ["format", "format_version", "version", "result", "machine"]
    assert values["version"] == __version__
    text = json.dumps(values["result"])
    for moving in ("/data", "/out", "seconds", "numba", "peak", "started"):
        assert moving not in text
    assert values["machine"]["paths"] == ["/data/a.jsonl", "/data/b.jsonl.gz", "/data/c.jsonl.gz"]
    assert values["machine"]["peak_memory"] > 1 << 20
    assert values["machine"]["started"].endswith("Z")


def test_same_result_looks_past_the_machine() -> None:
    one, other = sample(), sample()
    other.machine.seconds, other.machine.output, other.inputs[0].path = 99.0, "/else", "/moved/a.jsonl"
    assert same_result(one, other) == []
    other.counts.kept += 1
    other.groups += 1
    assert same_result(one, other) == ["counts", "groups"]


def test_numpy_numbers_become_json_and_nan_does_not() -> None:
    report = sample()
    report.groups = np.int64(7)
    report.machine.stages = {"read": np.float64(0.5)}
    values = json.loads(report.to_json())
    assert values["result"]["groups"] == 7
    assert values["machine"]["stages"] == {"read": 0.5}
    report.machine.seconds = float("nan")
    with pytest.raises(InternalError, match="nan"):
        report.to_json()
    report.machine.seconds = 1.0
    report.warnings = [{1, 2}]  # type: ignore[list-item]
    with pytest.raises(InternalError, match="set"):
        report.to_json()


def test_load_names_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no finished run"):
        Report.load(str(tmp_path))
    path = tmp_path / "report.json"
    path.write_text("{")
    with pytest.raises(InputError, match="cannot be read as a report"):
        Report.load(str(path))
    path.write_text('{"format": "other"}')
    with pytest.raises(InputError, match="not a report of gpu-dedup"):
        Report.load(str(path))
    values = sample().to_dict()
    values["format_version"] = 99
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match="format version 99"):
        Report.load(str(path))
    values = sample().to_dict()
    del values["result"]["counts"]["kept"], values["result"]["counts"]
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match="damaged report"):
        Report.load(str(path))


def test_save_into_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as caught:
        sample().save(str(tmp_path / "no" / "report.json"))
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "no" / "report.json") in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: setattr(r.counts, "kept", 1029), "is not read"),
        (lambda r: r.counts.by_reason.update({"near": 41}), "do not add up"),
        (lambda r: setattr(r.counts, "flagged", 1), "flags by reason"),
        (lambda r: setattr(r.inputs[0], "rows", 1), "rows by file"),
        (lambda r: setattr(r.inputs[0], "kept", 1), "kept by file"),
    ],
)
def test_check_refuses_sums_that_do_not_hold(change: Any, words: str) -> None:
    report = sample()
    report.check()
    change(report)
    with pytest.raises(InternalError, match=words):
        report.check()


def test_summary_says_what_came_and_went() -> None:
    text = sample().summary()
    assert "1,234  rows from 2 files, 6 MB, 9 MB of text" in text
    assert "1,030  83.5 %" in text
    assert "204  16.5 %" in text
    for line in ("150  exact copies", "40  near copies", "11  exact copies of a near copy", "3  bad rows"):
        assert line in text
    assert "2 blank lines dropped" in text
    assert "copied through" not in text
    assert "1,080  different texts; 4 rows without a unit, 100 rows shorter than a shingle" in text
    assert "70  pairs of 900 collisions passed the sieve; 60 verified, 40 matched" in text
    assert "0.8100  the least similarity of a row that goes" in text
    assert "largest 400; 1 bucket over the cap of 256" in text
    assert "all rights reserved by the" in text
    assert "80  rows like a.jsonl row 17  id x\\x1b[31m\n" in text
    assert "3  rows like b.jsonl.gz row 0\n" in text
    assert "\x1b" not in text
    assert "a.jsonl 16.7 %; b.jsonl.gz 11.8 %" in text
    assert "3.00 s  read 2.00 s, verify 0.50 s\n" in text
    assert "2 MB/s  of input, 3 MB/s of text" in text
    assert "2 threads, numba (CPU)" in text
    assert "c.jsonl.gz: cut" in text
    assert 'a.jsonl:8: no field "text"' in text
    assert "/out/_gpu_dedup/removed.parquet" in text
    assert "something to know" in text


def test_summary_of_nothing_is_no_error() -> None:
    text = Report(recipe={"method": "exact", "normalize": [], "keep": "first"}).summary()
    assert "exact copies, normalize none, keep first" in text
    assert "0  rows from 0 files" in text
    report = Report(recipe=dict(RECIPE), collisions=Collisions())
    report.machine.dry_run = True
    assert "dry run: nothing was written" in report.summary()


def test_summary_of_flags_and_of_bad_rows_that_stay() -> None:
    report = Report(recipe=dict(RECIPE))
    report.counts = Counts(read=10, bad=2, kept=10, flagged=3)
    report.counts.flagged_by_reason.update({"near": 3})
    text = report.summary()
    assert "3  30.0 %, all of them kept" in text
    assert "2 bad rows copied through" in text


def test_describe_and_share_text() -> None:
    assert describe(RECIPE) == "minhash token:5, 17 bands x 7 rows, threshold 0.8, keep first"
    fast = {**RECIPE, "sketch": "fast"}
    assert describe(fast) == "minhash token:5, 17 bands x 7 rows of a fast sketch, threshold 0.8, keep first"
    assert [share_text(ppm) for ppm in (800_000, 1_000_000, 1, 123_456, 0)] == ["0.8", "1", "0.000001", "0.123456", "0"]


def test_many_short_texts_are_worth_a_line() -> None:
    counts = Counts(read=100, bad=0, short=19)
    assert short_texts_warning(counts, RECIPE) is None
    counts.short = 20
    warning = short_texts_warning(counts, RECIPE)
    assert warning is not None
    assert "20.0 % of the texts have fewer than 5 token units" in warning
    assert "--shingle token:2" in warning
    other = short_texts_warning(counts, {"shingle": "char:8"})
    assert other is not None
    assert "try --shingle char:4 (" in other
    assert short_texts_warning(Counts(), RECIPE) is None


@pytest.mark.parametrize(
    ("value", "text", "kind"),
    [
        ("a", "a", "string"), ("", "", "string"), ("x\ud835", "x\\ud835", "string"), (7, "7", "int"),
        (2**70, "1180591620717411303424", "int"), (True, "true", "bool"), (False, "false", "bool"),
        (0.1, "0.1", "float"), (1e22, "1e+22", "float"), (-0.0, "-0.0", "float"), (float("inf"), "inf", "float"),
        (None, None, "null"), (MISSING, None, "missing"), ([1, "é"], '[1,"é"]', "list"),
        ({"a": None}, '{"a":null}', "object"),
        (b"\x00\xff", "00ff", "bytes"),
    ],
)  # fmt: skip
def test_id_text(value: Any, text: str | None, kind: str) -> None:
    assert id_text(value) == (text, kind)


def test_id_text_of_an_integer_too_long_for_str() -> None:
    text, kind = id_text(10**5000 + 7)
    assert kind == "int"
    assert text == "1" + "0" * 4999 + "7"


def columns(file: list[str], row: list[int], **more: Any) -> dict[str, Any]:
    n = len(row)
    return {
        "file": file, "row": row, "id_type": ["missing"] * n, "reason": ["near"] * n, "action": ["remove"] * n, **more
    }  # fmt: skip


def test_the_log_is_read_back_with_its_schema(tmp_path: Path) -> None:
    path = str(tmp_path / "removed.parquet")
    with RemovalLog(path, "f" * 32) as log:
        log.append(
            columns(
                ["a", "a"], [3, 9], id=["x", None], id_type=["string", "null"], kept_file=["a", None],
                kept_row=np.array([1, -1]), kept_id=["w", None], shared=np.array([4, -1]), union=np.array([5, -1]),
                reason=["near", "bad-row"], guarantee=["kept-witness", None], witness_kept=[True, None],
                linked_row=np.array([-1, -1]), linked_similarity=np.array([np.nan, np.nan]),
            )
        )  # fmt: skip
        assert not os.path.exists(path)
        log.append(columns([], []))
    assert os.listdir(tmp_path) == ["removed.parquet"]
    table = pq.read_table(path)
    assert table.column_names == list(COLUMNS)
    types = {str(field.type) for field in table.schema}
    assert types == {"string", "int64", "double", "bool"}
    assert table.schema.metadata[b"gpu-dedup.recipe"] == b"f" * 32
    none = dict.fromkeys(("distance", "edit_similarity", "level", "linked_file", "linked_row", "linked_similarity"))
    assert table.to_pylist() == [
        {"file": "a", "row": 3, "id": "x", "id_type": "string", "kept_file": "a", "kept_row": 1, "kept_id": "w",
         "similarity": 0.8, "shared": 4, "union": 5, "reason": "near", "guarantee": "kept-witness",
         "witness_kept": True, "action": "remove", **none},
        {"file": "a", "row": 9, "id": None, "id_type": "null", "kept_file": None, "kept_row": None, "kept_id": None,
         "similarity": None, "shared": None, "union": None, "reason": "bad-row", "guarantee": None,
         "witness_kept": None, "action": "remove", **none},
    ]  # fmt: skip


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/o\xff")
    os.makedirs(f"{folder}/_gpu_dedup")
    path = f"{folder}/_gpu_dedup/removed.parquet"
    with RemovalLog(path, "") as log:
        log.append(columns(["a"], [3]))
    assert os.listdir(f"{folder}/_gpu_dedup") == ["removed.parquet"]
    assert [table["row"].to_pylist() for _, table in removals(folder)] == [[3]]
    with open(path, "r+b") as file:
        file.truncate(10)
    with pytest.raises(InputError, match=r"^'/.*o\\udcff/_gpu_dedup/removed\.parquet': cannot be read: "):
        list(removals(folder))
    with pytest.raises(OutputError, match=r"^'/.*o\\udcff/none/x': cannot be written"):
        RemovalLog(f"{folder}/none/x", "")

    report = sample()
    name, place = os.fsdecode(b"caf\xe9.jsonl"), os.fsdecode(b"/data/caf\xe9.jsonl")
    report.inputs[0].rel, report.inputs[0].path = name, place
    report.largest_groups[0].file = report.bad_rows[0].file = name
    report.recipe["text_field"] = [name]
    report.machine.output = folder
    report.save(f"{folder}/_gpu_dedup/report.json")
    values = json.loads(Path(f"{folder}/_gpu_dedup/report.json").read_bytes())
    escaped = r"caf\udce9.jsonl"
    assert values["result"]["inputs"][0]["rel"] == escaped  # as in the log: no lone surrogate for strict readers
    assert values["result"]["largest_groups"][0]["file"] == values["result"]["bad_rows"][0]["file"] == escaped
    loaded = Report.load(folder)
    assert loaded.inputs[0].rel == escaped
    assert loaded.inputs[0].path == place  # leads to the file
    assert loaded.recipe == report.recipe  # gives the fingerprint again
    assert same_result(loaded, report) == []
    assert f"80  rows like {escaped} row 17" in loaded.summary()
    loaded.summary().encode()
    with pytest.raises(InputError, match=r"^'.*udcff/nothing': no finished run"):
        Report.load(f"{folder}/nothing")


def test_a_log_on_a_disk_that_refuses_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "removed.parquet")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OutputError, match=r"removed\.parquet: .*size limit") as caught, RemovalLog(path, "") as log:
            log.append(columns(["a"] * 9999, list(range(9999)), id=[str(i * i) for i in range(9999)]))
        del log
        gc.collect()  # nothing is written, and nothing raised, by what is left of it
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_bad_rows_are_named_as_messages_name_them() -> None:
    """Lines of text count from 1, as in an editor, and records from 0, as in the log."""
    report = sample()
    report.inputs[1].rel, report.inputs[1].format = "b.parquet", "parquet"
    report.bad_rows = [BadRow("a.jsonl", 8, "why"), BadRow("b.parquet", 8, "why")]
    text = report.summary()
    assert "a.jsonl:8: why" in text
    assert "b.parquet row 7: why" in text


def test_an_empty_log_has_its_schema(tmp_path: Path) -> None:
    path = str(tmp_path / "removed.parquet")
    with RemovalLog(path, ""):
        pass
    table = pq.read_table(path)
    assert table.num_rows == 0
    assert table.column_names == list(COLUMNS)
    assert list(removals(path)) == []


@pytest.mark.parametrize("step", [1, 1000, 65_536, 70_001, 200_000])
def test_the_file_does_not_depend_on_how_rows_arrive(tmp_path: Path, step: int) -> None:
    if step == 1:
        total, group = 300, 100  # one row at a time, scaled down
    else:
        total, group = 200_000, RemovalLog.GROUP
    files = [f"f{i * 5 // total}" for i in range(total)]

    class Log(RemovalLog):
        GROUP = group

    def write(name: str, size: int) -> bytes:
        path = tmp_path / name
        with Log(str(path), "") as log:
            for start in range(0, total, size):
                stop = min(total, start + size)
                log.append(columns(files[start:stop], list(range(start, stop))))
            assert log.rows == total
        return path.read_bytes()

    written = write("one", step)
    assert written == write("other", total)
    meta = pq.ParquetFile(tmp_path / "one").metadata
    sizes = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
    assert sizes == [group] * (total // group) + [total % group] * (total % group > 0)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([columns(["a", "a"], [2, 2])], "out of order"),
        ([columns(["a", "a"], [2, 1])], "out of order"),
        ([columns(["a"], [2]), columns(["a"], [1])], "row 1 of a after row 2"),
        ([columns(["a", "b", "a"], [1, 1, 2])], "a second time"),
        ([columns(["a", "b"], [1, 1]), columns(["a"], [2])], "a second time"),
        ([columns(["a"], [1], colour=["red"])], "colour"),
        ([columns(["a"], [1], id=["x", "y"])], "2 rows, not 1"),
        ([columns(["a"], [1], reason=["other"])], "reason"),
        ([columns(["a"], [1], reason=[None])], "reason"),
        ([columns(["a"], [1], guarantee=["sure"])], "guarantee"),
        ([columns([None], [1])], "file"),
    ],
)
def test_the_log_refuses_what_breaks_its_promise(tmp_path: Path, parts: list[dict[str, Any]], words: str) -> None:
    path = tmp_path / "removed.parquet"

    def write() -> None:
        with RemovalLog(str(path), "") as log:
            for part in parts:
                log.append(part)

    with pytest.raises(InternalError, match=words):
        write()
    assert os.listdir(tmp_path) == []


def test_arrow_columns_are_taken_as_they_are(tmp_path: Path) -> None:
    path = str(tmp_path / "removed.parquet")
    with RemovalLog(path, "") as log:
        log.append(
            columns(
                pa.array(["a", "a"]).dictionary_encode(),
                np.array([1, 2]),
                id=pa.chunked_array([["x"], [None]], pa.large_string()),
            )
        )  # type: ignore[arg-type]
    assert pq.read_table(path)["id"].to_pylist() == ["x", None]
    assert pq.read_table(path)["file"].to_pylist() == ["a", "a"]


def test_a_log_in_parts_counts_on(tmp_path: Path) -> None:
    parts = tmp_path / "removed.parquet"
    parts.mkdir()
    for number in range(3):
        with RemovalLog(str(parts / f"part-{number}.parquet"), "") as log:
            log.append(columns([f"f{number}"] * 2, [number, number + 5]))
    assert [name.rpartition("/")[2] for name in log_files(str(tmp_path))] == [f"part-{i}.parquet" for i in range(3)]
    assert [(first, table["row"].to_pylist()) for first, table in removals(str(tmp_path), ["row"])] == [
        (0, [0, 5]), (2, [1, 6]), (4, [2, 7]),
    ]  # fmt: skip


def test_a_foreign_parquet_file_is_no_log(tmp_path: Path) -> None:
    pq.write_table(pa.table({"file": ["a"]}), tmp_path / "removed.parquet")
    with pytest.raises(InputError, match="not a removal log"):
        list(removals(str(tmp_path)))
    (tmp_path / "removed.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(InputError, match="cannot be read"):
        list(removals(str(tmp_path)))
    with pytest.raises(InputError, match=r"no removed\.parquet"):
        log_files(str(tmp_path / "none"))
