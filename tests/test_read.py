"""Reading: which files, their bytes in chunks, their rows; the same for any chunk size, never a cut file as whole."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import pickle
import re
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import assume, given
from hypothesis import strategies as st

from gpu_dedup.backend import host_backend
from gpu_dedup.batch import MISSING, ROW_BAD, ROW_BLANK, ROW_SKIPPED, ROW_TEXT, Tape
from gpu_dedup.errors import InputError, InternalError, OutputError, UserError
from gpu_dedup.kernels import jsonl_ref
from gpu_dedup.read import Source, discover, open_source, read_rows
from gpu_dedup.read import jsonl as jsonl_module
from gpu_dedup.read import lines as lines_module
from gpu_dedup.read.chunks import replaced
from gpu_dedup.read.jsonl import judge

SIZES = (1, 7, 100, 4 << 20)


def source_of(path: Path, data: bytes | None = None) -> Source:
    if data is not None:
        path.write_bytes(data)
    return discover([str(path)], None)[0]


def everything(
    source: Source, backend: Any, size: int = 4 << 20, fields: tuple[str, ...] = ("text",), extra: tuple[str, ...] = ()
) -> list[tuple[int, int, bytes, str, tuple[Any, ...]]]:
    """(row, status, text, why bad, values of extra fields) of all rows, with the promises of a reader checked."""
    out = []
    consumed = 0
    content = b""
    with open_source(source, size, 3, [*fields, *extra]) as reader:
        for number, chunk in enumerate(reader):
            assert chunk.file_index == 3
            assert chunk.first_row == len(out)
            assert chunk.bom == b"" or number == 0
            rows = chunk.parse(backend, fields, extra)
            assert rows.first_row == chunk.first_row
            assert len(rows) == len(rows.tape) == chunk.count_rows()
            why = dict(rows.errors)
            assert sorted(why) == [chunk.first_row + i for i in np.flatnonzero(rows.status == ROW_BAD)]
            if source.format == "jsonl":
                content += chunk.bom + chunk.data[: chunk.size].tobytes()
                assert len(chunk.data) >= chunk.size + 64
                starts = chunk.lines()
                assert (starts[0], starts[-1], len(starts)) == (0, chunk.size, len(rows) + 1)
                assert chunk.data[starts[1:-1] - 1].tolist() == [10] * (len(starts) - 2 if len(starts) > 1 else 0)
            for i in range(len(rows)):
                assert rows.tape[i] == b"" or rows.status[i] == ROW_TEXT
                values = tuple(rows.fields[name][i] for name in extra)
                out.append((len(out), int(rows.status[i]), rows.tape[i], why.get(len(out), ""), values))
            consumed += chunk.nbytes
        assert reader.bytes_read == source.size
        assert 0 <= source.size - consumed <= 64 or not out
        raw = Path(source.path).read_bytes()
        assert reader.content_hash() == xxhash.xxh3_64_hexdigest(raw)
    if source.format == "jsonl":
        assert content == {"": bytes, "gz": gzip.decompress, "zst": unzstd}[source.compression](raw)
    return out


def texts(source: Source, backend: Any, size: int = 4 << 20, **options: Any) -> list[bytes | None]:
    rows = everything(source, backend, size, **options)
    return [text if status == ROW_TEXT else None for _, status, text, _, _ in rows]


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


def unzstd(data: bytes) -> bytes:
    return pa.CompressedInputStream(pa.BufferReader(data), "zstd").read() if data else b""


def same_for_every_size(source: Source, backend: Any, **options: Any) -> list[Any]:
    first = everything(source, backend, SIZES[0], **options)
    for size in SIZES[1:]:
        assert everything(source, backend, size, **options) == first
    return first


# JSON lines


def test_lines_and_their_rows(backend: Any, tmp_path: Path) -> None:
    data = (
        b'\xef\xbb\xbf{"text": "one", "id": 1}\r\n'
        b"\r\n"
        b" \t\n"
        b'{"id": "x", "text": null}\n'
        b'{"id": 2}\n'
        b"{}\n"
        b'{"text": 4.5}\n'
        b'{"text": true}\n'
        b'{"text": ["a"]}\n'
        b'{"text": {"a": 1}}\n'
        b"[1]\n"
        b'"text"\n'
        b"null\n"
        b"17\n"
        b'{"text": "cut\n'
        b'{"text": "\xff"}\n'
        b'{"text": "a\tb"}\n'
        b'\xef\xbb\xbf{"text": "x"}\n'
        b"\x0c\n"
        + '{"text": "u\u2028\u2029\x85", "id": [1, {"a": null}]}\n'.encode()
        + rb'{"text": "\u0000\ud835", "id": "\ud800"}'
        + b"\n"
        + rb'{"t\u0065xt": "escaped key", "\u0069d": 7}'
        + b"\n"
        b'{"text": "first", "text": "last", "id": 1e400}'
    )
    rows = same_for_every_size(source_of(tmp_path / "a.jsonl", data), backend, extra=("id",))
    assert [(status, text, why) for _, status, text, why, _ in rows] == [
        (ROW_TEXT, b"one", ""),
        (ROW_BLANK, b"", ""),
        (ROW_BLANK, b"", ""),
        (ROW_BAD, b"", 'field "text" is null'),
        (ROW_BAD, b"", 'no field "text" (fields here: id; name the right one with --text-field)'),
        (ROW_BAD, b"", 'no field "text" (the object is empty)'),
        (ROW_BAD, b"", 'field "text" is a number, not a string'),
        (ROW_BAD, b"", 'field "text" is true or false, not a string'),
        (ROW_BAD, b"", 'field "text" is a list, not a string'),
        (ROW_BAD, b"", 'field "text" is an object, not a string'),
        (ROW_BAD, b"", "not an object but a list"),
        (ROW_BAD, b"", "not an object but a string"),
        (ROW_BAD, b"", "not an object but null"),
        (ROW_BAD, b"", "not an object but a number"),
        (ROW_BAD, b"", "not valid JSON: Unterminated string starting at column 10"),
        (ROW_BAD, b"", "not valid UTF-8 at byte 11"),
        (ROW_BAD, b"", "not valid JSON: Invalid control character at column 12"),
        (ROW_BAD, b"", "not valid JSON: Unexpected UTF-8 BOM (decode using utf-8-sig) at column 1"),
        (ROW_BAD, b"", "not valid JSON: Expecting value at column 1"),
        (ROW_TEXT, "u\u2028\u2029\x85".encode(), ""),
        (ROW_TEXT, b"\0\xed\xa0\xb5", ""),
        (ROW_TEXT, b"escaped key", ""),
        (ROW_TEXT, b"last", ""),
    ]
    values = [value for *_, (value,) in rows]
    assert [values[0], *values[19:]] == [1, [1, {"a": None}], "\ud800", 7, float("inf")]
    assert all(value is MISSING for value in values[1:19])


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", []),
        (b"\n", [None]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbf\n", [None]),
        (b"\xef\xbb", [None]),
        (b'{"text":"a"}', [b"a"]),
        (b'{"text":"a"}\n', [b"a"]),
        (b'{"text":"a"}\n\n', [b"a", None]),
        (b'\xef\xbb\xbf{"text":"a"}', [b"a"]),
        (b'{"text":"a"}\r\n{"text":"b"}\r\n', [b"a", b"b"]),
        (b'{"text":"a"}\r{"text":"b"}\n', [None]),
    ],
)
def test_edges_of_a_file(backend: Any, tmp_path: Path, data: bytes, found: list[bytes | None]) -> None:
    for name, packed in (("a.jsonl", data), ("b.jsonl.gz", gzip.compress(data)), ("c.jsonl.zst", zstd(data))):
        source = source_of(tmp_path / name, packed)
        assert [row[2] if row[1] == ROW_TEXT else None for row in same_for_every_size(source, backend)] == found


def test_a_byte_order_mark_is_the_files_not_a_rows(backend: Any, tmp_path: Path) -> None:
    for data in (b"\xef\xbb\xbf", b'\xef\xbb\xbf{"text":"a"}\n{"text":"b"}\n'):
        for size in SIZES:
            with open_source(source_of(tmp_path / "a.jsonl", data), size) as reader:
                chunks = list(reader)
            assert chunks[0].bom == b"\xef\xbb\xbf"
            assert [chunk.bom for chunk in chunks[1:]] == [b""] * (len(chunks) - 1)
            assert sum(chunk.count_rows() for chunk in chunks) == data.count(b"\n")


def test_lines_far_longer_than_a_chunk(backend: Any, tmp_path: Path) -> None:
    long = ["x" * 300_000, "y" * 70_001, "", "z" * 200_000]
    data = "".join(json.dumps({"text": text}) + "\n" for text in long).encode()
    for name, packed in (("a.jsonl", data), ("b.jsonl.gz", gzip.compress(data)), ("c.jsonl.zst", zstd(data))):
        for size in (1, 1000, 65_536, 1 << 20):
            assert texts(source_of(tmp_path / name, packed), backend, size) == [text.encode() for text in long]


def test_a_line_without_bound_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAX_LINE", 1000)
    source = source_of(tmp_path / "a.jsonl", b'{"text":"a"}\n' + b"x" * 5000)
    with (
        pytest.raises(InputError, match=r"a\.jsonl: line 2 is longer than 1000 bytes"),
        open_source(source, 100) as r,
    ):
        list(r)


def test_numbers_of_any_length_and_nesting_to_a_fixed_depth(backend: Any, tmp_path: Path) -> None:
    assert jsonl_module.MAX_DEPTH == jsonl_ref.MAX_DEPTH == 500
    digits = "9" * 5000
    lines = [
        f'{{"text": "int", "id": {digits}}}',
        f'{{"text": "skipped", "x": [-{digits}, {digits}.5, 1e{digits}], "id": -{digits}}}',
        '{"text": "deep", "id": ' + "[" * 499 + "]" * 499 + "}",
        '{"text": "too deep", "id": ' + "[" * 500 + "]" * 500 + "}",
        '{"text": "brackets are text: ' + "[{" * 2000 + '", "id": "[["}',
        '{"text": "far too deep", "x": ' + '{"a":' * 100_000 + "1" + "}" * 100_001,
        "[" * 100_000,
        '{"text": "' + '\\"[' * 100_000,  # must not take time that grows with the square of the line
    ]
    rows = same_for_every_size(source_of(tmp_path / "a.jsonl", "\n".join(lines).encode()), backend, extra=("id",))
    assert [row[2] for row in rows] == [b"int", b"skipped", b"deep", b"", lines[4][10:4029].encode(), b"", b"", b""]
    assert [row[3] for row in rows[3:7:2]] == ["nested more than 500 levels deep"] * 2
    big = rows[0][4][0]
    assert big == 10**5000 - 1
    assert str(big) == f"{big}" == digits  # although Python's own integers refuse so many digits
    assert rows[1][4][0] == 1 - 10**5000


def test_deep_lines_are_read_in_a_deep_call(tmp_path: Path) -> None:
    """The limit on nesting leaves room for the caller's own frames."""
    line = ('{"text": "a", "x": ' + "[" * 499 + "]" * 499 + "}").encode()

    def call(depth: int) -> str:
        return call(depth - 1) if depth else judge(line, ("text",))[2]

    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(call(300)))
    thread.start()
    thread.join()
    assert found == [""]
    assert sys.getrecursionlimit() >= 1000


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": 1 , }', "Expecting property name enclosed in double quotes at column 11"),
        (b'{"a": [1,\t\r]}', "Expecting value at column 12"),
        (b'{"a": }', "Expecting value at column 7"),
        (b'{"a" 1}', "Expecting ':' delimiter at column 6"),
        (b'{"a": 1 "b": 2}', "Expecting ',' delimiter at column 9"),
        (b'{"a": 1} x', "Extra data at column 10"),
        ('{"é": "\\x"}'.encode(), "Invalid \\escape at column 8"),
        (rb'{"a": "\u12"}', "Invalid \\uXXXX escape at column 9"),
    ],
)
def test_complaints_are_those_of_every_python(line: bytes, reason: str) -> None:
    assert judge(line, ("a",)) == (None, b"", f"not valid JSON: {reason}")


ARRAY = " (one record a line is expected; this looks like a JSON array: convert it (jq -c .[]))"
SPREAD = " (one record a line is expected; this looks like JSON over many lines: convert it (jq -c .))"
CRS = " (records are parted by CR alone here: convert the line ends to LF, tr '\\r' '\\n')"


@pytest.mark.parametrize(
    ("data", "reasons"),
    [
        (b'[{"text": "a"}, {"text": "b"}]', ["not an object but a list" + ARRAY]),
        (b' [ \r\n{"text": "a"}\n]', ["Expecting value at column 5" + ARRAY, "Expecting value at column 1"]),
        (b'[{"text": "a"},\n{"text": "b"}]', ["at column 16" + ARRAY, "Extra data at column 14"]),
        (b'{\n"text": "a"\n}', ["at column 2" + SPREAD, "Extra data at column 7", "Expecting value at column 1"]),
        (b'{"text": "a"}\r{"text": "b"}\r', ["Extra data at column 15" + CRS]),
        # A list or a bracket further down says nothing about the file, nor does a list of other things.
        (b'{"text": "a"}\n[{"text": "b"}]\n[\n{', ["but a list", "Expecting value at column 2", "at column 2"]),
        (b"[1, 2]", ["not an object but a list"]),
        (b'["{"]', ["not an object but a list"]),
        (b"{}", ['no field "text" (the object is empty)']),
        (b'{"text":\r3}', ['field "text" is a number, not a string']),
        (b'{"text": "a"}\r\n{"text": 3}\r\n', ['field "text" is a number, not a string']),
    ],
)
def test_a_file_that_is_not_one_record_a_line_is_recognised(
    backend: Any, tmp_path: Path, data: bytes, reasons: list[str]
) -> None:
    rows = same_for_every_size(source_of(tmp_path / "a.json", data), backend)
    found = [row[3] for row in rows if row[3]]
    assert len(found) == len(reasons)
    for reason, wanted in zip(found, reasons, strict=True):
        assert reason.endswith(wanted)


@pytest.mark.parametrize(
    ("magic", "what", "remedy"),
    [
        (gzip.compress(b'{"text": "a"}\n', mtime=0), "gzip data", "name it .jsonl.gz"),
        (zstd(b'{"text": "a"}\n'), "zstd data", "name it .jsonl.zst"),
        (bz2.compress(b'{"text": "a"}\n'), "bzip2 data", "unpack it"),
        (lzma.compress(b'{"text": "a"}\n'), "xz data", "unpack it"),
        (b"PK\x03\x04...", "a zip archive", "unpack it"),
        (b"PAR1\x15\x04...PAR1", "a Parquet file", "name it .parquet"),
        ('{"text": "a"}\n'.encode("utf-16"), "UTF-16 text", "convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"),
        ("\ufeff{}".encode("utf-16-be"), "UTF-16 text", "convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"),
        ('{"text": "a"}\n'.encode("utf-32"), "UTF-32 text", "convert it to UTF-8 (iconv -f UTF-32 -t UTF-8)"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_other_data_under_the_name_of_json_lines(
    tmp_path: Path, magic: bytes, what: str, remedy: str, size: int
) -> None:
    path = tmp_path / "a.jsonl"
    with pytest.raises(InputError) as error:
        everything(source_of(path, magic), host_backend("numpy"), size)
    assert str(error.value) == f"{path}: not JSON lines: this looks like {what}; {remedy}, or pass --on-bad-file skip"
    assert error.value.reason == f"not JSON lines: this looks like {what}"
    path = tmp_path / "a.jsonl.gz"
    with pytest.raises(InputError) as error:
        everything(source_of(path, gzip.compress(magic)), host_backend("numpy"), size)
    once = remedy if what.startswith("UTF") else "unpack it once"
    assert str(error.value) == (
        f"{path}: not JSON lines: this looks like {what} inside gzip; {once}, or pass --on-bad-file skip"
    )


def test_a_line_that_only_begins_like_another_kind_is_a_bad_row(tmp_path: Path) -> None:
    for data in (b"PAR1", b"BZhang", b"PK", b"\xff", b"\x1f"):
        ((_, status, *_),) = everything(source_of(tmp_path / "a.jsonl", data), host_backend("numpy"))
        assert status == ROW_BAD


def test_the_reason_why_a_file_is_bad_stands_apart_from_the_remedy(tmp_path: Path) -> None:
    """A report says `reason` under the file's own name, to somebody who has passed --on-bad-file skip."""
    packed = gzip.compress(b'{"text": "a"}\n' * 100)
    cases = {
        "cut.jsonl.gz": packed[:-5],
        "cut.jsonl.zst": zstd(b'{"text": "a"}\n' * 100)[:-5],
        "not.parquet": b"PAR1 but no more",
        "long.jsonl": b"\xff\xfe",
    }
    for name, data in cases.items():
        with pytest.raises(InputError) as error:
            everything(source_of(tmp_path / name, data), host_backend("numpy"))
        value = error.value
        assert str(value) == f"{value.place}: {value.reason}; {value.remedy}"
        assert value.place == str(tmp_path / name)
        assert "--on-bad-file skip" in value.remedy
        assert "--on-bad-file" not in value.reason
        assert str(tmp_path) not in value.reason
    for columns in ({"text": [1]}, {"other": ["a"]}):
        with pytest.raises(InputError) as error:
            everything(table_of(tmp_path / "a.parquet", columns), host_backend("numpy"))
        assert "column" in error.value.reason
        assert "--on-bad-file" in error.value.remedy
        assert "--on-bad-file" not in error.value.reason
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
    assert pickle.loads(pickle.dumps(error.value)).reason == error.value.reason


def test_several_fields_and_dotted_names(backend: Any, tmp_path: Path) -> None:
    data = b"\n".join(
        [
            b'{"title": "T", "m": {"text": "body", "id": 1}}',
            b'{"title": null, "m": {"text": "body"}}',
            b'{"m": {"text": null}, "title": "T"}',
            b'{"m.text": "top", "m": {"text": "path"}}',
            b'{"title": 5, "m": {"text": "body"}}',
            b'{"title": null, "m": [], "other": 1}',
            b'{"title": "", "m": {"text": ""}}',
            rb'{"title": "T", "m": {"t\u0065xt": "body"}, "m.id": 2}',
        ]
    )
    rows = same_for_every_size(
        source_of(tmp_path / "a.jsonl", data), backend, fields=("title", "m.text"), extra=("m.id", "nowhere.at.all")
    )
    assert [row[2] for row in rows] == [b"T\nbody", b"body", b"T", b"top", b"", b"", b"\n", b"T\nbody"]
    assert [row[3] for row in rows if row[3]] == [
        'field "title" is a number, not a string',
        "no text in any of the fields title, m.text (fields here: title, m, other)",
    ]
    assert [row[4][0] for row in rows] == [1, *[MISSING] * 6, 2]
    assert all(row[4][1] is MISSING for row in rows)


def test_wanted_rows_only(backend: Any, tmp_path: Path) -> None:
    lines = [b'{"text": "a", "id": 0}', b"", b"broken", b'{"t\\u0065xt": "odd"}', b'{"text": "e", "id": 4}']
    with open_source(source_of(tmp_path / "a.jsonl", b"\n".join(lines)), 1000) as reader:
        (chunk,) = reader
    for bits in range(32):
        want = np.array([bits >> i & 1 for i in range(5)], bool)
        rows = chunk.parse(backend, ("text",), ("id",), want)
        full = chunk.parse(backend, ("text",), ("id",))
        for i in range(5):
            assert rows.status[i] == (full.status[i] if want[i] else ROW_SKIPPED)
            assert rows.tape[i] == (full.tape[i] if want[i] else b"")
            assert rows.fields["id"][i] == (full.fields["id"][i] if want[i] else MISSING)
        assert list(rows.errors) == [error for error in full.errors if want[error[0]]]


@given(st.lists(st.binary(max_size=30) | st.sampled_from([b'{"text":"a"}', b'{"text":"b","id":1}', b" "]), max_size=12))
def test_any_bytes_give_the_same_rows_on_each_backend_and_size(lines: list[bytes]) -> None:
    import tempfile

    assume(
        not b"\n".join(lines).startswith(tuple(magic for magic, _, _ in lines_module._FOREIGN))
    )  # refused as a whole
    with tempfile.TemporaryDirectory() as folder:
        source = source_of(Path(folder) / "a.jsonl", b"\n".join(lines))
        runs = [
            everything(source, host_backend(name), size, extra=("id",))
            for name in ("numpy", "numba")
            for size in (1, 64)
        ]
    assert runs[1:] == runs[:1] * 3
    data = b"\n".join(lines).removeprefix(b"\xef\xbb\xbf")
    assert len(runs[0]) == data.count(b"\n") + (not data.endswith(b"\n") and bool(data))


# Compression

LINES = b"".join(b'{"id": %d, "text": "line number %d of some more"}\n' % (i, i) for i in range(40))


def test_members_frames_padding_and_skippable_frames(backend: Any, tmp_path: Path) -> None:
    half = LINES.index(b"\n", 700) + 1
    pieces = [LINES[:half], b"", LINES[half : half + 33], LINES[half + 33 :]]
    skippable = b"\x5e\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"\x28\xb5\x2f\xfd!"
    want = texts(source_of(tmp_path / "plain.jsonl", LINES), backend)
    assert len(want) == 40
    members = b"".join(map(gzip.compress, pieces))
    frames = b"".join(map(zstd, pieces))
    for name, data in {
        "1.jsonl.gz": members,
        "2.jsonl.gz": members + bytes(1000),
        "3.jsonl.gz": gzip.compress(LINES[:half]) + bytes(7) + gzip.compress(LINES[half:]),
        "4.jsonl.gz": gzip.compress(LINES, 0),
        "5.jsonl.zst": frames,
        "6.jsonl.zst": skippable + frames + skippable * 2,
        "7.jsonl.zst": zstd(pieces[0]) + skippable + zstd(LINES[half:]),
    }.items():
        for size in (1, 333, 1 << 20):
            assert texts(source_of(tmp_path / name, data), backend, size) == want
    for name in ("empty.jsonl", "empty.jsonl.gz", "empty.jsonl.zst"):
        assert texts(source_of(tmp_path / name, b""), backend) == []
        assert texts(source_of(tmp_path / ("full" + name), zstd(b"") if "zst" in name else b""), backend) == []


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_file_cut_at_any_byte_is_never_a_shorter_file(tmp_path: Path, ending: str) -> None:
    backend = host_backend("numpy")
    pack = {"gz": gzip.compress, "zst": zstd}[ending]
    half = LINES.index(b"\n", 900) + 1
    first, second = pack(LINES[:half]), pack(LINES[half:])
    whole = first + second
    for size in (100, 1 << 20):
        for cut in range(len(whole)):
            source = source_of(tmp_path / f"cut.jsonl.{ending}", whole[:cut])
            # Without a byte, or between two members, what is left is a whole file: nothing can tell.
            if cut in (0, len(first)):
                assert len(texts(source, backend, size)) == (LINES[:half].count(b"\n") if cut else 0)
                continue
            with pytest.raises(InputError) as error:
                everything(source, backend, size)
            pattern = rf".*cut\.jsonl\.{ending}: truncated or corrupt (gzip|zstd) data after (\d+) rows \(.+\); .*"
            match = re.fullmatch(pattern + "--on-bad-file skip", str(error.value))
            assert match is not None
            assert int(match[2]) <= LINES[: half if cut <= len(first) else None].count(b"\n")


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_corrupt_and_foreign_bytes_are_errors(tmp_path: Path, ending: str) -> None:
    backend = host_backend("numpy")
    whole = {"gz": gzip.compress, "zst": zstd}[ending](LINES)
    for data in (whole + b"garbage", whole + b"\x1f", b"\0" + whole, LINES, whole[:30] + b"\xff\xff\xff" + whole[33:]):
        with pytest.raises(InputError, match="truncated or corrupt"):
            everything(source_of(tmp_path / f"x.jsonl.{ending}", data), backend)
    if ending == "gz":
        wrong_sum = whole[:-8] + zlib.crc32(LINES + b"x").to_bytes(4, "little") + whole[-4:]
        with pytest.raises(InputError, match="incorrect data check"):
            everything(source_of(tmp_path / "sum.jsonl.gz", wrong_sum), backend)


def test_damage_shows_at_the_same_row_whatever_the_chunk_size(tmp_path: Path) -> None:
    lines = b"".join(b'{"text": "%d %s"}\n' % (i, os.urandom(30).hex().encode()) for i in range(20_000))
    for name, data in (("a.jsonl.gz", gzip.compress(lines, 1)), ("b.jsonl.zst", zstd(lines))):
        messages = set()
        for size in (1000, 50_000, 8 << 20):
            with pytest.raises(InputError) as error:
                everything(source_of(tmp_path / name, data[:-5000]), host_backend("numba"), size)
            messages.add(str(error.value))
        assert len(messages) == 1
        assert int(re.search(r"after (\d+) rows", messages.pop())[1]) > 10_000  # type: ignore[index]


# Reading again


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_refs_bring_back_the_same_chunks(tmp_path: Path, name: str) -> None:
    backend = host_backend("numba")
    path = tmp_path / name
    records = [{"id": i, "text": f"row {i} " + "x" * (i * 37 % 400)} for i in range(3000)]
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=1100)
    else:
        data = b"\xef\xbb\xbf" + "".join(json.dumps(record) + "\n" for record in records).encode()[:-1]
        path.write_bytes({"a.jsonl": bytes, "a.jsonl.gz": gzip.compress, "a.jsonl.zst": zstd}[name](data))
    source = source_of(path)
    with open_source(source, 20_000, 0, ["text"]) as reader:
        chunks = list(reader)
    assert len(chunks) > 10
    refs = [chunk.ref for chunk in chunks]
    for pick in ([0], [len(refs) - 1], [1, 2, 5], list(range(len(refs))), []):
        # Another batch size and other columns must not matter.
        with open_source(source, 1_000_000, 9, ["text", "id"]) as again:
            got = list(again.read_refs([refs[i] for i in pick]))
            assert len(got) == len(pick)
            assert 0 <= again.bytes_read <= source.size
            for i, chunk in zip(pick, got, strict=True):
                assert (chunk.ref, chunk.file_index, chunk.first_row) == (refs[i], 9, refs[i].first_row)
                rows, before = chunk.parse(backend, ("text",), ("id",)), chunks[i].parse(backend, ("text",))
                assert rows.tape.to_list() == before.tape.to_list()
                assert rows.fields["id"] == list(range(chunk.first_row, chunk.first_row + len(rows)))
                if source.format == "jsonl":
                    assert chunk.data[: chunk.size].tobytes() == chunks[i].data[: chunks[i].size].tobytes()
            assert [text.encode() for text in (records[c.first_row]["text"] for c in got)] == [
                c.parse(backend, ("text",)).tape[0] for c in got
            ]
    with open_source(source, 1000, 0, ["text"]) as reader, pytest.raises(InternalError, match="order of the file"):
        list(reader.read_refs([refs[3], refs[1]]))


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    source = source_of(path, LINES)
    path.write_bytes(LINES + b"{}\n")
    for do in (lambda: open_source(source, 100), lambda: read_rows(source, [0], ("text",), (), host_backend("numpy"))):
        with pytest.raises(InputError, match=r"a\.jsonl: the file has changed since this run began"):
            do()
    path.write_bytes(LINES)
    os.utime(path, ns=(1, source.mtime_ns + 1))
    with pytest.raises(InputError, match="has changed"):
        open_source(source, 100)
    table = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": ["a"]}), table)
    old = source_of(table)
    pq.write_table(pa.table({"text": ["a", "b"]}), table)
    with pytest.raises(InputError, match="has changed"):
        open_source(old, 100)
    path.unlink()
    with pytest.raises(InputError, match="cannot be read: No such file"):
        open_source(source, 100)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    source = source_of(path, LINES)
    with open_source(source, 100) as reader:
        chunks = iter(reader)
        ref = next(chunks).ref
        with path.open("ab") as file:
            file.write(b'{"text": "more"}\n')
        with pytest.raises(InputError, match="has changed"):
            list(chunks)
    source = source_of(path, LINES)
    with open_source(source, 100) as reader:
        chunks = iter(reader)
        next(chunks)
        os.truncate(path, 300)
        with pytest.raises(InputError, match="has changed"):
            list(chunks)
        with pytest.raises(InputError, match="has changed"):
            list(reader.read_refs([ref]))


def test_a_hash_of_half_a_file_is_refused(tmp_path: Path) -> None:
    with open_source(source_of(tmp_path / "a.jsonl", LINES), 100) as reader:
        next(iter(reader))
        with pytest.raises(InternalError, match="all of it"):
            reader.content_hash()
        with pytest.raises(InternalError, match="once"):
            next(iter(reader))


def test_single_rows(backend: Any, tmp_path: Path) -> None:
    data = b'{"text":"a","id":"x"}\n\n{"text":7}\n{"text":"d"}\n'
    pq.write_table(pa.table({"text": ["a", "", None, "d"], "id": ["x", None, "z", None]}), tmp_path / "a.parquet")
    source = source_of(tmp_path / "a.jsonl", data)
    assert read_rows(source, [3, 0, 1, 2, 0], ("text",), ("id",), backend) == {
        0: (b"a", {"id": "x"}), 1: (None, {"id": MISSING}), 2: (None, {"id": MISSING}), 3: (b"d", {"id": MISSING}),
    }  # fmt: skip
    assert read_rows(source_of(tmp_path / "a.parquet"), [2, 3, 0], ("text",), ("id",), backend) == {
        0: (b"a", {"id": "x"}), 2: (None, {"id": MISSING}), 3: (b"d", {"id": None}),
    }  # fmt: skip
    assert read_rows(source, [], ("text",), (), backend) == {}
    with pytest.raises(InputError, match="it has no row 4"):
        read_rows(source, [1, 4], ("text",), (), backend)


# Parquet


def table_of(path: Path, columns: dict[str, Any], **options: Any) -> Source:
    pq.write_table(pa.table(columns), path, **options)
    return source_of(path)


WORDS = ["plain", None, "", "é中😀", "nul\0", "plain", "x" * 5000, None]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()],
    ids=str,
)
def test_every_text_type_alone_and_in_a_dictionary(backend: Any, tmp_path: Path, kind: Any) -> None:
    try:
        pq.write_table(pa.table({"text": pa.array([], kind)}), tmp_path / "probe.parquet")
    except pa.ArrowNotImplementedError:
        pytest.skip(f"pyarrow {pa.__version__} cannot write {kind} to Parquet, and reads it as string")
    values = WORDS if not pa.types.is_binary(kind) else [w if w is None else w.encode() for w in WORDS]
    plain = pa.array(values, pa.string() if isinstance(values[0], str) else pa.binary())
    words = pa.array(dict.fromkeys(v for v in values if v is not None), plain.type)
    order = {value: i for i, value in enumerate(words.to_pylist())}
    indices = pa.array([None if v is None else order[v] for v in values], pa.int16())
    for name, array in {
        "plain": plain.cast(kind),
        "chunked": pa.chunked_array([plain[:3].cast(kind), plain[3:].cast(kind)]),
        "sliced": pa.concat_arrays([plain, plain]).cast(kind)[8:],
        "dictionary": pa.DictionaryArray.from_arrays(indices, words.cast(kind) if "view" not in str(kind) else words),
    }.items():
        source = table_of(tmp_path / f"{name}.parquet", {"n": range(8), "text": array}, row_group_size=3)
        rows = same_for_every_size(source, backend, extra=("n",))
        assert [row[2] if row[1] == ROW_TEXT else None for row in rows] == [
            w if w is None else w.encode() for w in WORDS
        ]
        assert [row[3] for row in rows if row[1] == ROW_BAD] == ['field "text" is null'] * 2
        assert [row[4][0] for row in rows] == [0, MISSING, 2, 3, 4, 5, 6, MISSING]


def test_parquet_without_rows_or_texts(backend: Any, tmp_path: Path) -> None:
    none = table_of(tmp_path / "none.parquet", {"text": pa.array([], pa.string())})
    assert everything(none, backend) == []
    nulls = table_of(tmp_path / "nulls.parquet", {"text": pa.nulls(5), "id": range(5)})
    assert [row[1] for row in everything(nulls, backend, extra=("id",))] == [ROW_BAD] * 5
    nulls = table_of(tmp_path / "string_nulls.parquet", {"text": pa.nulls(3, pa.string())})
    assert [row[3] for row in everything(nulls, backend)] == ['field "text" is null'] * 3


def test_invalid_utf8_in_parquet_makes_bad_rows(backend: Any, tmp_path: Path) -> None:
    raw = [b"good", b"cut \xe4\xb8", b"\xed\xa0\x80", b"", b"also good", b"\xff", None]
    for kind in (pa.string(), pa.large_string(), pa.binary()):
        array = pa.array(raw, pa.binary() if kind != pa.large_string() else pa.large_binary())
        if not pa.types.is_binary(kind):
            array = pa.Array.from_buffers(kind, len(raw), array.buffers())  # as a careless writer would
        rows = same_for_every_size(
            table_of(tmp_path / f"{kind}.parquet", {"text": array, "id": array}), backend, extra=("id",)
        )
        assert [row[2] for row in rows] == [b"good", b"", b"", b"", b"also good", b"", b""]
        assert [row[3] for row in rows] == [
            "", "not valid UTF-8 at byte 5", "not valid UTF-8 at byte 1", "", "", "not valid UTF-8 at byte 1",
                'field "text" is null',
        ]  # fmt: skip
        assert [row[4][0] for row in rows if row[1] == ROW_TEXT] == ["good", "", "also good"]


def test_ids_that_are_not_utf8_are_shown_all_the_same(backend: Any, tmp_path: Path) -> None:
    ids = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff!", b"ok"], pa.binary()).buffers())
    rows = everything(table_of(tmp_path / "a.parquet", {"text": ["a", "b"], "id": ids}), backend, extra=("id",))
    assert [row[4][0] for row in rows] == ["\ufffd!", "ok"]


def test_values_of_other_columns(backend: Any, tmp_path: Path) -> None:
    import datetime
    import decimal

    stamp = pa.array([1, 2_000_000_001, None], pa.timestamp("ns"))
    columns = {
        "text": ["a", None, "c"],
        "i": pa.array([2**63 - 1, 0, -1], pa.int64()),
        "d": pa.array([decimal.Decimal("1.10"), None, None]),
        "t": stamp,
        "day": pa.array([datetime.date(2024, 2, 29)] * 3),
        "s": [{"a": {"b": 1}}, None, {"a": None}],
        "l": [[1, None], [], None],
        "dict": pa.array(["p", "q", "p"]).dictionary_encode(),
        "a.b": [True, False, None],
    }
    source = table_of(tmp_path / "a.parquet", columns)
    names = ("i", "d", "t", "day", "s", "s.a", "s.a.b", "s.x", "l", "dict", "a.b", "nowhere")
    rows = same_for_every_size(source, backend, extra=names)
    assert rows[0][4] == (
        2**63 - 1, decimal.Decimal("1.10"), "1970-01-01 00:00:00.000000001", "2024-02-29", {"a": {"b": 1}}, {"b": 1}, 1,
        MISSING, [1, None], "p", True, MISSING,
    )  # fmt: skip
    assert rows[1][4] == (MISSING,) * len(names)
    assert rows[2][4] == (-1, None, None, "2024-02-29", {"a": None}, None, None, MISSING, None, "p", None, MISSING)


def test_parquet_names_of_columns_and_structs(backend: Any, tmp_path: Path) -> None:
    inner = pa.array([{"text": "in", "n": 1}, None, {"text": None, "n": 2}, {"text": "in", "n": 3}])
    columns = {"title": ["T", None, None, "T"], "m": inner, "deep": [{"er": {"text": "d"}}] * 4, "bytes": [b"x"] * 4}
    source = table_of(tmp_path / "a.parquet", columns)
    assert texts(source, backend, fields=("m.text",)) == [b"in", None, None, b"in"]
    assert texts(source, backend, fields=("title", "m.text")) == [b"T\nin", None, None, b"T\nin"]
    assert texts(source, backend, fields=("m.text", "nowhere", "title")) == [b"in\nT", None, None, b"in\nT"]
    assert texts(source, backend, fields=("deep.er.text", "bytes")) == [b"d\nx"] * 4
    why = [row[3] for row in everything(source, backend, fields=("title", "m.text"))]
    assert why == ["", "all of the fields title, m.text are null", "all of the fields title, m.text are null", ""]
    both = table_of(tmp_path / "b.parquet", {"m.text": ["top", None], "m": [{"text": "path"}] * 2})
    assert texts(both, backend, fields=("m.text",)) == [b"top", None]


def test_columns_that_cannot_be_text_are_errors_of_the_file(backend: Any, tmp_path: Path) -> None:
    source = table_of(tmp_path / "a.parquet", {"id": [1], "words": [["a"]], "body": ["b"], "s": [{"text": 1}]})
    for fields, message in (
        (("text",), r"a\.parquet: no column text \(columns here: id, words, body, s\); .*--text-field"),
        (("id",), r"a\.parquet: column id holds int64, not text"),
        (("words",), r"column words holds list<.*>, not text"),
        (("s",), r"column s holds struct<text: int64>, not text"),
        (("s.text",), r"column s\.text holds int64, not text"),
        (("s.nope",), r"no column s\.nope"),
        (("body", "id"), r"column id holds int64"),
        (("x", "y"), r"no column x, y"),
    ):
        with pytest.raises(InputError, match=message):
            everything(source, backend, fields=fields)
    assert texts(source, backend, fields=("x", "body")) == [b"b"]


def repeated(path: Path, names: list[str], columns: list[list[Any]]) -> Source:
    pq.write_table(pa.table([pa.array(column) for column in columns], names=names), path)
    return source_of(path)


def test_a_repeated_column_that_is_asked_for_is_an_error_of_the_file(tmp_path: Path) -> None:
    words = [["a", "b"], ["c", "d"]]
    twice = repeated(tmp_path / "a.parquet", ["text", "text"], words)
    remedy = "rename all but one, name another field, or pass --on-bad-file skip"
    message = f"{twice.path}: 2 columns are named text; {remedy}"
    for columns in (["text"], ["text", "id"]):
        with pytest.raises(InputError) as error:
            open_source(twice, 100, 0, columns)
        assert str(error.value) == message
    with open_source(twice, 100) as reader:  # opened for all columns: known once somebody asks
        for chunk in reader:
            with pytest.raises(InputError) as error:
                chunk.parse(host_backend("numpy"), ["text"])
            assert str(error.value) == message

    ids = repeated(tmp_path / "b.parquet", ["text", "id", "id"], [*words, [1, 2]])
    assert texts(ids, host_backend("numpy")) == [b"a", b"b"]
    with open_source(ids, 100, 0, ["text"]) as reader:
        assert [chunk.count_rows() for chunk in reader] == [2]
    for columns, later in ((["text", "id"], []), (["text"], ["id"])):
        with pytest.raises(InputError, match=r"b\.parquet: 2 columns are named id; rename"):
            open_source(ids, 100, 0, columns, later)
    open_source(ids, 100, 0, ["text"], ["nowhere", "text"]).close()

    inner = pa.StructArray.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], ["x", "x", "y"])
    pq.write_table(pa.table({"m": inner}), tmp_path / "c.parquet")
    nested = source_of(tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"c\.parquet: 2 columns are named x, on the way to m\.x; rename"):
        open_source(nested, 100, 0, ["m.x"])


def test_wanted_rows_of_parquet(backend: Any, tmp_path: Path) -> None:
    raw = pa.Array.from_buffers(pa.string(), 4, pa.array([b"a", b"\xff", None, b"d"], pa.binary()).buffers())
    source = table_of(tmp_path / "a.parquet", {"text": raw, "id": [0, 1, 2, 3]})
    with open_source(source, 1000, 0) as reader:  # no columns named: all can be asked for
        (chunk,) = reader
    for bits in range(16):
        want = np.array([bits >> i & 1 for i in range(4)], bool)
        rows = chunk.parse(backend, ("text",), ("id",), want)
        status = [s if w else ROW_SKIPPED for s, w in zip([ROW_TEXT, ROW_BAD, ROW_BAD, ROW_TEXT], want, strict=True)]
        assert rows.status.tolist() == status
        assert rows.tape.to_list() == ["a" if want[0] else "", "", "", "d" if want[3] else ""]
        assert rows.fields["id"] == [0 if want[0] else MISSING, MISSING, MISSING, 3 if want[3] else MISSING]
        assert [row for row, _ in rows.errors] == [row for row in (1, 2) if want[row]]
    with pytest.raises(InternalError, match="not named"), open_source(source, 1000, 0, ["text"]) as reader:
        next(iter(reader)).parse(backend, ("text",), ("id",))


def test_large_and_small_texts_make_chunks_of_like_size(tmp_path: Path) -> None:
    """Bytes bound a chunk, whatever the rows and however well the column was packed in the file."""
    rows = ["x" * 100_000] * 300 + ["small"] * 50_000
    source = table_of(tmp_path / "a.parquet", {"text": rows}, row_group_size=1_000_000)
    with open_source(source, 1 << 20, 0, ["text"]) as reader:
        sizes = [chunk.parse(host_backend("numba"), ("text",)).tape.nbytes for chunk in reader]
    assert sum(sizes) == sum(map(len, rows))
    assert max(sizes) <= 6 << 20
    assert len(sizes) < 60


@pytest.mark.parametrize("codec", ["NONE", "snappy", "zstd", "gzip"])
def test_cut_and_damaged_parquet(tmp_path: Path, codec: str) -> None:
    source = table_of(tmp_path / "a.parquet", {"text": [f"row {i}" * 50 for i in range(500)]}, compression=codec)
    whole = Path(source.path).read_bytes()
    backend = host_backend("numba")
    for cut in [0, 3, 4, 11, *range(12, len(whole), max(1, len(whole) // 60)), len(whole) - 1]:
        with pytest.raises(
            InputError, match=r"b\.parquet: truncated, corrupt or unreadable Parquet data .* --on-bad-file skip"
        ):
            everything(source_of(tmp_path / "b.parquet", whole[:cut]), backend)
    # A damaged page: whatever comes out, it is either an error of the file or all of its rows.
    rng = np.random.default_rng(3)
    messages = []
    for _ in range(60):
        at = int(rng.integers(4, len(whole) // 2))
        damaged = whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]
        try:
            assert len(everything(source_of(tmp_path / "c.parquet", damaged), backend)) == 500
        except InputError as error:
            messages.append(str(error))
    assert messages or codec == "NONE"
    assert all("c.parquet: truncated" in message and "\n" not in message for message in messages)


def test_a_parquet_name_on_other_bytes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Parquet"):
        open_source(source_of(tmp_path / "a.parquet", LINES), 100)
    with pytest.raises(InputError, match="Parquet"):
        open_source(source_of(tmp_path / "e.parquet", b"PAR1" + bytes(64) + b"PARE"), 100)


# Tapes


@given(
    st.lists(st.binary(max_size=20), max_size=8), st.dictionaries(st.integers(0, 7), st.binary(max_size=30), max_size=5)
)
def test_replaced_texts(parts: list[bytes], changes: dict[int, bytes]) -> None:
    changes = {i: changes[i] for i in sorted(changes) if i < len(parts)}
    blob = np.frombuffer(b"??" + b"".join(parts), np.uint8)
    tape = Tape(blob, 2 + np.cumsum([0, *map(len, parts)], dtype=np.int64))  # a tape need not begin at byte 0
    new = replaced(tape, changes)
    assert [new[i] for i in range(len(new))] == [changes.get(i, part) for i, part in enumerate(parts)]


# Discovery


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "in/b.jsonl", "in/a.jsonl.gz", "in/sub/c.parquet", "in/sub/Z.NDJSON", "in/sub2/d.json",
        "in/sub-1/e.jsonl.zst", "in/é.pq",
        "in/.hidden.jsonl", "in/_part.jsonl", "in/.cache/x.jsonl", "in/_gpu_dedup/removed.parquet", "in/readme.txt",
        "in/x.dat",
        "other/a.jsonl.gz", "other/deep/f.jsonl", "plain.jsonl", "odd[1].jsonl",
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rels(*inputs: str, output: str | None = None) -> list[str]:
    return [source.rel for source in discover(inputs, output)]


def test_files_folders_and_globs(tree: Path) -> None:
    folder = ["a.jsonl.gz", "b.jsonl", "sub-1/e.jsonl.zst", "sub/Z.NDJSON", "sub/c.parquet", "sub2/d.json", "é.pq"]
    assert rels("in") == rels("in/") == rels("./in/../in") == rels(str(tree / "in")) == folder
    assert rels("plain.jsonl") == ["plain.jsonl"]
    assert rels("in/b.jsonl", "in/a.jsonl.gz") == ["b.jsonl", "a.jsonl.gz"]  # as given
    assert rels("in/sub/c.parquet", "other/a.jsonl.gz") == ["in/sub/c.parquet", "other/a.jsonl.gz"]
    assert rels("other", "in/sub") == ["other/a.jsonl.gz", "other/deep/f.jsonl", "in/sub/Z.NDJSON", "in/sub/c.parquet"]
    assert rels("plain.jsonl", "in/sub2") == ["plain.jsonl", "in/sub2/d.json"]
    assert rels("in/*.jsonl*") == ["_part.jsonl", "a.jsonl.gz", "b.jsonl"]  # as a shell would
    assert rels("in/[ab].*") == ["a.jsonl.gz", "b.jsonl"]
    assert rels("in/sub*") == ["sub-1/e.jsonl.zst", "sub/Z.NDJSON", "sub/c.parquet", "sub2/d.json"]
    assert rels("o*/**/*.jsonl*") == ["a.jsonl.gz", "deep/f.jsonl"]
    assert rels("**/*.parquet") == ["c.parquet"]
    assert rels("odd[1].jsonl") == ["odd[1].jsonl"]  # a name that is there is no pattern
    (source,) = discover([tree / "in" / "sub-1"], tree / "out")
    assert source == Source(
        str(tree / "in/sub-1/e.jsonl.zst"),
        "e.jsonl.zst",
        "jsonl",
        "zst",
        20,
        (tree / "in/sub-1/e.jsonl.zst").stat().st_mtime_ns,
    )
    kinds = {source.rel: (source.format, source.compression) for source in discover(["in"], None)}
    assert kinds == {
        "a.jsonl.gz": ("jsonl", "gz"), "b.jsonl": ("jsonl", ""), "sub/Z.NDJSON": ("jsonl", ""),
            "sub/c.parquet": ("parquet", ""),
        "sub2/d.json": ("jsonl", ""), "sub-1/e.jsonl.zst": ("jsonl", "zst"), "é.pq": ("parquet", ""),
    }  # fmt: skip
    assert source.where(0) == f"{source.path}:1"
    assert discover(["in/sub/c.parquet"], None)[0].where(7) == f"{tree}/in/sub/c.parquet: row 7"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "no input given"),
        ([""], "input without a name"),
        (["-"], r"-: standard input is for .*; save it to a file first"),
        (["nowhere.jsonl"], r"nowhere\.jsonl: no such file or folder"),
        (["in/b.jsonl", "nowhere/"], r"nowhere/: no such file"),
        (["in/*.arrow"], r"in/\*\.arrow: no file matches"),
        (["in/**/*.dat"], r"no file of a known kind"),
        (["empty"], r"empty: no input in this folder; known endings are \.jsonl"),
        (["in/x.dat"], r"in/x\.dat: unknown kind of file; known endings are \.jsonl, .*\.parquet"),
        (["in/x.dat", "in/b.jsonl"], r"x\.dat: unknown kind"),
        (["in/b.jsonl", "in/b.jsonl"], r"b\.jsonl: this file is given twice; name each input once"),
        (["in", "in/sub"], r"is given twice"),
        (["in/b.jsonl", "./in/../in/b.jsonl"], r"is given twice"),
        (["in/b.jsonl", "linked.jsonl"], r"linked\.jsonl: this file is the same as in/b\.jsonl"),
        (["in/b.jsonl", "hard.jsonl"], r"hard\.jsonl: this file is the same as in/b\.jsonl"),
        (["broken.jsonl"], r"broken\.jsonl: a link to something that is not there"),
        (["pipe.jsonl"], r"pipe\.jsonl: not a regular file"),
        (["in/_gpu_dedup"], r"a run's own files"),
        (["plain.jsonl", "_gpu_dedup/x.parquet"], r"a run's own files"),
    ],
)
def test_inputs_that_are_refused(tree: Path, inputs: list[str], message: str) -> None:
    (tree / "empty").mkdir()
    (tree / "_gpu_dedup").mkdir()
    (tree / "_gpu_dedup" / "x.parquet").write_bytes(b"x")
    (tree / "linked.jsonl").symlink_to("in/b.jsonl")
    os.link("in/b.jsonl", "hard.jsonl")
    (tree / "broken.jsonl").symlink_to("nowhere")
    os.mkfifo("pipe.jsonl")
    with pytest.raises(InputError, match=message) as error:
        discover(inputs, None)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


def test_links_to_folders_are_followed_but_not_in_circles(tree: Path) -> None:
    (tree / "in" / "sub" / "up").symlink_to("..")
    (tree / "in" / "more").symlink_to(tree / "other" / "deep")
    assert "more/f.jsonl" in rels("in")
    assert len(rels("in")) == 8


@pytest.mark.parametrize(
    ("name", "target", "words"),
    [
        ("loop.jsonl", "loop.jsonl", "Too many levels of symbolic links"),
        ("loop", "loop", "Too many levels of symbolic links"),
        ("far.jsonl", "x" * 300, "File name too long"),
    ],
)
def test_links_that_lead_nowhere_are_one_line_about_the_input(tree: Path, name: str, target: str, words: str) -> None:
    (tree / "in" / "sub" / name).symlink_to(target)
    for inputs in (["in"], [f"in/sub/{name}"], [f"in/sub/{name[:-1]}?"]):
        with pytest.raises(InputError) as error:
            discover(inputs, None)
        assert str(error.value) == f"in/sub/{name}: cannot be read: {words}; mend or leave it out"


def test_names_that_no_file_can_have_are_one_line(tree: Path) -> None:
    with pytest.raises(InputError, match=r"x: cannot be read: File name too long; mend or leave it out$"):
        discover(["x" * 300], None)
    with pytest.raises(InputError, match="no such file or folder"):
        discover(["a\0b"], None)
    with pytest.raises(InputError, match="no such file or folder"):
        discover(["plain.jsonl/below"], None)
    assert rels("in/[b]." + "*" * 300) == ["b.jsonl"]  # a pattern may be as long as it likes


def test_what_is_passed_over_is_told(tree: Path) -> None:
    for name in ("b.jsonl.bz2", "sub/c.jsonl.xz", "d.jsonl.gzip", "_notes.txt", ".notes.txt"):
        (tree / "in" / name).write_bytes(b"x")
    for name in ("g.JSONL.ZSTD", "h.JsonL.Zst", "i.PARQUET"):
        (tree / "in" / "sub" / name).write_bytes(b"x")
    os.mkfifo("in/pipe.txt")
    (tree / "in" / "gone.txt").symlink_to("nowhere")
    over: list[str] = []
    kinds = {source.rel: (source.format, source.compression) for source in discover(["in"], None, over)}
    assert over == ["in/b.jsonl.bz2", "in/d.jsonl.gzip", "in/readme.txt", "in/sub/c.jsonl.xz", "in/x.dat"]
    assert kinds["sub/g.JSONL.ZSTD"] == kinds["sub/h.JsonL.Zst"] == ("jsonl", "zst")
    assert kinds["sub/i.PARQUET"] == ("parquet", "")
    over.clear()
    discover(["in/**/*"], None, over)
    assert over == ["in/b.jsonl.bz2", "in/d.jsonl.gzip", "in/readme.txt", "in/sub/c.jsonl.xz", "in/x.dat"]
    over.clear()
    discover(["other", "in/s*"], None, over)
    assert over == ["in/sub/c.jsonl.xz"]
    over.clear()
    discover(["plain.jsonl"], None, over)
    assert over == []


def test_what_may_not_be_read_is_refused(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:  # permissions do not bind root
        patch.setattr(os, "access", lambda path, mode: not str(path).endswith("b.jsonl"))
        with pytest.raises(InputError, match=r"b\.jsonl: no permission to read"):
            discover(["in"], None)

    stat = os.stat

    def closed(path: str, **more: Any) -> Any:
        if str(path).endswith("b.jsonl"):
            raise PermissionError(13, "Permission denied", path)
        return stat(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", closed)
        for inputs in (["in"], ["in/b.jsonl"]):
            with pytest.raises(
                InputError, match=r"in/b\.jsonl: no permission to read; change it or leave out the file$"
            ):
                discover(inputs, None)

    scandir = os.scandir

    class Entry:
        """A link through a folder that is closed to us."""

        name, path = "b.jsonl", "in/b.jsonl"

        def is_dir(self) -> bool:
            raise PermissionError(13, "Permission denied", self.path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda path: [Entry()])
        with pytest.raises(InputError, match=r"^in/b\.jsonl: no permission to read; change it or leave out the file$"):
            discover(["in"], None)

    def refuse(path: str) -> Any:
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(InputError, match=r"in/sub: no permission to read"):
        discover(["in"], None)


@pytest.mark.parametrize(
    ("inputs", "output", "message"),
    [
        (["in"], "in", "the output is the input folder"),
        (["in"], "in/clean", "the output lies inside the input folder"),
        (["in/sub"], "in", "lies inside the output"),
        (["in"], "link", "the output is the input folder"),
        (["in/b.jsonl"], "in", r"would overwrite the input in/b\.jsonl"),
        (["in/b.jsonl"], "link", r"would overwrite the input in/b\.jsonl"),
        (["in/sub/c.parquet", "in/b.jsonl"], "in", "would overwrite the input"),
        (["in"], "", "an output folder without a name"),
    ],
)
def test_outputs_that_are_refused(tree: Path, inputs: list[str], output: str, message: str) -> None:
    (tree / "link").symlink_to("in")
    with pytest.raises(OutputError, match=message) as error:
        discover(inputs, output)
    assert "\n" not in str(error.value)


def test_outputs_that_are_no_danger(tree: Path) -> None:
    assert rels("in", output="in-clean") == rels("in")
    assert rels("in/sub/c.parquet", output="in/out") == ["c.parquet"]
    assert rels("in/sub/c.parquet", output="in") == ["c.parquet"]


def test_names_that_are_no_text_make_one_line_messages(tree: Path) -> None:
    raw = os.fsencode(tree) + b"/bad\xff\nname.jsonl"
    with open(raw, "wb") as file:
        file.write(b'{"text": "a"}\n')
    name = os.fsdecode(raw)
    assert texts(discover([name], None)[0], host_backend("numpy")) == [b"a"]
    with pytest.raises(UserError) as error:
        discover([name, name], None)
    str(error.value).encode()
    assert "\n" not in str(error.value)
    table = os.fsencode(tree) + b"/bad\xff.parquet"
    pq.write_table(pa.table({"text": ["t"]}), "good.parquet")
    os.rename("good.parquet", table)
    assert texts(discover([os.fsdecode(table)], None)[0], host_backend("numpy")) == [b"t"]
