"""gpu-dedup: the sketch alone, by its own kernels on one core. End to end is `gpu-dedup run`, without a driver."""

from __future__ import annotations

import driver  # first: it takes this folder from the front of the path

# isort: split
import numpy as np

from gpu_dedup.backend import host_backend
from gpu_dedup.batch import Tape
from gpu_dedup.kernels import fastsketch_cpu, minhash_cpu
from gpu_dedup.normalise import step_bits
from gpu_dedup.recipe import UNITS
from gpu_dedup.sketches import permutations

GIVEN = driver.arguments()
BACKEND = host_backend("numba")
FAST = GIVEN.variant == "fast"
A, B = permutations(0, GIVEN.slots + 2 if FAST else GIVEN.slots)
STEPS = step_bits(("nfkc", "lower", "whitespace"))
NONE = np.zeros(0, np.uint64)


def from_hashes(hashes: np.ndarray, offsets: np.ndarray) -> object:
    ends = offsets.astype(np.int64)
    sketch = fastsketch_cpu.fastsketch if FAST else minhash_cpu.minhash
    return lambda: sketch(hashes, ends, A, B)


def from_texts(texts: list[str]) -> object:
    tape = BACKEND.normalise(Tape.of(texts), STEPS)
    every = np.arange(len(tape), dtype=np.int64)
    sketch = BACKEND.fast_sketch if FAST else BACKEND.sketch
    return sketch(tape, every, UNITS.index("token"), driver.N, NONE, A, B)


if __name__ == "__main__":
    if GIVEN.mode == "dedup":
        raise SystemExit("end to end is gpu-dedup run")
    driver.sketch_alone(GIVEN, from_hashes, from_texts)
