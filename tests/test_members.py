"""Compressed inputs of several gzip members or zstd frames: those that nothing goes from are copied as they are."""

from __future__ import annotations

import gzip
import json
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import harness
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup.pipeline import dedup
from gpu_dedup.read import discover, open_source
from gpu_dedup.recipe import Recipe
from gpu_dedup.run import Run
from gpu_dedup.write import jsonl as jsonl_module


def gz(data: bytes) -> bytes:
    # Neither the level nor the header that this package writes: equal bytes are copied ones.
    packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return gzip.compress(data, 9, mtime=77) if len(data) % 2 else packer.compress(data) + packer.flush()


def zst(data: bytes) -> bytes:
    return pa.Codec("zstd", compression_level=7).compress(data, asbytes=True)


def streamed(data: bytes) -> bytes:
    """A frame that does not tell its size, as `zstd` makes of a pipe."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(data)
    return sink.getvalue().to_pybytes()


PACK = {"gz": gz, "zst": zst}


def line(i: int) -> bytes:
    return (
        json.dumps(
            {"id": i, "text": f"a text of some words, number {i}, which no other has", "pad": "x" * (i % 50)}
        ).encode()
        + b"\n"
    )


def run(path: Path, out: Path, **settings: Any) -> bytes:
    dedup(str(path), str(out), Recipe(method="exact"), Run(progress=False, checkpoint=0, **settings))
    return (out / path.name).read_bytes()


@pytest.mark.parametrize("batch", [100, 1000, 4 << 20])
@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_what_nothing_goes_from_is_copied(kind: str, batch: int, tmp_path: Path) -> None:
    rows = [line(i) for i in range(60)]
    rows[31] = rows[30]  # goes, from the fourth part
    parts = [b"".join(rows[start : start + 10]) for start in range(0, 60, 10)]
    packed = [PACK[kind](part) for part in parts]
    path = tmp_path / f"a.jsonl.{kind}"
    path.write_bytes(b"".join(packed))
    out = run(path, tmp_path / "out", batch_bytes=batch)
    assert out.startswith(b"".join(packed[:3]))
    assert out.endswith(b"".join(packed[4:]))
    assert packed[3] not in out
    assert harness.read_bytes(tmp_path / "out" / path.name) == b"".join(rows[:31] + rows[32:])


@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.parametrize("held", [0, 300, 8 << 20])
def test_members_that_are_larger_than_what_is_held(
    kind: str, held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl_module, "HELD", held)
    monkeypatch.setattr(jsonl_module, "BLOCK", 200)
    rows = [line(i) for i in range(200)]
    rows[150] = rows[20]
    data = b"".join(rows)
    cut = len(b"".join(rows[:99])) + 7  # in the middle of a line
    packed = [PACK[kind](data[:cut]), PACK[kind](data[cut:])]
    path = tmp_path / f"a.jsonl.{kind}"
    path.write_bytes(b"".join(packed))
    out = run(path, tmp_path / "out", batch_bytes=500)
    assert out.startswith(packed[0])
    assert packed[1] not in out
    assert harness.read_bytes(tmp_path / "out" / path.name) == b"".join(rows[:150] + rows[151:])


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_members_and_any_rows(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    root = tmp_path_factory.mktemp("members")
    kind = data.draw(st.sampled_from(["gz", "zst"]))
    unique = [line(i) for i in range(12)]
    picks = data.draw(st.lists(st.integers(0, 11), min_size=1, max_size=30))
    blanks = data.draw(st.sets(st.integers(0, 29), max_size=2))
    rows: list[tuple[bytes, bool]] = []
    seen: set[int] = set()
    for number, pick in enumerate(picks):
        rows.append((unique[pick], pick not in seen))
        seen.add(pick)
        if number in blanks:
            rows.append((b"\n", False))
    bom = data.draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    content = bom + b"".join(row for row, _ in rows)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    bounds = [0, *cuts, len(content)]
    parts = [content[a:b] for a, b in pairwise(bounds)]
    made = [
        data.draw(st.sampled_from([PACK[kind], streamed if kind == "zst" else gzip.compress]))(part) for part in parts
    ]
    path = root / f"a.jsonl.{kind}"
    path.write_bytes(b"".join(made))
    out = run(path, root / "out", batch_bytes=data.draw(st.sampled_from([1, 90, 700, 4 << 20])))
    assert harness.read_bytes(root / "out" / path.name) == bom + b"".join(row for row, stays in rows if stays)
    goes = bytearray(len(content))
    at = len(bom)
    for row, stays in rows:
        goes[at : at + len(row)] = bytes([not stays]) * len(row)
        at += len(row)
    for begin, end, part in zip(bounds[:-1], bounds[1:], made, strict=True):
        if begin < end and not any(goes[begin:end]):
            assert part in out


def test_where_members_and_frames_lie(tmp_path: Path) -> None:
    rows = [line(i) for i in range(30)]
    skippable = b"\x5e\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"\x28\xb5\x2f\xfd!"
    for kind, packs, between in (("gz", [gz] * 3, b"\0" * 9), ("zst", [zst, streamed, zst], skippable)):
        parts = [b"".join(rows[:7]), b"".join(rows[7:8]), b"".join(rows[8:])]
        packed = [pack(part) for pack, part in zip(packs, parts, strict=True)]
        path = tmp_path / f"a.jsonl.{kind}"
        path.write_bytes(packed[0] + between + packed[1] + PACK[kind](b"") + packed[2])
        raw = path.read_bytes()
        for size in (1, 100, 4 << 20):
            with open_source(discover([str(path)], None)[0], size) as reader:
                found = [member for chunk in reader for member in chunk.members]
            assert [raw[member.raw_begin : member.raw_end] for member in found] == packed
            assert [member.end - member.begin for member in found] == [len(part) for part in parts]


def test_limit_mask_and_csv(tmp_path: Path) -> None:
    header = b"id,text\n"
    rows = [b'%d,"some words here, number %d\n"\n' % (i, i) for i in range(30)]
    rows[12] = rows[11]
    parts = [header[:3], header[3:] + b"".join(rows[:10]), b"".join(rows[10:20]), b"".join(rows[20:])]
    packed = [gz(part) for part in parts]
    path = tmp_path / "a.csv.gz"
    path.write_bytes(b"".join(packed))
    out = run(path, tmp_path / "out")
    assert out.startswith(packed[0] + packed[1])
    assert out.endswith(packed[3])
    dedup(str(path), str(tmp_path / "limit"), Recipe(method="exact", limit=15), Run(progress=False))
    assert harness.read_bytes(tmp_path / "limit" / "a.csv.gz") == header + b"".join(rows[:12] + rows[13:15])
    kept = Run(progress=False, keep_removed=True)
    dedup(str(path), str(tmp_path / "kept"), Recipe(method="exact"), kept)
    assert (tmp_path / "kept" / "a.csv.gz").read_bytes() == out
    from gpu_dedup.pipeline.apply import undo

    undo(str(tmp_path / "kept"), str(tmp_path / "again"), Run(progress=False))
    assert harness.read_bytes(tmp_path / "again" / "a.csv.gz") == b"".join(parts)
