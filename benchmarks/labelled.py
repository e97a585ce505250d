"""Labelled sets that you have: the metrics that others published for theirs, and strict ones beside them.

    python benchmarks/labelled.py PATH [--pairs FILE] [--text-field text] [--id-field id] [--json OUT] [-- RUN OPTIONS]
    python benchmarks/labelled.py PATH --search          try shingles, thresholds and rules of clusters

PATH is a file or a folder of files: JSON, JSON lines (.gz, .zst), CSV, TSV or Parquet. Nothing is downloaded. What it
holds is told by its fields:

core      core_id, processed_title, processed_abstract, labelled_duplicates (or duplicates): the CORE 2020 set of
          scholarly documents (Gyawali, Anastasiou, Knoth, LREC 2020). Text: title, blank, abstract.
clusters  cluster, and a text in article or in --text-field: NEWS-COPY (Silcock et al., ICLR 2023) as it is passed on
          with one cluster number a row. Words parted at the end of a line are joined.
pairs     any texts with ids, and --pairs FILE: id_a, id_b[, label] (CSV, TSV, JSON lines, or a JSON list of lists, as
          NEWS-COPY's own files are). Without labels the listed pairs are the duplicates and all others are not; with
          labels (1/0, true/false, yes/no) only the listed pairs are judged one by one.

Published metrics (CORE), for each row with its labelled duplicates T and its predicted ones P, both without itself:
    TP  T and P are not empty and T is part of P      FP  P is not empty, but T is empty or not part of it
    FN  P is empty, T is not                          TN  both are empty
    precision and recall of duplicates from these, of non-duplicates with the roles turned round; `macro_precision` is
    their mean precision (printed as "Macro F1" by the tool whose tables these are); accuracy = share of rows with
    T = P; mean_recall = mean of |T and P| / |T|, 1 where T is empty.
Published metric (clusters): adjusted Rand index (Hubert, Arabie 1985) of the predicted and the labelled partition.
Strict: every unordered pair of rows in one predicted cluster is a prediction; precision, recall and F1 over pairs.
Sets of labelled pairs that do not form clusters are closed over links for the Rand index only.

A search could pick what fits the labels by chance. So --search chooses on half of the rows (whole labelled groups go to
one half), and prints the other half's numbers beside it; compare those with what others published.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent, HERE):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
import common  # noqa: E402

# What others wrote down for these sets, to be read beside ours: (who, metrics). Not measured here.
PUBLISHED: dict[str, list[tuple[str, dict[str, float]]]] = {
    "core": [
        ("text-dedup MinHash (README, 2026)", {
            "precision_duplicates": 0.9587, "recall_duplicates": 0.9416, "precision_non_duplicates": 0.9450,
            "recall_non_duplicates": 0.9611, "macro_precision": 0.9518, "accuracy": 0.9277,
        }),
        ("gaoya MinHash (its notebook)", {"mean_recall": 0.9623, "accuracy": 0.9381}),
        ("RETSim partial-dup (arXiv:2311.17264)", {
            "precision_duplicates": 0.945, "recall_duplicates": 0.941, "precision_non_duplicates": 0.945,
            "recall_non_duplicates": 0.949, "macro_precision": 0.945, "accuracy": 0.928,
        }),
    ],
    "clusters": [
        ("text-dedup MinHash (README, 2026)", {"ari": 0.7293}),
        ("MinHash in RETSim (arXiv:2311.17264)", {"ari": 0.783}),
        ("NEWS-COPY re-ranking, supervised (arXiv:2210.04261)", {"ari": 0.937}),
    ],
}  # fmt: skip
# Options of a run without --search and without options of the user: those of the published lexical runs, true
# similarity aside.
DEFAULTS = {
    "core": ["--shingle", "token:2", "--threshold", "0.5", "--cluster", "connected"],
    "clusters": ["--shingle", "token:2", "--threshold", "0.45", "--cluster", "connected"],
    "pairs": [],
}
SHINGLES = ("token:1", "token:2", "token:3", "char:3", "char:4", "char:5", "char:8")
THRESHOLDS = ("0.3", "0.35", "0.4", "0.45", "0.5", "0.55", "0.6", "0.65", "0.7", "0.8")
CLUSTERS = ("connected", "representative")
SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
YES, NO = {"1", "true", "yes", "1.0", "duplicate", "dup"}, {"0", "false", "no", "0.0", "non-duplicate", "non_dup"}

Row = dict[str, Any]


def mistake(message: str) -> SystemExit:
    """The end of the program with one line about a mistake of the user."""
    print(f"labelled.py: {message}", file=sys.stderr)
    return SystemExit(2)


# ------------------------------------------------------------------------------------------------------------- reading


def kind_of(path: Path) -> str | None:
    """The suffix of a file without its compression; None for what is not read here."""
    name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)


def read_text(path: Path) -> str:
    """The text of a file, decompressed."""
    try:
        if path.suffix == ".gz":
            data = gzip.decompress(path.read_bytes())
        elif path.suffix == ".zst":
            import pyarrow as pa

            data = pa.CompressedInputStream(pa.BufferReader(path.read_bytes()), "zstd").read()
        else:
            data = path.read_bytes()
        return data.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise mistake(f"{path}: cannot be read as text ({error})") from None


def table_rows(text: str, delimiter: str) -> list[Row]:
    csv.field_size_limit(1 << 30)
    return [dict(row) for row in csv.DictReader(text.splitlines(keepends=True), delimiter=delimiter)]


def json_rows(path: Path, text: str) -> list[Any]:
    """Records of a JSON list, of an object of objects (the key becomes `id`), of columns, or of JSON lines."""
    start = text.lstrip()[:1]
    lines = [line for line in text.split("\n") if line.strip()]
    if kind_of(path) != ".json" or (start == "{" and len(lines) > 1 and _is_json(lines[0])):
        out = []
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    out.append(json.loads(line))
                except ValueError as error:
                    raise mistake(f"{path}:{number}: no JSON ({error})") from None
        return out
    try:
        values = json.loads(text)
    except ValueError as error:
        raise mistake(f"{path}: no JSON ({error})") from None
    if isinstance(values, dict) and values and all(isinstance(value, dict) for value in values.values()):
        return [{"id": key, **value} for key, value in values.items()]
    if isinstance(values, list):
        return values
    raise mistake(f"{path}: neither a list of records nor an object of records by id")


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def read_rows(path: Path) -> list[Any]:
    """All records of a file or, in the order of their names, of the files of a folder."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and kind_of(file) is not None)
        if not files:
            raise mistake(f"{path}: no file here ends in {', '.join(SUFFIXES)} (.gz, .zst)")
        return [row for file in files for row in read_rows(file)]
    if not path.is_file():
        raise mistake(f"{path}: no such file or folder")
    kind = kind_of(path)
    if kind is None:
        raise mistake(f"{path}: give a file that ends in {', '.join(SUFFIXES)} (.gz, .zst)")
    if kind == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            rows: list[Any] = pq.read_table(path).to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise mistake(f"{path}: no Parquet ({str(error).splitlines()[0]})") from None
        return rows
    text = read_text(path)
    if kind in (".csv", ".tsv"):
        return table_rows(text, "," if kind == ".csv" else "\t")
    return json_rows(path, text)


def id_set(value: Any) -> set[str]:
    """Ids of a field: a list, or in CSV its text, however it was written (JSON, Python, NumPy, blanks, commas). Ids in
    such a text hold no blank, comma, bracket or quotation mark."""
    if value is None:
        return set()
    if isinstance(value, str):
        return set(re.findall(r"[^\s,;'\"\[\](){}]+", value))
    return {str(entry) for entry in ([value] if isinstance(value, int) else value)}


@dataclass
class Labelled:
    """Texts with what is known of them.

    kind    core | clusters | pairs
    ids     one a text
    sets    core: labelled duplicates of each text, as ids
    groups  one number a text: labelled clusters, or the labelled duplicates closed over links
    pairs   positions of labelled duplicates, each once, lower first; None where whole clusters are labelled
    not_pairs  positions of pairs that are labelled as no duplicates; None: all that are not in `pairs`
    """

    kind: str
    ids: list[str]
    texts: list[str]
    sets: list[set[str]] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    pairs: set[tuple[int, int]] | None = None
    not_pairs: set[tuple[int, int]] | None = None
    absent: int = 0  # labelled ids without a text
    repeated: int = 0  # ids that more than one text has


def components(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """Lowest member of each one's component."""
    parent = list(range(count))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for a, b in edges:
        a, b = root(a), root(b)
        parent[max(a, b)] = min(a, b)
    return [root(i) for i in range(count)]


def load(path: Path, pairs: Path | None, text_field: str | None, id_field: str) -> Labelled:
    """Read a labelled set. Ends the program with one line where PATH holds no such thing."""
    rows = read_rows(path)
    if not rows:
        raise mistake(f"{path}: holds no record")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise mistake(f"{path}: record {number} is a {type(row).__name__}, not an object with fields")
    names = set(rows[0])
    if pairs is not None:
        return _load_pairs(path, rows, pairs, text_field, id_field)
    if "core_id" in names:
        return _load_core(path, rows)
    if "cluster" in names:
        return _load_clusters(path, rows, text_field, id_field)
    raise mistake(
        f"{path}: fields {', '.join(sorted(map(str, names))[:12])} are neither CORE's (core_id, processed_title, "
        "processed_abstract, labelled_duplicates) nor NEWS-COPY's (article, cluster); for other texts give --pairs FILE"
    )


def _text(path: Path, number: int, row: Row, name: str) -> str:
    value = row.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise mistake(f"{path}: record {number}: field {name!r} is a {type(value).__name__}, not a text")
    return value


def _has_field(path: Path, rows: Sequence[Row], *names: str) -> str:
    found = next((name for name in names if name in rows[0]), None)
    if found is None:
        raise mistake(f"{path}: no field {' or '.join(map(repr, names))} in the first record")
    return found


def _load_core(path: Path, rows: Sequence[Row]) -> Labelled:
    title = _has_field(path, rows, "processed_title")
    abstract = _has_field(path, rows, "processed_abstract")
    label = _has_field(path, rows, "labelled_duplicates", "duplicates")
    ids = [str(row.get("core_id")) for row in rows]
    texts = [f"{_text(path, i, row, title)} {_text(path, i, row, abstract)}" for i, row in enumerate(rows)]
    out = Labelled("core", ids, texts, [id_set(row.get(label)) for row in rows])
    place: dict[str, int] = {}
    for i, name in enumerate(ids):
        place.setdefault(name, i)
    out.repeated = len(ids) - len(place)
    out.pairs = set()
    missing = set()
    for i, names in enumerate(out.sets):
        for name in names:
            if name not in place:
                missing.add(name)
            elif place[name] != i:
                out.pairs.add((min(i, place[name]), max(i, place[name])))
    out.absent = len(missing)
    out.groups = components(len(ids), out.pairs)
    return out


def joined(text: str) -> str:
    """Words that were parted at the end of a line become whole; other line ends become blanks."""
    return text.replace("-\n", "").replace("\n", " ")


def _load_clusters(path: Path, rows: Sequence[Row], text_field: str | None, id_field: str) -> Labelled:
    name = _has_field(path, rows, *([text_field] if text_field else ["article", "text"]))
    number: dict[str, int] = {}
    groups = []
    for i, row in enumerate(rows):
        if row.get("cluster") is None or row["cluster"] == "":
            raise mistake(f"{path}: record {i} has no cluster")
        groups.append(number.setdefault(str(row["cluster"]), len(number)))
    ids = [str(row.get(id_field, i)) for i, row in enumerate(rows)]
    return Labelled("clusters", ids, [joined(_text(path, i, row, name)) for i, row in enumerate(rows)], groups=groups)


def read_pairs(path: Path) -> list[tuple[str, str, bool | None]]:
    """id_a, id_b and label of each pair; the label is None where the file has none."""
    rows = read_rows(path)
    out: list[tuple[str, str, bool | None]] = []
    for number, row in enumerate(rows):
        values = list(row.values()) if isinstance(row, dict) else row
        if not isinstance(values, list) or len(values) not in (2, 3) or any(value is None for value in values):
            raise mistake(f"{path}: record {number}: a pair is id_a, id_b[, label], not {str(row)[:60]}")
        label: bool | None = None
        if len(values) == 3:
            word = str(values[2]).strip().lower()
            if word not in YES | NO:
                raise mistake(f"{path}: record {number}: label {values[2]!r} is neither 1 nor 0")
            label = word in YES
        out.append((str(values[0]), str(values[1]), label))
    if not out:
        raise mistake(f"{path}: holds no pair")
    if len({label is None for _, _, label in out}) == 2:
        raise mistake(f"{path}: some pairs have a label and some have none")
    return out


def _load_pairs(path: Path, rows: Sequence[Row], pairs: Path, text_field: str | None, id_field: str) -> Labelled:
    name = _has_field(path, rows, *([text_field] if text_field else ["text", "article"]))
    _has_field(path, rows, id_field)
    ids = [str(row.get(id_field)) for row in rows]
    place = {one: i for i, one in enumerate(ids)}
    if len(place) < len(ids):
        twice = next(one for one, count in Counter(ids).items() if count > 1)
        raise mistake(f"{path}: id {twice!r} is there twice, so pairs cannot be told apart; name another --id-field")
    out = Labelled("pairs", ids, [joined(_text(path, i, row, name)) for i, row in enumerate(rows)])
    good: set[tuple[int, int]] = set()
    bad: set[tuple[int, int]] = set()
    missing = set()
    labelled = False
    for left, right, label in read_pairs(pairs):
        missing |= {one for one in (left, right) if one not in place}
        labelled = labelled or label is not None
        if left in place and right in place and left != right:
            a, b = sorted((place[left], place[right]))
            (bad if label is False else good).add((a, b))
    if not good and not bad:
        raise mistake(f"{pairs}: none of its ids is in the field {id_field!r} of {path}")
    if good & bad:
        a, b = min(good & bad)
        raise mistake(f"{pairs}: {ids[a]} and {ids[b]} are labelled both as duplicates and as none")
    out.absent = len(missing)
    out.pairs, out.not_pairs = good, (bad if labelled else None)
    out.groups = components(len(ids), good)
    return out


# ------------------------------------------------------------------------------------------------------------- metrics


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def set_metrics(truth: Sequence[set[str]], predicted: Sequence[set[str]]) -> dict[str, Any]:
    """The published metrics of CORE; see the head of this file. A ratio without cases is 0."""
    counts: Counter[str] = Counter()
    equal = 0
    recall = 0.0
    for t, p in zip(truth, predicted, strict=True):
        if not p:
            counts["TN" if not t else "FN"] += 1
        else:
            counts["TP" if t and t <= p else "FP"] += 1
        equal += t == p
        recall += len(t & p) / len(t) if t else 1.0
    tp, fp, fn, tn = (counts[name] for name in ("TP", "FP", "FN", "TN"))
    precision, non_precision = _ratio(tp, tp + fp), _ratio(tn, tn + fn)
    return {
        "precision_duplicates": precision,
        "recall_duplicates": _ratio(tp, tp + fn),
        "precision_non_duplicates": non_precision,
        "recall_non_duplicates": _ratio(tn, tn + fp),
        "macro_precision": (precision + non_precision) / 2,
        "accuracy": _ratio(equal, len(truth)),
        "mean_recall": _ratio(recall, len(truth)),
        "counts": {"TP": tp, "FP": fp, "FN": fn, "TN": tn},
    }


def _couples(counts: Iterable[int]) -> int:
    return sum(count * (count - 1) // 2 for count in counts)


def adjusted_rand(one: Sequence[int], other: Sequence[int]) -> float:
    """Adjusted Rand index of two partitions; 1 for equal ones, also where both are trivial."""
    both = _couples(Counter(zip(one, other, strict=True)).values())
    left, right, every = _couples(Counter(one).values()), _couples(Counter(other).values()), _couples([len(one)])
    # (both - left right / every) / ((left + right) / 2 - left right / every), in whole numbers
    below = (left + right) * every - 2 * left * right
    return 1.0 if below == 0 else 2 * (both * every - left * right) / below


def _strict(tp: int, predicted: int, true: int) -> dict[str, Any]:
    precision, recall = _ratio(tp, predicted), _ratio(tp, true)
    return {
        "precision": precision, "recall": recall, "f1": _ratio(2 * precision * recall, precision + recall),
        "shared_pairs": tp, "predicted_pairs": predicted, "true_pairs": true,
    }  # fmt: skip


def evaluate(data: Labelled, cluster: Sequence[int], among: Sequence[int] | None = None) -> dict[str, Any]:
    """All metrics of a predicted partition, over all texts or those at the positions `among`."""
    chosen = range(len(data.ids)) if among is None else among
    inside = set(chosen)
    out: dict[str, Any] = {"texts": len(chosen)}
    if data.kind == "core":
        members: dict[int, set[str]] = {}
        for i, label in enumerate(cluster):
            members.setdefault(label, set()).add(data.ids[i])
        predicted = [members[cluster[i]] - {data.ids[i]} for i in chosen]
        out["published"] = set_metrics([data.sets[i] for i in chosen], predicted)
    labels, truth = [cluster[i] for i in chosen], [data.groups[i] for i in chosen]
    out["ari"] = adjusted_rand(truth, labels)
    if data.pairs is None:
        same = _couples(Counter(zip(truth, labels, strict=True)).values())
        strict = _strict(same, _couples(Counter(labels).values()), _couples(Counter(truth).values()))
    else:
        good = [pair for pair in data.pairs if pair[0] in inside and pair[1] in inside]
        tp = sum(cluster[a] == cluster[b] for a, b in good)
        if data.not_pairs is None:
            strict = _strict(tp, _couples(Counter(labels).values()), len(good))
        else:
            wrong = sum(cluster[a] == cluster[b] for a, b in data.not_pairs if a in inside and b in inside)
            strict = _strict(tp, tp + wrong, len(good))
    out["pairwise"] = strict
    return out


def goal(kind: str, metrics: dict[str, Any]) -> float:
    """What a search makes as large as it can."""
    if kind == "core":
        return float(metrics["published"]["accuracy"])
    return float(metrics["ari"] if kind == "clusters" else metrics["pairwise"]["f1"])


def halves(data: Labelled) -> tuple[list[int], list[int]]:
    """Positions of two halves; a labelled group is in one of them whole, by a hash of its first id."""
    first: dict[int, str] = {}
    for i, group in enumerate(data.groups):
        first.setdefault(group, data.ids[i])
    side = {group: hashlib.sha256(name.encode()).digest()[0] & 1 for group, name in first.items()}
    parts: tuple[list[int], list[int]] = ([], [])
    for i, group in enumerate(data.groups):
        parts[side[group]].append(i)
    return parts


# ------------------------------------------------------------------------------------------------------------- running


def write_texts(data: Labelled, path: Path) -> Path:
    with open(path, "w", encoding="ascii", newline="\n") as file:
        for i, text in enumerate(data.texts):
            file.write(json.dumps({"id": i, "text": text}) + "\n")
    return path


def predict(path: Path, count: int, options: Sequence[str]) -> tuple[list[int], float, dict[str, Any]]:
    """Cluster of each text by a run of the command line, its seconds, and its recipe."""
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "gpu_dedup", "run", str(path), "-o", str(out), "--quiet"]
        command += ["--max-removed", "1", *options]
        start = time.perf_counter()
        done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - start
        if done.returncode:
            raise mistake(done.stderr.strip().removeprefix("gpu-dedup: ") or f"gpu-dedup ended with {done.returncode}")
        removed = pq.read_table(out / "_gpu_dedup" / "removed.parquet", columns=["row", "kept_row"]).to_pylist()
        recipe = json.loads((out / "_gpu_dedup" / "report.json").read_text())["result"]["recipe"]
    cluster = list(range(count))
    edges = [(entry["row"], entry["kept_row"]) for entry in removed if entry["kept_row"] is not None]
    if recipe["keep"] == "none":
        return components(count, edges), seconds, recipe
    for row, kept in edges:
        cluster[row] = kept
    return cluster, seconds, recipe


def search(
    data: Labelled, path: Path, options: Sequence[str], quick: bool
) -> tuple[list[str], list[dict[str, Any]], dict[str, Any]]:
    """Options that do best on one half, every try, and the numbers of both halves for the best."""
    one, other = halves(data)
    if not one or not other:
        raise mistake("a search needs at least two labelled groups, one for each half")
    best: tuple[float, list[str], list[int]] | None = None
    tries = []
    grid = itertools.product(SHINGLES[1::3] if quick else SHINGLES, THRESHOLDS[2::4] if quick else THRESHOLDS, CLUSTERS)
    for shingle, threshold, rule in grid:
        chosen = ["--shingle", shingle, "--threshold", threshold, "--cluster", rule, *options]
        cluster, seconds, _ = predict(path, len(data.ids), chosen)
        value = goal(data.kind, evaluate(data, cluster, one))
        tries.append({"options": chosen, "goal": value, "seconds": round(seconds, 2)})
        print(f"    {value:.4f}  {' '.join(chosen)}", flush=True)
        if best is None or value > best[0]:
            best = value, chosen, cluster
    assert best is not None
    both = {"chosen_on": evaluate(data, best[2], one), "held_back": evaluate(data, best[2], other)}
    return best[1], tries, both


# --------------------------------------------------------------------------------------------------------------- words


def flat(metrics: dict[str, Any]) -> dict[str, float]:
    """Name and value of what is printed."""
    out = {k: v for k, v in metrics.get("published", {}).items() if k != "counts"}
    out["ari"] = metrics["ari"]
    out.update({f"pairwise_{name}": metrics["pairwise"][name] for name in ("precision", "recall", "f1")})
    return out


def table(columns: dict[str, dict[str, float]]) -> Iterator[str]:
    """Metrics below one another, one column for each source."""
    names = list(dict.fromkeys(name for values in columns.values() for name in values))
    for number, title in enumerate(columns):
        yield f"    [{number + 1}] {title}"
    yield "    " + " " * 26 + "".join(f"{f'[{number + 1}]':>9}" for number in range(len(columns)))
    for name in names:
        cells = "".join(f"{values[name]:>9.4f}" if name in values else f"{'-':>9}" for values in columns.values())
        yield f"    {name:<26}{cells}"


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("path", type=Path, metavar="PATH")
    parser.add_argument("--pairs", type=Path, metavar="FILE", help="id_a, id_b[, label] of labelled pairs")
    parser.add_argument("--text-field", metavar="FIELD", help="[default: text or article]")
    parser.add_argument("--id-field", default="id", metavar="FIELD")
    parser.add_argument("--search", action="store_true", help="choose shingle, threshold and cluster rule on one half")
    arguments = sys.argv[1:]
    options = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    given = parser.parse_args(arguments[: arguments.index("--")] if "--" in arguments else arguments)

    data = load(given.path, given.pairs, given.text_field, given.id_field)
    true = len(data.pairs) if data.pairs is not None else _couples(Counter(data.groups).values())
    print(common.header("all cores"))
    print(f"{given.path.name}: {data.kind}, {len(data.ids):,} texts, {true:,} labelled pairs of duplicates", end="")
    print(f", {data.absent:,} labelled ids without a text" if data.absent else "", end="")
    print(f", {data.repeated:,} ids that were there before" if data.repeated else "")
    results: dict[str, Any] = {
        "file": given.path.name, "kind": data.kind, "texts": len(data.ids), "true_pairs": true,
        "absent_ids": data.absent, "repeated_ids": data.repeated,
    }  # fmt: skip
    columns: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = write_texts(data, Path(folder) / "texts.jsonl")
        chosen = options or DEFAULTS[data.kind]
        if given.search:
            chosen, results["tries"], both = search(data, path, options, given.quick)
            results["halves"] = both
            columns["the half that the search looked at"] = flat(both["chosen_on"])
            columns["the half that it did not look at"] = flat(both["held_back"])
        cluster, seconds, recipe = predict(path, len(data.ids), chosen)
    metrics = evaluate(data, cluster)
    results.update(options=chosen, recipe=recipe, seconds=round(seconds, 2), **metrics)
    results["published_by_others"] = [{"who": who, **values} for who, values in PUBLISHED.get(data.kind, [])]
    columns = {f"all texts, {' '.join(chosen) or 'defaults'}, {seconds:.1f} s": flat(metrics), **columns}
    columns.update({f"{who}: as published": values for who, values in PUBLISHED.get(data.kind, [])})
    print("\n".join(table(columns)))
    common.save(given.json, "labelled", common.rounded(results, 6))
    return 0


if __name__ == "__main__":
    sys.exit(main())
