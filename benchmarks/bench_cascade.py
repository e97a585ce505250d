"""Level 2 of a cascade: which edit similarity do pairs have that fingerprints and shingles call alike?

    python benchmarks/bench_cascade.py [--quick] [--json out.json]

Texts of this machine (English, Chinese, code), each with copies that were changed in one way: words exchanged here and
there, a passage put in front, passages moved to another place, the whole text twice. Of all pairs whose fingerprints
differ in 4 to 7 bits and whose Jaccard similarity is 0.75 or more, by brute force over all pairs: the Levenshtein
similarity, by what was done, and the share that a --far-edit keeps. Shingles are sets, so that they hardly see passages
that were moved or doubled: those pairs are what --far-edit is for.
"""

from __future__ import annotations

import argparse
import random
from itertools import pairwise
from typing import Any

import common
import corpora
import numpy as np

from gpu_dedup.backend import SET, Backend, host_backend
from gpu_dedup.batch import Tape
from gpu_dedup.normalise import step_bits
from gpu_dedup.recipe import PPM, UNITS, Recipe

KINDS = ("english", "chinese", "code")
CUTS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)
LONGEST = 6000  # code points of a text: Levenshtein costs the square of it
NONE = np.zeros(0, np.uint64)


def changed(rng: random.Random, text: str) -> list[tuple[str, str]]:
    """(what was done, text)."""
    out = [("words", corpora.edited(rng, text, 1 - rng.random() ** 2 / 3)) for _ in range(6)]
    size = len(text)
    out.append(("passage in front", text[size // 2 : size // 2 + rng.randint(size // 12, size // 5)] + " " + text))
    for parts in (2, 3, 5, 8):
        cuts = [size * i // parts for i in range(parts + 1)]
        pieces = [text[a:b] for a, b in pairwise(cuts)]
        pieces = [*pieces[1:], pieces[0]] if parts < 4 else rng.sample(pieces, parts)
        light = corpora.edited(rng, " ".join(pieces), 0.97)
        out.append(("passages moved", light))
    out.append(("twice", corpora.edited(rng, f"{text} {text}", 0.97)))
    return out


def pairs_of(kind: str, size: int, backend: Backend) -> list[dict[str, Any]]:
    """Pairs that level 2 would ask the edit similarity of, with it."""
    rng = random.Random(f"bench_cascade {kind}")
    base = [text[:LONGEST] for text in corpora.base_texts(kind, size, 1) if len(text) >= 600]
    texts, what = [], []
    for text in base:
        for name, copy in [("as it was", text), *changed(rng, text)]:
            texts.append(copy)
            what.append(name)
    recipe = Recipe(method="cascade")
    tape = backend.normalise(Tape.of(texts), step_bits(recipe.steps))
    every = np.arange(len(texts), dtype=np.int64)
    unit, n = UNITS.index("token"), recipe.spec.n
    prints = backend.fingerprints(tape, every, unit, n, NONE, SET, np.zeros(0, np.uint32), 0).values
    left, right = np.triu_indices(len(texts), 1)
    bits = backend.hamming_distances(prints, left, right)
    near = (bits > recipe.distance) & (bits <= recipe.far_distance)
    left, right = left[near], right[near]
    shared, union = backend.jaccard(*backend.shingle_sets(tape, every, unit, n, NONE), left, right)
    alike = (union > 0) & (shared * PPM >= recipe.far_jaccard_ppm * union)
    left, right = left[alike], right[alike]
    same, longest = backend.edit(*backend.decode(tape), left, right, 0)
    few = np.argsort(longest, kind="stable")[:2]  # the definition takes seconds for a long text
    slow = host_backend("numpy").edit(*backend.decode(tape), left[few], right[few], 0)
    assert [column.tolist() for column in slow] == [same[few].tolist(), longest[few].tolist()]
    out = []
    for one, other, share in zip(left.tolist(), right.tolist(), (same / longest).tolist(), strict=True):
        names = {what[one], what[other]} - {"as it was"}
        # Of two changes the one that shingles do not see.
        done = next((name for name in ("twice", "passages moved", "passage in front") if name in names), "words")
        out.append({"kind": kind, "done": done, "edit": share})
    return out


def main() -> None:
    parser: argparse.ArgumentParser = common.parser(__doc__)
    parser.add_argument("--megabytes", type=float, help="of texts of each kind  [default: 0.5; --quick: 0.1]")
    options = parser.parse_args()
    print(common.header())
    size = int(1e6 * (options.megabytes or (0.1 if options.quick else 0.5)))
    found = [pair for kind in KINDS for pair in pairs_of(kind, size, host_backend("numba"))]
    rows = []
    print(f"\n{'texts':<9} {'done':<18} {'pairs':>7} {'5 %':>6} {'half':>6} {'95 %':>6}  kept at", *CUTS)
    for kind in (*KINDS, "all"):
        for done in ("words", "passage in front", "passages moved", "twice"):
            edit = np.array([p["edit"] for p in found if p["done"] == done and kind in (p["kind"], "all")])
            if not len(edit):
                continue
            low, middle, high = np.quantile(edit, (0.05, 0.5, 0.95)).tolist()
            kept = {str(cut): float((edit >= cut).mean()) for cut in CUTS}
            rows.append(
                {"texts": kind, "done": done, "pairs": len(edit), "low": low, "middle": middle, "high": high} | kept
            )
            shares = " ".join(f"{share:.2f}" for share in kept.values())
            print(f"{kind:<9} {done:<18} {len(edit):>7,} {low:>6.3f} {middle:>6.3f} {high:>6.3f}  {shares}")
    common.save(options.json, "cascade", common.rounded({"rows": rows}))


if __name__ == "__main__":
    main()
