"""One recipe, one answer: no backend, thread count, batch size, memory or packing of the rows changes a byte of it."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import corpora
import harness
import pytest
from conftest import cuda_missing
from harness import Ran

from gpu_dedup.recipe import Recipe

# Rows that are read, found, verified and removed in every way: bad lines, near and exact copies, all the scripts.
ROWS = [row for seed in (11, 12) for row in corpora.planted(seed, clusters=16, huge=30_000).rows]
RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    "connected": {"cluster": "connected", "threshold_ppm": 600_000, "keep": "max:score"},
    "capped": {"bucket_cap": 2, "cap_lowest": 1, "cap_splits": 2, "num_perm": 64, "keep": "longest"},
    "signature": {"verify": "signature", "shingle": "char:6"},
    "fast": {"sketch": "fast", "shingle": "char:5", "threshold_ppm": 700_000, "keep": "shortest"},
    "simhash": {"method": "simhash", "distance": 5, "threshold_ppm": 600_000},
    "simhash connected": {
        "method": "simhash",
        "distance": 6,
        "verify": "none",
        "cluster": "connected",
        "keep": "longest",
    },
    "cascade": {"method": "cascade", "distance": 2, "far_distance": 12, "search_distance": 4, "far_action": "flag"},
    "exact": {"method": "exact", "normalize": ("nfkc", "lower", "whitespace")},
}


def answer(ran: Ran) -> tuple[dict[str, bytes], list[dict[str, Any]], str]:
    """Output bytes, removal log, and the part of the report that must not vary."""
    files = {path.relative_to(ran.out).as_posix(): path for path in sorted(ran.out.rglob("*")) if path.is_file()}
    outputs = {rel: path.read_bytes() for rel, path in files.items() if not rel.startswith("_gpu_dedup/")}
    return outputs, ran.removed, json.dumps(ran.report["result"], sort_keys=True)


def decisions(ran: Ran) -> list[tuple[Any, ...]]:
    """The log by the rows' position in the whole input, so that packings can be compared."""
    first, total = {}, 0
    for rel, path in ran.inputs.items():
        first[rel] = total
        total += len(harness.read_rows(path))

    def place(file: str | None, row: int | None) -> int | None:
        return None if file is None or row is None else first[file] + row

    return [
        (
            place(entry["file"], entry["row"]),
            place(entry["kept_file"], entry["kept_row"]),
            place(entry["linked_file"], entry["linked_row"]),
            *(entry[name] for name in ("id", "kept_id", "similarity", "shared", "union", "reason", "guarantee")),
        )
        for entry in ran.removed
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows over three files of three formats, a bad line among them."""
    place = tmp_path_factory.mktemp("invariance") / "in"
    third = len(ROWS) // 3
    lines = [corpora.line(row) for row in ROWS[:third]]
    lines[5:5] = [b"\n", b'{"id": "bad", "text": 7}\n', b"{\n"]
    harness.write_lines(place / "a.jsonl", lines)
    harness.write_rows(place / "sub" / "b.jsonl.gz", ROWS[third : 2 * third])
    rest = [{**row, "text": row["text"].encode("utf-8", "replace").decode()} for row in ROWS[2 * third :]]
    harness.write_rows(place / "sub" / "c.parquet", rest)
    return place


@pytest.fixture(scope="module")
def reference(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The plain run: NumPy, one thread, ordinary batches."""
    out = tmp_path_factory.mktemp("reference")
    return {
        name: answer(harness.run(folder, out / name, Recipe(on_bad_row="skip", **options), backend="numpy", threads=1))
        for name, options in RECIPES.items()
    }


def test_the_reference_is_worth_comparing_with(reference: dict[str, Any]) -> None:
    for name, (outputs, removed, _) in reference.items():
        assert set(outputs) == {"a.jsonl", "sub/b.jsonl.gz", "sub/c.parquet"}, name
        assert len(removed) > 30, name
    assert {entry["reason"] for entry in reference["default"][1]} == {"exact", "near", "exact+near", "bad-row"}
    assert json.loads(reference["capped"][2])["collisions"]["capped"] > 0


SETTINGS: dict[str, dict[str, Any]] = {
    "numba": {"backend": "numba", "threads": 1},
    "numba 2 threads": {"backend": "numba", "threads": 2},
    "numba 7 threads": {"backend": "numba", "threads": 7},
    "numba batches of 1 byte": {"backend": "numba", "threads": 2, "batch_bytes": 1},
    "numpy batches of 1000 bytes": {"backend": "numpy", "threads": 1, "batch_bytes": 1000},
    "numba batches of 100 KB": {"backend": "numba", "threads": 3, "batch_bytes": 100_000},
    "numba one batch": {"backend": "numba", "threads": 2, "batch_bytes": 1 << 28, "memory": 64 << 30},
    "numba no memory": {"backend": "numba", "threads": 2, "memory": 1},
    "numba 20 KB memory": {"backend": "numba", "threads": 7, "memory": 20_000, "batch_bytes": 4096},
    "numpy 20 KB memory": {"backend": "numpy", "threads": 7, "memory": 20_000},
}
if cuda_missing() is None:
    SETTINGS["cuda"] = {"backend": "cuda", "threads": 1}
    SETTINGS["cuda 3 threads"] = {"backend": "cuda", "threads": 3, "batch_bytes": 100_000}
    SETTINGS["cuda 20 KB memory"] = {"backend": "cuda", "threads": 2, "batch_bytes": 3000, "memory": 20_000}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_change_nothing(
    folder: Path, reference: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, recipe: str
) -> None:
    # So that a small corpus outgrows it: nothing but tables counts.
    monkeypatch.setattr("gpu_dedup.run.MIN_MEMORY", 1)
    monkeypatch.setattr("gpu_dedup.pipeline.footprint.PROGRAM", {"numpy": 0, "numba": 0})
    nothing = ("BATCH_COPIES", "LEAST_TABLES", "CANDIDATE", "CANDIDATE_CONNECTED", "PAIR", "GONE", "GONE_CONNECTED")
    for name, value in (*((name, 0) for name in (*nothing, "GONE_PRINTED", "GONE_LEVELED")), ("LEAST_BATCHES", 1)):
        monkeypatch.setattr(f"gpu_dedup.pipeline.footprint.{name}", value)
    monkeypatch.setattr("gpu_dedup.pipeline.footprint.row_bytes", lambda recipe: [])
    monkeypatch.setattr("gpu_dedup.pipeline.footprint.reading_of", lambda run: 0)
    options = Recipe(on_bad_row="skip", **RECIPES[recipe])
    ran = harness.run(folder, tmp_path / "out", options, **SETTINGS[setting])
    outputs, removed, result = answer(ran)
    want_outputs, want_removed, want_result = reference[recipe]
    assert outputs == want_outputs
    assert removed == want_removed
    assert result == want_result
    if "20 KB" in setting and recipe not in ("exact", "simhash connected"):  # fingerprints are small
        assert ran.report["machine"]["spilled"] > 0, "the tables were meant to outgrow the memory"


def test_twice_is_the_same_file(folder: Path, tmp_path: Path) -> None:
    """The removal log is the same to the byte, not only row by row."""
    logs = []
    for name, settings in (("one", {"backend": "numba", "threads": 7}), ("two", {"backend": "numpy", "threads": 1})):
        ran = harness.run(folder, tmp_path / name, Recipe(on_bad_row="skip"), **settings)
        logs.append((ran.out / "_gpu_dedup" / "removed.parquet").read_bytes())
    assert logs[0] == logs[1]


PACKINGS: dict[str, list[tuple[str, int]]] = {
    "one file": [("all.jsonl", 10**9)],
    "one parquet": [("all.parquet", 10**9)],
    "row by row": [("{i:04}.jsonl", 1)],
    "all formats": [("{i:02}.jsonl.zst", 17), ("{i:02}.parquet", 30), ("{i:02}.jsonl", 1), ("{i:02}.jsonl.gz", 41)],
    "empty files between": [("{i:02}.jsonl", 50), ("{i:02}.empty.jsonl.gz", 0), ("{i:02}.none.parquet", 0)],
}
# Parquet holds no lone surrogates, so these rows leave them out.
PACKED = [row for row in ROWS if not row["id"].endswith("-half")]


def pack(folder: Path, packing: list[tuple[str, int]]) -> Path:
    start = i = 0
    while start < len(PACKED):
        name, size = packing[i % len(packing)]
        harness.write_rows(folder / name.format(i=i), PACKED[start : start + size])
        start += size
        i += 1
    return folder


@pytest.mark.parametrize("packing", PACKINGS)
def test_packing_changes_nothing(tmp_path: Path, packing: str, backend_name: str) -> None:
    recipe = Recipe(keep="min:score", cluster="connected", threshold_ppm=700_000)
    plain = harness.run(
        pack(tmp_path / "plain", [("x.jsonl", 40)] * 1 + [("y{i}.jsonl", 10**9)]),
        tmp_path / "o1",
        recipe,
        backend="numpy",
    )
    ran = harness.run(
        pack(tmp_path / "in", PACKINGS[packing]), tmp_path / "o2", recipe, backend=backend_name, threads=2
    )
    assert decisions(ran) == decisions(plain)
    assert ran.ids == plain.ids
    assert len(ran.removed) > 30


def test_kept_lines_are_the_same_bytes_in_every_compression(tmp_path: Path) -> None:
    contents = []
    for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst"):
        source = harness.write_rows(tmp_path / name.replace(".", "_") / name, ROWS)
        ran = harness.run(source, tmp_path / f"out-{name}")
        contents.append(b"".join(ran.rows(name)))
    assert contents[0] == contents[1] == contents[2]


# SHA-256 of the decisions, checked against the oracle's when they were written down. A recipe keeps its meaning on any
# Python, NumPy, Numba, machine and later version; where one of these has to change, recipe.DEFINITIONS changes too.
GOLDEN = {
    "default": "adaea4672873a044ed28c06c11e0433fb7268e09fb7f22dc7139485de225aaac",
    "connected": "cbe920f1e2a83d81492610a0300588492302f569f1c1afbc4aaba5b8cd452236",
    "capped": "874074be4ea26bda2a8f2d4f6e9c095f9ea42e1971b542626ec31b74d18902fb",
    "signature": "6003b4de358a6057d7b8b5cdca5daa93cbd3863a5887cf6b19e836e510300637",
    "fast": "1113949ee0763dd70aafe478005f7f7db4205b77e4c831d061cce2c106e47a1e",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_decisions(name: str, tmp_path: Path, backend_name: str) -> None:
    rng = random.Random("golden")
    rows = corpora.planted("golden", clusters=24, huge=10_000).rows
    words = corpora.made_up(rng, 300)
    rows += [{"id": f"g{i}", "text": " ".join(corpora.exchange(rng, words, i % 30)), "score": -i} for i in range(90)]
    source = harness.write_rows(tmp_path / "in" / "a.jsonl", rows)
    ran = harness.run(source, tmp_path / "out", Recipe(**RECIPES[name]), backend=backend_name, threads=2)
    assert hashlib.sha256(json.dumps(decisions(ran)).encode()).hexdigest() == GOLDEN[name]
