"""rbloom of PyPI: 64-bit keys into a Bloom filter, one core.

    python benchmarks/peers/rbloom_keys.py KEYS OUT CAPACITY RATE [--repeat N]

KEYS holds 64-bit numbers below 2**61, which Python's hash leaves as they are, so that rbloom's default hash costs
nothing; they become a Python list before the clock runs. OUT gets {"update": [...], "ask and add": [...], "bytes",
"false positives": share of as many other keys}.

    update       all keys in one call, no answers: its native speed
    ask and add  the question and the insertion, key by key, as its README shows them
"""

from __future__ import annotations

import argparse
import array
import json
import os
import sys
import time

_HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [place for place in sys.path if os.path.realpath(place or ".") != _HERE]

from rbloom import Bloom  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, kind in (("keys", str), ("out", str), ("capacity", int), ("rate", float)):
        parser.add_argument(name, type=kind)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    numbers = array.array("Q")
    with open(options.keys, "rb") as file:
        numbers.frombytes(file.read())
    keys = numbers.tolist()
    result: dict[str, object] = {}
    update, each = [], []
    for _ in range(options.repeat):
        bloom = Bloom(options.capacity, options.rate)
        start = time.perf_counter()
        bloom.update(keys)
        update.append(time.perf_counter() - start)
    others = [key ^ 1 << 60 for key in keys]
    result["false positives"] = sum(key in bloom for key in others) / len(keys)
    result["bytes"] = bloom.size_in_bits // 8
    for _ in range(options.repeat):
        bloom = Bloom(options.capacity, options.rate)
        start = time.perf_counter()
        for key in keys:
            if key not in bloom:
                bloom.add(key)
        each.append(time.perf_counter() - start)
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump({**result, "update": update, "ask and add": each}, file)


if __name__ == "__main__":
    main()
