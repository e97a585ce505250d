"""Bloom filters: keys a second, in cache and in memory, one core; and, if asked for, beside rbloom of PyPI.

    python benchmarks/bench_bloom.py [--keys 4000000] [--quick] [--json FILE]
    python benchmarks/bench_bloom.py --peers rbloom [--peers-env DIR]      in an environment of its own

NumPy and Numba must agree on a part of the keys before anything is timed; best of five runs. Filters are empty before
each run, get no more keys than they are made for, and are as large as they say: one for 100 million keys is memory
that no cache holds, and a few of its lines are touched, as at any time in its life. `add_if_new` asks and adds in one
step and answers for every key; `contains` asks alone. rbloom runs between two runs of ours on the same keys, for the
same capacity and rate; the ratio is that of the best times. Its `update` answers nothing; to ask, its users go key by
key (benchmarks/peers/rbloom_keys.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent))
import common
from common import best

from gpu_dedup.backend import host_backend
from gpu_dedup.bloom import BloomFilter

# capacity, rate. 100 million keys are hundreds of MB: no cache holds them.
CASES = ((1_000_000, "0.01"), (1_000_000, "0.000001"), (100_000_000, "0.01"), (100_000_000, "0.000001"))


def check(keys: np.ndarray) -> None:
    """Numba equals NumPy, in a filter so small that chance hits abound."""
    made = [BloomFilter(200, "0.01", backend=host_backend(name)) for name in ("numpy", "numba")]
    some = np.concatenate([keys[:3000], keys[:500]])
    answers = [filter.add_if_new(some) for filter in made]
    np.testing.assert_array_equal(*answers)
    assert made[0].fill() == made[1].fill()


def adding(capacity: int, rate: str, keys: np.ndarray, times: int = 5) -> float:
    """Best seconds of adding the keys to an empty filter, its memory touched before."""
    filter = BloomFilter(capacity, rate)
    seconds = []
    for _ in range(times):
        filter._words.fill(0)
        filter.counts = [0]
        seconds.append(best(lambda: filter.add_if_new(keys), 1)[0])
    return min(seconds)


def measure(capacity: int, rate: str, keys: np.ndarray) -> dict[str, Any]:
    keys = keys[:capacity]
    filter = BloomFilter(capacity, rate)
    add = adding(capacity, rate, keys)
    new = filter.add_if_new(keys)
    again, _ = best(lambda: filter.add_if_new(keys))
    ask, found = best(lambda: filter.contains(keys))
    assert found.all()
    row = {"capacity": capacity, "rate": rate, "bytes": filter.nbytes, "hashes": filter.hashes, "keys": len(keys)}
    row |= {"new": int(new.sum()), "false positives": float(filter.contains(keys ^ np.uint64(1 << 60)).mean())}
    return row | {"add ns": add / len(keys) * 1e9, "seen ns": again / len(keys) * 1e9, "ask ns": ask / len(keys) * 1e9}


def beside_rbloom(keys: np.ndarray, root: Path | None, repeat: int) -> list[dict[str, Any]]:
    import compare

    root = root or compare.default_environments()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        driver = Path(__file__).resolve().parent / "peers" / "rbloom_keys.py"
        for capacity, rate in CASES:
            row: dict[str, Any] = {"capacity": capacity, "rate": rate}
            some = keys[:capacity]
            (folder / "keys").write_bytes(some.astype("<u8").tobytes())
            try:
                python, versions = compare.install(compare.Peer("rbloom", ("rbloom",), "rbloom_keys"), root)
                row["version"] = versions["rbloom"]
                before = adding(capacity, rate, some)
                arguments = [folder / "keys", folder / "out", capacity, rate, "--repeat", repeat]
                done = subprocess.run([python, driver, *map(str, arguments)], capture_output=True, text=True)
                if done.returncode:
                    raise compare.PeerError(compare.last_line(done.stderr))
                after = adding(capacity, rate, some)
            except compare.PeerError as error:
                rows.append({**row, "reason": str(error)})
                continue
            found = json.loads((folder / "out").read_text())
            row |= {"bytes": found["bytes"], "false positives": found["false positives"]}
            ours = min(before, after)
            row["ours ns"] = ours / len(some) * 1e9
            for name in ("update", "ask and add"):
                seconds = min(found[name])
                row |= {f"{name} ns": seconds / len(some) * 1e9, f"{name} times ours": seconds / ours}
            rows.append(row)
    return rows


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--keys", type=int, help="[default: 4000000, --quick: 200000]")
    parser.add_argument("--peers", choices=("none", "rbloom"), default="none")
    parser.add_argument("--peers-env", type=Path, help="folder for its environment  [default: as compare.py]")
    options = parser.parse_args()
    count = options.keys or (200_000 if options.quick else 4_000_000)
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 2**60, count, dtype=np.uint64)
    print(common.header())
    check(keys)
    rows = []
    print(f"\n{count:,} keys" + " " * 34 + "MB   k   ns a key: add    seen     ask")
    for capacity, rate in CASES if not options.quick else CASES[:2]:
        row = measure(capacity, rate, keys)
        times = f"{row['add ns']:16.1f}{row['seen ns']:8.1f}{row['ask ns']:8.1f}"
        print(f"    capacity {capacity:>11,}, rate {rate:<10}{row['bytes'] / 1e6:12.1f}{row['hashes']:4}{times}")
        rows.append(row)
    peers = []
    if options.peers != "none":
        peers = beside_rbloom(keys, options.peers_env, 3)
        print("\nrbloom, ns a key" + " " * 28 + "MB   update  ask and add   ours    takes longer")
        for row in peers:
            name = f"    capacity {row['capacity']:>11,}, rate {row['rate']:<10}"
            if "reason" in row:
                print(name + row["reason"])
                continue
            times = f"{row['update ns']:9.1f}{row['ask and add ns']:13.1f}{row['ours ns']:7.1f}"
            longer = f"{row['update times ours']:10.1f}{row['ask and add times ours']:7.1f}"
            print(f"{name}{row['bytes'] / 1e6:9.1f}{times}{longer}")
    common.save(options.json, "bloom", {"rows": common.rounded(rows), "rbloom": common.rounded(peers)})


if __name__ == "__main__":
    main()
