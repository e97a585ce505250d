"""Plain text: a document for each file or for each line, what stays byte for byte."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pytest

from gpu_dedup import show
from gpu_dedup.batch import ROW_BAD, ROW_SKIPPED, ROW_TEXT
from gpu_dedup.errors import InputError, RecipeError
from gpu_dedup.pipeline import dedup
from gpu_dedup.read import discover, open_source
from gpu_dedup.recipe import Recipe
from gpu_dedup.run import Run

LONG = b"A licence of many words that stands in every folder of a project, word for word.\r\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "a/LICENSE.txt": LONG,
        "b/license.md": b"\xef\xbb\xbf" + LONG.replace(b"\r\n", b"\n"),
        "b/other.txt": b"Something else.",
        "c/empty.txt": b"",
        "c/packed.txt.gz": gzip.compress(LONG.upper()),
    }
    for name, data in files.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "in"


def written(out: Path) -> list[str]:
    return sorted(
        str(path.relative_to(out)) for path in out.rglob("*") if path.is_file() and "_gpu_dedup" not in path.parts
    )


def test_a_document_for_each_file(folder: Path, tmp_path: Path) -> None:
    ran = harness.run(folder, tmp_path / "out")
    assert written(ran.out) == ["a/LICENSE.txt", "b/other.txt", "c/empty.txt"]
    for name in written(ran.out):
        assert (ran.out / name).read_bytes() == (folder / name).read_bytes()
    assert [(entry["file"], entry["row"], entry["kept_file"], entry["id"]) for entry in ran.removed] == [
        ("b/license.md", 0, "a/LICENSE.txt", None),
        ("c/packed.txt.gz", 0, "a/LICENSE.txt", None),
    ]
    counts = ran.report["result"]["counts"]
    assert (counts["read"], counts["kept"], counts["no_text"]) == (5, 3, 1)
    assert "WORD FOR" in show.show(str(ran.out), "1", width=80)
    dedup(str(folder), str(tmp_path / "two"), Recipe(), Run(progress=False), processes=2)
    assert written(tmp_path / "two") == written(ran.out)
    # A second run takes away what the first has written and this one does not.
    again = harness.run(folder, tmp_path / "out", Recipe(keep="longest"), overwrite=True)
    assert "b/other.txt" in written(again.out)


def test_rows_of_lines(backend: Any, tmp_path: Path) -> None:
    data = b"\xef\xbb\xbfone\r\n\n\r\ntwo\rthree\n\xff\n\xe4\xb8\xad"
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    (source,) = discover([str(path)], None, lines=True)
    assert source.where(3) == f"{path}:4"
    for size in (1, 12, 4 << 20):
        texts, status, errors, content = [], [], [], b""
        with open_source(source, size) as reader:
            for chunk in reader:
                rows = chunk.parse(backend, ("text",), ("id",))
                texts += rows.tape.to_list()
                status += rows.status.tolist()
                errors += rows.errors
                content += chunk.bom + chunk.data[: chunk.size].tobytes()
        assert texts == ["one", "", "", "two\rthree", "", "\u4e2d"]
        assert status == [ROW_TEXT] * 4 + [ROW_BAD, ROW_TEXT]
        assert errors == [(4, "not valid UTF-8 at byte 1")]
        assert content == data
    with open_source(source, 4 << 20) as reader:
        rows = next(iter(reader)).parse(backend, ("text",), (), np.array([False, True, False, True, False, False]))
        assert rows.tape.to_list() == ["", "", "", "two\rthree", "", ""]
        assert rows.status.tolist() == [ROW_SKIPPED, 0, ROW_SKIPPED, 0, ROW_SKIPPED, ROW_SKIPPED]


def test_a_document_for_each_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfThe first line here\r\n\nthe FIRST line  here\n\nanother one\nthe first line here")
    ran = harness.run(path, tmp_path / "out", Recipe(lines=True))
    assert (ran.out / "a.txt").read_bytes() == b"\xef\xbb\xbfThe first line here\r\n\n\nanother one\n"
    assert [(entry["row"], entry["kept_row"]) for entry in ran.removed] == [(2, 0), (5, 0)]
    assert "FIRST" in show.show(str(ran.out), "a.txt:2", width=80)


def test_text_beside_data_is_not_input(folder: Path, tmp_path: Path) -> None:
    (folder / "data.jsonl").write_bytes(b'{"text": "one"}\n')
    over: list[str] = []
    assert [source.rel for source in discover([str(folder)], None, over)] == ["data.jsonl"]
    assert len(over) == 5
    assert [source.rel for source in discover([str(folder)], None, format="txt")][-1] == "c/packed.txt.gz"
    assert len(discover([f"{folder}/**/*.txt"], None)) == 3
    ran = harness.run(folder, tmp_path / "out")
    assert written(ran.out) == ["data.jsonl"]
    assert "5 files of another kind were left out" in ran.report["result"]["warnings"][-1]


def test_options_without_meaning(folder: Path) -> None:
    run = Run(dry_run=True, progress=False)
    for recipe, message in (
        (Recipe(text_field=("body",)), "text-field 'body' names a field, and plain text has none; drop it"),
        (Recipe(id_field="url"), "id-field 'url' names a field"),
        (Recipe(keep="max:score"), "keep 'max:score' names a field"),
    ):
        with pytest.raises(RecipeError, match=message):
            dedup(str(folder), None, recipe, run)
    with pytest.raises(RecipeError, match="lines is for plain text, and the format is csv"):
        Recipe(lines=True, format="csv")
    with pytest.raises(RecipeError, match="format 'xml' is unknown; choose one of jsonl"):
        Recipe(format="xml")


def test_a_document_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match=r"a\.txt: not valid UTF-8 at byte 4; mend it"):
        harness.run(path, tmp_path / "out")
    ran = harness.run(path, tmp_path / "kept", Recipe(on_bad_row="keep"))
    assert (ran.out / "a.txt").read_bytes() == b"caf\xe9"
