"""SimHash packages of PyPI: texts in memory to 64-bit fingerprints, one core.

    python benchmarks/peers/simhash_packages.py VARIANT FILE OUT [--repeat N]

Each is used as its own page shows: lower case, words split at white space, five of them joined make a feature. What a
variant does with features is said where it stands. FILE has a JSON string a line; OUT gets {"seconds": [...],
"fingerprints": [...], "check": ...}, check being fingerprints of the given 64-bit hashes where a package takes such.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

_HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [place for place in sys.path if os.path.realpath(place or ".") != _HERE]

N = 5


def features(text: str) -> list[str]:
    words = text.lower().split()
    return [" ".join(words[i : i + N]) for i in range(max(1, len(words) - N + 1))]


def rust() -> tuple[Callable[[str], int], Callable[[list[int]], int] | None]:
    """python-simhash: features hashed by xxh3 and counted, repeats as often as they occur, all in Rust."""
    from simhash import simhash

    return lambda text: simhash(features(text), hasher="xxh3"), None


def pybind() -> tuple[Callable[[str], int], Callable[[list[int]], int] | None]:
    """simhash-pybind (of simhash-py): 64 bits of MD5 for each feature in Python, sums in C++."""
    import simhash

    return lambda text: simhash.compute([simhash.unsigned_hash(f.encode()) for f in features(text)]), simhash.compute


def pybind_hash() -> tuple[Callable[[str], int], Callable[[list[int]], int] | None]:
    """The same with Python's own hash of a string, its cheapest: another fingerprint in every process."""
    import simhash

    mask = 2**64 - 1
    return lambda text: simhash.compute([hash(f) & mask for f in features(text)]), simhash.compute


def plain() -> tuple[Callable[[str], int], Callable[[list[int]], int] | None]:
    """simhash: MD5 for each different feature, sums in NumPy."""
    from simhash import Simhash

    return lambda text: Simhash(features(text)).value, None


VARIANTS = {"python-simhash": rust, "simhash-pybind": pybind, "simhash-pybind hash": pybind_hash, "simhash": plain}


def rows(path: str) -> Iterator[str]:
    with open(path, encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("variant", choices=VARIANTS)
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--hashes", default="", help="JSON: lists of hashes to take the fingerprints of")
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    compute, of_hashes = VARIANTS[given.variant]()
    texts = list(rows(given.input))
    seconds = []
    found: list[int] = []
    for _ in range(given.repeat):
        start = time.perf_counter()
        found = [compute(text) for text in texts]
        seconds.append(time.perf_counter() - start)
    check: list[int] | None = None
    if given.hashes and of_hashes is not None:
        with open(given.hashes, encoding="utf-8") as file:
            check = [of_hashes(one) for one in json.load(file)]
    out: dict[str, Any] = {"seconds": seconds, "fingerprints": found, "check": check}
    with open(given.output, "w", encoding="utf-8") as file:
        json.dump(out, file)


if __name__ == "__main__":
    main()
