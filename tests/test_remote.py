"""Inputs and outputs behind URLs, on fsspec's memory and local file systems. No network."""

from __future__ import annotations

import builtins
import gzip
import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import pyarrow as pa
import pytest

from gpu_dedup import show
from gpu_dedup.errors import InputError, OutputError, UserError
from gpu_dedup.pipeline import dedup
from gpu_dedup.pipeline.apply import apply
from gpu_dedup.read import discover
from gpu_dedup.recipe import Recipe
from gpu_dedup.run import Run

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: URLs cannot be tested")
QUIET = Run(progress=False, checkpoint=0)


def text(i: int) -> str:
    return f"a text of some words, the {i % 7}th of its kind, with more words behind"


@pytest.fixture
def store() -> Iterator[str]:
    """A folder of its own in fsspec's memory."""
    name = f"memory://bucket-{uuid.uuid4().hex}"
    yield name
    fs, path = fsspec.core.url_to_fs(name)
    if fs.exists(path):
        fs.rm(path, recursive=True)


def put(url: str, data: bytes) -> str:
    with fsspec.open(url, "wb") as file:
        file.write(data)
    return url


def get(url: str) -> bytes:
    with fsspec.open(url, "rb") as file:
        return bytes(file.read())


def corpus(store: str, tmp_path: Path) -> Path:
    """The same files in the store and on this machine, in every format."""
    rows = [{"id": i, "text": text(i)} for i in range(20)]
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    root = tmp_path / "local"
    (root / "sub").mkdir(parents=True)
    (root / "a.jsonl").write_bytes(lines)
    (root / "b.jsonl.gz").write_bytes(gzip.compress(lines))
    (root / "sub" / "c.csv").write_bytes(
        b"id,text\n" + b"".join(b'%d,"%s"\n' % (i, text(i).encode()) for i in range(9))
    )
    harness.write_rows(root / "d.parquet", rows)
    table = pa.table({"text": [text(i) for i in range(9)]})
    for name, make in (("e.arrow", pa.ipc.new_file), ("f.arrow", pa.ipc.new_stream)):
        with make(str(root / name), table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    (root / "unique.jsonl").write_bytes(b'{"text": "no other row is like this one"}\n')
    for path in root.rglob("*"):
        if path.is_file():
            put(f"{store}/{path.relative_to(root)}", path.read_bytes())
    for name in (".hidden.jsonl", "_part.jsonl", ".cache/x.jsonl", "_gpu_dedup/removed.parquet", "sub/README.md"):
        put(f"{store}/{name}", b"not this one")
    return root


def outputs(root: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in root.rglob("*")
        if p.is_file() and p.name not in ("report.json", "report.html", "outputs.json")
    }


def test_the_same_as_files_of_this_machine(store: str, tmp_path: Path) -> None:
    root = corpus(store, tmp_path)
    here = dedup(str(root), str(tmp_path / "here"), Recipe(), QUIET)
    away = dedup(store, str(tmp_path / "away"), Recipe(), QUIET)
    assert outputs(tmp_path / "here") == outputs(tmp_path / "away")
    one, other = here.to_dict()["result"], away.to_dict()["result"]
    assert "1 files of another kind were left out" in other["warnings"].pop()
    assert one == other
    assert away.inputs[0].path == f"memory:///{store.partition('://')[2]}/a.jsonl"
    assert "th of its kind" in show.show(str(tmp_path / "away"), "d.parquet:8")
    dedup(store, str(tmp_path / "mask"), Recipe(), Run(progress=False, write="mask"))
    apply(str(tmp_path / "mask"), str(tmp_path / "applied"), QUIET)
    made = outputs(tmp_path / "applied")
    del made["_gpu_dedup/keep.parquet"]
    assert made == outputs(tmp_path / "here")
    put(f"{store}/unique.jsonl", b'{"text": "NO other row is like this one"}\n')
    with pytest.raises(InputError, match=r"unique\.jsonl: is not what it was when the mask was made"):
        apply(str(tmp_path / "mask"), str(tmp_path / "again"), QUIET)


def test_what_urls_stand_for(store: str, tmp_path: Path) -> None:
    corpus(store, tmp_path)

    def rels(*inputs: str, **options: Any) -> list[str]:
        return [source.rel for source in discover(inputs, None, **options)]

    everything = ["a.jsonl", "b.jsonl.gz", "d.parquet", "e.arrow", "f.arrow", "sub/c.csv", "unique.jsonl"]
    assert rels(store) == rels(f"{store}/") == everything
    assert rels(f"{store}/a.jsonl") == ["a.jsonl"]
    assert rels(f"{store}/*.jsonl*") == [".hidden.jsonl", "_part.jsonl", "a.jsonl", "b.jsonl.gz", "unique.jsonl"]
    assert rels(f"{store}/**/*.csv") == ["c.csv"]
    assert rels(f"{store}/sub/*.md") == ["README.md"]
    assert rels(f"{store}/unique.jsonl", f"{store}/sub/c.csv") == ["unique.jsonl", "sub/c.csv"]
    assert rels(f"{store}/sub", format="csv") == ["c.csv"]
    path = tmp_path / "local" / "a.jsonl"
    assert rels(str(path), f"{store}/sub/c.csv") == ["a.jsonl", "c.csv"]
    for inputs, message in (
        ([f"{store}/nowhere.jsonl"], r"nowhere\.jsonl: no such file or folder; check the name"),
        ([f"{store}/*.zip"], r"\*\.zip: no file matches; check the pattern"),
        ([put(f"{store}/none/.x.jsonl", b"").rpartition("/")[0]], "no input in this folder; known endings are"),
        ([f"{store}/_gpu_dedup"], "this folder holds a run's own files, not input; leave it out"),
        ([f"{store}/a.jsonl", f"{store}/a.jsonl"], "two inputs would be a.jsonl in the output"),
        ([str(path), f"{store}/a.jsonl"], "two inputs would be a.jsonl in the output"),
        ([put(f"{store}/x.dat", b"")], r"x\.dat: unknown kind of file"),
    ):
        with pytest.raises(InputError, match=message):
            discover(inputs, None)


def test_errors_are_one_line_with_the_remedy(store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"nothing://x: nothing:// is no protocol that fsspec knows .*; check the name"
    ):
        discover(["nothing://x"], None)
    put(f"{store}/a.jsonl", b'{"text": "one"}\n{"text": }\n')
    with pytest.raises(InputError, match=r"memory://.*/a\.jsonl:2: not valid JSON"):
        dedup(f"{store}/a.jsonl", None, Recipe(), Run(dry_run=True, progress=False))
    put(f"{store}/b.parquet", b"PAR1" + bytes(50))
    with pytest.raises(InputError, match=r"b\.parquet: truncated, corrupt or unreadable Parquet data"):
        dedup(f"{store}/b.parquet", None, Recipe(), Run(dry_run=True, progress=False))
    import fsspec.implementations.memory as memory

    def refuse(*arguments: Any, **more: Any) -> Any:
        raise RuntimeError("the network is down\nand more")

    with monkeypatch.context() as patch:
        patch.setattr(memory.MemoryFileSystem, "info", refuse)
        with pytest.raises(
            InputError, match="cannot be read: the network is down; check the name, the network"
        ) as error:
            discover([f"{store}/a.jsonl"], None)
        assert "\n" not in str(error.value)
    original = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name in ("fsspec", "s3fs"):
            raise ImportError(f"No module named {name!r}")
        return original(name, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", without)
        with pytest.raises(
            InputError, match=r"s3://b/a: s3:// is read by fsspec, which is not installed; pip install s3fs"
        ):
            discover(["s3://b/a"], None)
        with pytest.raises(InputError, match=r"ftp://b/a: ftp:// is read by fsspec, .*; pip install fsspec"):
            discover(["ftp://b/a"], None)


def test_a_file_that_changes_in_between(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["gpu_dedup.pipeline.emit"]
    url = put(f"{store}/a.jsonl", b'{"text": "one"}\n{"text": "ONE"}\n')
    emit = module._emit_file

    def later(*arguments: Any) -> None:
        put(url, b'{"text": "two"}\n{"text": "TWO"}\n')
        emit(*arguments)

    monkeypatch.setattr(module, "_emit_file", later)
    with pytest.raises(InputError, match="changed"):
        dedup(url, str(tmp_path / "out"), Recipe(), QUIET)
    assert not (tmp_path / "out").exists()


def test_shards_read_from_a_store_that_processes_share(tmp_path: Path) -> None:
    root = corpus(f"file://{tmp_path}/store", tmp_path)
    dedup(str(root), str(tmp_path / "one"), Recipe(), QUIET)
    dedup(f"file://{tmp_path}/store", str(tmp_path / "two"), Recipe(), QUIET, processes=2)
    assert outputs(tmp_path / "one") == outputs(tmp_path / "two")


def test_an_output_folder_behind_a_url(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = corpus(store, tmp_path)
    dedup(str(root), str(tmp_path / "here"), Recipe(), QUIET)
    out = f"{store}-out/clean"
    report = dedup(store, out, Recipe(), QUIET)
    assert report.machine.output == out
    for name, data in outputs(tmp_path / "here").items():
        assert get(f"{out}/{name}") == data
    assert json.loads(get(f"{out}/_gpu_dedup/report.json"))["format"] == "gpu-dedup report"
    with pytest.raises(
        OutputError, match="holds the output of another run; choose another folder, or pass --overwrite"
    ):
        dedup(store, out, Recipe(), QUIET)
    # Names of the earlier run that this one does not have go away.
    dedup(f"{store}/a.jsonl", out, Recipe(), Run(progress=False, overwrite=True))
    fs, path = fsspec.core.url_to_fs(out)
    assert sorted(name.removeprefix(path) for name in fs.find(path)) == [
        "/_gpu_dedup/outputs.json",
        "/_gpu_dedup/removed.parquet",
        "/_gpu_dedup/report.html",
        "/_gpu_dedup/report.json",
        "/a.jsonl",
    ]
    put(f"{store}-foreign/x", b"")
    with pytest.raises(OutputError, match=r"is not empty \(x\) and not an output of gpu-dedup"):
        dedup(store, f"{store}-foreign", Recipe(), QUIET)
    for inside in (f"{store}/out", store):
        with pytest.raises(UserError, match=r"lie in one another|is not empty|holds the output"):
            dedup(store, inside, Recipe(), QUIET)
    import fsspec.implementations.memory as memory

    put_file = memory.MemoryFileSystem.put_file

    def fail(self: Any, source: str, target: str, **more: Any) -> Any:
        if target.endswith("d.parquet"):
            raise OSError("quota")
        return put_file(self, source, target, **more)

    monkeypatch.setattr(memory.MemoryFileSystem, "put_file", fail)
    with pytest.raises(OutputError, match=r"-half: cannot be written \(quota\); check the name, the network"):
        dedup(store, f"{store}-half", Recipe(), QUIET)
    fs, path = fsspec.core.url_to_fs(f"{store}-half")
    assert not fs.exists(path) or fs.find(path) == []


def test_commands_that_write_here_alone(store: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one"}\n')
    dedup(str(tmp_path / "a.jsonl"), str(tmp_path / "mask"), Recipe(), Run(progress=False, write="mask"))
    with pytest.raises(OutputError, match="is a URL, and this is written to a folder of this machine; name one"):
        apply(str(tmp_path / "mask"), f"{store}/out", QUIET)
