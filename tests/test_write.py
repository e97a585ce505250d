"""Output is the input less rows; nothing is half-written, whatever happens."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import errno
import fcntl
import gzip
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup.errors import InputError, InternalError, OutputError
from gpu_dedup.write import JsonlWriter, OutputFolder, copy_file, encode
from gpu_dedup.write import jsonl as jsonl_module
from gpu_dedup.write import parquet as parquet_module
from gpu_dedup.write.jsonl import BLOCK, survivors
from gpu_dedup.write.parquet import ParquetWriter

COMPRESSIONS = ("", "gz", "zst")


def plain(content, compression):
    """What a reader sees, by programs that are not ours."""
    if compression == "gz":
        return gzip.decompress(content)
    if compression == "zst":
        return pa.CompressedInputStream(pa.BufferReader(content), "zstd").read()
    return content


def lines_of(content):
    """Bytes as a padded array and line starts, cut at line feeds only."""
    parts = content.split(b"\n")
    parts = [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
    starts = np.cumsum([0, *map(len, parts)]).astype(np.int64)
    return np.frombuffer(content + bytes(64), np.uint8).copy(), starts, parts


def written(path, compression, chunks):
    with JsonlWriter(str(path), compression) as writer:
        for data, starts, keep in chunks:
            writer.write_lines(data, starts, np.asarray(keep, np.bool_))
    return path.read_bytes()


# -- JSONL ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(
    ("content", "keep", "expected"),
    [
        (b'{"a":1}\n{"a":2}\n{"a":3}\n', [1, 0, 1], b'{"a":1}\n{"a":3}\n'),
        (b'{"a":1}\r\n{"a":2}\r\n{"a":3}\r\n', [0, 1, 1], b'{"a":2}\r\n{"a":3}\r\n'),
        (b'{"a":1}\n{"a":2}', [1, 1], b'{"a":1}\n{"a":2}'),
        (b'{"a":1}\n{"a":2}', [0, 1], b'{"a":2}'),
        (b'{"a":1}\n{"a":2}', [1, 0], b'{"a":1}\n'),
        (b'{"a":1}\n\n  \n{"a":2}\n', [1, 0, 0, 1], b'{"a":1}\n{"a":2}\n'),
        ('{"a":"x\u2028y\u0085z"}\n{"a":2}\n'.encode(), [1, 0], '{"a":"x\u2028y\u0085z"}\n'.encode()),
        (b'\xff\xfe bad\n{"a":"\x00"}\n', [1, 1], b'\xff\xfe bad\n{"a":"\x00"}\n'),
        (b'{"a":1}\n{"a":2}\n', [0, 0], b""),
        (b"", [], b""),
    ],
)
def test_kept_lines_byte_for_byte(tmp_path, compression, content, keep, expected):
    data, starts, _ = lines_of(content)
    result = written(tmp_path / "out", compression, [(data, starts, keep)])
    assert plain(result, compression) == expected


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_bom_comes_first(tmp_path, compression):
    data, starts, _ = lines_of(b"one\ntwo\n")
    with JsonlWriter(str(tmp_path / "out"), compression) as writer:
        writer.write_bytes(b"\xef\xbb\xbf")
        writer.write_lines(data, starts, np.array([False, True]))
    assert plain((tmp_path / "out").read_bytes(), compression) == b"\xef\xbb\xbftwo\n"


def test_nothing_kept_is_a_valid_file_of_its_kind(tmp_path):
    for compression in COMPRESSIONS:
        with JsonlWriter(str(tmp_path / "out"), compression):
            pass
        content = (tmp_path / "out").read_bytes()
        assert plain(content, compression) == b""
        assert (len(content) == 0) == (compression == "")
    # an empty member without name or time, and an empty frame, by their formats' descriptions
    assert written(tmp_path / "out", "gz", []) == bytes.fromhex("1f8b0800000000000003 0300 00000000 00000000")
    assert written(tmp_path / "out", "zst", [])[:4] == bytes.fromhex("28b52ffd")


@given(
    lines=st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=40),
    last=st.booleans(),
    keep_seed=st.integers(0, 2**32),
    lead=st.integers(0, 5),
    short=st.sampled_from([0, 96, 10**9]),
)
def test_survivors_equal_a_plain_loop(lines, last, keep_seed, lead, short):
    content = b"".join(line + b"\n" for line in lines)
    if last and content:
        content = content[:-1]
    data, starts, parts = lines_of(content)
    keep = np.random.default_rng(keep_seed).random(len(parts)) < 0.5
    data = np.concatenate([np.full(lead, 7, np.uint8), data])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl_module, "SHORT", short)  # both ways of gathering, on the same lines
        got = b"".join(survivors(data, starts + lead, keep))
    assert got == b"".join(part for part, kept in zip(parts, keep, strict=True) if kept)


def test_survivors_take_a_readonly_array_and_part_of_the_lines():
    data, starts, _ = lines_of(b"a\nbb\nccc\ndddd\n")
    data.flags.writeable = False
    assert b"".join(survivors(data, starts[1:4], np.array([True, True]))) == b"bb\nccc\n"


def test_what_does_not_belong_together_is_refused():
    data, starts, _ = lines_of(b"a\nb\n")
    for wrong in ((data, starts, np.array([True])), (data[:1], starts, np.array([True, True]))):
        with pytest.raises(InternalError, match="do not belong together"):
            survivors(*wrong)


def big_chunks():
    """Chunks of 0 to 3 MB of poorly compressible lines, with what must come out."""
    rng = np.random.default_rng(11)
    chunks, expected = [], []
    for size in (3_000_000, 10_000, 700_000, 700_000, 0, 5_000, 1_500_000, 20):
        digits = rng.integers(97, 123, size).astype(np.uint8).tobytes()
        data, starts, parts = lines_of(b"".join(digits[i : i + 500] + b"\n" for i in range(0, size, 500)))
        keep = rng.random(len(parts)) < 0.7
        chunks.append((data, starts, keep))
        expected += [part for part, kept in zip(parts, keep, strict=True) if kept]
    return chunks, b"".join(expected)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_threads_do_not_change_a_byte(tmp_path, compression):
    chunks, expected = big_chunks()
    alone = written(tmp_path / "alone", compression, chunks)
    assert plain(alone, compression) == expected
    with ThreadPoolExecutor(3) as pool, JsonlWriter(str(tmp_path / "pool"), compression) as writer:
        for part in pool.map(lambda chunk: encode(*chunk, compression), chunks):
            writer.write(part)
    assert (tmp_path / "pool").read_bytes() == alone
    assert writer.bytes_written == len(alone)


@pytest.mark.parametrize("most", [1, 7, 4096])
def test_stretches_are_written_whole_whatever_one_call_takes(tmp_path, monkeypatch, most):
    """The system may take fewer bytes than it was given, and only so many buffers at a time."""
    words = [b"word %d " % number * (number % 4) for number in range(3000)]
    counts = []

    def short(descriptor, pieces):
        assert len(pieces) <= 1024
        counts.append(os.write(descriptor, b"".join(pieces)[:most]))
        return counts[-1]

    monkeypatch.setattr(os, "writev", short)
    with JsonlWriter(str(tmp_path / "out")) as writer:
        writer.write([memoryview(word) for word in words])
        writer.write([])
    assert (tmp_path / "out").read_bytes() == b"".join(words)
    assert writer.bytes_written == sum(map(len, words))
    assert counts == [most] * 3


def test_small_blocks_share_a_member(tmp_path):
    data, starts, _ = lines_of(b"".join(b'{"text":"line %d of a small chunk"}\n' % i for i in range(100)))
    keep = np.ones(100, np.bool_)
    small = written(tmp_path / "out", "gz", [(data, starts, keep)] * 50)
    assert small.count(b"\x1f\x8b\x08\x00\x00\x00\x00\x00") == 1
    assert gzip.decompress(small) == data[: starts[-1]].tobytes() * 50


def test_a_part_that_encode_did_not_make_is_refused(tmp_path):
    with JsonlWriter(str(tmp_path / "out"), "gz") as writer, pytest.raises(InternalError, match="did not make for gz"):
        writer.write(b"plain")
    with pytest.raises(InternalError, match="closed"):
        writer.write(encode(*lines_of(b"x" * BLOCK)[:2], np.array([True]), "gz"))
    with pytest.raises(InternalError, match="'xz' is unknown"):
        JsonlWriter(str(tmp_path / "out"), "xz")


def test_python_and_command_line_read_the_members(tmp_path):
    chunks, expected = big_chunks()
    content = written(tmp_path / "out.gz", "gz", chunks)
    assert content.count(b"\x1f\x8b\x08\x00\x00\x00\x00\x00") > 1
    with gzip.open(tmp_path / "out.gz") as file:
        assert file.read() == expected
    with contextlib.suppress(FileNotFoundError):
        assert subprocess.run(["gzip", "-dc", tmp_path / "out.gz"], capture_output=True, check=True).stdout == expected


# -- copies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 1000, (4 << 20) - 1, 4 << 20, (4 << 20) + 1])
def test_a_copy_and_the_hash_of_its_bytes(tmp_path, size):
    content = np.random.default_rng(size).bytes(size)
    (tmp_path / "in").write_bytes(content)
    told = []
    assert copy_file(str(tmp_path / "in"), str(tmp_path / "out"), told.append) == xxhash.xxh3_64(content).hexdigest()
    assert (tmp_path / "out").read_bytes() == content
    assert sum(told) == size


def test_a_copy_says_which_side_failed(tmp_path):
    (tmp_path / "in").write_bytes(b"x")
    with pytest.raises(
        InputError, match=r"none: cannot be read: No such file or directory; mend or leave out the file"
    ):
        copy_file(str(tmp_path / "none"), str(tmp_path / "out"))
    with pytest.raises(InputError, match=r"two\\nlines\\udcff': cannot be read") as caught:
        copy_file(os.fsdecode(os.fsencode(tmp_path) + b"/two\nlines\xff"), str(tmp_path / "out"))
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"cannot be read"):
        copy_file(str(tmp_path), str(tmp_path / "out"))
    with pytest.raises(OutputError, match=r"none/out: cannot be written.*choose another output folder"):
        copy_file(str(tmp_path / "in"), str(tmp_path / "none" / "out"))


# -- Parquet --------------------------------------------------------------------------------------------------------

DAY = datetime.datetime(2024, 2, 29, 23, 59, 59, 123456)


def zoo():
    """One column of each kind, six records."""
    columns = {
        "text": pa.array(["a", "", None, "d\u00e9", "e" * 300, "\U0001f600"]),
        "large": pa.array(["a", None, "c", "d", "e", ""], pa.large_string()),
        "view": pa.array(["a", None, "c", "d" * 30, "e", ""], pa.string_view()),
        "bytes": pa.array([b"\xff\x00", b"", None, b"d", b"e", b"f"]),
        "bytes_view": pa.array([b"\xff\x00", b"", None, b"d" * 20, b"e", b"f"], pa.binary_view()),
        "large_bytes": pa.array([b"a", b"", None, b"d", b"e", b"f"], pa.large_binary()),
        "fixed": pa.array([b"abcd", b"bcde", None, b"defg", b"efgh", b"fghi"], pa.binary(4)),
        "words": pa.array(["x", "y", "x", None, "y", "z"]).dictionary_encode(),
        "words8": pa.array(["x", "y", "x", None, "y", "z"]).cast(pa.dictionary(pa.int8(), pa.large_string())),
        "none": pa.nulls(6),
        "flag": pa.array([True, False, None, True, False, True]),
        "i8": pa.array([-128, 127, None, 0, 1, 2], pa.int8()),
        "u64": pa.array([0, 2**64 - 1, None, 1, 2, 3], pa.uint64()),
        "half": pa.array(np.array([0, 1, -2, 3, np.inf, np.nan], np.float16)),
        "f64": pa.array([0.1, float("nan"), None, float("-inf"), -0.0, 5e-324]),
        "dec": pa.array(
            [decimal.Decimal("12345678901234567890.123456789"), None, *map(decimal.Decimal, "1234")],
            pa.decimal128(38, 9),
        ),
        "dec_small": pa.array([*map(decimal.Decimal, "123456")], pa.decimal128(5, 2)),
        "dec256": pa.array([decimal.Decimal(10**60), None, *map(decimal.Decimal, "1234")], pa.decimal256(76, 2)),
        "date": pa.array([datetime.date(1, 1, 1), None, *[datetime.date(2024, 1, i) for i in range(1, 5)]]),
        "time": pa.array([datetime.time(1, 2, 3, 4), None, *[datetime.time(i) for i in range(4)]], pa.time64("us")),
        "ts_s": pa.array([0, None, -1, 2, 3, 4], pa.timestamp("s")),
        "ts_zone": pa.array([DAY, None, DAY, DAY, DAY, DAY], pa.timestamp("us", "Europe/Paris")),
        "ts_ns": pa.array([1, None, 2, 3, 4, 5], pa.timestamp("ns", "+02:00")),
        "span": pa.array([1, None, 2, 3, 4, 5], pa.duration("ms")),
        "list": pa.array([[1, None], [], None, [2], [3, 4, 5], [6]]),
        "deep": pa.array([[["a"], []], None, [None], [], [["b", None]], [["c"]]], pa.list_(pa.list_(pa.string()))),
        "large_list": pa.array([[1], None, [], [2], [3], [4]], pa.large_list(pa.int16())),
        "fixed_list": pa.array([[1, 2], [0, None], [3, 4], [5, 6], [7, 8], [9, 0]], pa.list_(pa.int32(), 2)),
        "struct": pa.array(
            [{"a": 1, "b": {"c": "x"}}, None, {"a": None, "b": None}, *[{"a": i, "b": {"c": None}} for i in range(3)]]
        ),
        "list_of_struct": pa.array(
            [[{"k": "a", "v": [1]}], [], None, [{"k": None, "v": None}], [{"k": "e", "v": []}], []]
        ),
        "map": pa.array(
            [[("a", 1)], [], None, [("b", None)], [("c", 2), ("d", 3)], []], pa.map_(pa.string(), pa.int64())
        ),
        "views": pa.array([["a", None], [], None, ["d" * 20], ["e"], []], pa.list_(pa.string_view())),
    }
    if hasattr(pa, "uuid"):
        columns["uuid"] = pa.array([bytes(16), None, *[bytes([i] * 16) for i in range(4)]], pa.binary(16)).cast(
            pa.uuid()
        )
    if hasattr(pa, "json_"):
        columns["json"] = pa.array(["{}", None, "1", "2", "3", "[]"]).cast(pa.json_(pa.string()))
    fields = []
    for name, column in columns.items():
        metadata = {"note": f"about {name}"} if name in ("text", "struct") else None
        fields.append(pa.field(name, column.type, metadata=metadata))
    fields.append(
        pa.field(
            "unknown",
            pa.int64(),
            metadata={"ARROW:extension:name": "some.unregistered", "ARROW:extension:metadata": "1"},
        )
    )
    fields.append(pa.field("required", pa.int64(), nullable=False))
    columns["unknown"] = columns["required"] = pa.array(range(6))
    schema = pa.schema(fields, metadata={"pandas": '{"index_columns": []}', "k\xe9y": "v\x00lue", "huggingface": "{}"})
    return pa.table(list(columns.values()), schema=schema)


def rewritten(tmp_path, table, keep, name="in.parquet", source=None, **options):
    """The table written by pyarrow, then less rows by ours: both files open."""
    path = tmp_path / name
    if source is None:
        pq.write_table(table, path, **options)
    with ParquetWriter(str(tmp_path / "out.parquet"), str(path)) as writer:
        count = writer.copy_rows(np.asarray(keep, np.bool_))
    assert count == int(np.sum(keep))
    return pq.ParquetFile(path), pq.ParquetFile(tmp_path / "out.parquet")


def assert_same_house(before, after):
    """Schema, physical schema and every metadata of two files are the same."""
    assert after.schema_arrow.equals(before.schema_arrow, check_metadata=True)
    assert after.schema.equals(before.schema)
    assert (after.metadata.metadata or {}) == (before.metadata.metadata or {})


def assert_same_rows(before, after, keep):
    """Compared by row slices, which need no kernel for the type; NaN equals NaN as bytes do in IPC."""
    rows = np.flatnonzero(keep)
    whole = before.read()
    expected = pa.Table.from_batches(
        [batch for row in rows for batch in whole.slice(row, 1).to_batches()], whole.schema
    )
    got = after.read()
    assert got.num_rows == len(rows)
    for name in whole.column_names:
        assert got[name].type == expected[name].type
        for value, other in zip(got[name], expected[name], strict=True):
            assert same_value(value, other), name


def same_value(one, other):
    if isinstance(one, pa.ExtensionScalar) and one.is_valid and other.is_valid:
        one, other = one.value, other.value
    if pa.types.is_floating(one.type):
        return one.type == other.type and repr(one.as_py()) == repr(other.as_py())
    return one.equals(other)


def write_parquet(path, source, rows):
    with ParquetWriter(path, source) as writer:
        writer.copy_rows(np.ones(rows, np.bool_))


KEEPS = [[1, 0, 1, 0, 1, 0], [0, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 0, 0]]


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize(
    "options", [{}, {"row_group_size": 4}, {"store_schema": False}, {"version": "1.0", "data_page_version": "2.0"}]
)
def test_parquet_zoo(tmp_path, keep, options):
    table = zoo()
    if options.get("version") == "1.0":  # nanoseconds do not exist in that version: pyarrow itself writes microseconds
        table = table.drop_columns(["ts_ns"])
    before, after = rewritten(tmp_path, table, keep, **options)
    assert_same_house(before, after)
    assert_same_rows(before, after, keep)


def test_null_in_a_list_of_fixed_size(tmp_path):
    table = pa.table({"a": pa.array([[1, 2], None, [3, None], None], pa.list_(pa.int32(), 2))})
    try:
        before, after = rewritten(tmp_path, table, [1, 1, 0, 0])
    except pa.ArrowNotImplementedError as error:
        pytest.skip(f"pyarrow {pa.__version__} cannot write the input: {error}")
    assert_same_house(before, after)
    assert_same_rows(before, after, [1, 1, 0, 0])


def test_what_pyarrow_cannot_write_is_one_line(tmp_path, monkeypatch):
    pq.write_table(pa.table({"a": range(5)}), tmp_path / "in.parquet")

    def refuse(self, table, row_group_size=None):
        raise pa.ArrowNotImplementedError("no such\nlists")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", refuse)
    with pytest.raises(OutputError, match=r"in\.parquet: .*\(no such\).*newer") as caught:
        write_parquet(str(tmp_path / "out.parquet"), str(tmp_path / "in.parquet"), 5)
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    monkeypatch.setattr(parquet_module, "_empty_copy", lambda file, schema, ways: pq.ParquetFile(other))
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"b": [1.0]}), other)
    with pytest.raises(OutputError, match=r"in\.parquet: .*\(schema\).*newer"):
        write_parquet(str(tmp_path / "out.parquet"), str(tmp_path / "in.parquet"), 5)


def test_a_file_without_arrow_schema_gets_none(tmp_path):
    before, after = rewritten(tmp_path, pa.table({"a": [1, 2]}), [0, 1], store_schema=False)
    assert before.metadata.metadata is None
    assert after.metadata.metadata is None
    assert after.read().to_pydict() == {"a": [2]}


@pytest.mark.parametrize(
    "options",
    [
        {"use_compliant_nested_type": False},
        {"use_deprecated_int96_timestamps": True},
        {"version": "2.4"},
        {"store_decimal_as_integer": True},
    ],
)
def test_other_writers_physical_types_are_kept(tmp_path, options):
    table = pa.table(
        {
            "l": pa.array([[1], [2, 3], None]),
            "t": pa.array([1_000, 2_000, None], pa.timestamp("ns")),
            "d": pa.array([*map(decimal.Decimal, ("1.5", "2.5", "3.5"))], pa.decimal128(5, 2)),
        }
    )
    for store in (True, False):
        before, after = rewritten(tmp_path, table, [0, 1, 1], store_schema=store, **options)
        assert_same_house(before, after)
        assert_same_rows(before, after, [0, 1, 1])


def test_field_ids_stay(tmp_path):
    schema = pa.schema([pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "17"})])
    before, after = rewritten(tmp_path, pa.table([[1, 2]], schema=schema), [1, 0], store_schema=False)
    assert before.schema_arrow.field("a").metadata[b"PARQUET:field_id"] == b"17"
    assert_same_house(before, after)


def column_facts(file, group=0):
    facts = {}
    for i in range(file.metadata.num_columns):
        column = file.metadata.row_group(group).column(i)
        facts[column.path_in_schema] = (
            column.compression, "RLE_DICTIONARY" in column.encodings, column.is_stats_set,
            sorted(set(column.encodings) & {"DELTA_BINARY_PACKED", "DELTA_BYTE_ARRAY"}),
        )  # fmt: skip
    return facts


def test_codecs_dictionaries_encodings_and_statistics_by_column(tmp_path):
    table = pa.table(
        {
            "a": ["x"] * 50,
            "b": [[1, 2]] * 50,
            "c": [{"d": i, "e.f": "y"} for i in range(50)],
            "g.h": range(50),
            "i": range(50),
        }
    )
    options = {
        "compression": {
            "a": "zstd",
            "b.list.element": "gzip",
            "c.d": "none",
            "c.e.f": "brotli",
            "g.h": "snappy",
            "i": "lz4",
        },
        "use_dictionary": ["a", "c.e.f"],
        "write_statistics": ["a", "g.h"],
        "column_encoding": {"i": "DELTA_BINARY_PACKED", "g.h": "PLAIN"},
        "sorting_columns": [pq.SortingColumn(4)],
        "write_page_index": True,
    }
    before, after = rewritten(tmp_path, table, [1, 0] * 25, **options)
    assert column_facts(before)["b.list.element"] == ("GZIP", False, False, [])
    assert column_facts(before)["i"][3] == ["DELTA_BINARY_PACKED"]
    assert column_facts(after) == column_facts(before)
    assert after.metadata.row_group(0).sorting_columns == before.metadata.row_group(0).sorting_columns != ()
    assert after.metadata.row_group(0).column(0).has_column_index
    assert_same_house(before, after)
    assert_same_rows(before, after, [1, 0] * 25)


def group_rows(file):
    return [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]


def test_row_groups_keep_their_scale(tmp_path):
    table = pa.table({"a": range(1000)})
    before, after = rewritten(tmp_path, table, np.ones(1000), row_group_size=100)
    assert group_rows(after) == group_rows(before) == [100] * 10
    _, after = rewritten(tmp_path, table, np.arange(1000) % 4 == 0, row_group_size=100)
    assert group_rows(after) == [100, 100, 50], "small leftovers are put together, empty groups are dropped"
    _, after = rewritten(tmp_path, table, np.arange(1000) // 100 == 7, row_group_size=100)
    assert group_rows(after) == [100]
    assert after.read()["a"].to_pylist() == list(range(700, 800))
    _, after = rewritten(tmp_path, table, np.zeros(1000), row_group_size=100)
    assert group_rows(after) == [0], "older readers need one"
    assert after.schema_arrow.equals(table.schema)
    assert after.read().equals(table.slice(0, 0))


def test_no_records_in_none_out(tmp_path):
    schema = pa.schema([pa.field("text", pa.string_view(), metadata={"x": "y"}), ("n", pa.null())], metadata={"k": "v"})
    for groups in (0, 1):
        with pq.ParquetWriter(tmp_path / "in.parquet", schema) as writer:
            if groups:
                writer.write_table(schema.empty_table())
        before, after = rewritten(tmp_path, None, [], source=True)
        assert_same_house(before, after)
        assert after.metadata.num_rows == 0


def test_group_bytes_bound_a_row_group(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_module, "GROUP_BYTES", 100_000)
    monkeypatch.setattr(parquet_module, "BATCH_ROWS", 16)
    table = pa.table({"text": ["x" * 1000 + str(i) for i in range(1000)]})
    before, after = rewritten(tmp_path, table, np.ones(1000))
    assert group_rows(before) == [1000]
    assert len(group_rows(after)) > 5
    assert after.read().equals(table)


@given(data=st.data(), group=st.integers(1, 30), rows=st.integers(1, 9), bytes_=st.sampled_from([1, 300, 1 << 28]))
@settings(max_examples=25)
def test_any_batches_give_the_same_records(tmp_path_factory, data, group, rows, bytes_):
    n = data.draw(st.integers(0, 60))
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), np.bool_)
    folder = tmp_path_factory.mktemp("batches")
    table = pa.table(
        {
            "text": pa.array([f"t{i}" for i in range(n)], pa.string()),
            "l": pa.array([[i] * (i % 4) for i in range(n)], pa.list_(pa.int64())),
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_module, "BATCH_ROWS", rows)
        patch.setattr(parquet_module, "GROUP_BYTES", bytes_)
        _, after = rewritten(folder, table, keep, row_group_size=group)
    assert after.read().equals(table.filter(pa.array(keep)))
    assert group_rows(after) == [0] or all(0 < count <= group for count in group_rows(after))


def test_records_past_the_mask_are_left_out_and_more_bits_are_refused(tmp_path):
    pq.write_table(pa.table({"a": range(5)}), tmp_path / "in.parquet")
    with ParquetWriter(str(tmp_path / "out.parquet"), str(tmp_path / "in.parquet")) as writer:
        writer.copy_rows(np.array([True, False, True]))
        with pytest.raises(InternalError, match="one file in"):
            writer.copy_rows(np.array([True]))
    assert pq.read_table(tmp_path / "out.parquet")["a"].to_pylist() == [0, 2]
    with pytest.raises(InternalError, match="6 keep bits for a file of 5"):
        write_parquet(str(tmp_path / "out.parquet"), str(tmp_path / "in.parquet"), 6)


def test_an_open_file_and_progress(tmp_path):
    pq.write_table(pa.table({"a": range(100)}), tmp_path / "in.parquet", row_group_size=30)
    told = []
    with (
        pq.ParquetFile(tmp_path / "in.parquet") as file,
        ParquetWriter(str(tmp_path / "out.parquet"), file) as writer,
    ):
        writer.copy_rows(np.arange(100) < 10, told.append)
    assert pq.read_table(tmp_path / "out.parquet")["a"].to_pylist() == list(range(10))
    assert len(told) == 4
    assert 0 < sum(told) <= os.path.getsize(tmp_path / "in.parquet")


def test_texts_that_are_not_utf8_pass_unchanged(tmp_path):
    raw = pa.StringArray.from_buffers(
        3, pa.py_buffer(np.array([0, 2, 3, 5], np.int32)), pa.py_buffer(b"\xff\xfea\xc3\x28")
    )
    _, after = rewritten(tmp_path, pa.table({"t": raw}), [1, 0, 1])
    assert after.read()["t"].cast(pa.binary()).to_pylist() == [b"\xff\xfe", b"\xc3\x28"]


def test_parquet_names_that_are_not_utf8(tmp_path):
    source, target = (os.fsdecode(os.fsencode(tmp_path) + name) for name in (b"/\xfe.parquet", b"/out\xff"))
    pq.write_table(pa.table({"a": [1, 2, 3]}), tmp_path / "in.parquet")
    os.rename(tmp_path / "in.parquet", source)
    with ParquetWriter(target, source) as writer:
        assert writer.copy_rows(np.array([True, False, True])) == 2
    with open(target, "rb") as file:
        assert pq.read_table(file).to_pydict() == {"a": [1, 3]}
    with open(source, "r+b") as file:
        file.truncate(20)
    with pytest.raises(InputError, match=r"^'/.*\\udcfe\.parquet': cannot be read as Parquet"):
        ParquetWriter(target, source)
    with pytest.raises(OutputError, match=r"out\\udcff/none': cannot be written"):
        write_parquet(
            target + "/none",
            str(tmp_path / "good.parquet"),
            pq.write_table(pa.table({"a": [1]}), tmp_path / "good.parquet") or 1,
        )


def test_repeated_columns_pass_unchanged(tmp_path):
    inner = pa.StructArray.from_arrays([pa.array([1, 2, 3]), pa.array(["x", "y", "z"])], ["k", "k"])
    columns = [pa.array(["a", "b", "c"]), pa.array([1, 2, 3]), pa.array([b"p", None, b"r"]), inner]
    for options in ({}, {"store_schema": False}, {"use_dictionary": False, "compression": "zstd"}):
        table = pa.table(columns, names=["text", "n", "n", "s"])
        before, after = rewritten(tmp_path, table, [1, 0, 1], **options)
        assert after.schema.equals(before.schema)
        wanted, found = before.read().take(pa.array([0, 2])), after.read()
        assert found.schema.equals(wanted.schema, check_metadata=True)
        assert found.column_names == ["text", "n", "n", "s"]
        assert all(found.column(i).equals(wanted.column(i)) for i in range(4))


def test_a_damaged_parquet_is_an_input_error(tmp_path):
    pq.write_table(pa.table({"text": [str(i) * 50 for i in range(2000)]}), tmp_path / "in.parquet", compression="zstd")
    content = bytearray((tmp_path / "in.parquet").read_bytes())
    (tmp_path / "cut.parquet").write_bytes(content[:-20])
    with pytest.raises(InputError, match=r"cut\.parquet: cannot be read as Parquet"):
        ParquetWriter(str(tmp_path / "out.parquet"), str(tmp_path / "cut.parquet"))
    content[100:5000] = bytes(4900)
    (tmp_path / "bad.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"bad\.parquet: cannot be read as Parquet") as caught:
        write_parquet(str(tmp_path / "out.parquet"), str(tmp_path / "bad.parquet"), 2000)
    assert "\n" not in str(caught.value)


# -- the output folder ----------------------------------------------------------------------------------------------


class Report:
    def __init__(self, words="done"):
        self.words = words

    def to_json(self):
        return json.dumps(self.words)


def tree(path):
    """Every file below a folder with its content, and every folder."""
    out = {}
    for folder, folders, files in os.walk(path):
        for name in [*folders, *files]:
            full = os.path.join(folder, name)
            out[os.path.relpath(full, path)] = None if name in folders else Path(full).read_bytes()
    return out


def run(path, files, overwrite=False, words="done"):
    """A whole run that writes these files."""
    with OutputFolder(str(path), list(files), overwrite) as folder:
        for rel, content in files.items():
            with folder.open_temp(rel) as temp, open(temp, "wb") as file:
                file.write(content)
        with open(folder.log_path(), "wb") as file:
            file.write(b"log of " + words.encode())
        folder.commit(Report(words))


def expected_tree(files, words="done"):
    out = {
        "_gpu_dedup": None,
        "_gpu_dedup/report.json": json.dumps(words).encode(),
        "_gpu_dedup/removed.parquet": b"log of " + words.encode(),
    }
    owned = sorted([*files, "_gpu_dedup/removed.parquet"])
    listing = {"format": "gpu-dedup outputs", "version": 1, "files": owned}
    out["_gpu_dedup/outputs.json"] = (json.dumps(listing, indent=1) + "\n").encode()
    for rel, content in files.items():
        out[rel] = content
        while rel := os.path.dirname(rel):
            out[rel] = None
    return out


def refused(path, words, rels=("a.jsonl",), overwrite=False):
    """check() refuses with these words and leaves everything as it was."""
    before = tree(path) if os.path.isdir(path) else os.path.lexists(path)
    for act in (lambda f: f.check(), lambda f: f.start(), lambda f: f.__enter__()):
        with pytest.raises(OutputError, match=words) as caught:
            act(OutputFolder(str(path), list(rels), overwrite))
        assert "\n" not in str(caught.value)
    assert (tree(path) if os.path.isdir(path) else os.path.lexists(path)) == before
    return str(caught.value)


FILES = {"a.jsonl": b"1\n", "sub/b.jsonl.gz": b"2", "sub/deep/c.parquet": b"3"}


def test_a_whole_run(tmp_path):
    out = tmp_path / "new" / "out"
    run(out, FILES)
    assert tree(out) == expected_tree(FILES)


def test_an_empty_folder_is_used_and_lost_and_found_is_passed_over(tmp_path):
    (tmp_path / "lost+found").mkdir()
    run(tmp_path, {"a.jsonl": b"1"})
    assert tree(tmp_path) == {**expected_tree({"a.jsonl": b"1"}), "lost+found": None}


def test_nothing_has_its_name_before_commit(tmp_path):
    out = tmp_path / "out"
    with OutputFolder(str(out), ["a.jsonl"]) as folder:
        temp = folder.open_temp("a.jsonl")
        with open(temp, "wb") as file:
            file.write(b"x")
        assert os.stat(temp).st_dev == os.stat(out).st_dev
        assert os.listdir(out) == ["_gpu_dedup"]
        assert os.path.isdir(folder.work_folder())
    assert not out.exists()


def test_refusals(tmp_path):
    (tmp_path / "file").write_text("x")
    assert "give a folder" in refused(tmp_path / "file", "file: is a file")
    refused(tmp_path / "file" / "below", r"below: cannot be made, .*file is not a folder")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    refused(tmp_path / "link", "is a link to nothing")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for i in range(5):
        (foreign / f"my{i}").write_text("mine")
    for overwrite in (False, True):
        message = refused(foreign, "not an output of gpu-dedup", overwrite=overwrite)
        assert "(my0, my1, my2 and 2 more)" in message
    (foreign / "_gpu_dedup").write_text("a file")
    refused(foreign, "_gpu_dedup: is not a folder", overwrite=True)


def test_another_runs_output_is_refused_without_overwrite(tmp_path):
    run(tmp_path / "out", FILES)
    message = refused(tmp_path / "out", "holds the output of another run")
    assert "--overwrite" in message


def test_overwrite_replaces_removes_and_keeps_what_is_foreign(tmp_path):
    out = tmp_path / "out"
    run(out, FILES, words="first")
    (out / "notes.txt").write_text("mine")
    (out / "sub" / "mine.txt").write_text("mine too")
    second = {"a.jsonl": b"new", "other/d.jsonl": b"4"}
    run(out, second, overwrite=True, words="second")
    assert tree(out) == {
        **expected_tree(second, "second"),
        "notes.txt": b"mine",
        "sub": None,
        "sub/mine.txt": b"mine too",
    }


def test_overwrite_never_replaces_a_foreign_file(tmp_path):
    out = tmp_path / "out"
    run(out, {"a.jsonl": b"1"})
    (out / "b.jsonl").write_text("mine")
    (out / "dir").mkdir()
    (out / "dir" / "mine").write_text("mine")
    refused(out, r"b\.jsonl: is in the way", ["b.jsonl"], True)
    refused(out, r"dir: is in the way", ["dir"], True)
    refused(out, r"b\.jsonl: is in the way", ["b.jsonl/c.jsonl"], True)


def test_overwrite_may_turn_a_file_into_a_folder_and_back(tmp_path):
    out = tmp_path / "out"
    for i, rel in enumerate(("x.jsonl", "x.jsonl/y.jsonl", "x.jsonl/y.jsonl/z.jsonl", "x.jsonl", "_x.jsonl")):
        run(out, {rel: b"%d" % i}, overwrite=i > 0, words=str(i))
        assert tree(out) == expected_tree({rel: b"%d" % i}, str(i))


def test_overwrite_does_not_follow_a_link_out_of_the_folder(tmp_path):
    out = tmp_path / "out"
    run(out, {"sub/a.jsonl": b"1"})
    elsewhere = tmp_path / "elsewhere"
    os.rename(out / "sub", elsewhere)
    (out / "sub").symlink_to(elsewhere)
    run(out, {"b.jsonl": b"2"}, overwrite=True)
    assert (elsewhere / "a.jsonl").read_bytes() == b"1"


def test_a_folder_without_a_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError, match=r"^'': an output folder without a name; name a new folder$"):
        OutputFolder("", ["a.jsonl"])


def test_names_that_are_not_utf8(tmp_path):
    rel = os.fsdecode(b"caf\xe9.jsonl")
    out = tmp_path / "out"
    run(out, {rel: b"1"})
    assert os.listdir(os.fsencode(out)).count(b"caf\xe9.jsonl") == 1
    run(out, {"b.jsonl": b"2"}, overwrite=True)
    assert sorted(os.listdir(out)) == ["_gpu_dedup", "b.jsonl"]
    (out / rel).write_text("mine")
    assert "caf\\udce9" in refused(out, "is in the way", [rel], True)


def test_what_is_known_of_an_earlier_run_must_be_readable(tmp_path):
    out = tmp_path / "out"
    run(out, {"a.jsonl": b"1"})
    for content in ("{", "[]", '{"format": "gpu-dedup outputs", "version": 99, "files": []}',
                    '{"format": "gpu-dedup outputs", "version": 1, "files": ["../../etc/passwd"]}',
                    '{"format": "gpu-dedup outputs", "version": 1, "files": ["/etc/passwd"]}'):  # fmt: skip
        (out / "_gpu_dedup" / "outputs.json").write_text(content)
        refused(out, r"outputs\.json: cannot be read", overwrite=True)


def test_unsound_names_are_our_fault(tmp_path):
    for rel in ("", "/a", "../a", "a/../b", "a//b", "a/", "_gpu_dedup/x", "_gpu_dedup", "./a", "a\0b"):
        with pytest.raises(InternalError):
            OutputFolder(str(tmp_path / "out"), [rel])
    with OutputFolder(str(tmp_path / "out"), ["a"]) as folder:
        for rel in ("b", "_gpu_dedup/../a"):
            with pytest.raises(InternalError, match="was not announced"):
                folder.open_temp(rel)
        with pytest.raises(InternalError, match="without a report"):
            folder.commit()
    assert not (tmp_path / "out").exists()


def test_the_report_may_be_opened_like_any_file(tmp_path):
    with OutputFolder(str(tmp_path / "out"), []) as folder:
        with open(folder.open_temp("_gpu_dedup/report.json"), "w") as file:
            file.write("{}")
        folder.commit()
        with pytest.raises(InternalError, match="after the output was complete"):
            folder.open_temp("_gpu_dedup/report.json")
    assert (tmp_path / "out" / "_gpu_dedup" / "report.json").read_text() == "{}"


def test_an_error_inside_open_temp_forgets_the_file(tmp_path):
    with OutputFolder(str(tmp_path / "out"), ["a.jsonl", "b.jsonl"]) as folder:
        for rel in ("a.jsonl", "b.jsonl"):
            with contextlib.suppress(InputError), folder.open_temp(rel) as temp:
                with open(temp, "w") as file:
                    file.write("half")
                if rel == "a.jsonl":
                    raise InputError("bad input")
        folder.commit(Report())
    assert sorted(os.listdir(tmp_path / "out")) == ["_gpu_dedup", "b.jsonl"]


def half_a_run(out, rels, error, overwrite=False):
    with OutputFolder(str(out), rels, overwrite) as folder:
        for path in (*map(folder.open_temp, rels), os.path.join(folder.work_folder(), "table")):
            Path(path).write_bytes(b"half")
        raise error


@pytest.mark.parametrize("error", [OutputError, KeyboardInterrupt, SystemExit])
def test_abort_takes_away_all_that_was_made(tmp_path, error):
    out = tmp_path / "x" / "y" / "out"
    with pytest.raises(error):
        half_a_run(out, ["sub/a.jsonl"], error("stop"))
    assert tree(tmp_path) == {}


def test_abort_leaves_an_earlier_run_as_it_was(tmp_path):
    out = tmp_path / "out"
    run(out, FILES)
    before = tree(out)
    with pytest.raises(KeyboardInterrupt):
        half_a_run(out, ["a.jsonl"], KeyboardInterrupt(), True)
    assert tree(out) == before


class Stop(BaseException):
    pass


def syscalls(monkeypatch, stop_at, error):
    """Let the stop_at-th call that changes names fail; counts them."""
    count = itertools.count()

    def wrap(name):
        real = getattr(os, name)

        def call(*args, **kwargs):
            if next(count) == stop_at:
                raise error
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    for name in ("rename", "fsync"):
        wrap(name)
    return count


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("error", [Stop(), OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "broken")])
def test_commit_that_stops_anywhere_leaves_no_report_and_nothing_new(tmp_path, overwrite, error):
    """Stopped at each sync and rename in turn: the earlier output whole, or no report and none of the new files."""
    new = {"a.jsonl": b"new a", "sub/n.jsonl": b"new n"}
    done = 0
    for stop_at in range(100):
        out = tmp_path / str(stop_at)
        if overwrite:
            run(out, FILES, words="first")
        before = tree(out)
        with pytest.MonkeyPatch.context() as patch:
            count = syscalls(patch, stop_at, error)
            caught = None
            try:
                run(out, new, overwrite, words="second")
            except (Stop, OutputError) as stopped:
                caught = stopped
            reached = next(count) > stop_at
        assert (caught is not None) == reached
        assert not isinstance(caught, OutputError) or str(caught).startswith(str(tmp_path))
        after = tree(out)
        if after.get("_gpu_dedup/report.json") == b'"second"':
            assert after == expected_tree(new, "second"), "the report is there, so all of it must be"
            done += 1
        elif after.get("_gpu_dedup/report.json") == b'"first"':
            assert {k: v for k, v in after.items() if k != "_gpu_dedup/outputs.json"} == {
                k: v for k, v in before.items() if k != "_gpu_dedup/outputs.json"
            }
        else:
            assert not any(
                content and b"new" in content for rel, content in after.items() if not rel.startswith("_gpu_dedup")
            )
            if not overwrite:
                assert after == {}
                assert not out.exists()
            else:
                refused(out, "did not finish|is not empty") if any(not rel.startswith("_") for rel in after) else None
        # whatever is left can be mended by the next run
        run(out, new, True, words="third")
        assert tree(out) == expected_tree(new, "third")
        if not reached:
            break
    assert stop_at > 8
    assert done >= 1


KILLED = """
import os, sys
from gpu_dedup.write import OutputFolder
real = os.rename
class R:
    def to_json(self): return "1"
folder = OutputFolder(sys.argv[1], ["a.jsonl", "b.jsonl"], sys.argv[2] == "over")
folder.check(); folder.start()
for rel in folder.rels:
    open(folder.open_temp(rel), "w").write("new")
if sys.argv[3] == "early":
    print("ready", flush=True)
    import time; time.sleep(60)
seen = 0
def rename(a, b):
    global seen
    real(a, b)
    seen += b.endswith(".jsonl")
    if seen == 1: os.kill(os.getpid(), 9)
os.rename = rename
folder.commit(R())
"""


def test_kill_9_before_commit_is_cleaned_by_the_next_run(tmp_path):
    out = tmp_path / "out"
    with subprocess.Popen([sys.executable, "-c", KILLED, out, "", "early"], stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        refused(out, "another run is at work here")
        refused(out, "another run is at work here", overwrite=True)
        child.kill()
    assert (out / "_gpu_dedup" / "tmp" / "new" / "a.jsonl").exists()
    run(out, {"c.jsonl": b"1"})
    assert tree(out) == expected_tree({"c.jsonl": b"1"})


@pytest.mark.parametrize("over", ["over", ""])
def test_kill_9_in_the_middle_of_commit_never_looks_done(tmp_path, over):
    out = tmp_path / "out"
    if over:
        run(out, FILES)
    child = subprocess.run([sys.executable, "-c", KILLED, out, over, "late"])
    assert child.returncode == -signal.SIGKILL
    assert not (out / "_gpu_dedup" / "report.json").exists()
    assert (out / "a.jsonl").read_bytes() == b"new"
    assert "--overwrite" in refused(out, "part of the output of a run that did not finish")
    run(out, {"c.jsonl": b"1"}, overwrite=True)
    assert tree(out) == expected_tree({"c.jsonl": b"1"})


def test_two_runs_at_once_are_refused_in_one_process_too(tmp_path):
    out = tmp_path / "out"
    with OutputFolder(str(out), ["a.jsonl"]) as folder:
        refused(out, "another run is at work here; wait for its end")
        with open(folder.open_temp("a.jsonl"), "w") as file:
            file.write("1")
        folder.commit(Report())
    assert (out / "a.jsonl").read_text() == "1"
    assert not (out / "_gpu_dedup" / "lock").exists()


def test_a_file_system_without_locks_still_works(tmp_path, monkeypatch):
    def none(descriptor, how):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", none)
    run(tmp_path / "out", {"a.jsonl": b"1"})
    assert tree(tmp_path / "out") == expected_tree({"a.jsonl": b"1"})


# -- the disk refuses -----------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 256 KB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a small tmpfs here: " + mounted.stderr.decode().strip())
    yield place
    subprocess.run(["umount", place], check=True)


def noise(size):
    return np.random.default_rng(1).integers(33, 127, size).astype(np.uint8)


def write_lines(path):
    data = noise(2_000_000)
    with JsonlWriter(path, "gz") as writer:
        writer.write_lines(data, np.array([0, len(data)]), np.array([True]))


def write_copy(path, source):
    copy_file(source, path)


@pytest.fixture
def sources(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(noise(1_000_000).tobytes())
    text = noise(1_000_000).tobytes().decode()
    pq.write_table(pa.table({"t": [text[i : i + 500] for i in range(0, 1_000_000, 500)]}), tmp_path / "in.parquet")
    return [
        write_lines,
        lambda path: write_copy(path, str(tmp_path / "in.jsonl")),
        lambda path: write_parquet(path, str(tmp_path / "in.parquet"), 2000),
    ]


def one_file(out, write):
    with OutputFolder(str(out), ["a.x"]) as folder, folder.open_temp("a.x") as temp:
        write(temp)


def test_a_full_disk_is_one_line_and_leaves_nothing(tiny_disk, sources):
    for write in sources:
        out = tiny_disk / "out"
        with pytest.raises(OutputError, match="no space left on the disk") as caught:
            one_file(out, write)
        message = str(caught.value)
        assert message.startswith(str(out))
        assert "choose another output folder" in message
        assert "\n" not in message
        assert tree(tiny_disk) == {}


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_file_size_limit_is_one_line(tmp_path, sources, which):
    """Needs no mount: the process may write no larger file, and the system says EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(OutputError, match="size limit") as caught:
            one_file(tmp_path / "out", sources[which])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert str(caught.value).startswith(str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_full_disk_by_os_write(tmp_path, monkeypatch):
    def full(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OutputError, match="no space left on the disk; free some, or choose another output folder"):
        write_lines(str(tmp_path / "out"))


def test_a_read_only_file_system_is_refused_at_once(tiny_disk, tmp_path):
    (tiny_disk / "out").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", tiny_disk], check=True)
    for path in (tiny_disk / "out", tiny_disk / "new"):
        refused(path, "the file system is read-only")


def test_a_folder_on_another_file_system_is_refused(tiny_disk, tmp_path):
    out = tmp_path / "out"
    run(out, {"a.jsonl": b"1"})
    (out / "sub").symlink_to(tiny_disk)
    refused(out, "sub: is on another file system", ["sub/b.jsonl"], True)


def test_missing_permission_is_refused_at_once(tmp_path):
    out = tmp_path / "out"
    out.mkdir(mode=0o500)
    if os.access(out, os.W_OK):
        pytest.skip("this user may write anywhere (root), so a missing permission cannot be tested")
    assert "change the permission" in refused(out, "no permission to write")
    refused(out / "below", "no permission to write")


@pytest.mark.parametrize(
    ("code", "words"), [(errno.EACCES, "no permission"), (errno.EROFS, "read-only"), (errno.ENOSPC, "no space left")]
)
def test_refused_folders_by_os_mkdir(tmp_path, monkeypatch, code, words):
    def refuse(path, mode=0o777):
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(OutputError, match=words) as caught:
        OutputFolder(str(tmp_path / "out"), []).start()
    assert str(caught.value).startswith(str(tmp_path / "out"))
