"""How good: brute-force truth beside what a run finds, what its sketches estimate, and what sieve and bucket cap lose.

    python benchmarks/quality.py [FILE.jsonl[.gz|.zst] ...] [--threshold 0.8] [--json OUT] [--plots DIR] [-- OPTIONS]
    python benchmarks/quality.py FILE --kept ROWS --name TOOL      judge what another tool kept of FILE

Without a FILE, corpora of --documents 20000 or some more are made of text of this machine (benchmarks/corpora.py):
English, Chinese, code and short texts, near-copies of every similarity planted, long texts cut. --parts chooses among
run, sketch, sets, cap.

Truth: every pair of documents with exact Jaccard 0.5 or more, by an oracle that imports nothing of gpu-dedup.
Shingles are numbered, not hashed (pairs of numbers renumbered until five tokens are one number), and the join is
exact: prefix filtering (Chaudhuri, Ganti, Kaushik 2006; Bayardo, Ma, Srikant 2007) leaves out only pairs that cannot
reach 0.5. Texts are NFKC, case-folded, white space collapsed; shingles are token:5. The fast tokeniser is checked
against tests/oracle.py on a sample before anything is measured.

run     the command line, with its defaults, in a process of its own. Of all tools:
            without_witness    rows that went and have no kept row like them (equal text, or Jaccard at the threshold);
                               rows without a token are counted apart, as removed_without_text
            without_partner    of these, rows that are like no row at all, kept or not: false positives
            missed_removals    kept rows with an earlier kept row like them
            recall             share of true pairs of which at least one row went; `by_similarity` splits it
            lone               true pairs of which neither row has another partner: here nothing but the bands can help
            promised           mean chance 1 - (1 - s**rows)**bands over these pairs
        of ours, which says why, also: unfounded_removals (the *named* witness is gone or below the threshold) and
        wrong_counts (shared and union that are not the true ones); both must be 0.
sketch  all true pairs from 0.5 on: estimate (equal slots / slots) against true Jaccard, its bias and its variance over
        J (1 - J) / k, the chance per band against s**rows, the chance to meet against the S-curve, the sieve's loss.
        Pairs of one family of texts are not independent of each other, so one seed's bias strays further than its
        error says; `over seeds` is the mean of several seeds with the error that their spread shows.
sets    the same for made sets of 20 to 20,000 random items with an exact Jaccard, all independent: is a bias real?
cap     families of thousands of near-copies that fill buckets over the cap: missed removals with the cap and without.

Exit status 1 if a removal is unfounded, a count is wrong, the output is not the input less rows, or recall is below
--least; 2 for a file that cannot be used.
"""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
import math
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent, HERE, HERE.parent / "tests"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
import common  # noqa: E402
import oracle  # noqa: E402
from plots import Plot  # noqa: E402

I64 = npt.NDArray[np.int64]
PPM = 10**6
N = 5
FLOOR = (1, 2)  # pairs from Jaccard 1/2 on are found
KINDS = ("english", "chinese", "code", "short")
PARTS = ("run", "sketch", "sets", "cap")
LONGEST = 6000  # characters of a document of a made corpus
MEAN_BYTES = {"english": 4000, "chinese": 1500, "code": 6000, "short": 200}  # first guess of a document's size


def mistake(message: str) -> SystemExit:
    """The end of the program with one line about a mistake of the user."""
    print(f"quality.py: {message}", file=sys.stderr)
    return SystemExit(2)


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


# -------------------------------------------------------------------------------------------------------------- truth


class Truth:
    """The documents of a file and all their similar pairs.

    rows        document -> physical row (rows without a text are no documents)
    head        document -> first document with the same normalised text, itself for the first
    later, earlier, shared, union   int64[p]: pairs of heads with Jaccard at or above FLOOR
    """

    def __init__(self, path: Path, field: str = "text") -> None:
        tokeniser = Tokeniser()
        number: dict[str, int] = {}
        seen: dict[str, int] = {}
        rows: list[int] = []
        heads: list[int] = []
        tokens: list[I64] = []
        self.path, self.field = path, field
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
            heads.append(first)
            rows.append(row)
            if first == len(rows) - 1:
                tokens.append(np.array([number.setdefault(unit, len(number)) for unit in units], np.int64))
            else:
                tokens.append(np.zeros(0, np.int64))
        if not rows:
            raise mistake(f"{path}: no row has a text in the field {field!r}; name it with --text-field")
        self.rows = rows
        self.head = heads
        self.place = {row: document for document, row in enumerate(rows)}
        bounds = np.concatenate(([0], np.cumsum([len(t) for t in tokens]))).astype(np.int64)
        self.items, self.offsets = shingle_sets(np.concatenate(tokens) if tokens else np.zeros(0, np.int64), bounds)
        self.later, self.earlier, self.shared, self.union = similar_pairs(self.items, self.offsets)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> I64:
        """int64[n] shingles of each head; 0 for its copies."""
        return np.diff(self.offsets)

    def at(self, threshold_ppm: int) -> tuple[I64, I64, npt.NDArray[np.float64]]:
        """later, earlier and Jaccard of the pairs at or above a threshold."""
        true = self.shared * PPM >= threshold_ppm * self.union
        return self.later[true], self.earlier[true], self.shared[true] / self.union[true]

    def jaccard(self, a: int, b: int) -> tuple[int, int]:
        """(shared, union) of two documents, counted anew."""
        a, b = self.head[a], self.head[b]
        left = self.items[self.offsets[a] : self.offsets[a + 1]]
        right = self.items[self.offsets[b] : self.offsets[b + 1]]
        shared = len(np.intersect1d(left, right, assume_unique=True))
        return shared, len(left) + len(right) - shared

    def texts(self, documents: Sequence[int]) -> list[str]:
        """Raw texts of some documents, ascending; the file is read again."""
        wanted = {self.rows[document] for document in documents}
        out = [oracle.jsonl_text(line, self.field) for row, line in enumerate(read_lines(self.path)) if row in wanted]
        return [text for text in out if text is not None]


# ---------------------------------------------------------------------------------------------------------- judgement


def kept_rows(path: Path) -> list[int]:
    """Row numbers that a tool kept: one a line, or a JSON list; counted from 0 over the lines of the file."""
    try:
        text = path.read_text(encoding="ascii").strip()
        values = json.loads(text) if text.startswith("[") else [int(line) for line in text.split()]
    except (OSError, ValueError) as error:
        raise mistake(f"{path}: no list of row numbers, one a line ({error})") from None
    if not all(isinstance(value, int) and value >= 0 for value in values):
        raise mistake(f"{path}: row numbers are whole numbers from 0 on")
    return list(values)


def judge_kept(
    truth: Truth, kept: Iterable[int], threshold_ppm: int, shape: tuple[int, int] | None = None
) -> dict[str, Any]:
    """What can be said of any tool by the rows that it kept; see the head of this file.

    kept   physical rows
    shape  bands and rows, for what was promised; None: unknown
    """
    rows_there = set(kept)
    stays = np.array([row in rows_there for row in truth.rows])
    head = np.array(truth.head)
    members = np.bincount(head, weights=stays, minlength=len(truth)).astype(np.int64)  # kept rows of each class
    class_stays = members > 0
    later, earlier, similarity = truth.at(threshold_ppm)
    like_a_kept_one = np.zeros(len(truth), bool)
    like_a_kept_one[later[class_stays[earlier]]] = True
    like_a_kept_one[earlier[class_stays[later]]] = True
    partners = np.bincount(np.concatenate([later, earlier]), minlength=len(truth))
    copies = np.bincount(head, minlength=len(truth))
    gone = np.flatnonzero(~stays)
    has_text = truth.sizes[head] > 0
    lost = gone[~class_stays[head[gone]] & ~like_a_kept_one[head[gone]]]
    without_witness = lost[has_text[lost]]
    without_partner = without_witness[(partners[head[without_witness]] == 0) & (copies[head[without_witness]] == 1)]
    missed = class_stays[later] & class_stays[earlier]
    lone = (partners[later] == 1) & (partners[earlier] == 1)
    chance = None if shape is None else 1 - (1 - similarity ** shape[1]) ** shape[0]
    missed_exact = int((members[members > 1] - 1)[has_text[np.flatnonzero(members > 1)]].sum())
    missed_near = np.unique(later[missed])

    def share(mask: Any, of: Any) -> float | None:
        return round(1 - int((mask & of).sum()) / int(of.sum()), 6) if of.any() else None

    def mean(mask: Any) -> float | None:
        return round(float(chance[mask].mean()), 6) if chance is not None and mask.any() else None

    low = threshold_ppm / PPM
    edges = [low + (1 - low) * i / 10 for i in range(10)] + [1.0000001]
    table = []
    for left, right in itertools.pairwise(edges):
        here = (similarity >= left) & (similarity < right)
        table.append(
            {
                "from": round(left, 4), "to": round(min(right, 1.0), 4), "pairs": int(here.sum()),
                "found": share(missed, here), "lone": int((here & lone).sum()),
                "lone_found": share(missed, here & lone), "promised": mean(here),
            }
        )  # fmt: skip
    everything = np.ones(len(later), bool)
    return {
        "documents": len(truth),
        "text_bytes": truth.bytes,
        "exact_copies": int((copies[copies > 1] - 1).sum()),
        "true_pairs": len(later),
        "pairs_from_half": len(truth.later),
        "removed": len(gone),
        "without_witness": len(without_witness),
        "without_partner": len(without_partner),
        "removed_without_text": len(lost) - len(without_witness),
        "missed_removals": len(missed_near) + missed_exact,
        "missed_exact_copies": missed_exact,
        "recall": share(missed, everything) if len(later) else 1.0,
        "lone_pairs": int(lone.sum()),
        "lone_recall": share(missed, lone) if lone.any() else 1.0,
        "lone_promised": mean(lone),
        "by_similarity": table,
        "examples": {
            "without_witness": [truth.rows[document] for document in without_witness[:5]],
            "missed": [
                {"row": truth.rows[a], "like": truth.rows[b], "similarity": round(float(s), 5)}
                for a, b, s in zip(later[missed][:5], earlier[missed][:5], similarity[missed][:5], strict=True)
            ],
        },
    }


def judge(truth: Truth, removed: list[dict[str, Any]], threshold_ppm: int, bands: int, rows: int) -> dict[str, Any]:
    """`judge_kept` for a run of ours, and of its log: is each named witness a true one, are the counts the true ones?

    removed  rows of removed.parquet
    """
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
    stays = [row for document, row in enumerate(truth.rows) if document not in gone]
    said = judge_kept(truth, stays, threshold_ppm, (bands, rows))
    said["unfounded_removals"] = len(unfounded)
    said["wrong_counts"] = len(wrong_counts)
    said["examples"]["unfounded"] = [
        {k: entry[k] for k in ("row", "kept_row", "similarity", "reason")} for entry in unfounded[:5]
    ]
    said["examples"]["wrong_counts"] = [
        {k: entry[k] for k in ("row", "kept_row", "shared", "union", "reason")} for entry in wrong_counts[:5]
    ]
    return said


def our_run(truth: Truth, threshold: str, options: Sequence[str]) -> dict[str, Any]:
    """Run the command line over the file of a truth and judge what it did."""
    threshold_ppm = round(float(threshold) * PPM)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [
            sys.executable,
            "-m",
            "gpu_dedup",
            "run",
            str(truth.path.resolve()),
            "-o",
            str(out),
            "--threshold",
            threshold,
        ]
        command += ["--text-field", truth.field, "--shingle", f"token:{N}", "--max-removed", "1", "--quiet", *options]
        start = time.perf_counter()
        done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - start
        if done.returncode:
            raise mistake(done.stderr.strip().removeprefix("gpu-dedup: ") or f"gpu-dedup ended with {done.returncode}")
        report = json.loads((out / "_gpu_dedup" / "report.json").read_text())
        removed = pq.read_table(out / "_gpu_dedup" / "removed.parquet").to_pylist()
        kept = list(read_lines(out / truth.path.name))
    gone = {entry["row"] for entry in removed}
    lines = [line for i, line in enumerate(read_lines(truth.path)) if i not in gone and line.strip()]
    recipe = report["result"]["recipe"]
    return {
        "threshold": threshold,
        "bands": recipe["bands"],
        "rows": recipe["rows"],
        "sieve_cut": recipe["sieve_cut"],
        **judge(truth, removed, threshold_ppm, recipe["bands"], recipe["rows"]),
        "audit": report["result"]["audit"],
        "capped_buckets": report["result"]["collisions"]["capped"],
        "largest_bucket": report["result"]["collisions"]["largest"],
        "output_is_input_less_rows": kept == lines,
        "run_seconds": round(seconds, 2),
    }


# ------------------------------------------------------------------------------------------------------------ sketches


def recipe_of(threshold_ppm: int, options: Sequence[str]) -> Any:
    """The settled recipe of a run of this threshold with some options of `gpu-dedup run`."""
    import click

    from gpu_dedup import cli
    from gpu_dedup.errors import UserError
    from gpu_dedup.pipeline import settle

    try:
        context = cli.cli.commands["run"].make_context("run", ["FILE", "-o", "DIR", *options])
        recipe = settle(cli.make_recipe(context.params).with_(threshold_ppm=threshold_ppm, shingle=f"token:{N}"))
    except (click.ClickException, UserError) as error:
        raise mistake(str(error)) from None
    if recipe.method != "minhash":
        raise mistake(f"--method {recipe.method} has no sketches to judge; leave out the parts sketch and sets")
    return recipe


def signatures_of(texts: Sequence[str], recipe: Any, sizes: Sequence[int]) -> Any:
    """uint32[n, k] signatures by the package; its sets must be as large as the oracle's."""
    from gpu_dedup.backend import host_backend
    from gpu_dedup.batch import Tape
    from gpu_dedup.pipeline.survey import Sketcher

    sketcher = Sketcher.of(recipe, host_backend("numba"))
    out = [np.zeros((0, recipe.slots), np.uint32)]
    for first in range(0, len(texts), 512):
        tape = sketcher.normalise(Tape.of(texts[first : first + 512]))
        every = np.arange(len(tape), dtype=np.int64)
        _, offsets = sketcher.shingle_sets(tape, every)
        expected = np.asarray(sizes[first : first + 512])
        assert np.array_equal(np.diff(offsets), expected), "the package's shingle sets are not the oracle's"
        out.append(sketcher.sketch(tape, every).signatures)
    return np.concatenate(out)


def stretch(similarity: Any, equal: Any, recipe: Any) -> dict[str, Any]:
    """What sketches say of pairs, beside what theory says.

    similarity  float64[p] true Jaccard; equal  bool[p, k] which slots agree
    """
    from gpu_dedup import bands

    b, r, k = recipe.bands, recipe.rows, recipe.slots
    agree = equal.sum(axis=1)
    error = agree / k - similarity
    full = equal[:, : b * r].reshape(len(equal), b, r).all(axis=2)
    expected = similarity * (1 - similarity) / k
    cut = bands.cut_of(recipe)
    meets = full.any(axis=1)
    loss = {s: bands.sieve_loss(s, k, cut) for s in np.unique(np.round(similarity, 3)).tolist()}
    return {
        "pairs": len(similarity),
        "similarity": float(similarity.mean()),
        "bias": float(error.mean()),
        "bias_error": math.sqrt(float(expected.sum())) / len(error),  # one standard error, if pairs are independent
        "variance_ratio": float((error**2).mean() / expected.mean()) if expected.mean() > 0 else None,
        "band": float(full.mean()),
        "band_promised": float((similarity**r).mean()),
        "meets": float(meets.mean()),
        "meets_promised": float((1 - (1 - similarity**r) ** b).mean()),
        "sieve_loses": float((agree < cut).mean()),
        "sieve_promised": float(np.mean([loss[s] for s in np.round(similarity, 3).tolist()])),
        "lost_by_sieve": int((meets & (agree < cut)).sum()),
    }


def sketch_quality(
    truth: Truth, threshold_ppm: int, seeds: int = 1, step: float = 0.05, options: Sequence[str] = ()
) -> tuple[dict[str, Any], Any, Any]:
    """Estimate against truth over all pairs from 0.5 on. Results, similarities and estimates (of seed 0)."""
    recipe = recipe_of(threshold_ppm, options)
    documents = np.unique(np.concatenate([truth.later, truth.earlier]))
    texts, sizes = truth.texts(documents.tolist()), truth.sizes[documents].tolist()
    left, right = np.searchsorted(documents, truth.later), np.searchsorted(documents, truth.earlier)
    similarity = truth.shared / truth.union

    def equal_slots(seed: int) -> Any:
        made = signatures_of(texts, recipe.with_(seed=seed), sizes)
        out = np.empty((len(similarity), recipe.slots), bool)
        for first in range(0, len(similarity), 1 << 14):
            part = slice(first, first + (1 << 14))
            out[part] = made[left[part]] == made[right[part]]
        return out

    low = FLOOR[0] / FLOOR[1]
    count = round((1 - low) / step)
    place = np.minimum(((similarity - low) / step + 1e-9).astype(np.int64), count - 1)
    equal = equal_slots(0)
    estimate = equal.mean(axis=1)
    errors = [estimate - similarity] + [equal_slots(seed).mean(axis=1) - similarity for seed in range(1, seeds)]
    rows = []
    for i in range(count):
        here = place == i
        if not here.any():
            continue
        found = stretch(similarity[here], equal[here], recipe)
        means = [float(error[here].mean()) for error in errors]
        found["seeds"] = seeds
        found["bias_over_seeds"] = float(np.mean(means))
        found["bias_over_seeds_error"] = float(np.std(means, ddof=1) / math.sqrt(seeds)) if seeds > 1 else None
        rows.append({"from": round(low + i * step, 4), "to": round(low + (i + 1) * step, 4), **found})
    above = similarity >= threshold_ppm / PPM
    result = {
        "sketch": recipe.sketch, "slots": recipe.slots, "bands": recipe.bands, "rows": recipe.rows,
        "sieve_cut": recipe.sieve_cut,
        "all": stretch(similarity, equal, recipe) if len(similarity) else None,
        "at_threshold": stretch(similarity[above], equal[above], recipe) if above.any() else None,
        "by_similarity": rows,
    }  # fmt: skip
    return result, similarity, estimate


def made_sets(threshold_ppm: int, quick: bool, options: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Random sets of equal size n with an exact Jaccard, all independent: bias and variance of the estimate."""
    from gpu_dedup.kernels import fastsketch_cpu, minhash_cpu
    from gpu_dedup.sketches import numbers_of

    recipe = recipe_of(threshold_ppm, options)
    sketch = fastsketch_cpu.fastsketch if recipe.sketch == "fast" else minhash_cpu.minhash
    a, b = numbers_of(recipe)
    rng = np.random.default_rng(1)
    out = []
    for n in (20, 100, 1000) if quick else (20, 100, 1000, 5000, 20_000):
        pairs = max(50, min(20_000, 2_000_000 // n) // (10 if quick else 1))
        for wanted in (0.5, 0.8, 0.95):
            common_items = round(2 * n * wanted / (1 + wanted))
            union = 2 * n - common_items
            equal = np.empty((pairs, recipe.slots), bool)
            for first in range(0, pairs, 500):
                some = min(500, pairs - first)
                pool = rng.integers(0, 2**64, (some, union), dtype=np.uint64)
                both = np.stack([pool[:, :n], pool[:, union - n :]], axis=1).reshape(2 * some, n)
                offsets = np.arange(2 * some + 1, dtype=np.int64) * n
                made = sketch(np.ascontiguousarray(both.reshape(-1)), offsets, a, b)
                equal[first : first + some] = made[0::2] == made[1::2]
            found = stretch(np.full(pairs, common_items / union), equal, recipe)
            out.append({"items": n, **found})
    return out


# ------------------------------------------------------------------------------------------------------ the bucket cap


def family(kind: str, members: int, seed: int) -> list[str]:
    """A giant family of texts of 200 made-up words.

    edited    one text with 1 to 4 words exchanged for new ones in each member: two of five pairs are at or above 0.8
    template  a form of 170 words that all have and 30 words of a member's own: alike, but below 0.8; for each fifth
              member there is a copy with 1 to 5 words exchanged, which is at or above it
    """
    rng = random.Random(f"{kind} {seed}")
    letters = "abcdefghijklmnopqrstuvwxyz"

    def word() -> str:
        return "".join(rng.choice(letters) for _ in range(9))

    form = [word() for _ in range(200)]
    texts = []
    for member in range(members):
        words = list(form)
        if kind == "edited":
            for place in rng.sample(range(0, 200, 5), rng.randint(1, 4)):
                words[place] = word()
            texts.append(" ".join(words))
        else:
            start = rng.randrange(170)
            words[start : start + 30] = [word() for _ in range(30)]
            texts.append(" ".join(words))
            if member % 5 == 0:
                for place in rng.sample(range(0, 200, 5), rng.randint(1, 5)):
                    words[place] = word()
                texts.append(" ".join(words))
    rng.shuffle(texts)
    return texts


def cap_losses(threshold: str, members: int) -> list[dict[str, Any]]:
    """Missed removals in giant families, under the cap of the defaults and without one."""
    out = []
    for kind in ("edited", "template"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{kind}.jsonl"
            lines = [json.dumps({"id": str(i), "text": text}) for i, text in enumerate(family(kind, members, 1))]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            truth = Truth(path)
            row: dict[str, Any] = {"family": kind, "documents": len(truth)}
            for name, options in (("capped", ()), ("uncapped", ("--bucket-cap", str(10**9)))):
                said = our_run(truth, threshold, options)
                row["true_pairs"], row["lone_pairs"] = said["true_pairs"], said["lone_pairs"]
                row[name] = {
                    key: said[key]
                    for key in (
                        "removed", "missed_removals", "recall", "lone_recall", "lone_promised", "unfounded_removals",
                        "wrong_counts", "capped_buckets", "largest_bucket", "run_seconds",
                    )
                }  # fmt: skip
            out.append(row)
    return out


# ---------------------------------------------------------------------------------------------------- corpora and words


def benchmark_corpora() -> Any:
    """benchmarks/corpora.py; tests/ has a module of the same name."""
    name = "benchmark_corpora"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HERE / "corpora.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def make_corpus(kind: str, documents: int, seed: int, folder: Path) -> Path:
    """A file of so many documents of one kind, near-copies planted. Long texts are cut: the truth holds them all."""
    made = benchmark_corpora()
    near, exact = 0.1, 0.02
    needed = math.ceil(documents / (1 + 0.8 * (near + exact)))  # what is planted is drawn, so a little more than needed
    size = needed * MEAN_BYTES[kind]
    while True:
        base = made.base_texts(kind, size, seed)
        if len(base) >= needed:
            break
        size = round(size * max(1.2, 1.1 * needed / max(1, len(base))))
    texts = made.plant([text[:LONGEST] for text in base[:needed]], seed, near, exact).texts
    path = folder / f"{kind}.jsonl"
    made.write_texts(path, texts)
    return path


def stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".zst").removesuffix(".jsonl")


def figure(value: Any, form: str = "") -> str:
    return "-" if value is None else format(value, form)


def show_run(name: str, said: dict[str, Any], ours: bool) -> None:
    size = f"{said['documents']:,} documents, {said['text_bytes'] / 1e6:.1f} MB"
    print(f"\n{name}: {size}, {said['true_pairs']:,} true pairs")
    words = "removed", "without_witness", "without_partner", "missed_removals"
    print("    " + ", ".join(f"{word.replace('_', ' ')} {said[word]:,}" for word in words), end="")
    print(f", unfounded {said['unfounded_removals']}, wrong counts {said['wrong_counts']}" if ours else "")
    print(f"    recall {figure(said['recall'], '.5f')}; of {said['lone_pairs']:,} lone pairs", end="")
    print(f" {figure(said['lone_recall'], '.5f')}, promised {figure(said['lone_promised'], '.5f')}")
    print("    Jaccard          pairs    found     lone    found  promised")
    for row in said["by_similarity"]:
        found, lone, promised = (figure(row[key], "8.4f") for key in ("found", "lone_found", "promised"))
        where = f"{row['from']:.2f} - {row['to']:.2f}"
        print(f"    {where} {row['pairs']:>9,} {found:>8} {row['lone']:>8,} {lone:>8}  {promised:>8}")


def show_stretches(rows: Sequence[dict[str, Any]], first: str) -> None:
    over = "seeds" in rows[0]
    title = f"    {first:<14}   pairs     bias  (+-)  {' over seeds  (+-)' if over else ''}  var/J(1-J)k    band   s^r"
    print(f"{title}     meets  S-curve  sieve loses  promised")
    for row in rows:
        name = f"{row['from']:.2f} - {row['to']:.2f}" if "from" in row else f"{row['items']:,} {row['similarity']:.3f}"
        said = f"{row['pairs']:>8,} {row['bias']:>+8.4f} {row['bias_error']:.4f}"
        if over:
            said += f"   {row['bias_over_seeds']:>+8.4f} {figure(row['bias_over_seeds_error'], '.4f')}"
        said += f" {figure(row['variance_ratio'], '12.2f'):>12} {row['band']:>9.4f} {row['band_promised']:.4f}"
        said += f" {row['meets']:>8.4f} {row['meets_promised']:.4f}"
        print(f"    {name:<14}{said} {row['sieve_loses']:>10.5f}  {row['sieve_promised']:>10.5f}")


def wilson(share: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share of `count` independent cases."""
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)


def recall_plot(name: str, found: dict[str, Any], said: dict[str, Any] | None, threshold: float) -> Plot:
    """Share of pairs found, by true similarity, beside the S-curve."""
    b, r = found["bands"], found["rows"]
    plot = Plot(
        f"Pairs found by true similarity: {name}", "true Jaccard similarity (token:5)", "share of pairs", (0.5, 1.0),
        (0.0, 1.02), f"{b} x {r}; {found['all']['pairs']:,} pairs by brute force; bars: 95 %, as if independent",
    )  # fmt: skip
    plot.line([(s / 1000, 1 - (1 - (s / 1000) ** r) ** b) for s in range(500, 1001, 2)], "promised: 1 - (1 - s^r)^b")
    rows = found["by_similarity"]
    plot.dots(
        [(row["similarity"], row["meets"]) for row in rows],
        "meet in a band",
        [wilson(row["meets"], row["pairs"]) for row in rows],
    )
    if said is not None:
        done = [row for row in said["by_similarity"] if row["pairs"]]
        middle = [((row["from"] + row["to"]) / 2, row["found"]) for row in done]
        plot.dots(middle, "one of the two removed", [wilson(row["found"], row["pairs"]) for row in done])
    plot.mark(threshold, "threshold")
    return plot


def estimate_plot(name: str, slots: int, similarity: Any, estimate: Any, most: int = 4000) -> Plot:
    """MinHash estimate against true Jaccard, with the band that holds 95 % of the estimates."""
    plot = Plot(
        f"MinHash estimate against true Jaccard: {name}", "true Jaccard similarity (token:5)", "estimate", (0.5, 1.0),
        (0.3, 1.02), f"{slots} slots; {min(most, len(similarity)):,} of {len(similarity):,} pairs",
    )  # fmt: skip
    chosen = np.sort(np.random.default_rng(1).permutation(len(similarity))[:most])
    plot.dots(
        [(float(s), float(e)) for s, e in zip(similarity[chosen], estimate[chosen], strict=True)],
        "pairs", radius=1.3, faint=True,
    )  # fmt: skip
    grid = [s / 100 for s in range(50, 101)]
    plot.line([(s, s) for s in grid], "truth")
    spread = [1.96 * math.sqrt(s * (1 - s) / slots) for s in grid]
    plot.line([(s, s - d) for s, d in zip(grid, spread, strict=True)], "95 % by J (1 - J) / k", dashed=True)
    plot.line([(s, min(1.0, s + d)) for s, d in zip(grid, spread, strict=True)], "", dashed=True)
    return plot


# ---------------------------------------------------------------------------------------------------------------- main


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="JSON lines; none: corpora of this machine")
    parser.add_argument("--kinds", default=",".join(KINDS), help="corpora to make where no FILE is given")
    parser.add_argument("--documents", type=int, metavar="N", help="at least, of each  [default: 20000, --quick: 2000]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parts", default=",".join(PARTS), help="what to measure  [default: all]")
    parser.add_argument("--threshold", default="0.8")
    parser.add_argument("--text-field", default="text")
    parser.add_argument("--kept", type=Path, metavar="ROWS", help="row numbers that another tool kept of the one FILE")
    parser.add_argument("--name", help="of that tool")
    parser.add_argument("--members", type=int, metavar="N", help="of a giant family  [default: 2000, --quick: 500]")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write SVG there")
    parser.add_argument("--least", type=float, default=0.97, help="recall below which the exit status is 1")
    arguments = sys.argv[1:]
    options = arguments[arguments.index("--") + 1 :] if "--" in arguments else []  # of gpu-dedup run
    given = parser.parse_args(arguments[: len(arguments) - len(options) - 1] if "--" in arguments else arguments)
    parts, kinds = given.parts.split(","), given.kinds.split(",")
    for chosen, known, what in ((parts, PARTS, "--parts"), (kinds, KINDS, "--kinds")):
        if unknown := set(chosen) - set(known):
            raise mistake(f"{what} {sorted(unknown)[0]!r} is unknown; choose among {', '.join(known)}")
    try:
        threshold_ppm = round(float(given.threshold) * PPM)
    except ValueError:
        raise mistake(f"--threshold {given.threshold!r} is not a number such as 0.8") from None
    if threshold_ppm * FLOOR[1] < FLOOR[0] * PPM or threshold_ppm > PPM:
        raise mistake(f"--threshold {given.threshold}: the truth holds pairs from {FLOOR[0] / FLOOR[1]} to 1")
    for path in (*given.files, *([given.kept] if given.kept else [])):
        if not path.is_file():
            raise mistake(f"{path}: no such file")
    if given.kept is not None and (len(given.files) != 1 or options):
        raise mistake("--kept judges what one tool kept of one FILE; give that file, and no options of a run")
    documents = given.documents or (2000 if given.quick else 20_000)

    results: dict[str, Any] = {"threshold": given.threshold, "options": options, "corpora": {}}
    good = True
    print(common.header("all cores"))
    with tempfile.TemporaryDirectory() as temporary:
        wanted: list[Path | str] = list(given.files) or (kinds if {"run", "sketch"} & set(parts) else [])
        for entry in wanted:
            path = entry if isinstance(entry, Path) else make_corpus(entry, documents, given.seed, Path(temporary))
            start = time.perf_counter()
            truth = Truth(path, given.text_field)
            here: dict[str, Any] = {"file": path.name, "oracle_seconds": round(time.perf_counter() - start, 1)}
            results["corpora"][stem(path)] = here
            said = None
            if given.kept is not None:
                name = given.name or given.kept.name
                here[name] = judge_kept(truth, kept_rows(given.kept), threshold_ppm)
                show_run(f"{stem(path)} by {name}", here[name], ours=False)
                continue
            if "run" in parts:
                said = here["run"] = our_run(truth, given.threshold, options)
                show_run(stem(path), said, ours=True)
                sound = not said["unfounded_removals"] and not said["wrong_counts"] and not said["without_witness"]
                good = good and sound and said["output_is_input_less_rows"] and (said["recall"] or 0) >= given.least
            if "sketch" in parts and len(truth.later):
                found, similarity, estimate = sketch_quality(
                    truth, threshold_ppm, 3 if given.quick else 10, options=options
                )
                here["sketch"] = common.rounded(found, 6)
                print(f"  {found['sketch']} sketches of {found['slots']} slots, cut {found['sieve_cut']}")
                show_stretches(found["by_similarity"], "Jaccard")
                if given.plots:
                    threshold = threshold_ppm / PPM
                    recall_plot(stem(path), found, said, threshold).save(given.plots / f"recall-{stem(path)}.svg")
                    scatter = estimate_plot(stem(path), found["slots"], similarity, estimate)
                    scatter.save(given.plots / f"estimate-{stem(path)}.svg")
    if given.kept is None and "sets" in parts:
        rows = made_sets(threshold_ppm, given.quick, options)
        results["sets"] = common.rounded(rows, 6)
        print("\nmade sets, all pairs independent")
        show_stretches(rows, "items Jaccard")
    if given.kept is None and "cap" in parts:
        results["cap"] = cap_losses(given.threshold, given.members or (500 if given.quick else 2000))
        print("\ngiant families         with the cap: removed  missed  recall     without: removed  missed  recall")
        for row in results["cap"]:
            one, other = row["capped"], row["uncapped"]
            print(
                f"    {row['family']:<10}{row['documents']:>6,} {one['removed']:>20,} {one['missed_removals']:>7,} "
                f"{one['recall']:>8.5f} {other['removed']:>17,} {other['missed_removals']:>7,} {other['recall']:>8.5f}"
                f"   ({one['capped_buckets']:,} capped, largest {one['largest_bucket']:,})"
            )
            good = good and not (one["unfounded_removals"] or one["wrong_counts"] or other["unfounded_removals"])
    common.save(given.json, "quality", results)
    if given.kept is None:
        print("\nevery removal has its witness, recall as asked" if good else "\nNOT GOOD: see above")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
