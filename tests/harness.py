"""Runs the pipeline as a user does and reads back what it left, without the package's own readers."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpora
import oracle
import pyarrow as pa
import pyarrow.parquet as pq

from gpu_dedup.pipeline import dedup
from gpu_dedup.recipe import Recipe
from gpu_dedup.run import Run

FORMATS = ("jsonl", "jsonl.gz", "jsonl.zst", "parquet")

# Finds every pair with a similarity worth naming: chance of a miss at 0.7 is (1 - 0.7 ** 2) ** 64 < 1e-18, no sieve.
FULL_RECALL = {"bands": 64, "rows": 2, "sieve_cut": 0}


# ---------------------------------------------------------------------------------------------------------- writing


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows in the format that the name of the file says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        names = list(dict.fromkeys(name for row in rows for name in row)) or ["id", "text"]
        table = pa.table({name: [row.get(name) for row in rows] for name in names})
        if not rows:
            table = pa.table({name: pa.array([], pa.string()) for name in names})
        pq.write_table(table, path, row_group_size=7)
    else:
        write_lines(path, [corpora.line(dict(row)) for row in rows])
    return path


def write_lines(path: Path, lines: Iterable[bytes]) -> Path:
    """Write raw lines, compressed as the ending says: gzip in two members, zstd in two frames."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = list(lines)
    halves = [b"".join(lines[: len(lines) // 2]), b"".join(lines[len(lines) // 2 :])]
    if path.suffix == ".gz":
        path.write_bytes(b"".join(gzip.compress(half, mtime=0) for half in halves))
    elif path.suffix == ".zst":
        path.write_bytes(b"".join(pa.compress(half, "zstd", asbytes=True) for half in halves))
    else:
        path.write_bytes(b"".join(halves))
    return path


# ---------------------------------------------------------------------------------------------------------- reading


def read_bytes(path: Path) -> bytes:
    """The decompressed content of a JSONL file."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        out = b""
        while raw:
            member = zlib.decompressobj(31)
            out += member.decompress(raw) + member.flush()
            assert member.eof, f"{path}: cut gzip member"
            raw = member.unused_data
        return out
    if path.suffix == ".zst":
        return pa.CompressedInputStream(pa.BufferReader(raw), "zstd").read() if raw else b""
    return raw


def read_lines(path: Path) -> list[bytes]:
    """Raw lines, line feeds included; the byte order mark of a file belongs to no line."""
    data = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    out = data.split(b"\n")
    return [part + b"\n" for part in out[:-1]] + ([out[-1]] if out[-1] else [])


def read_rows(path: Path) -> list[Any]:
    """Rows of a file: raw lines of JSONL, records of Parquet."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return read_lines(path)


def text_of(row: Any) -> str | None:
    if isinstance(row, bytes):
        return oracle.jsonl_text(row)
    text = row.get("text")
    return text if isinstance(text, str) else None


def record(row: Any) -> dict[str, Any]:
    return json.loads(row) if isinstance(row, bytes) else row


@dataclass
class Ran:
    """A finished run. `report` is report.json; `removed` the rows of the log in their order."""

    out: Path
    inputs: dict[str, Path]
    report: dict[str, Any]
    removed: list[dict[str, Any]]

    def rows(self, rel: str) -> list[Any]:
        return read_rows(self.out / rel)

    @property
    def ids(self) -> list[Any]:
        """Ids of the rows that stayed, in input order."""
        return [record(row)["id"] for rel in self.inputs for row in self.rows(rel) if text_of(row) is not None]

    @property
    def groups(self) -> dict[Any, list[Any]]:
        """Removed ids by the id of their witness."""
        out: dict[Any, list[Any]] = {}
        for entry in self.removed:
            out.setdefault(entry["kept_id"], []).append(entry["id"])
        return out

    def reasons(self) -> dict[Any, str]:
        return {entry["id"]: entry["reason"] for entry in self.removed}

    def check(self, rules: oracle.Rules, value: str | None = None) -> list[Any]:
        """`oracle.check_run` over this run; returns the missed removals."""
        return oracle.check_run(
            {rel: read_rows(path) for rel, path in self.inputs.items()},
            {rel: self.rows(rel) for rel in self.inputs},
            self.removed,
            rules,
            text_of,
            (lambda row: record(row).get(value)) if value else (lambda row: None),
        )


def removed_rows(out: Path) -> list[dict[str, Any]]:
    """The removal log; also where it is a folder of parts."""
    place = out / "_gpu_dedup" / "removed.parquet"
    parts = sorted(place.iterdir()) if place.is_dir() else [place]
    return [row for part in parts for row in pq.read_table(part).to_pylist()]


def run(
    inputs: Sequence[Path] | Path, out: Path, recipe: Recipe | None = None, *, overwrite: bool = False, **settings: Any
) -> Ran:
    """Run the pipeline over files or one folder and read back everything it left."""
    given = [inputs] if isinstance(inputs, Path) else list(inputs)
    dedup(
        [str(path) for path in given],
        str(out),
        recipe or Recipe(),
        Run(progress=False, overwrite=overwrite, **settings),
    )
    report = json.loads((out / "_gpu_dedup" / "report.json").read_text())
    files = {
        entry["rel"]: Path(path)
        for entry, path in zip(report["result"]["inputs"], report["machine"]["paths"], strict=True)
        if entry["problem"] is None
    }
    return Ran(out, files, report, removed_rows(out))


def rules_of(recipe: Recipe) -> oracle.Rules:
    """The oracle's view of a recipe."""
    spec = recipe.spec
    stop = frozenset(
        window
        for text in recipe.stop_shingles
        for window in oracle.windows(oracle.normalise(text, recipe.steps), spec.unit, spec.n)
    )
    return oracle.Rules(
        method=recipe.method,
        steps=recipe.steps,
        unit=spec.unit,
        n=spec.n,
        threshold_ppm=recipe.threshold_ppm,
        keep=recipe.keep,
        cluster=recipe.cluster,
        witness=recipe.witness,
        verify=recipe.verify,
        min_shingles=recipe.min_shingles,
        stop=stop,
        on_no_text=recipe.on_no_text,
        edit_max_chars=recipe.edit_max_chars,
    )
