"""Audit: documents against a sample by counting shared shingles, per second, by size of the sample.

    python benchmarks/bench_audit.py [--documents 20000] [--quick] [--json FILE]

Sets are made from a seed: 50 to 800 random items, a tenth of them like an earlier one at 0.85, and 20 items that every
second set has (boilerplate). Numba is checked against NumPy on a part of them before anything is timed; one core, best
of three runs. `pairs` are the comparisons that brute force over all of them would make.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent))
import common

from gpu_dedup.kernels import audit_cpu, audit_ref

THRESHOLD = 800_000


def sets_of(rng: np.random.Generator, count: int) -> tuple[Any, Any]:
    """Ragged sets, ascending and unique: items, offsets."""
    everywhere = rng.integers(0, 2**64, 20, dtype=np.uint64)
    sets: list[Any] = []
    for i in range(count):
        if i and rng.random() < 0.1:
            old = sets[int(rng.integers(0, i))]
            made = old[rng.random(len(old)) < 0.92]
            made = np.concatenate([made, rng.integers(0, 2**64, len(old) // 12, dtype=np.uint64)])
        else:
            made = rng.integers(0, 2**64, int(rng.integers(50, 800)), dtype=np.uint64)
        if i % 2:
            made = np.concatenate([made, everywhere])
        sets.append(np.unique(made))
    return np.concatenate(sets), np.cumsum([0, *map(len, sets)])


def part(items: Any, offsets: Any, first: int, last: int) -> tuple[Any, Any]:
    return items[offsets[first] : offsets[last]], offsets[first : last + 1] - offsets[first]


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--documents", type=int, help="[default: 20000, --quick: 3000]")
    options = parser.parse_args()
    count = options.documents or (3000 if options.quick else 20_000)
    rng = np.random.default_rng(1)
    items, offsets = sets_of(rng, count)
    print(f"{count:,} documents, {len(items) / count:.0f} items each; {common.header()}")
    few, sample = part(items, offsets, 0, min(count, 200)), part(items, offsets, 0, min(count, 100))
    expected = audit_ref.audit(*few, *audit_ref.audit_index(*sample), THRESHOLD)
    found = audit_cpu.audit(*few, *audit_cpu.audit_index(*sample), THRESHOLD)
    assert all(np.array_equal(one, other) for one, other in zip(expected, found, strict=True))

    rows = []
    print(f"{'sampled':>10}{'found':>9}{'documents/s':>14}{'M items/s':>11}{'M pairs/s':>11}")
    for size in (10, 100, 1000, 10_000):
        if size > count:
            break
        index = audit_cpu.audit_index(*part(items, offsets, 0, size))
        seconds, pairs = common.best(partial(audit_cpu.audit, items, offsets, *index, THRESHOLD), 3)
        row = {
            "sampled": size, "found": len(pairs[0]), "documents_per_second": count / seconds,
            "items_per_second": len(items) / seconds, "pairs_per_second": count * size / seconds,
        }  # fmt: skip
        rows.append(row)
        print(
            f"{size:>10,}{row['found']:>9,}{row['documents_per_second']:>14,.0f}"
            f"{row['items_per_second'] / 1e6:>11.1f}{row['pairs_per_second'] / 1e6:>11.1f}"
        )
    common.save(options.json, "audit", {"documents": count, "rows": common.rounded(rows)})


if __name__ == "__main__":
    main()
