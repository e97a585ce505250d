"""Collide: buckets of one band in heads/s, equal slots in pairs/s, and the whole stage on planted groups.

    python benchmarks/bench_collide.py [--heads 2000000] [--slots 119] [--quick] [--json FILE]

Checks that NumPy and Numba agree before it times them, one core each; the best of three runs. Keys are random; a tenth
of the heads repeat another's key, and one head in a thousand is in one bucket far over the cap.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent))
import common

from gpu_dedup.backend import Backend
from gpu_dedup.collide import collide
from gpu_dedup.kernels import bandkeys_cpu, collide_cpu, collide_ref
from gpu_dedup.recipe import Recipe


def best(function: Callable[[], Any], times: int = 3) -> tuple[float, Any]:
    return common.best(function, times)


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--heads", type=int, help="[default: 2000000, --quick: 300000]")
    parser.add_argument("--slots", type=int, default=119)
    options = parser.parse_args()
    heads, slots = options.heads or (300_000 if options.quick else 2_000_000), options.slots
    rng = np.random.default_rng(1)
    rows_out: list[dict[str, Any]] = []
    print(common.header())

    keys = rng.integers(0, 2**64, heads, dtype=np.uint64)
    keys[rng.integers(0, heads, heads // 10)] = keys[rng.integers(0, heads, heads // 10)]
    keys[rng.integers(0, heads, heads // 1000)] = keys[0]
    whole = np.array([0, heads], np.int64)
    slow, expected = best(lambda: collide_ref.buckets(keys, whole), 1)
    collide_cpu.buckets(keys[:10], np.array([0, 10], np.int64))
    fast, (members, starts) = best(lambda: collide_cpu.buckets(keys, whole))
    assert np.array_equal(members, expected[0])
    assert np.array_equal(starts, expected[1])
    print(f"buckets of {heads:,} keys:  numba {heads / fast / 1e6:6.1f} M heads/s   numpy {heads / slow / 1e6:6.1f}")
    rows_out.append(
        {"operation": "buckets", "n": heads, "numba_per_second": heads / fast, "numpy_per_second": heads / slow}
    )

    offsets = collide_cpu.pair_offsets(starts, 256, 32)
    seconds, (hi, _) = best(lambda: collide_cpu.bucket_pairs(members, starts, offsets, 0, len(members)))
    print(f"pairs written:            numba {len(hi) / seconds / 1e6:6.1f} M pairs/s")
    rows_out.append({"operation": "bucket_pairs", "n": len(hi), "numba_per_second": len(hi) / seconds})

    pairs = 1 << (14 if options.quick else 18)
    for rows, where in ((2_000, "in cache"), (20_000 if options.quick else 200_000, "in memory")):
        signatures = rng.integers(0, 2**32, (rows, slots), dtype=np.uint64).astype(np.uint32)
        left, right = np.sort(rng.integers(0, rows, pairs)), rng.integers(0, rows, pairs)
        arguments = (signatures, left, right)
        slow, expected_same = best(partial(collide_ref.agreements, *arguments), 1)
        fast, same = best(partial(collide_cpu.agreements, *arguments))
        assert np.array_equal(same, expected_same)
        speeds = f"numba {pairs / fast / 1e6:6.1f} M pairs/s   numpy {pairs / slow / 1e6:6.1f}"
        print(f"{slots} slots, {where:>9}:     {speeds}")
        row = {"operation": f"agreements, {slots} slots, {where}", "n": pairs}
        rows_out.append({**row, "numba_per_second": pairs / fast, "numpy_per_second": pairs / slow})

    rows = heads // 10
    signatures = rng.integers(0, 2**32, (rows, 119), dtype=np.uint64).astype(np.uint32)
    copies = rng.integers(0, rows, rows // 5)
    near = signatures[rng.integers(0, rows, rows // 5)]
    near[rng.random(near.shape) < 0.15] ^= np.uint32(1)
    signatures[copies] = near
    signatures[rng.integers(0, rows, rows // 100), :14] = signatures[0, :14]  # boilerplate: two bands over the cap
    # Only what collide asks of a backend, so that this runs without compiling the rest of the package.
    cpu = SimpleNamespace(
        buckets=collide_cpu.buckets,
        pair_offsets=collide_cpu.pair_offsets,
        bucket_pairs=collide_cpu.bucket_pairs,
        agreements=collide_cpu.agreements,
        slot_keys=bandkeys_cpu.slot_keys,
    )
    columns = np.ascontiguousarray(bandkeys_cpu.band_keys(signatures, 17, 7).T)
    recipe = Recipe(bands=17, rows=7, sieve_cut=78)
    stored = SimpleNamespace(array=signatures, take=lambda chosen: signatures[chosen])
    seconds, found = best(
        lambda: collide(lambda band: columns[band], stored, rows, recipe, cast(Backend, cpu), map, lambda n: None)
    )
    stats = found.stats
    print(f"collide, {rows:,} heads, 17 x 7: {seconds:.2f} s, {rows / seconds / 1e6:.2f} M heads/s")
    print(f"    {stats.buckets:,} buckets, largest {max(stats.largest):,}, {stats.capped} over the cap")
    print(f"    {stats.pairs_before:,} pairs, {stats.pairs_after:,} past the sieve, {len(found):,} candidates")
    rows_out.append({"operation": "collide 17 x 7", "n": rows, "numba_per_second": rows / seconds})
    common.save(options.json, "collide", {"rows": common.rounded(rows_out)})


if __name__ == "__main__":
    main()
