"""Text to hashes, one core: digest, shingles, shingle sets, MinHash, the fast sketch, both fused, and band keys.

    python benchmarks/bench_sketch.py [--megabytes 16] [--only-lengths] [--quick] [--json FILE]

Texts are normalised already and made from a seed: English-like (lower case, words by Zipf's law, a twentieth with a
character outside ASCII), Chinese (characters by Zipf's law, a comma every dozen), of 50 to 1,500 units. NumPy and Numba
must agree on a part of them before anything is timed; best of five runs. MB are millions of bytes of text.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent))
import common
from common import best

from gpu_dedup.batch import Tape
from gpu_dedup.kernels import (
    bandkeys_cpu,
    bandkeys_ref,
    digest_cpu,
    digest_ref,
    fastsketch_cpu,
    fastsketch_ref,
    minhash_cpu,
    minhash_ref,
    shingle_cpu,
    shingle_ref,
    sketch_cpu,
    sketch_ref,
)
from gpu_dedup.recipe import UNITS, ShingleSpec
from gpu_dedup.sketches import permutations

NONE = np.zeros(0, np.uint64)
SLOTS = 119


def zipf(rng: np.random.Generator, kinds: int, count: int) -> np.ndarray:
    """`count` numbers below `kinds`, the r-th most frequent with weight 1 / r."""
    weights = np.cumsum(1.0 / np.arange(1, kinds + 1))
    return np.minimum(np.searchsorted(weights, rng.random(count) * weights[-1]), kinds - 1)


def english(rng: np.random.Generator, size: int) -> list[str]:
    lengths = np.clip(rng.poisson(4.2, 30_000) + 1, 1, 20)
    lengths[:100] = rng.integers(1, 5, 100)  # frequent words are short
    words = ["".join(chr(97 + c) for c in rng.integers(0, 26, length)) for length in lengths]
    for i in range(200, 30_000, 20):
        words[i] += "é"
    texts = []
    while size > 0:
        picked = [words[i] for i in zipf(rng, len(words), int(rng.integers(50, 1500)))]
        for i in range(9, len(picked), 11):
            picked[i] += "." if i % 2 else ","
        texts.append(" ".join(picked))
        size -= len(texts[-1])
    return texts


def chinese(rng: np.random.Generator, size: int) -> list[str]:
    texts = []
    while size > 0:
        chars = [chr(0x4E00 + 5 * i) for i in zipf(rng, 4000, int(rng.integers(50, 1500)))]
        for i in range(11, len(chars), 12):
            chars[i] = "，"
        texts.append("".join(chars))
        size -= 3 * len(chars)
    return texts


def check(tape: Tape, spec: ShingleSpec) -> None:
    """Numba equals NumPy on the first documents."""
    some = np.arange(min(len(tape), 40), dtype=np.int64)
    head = Tape(tape.blob, tape.offsets[: len(some) + 1])
    a, b = permutations(0, SLOTS)
    shingled = (tape.blob, tape.offsets, some, spec.unit_code, spec.n, NONE)
    pairs = [
        (digest_ref.digest(head.blob, head.offsets), digest_cpu.digest(head.blob, head.offsets)),
        *zip(shingle_ref.shingle(*shingled), shingle_cpu.shingle(*shingled), strict=True),
        *zip(shingle_ref.shingle_sets(*shingled), shingle_cpu.shingle_sets(*shingled), strict=True),
        *zip(sketch_ref.sketch(*shingled, a, b), sketch_cpu.sketch(*shingled, a, b), strict=True),
    ]
    signatures = sketch_cpu.sketch(*shingled, a, b)[0]
    hashes, offsets, _ = shingle_cpu.shingle(*shingled)
    pairs.append((minhash_ref.minhash(hashes, offsets, a, b), minhash_cpu.minhash(hashes, offsets, a, b)))
    a, b = permutations(0, SLOTS + 2)
    pairs.append((fastsketch_ref.fastsketch(hashes, offsets, a, b), fastsketch_cpu.fastsketch(hashes, offsets, a, b)))
    pairs += zip(fastsketch_ref.fast_sketch(*shingled, a, b), fastsketch_cpu.fast_sketch(*shingled, a, b), strict=True)
    pairs.append((bandkeys_ref.band_keys(signatures, 17, 7), bandkeys_cpu.band_keys(signatures, 17, 7)))
    for want, got in pairs:
        np.testing.assert_array_equal(want, got)


def measure(kind: str, tape: Tape, specs: list[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    every = np.arange(len(tape), dtype=np.int64)

    def add(operation: str, seconds: float, shingles: int | None, nbytes: int | None) -> None:
        row: dict[str, Any] = {"text": kind, "operation": operation, "seconds": seconds}
        row["MB/s"] = nbytes / seconds / 1e6 if nbytes else None
        row["M shingles/s"] = shingles / seconds / 1e6 if shingles else None
        rows.append(row)

    seconds, _ = best(partial(digest_cpu.digest, tape.blob, tape.offsets))
    add("digest", seconds, None, tape.nbytes)
    a, b = permutations(0, SLOTS)
    for text in specs:
        spec = ShingleSpec.parse(text)
        check(tape, spec)
        arguments = (tape.blob, tape.offsets, every, spec.unit_code, spec.n, NONE)
        seconds, (hashes, offsets, _) = best(partial(shingle_cpu.shingle, *arguments))
        count = len(hashes)
        add(f"shingle {spec}", seconds, count, tape.nbytes)
        sets, _ = best(partial(shingle_cpu.shingle_sets, *arguments))
        add(f"shingle_sets {spec}", sets, count, tape.nbytes)
        seconds, (signatures, _, _) = best(partial(sketch_cpu.sketch, *arguments, a, b))
        add(f"sketch {spec}, {SLOTS} slots", seconds, count, tape.nbytes)
        seconds, _ = best(partial(fastsketch_cpu.fast_sketch, *arguments, *permutations(0, SLOTS + 2)))
        add(f"fast sketch {spec}, {SLOTS} slots", seconds, count, tape.nbytes)
        if spec.unit != UNITS[0] or kind != "english":
            continue
        for k in (119, 128, 260):
            seconds, _ = best(partial(minhash_cpu.minhash, hashes, offsets, *permutations(0, k)))
            add(f"minhash, {k} slots", seconds, count, None)
            seconds, _ = best(partial(fastsketch_cpu.fastsketch, hashes, offsets, *permutations(0, k + 2)))
            add(f"fast sketch, {k} slots", seconds, count, None)
        seconds, _ = best(partial(bandkeys_cpu.band_keys, signatures, 17, 7))
        add("band_keys 17 x 7 (M keys/s)", seconds, signatures.shape[0] * 17, None)
    return rows


def by_length(quick: bool) -> list[dict[str, Any]]:
    """Both sketches of hashes that are there already, and of texts of as many shingles, by length and slots.

    Calls of a millisecond or so and many of them, in turn: some are then left alone even on a machine with other work.
    """
    total, times = (100_000, 2) if quick else (200_000, 30)
    rng = np.random.default_rng(2)
    rows = []
    for length in (20, 50, 100, 200, 500, 1000, 10_000):
        hashes = rng.integers(0, 2**64, total, dtype=np.uint64)
        offsets = np.arange(0, total + 1, length, dtype=np.int64)
        words = [f"w{i}" for i in rng.integers(0, 10**6, length + 4)]
        tape = Tape.of([" ".join(words[i:] + words[:i]) for i in range(total // length)])
        for slots in (119, 260):
            head, numbers = offsets[: 2 + 2000 // length], permutations(0, slots + 2)
            want, got = (kernel.fastsketch(hashes, head, *numbers) for kernel in (fastsketch_ref, fastsketch_cpu))
            np.testing.assert_array_equal(want, got)
        text = (tape.blob, tape.offsets, np.arange(len(tape), dtype=np.int64), 0, 5, NONE)
        for slots in (119, 128, 260):
            row: dict[str, Any] = {"shingles": length, "slots": slots}
            least, most = permutations(0, slots), permutations(0, slots + 2)
            calls = {
                "minhash": (partial(minhash_cpu.minhash, hashes, offsets, *least), total),
                "fast": (partial(fastsketch_cpu.fastsketch, hashes, offsets, *most), total),
                "minhash_from_text": (partial(sketch_cpu.sketch, *text, *least), len(tape) * length),
                "fast_from_text": (partial(fastsketch_cpu.fast_sketch, *text, *most), len(tape) * length),
            }
            seconds = dict.fromkeys(calls, float("inf"))
            for _ in range(times):
                for name, (call, _) in calls.items():
                    seconds[name] = min(seconds[name], best(call, 1)[0])
            rows.append(row | {name: count / seconds[name] / 1e6 for name, (_, count) in calls.items()})
    return rows


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--megabytes", type=float, help="of text in each language  [default: 16, --quick: 1]")
    parser.add_argument("--only-lengths", action="store_true", help="only MinHash beside the fast sketch, by length")
    options = parser.parse_args()
    megabytes = options.megabytes or (1 if options.quick else 16)
    rng = np.random.default_rng(1)
    print(common.header())
    rows = []
    languages = (
        ("english", english, ["token:5", "word:5", "char:8", "byte:8", "code:5"]),
        ("chinese", chinese, ["token:5", "char:5"]),
    )
    for kind, make, specs in () if options.only_lengths else languages:
        tape = Tape.of(make(rng, round(megabytes * 1_000_000)))
        print(f"\n{kind}: {len(tape):,} texts, {tape.nbytes / 1e6:.1f} MB      MB/s   M shingles/s")
        for row in measure(kind, tape, specs):
            speed, shingles = (f"{row[key]:12.0f}" if row[key] else " " * 12 for key in ("MB/s", "M shingles/s"))
            print(f"    {row['operation']:<28}{speed}{shingles}")
            rows.append(row)
    lengths = by_length(options.quick)
    print("\nM shingles/s              from hashes               from text")
    print("  shingles  slots   MinHash   fast          MinHash   fast")
    for row in lengths:
        first, second = (f"{row['minhash' + s]:9.0f} {row['fast' + s]:6.0f}" for s in ("", "_from_text"))
        print(f"{row['shingles']:>10,} {row['slots']:>6} {first}        {second}")
    results = {"megabytes": megabytes, "rows": common.rounded(rows), "by_length": common.rounded(lengths)}
    common.save(options.json, "sketch", results)


if __name__ == "__main__":
    main()
