"""Ids of every type that a column can have: as text, exactly, and the log says what they were."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import harness
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpu_dedup import Recipe
from gpu_dedup.batch import TypedText

TEXT = "one text that all of the rows have"
UUIDS = [UUID(int=5), UUID("12345678-1234-5678-1234-567812345678")]
WHEN = [dt.datetime(2020, 1, 2, 3, 4, 5, 6), dt.datetime(2021, 1, 1)]

# Values, what the log has for the second (removed) and first (kept) row, and the type.
COLUMNS: list[tuple[str, Any, tuple[str | None, str | None], str]] = [
    ("binary", pa.array([b"a", b"b"]), ("b", "a"), "string"),
    ("no-text", pa.array([b"\x00\xff", b"\xff\xfe"]), ("fffe", "00ff"), "bytes"),
    ("fixed", pa.array([b"ab", b"\xff\x00"], pa.binary(2)), ("ff00", "6162"), "bytes"),
    ("decimal", pa.array([Decimal("1.50"), Decimal("2.00")], pa.decimal128(10, 2)), ("2.00", "1.50"), "Decimal"),
    ("wide", pa.array([Decimal("1.5"), Decimal(10**40)], pa.decimal256(60, 1)), (f"{10**40}.0", "1.5"), "Decimal"),
    ("timestamp", pa.array(WHEN, pa.timestamp("us")),
     ("2021-01-01 00:00:00.000000", "2020-01-02 03:04:05.000006"), "timestamp"),
    ("seconds", pa.array([0, 1], pa.timestamp("s")),
     ("1970-01-01 00:00:01", "1970-01-01 00:00:00"), "timestamp"),
    ("date", pa.array([dt.date(2020, 1, 2), dt.date(2021, 1, 1)]), ("2021-01-01", "2020-01-02"), "date"),
    ("time", pa.array([dt.time(1, 2, 3), dt.time(4, 5, 6)]), ("04:05:06.000000", "01:02:03.000000"), "time"),
    ("duration", pa.array([dt.timedelta(seconds=5), dt.timedelta(days=1)]),
     (str(86_400 * 10**6), str(5 * 10**6)), "int"),
    ("uint64", pa.array([2**64 - 1, 0], pa.uint64()), ("0", str(2**64 - 1)), "int"),
    ("int8", pa.array([-5, 5], pa.int8()), ("5", "-5"), "int"),
    ("float", pa.array([0.1, float("nan")]), ("nan", "0.1"), "float"),
    ("bool", pa.array([True, False]), ("false", "true"), "bool"),
    ("null", pa.nulls(2), (None, None), "null"),
    ("words", pa.array(["a", "b"]).dictionary_encode(), ("b", "a"), "string"),
    ("list", pa.array([[1, 2], [3]]), ("[3]", "[1,2]"), "list"),
    ("struct", pa.array([{"a": 1, "b": "x"}, {"a": 2, "b": None}]), ('{"a":2,"b":null}', '{"a":1,"b":"x"}'), "object"),
]  # fmt: skip


def log_of(tmp_path: Path, array: Any, kind: str, **recipe: Any) -> list[dict[str, Any]]:
    table = pa.table({"text": [TEXT] * len(array), "id": array})
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as made:
            made.write_table(table)
    return harness.run(path, tmp_path / "out", Recipe(**recipe), backend="numpy").removed


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize(("name", "array", "texts", "type_"), COLUMNS, ids=[entry[0] for entry in COLUMNS])
def test_types_of_ids(
    tmp_path: Path, name: str, array: Any, texts: tuple[str | None, str | None], type_: str, kind: str
) -> None:
    if kind == "parquet" and name == "seconds":
        pytest.skip("Parquet has no timestamps in seconds")
    (entry,) = log_of(tmp_path, array, kind)
    assert (entry["id"], entry["kept_id"], entry["id_type"]) == (*texts, type_)


@pytest.mark.skipif(not hasattr(pa, "uuid"), reason="pyarrow before 18 has no UUID type")
def test_uuids(tmp_path: Path) -> None:
    (entry,) = log_of(tmp_path, pa.array([uuid.bytes for uuid in UUIDS], pa.uuid()), "arrow")
    assert (entry["id"], entry["kept_id"], entry["id_type"]) == (str(UUIDS[1]), str(UUIDS[0]), "uuid")


def test_one_column_may_hold_both(tmp_path: Path) -> None:
    log = log_of(tmp_path, pa.array([b"x", b"text", b"\xff", None]), "parquet")
    assert [(entry["id"], entry["id_type"]) for entry in log] == [("text", "string"), ("ff", "bytes"), (None, "null")]


@pytest.mark.parametrize(
    ("array", "kept"),
    [
        (pa.array([dt.date(2020, 12, 2), dt.date(2021, 1, 1), dt.date(1999, 9, 9)]), "2021-01-01"),
        (pa.array([dt.timedelta(seconds=9), dt.timedelta(seconds=10), dt.timedelta(seconds=1)]), str(10**7)),
        (pa.array(["a", "c", "b"]).cast(pa.binary()), "c"),
    ],
)
def test_the_keeper_compares_them_in_their_order(tmp_path: Path, array: Any, kept: str) -> None:
    assert {entry["kept_id"] for entry in log_of(tmp_path, array, "parquet", keep="max:id")} == {kept}


def test_typed_text_is_text_and_travels() -> None:
    one = TypedText("2020-01-01", "date")
    again = pickle.loads(pickle.dumps(one))
    assert (one, one.kind, again, again.kind) == ("2020-01-01", "date", "2020-01-01", "date")
    assert one < TypedText("2021-01-01", "date")


def test_nested_ids_and_those_of_lines(tmp_path: Path) -> None:
    ids: list[Any] = [{"k": 1}, {"k": "x"}, {"k": 10**25}, {"k": 1.5}, {"k": None}, {}, None]
    path = harness.write_rows(tmp_path / "a.jsonl", [{"text": TEXT, "meta": value} for value in ids])
    log = harness.run(path, tmp_path / "out", Recipe(id_field="meta.k"), backend="numpy").removed
    assert [(entry["id"], entry["id_type"]) for entry in log] == [
        ("x", "string"), (str(10**25), "int"), ("1.5", "float"), (None, "null"), (None, "missing"), (None, "missing"),
    ]  # fmt: skip
    assert {entry["kept_id"] for entry in log} == {"1"}
