"""Rows that are lists of tokens: an encoding in which no two lists are one text, every format, whole runs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import harness
import numpy as np
import oracle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_dedup import Recipe, cli, dedup_texts
from gpu_dedup.backend import host_backend
from gpu_dedup.batch import ROW_BAD, ROW_BLANK, ROW_SKIPPED, ROW_TEXT, Rows, Tape
from gpu_dedup.errors import InputError, RecipeError
from gpu_dedup.outlook import explain
from gpu_dedup.read import discover, open_source
from gpu_dedup.read.items import WHITE_SPACE, count, odd, shown_text, text_of, written
from gpu_dedup.run import Run
from gpu_dedup.show import show

FORMATS = ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrow"]
PIECES = [
    *"ab1-\\;.e \t\n",
    "",
    "\x85",
    "\xa0",
    "\u1680",
    "\u2003",
    "\u2028",
    "\u205f",
    "\u3000",
    "\u3001",
    "中",
    "▁the",
    "Ġ",
    "12",
    "-7",
]
TOKEN = st.one_of(st.lists(st.sampled_from(PIECES), max_size=4).map("".join), st.integers(-(10**20), 10**20))
LISTS = st.lists(TOKEN, max_size=6)


def write(path: Path, rows: list[dict[str, Any]], kind: Any = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".parquet", ".arrow"):
        fields = {name: [row.get(name) for row in rows] for name in rows[0]}
        table = pa.table({n: pa.array(v, kind) if n == "ids" and kind is not None else v for n, v in fields.items()})
        if path.suffix == ".parquet":
            pq.write_table(table, path, row_group_size=7)
        else:
            with pa.ipc.new_file(path, table.schema) as made:
                made.write_table(table, max_chunksize=5)
        return path
    return harness.write_lines(path, [json.dumps(row).encode() + b"\n" for row in rows])


def parsed(path: Path, want: list[bool] | None = None, backend: str = "numpy") -> list[Rows]:
    (source,) = discover([str(path)], None)
    out, at = [], 0
    with open_source(source, 1 << 10) as reader:
        for chunk in reader:
            part = None if want is None else np.array(want[at : at + chunk.count_rows()], np.bool_)
            at += chunk.count_rows()
            out.append(chunk.items(host_backend(backend), "ids", ("id",), part))
    return out


def texts(path: Path) -> list[str]:
    return [text for rows in parsed(path) for text in rows.tape.to_list()]


def reasons(path: Path) -> dict[int, str]:
    return dict(error for rows in parsed(path) for error in rows.errors)


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ([], ""),
        (["a", "b"], "a b"),
        ([1, 23, -4], "1 23 -4"),
        (["1", 1, "-4", "+4", "4.", "\u0661"], "\\.1 1 \\.-4 +4 4. \u0661"),
        ([""], "\\;"),
        (["", ""], "\\; \\;"),
        (["a b", "\\", "\u3000"], "a\\20;b \\5c; \\3000;"),
        (["\\20;", "\\;"], "\\5c;20; \\5c;;"),
        ([10**5000], "1" + "0" * 5000),
    ],
)
def test_texts_by_hand(tokens: list[Any], text: str) -> None:
    if len(text) > 4300:  # as JSON lines read it
        tokens = json.loads(
            f"[{text}]", parse_int=lambda digits: type("Long", (int,), {"__str__": lambda s: digits})(0)
        )
    assert text_of(tokens) == text


@given(LISTS, LISTS)
def test_no_two_lists_have_one_text(one: list[Any], other: list[Any]) -> None:
    left, right = text_of(one), text_of(other)
    same = one == other and [type(token) for token in one] == [type(token) for token in other]
    assert (left == right) == same
    assert shown_text(left) == " ".join(map(str, one))
    assert oracle.units(left, "word") == (left.split(" ") if left else [])
    assert count(Tape.of([right, left, ""])).tolist() == [len(other), len(one), 0]


def test_white_space_is_all_of_it() -> None:
    spaces = [chr(code) for code in sorted(oracle.WHITE_SPACE)]
    for space in spaces:
        assert written(f"a{space}b") == f"a\\{ord(space):x};b"
    assert len(spaces) == 25
    assert "\t-\r" in WHITE_SPACE


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=4).map("".join), max_size=8), st.integers(0, 3))
def test_odd_tokens_are_found(tokens: list[str], skip: int) -> None:
    tape = Tape.of(["x" * skip, *tokens])
    found = set(odd(Tape(tape.blob, tape.offsets[1:])).tolist())
    assert found >= {i for i, token in enumerate(tokens) if written(token) != token}
    assert not found & {
        i for i, token in enumerate(tokens) if token and token[0] in "中▁Ġab;." and written(token) == token
    }


WORDS = [["a", "b c", ""], [], ["1", "x\u2003y"], ["中", "\\"], ["▁the"] * 9]


@pytest.mark.parametrize("name", FORMATS)
def test_formats_agree_on_strings(tmp_path: Path, name: str) -> None:
    rows = [{"id": i, "ids": WORDS[i % len(WORDS)]} for i in range(23)]
    assert texts(write(tmp_path / name, rows)) == [text_of(row["ids"]) for row in rows]


@pytest.mark.parametrize("name", FORMATS)
def test_formats_agree_on_numbers(tmp_path: Path, name: str) -> None:
    rows = [{"id": i, "ids": list(range(-i, 3 * i))} for i in range(23)]
    assert texts(write(tmp_path / name, rows)) == [text_of(row["ids"]) for row in rows]


@pytest.mark.parametrize(
    "kind",
    [
        pa.large_list(pa.large_string()), pa.list_(pa.binary()), pa.list_(pa.string_view()),
        pa.list_(pa.dictionary(pa.int32(), pa.string())), pa.list_(pa.string(), 2),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_list_types_of_strings(tmp_path: Path, kind: Any, name: str) -> None:
    values: list[Any] = [["a", "b c"], None, ["1", ""], ["c", "d"], ["c", None]] * 3
    values = (
        [value if value is None else [v if v is None else v.encode() for v in value] for value in values]
        if kind == pa.list_(pa.binary())
        else values
    )
    path = write(tmp_path / name, [{"id": i, "ids": value} for i, value in enumerate(values)], kind)
    assert texts(path) == ["a b\\20;c", "", "\\.1 \\;", "c d", ""] * 3
    assert reasons(path) == {
        **{i: 'field "ids" is null' for i in (1, 6, 11)},
        **{i: 'field "ids" item 1 is null; items are strings or whole numbers' for i in (4, 9, 14)},
    }


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int32(), pa.uint64()], ids=str)
def test_list_types_of_numbers(tmp_path: Path, kind: Any) -> None:
    top = {"int8": 127, "uint16": 65535, "int32": 2**31 - 1, "uint64": 2**64 - 1}[str(kind)]
    path = write(tmp_path / "a.parquet", [{"id": 0, "ids": [0, top]}, {"id": 1, "ids": [None]}], pa.list_(kind))
    assert texts(path) == [f"0 {top}", ""]
    assert reasons(path) == {1: 'field "ids" item 0 is null; items are strings or whole numbers'}


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    rows = [{"id": 0, "ids": [b"a", b"\xff"]}, {"id": 1, "ids": [b"\xe4\xb8\xad"]}]
    path = write(tmp_path / "a.parquet", rows, pa.list_(pa.binary()))
    assert texts(path) == ["", "中"]
    assert list(reasons(path)) == [0]
    assert "item 1 is not valid UTF-8 at byte 1" in reasons(path)[0]


@pytest.mark.parametrize("name", FORMATS)
def test_rows_that_are_not_wanted_are_passed_over(tmp_path: Path, name: str) -> None:
    rows = [{"id": i, "ids": ["a", str(i)] if i % 4 else None} for i in range(20)]
    want = [i % 3 == 0 for i in range(20)]
    path = write(tmp_path / name, rows, pa.list_(pa.string()))
    status = np.concatenate([part.status for part in parsed(path, want)])
    assert status.tolist() == [(ROW_TEXT if i % 4 else ROW_BAD) if want[i] else ROW_SKIPPED for i in range(20)]
    ids = [value for part in parsed(path, want) for value in part.fields["id"]]
    assert [value for i, value in enumerate(ids) if want[i] and i % 4] == [3, 6, 9, 15, 18]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"ids": ["a", null]}', "item 1 is null; items are strings or whole numbers"),
        ('{"ids": [["a"]]}', "item 0 is a list; items"),
        ('{"ids": [1, {"b": 2}]}', "item 1 is an object; items"),
        ('{"ids": [1, 2.5]}', "item 1 is not a whole number; items"),
        ('{"ids": [1.0]}', "item 0 is not a whole number; items"),
        ('{"ids": [true]}', "item 0 is true or false; items"),
        ('{"ids": "a b"}', 'field "ids" is a string, not a list'),
        ('{"ids": null}', 'field "ids" is null, not a list'),
        (
            '{"id": 1, "tokens": []}',
            'no field "ids" (fields here: id, tokens; is it id?; name the right one with --pretokenized)',
        ),
        ("{}", 'no field "ids" (the object is empty'),
        ("[1]", "not an object but a list"),
        ("{", "not valid JSON"),
    ],
)
def test_bad_rows_of_lines(tmp_path: Path, line: str, reason: str) -> None:
    path = harness.write_lines(tmp_path / "a.jsonl", [b'{"ids": []}\n', b" \n", line.encode() + b"\n", b'{"ids": [7]}'])
    (rows,) = parsed(path)
    assert rows.status.tolist() == [ROW_TEXT, ROW_BLANK, ROW_BAD, ROW_TEXT]
    assert rows.tape.to_list() == ["", "", "", "7"]
    assert reason in reasons(path)[2]
    with pytest.raises(InputError, match=r"a.jsonl:3: .*on-bad-row"):
        harness.run(path, tmp_path / "out", Recipe(pretokenized="ids"))


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array(["a"]), "holds string, not lists of strings or whole numbers"),
        (pa.array([[1.5]]), "holds list<.*double>, not lists"),
        (pa.array([[["a"]]]), "not lists of strings"),
        (None, r"no column ids \(columns here: other"),
    ],
)
def test_columns_that_hold_no_lists(tmp_path: Path, column: Any, words: str) -> None:
    pq.write_table(pa.table({"other": [1]} if column is None else {"ids": column}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=f"{words}.*--pretokenized"):
        harness.run(tmp_path / "a.parquet", tmp_path / "out", Recipe(pretokenized="ids"))


def test_formats_without_lists_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ids\n1 2\n")
    with pytest.raises(InputError, match=r"a.csv: .* no lists; .*JSON lines, Parquet or Arrow"):
        harness.run(tmp_path / "a.csv", tmp_path / "out", Recipe(pretokenized="ids"))
    (tmp_path / "a.txt").write_text("1 2\n")
    with pytest.raises(RecipeError, match="plain text has none"):
        harness.run(tmp_path / "a.txt", tmp_path / "out", Recipe(pretokenized="ids"))


# ----------------------------------------------------------------------------------------------------- whole runs


def near_lists(numbers: bool) -> dict[str, list[Any]]:
    rng = random.Random("lists")
    base: list[Any] = [rng.randrange(50_000) for _ in range(80)]
    if not numbers:
        base = [f"tok en{value}" if value % 5 else "" for value in base]
    out = {"a": base, "copy": list(base)}
    for i in range(5):
        other = list(base)
        other[10 * i] = "7" if not numbers else 7
        other[10 * i + 5 : 10 * i + 5] = ["new"] * i if not numbers else [1] * i
        out[f"near{i}"] = other
    out["short"] = base[:3]
    out["none"] = []
    out["far"] = base[::-1]
    return out


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.arrow"])
@pytest.mark.parametrize("numbers", [True, False], ids=["numbers", "strings"])
def test_removals_have_the_numbers_of_sets_of_tuples(tmp_path: Path, backend: str, name: str, numbers: bool) -> None:
    lists = near_lists(numbers)
    path = write(tmp_path / "in" / name, [{"id": key, "ids": value} for key, value in lists.items()])
    recipe = Recipe(pretokenized="ids", shingle="item:4", threshold_ppm=400_000, **harness.FULL_RECALL)
    ran = harness.run(path, tmp_path / "out", recipe, backend=backend)
    sets = {key: {tuple(value[i : i + 4]) for i in range(max(1, len(value) - 3))} for key, value in lists.items()}
    gone = {entry["id"]: entry for entry in ran.removed}
    assert set(gone) == {"copy", *(f"near{i}" for i in range(5))}
    assert gone["copy"]["reason"] == "exact"
    for key, entry in gone.items():
        if entry["reason"] == "near":
            left, right = sets[key], sets[entry["kept_id"]]
            assert (entry["shared"], entry["union"]) == (len(left & right), len(left | right))
    assert ran.report["result"]["counts"]["short"] == 1
    assert ran.report["result"]["counts"]["no_text"] == 1
    values = ran.report["result"]["recipe"]
    assert (values["shingle"], values["pretokenized"], values["normalize"], values["text_field"]) == (
        "item:4",
        "ids",
        [],
        [],
    )
    assert Recipe.from_dict(values).fingerprint() == ran.report["result"]["fingerprint"]
    shown = show(str(ran.out), "id:near1", width=120)
    assert "item:4 shingles" in shown
    assert "changed" not in shown
    assert ("tok en" in shown) != numbers
    assert "\\20;" not in shown
    audited = harness.run(path, tmp_path / "audited", recipe, backend=backend, audit=100)
    assert audited.report["result"]["audit"]["missed"] == 0


def test_other_methods_and_keepers(tmp_path: Path) -> None:
    rows = [{"id": key, "ids": value} for key, value in near_lists(True).items()]
    path = write(tmp_path / "a.jsonl", rows)
    assert harness.run(path, tmp_path / "exact", Recipe(method="exact", pretokenized="ids")).groups == {"a": ["copy"]}
    few = write(
        tmp_path / "b.jsonl", [{"id": "wide", "ids": ["x" * 500] * 20}, {"id": "many", "ids": ["x" * 500] * 30}]
    )
    longest = harness.run(few, tmp_path / "longest", Recipe(pretokenized="ids", keep="longest"))
    assert longest.groups == {"many": ["wide"]}
    wide = write(tmp_path / "c.jsonl", [{"id": "wide", "ids": ["a", "b" * 99]}, {"id": "many", "ids": ["a", "b", "c"]}])
    none = harness.run(
        wide,
        tmp_path / "none",
        Recipe(pretokenized="ids", keep="longest", shingle="item:1", threshold_ppm=200_000, **harness.FULL_RECALL),
    )
    assert none.groups == {"many": ["wide"]}  # by tokens, not by characters


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"text_field": ("text",)}, "text-field is for texts, and pretokenized 'ids'.*drop one"),
        ({"normalize": ("lower",)}, "normalize is for texts"),
        ({"strip": ("x",)}, "strip is for texts"),
        ({"max_chars": 5}, "max-chars is for texts"),
        ({"stop_shingles": ("x",)}, "stop-shingles is for texts"),
        ({"verify": "edit"}, "verify edit compares characters.*verify exact"),
        ({"method": "cascade"}, "cascade compares characters.*another method"),
        ({"shingle": "char:9"}, "'char:9' cuts texts.*use item:9"),
        ({"pretokenized": ""}, "names no field"),
    ],
)
def test_what_needs_a_text_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        Recipe(**{"pretokenized": "ids", **settings})


def test_items_without_lists_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RecipeError, match=r"'item:5' counts items of lists; name their field with pretokenized"):
        Recipe(shingle="item:5")
    with pytest.raises(RecipeError, match="names a field of records, and a column is one text"):
        dedup_texts(["a"], Recipe(pretokenized="ids"))
    assert cli.main(["explain", "--texts", "a", "b", "--pretokenized", "ids"]) == 2
    assert "--pretokenized changes nothing in a comparison of two texts" in capsys.readouterr().err


def test_forecast_and_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "item:5" in explain(Recipe(pretokenized="ids"), Run(), None)
    path = write(tmp_path / "a.jsonl", [{"id": i, "ids": [i, i + 1]} for i in range(9)])
    assert cli.main(["explain", str(path), "--pretokenized", "ids"]) == 0
    assert "9 documents" in capsys.readouterr().out
    ran = harness.run(path, tmp_path / "out", Recipe(pretokenized="ids"))
    (warning,) = [line for line in ran.report["result"]["warnings"] if "fewer than" in line]
    assert "fewer than 5 item units" in warning
    assert "--shingle item:2 (" in warning
