"""Recall and precision of a real run against brute force over all pairs.

    python benchmarks/quality_check.py FILE.jsonl[.gz|.zst] [--threshold 0.8] [--json OUT] [-- RUN OPTIONS]

Truth: every pair of documents with exact Jaccard 0.5 or more, by an oracle that imports nothing of gpu-dedup.
Shingles are numbered, not hashed (pairs of numbers renumbered until five tokens are one number), and the join is
exact: prefix filtering (Chaudhuri, Ganti, Kaushik 2006; Bayardo, Ma, Srikant 2007) leaves out only pairs that cannot
reach 0.5. Texts are NFKC, case-folded, white space collapsed; shingles are token:5. The fast tokeniser is checked
against tests/oracle.py on a sample before anything is measured.

Run: the command line, with its defaults, in a process of its own.

Measured, per stretch of similarity from the threshold up:
    pairs      true pairs of documents with different normalised texts (of exact copies only the first takes part)
    found      those of which at least one document went
    lone       true pairs of which neither document has another true partner: here nothing but the bands can help
    promised   mean chance 1 - (1 - s**rows)**bands over these pairs
and over all removals: witnesses that are not kept or are below the threshold (must be 0), shared and union that are
not the true ones (must be 0); missed removals = kept documents with an earlier kept one at or above the threshold.
Exit status 1 if a removal is unfounded or recall is below --least.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import oracle

I64 = npt.NDArray[np.int64]
PPM = 10**6
N = 5
FLOOR = (1, 2)  # pairs from Jaccard 1/2 on are found


# ------------------------------------------------------------------------------------------------------------- texts


def read_lines(path: Path) -> Iterator[bytes]:
    if path.suffix == ".zst":
        with pa.OSFile(str(path)) as raw, pa.CompressedInputStream(raw, "zstd") as stream:
            rest = b""
            while block := stream.read(1 << 24):
                *lines, rest = (rest + block).split(b"\n")
                yield from lines
            if rest:
                yield rest
    else:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            for line in file:
                yield line.removesuffix(b"\n")


def char_class(wanted: Any) -> str:
    """The inside of a regular expression's [...] with all code points that are wanted."""
    out, start = [], None
    for point in range(0x110001):
        inside = point < 0x110000 and wanted(point)
        if inside and start is None:
            start = point
        elif not inside and start is not None:
            out.append(f"\\U{start:08x}-\\U{point - 1:08x}")
            start = None
    return "".join(out)


class Tokeniser:
    """token units by one regular expression; 30 times faster than oracle.units, and held against it."""

    def __init__(self) -> None:
        kinds = [oracle.category(chr(point)) for point in range(0x110000)]

        def single(point: int) -> bool:
            return point not in oracle.IGNORABLE and (point in oracle.BLANK_FREE or kinds[point] == "So")

        def word(point: int) -> bool:
            return (
                point not in oracle.IGNORABLE
                and not single(point)
                and (kinds[point][0] in "LMN" or kinds[point] == "Pc")
            )

        self._ignorable = re.compile(f"[{char_class(lambda point: point in oracle.IGNORABLE)}]")
        self._unit = re.compile(f"[{char_class(single)}]|[{char_class(word)}]+")
        self._ascii = re.compile("[0-9A-Z_a-z]+")
        self._later = re.compile(f"[{char_class(lambda point: point in oracle.LATER)}]")

    def normalise(self, text: str) -> str:
        if text.isascii():
            text = text.lower()
        elif self._later.search(text) or not oracle.FOLD_14.keys().isdisjoint(map(ord, set(text))):
            return oracle.normalise(text)
        else:
            form = oracle.unicodedata2.normalize
            text = form("NFKC", form("NFKC", text).casefold())
        return " ".join(
            re.sub("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+", " ", text)
            .strip(" ")
            .split(" ")
        )

    def units(self, text: str) -> list[str]:
        if text.isascii():
            return self._ascii.findall(text)
        return self._unit.findall(self._ignorable.sub("", text))


# ------------------------------------------------------------------------------------------- numbered shingles, exactly


def renumber(left: I64, right: I64) -> I64:
    """Equal pairs get equal numbers, different pairs different ones."""
    _, number = np.unique((left.astype(np.uint64) << np.uint64(32)) | right.astype(np.uint64), return_inverse=True)
    return number.astype(np.int64)


def shingle_sets(tokens: I64, bounds: I64) -> tuple[I64, I64]:
    """Sets of numbered shingles of five tokens; a shorter text is one shingle of all of them.

    tokens   int64[total] numbers of the tokens of all documents; bounds int64[n + 1]
    returns  items int64[size], ascending and unique within a document, offsets int64[n + 1]
    """
    counts = np.diff(bounds)
    two = renumber(tokens[:-1], tokens[1:]) if len(tokens) > 1 else np.zeros(0, np.int64)
    four = renumber(two[:-2], two[2:]) if len(two) > 2 else np.zeros(0, np.int64)
    five = renumber(four[:-1], tokens[4:]) if len(four) > 1 else np.zeros(0, np.int64)
    document = np.repeat(np.arange(len(counts)), counts)
    inside = np.flatnonzero(document[: len(five)] == document[N - 1 :][: len(five)])  # windows within one document
    owner, item = document[inside], five[inside]
    numbers: dict[tuple[int, ...], int] = {}
    base = int(five.max(initial=-1)) + 1
    short = np.flatnonzero((counts > 0) & (counts < N))
    short_items = [
        base + numbers.setdefault(tuple(tokens[bounds[i] : bounds[i + 1]].tolist()), len(numbers))
        for i in short.tolist()
    ]
    owner = np.concatenate([owner, short])
    item = np.concatenate([item, np.array(short_items, np.int64)])
    both = np.unique((owner.astype(np.uint64) << np.uint64(32)) | item.astype(np.uint64))
    owner, item = (both >> np.uint64(32)).astype(np.int64), (both & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return item, np.searchsorted(owner, np.arange(len(counts) + 1)).astype(np.int64)


def similar_pairs(items: I64, offsets: I64) -> tuple[I64, I64, I64, I64]:
    """All pairs of sets with Jaccard at or above FLOOR: (later, earlier, shared, union), earlier < later."""
    up, down = FLOOR
    # Rare shingles get low numbers, so that a set's first ones are its rarest.
    kinds, inverse, frequency = np.unique(items, return_inverse=True, return_counts=True)
    rarity = np.empty(len(kinds), np.int64)
    rarity[np.argsort(frequency, kind="stable")] = np.arange(len(kinds))
    size = np.diff(offsets)
    owner = np.repeat(np.arange(len(size)), size)
    ranked = rarity[inverse]
    ranked = ranked[np.lexsort((ranked, owner))]
    frequency = np.sort(frequency, kind="stable")

    by_size = np.argsort(size, kind="stable")
    by_size = by_size[size[by_size] > 0]
    # Two sets with Jaccard >= up/down share one of the first |x| - ceil(|x| * up / down) + 1 of each of them.
    prefix = size - -(-size * up // down) + 1
    starts = np.concatenate(([0], np.cumsum(frequency)))
    posting = np.empty(len(ranked), np.int64)  # places in by_size, ascending, per shingle
    filled = np.zeros(len(kinds), np.int64)
    marked = np.zeros(len(kinds), bool)
    sizes_in_order = size[by_size]
    out: list[tuple[I64, I64, I64, I64]] = []
    for place, document in enumerate(by_size.tolist()):
        mine = ranked[offsets[document] : offsets[document + 1]]
        first = mine[: prefix[document]]
        first = first[frequency[first] > 1]
        least = np.searchsorted(sizes_in_order, -(-size[document] * up // down))
        count = filled[first]
        total = int(count.sum())
        if total:
            index = np.repeat(starts[first] - (np.cumsum(count) - count), count) + np.arange(total)
            others = np.unique(posting[index])
            others = by_size[others[others >= least]]
            if len(others):
                marked[mine] = True
                lengths = size[others]
                ends = np.cumsum(lengths)
                gather = np.repeat(offsets[others] - (ends - lengths), lengths) + np.arange(ends[-1])
                shared = np.add.reduceat(marked[ranked[gather]].astype(np.int64), ends - lengths)
                marked[mine] = False
                union = lengths + len(mine) - shared
                good = shared * down >= union * up
                later, earlier = np.maximum(others, document)[good], np.minimum(others, document)[good]
                out.append((later, earlier, shared[good], union[good]))
        posting[starts[first] + filled[first]] = place
        filled[first] += 1
    if not out:
        return tuple(np.zeros(0, np.int64) for _ in range(4))  # type: ignore[return-value]
    later, earlier, shared, union = (np.concatenate(column) for column in zip(*out, strict=True))
    order = np.lexsort((earlier, later))
    return later[order], earlier[order], shared[order], union[order]


# ----------------------------------------------------------------------------------------------------------- the check


class Truth:
    """The documents of a file and all their similar pairs."""

    def __init__(self, path: Path, field: str) -> None:
        tokeniser = Tokeniser()
        number: dict[str, int] = {}
        seen: dict[str, int] = {}
        rows: list[int] = []
        self.head: list[int] = []  # document -> first document with the same normalised text, itself for the first
        tokens: list[I64] = []
        self.bytes = 0
        checked = 0
        for row, line in enumerate(read_lines(path)):
            text = oracle.jsonl_text(line, field)
            if text is None:
                continue
            self.bytes += len(text.encode("utf-8", "surrogatepass"))
            normal = tokeniser.normalise(text)
            units = tokeniser.units(normal)
            if len(rows) % 97 == 0 and checked < 2_000_000:
                assert normal == oracle.normalise(text), f"row {row}: the fast normaliser differs from tests/oracle.py"
                assert units == oracle.units(normal, "token"), (
                    f"row {row}: the fast tokeniser differs from tests/oracle.py"
                )
                checked += len(text)
            first = seen.setdefault(normal, len(rows)) if normal else len(rows)
            self.head.append(first)
            rows.append(row)
            if first == len(rows) - 1:
                tokens.append(np.array([number.setdefault(unit, len(number)) for unit in units], np.int64))
            else:
                tokens.append(np.zeros(0, np.int64))
        self.rows = rows
        self.place = {row: document for document, row in enumerate(rows)}
        bounds = np.concatenate(([0], np.cumsum([len(t) for t in tokens]))).astype(np.int64)
        self.items, self.offsets = shingle_sets(np.concatenate(tokens) if tokens else np.zeros(0, np.int64), bounds)
        self.later, self.earlier, self.shared, self.union = similar_pairs(self.items, self.offsets)

    def jaccard(self, a: int, b: int) -> tuple[int, int]:
        """(shared, union) of two documents, counted anew."""
        a, b = self.head[a], self.head[b]
        left = self.items[self.offsets[a] : self.offsets[a + 1]]
        right = self.items[self.offsets[b] : self.offsets[b + 1]]
        shared = len(np.intersect1d(left, right, assume_unique=True))
        return shared, len(left) + len(right) - shared


def judge(truth: Truth, removed: list[dict[str, Any]], threshold_ppm: int, bands: int, rows: int) -> dict[str, Any]:
    """Everything that is said about one run."""
    gone = {truth.place[entry["row"]]: entry for entry in removed if entry["row"] in truth.place}
    unfounded, wrong_counts = [], []
    for document, entry in gone.items():
        witness = truth.place.get(entry["kept_row"], -1)
        if witness < 0 or witness in gone:
            unfounded.append(entry)
        elif truth.head[document] == truth.head[witness]:
            if entry["reason"] != "exact":
                wrong_counts.append(entry)
        else:
            shared, union = truth.jaccard(document, witness)
            if shared * PPM < threshold_ppm * union or not union:
                unfounded.append(entry)
            elif (entry["shared"], entry["union"]) != (shared, union) or entry["reason"] == "exact":
                wrong_counts.append(entry)

    true = truth.shared * PPM >= threshold_ppm * truth.union
    later, earlier = truth.later[true], truth.earlier[true]
    similarity = truth.shared[true] / truth.union[true]
    stays = np.ones(len(truth.rows), bool)
    stays[list(gone)] = False
    missed = stays[later] & stays[earlier]
    partners = np.bincount(np.concatenate([later, earlier]), minlength=len(truth.rows))
    lone = (partners[later] == 1) & (partners[earlier] == 1)
    chance = 1 - (1 - similarity**rows) ** bands
    low = threshold_ppm / PPM
    edges = [low + (1 - low) * i / 10 for i in range(10)] + [1.0000001]
    table = []
    for left, right in itertools.pairwise(edges):
        here = (similarity >= left) & (similarity < right)
        pairs, lone_pairs = int(here.sum()), int((here & lone).sum())
        table.append(
            {
                "from": round(left, 4),
                "to": round(min(right, 1.0), 4),
                "pairs": pairs,
                "found": round(1 - int(missed[here].sum()) / pairs, 5) if pairs else None,
                "lone": lone_pairs,
                "lone_found": round(1 - int(missed[here & lone].sum()) / lone_pairs, 5) if lone_pairs else None,
                "promised": round(float(chance[here].mean()), 5) if pairs else None,
            }
        )
    exact_missed = [
        truth.rows[document]
        for document, head in enumerate(truth.head)
        if head != document and document not in gone and head not in gone
    ]
    return {
        "documents": len(truth.rows),
        "text_bytes": truth.bytes,
        "exact_copies": sum(head != document for document, head in enumerate(truth.head)),
        "pairs_from_half": len(truth.later),
        "true_pairs": len(later),
        "removed": len(gone),
        "unfounded_removals": len(unfounded),
        "wrong_counts": len(wrong_counts),
        "recall": round(1 - int(missed.sum()) / len(later), 6) if len(later) else 1.0,
        "lone_pairs": int(lone.sum()),
        "lone_recall": round(1 - int((missed & lone).sum()) / int(lone.sum()), 6) if lone.any() else 1.0,
        "lone_promised": round(float(chance[lone].mean()), 6) if lone.any() else None,
        "missed_removals": len(set(later[missed].tolist())) + len(exact_missed),
        "missed_exact_copies": len(exact_missed),
        "by_similarity": table,
        "examples": {
            "unfounded": [
                {k: entry[k] for k in ("row", "kept_row", "similarity", "reason")} for entry in unfounded[:5]
            ],
            "wrong_counts": [
                {k: entry[k] for k in ("row", "kept_row", "shared", "union", "reason")} for entry in wrong_counts[:5]
            ],
            "missed": [
                {"row": truth.rows[a], "like": truth.rows[b], "similarity": round(float(s), 5)}
                for a, b, s in zip(later[missed][:5], earlier[missed][:5], similarity[missed][:5], strict=True)
            ],
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Recall and precision of gpu-dedup run against brute force over all pairs."
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("options", nargs="*", help="more options of gpu-dedup run, after --")
    parser.add_argument("--threshold", default="0.8")
    parser.add_argument("--text-field", default="text")
    parser.add_argument("--least", type=float, default=0.97, help="recall below which the exit status is 1")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    threshold_ppm = round(float(given.threshold) * PPM)

    start = time.perf_counter()
    truth = Truth(given.file, given.text_field)
    oracle_seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [
            sys.executable,
            "-m",
            "gpu_dedup",
            "run",
            str(given.file),
            "-o",
            str(out),
            "--threshold",
            given.threshold,
        ]
        command += ["--text-field", given.text_field, "--shingle", f"token:{N}", "--max-removed", "1", *given.options]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        run_seconds = time.perf_counter() - start
        report = json.loads((out / "_gpu_dedup" / "report.json").read_text())
        removed = pq.read_table(out / "_gpu_dedup" / "removed.parquet").to_pylist()
        kept = list(read_lines(out / given.file.name))
    gone = {entry["row"] for entry in removed}
    lines = [line for i, line in enumerate(read_lines(given.file)) if i not in gone and line.strip()]
    recipe = report["result"]["recipe"]
    said = {
        "file": given.file.name,
        "threshold": given.threshold,
        "bands": recipe["bands"],
        "rows": recipe["rows"],
        **judge(truth, removed, threshold_ppm, recipe["bands"], recipe["rows"]),
        "output_is_input_less_rows": kept == lines,
        "oracle_seconds": round(oracle_seconds, 1),
        "run_seconds": round(run_seconds, 2),
    }
    text = json.dumps(said, indent=1)
    if given.json:
        given.json.write_text(text + "\n")
    print(text)
    sound = not said["unfounded_removals"] and not said["wrong_counts"] and said["output_is_input_less_rows"]
    return 0 if sound and said["recall"] >= given.least else 1


if __name__ == "__main__":
    sys.exit(main())
