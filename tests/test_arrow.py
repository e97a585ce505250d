"""Arrow IPC files and streams: read, checked, written back less rows. pyarrow's own reader is the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import pytest

from gpu_dedup import show
from gpu_dedup.backend import host_backend
from gpu_dedup.batch import ROW_BAD
from gpu_dedup.errors import InputError, OutputError
from gpu_dedup.pipeline import dedup
from gpu_dedup.read import discover, open_source
from gpu_dedup.read.arrow import ArrowReader
from gpu_dedup.recipe import Recipe
from gpu_dedup.run import Run
from gpu_dedup.write.arrow import ArrowWriter

BATCH = 4
TEXTS = (
    ["one text of some words here"] * 3 + ["another one of other words"] * 2 + [f"text number {i}" for i in range(20)]
)
KEPT = [0, 3, *range(5, 25)]


def table(**more: Any) -> pa.Table:
    made = pa.table({"id": list(range(len(TEXTS))), "text": TEXTS, **more})
    return made.replace_schema_metadata({"made by": "a test"})


def write(path: Path, data: pa.Table, stream: bool = False, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    footer = {} if stream else {"metadata": {b"in the": b"footer"}}
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(path), data.schema, options=pa.ipc.IpcWriteOptions(**options), **footer) as writer:
        for number, batch in enumerate(data.to_batches(max_chunksize=BATCH)):
            writer.write_batch(batch, custom_metadata={b"batch": b"%d" % number})
    return path


def read(path: Path) -> tuple[pa.Table, list[Any], Any, str | None]:
    """Table, metadata of each batch, metadata of the footer, codec."""
    source = discover([str(path)], None)[0]
    with ArrowReader(source, 1 << 20, 0, None) as reader:
        batches = list(reader.batches())
        about = [dict(metadata or {}) for _, metadata, _ in batches]
        return (
            pa.Table.from_batches([batch for batch, _, _ in batches], reader.schema),
            about,
            reader.footer,
            reader.compression(),
        )


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize("stream", [False, True])
def test_what_stays_is_the_table_less_rows(stream: bool, codec: str | None, tmp_path: Path) -> None:
    if codec and not pa.Codec.is_available(codec):
        pytest.skip(f"this pyarrow lacks {codec}")
    data = table(
        nested=[{"a": [i, None], "b": str(i)} if i % 3 else None for i in range(25)],
        words=pa.array([f"word {i % 3}" for i in range(25)]).dictionary_encode(),
        when=pa.array(range(25), pa.timestamp("us", "UTC")),
    )
    # A stream under any ending: `datasets` names streams .arrow.
    path = write(tmp_path / "in" / "a.arrow", data, stream, compression=codec)
    ran = harness.run(path.parent, tmp_path / "out")
    out, about, footer, used = read(ran.out / "a.arrow")
    assert out.schema.equals(data.schema, check_metadata=True)
    assert out.equals(data.take(KEPT))
    assert used == codec
    assert (dict(footer) if footer else None) == (None if stream else {b"in the": b"footer"})
    # Batch 0 has rows 0 to 3; every batch keeps its own metadata.
    assert [one[b"batch"] for one in about] == [b"0", b"1", b"2", b"3", b"4", b"5", b"6"]
    assert [(entry["row"], entry["kept_row"]) for entry in ran.removed] == [(1, 0), (2, 0), (4, 3)]
    assert [entry["kept_id"] for entry in ran.removed] == ["0", "0", "3"]
    assert (path.read_bytes()[:6] == b"ARROW1") == ((ran.out / "a.arrow").read_bytes()[:6] == b"ARROW1")


def test_a_file_without_removals_is_copied(tmp_path: Path) -> None:
    path = write(tmp_path / "in" / "a.feather", table().take(KEPT), compression="lz4")
    assert (harness.run(path.parent, tmp_path / "out").out / "a.feather").read_bytes() == path.read_bytes()


def test_every_kind_of_text_and_rows_without_one(backend: Any, tmp_path: Path) -> None:
    texts = ["plain", None, "\u4e2d\u6587", "", "a\ud7ff\U0001f600"]
    kinds: list[Any] = [
        pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view(), pa.binary_view(),
        pa.dictionary(pa.int8(), pa.string()),
    ]  # fmt: skip
    for number, kind in enumerate(kinds):
        values = pa.array(texts).cast(pa.binary()) if pa.types.is_binary_view(kind) else pa.array(texts)
        data = pa.table({"text": values.dictionary_encode() if pa.types.is_dictionary(kind) else values.cast(kind)})
        path = tmp_path / f"{number}.arrow"
        with pa.ipc.new_file(str(path), data.schema) as writer:
            writer.write_table(data, max_chunksize=2)
        source = discover([str(path)], None)[0]
        for size in (1, 4 << 20):
            with open_source(source, size, 0, ["text"]) as reader:
                chunks = list(reader)
                rows = [chunk.parse(backend, ("text",)) for chunk in chunks]
                assert [row.tape[i] for row in rows for i in range(len(row))] == [(t or "").encode() for t in texts]
                assert np.concatenate([row.status for row in rows]).tolist() == [0, ROW_BAD, 0, 0, 0]
                assert [error for row in rows for error in row.errors] == [(1, 'field "text" is null')]
                assert sum(chunk.nbytes for chunk in chunks) == reader.bytes_read == source.size


@pytest.mark.parametrize("stream", [False, True])
def test_chunks_are_read_again_by_their_refs(stream: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", table(), stream)
    source = discover([str(path)], None)[0]
    numpy = host_backend("numpy")
    with open_source(source, 30, 0, ["text", "id"]) as reader:
        chunks = list(reader)
    assert len(chunks) > len(TEXTS) // BATCH + 1  # batches are cut too
    assert [chunk.first_row for chunk in chunks] == np.cumsum([0, *(c.count_rows() for c in chunks)])[:-1].tolist()
    with open_source(source, 4 << 20, 0, ["text", "id"]) as reader:
        for chosen in (chunks[1::3], chunks[:1], []):
            again = list(reader.read_refs([chunk.ref for chunk in chosen]))
            assert len(again) == len(chosen)
            for one, other in zip(chosen, again, strict=True):
                left, right = one.parse(numpy, ("text",), ("id",)), other.parse(numpy, ("text",), ("id",))
                assert left.tape.to_list() == right.tape.to_list()
                assert left.fields == right.fields
                assert left.first_row == right.first_row


def test_texts_that_are_not_utf8_are_bad_rows_and_are_copied_through(tmp_path: Path) -> None:
    texts = pa.array([*(text.encode() for text in TEXTS[:-1]), b"cut \xe4\xb8"]).view(pa.string())
    data = table().set_column(1, "text", texts)
    nested = pa.StructArray.from_arrays([pa.array([b"\xff"] * 25).view(pa.string())], ["raw"])
    path = write(tmp_path / "in" / "a.arrow", data.append_column("nested", nested))
    with pytest.raises(InputError, match=r"a.arrow: row 24: not valid UTF-8 at byte 5; mend it"):
        dedup(str(path), None, Recipe(), Run(dry_run=True, progress=False))
    ran = harness.run(path, tmp_path / "out", Recipe(on_bad_row="keep"))
    out = read(ran.out / "a.arrow")[0]
    assert out["text"].cast(pa.binary())[-1].as_py() == b"cut \xe4\xb8"
    assert out["nested"].combine_chunks().field(0).cast(pa.binary())[0].as_py() == b"\xff"
    assert out["id"].to_pylist() == KEPT


def test_offsets_that_point_nowhere_are_refused_and_not_followed(tmp_path: Path) -> None:
    for name in ("text", "other"):
        path = tmp_path / f"{name}.arrow"
        data = pa.table(
            {"id": [1, 2, 3], "text": ["abc", "defg", "hi"]}
            | ({"other": ["x", "yy", "zzz"]} if name == "other" else {})
        )
        with pa.ipc.new_file(str(path), data.schema) as writer:
            writer.write_table(data)
        good = np.array({"text": [0, 3, 7, 9], "other": [0, 1, 3, 6]}[name], np.int32).tobytes()
        raw = path.read_bytes()
        assert raw.count(good) == 1
        path.write_bytes(raw.replace(good, np.array([0, 1 << 30, 7, good[12]], np.int32).tobytes()))
        source = discover([str(path)], None)[0]
        with ArrowReader(source, 1 << 20, 0, None) as reader, pytest.raises(InputError, match="corrupt or unreadable"):
            list(reader)


def test_cut_and_foreign_files(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.arrow", table()).read_bytes()
    stream = write(tmp_path / "stream.arrow", table(), stream=True).read_bytes()
    cases = [
        (whole[:-7], "truncated, corrupt or unreadable Arrow data"),
        (whole[:100], "truncated, corrupt or unreadable Arrow data"),
        (stream[:-200], "truncated, corrupt or unreadable Arrow data after 24 rows"),
        (b"", "truncated, corrupt or unreadable Arrow data"),
        (b"FEA1" + b"\0" * 60, "looks like a Feather file of version 1; write it anew"),
        (b"PAR1" + b"\0" * 60, "looks like a Parquet file; name it .parquet"),
        (b'{"text": "one"}\n', "looks like JSON; name it .jsonl"),
    ]
    for number, (data, message) in enumerate(cases):
        path = tmp_path / f"bad{number}.arrow"
        path.write_bytes(data)
        with pytest.raises(InputError, match=message):
            dedup(str(path), None, Recipe(), Run(dry_run=True, progress=False))


def test_columns_are_found_as_in_parquet(tmp_path: Path) -> None:
    data = pa.table({"doc": [{"body": text} for text in TEXTS], "text": list(range(25))})
    path = write(tmp_path / "a.arrow", data)
    ran = harness.run(path, tmp_path / "out", Recipe(text_field=("doc.body",)))
    assert read(ran.out / "a.arrow")[0]["text"].to_pylist() == KEPT
    with pytest.raises(InputError, match="column text holds int64, not text; name another with --text-field"):
        harness.run(path, tmp_path / "other")
    with pytest.raises(InputError, match=r"no column body \(columns here: doc, text\)"):
        harness.run(path, tmp_path / "other", Recipe(text_field=("body",)))
    twice = pa.table([pa.array(TEXTS), pa.array(TEXTS)], ["text", "text"])
    with pytest.raises(InputError, match="2 columns are named text"):
        harness.run(write(tmp_path / "b.arrow", twice), tmp_path / "other")


def test_limit_shards_show_and_audit(tmp_path: Path) -> None:
    long = [f"{text} and so on, with more words than a shingle has" for text in TEXTS]
    data = table().set_column(1, "text", pa.array(long))
    first = write(tmp_path / "in" / "a.arrow", data)
    write(tmp_path / "in" / "b.arrow", data, stream=True)
    whole = harness.run(first.parent, tmp_path / "one", audit=50)
    dedup(str(first.parent), str(tmp_path / "two"), Recipe(), Run(progress=False), processes=2)
    for name in ("a.arrow", "b.arrow"):
        assert (tmp_path / "two" / name).read_bytes() == (whole.out / name).read_bytes()
    assert harness.removed_rows(tmp_path / "two") == whole.removed
    assert whole.report["result"]["audit"]["missed"] == 0
    limited = harness.run(first, tmp_path / "limit", Recipe(limit=6))
    assert read(limited.out / "a.arrow")[0]["id"].to_pylist() == [0, 3, 5]
    text = show.show(str(whole.out), "b.arrow:1", width=100)
    assert "b.arrow row 1" in text
    assert "a.arrow row 0" in text
    assert "another" not in text


def test_a_full_disk_is_named() -> None:
    schema = pa.schema([("text", pa.string())])
    batch = pa.record_batch([pa.array(["x" * 100_000])], schema=schema)
    writer = ArrowWriter("/dev/full", schema, False, None, None)

    def fill() -> None:
        with writer:
            for _ in range(100):
                writer.write(batch, np.ones(1, np.bool_))

    with pytest.raises(OutputError, match="no space left"):
        fill()
