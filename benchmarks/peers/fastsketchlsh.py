"""FastSketchLSH: Fast Similarity Sketch, 128 slots, LSH of 16 bands of 8 rows.

Sketches in as many processes as there are cores (one thread each); LSH in one process with threads. Its flags mark
every member of a group, so the candidates of `query` are taken, those whose equal slots meet the threshold match, and
in file order a row goes if it matches an earlier one that stays.
"""

from __future__ import annotations

import driver  # first: it takes this folder from the front of the path

# isort: split
import numpy as np
from FastSketchLSH import LSH, FastSimilaritySketch

GIVEN = driver.arguments()
BANDS = 16
SKETCHER = FastSimilaritySketch(size=GIVEN.slots, seed=42)


def sketch(sets: list[list[str]]) -> np.ndarray:
    return np.asarray(SKETCHER.batch(sets, num_threads=1), np.uint64).reshape(len(sets), GIVEN.slots)


def work(block: tuple[str, int, int]) -> tuple[list[int], np.ndarray, np.ndarray]:
    rows = driver.block_rows(block)
    sets = [driver.shingles(text) for _, text in rows]
    full = [i for i, one in enumerate(sets) if one]
    return [row for row, _ in rows], np.array(full, np.int64), sketch([sets[i] for i in full])


def dedup() -> None:
    phases = driver.Phases()
    rows: list[int] = []
    places, parts = [], []
    for numbers, full, matrix in driver.in_blocks(work, GIVEN.input, GIVEN.cores):
        places.append(full + len(rows))
        rows += numbers
        parts.append(matrix)
    place, signatures = np.concatenate(places), np.ascontiguousarray(np.concatenate(parts))
    phases.done("sketch")
    index = LSH(num_perm=GIVEN.slots, num_bands=BANDS, num_threads=GIVEN.cores)
    index.insert(signatures)
    others, ends = (np.asarray(part).astype(np.int64) for part in index.query(signatures, format="csr"))
    mine = np.repeat(np.arange(len(signatures)), np.diff(ends))
    later = others < mine
    mine, others = mine[later], others[later]
    alike = np.empty(len(mine), bool)
    for first in range(0, len(mine), 1 << 16):
        part = slice(first, first + (1 << 16))
        equal = (signatures[mine[part]] == signatures[others[part]]).sum(axis=1)
        alike[part] = equal >= GIVEN.threshold * GIVEN.slots
    stays = driver.greedy(len(signatures), zip(mine[alike].tolist(), others[alike].tolist(), strict=True))
    gone = {int(place[i]) for i, stay in enumerate(stays) if not stay}
    phases.done("index")
    driver.write(GIVEN.output, kept=[row for i, row in enumerate(rows) if i not in gone], phases=phases.seconds)


def from_hashes(hashes: np.ndarray, offsets: np.ndarray) -> object:
    return lambda: SKETCHER.batch_csr(hashes, offsets, prehashed=True, num_threads=1)


def from_texts(texts: list[str]) -> object:
    return SKETCHER.batch([driver.shingles(text) for text in texts], num_threads=1)


if __name__ == "__main__":
    if GIVEN.mode == "dedup":
        dedup()
    else:
        driver.sketch_alone(GIVEN, from_hashes, from_texts)
