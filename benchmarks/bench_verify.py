"""Verification: cost of Jaccard by size of the sets, beside that of sketching as much text; Levenshtein by length.

    python benchmarks/bench_verify.py [--quick] [--json FILE]

Checks that NumPy and Numba agree before it times them; one core, the best of three runs. Near pairs share 0.85 of their
items, far pairs 0.5 (threshold 0.8: given up on early). The sketch is that of seeded English-like text, token:5 and
119 slots, with as many shingles as the sets have items. rapidfuzz stands beside the Levenshtein kernel where it is
installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent))
import common

from gpu_dedup.backend import LOWEST, host_backend
from gpu_dedup.batch import Tape

THRESHOLD = 800_000


def best(function: Callable[[], Any], times: int = 3) -> tuple[float, Any]:
    return common.best(function, times)


def sets_of(rng: np.random.Generator, size: int, pairs: int, share: float) -> tuple[Any, Any]:
    """2 * pairs sets; 2 i and 2 i + 1 share so many of their items that shared / union is about `share`."""
    common = round(size * 2 * share / (1 + share))
    sets = []
    for _ in range(pairs):
        own = rng.integers(0, 2**64, 2 * size - common, np.uint64)
        sets += [np.unique(own[:size]), np.unique(own[size - common :])]
    offsets = np.cumsum([0, *map(len, sets)])
    return np.concatenate(sets), offsets


def texts_of(rng: np.random.Generator, length: int, pairs: int, changed: float, symbols: int) -> tuple[Any, Any]:
    """Code points of 2 * pairs texts; 2 i + 1 is 2 i with a share of its code points replaced, left out or put in."""
    weights = 1 / np.arange(1, symbols + 1)
    texts = []
    for _ in range(pairs):
        text = rng.choice(symbols, length, p=weights / weights.sum()).astype(np.uint32)
        other = text.copy()
        at = rng.random(length) < changed * 0.6
        other[at] = rng.integers(0, symbols, int(at.sum()))
        other = other[rng.random(length) >= changed * 0.2]
        other = np.insert(other, rng.integers(0, len(other), int(length * changed * 0.2)), symbols)
        texts += [text + 97, other.astype(np.uint32) + 97]
    offsets = np.cumsum([0, *map(len, texts)])
    return np.concatenate(texts), offsets


def main() -> None:
    options = common.parser(__doc__).parse_args()
    jaccard_rows: list[dict[str, Any]] = []
    edit_rows: list[dict[str, Any]] = []
    slow, fast = host_backend("numpy"), host_backend("numba")
    rng = np.random.default_rng(1)
    print(common.header())

    words = np.array(["".join(chr(97 + c) for c in rng.integers(0, 26, rng.integers(2, 10))) for _ in range(20_000)])
    zipf = 1 / np.arange(1, len(words) + 1)
    a, b = rng.integers(0, 2**32, (2, 119)).astype(np.uint32)
    none = np.zeros(0, np.uint64)
    heads = ("items a set", "jaccard", "near", "far", "ns an item", "sketch")
    print("".join(f"{head:>12}" for head in heads) + "   (us a pair; us a text)")
    for size in (30, 300, 3000) if options.quick else (30, 100, 300, 1000, 3000, 10_000, 100_000):
        pairs = max(2, (40_000 if options.quick else 400_000) // size)
        left, right = np.arange(1, 2 * pairs, 2), np.arange(0, 2 * pairs, 2)
        near, far = sets_of(rng, size, pairs, 0.85), sets_of(rng, size, pairs, 0.5)
        few = min(pairs, 50)
        for items, offsets in (near, far):
            expected = slow.jaccard(items, offsets, left[:few], right[:few])
            found = fast.jaccard(items, offsets, left[:few], right[:few])
            assert all(np.array_equal(x, y) for x, y in zip(expected, found, strict=True))

        def sweep(items: Any, offsets: Any, left: Any = left, right: Any = right) -> tuple[int, int, int]:
            state = [np.full(len(offsets) - 1, -1, np.int64) for _ in range(3)]
            nodes = np.arange(len(offsets) - 1)
            return fast.sweep(items, offsets, left, right, THRESHOLD, 1 << 62, LOWEST, nodes, *state)

        full, _ = best(lambda near=near, left=left, right=right: fast.jaccard(*near, left, right))
        met, counts = best(lambda near=near: sweep(*near))
        given_up, other = best(lambda far=far: sweep(*far))
        assert counts[:2] == (pairs, pairs)
        assert other[:2] == (pairs, 0)
        tape = Tape.of([" ".join(rng.choice(words, size + 4, p=zipf / zipf.sum())) for _ in range(min(pairs, 200))])
        everyone = np.arange(len(tape))
        fast.sketch(tape, everyone, 0, 5, none, a, b)
        sketch, _ = best(lambda tape=tape, everyone=everyone: fast.sketch(tape, everyone, 0, 5, none, a, b))
        row = {
            "items": size,
            "jaccard_us": full / pairs * 1e6,
            "near_us": met / pairs * 1e6,
            "far_us": given_up / pairs * 1e6,
            "ns_per_item": full / pairs / (2 * size) * 1e9,
            "sketch_us": sketch / len(tape) * 1e6,
        }
        jaccard_rows.append(row)
        print(
            f"{size:>12,}{row['jaccard_us']:>12.2f}{row['near_us']:>12.2f}{row['far_us']:>12.2f}"
            f"{row['ns_per_item']:>12.2f}{row['sketch_us']:>12.2f}"
        )

    fuzz: Any = None
    if importlib.util.find_spec("rapidfuzz") is not None:
        fuzz = importlib.import_module("rapidfuzz.distance").Levenshtein
    heads = ("code points", "changed", "symbols", "at 0.8", "exact", "rapidfuzz")
    print("\n" + "".join(f"{head:>12}" for head in heads) + "   (ms a pair; rapidfuzz at 0.8)")
    for length, pairs in ((100, 500), (1000, 50), (10_000, 4), (50_000, 2))[: 2 if options.quick else 4]:
        for symbols in (60, 3000):
            for changed in (0.02, 0.15, 0.5):
                items, offsets = texts_of(rng, length, pairs, changed, symbols)
                left, right = np.arange(1, 2 * pairs, 2), np.arange(0, 2 * pairs, 2)
                if length <= 1000:
                    expected = slow.edit(items, offsets, left[:4], right[:4], THRESHOLD)
                    found = fast.edit(items, offsets, left[:4], right[:4], THRESHOLD)
                    assert all(np.array_equal(x, y) for x, y in zip(expected, found, strict=True))
                arguments = (items, offsets, left, right)
                bounded, (same, longest) = best(lambda arguments=arguments: fast.edit(*arguments, THRESHOLD))
                exact, _ = best(lambda arguments=arguments: fast.edit(*arguments, 0))
                row = {
                    "code_points": length, "changed": changed, "symbols": symbols,
                    "bounded_ms": bounded / pairs * 1e3, "exact_ms": exact / pairs * 1e3,
                }  # fmt: skip
                beside = "missing"
                if fuzz is not None:
                    texts = ["".join(map(chr, items[offsets[i] : offsets[i + 1]])) for i in range(2 * pairs)]
                    cutoff = [int(n) - -(-THRESHOLD * int(n) // 10**6) for n in longest]

                    def other_tool(texts: list[str] = texts, cutoff: list[int] = cutoff) -> list[int]:
                        return [
                            fuzz.distance(texts[2 * i + 1], texts[2 * i], score_cutoff=c) for i, c in enumerate(cutoff)
                        ]

                    seconds, distances = best(other_tool)
                    agreed = [int(n) - d if d <= c else -1 for n, d, c in zip(longest, distances, cutoff, strict=True)]
                    assert agreed == same.tolist()
                    row["rapidfuzz_ms"] = seconds / pairs * 1e3
                    beside = f"{row['rapidfuzz_ms']:.4f}"
                edit_rows.append(row)
                print(
                    f"{length:>12,}{changed:>12}{symbols:>12,}{row['bounded_ms']:>12.4f}{row['exact_ms']:>12.4f}{beside:>12}"
                )
    common.save(options.json, "verify", common.rounded({"jaccard": jaccard_rows, "edit": edit_rows}))


if __name__ == "__main__":
    main()
