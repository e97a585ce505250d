"""Text to SimHash, one core: each kind of weights, and, if asked for, beside the SimHash packages of PyPI.

    python benchmarks/bench_simhash.py [--megabytes 16] [--quick] [--json FILE]
    python benchmarks/bench_simhash.py --peers all [--peers-env DIR]     packages in environments of their own

Texts as in bench_sketch.py. NumPy and Numba must agree on a part of them before anything is timed; best of five runs.
`raw text` is what the packages are compared with: Python strings to fingerprints, the copy to one blob and the
normaliser (nfkc,lower,whitespace) included. Packages split at white space and join five words
(benchmarks/peers/simhash_packages.py); each runs on the first texts, in a process of its own, before and after a run of
ours on the same texts, and the ratio is that of the neighbours' best times. Where a package takes hashes, its
fingerprints of the same hashes must be ours, ties aside.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent))
import common
from bench_sketch import chinese, english
from common import best

from gpu_dedup.backend import COUNT, SET, TFIDF, host_backend
from gpu_dedup.batch import Tape
from gpu_dedup.kernels import shingle_cpu, simhash_cpu, simhash_ref, weights_cpu, weights_ref
from gpu_dedup.normalise import step_bits
from gpu_dedup.recipe import Recipe, ShingleSpec

NONE = np.zeros(0, np.uint64)
NO_IDF = np.zeros(0, np.uint32)
STEPS = step_bits(Recipe().steps)
TOP = 128
PACKAGES = {
    "python-simhash": "python-simhash",
    "simhash-pybind": "simhash-pybind",
    "simhash-pybind hash": "simhash-pybind",
    "simhash": "simhash",
}
PEER_BYTES = 1_000_000  # of text that a package gets, as the slowest takes 20 s for it


def check(tape: Tape, spec: ShingleSpec, idf: np.ndarray) -> None:
    """Numba equals NumPy on the first documents."""
    some = np.arange(min(len(tape), 30), dtype=np.int64)
    arguments = (tape.blob, tape.offsets, some, spec.unit_code, spec.n, NONE)
    for rule in ((SET, NO_IDF, 0), (COUNT, NO_IDF, 0), (TFIDF, idf, 0), (TFIDF, idf, TOP)):
        want = simhash_ref.fingerprints(*arguments, *rule)
        for left, right in zip(want, simhash_cpu.fingerprints(*arguments, *rule), strict=True):
            np.testing.assert_array_equal(left, right)
    want_cells, got_cells = weights_ref.cells(*arguments), weights_cpu.cells(*arguments)
    np.testing.assert_array_equal(np.sort(want_cells[0]), np.sort(got_cells[0]))
    assert want_cells[1] == got_cells[1]


def measure(kind: str, texts: list[str], specs: list[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    tape = Tape.of(texts)
    every = np.arange(len(tape), dtype=np.int64)
    for text in specs:
        spec = ShingleSpec.parse(text)
        arguments = (tape.blob, tape.offsets, every, spec.unit_code, spec.n, NONE)
        table = np.zeros(weights_ref.CELLS, np.uint32)
        cells, documents = weights_cpu.cells(*arguments)
        weights_cpu.add(table, cells)
        idf = weights_ref.idf(table, documents)
        check(tape, spec, idf)
        hashes, offsets, _ = shingle_cpu.shingle(*arguments)
        fingerprints = partial(simhash_cpu.fingerprints, *arguments)
        work = {
            f"shingle {spec}, for comparison": partial(shingle_cpu.shingle, *arguments),
            f"simhash {spec} set": partial(fingerprints, SET, NO_IDF, 0),
            f"simhash {spec} count": partial(fingerprints, COUNT, NO_IDF, 0),
            f"simhash {spec} tfidf": partial(fingerprints, TFIDF, idf, 0),
            f"simhash {spec} tfidf, {TOP} terms": partial(fingerprints, TFIDF, idf, TOP),
            f"frequencies {spec}: cells": partial(weights_cpu.cells, *arguments),
            f"frequencies {spec}: adding": partial(weights_cpu.add, table, cells),
            f"sums of hashes in memory {spec}": partial(simhash_cpu.simhash, hashes, offsets),
        }
        for operation, function in work.items():
            seconds, _ = best(function)
            row = {"text": kind, "operation": operation, "seconds": seconds, "MB/s": tape.nbytes / seconds / 1e6}
            rows.append({**row, "M shingles/s": len(hashes) / seconds / 1e6})
    return rows


def from_strings(texts: list[str], rule: int) -> np.ndarray:
    """Python strings to fingerprints of token:5, as a user of a package would have it."""
    backend = host_backend("numba")
    tape = backend.normalise(Tape.of(texts), STEPS)
    every = np.arange(len(tape), dtype=np.int64)
    return backend.fingerprints(tape, every, 0, 5, NONE, rule, NO_IDF, 0).values


def run_package(python: Path, variant: str, folder: Path, repeat: int) -> dict[str, Any]:
    out = folder / "out.json"
    driver = Path(__file__).resolve().parent / "peers" / "simhash_packages.py"
    arguments = [variant, folder / "texts.jsonl", out, "--repeat", repeat, "--hashes", folder / "hashes.json"]
    done = subprocess.run([python, driver, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        import compare

        raise compare.PeerError(compare.last_line(done.stderr))
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def beside_packages(
    kind: str, texts: list[str], names: list[str], root: Path | None, repeat: int
) -> list[dict[str, Any]]:
    """Times of packages and of ours on the first texts, and how many times as long a package takes."""
    import compare

    root = root or compare.default_environments()
    size, count = 0, 0
    while count < len(texts) and size < PEER_BYTES:
        size += len(texts[count].encode())
        count += 1
    some = texts[:count]
    rng = np.random.default_rng(3)
    lists = [rng.integers(0, 2**64, length, dtype=np.uint64, endpoint=False) for length in (1, 3, 51, 999)]  # no ties
    ours_of_hashes = [int(simhash_ref.simhash(one, np.array([0, len(one)]))[0]) for one in lists]
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "texts.jsonl").write_text("".join(json.dumps(text) + "\n" for text in some))
        (folder / "hashes.json").write_text(json.dumps([one.tolist() for one in lists]))
        for name in names:
            row: dict[str, Any] = {"text": kind, "package": name}
            try:
                python, versions = compare.install(compare.Peer(name, (PACKAGES[name],), "simhash_packages"), root)
                row["version"] = versions[PACKAGES[name]]
                before = {rule: best(partial(from_strings, some, rule))[0] for rule in (SET, COUNT)}
                found = run_package(python, name, folder, repeat)
                after = {rule: best(partial(from_strings, some, rule))[0] for rule in (SET, COUNT)}
            except compare.PeerError as error:
                row["reason"] = str(error)
                rows.append(row)
                continue
            if found["check"] is not None:
                assert found["check"] == ours_of_hashes, f"{name} has other fingerprints of the same hashes"
            assert len(set(found["fingerprints"])) == count, f"{name} has one fingerprint for different texts"
            seconds = min(found["seconds"])
            row |= {"seconds": seconds, "MB/s": size / seconds / 1e6}
            for word, rule in (("set", SET), ("count", COUNT)):
                ours = min(before[rule], after[rule])
                row |= {f"ours {word} MB/s": size / ours / 1e6, f"times ours {word}": seconds / ours}
            rows.append(row)
    return rows


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--megabytes", type=float, help="of text in each language  [default: 16, --quick: 1]")
    parser.add_argument("--peers", default="none", help=f"all, none, or some of {', '.join(PACKAGES)}")
    parser.add_argument("--peers-env", type=Path, help="folder for their environments  [default: as compare.py]")
    options = parser.parse_args()
    names = {"all": list(PACKAGES), "none": []}.get(options.peers, options.peers.split(","))
    if unknown := [name for name in names if name not in PACKAGES]:
        parser.error(f"--peers {unknown[0]!r} is none of all, none, {', '.join(PACKAGES)}")
    megabytes = options.megabytes or (1 if options.quick else 16)
    rng = np.random.default_rng(1)
    print(common.header())
    rows: list[dict[str, Any]] = []
    packages: list[dict[str, Any]] = []
    for kind, make, specs in (("english", english, ["token:5", "char:8"]), ("chinese", chinese, ["token:5"])):
        texts = make(rng, round(megabytes * 1_000_000))
        print(f"\n{kind}: {len(texts):,} texts" + " " * 30 + "MB/s   M shingles/s")
        for row in measure(kind, texts, specs):
            print(f"    {row['operation']:<38}{row['MB/s']:12.0f}{row['M shingles/s']:12.0f}")
            rows.append(row)
        for rule, word in ((SET, "set"), (COUNT, "count")):
            seconds, _ = best(partial(from_strings, texts, rule))
            size = sum(len(text.encode()) for text in texts)
            row = {"text": kind, "operation": f"raw text token:5 {word}", "seconds": seconds}
            rows.append({**row, "MB/s": size / seconds / 1e6, "M shingles/s": None})
            print(f"    {rows[-1]['operation']:<38}{rows[-1]['MB/s']:12.0f}")
        # Of Chinese a package that splits at white space makes one feature a text.
        if kind == "english" and names:
            packages = beside_packages(kind, texts, names, options.peers_env, 3)
    if packages:
        print("\nraw English, 5 words: package           MB/s   ours: set, count    package takes longer: set, count")
        for row in packages:
            if "reason" in row:
                print(f"    {row['package']:<30}{row['reason']}")
                continue
            ours = f"{row['ours set MB/s']:12.0f}{row['ours count MB/s']:8.0f}"
            longer = f"{row['times ours set']:14.1f}{row['times ours count']:8.1f}"
            print(f"    {row['package'] + ' ' + row['version']:<30}{row['MB/s']:10.1f}{ours}{longer}")
    results = {"megabytes": megabytes, "rows": common.rounded(rows), "packages": common.rounded(packages)}
    common.save(options.json, "simhash", results)


if __name__ == "__main__":
    main()
