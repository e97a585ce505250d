"""--write mask and `apply`, --keep-removed and `undo`: the rows that a run would have written, and the input again."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_dedup import cli
from gpu_dedup.errors import InputError, OutputError, RunError
from gpu_dedup.pipeline import dedup
from gpu_dedup.pipeline.apply import apply, undo
from gpu_dedup.recipe import Recipe
from gpu_dedup.run import Run
from gpu_dedup.write import read_mask

QUIET = Run(progress=False)


def text(i: int) -> str:
    return f"a text of some words, the {i % 7}th of its kind, with more words behind"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Every format, with rows that go in each and, in some, rows that are no records."""
    root = tmp_path / "in"
    (root / "sub").mkdir(parents=True)
    rows = [{"id": i, "text": text(i), "more": [i, None]} for i in range(40)]
    lines = [json.dumps(row).encode() + b"\n" for row in rows]
    (root / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b"".join(lines[:10]) + b"\n \n" + b"".join(lines[10:])[:-1])
    (root / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[:20])) + gzip.compress(b"".join(lines[20:])))
    (root / "sub" / "c.csv").write_bytes(
        b"\r\nid,text\r\n" + b"".join(b'%d,"%s"\n' % (i, text(i).encode()) for i in range(30)) + b"\n\n"
    )
    table = pa.table({"text": [row["text"] for row in rows], "n": pa.array(range(40), pa.uint8())})
    table = table.append_column("word", pa.array([f"w{i % 3}" for i in range(40)]).dictionary_encode())
    table = table.replace_schema_metadata({"made by": "a test"})
    pq.write_table(table, root / "d.parquet", row_group_size=9, compression="zstd")
    for name, make in (("e.arrow", pa.ipc.new_file), ("f.arrows", pa.ipc.new_stream)):
        with make(str(root / name), table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            writer.write_table(table, max_chunksize=7)
    (root / "unique.jsonl").write_bytes(b'{"text": "there is no other row like this one, in no file"}\n')
    (root / "empty.jsonl").write_bytes(b"")
    (root / "header.csv").write_bytes(b"id,text\n")
    return root


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in ("report.json", "report.html", "outputs.json")
    }


def test_a_mask_applied_is_the_run(corpus: Path, tmp_path: Path) -> None:
    recipe = Recipe()
    whole = dedup(str(corpus), str(tmp_path / "whole"), recipe, QUIET)
    masked = dedup(str(corpus), str(tmp_path / "mask"), recipe, Run(progress=False, write="mask"))
    assert sorted(files(tmp_path / "mask")) == ["_gpu_dedup/keep.parquet", "_gpu_dedup/removed.parquet"]
    assert masked.to_dict()["result"] == whole.to_dict()["result"]
    table = pq.read_table(tmp_path / "mask" / "_gpu_dedup" / "keep.parquet")
    assert table.schema.names == ["file", "row", "keep"]
    assert table.filter(table["keep"]).num_rows == whole.counts.kept
    assert table["row"].to_pylist()[:3] == [0, 1, 2]
    log = {(row["file"], row["row"]) for row in harness.removed_rows(tmp_path / "mask")}
    gone = {(row["file"], row["row"]) for row in table.to_pylist() if not row["keep"]}
    assert log < gone
    assert gone - log == {("a.jsonl", 10), ("a.jsonl", 11), ("sub/c.csv", 30), ("sub/c.csv", 31)}  # blank lines
    report = apply(str(tmp_path / "mask"), str(tmp_path / "out"), QUIET)
    assert report.counts.kept == whole.counts.kept
    made = files(tmp_path / "out")
    del made["_gpu_dedup/keep.parquet"]
    assert made == files(tmp_path / "whole")
    assert json.loads((tmp_path / "out/_gpu_dedup/report.json").read_text())["result"] == whole.to_dict()["result"]
    apply(str(tmp_path / "mask"), None, QUIET)
    assert files(tmp_path / "mask") == files(tmp_path / "out")


def test_a_mask_of_other_inputs_is_refused(corpus: Path, tmp_path: Path) -> None:
    mask = str(tmp_path / "mask")
    dedup(str(corpus), mask, Recipe(), Run(progress=False, write="mask"))
    out = tmp_path / "out"
    for name in ("a.jsonl", "b.jsonl.gz", "d.parquet", "e.arrow", "unique.jsonl"):
        before = (corpus / name).read_bytes()
        middle = len(before) // 2
        (corpus / name).write_bytes(before[:middle] + bytes([before[middle] ^ 1]) + before[middle + 1 :])
        with pytest.raises(InputError, match=rf"{name}: (is not what it was|truncated)"):
            apply(mask, str(out), QUIET)
        (corpus / name).write_bytes(before + b" ")
        with pytest.raises(InputError, match=rf"{name}: is not what it was when the mask was made; put that file back"):
            apply(mask, str(out), QUIET)
        (corpus / name).unlink()
        with pytest.raises(
            InputError, match=rf"{name}: No such file or directory, and the rows are read from the input"
        ):
            apply(mask, str(out), QUIET)
        (corpus / name).write_bytes(before)
        assert not out.exists()
    with pytest.raises(OutputError, match="lies in it; choose another folder"):
        apply(mask, str(corpus), QUIET)
    with pytest.raises(OutputError, match="lie in one another"):
        apply(mask, mask + "/below", QUIET)
    whole = str(tmp_path / "whole")
    dedup(str(corpus), whole, Recipe(), QUIET)
    with pytest.raises(
        InputError, match=r"keep\.parquet: no keep mask here; give the folder of a run with --write mask"
    ):
        apply(whole, str(out), QUIET)
    shutil.copy(tmp_path / "mask/_gpu_dedup/keep.parquet", tmp_path / "whole/_gpu_dedup/keep.parquet")
    apply(whole, str(out), QUIET)
    other = tmp_path / "other"
    dedup(str(corpus), str(other), Recipe(keep="none"), Run(progress=False, write="mask"))
    shutil.copy(tmp_path / "mask/_gpu_dedup/keep.parquet", other / "_gpu_dedup/keep.parquet")
    with pytest.raises(InputError, match="mask and report are of different runs"):
        apply(str(other), str(tmp_path / "never"), QUIET)
    (other / "_gpu_dedup/keep.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="cannot be read as a keep mask"):
        apply(str(other), str(tmp_path / "never"), QUIET)
    shutil.copy(tmp_path / "mask/_gpu_dedup/removed.parquet", other / "_gpu_dedup/keep.parquet")
    with pytest.raises(InputError, match="not a keep mask of this version"):
        apply(str(other), str(tmp_path / "never"), QUIET)


def same_content(one: Path, other: Path) -> None:
    if one.suffix == ".parquet":
        assert pq.read_table(one).equals(pq.read_table(other), check_metadata=True)
        assert pq.ParquetFile(one).metadata.num_row_groups == pq.ParquetFile(other).metadata.num_row_groups
    elif one.suffix in (".arrow", ".arrows"):
        read = pa.ipc.open_file if one.suffix == ".arrow" else pa.ipc.open_stream
        assert read(one.read_bytes()).read_all().equals(read(other.read_bytes()).read_all(), check_metadata=True)
    else:
        assert harness.read_bytes(one) == harness.read_bytes(other)


@pytest.mark.parametrize("batch", [200, 4 << 20])
def test_undo_gives_the_input_back(batch: int, corpus: Path, tmp_path: Path) -> None:
    (corpus / "t").mkdir()
    report = dedup(str(corpus), str(tmp_path / "out"), Recipe(), Run(progress=False, keep_removed=True))
    plain = dedup(str(corpus), str(tmp_path / "plain"), Recipe(), QUIET)
    assert report.to_dict()["result"] == plain.to_dict()["result"]
    stored = files(tmp_path / "out" / "_gpu_dedup" / "removed")
    assert "unique.jsonl" not in stored
    assert stored["sub/c.csv"].startswith(b"\r\nid,text\r\n")
    names = files(corpus)
    originals = tmp_path / "before"
    corpus.rename(originals)  # it is not needed
    assert sorted(
        undo(str(tmp_path / "out"), str(tmp_path / "again"), Run(progress=False, batch_bytes=batch))
    ) == sorted(names)
    for name in names:
        same_content(originals / name, tmp_path / "again" / name)
    assert sorted(files(tmp_path / "again")) == sorted(names)
    with pytest.raises(OutputError, match="choose another folder, or pass --overwrite"):
        undo(str(tmp_path / "out"), str(tmp_path / "again"), QUIET)
    undo(str(tmp_path / "out"), str(tmp_path / "again"), Run(progress=False, overwrite=True))


def test_undo_of_text_documents(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, data in (("a.txt", b"one and the same"), ("b.txt", b"One and the same\n"), ("c.txt", b"another")):
        (tmp_path / "in" / name).write_bytes(data)
    dedup(str(tmp_path / "in"), str(tmp_path / "out"), Recipe(), Run(progress=False, keep_removed=True))
    assert not (tmp_path / "out" / "b.txt").exists()
    undo(str(tmp_path / "out"), str(tmp_path / "again"), QUIET)
    assert files(tmp_path / "again") == files(tmp_path / "in")


def test_what_cannot_be_undone(corpus: Path, tmp_path: Path) -> None:
    dedup(str(corpus), str(tmp_path / "plain"), Recipe(), QUIET)
    with pytest.raises(InputError, match="the rows that went were not stored; only a run with --keep-removed"):
        undo(str(tmp_path / "plain"), str(tmp_path / "again"), QUIET)
    out = tmp_path / "out"
    dedup(str(corpus), str(out), Recipe(), Run(progress=False, keep_removed=True))
    with pytest.raises(OutputError, match="is the folder to undo"):
        undo(str(out), str(out), QUIET)
    for name in ("a.jsonl", "b.jsonl.gz", "d.parquet", "e.arrow", "unique.jsonl"):
        before = (out / name).read_bytes()
        other = {"b.jsonl.gz": gzip.compress(b"{}\n"), "d.parquet": b"PAR1", "e.arrow": b"ARROW1"}
        (out / name).write_bytes(other.get(name, before[: len(before) // 2]))
        with pytest.raises(InputError, match=rf"{name}: (is not what the run wrote|truncated)"):
            undo(str(out), str(tmp_path / "again"), QUIET)
        (out / name).unlink()
        with pytest.raises(InputError, match=rf"{name}: (No such file|cannot be read: No such file)"):
            undo(str(out), str(tmp_path / "again"), QUIET)
        (out / name).write_bytes(before)
        assert not (tmp_path / "again").exists()
    with pytest.raises(RunError, match="--limit leaves rows out"):
        dedup(str(corpus), str(tmp_path / "never"), Recipe(limit=3), Run(keep_removed=True))
    with pytest.raises(RunError, match="write mask leaves the input as it is"):
        Run(write="mask", keep_removed=True)
    with pytest.raises(RunError, match="dry-run writes nothing"):
        Run(write="mask", dry_run=True)
    with pytest.raises(RunError, match="write 'bits' is unknown; choose one of rows, mask"):
        Run(write="bits")


ROW = st.sampled_from(
    [b'{"text": "a b"}\n', b'{"text": "A  b"}\n', b'{"text": "c d"}\r\n', b"\n", b" \r\n", b"{}\n", b'{"text": ""}\n']
)


@given(st.lists(st.lists(ROW, max_size=8), min_size=1, max_size=3), st.booleans(), st.sampled_from(["skip", "keep"]))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_lines_come_back(
    tmp_path_factory: pytest.TempPathFactory, data: list[list[bytes]], cut: bool, bad: str
) -> None:
    root = tmp_path_factory.mktemp("undo")
    (root / "in").mkdir()
    for number, rows in enumerate(data):
        content = b"".join(rows)
        (root / "in" / f"{number}.jsonl").write_bytes(content[:-1] if cut else content)
    recipe = Recipe(on_bad_row=bad, on_no_text="drop")
    dedup(str(root / "in"), str(root / "out"), recipe, Run(progress=False, keep_removed=True))
    undo(str(root / "out"), str(root / "again"), QUIET)
    assert files(root / "again") == files(root / "in")


def test_the_commands(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def command(*arguments: Any) -> tuple[int, str]:
        code = cli.main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return code, said.out + said.err

    assert command("run", corpus, "-o", tmp_path / "mask", "--write", "mask", "--quiet") == (0, "")
    code, said = command("apply", tmp_path / "mask", "-o", tmp_path / "out", "--threads", "2")
    assert (code, said.partition("gpu-dedup")[0]) == (0, f"8 of 231 rows written to {tmp_path}/out\n")
    assert command("run", corpus, "-o", tmp_path / "kept", "--keep-removed", "--quiet") == (0, "")
    code, said = command("undo", tmp_path / "kept", "-o", tmp_path / "again")
    assert (code, said.partition("gpu-dedup")[0]) == (0, f"9 files written to {tmp_path}/again\n")
    assert command("undo", tmp_path / "kept")[0] == 2
    assert command("apply", tmp_path / "mask", "-o", "")[1].startswith(
        "gpu-dedup: -o '': an output folder without a name"
    )
    assert command("undo", tmp_path / "kept", "-o", "")[0] == 2
    code, said = command("apply", tmp_path / "nowhere")
    assert (code, said) == (
        2,
        f"gpu-dedup: {tmp_path}/nowhere: no finished run of gpu-dedup here; give the folder of run -o\n",
    )


def test_bits_of_the_mask(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "x"}\n\n{"text": "y"}\n{"text": "X"}\n')
    dedup(str(tmp_path / "a.jsonl"), str(tmp_path / "out"), Recipe(), Run(progress=False, write="mask"))
    bits = read_mask(str(tmp_path / "out"))
    assert {name: keep.tolist() for name, keep in bits.items()} == {"a.jsonl": [True, False, True, False]}
    assert bits["a.jsonl"].dtype == np.bool_
