"""What the drivers share: arguments, reading, shingles, pools, the greedy rule and timing. Standard library and NumPy.

A driver is run by benchmarks/compare.py in the environment of its peer:

    python benchmarks/peers/<name>.py dedup FILE OUT         file to kept rows: {"kept": [...], "phases": {...}}
    python benchmarks/peers/<name>.py hashes - OUT           hashed shingles to signatures, one core
    python benchmarks/peers/<name>.py text FILE OUT          texts in memory to signatures, one core

FILE has one object a line with the strings "id" (the row number) and "text". Drivers are named after their peer;
importing this module puts their folder last on the path, or `import rensa` would find the driver.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

_HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [place for place in sys.path if os.path.realpath(place or ".") != _HERE] + [_HERE]

N = 5
BLOCK = 2 << 20  # bytes of the file that a worker takes at a time
_HAN = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)
_UNIT = re.compile(f"[{_HAN}]|[^\\W{_HAN}]+")
_START = time.perf_counter()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("dedup", "hashes", "text"))
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--slots", type=int, default=128)
    parser.add_argument("--language", default="en", help="en or zh: for peers that must be told")
    parser.add_argument("--variant", default="", help="for peers with more than one sketch")
    parser.add_argument("--work", default="", help="an empty folder")
    parser.add_argument("--documents", type=int, default=1000, help="hashes: documents")
    parser.add_argument("--length", type=int, default=1000, help="hashes: shingles of a document")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=8 << 20, help="text: bytes of text")
    return parser.parse_args()


# -------------------------------------------------------------------------------------------------- text to shingles


def units(text: str) -> list[str]:
    """Words and single characters of Chinese and Japanese, in order."""
    return _UNIT.findall(text)


def shingles(text: str) -> list[str]:
    """Runs of five units of the lower-cased text, joined by a blank; a shorter text is one shingle of all of them.

    Units are words (\\w+) and single characters of Chinese and Japanese: token:5 of gpu-dedup but for NFKC, combining
    marks, emoji and the other scripts without blanks.
    """
    u = units(text.lower())
    if len(u) < N:
        return [" ".join(u)] if u else []
    return list(map(" ".join, zip(u, u[1:], u[2:], u[3:], u[4:], strict=False)))


def blocks(path: str) -> list[tuple[str, int, int]]:
    """The file cut at line feeds: (path, first byte, end)."""
    size = os.path.getsize(path)
    out = []
    with open(path, "rb") as file:
        start = 0
        while start < size:
            file.seek(min(start + BLOCK, size))
            if file.tell() < size:
                file.readline()
            out.append((path, start, file.tell()))
            start = file.tell()
    return out


def block_rows(block: tuple[str, int, int]) -> list[tuple[int, str]]:
    """(row, text) of a block."""
    path, start, end = block
    with open(path, "rb") as file:
        file.seek(start)
        data = file.read(end - start)
    values = map(json.loads, filter(None, data.split(b"\n")))
    return [(int(value["id"]), value["text"]) for value in values]


def texts(path: str, size: int) -> list[str]:
    """The first texts of a file, `size` bytes of them."""
    out: list[str] = []
    with open(path, "rb") as file:
        for line in file:
            if size <= 0:
                break
            out.append(json.loads(line)["text"])
            size -= len(out[-1].encode("utf-8", "surrogatepass"))
    return out


def in_blocks(work: Callable[[tuple[str, int, int]], Any], path: str, cores: int) -> Iterator[Any]:
    """`work` on every block of the file, in order, in as many processes as there are cores."""
    if cores == 1:
        yield from map(work, blocks(path))
        return
    with multiprocessing.get_context("fork").Pool(cores) as pool:
        yield from pool.imap(work, blocks(path))


# ----------------------------------------------------------------------------------------------------- to kept rows


def greedy(count: int, matches: Iterable[tuple[int, int]]) -> list[bool]:
    """Which rows stay: in order, a row goes if it matches an earlier one that stays. `matches` come in any order."""
    earlier: dict[int, list[int]] = {}
    for a, b in matches:
        if a != b:
            earlier.setdefault(max(a, b), []).append(min(a, b))
    stays = [True] * count
    for row in sorted(earlier):
        stays[row] = not any(stays[other] for other in earlier[row])
    return stays


class Phases:
    """Seconds of the steps of a driver."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {"start": round(time.perf_counter() - _START, 3)}
        self._last = time.perf_counter()

    def done(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = round(now - self._last, 3)
        self._last = now


def write(output: str, **values: Any) -> None:
    with open(output, "w", encoding="utf-8") as file:
        json.dump(values, file)


# ---------------------------------------------------------------------------------------------------- sketch alone


def hashed_sets(documents: int, length: int) -> tuple[Any, Any]:
    """Random shingle hashes: uint64[documents * length] and uint64[documents + 1] offsets; the same for every peer."""
    import numpy as np

    rng = np.random.default_rng(1)
    hashes = rng.integers(0, 2**64, documents * length, dtype=np.uint64)
    return hashes, np.arange(documents + 1, dtype=np.uint64) * np.uint64(length)


def timed(function: Callable[[], Any], repeat: int, least: float = 0.5) -> list[float]:
    """Seconds of a call, `repeat` times after one that is not counted; short calls are made many in a row."""
    start = time.perf_counter()
    function()
    calls = max(1, round(least / max(time.perf_counter() - start, 1e-6)))
    out = []
    for _ in range(repeat):
        start = time.perf_counter()
        for _ in range(min(calls, 1000)):
            function()
        out.append((time.perf_counter() - start) / min(calls, 1000))
    return out


def sketch_alone(
    given: argparse.Namespace, from_hashes: Callable[..., Any] | None, from_texts: Callable[[list[str]], Any]
) -> None:
    """The modes `hashes` and `text`: time the peer's own call and write the result.

    from_hashes  (hashes, offsets) -> a call without arguments; None where the API takes no hashes
    """
    if given.mode == "hashes":
        if from_hashes is None:
            write(given.output, why="takes no hashes")
            return
        call = from_hashes(*hashed_sets(given.documents, given.length))
        write(given.output, seconds=timed(call, given.repeat), shingles=given.documents * given.length)
    else:
        sample = texts(given.input, given.bytes)
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in sample)
        write(given.output, seconds=timed(lambda: from_texts(sample), given.repeat), bytes=size, texts=len(sample))


def folder(given: argparse.Namespace, name: str) -> str:
    path = Path(given.work).resolve() / name
    path.mkdir(parents=True, exist_ok=True)
    return str(path)
