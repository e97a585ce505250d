"""Fingerprints that are near: the join in fingerprints/s by size and distance, and what a distance finds beside theory.

    python benchmarks/bench_hamming.py [--sizes 100000,1000000] [--megabytes 8] [--plots DIR] [--quick] [--json FILE]

Speed: random fingerprints, of which a tenth are 0 to 10 bits from another one; one core each; the best of three runs.
The answer of the join is first held against all pairs by brute force, on every backend of the CPU.

Quality: English of this machine with edited copies at every similarity. All pairs are compared by brute force: bits
that differ, and true Jaccard of the shingle sets. For each distance: pairs that it finds, how many of them are no near
copies (Jaccard under 0.8), and how many of the near copies it finds; beside each the sum of `hamming.chance_within`
over the pairs' true similarities and sizes, which is what theory expects. Pairs are not independent of each other
where they share a text, so the spread is larger than that of a coin.
"""

from __future__ import annotations

import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent))
import common
import corpora
from plots import Plot

from gpu_dedup import hamming
from gpu_dedup.backend import SET, Backend, host_backend
from gpu_dedup.batch import Tape
from gpu_dedup.normalise import step_bits
from gpu_dedup.recipe import PPM, UNITS

DISTANCES = tuple(range(3, 9))
THRESHOLD = 800_000
COPIES = 3  # edited copies of each text
NONE = np.zeros(0, np.uint64)


def crowd(rng: np.random.Generator, n: int) -> Any:
    """Random fingerprints, a tenth of them 0 to 10 bits from another."""
    values = rng.integers(0, 1 << 64, n, dtype=np.uint64)
    near = values[rng.integers(0, n, n // 10)]
    flips = rng.integers(0, 11, len(near))
    for i in range(10):
        bit = np.uint64(1) << rng.integers(0, 64, len(near)).astype(np.uint64)
        near = np.where(flips > i, near ^ bit, near)
    values[rng.permutation(n)[: len(near)]] = near
    return values


def brute(values: Any, distance: int) -> tuple[Any, Any]:
    """hi, lo of all pairs within a distance, counted by Python's integers, sorted."""
    words = [int(value) for value in values]
    pairs = [
        (high, low)
        for high in range(len(words))
        for low in range(high)
        if (words[high] ^ words[low]).bit_count() <= distance
    ]
    table = np.array(pairs, np.int64).reshape(len(pairs), 2)
    return table[:, 0], table[:, 1]


def speeds(sizes: list[int]) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    cpu = host_backend("numba")
    small = crowd(rng, 1200)
    for distance in range(9):
        want = brute(small, distance)
        for name in ("numpy", "numba"):
            found = hamming.join(small, distance, host_backend(name)).pairs()
            assert np.array_equal(found[0], want[0])
            assert np.array_equal(found[1], want[1])
    out = []
    names = f"{'fingerprints':>12} {'d':>2} {'tables':>7} {'seconds':>9}"
    print(f"{names} {'M/s':>7} {'met':>14} {'planned':>14} {'near':>10}")
    for n in sizes:
        values = crowd(rng, n)
        for distance in (1, 2, 3, 4, 5, 6, 7, 8):
            chosen = hamming.plan(n, distance)
            seconds, found = common.best(partial(hamming.join, values, distance, cpu), 3 if n <= 10**6 else 1)
            met = found.stats.compared
            print(
                f"{n:>12,} {distance:>2} {chosen.tables:>7} {seconds:>9.3f} {n / seconds / 1e6:>7.2f} {met:>14,} "
                f"{chosen.meetings:>14,} {found.count:>10,}"
            )
            out.append(
                {
                    "n": n, "distance": distance, "tables": chosen.tables, "seconds": seconds,
                    "per_second": n / seconds, "met": met, "meetings_planned": chosen.meetings, "near": found.count,
                    "work_per_second": chosen.compared / seconds,
                }
            )  # fmt: skip
    return out


class Truth:
    """All pairs of a corpus: bits that differ, Jaccard, and the ratio of the sets' sizes."""

    def __init__(self, texts: list[str], backend: Backend) -> None:
        tape = backend.normalise(Tape.of(texts), step_bits(("nfkc", "lower", "whitespace")))
        every = np.arange(len(texts), dtype=np.int64)
        token = UNITS.index("token")
        sets, offsets = backend.shingle_sets(tape, every, token, corpora.N, NONE)
        prints = backend.fingerprints(tape, every, token, corpora.N, NONE, SET, np.zeros(0, np.uint32), 0).values
        assert np.array_equal(prints, backend.simhash(sets, offsets))
        sizes = np.diff(offsets)
        some = np.flatnonzero(sizes >= 50)  # the formula is for many shingles
        left, right = np.triu_indices(len(some), 1)
        left, right = some[left], some[right]
        self.bits = backend.hamming_distances(prints, left, right)
        shared, union = backend.jaccard(sets, offsets, left, right)
        self.texts, self.pairs = len(some), len(left)
        self.similarity = shared / union
        self.near = shared * PPM >= THRESHOLD * union
        self.ratio = np.minimum(sizes[left], sizes[right]) / np.maximum(sizes[left], sizes[right])
        self._grid: dict[int, Any] = {}

    def expected(self, distance: int) -> Any:
        """Chance of every pair to be within a distance; pairs of one similarity and ratio, to a hundredth, together."""
        keys = np.round(self.similarity * 100).astype(np.int64) * 101 + np.round(self.ratio * 100).astype(np.int64)
        unique, place = np.unique(keys, return_inverse=True)
        chances = [
            hamming.chance_within(int(k) // 101 / 100, distance, max(int(k) % 101, 1) / 100) for k in unique.tolist()
        ]
        return np.array(chances)[place.reshape(-1)]


def quality(size: int, plots: Path | None) -> dict[str, Any]:
    rng = random.Random("bench_hamming")
    base = [text[:8000] for text in corpora.base_texts("english", size, 1)]
    texts = list(base)
    for text in base:
        texts += [corpora.edited(rng, text, 1 - rng.random() ** 2 / 2) for _ in range(COPIES)]
    truth = Truth(texts, host_backend("numba"))
    print(f"\n{truth.texts:,} texts, {truth.pairs:,} pairs, {int(truth.near.sum()):,} of them near copies")
    print(
        f"{'d':>2} {'pairs':>8} {'false':>7} {'theory':>9} {'false share':>12} {'theory':>8} {'found':>8} {'theory':>8}"
    )
    rows = []
    for distance in DISTANCES:
        within, chance = truth.bits <= distance, truth.expected(distance)
        pairs, false = int(within.sum()), int((within & ~truth.near).sum())
        near = max(1, int(truth.near.sum()))
        row = {
            "distance": distance, "pairs": pairs, "false": false,
            "false_expected": float(chance[~truth.near].sum()), "pairs_expected": float(chance.sum()),
            "false_share": false / max(pairs, 1),
            "false_share_expected": float(chance[~truth.near].sum() / max(chance.sum(), 1e-12)),
            "found": int((within & truth.near).sum()) / near,
            "found_expected": float(chance[truth.near].sum()) / near,
        }  # fmt: skip
        rows.append(row)
        print(
            f"{distance:>2} {pairs:>8,} {false:>7,} {row['false_expected']:>9.1f} {row['false_share']:>12.4f} "
            f"{row['false_share_expected']:>8.4f} {row['found']:>8.4f} {row['found_expected']:>8.4f}"
        )
    curve = []
    for low in range(50, 100, 5):
        inside = (truth.similarity >= low / 100) & (truth.similarity < (low + 5) / 100)
        if int(inside.sum()) < 20:
            continue
        entry: dict[str, Any] = {"similarity": float(truth.similarity[inside].mean()), "pairs": int(inside.sum())}
        for distance in DISTANCES:
            entry[str(distance)] = float((truth.bits[inside] <= distance).mean())
            entry[f"{distance} expected"] = float(truth.expected(distance)[inside].mean())
        curve.append(entry)
    if plots is not None:
        draw(rows, curve, plots, truth)
    facts = {"texts": truth.texts, "pairs": truth.pairs, "near": int(truth.near.sum()), "threshold": THRESHOLD / PPM}
    return {**facts, "by_distance": rows, "by_similarity": curve}


def draw(rows: list[dict[str, Any]], curve: list[dict[str, Any]], plots: Path, truth: Truth) -> None:
    note = f"{truth.texts:,} English texts, {truth.pairs:,} pairs by brute force"
    share = Plot("SimHash: what a distance finds", "distance in bits", "share", x=(2.5, 11.5), y=(0.0, 1.0), note=note)
    share.line([(row["distance"], row["found_expected"]) for row in rows], "near copies found, theory")
    share.dots([(row["distance"], row["found"]) for row in rows], "near copies found")
    share.line([(row["distance"], row["false_share_expected"]) for row in rows], "false positives, theory", dashed=True)
    share.dots([(row["distance"], row["false_share"]) for row in rows], "false positives")
    share.save(plots / "hamming-distance.svg")
    chance = Plot(
        "SimHash: chance to be within a distance", "true Jaccard similarity", "share of pairs", x=(0.5, 1.0),
        y=(0.0, 1.0), note=note,
    )  # fmt: skip
    for distance in (3, 8):
        points = [(s / 100, hamming.chance_within(s / 100, distance)) for s in range(50, 101)]
        chance.line(points, f"{distance} bits, theory", dashed=distance == 3)
        chance.dots([(entry["similarity"], entry[str(distance)]) for entry in curve], f"{distance} bits")
    chance.save(plots / "hamming-chance.svg")


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--sizes", help="[default: 100000,1000000,10000000; --quick: 20000,100000]")
    parser.add_argument("--megabytes", type=float, help="of texts before they are copied  [default: 3; --quick: 0.3]")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw the curves there, as SVG")
    options = parser.parse_args()
    sizes = options.sizes or ("20000,100000" if options.quick else "100000,1000000,10000000")
    print(common.header())
    rows = speeds([int(size) for size in sizes.split(",")])
    size = int(1e6 * (options.megabytes or (0.3 if options.quick else 3)))
    found = quality(size, options.plots)
    common.save(options.json, "hamming", common.rounded({"speed": rows, "quality": found}))


if __name__ == "__main__":
    main()
