"""CSV and TSV files: read like Python's csv module reads them, written back byte for byte less rows."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup import show
from gpu_dedup.backend import host_backend
from gpu_dedup.batch import MISSING, ROW_BAD, ROW_BLANK, ROW_TEXT
from gpu_dedup.errors import InputError, RecipeError, UserError
from gpu_dedup.pipeline import dedup
from gpu_dedup.read import Source, discover, open_source
from gpu_dedup.recipe import Recipe
from gpu_dedup.run import Run


def source_of(path: Path, data: bytes) -> Source:
    path.write_bytes(data)
    return discover([str(path)], None)[0]


def everything(
    source: Source, backend: Any, size: int, fields: tuple[str, ...] = ("text",), extra: tuple[str, ...] = ()
) -> tuple[list[Any], bytes]:
    """Rows as (status, text, why bad, values), and the bytes of the file put together from its chunks."""
    rows: list[Any] = []
    content = b""
    with open_source(source, size, 0, None, (), backend) as reader:
        for chunk in reader:
            assert chunk.first_row == len(rows)
            parsed = chunk.parse(backend, fields, extra)
            starts = chunk.lines()
            assert (starts[0], starts[-1], len(starts)) == (0, chunk.size, chunk.count_rows() + 1)
            content += chunk.bom + chunk.data[: chunk.size].tobytes()
            why = dict(parsed.errors)
            for i in range(len(parsed)):
                values = [parsed.fields[name][i] for name in extra]
                rows.append((int(parsed.status[i]), parsed.tape[i].decode(), why.get(chunk.first_row + i, ""), values))
        assert reader.bytes_read == source.size
    return rows, content


DATA = (
    b"\xef\xbb\xbf\r\n\n"
    b'id,"text, and ""more""",score\r\n'
    b'1,"one\r\ntwo, ""three""\n",5\n'
    b"\n"
    b'2,5" of x,\r\n'
    b"3,too few\n"
    b'4,a,b,"c"\n'
    b"5,\xff,7\n"
    b'"6","",8\r'
    b"7,\xe4\xb8\xad,9\n"
    b'8,"open,10\n9,x,1\n'
)
NAME = 'text, and "more"'


def test_rows_by_hand(backend: Any, tmp_path: Path) -> None:
    source = source_of(tmp_path / "a.csv", DATA)
    for size in (1, 20, 4 << 20):
        rows, content = everything(source, backend, size, (NAME,), ("id", "score", "other"))
        assert content == DATA
        assert rows == [
            (ROW_TEXT, 'one\r\ntwo, "three"\n', "", ["1", "5", MISSING]),
            (ROW_BLANK, "", "", [MISSING] * 3),
            (ROW_TEXT, '5" of x', "", ["2", "", MISSING]),
            (ROW_BAD, "", "2 fields where the header has 3 (line 9)", [MISSING] * 3),
            (ROW_BAD, "", "4 fields where the header has 3 (line 10)", [MISSING] * 3),
            (ROW_BAD, "", "not valid UTF-8 at byte 3 (line 11)", [MISSING] * 3),
            (ROW_TEXT, "", "", ["6", "8", MISSING]),
            (ROW_TEXT, "\u4e2d", "", ["7", "9", MISSING]),
            (ROW_BAD, "", "a quote that is opened is not closed before the end of the file (line 14)", [MISSING] * 3),
        ]
        joined, _ = everything(source, backend, size, ("score", NAME))
        assert [text for _, text, _, _ in joined[:3]] == ['5\none\r\ntwo, "three"\n', "", '\n5" of x']


@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
def test_chunks_are_read_again_by_their_refs(packed: str, tmp_path: Path) -> None:
    pack = {"": bytes, ".gz": gzip.compress, ".zst": lambda data: pa.compress(data, "zstd", asbytes=True)}[packed]
    data = b"text\tid\n" + b"".join(b'"a\n%d"\t%d\r\n' % (i, i) for i in range(60))
    source = source_of(tmp_path / f"a.tsv{packed}", pack(data))
    numba = host_backend("numba")
    with open_source(source, 100, 0, None, (), numba) as reader:
        chunks = list(reader)
    assert len(chunks) > 5
    with open_source(source, 4 << 20) as reader:
        for chosen in (chunks[1::3], chunks):
            for one, other in zip(chosen, reader.read_refs([chunk.ref for chunk in chosen]), strict=True):
                left, right = (chunk.parse(numba, ("text",), ("id",)) for chunk in (one, other))
                assert (left.tape.to_list(), left.fields) == (right.tape.to_list(), right.fields)
                assert np.array_equal(one.lines(), other.lines())


CELLS = st.text(st.sampled_from('ab,"\n\r \u4e2d\t'), max_size=6)


@given(
    st.lists(st.lists(CELLS, min_size=3, max_size=3), max_size=12),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["csv", "tsv"]),
    st.integers(1, 60),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_what_pythons_csv_writes_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[list[str]],
    end: str,
    quoting: Any,
    kind: str,
    size: int,
    cut: bool,
) -> None:
    if quoting == csv.QUOTE_MINIMAL:  # its writer leaves other line ends unquoted, and its reader ends the record there
        rows = [[cell.replace("\r", "").replace("\n" if end == "\r" else "\r", "") for cell in row] for row in rows]
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter="," if kind == "csv" else "\t", lineterminator=end, quoting=quoting)
    writer.writerow(["id", "text", "more"])
    writer.writerows(rows)
    data = out.getvalue().encode()
    if cut:
        data = data[: -len(end)]
    source = source_of(tmp_path_factory.mktemp("csv") / f"a.{kind}", data)
    found, content = everything(source, host_backend("numba"), size, ("text",), ("id", "more"))
    assert content == data
    assert [(text, values) for _, text, _, values in found] == [(row[1], [row[0], row[2]]) for row in rows]
    assert {status for status, *_ in found} <= {ROW_TEXT}


def run(data: bytes, tmp_path: Path, name: str = "a.csv", recipe: Recipe | None = None) -> tuple[bytes, harness.Ran]:
    path = tmp_path / "in" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    ran = harness.run(path, tmp_path / "out", recipe)
    return harness.read_bytes(ran.out / name), ran


@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
def test_what_stays_is_the_file_less_rows(packed: str, tmp_path: Path) -> None:
    pack = {"": bytes, ".gz": gzip.compress, ".zst": lambda data: pa.compress(data, "zstd", asbytes=True)}[packed]
    head = b'\xef\xbb\xbf\r\n"id",text\r\n'
    rows = [
        b'1,"one text, of ""some"" words\r\nover two lines"\r\n',
        b'2,"one text, of ""some"" words\nover two lines"\n',  # a copy: white space does not count
        b"\r\n",
        b"3,another\r",
        b"4,Another\n",
        b'5,"the last, without an end"',
    ]
    out, ran = run(pack(head + b"".join(rows)), tmp_path, f"a.csv{packed}")
    assert out == head + rows[0] + rows[3] + rows[5]
    assert [(entry["row"], entry["id"], entry["kept_row"], entry["kept_id"]) for entry in ran.removed] == [
        (1, "2", 0, "1"),
        (4, "4", 3, "3"),
    ]
    assert ran.report["result"]["counts"]["blank"] == 1
    text = show.show(str(ran.out), "1", width=80)
    assert "Another" in text
    assert "another" in text
    assert "changed" not in text


def test_the_keeper_takes_numbers_for_numbers(tmp_path: Path) -> None:
    data = b"id,text,score\n1,a b c d e,9\n2,a b c d e,10\n3,a b c d e,\n4,a b c d e,9.5\n"
    out, ran = run(data, tmp_path, recipe=Recipe(keep="max:score"))
    assert out == b"id,text,score\n2,a b c d e,10\n"
    assert {entry["kept_id"] for entry in ran.removed} == {"2"}
    assert {entry["id_type"] for entry in ran.removed} == {"string"}
    with pytest.raises(UserError, match=r"a\.csv: row 1"):
        run(data.replace(b",10", b",ten"), tmp_path / "mixed", recipe=Recipe(keep="max:score"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"id,Text\n1,a\n",
            r"a\.csv: no column text \(columns here: id, Text; is it Text\?\); name the right one with --text",
        ),
        (b"id;body\n1;a\n", r"no column text \(columns here: id;body\); name the right one"),
        (b"text,text\na,b\n", r"2 columns are named text; rename all but one"),
        (b'te"xt,"text\n', r"a quote in the header is not closed"),
        (b"id,\xff\n1,2\n", r"the header is not valid UTF-8 \(column 2, byte 1\)"),
        (
            b"id,text\n1\n",
            r"a\.csv: row 0: 1 field where the header has 2 \(line 2\); mend it, or pass --on-bad-row skip",
        ),
        (b"\x1f\x8b\x08", r"not CSV: this looks like gzip data; name it \.csv\.gz"),
        (b"\xff\xfei\0d\0", r"not CSV: this looks like UTF-16 text; convert it"),
    ],
)
def test_files_that_are_refused(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        run(data, tmp_path)


def test_empty_files_and_headers_alone(tmp_path: Path) -> None:
    for number, data in enumerate((b"", b"\n\r\n", b"id,text", b"id,text\n", b"\xef\xbb\xbf")):
        out, ran = run(data, tmp_path / str(number))
        assert out == data
        assert ran.report["result"]["counts"]["read"] == 0


def test_shards_limit_and_formats_by_option(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.data", "b.data"):
        (folder / name).write_bytes(
            b"text\n" + b"".join(b'"some %d words, in a row that is long"\n' % (i % 9) for i in range(30))
        )
    (folder / "c.jsonl").write_bytes(b"not this one")
    recipe = Recipe(format="csv")
    one = harness.run(folder, tmp_path / "one", recipe)
    assert sorted(one.inputs) == ["a.data", "b.data"]
    assert (one.out / "a.data").read_bytes().count(b"\n") == 10
    assert (one.out / "b.data").read_bytes() == b"text\n"
    dedup(str(folder), str(tmp_path / "two"), recipe, Run(progress=False), processes=2)
    assert (tmp_path / "two" / "b.data").read_bytes() == b"text\n"
    assert harness.removed_rows(tmp_path / "two") == one.removed
    limited = harness.run(folder, tmp_path / "limited", recipe.with_(limit=3))
    assert (limited.out / "a.data").read_bytes().count(b"\n") == 4
    with pytest.raises(RecipeError, match="lines is for plain text, and no input is plain text"):
        harness.run(folder, tmp_path / "never", Recipe(lines=True, on_bad_row="skip"))
