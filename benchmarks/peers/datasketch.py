"""datasketch: MinHash (affine32, 128 slots), MinHashLSH with the 17 bands of 7 rows of gpu-dedup.

The library's own loop: query the index, drop the text if a candidate's estimate meets the threshold, else insert.
Sketches are made in as many processes as there are cores; the index is one process (the library has no other way).
"""

from __future__ import annotations

import itertools

import driver  # first: it takes this folder from the front of the path

# isort: split
import numpy as np
from datasketch import MinHash, MinHashLSH

GIVEN = driver.arguments()
EMPTY = MinHash(num_perm=GIVEN.slots)


def sketch(texts: list[str]) -> list[MinHash]:
    sets = ([shingle.encode("utf-8", "surrogatepass") for shingle in set(driver.shingles(text))] for text in texts)
    return list(MinHash.generator(sets, num_perm=GIVEN.slots))


def work(block: tuple[str, int, int]) -> tuple[list[int], np.ndarray, list[bool]]:
    rows = driver.block_rows(block)
    sketches = sketch([text for _, text in rows])
    matrix = np.array([made.hashvalues for made in sketches]).reshape(len(rows), GIVEN.slots)
    return [row for row, _ in rows], matrix, [made.is_empty() for made in sketches]


def dedup() -> None:
    phases = driver.Phases()
    rows, parts, empty = [], [], []
    for numbers, matrix, none in driver.in_blocks(work, GIVEN.input, GIVEN.cores):
        rows += numbers
        parts.append(matrix)
        empty += none
    phases.done("sketch")
    index = MinHashLSH(threshold=GIVEN.threshold, num_perm=GIVEN.slots, params=(17, 7))
    kept, inserted = [], {}
    for row, values, none in zip(rows, (values for part in parts for values in part), empty, strict=True):
        if none:
            kept.append(row)
            continue
        made = MinHash(num_perm=GIVEN.slots, hashvalues=values, permutations=EMPTY.permutations, scheme=EMPTY.scheme)
        if any(inserted[other].jaccard(made) >= GIVEN.threshold for other in index.query(made)):
            continue
        index.insert(row, made, check_duplication=False)
        inserted[row] = made
        kept.append(row)
    phases.done("index")
    driver.write(GIVEN.output, kept=kept, phases=phases.seconds)


def from_hashes(hashes: np.ndarray, offsets: np.ndarray) -> object:
    # hashfunc is the identity: the API takes one Python integer a shingle, of 32 bits.
    low = (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    sets = [low[int(a) : int(b)].tolist() for a, b in itertools.pairwise(offsets)]
    return lambda: MinHash.bulk(sets, num_perm=GIVEN.slots, hashfunc=int)


if __name__ == "__main__":
    if GIVEN.mode == "dedup":
        dedup()
    else:
        driver.sketch_alone(GIVEN, from_hashes, sketch)
