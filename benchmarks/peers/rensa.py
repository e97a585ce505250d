"""rensa: R-MinHash over the full set (variant full), and its rho pipeline (variant rho), 128 slots, 16 bands of 8 rows.

full: sketches in as many processes as there are cores, then RMinHashDeduplicator, which verifies candidates on the
estimate, in file order in one process.
rho: shingle hashes in the processes, then one digest matrix and the one-shot flags of RMinHashLSH (threads of its own).
Flags name no partner and mark every member of a group, so the flagged rows go once more through an index, one at a
time in file order, and those that meet an earlier one are dropped.
"""

from __future__ import annotations

from array import array

import driver  # first: it takes this folder from the front of the path

# isort: split
import numpy as np
from rensa import RMinHash, RMinHashDeduplicator, RMinHashLSH

GIVEN = driver.arguments()
BANDS, SEED = 16, 42


def sketch_block(block: tuple[str, int, int]) -> tuple[list[int], list[int], list[RMinHash]]:
    rows, sets = take(block)
    return rows, [len(one) for one in sets], RMinHash.from_token_sets(sets, num_perm=GIVEN.slots, seed=SEED)


def hash_block(block: tuple[str, int, int]) -> tuple[list[int], list[int], bytes]:
    rows, sets = take(block)
    flat = array("Q")
    for hashes in RMinHash.hash_token_sets(sets):
        flat.extend(hashes)
    return rows, [len(one) for one in sets], flat.tobytes()


def take(block: tuple[str, int, int]) -> tuple[list[int], list[list[str]]]:
    rows = driver.block_rows(block)
    return [row for row, _ in rows], [driver.shingles(text) for _, text in rows]


def full() -> None:
    phases = driver.Phases()
    rows, counts, sketches = [], [], []
    for numbers, sizes, made in driver.in_blocks(sketch_block, GIVEN.input, GIVEN.cores):
        rows += numbers
        counts += sizes
        sketches += made
    phases.done("sketch")
    index = RMinHashDeduplicator(
        threshold=GIVEN.threshold, num_perm=GIVEN.slots, use_lsh=True, num_bands=BANDS, seed=SEED
    )
    entries = [(str(row), made) for row, size, made in zip(rows, counts, sketches, strict=True) if size]
    flags = iter(index.add_pairs(entries))
    kept = [row for row, size in zip(rows, counts, strict=True) if not size or next(flags)]
    phases.done("index")
    driver.write(GIVEN.output, kept=kept, phases=phases.seconds)


def rho() -> None:
    phases = driver.Phases()
    rows, counts, parts = [], [], []
    for numbers, sizes, flat in driver.in_blocks(hash_block, GIVEN.input, GIVEN.cores):
        rows += numbers
        counts += sizes
        parts.append(flat)
    hashes = np.frombuffer(b"".join(parts), np.uint64)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.uint64)
    phases.done("hash")
    matrix = RMinHash.digest_matrix_from_flat_token_hashes_rho(hashes, offsets, num_perm=GIVEN.slots, seed=SEED)
    index = RMinHashLSH(threshold=GIVEN.threshold, num_perm=GIVEN.slots, num_bands=BANDS)
    flags = index.query_duplicate_flags_matrix_one_shot(matrix)
    gone = set()
    for i, flag in enumerate(flags):
        if flag and counts[i]:
            own = hashes[int(offsets[i]) : int(offsets[i + 1])]
            ends = np.array([0, len(own)], np.uint64)
            single = RMinHash.digest_matrix_from_flat_token_hashes_rho(own, ends, num_perm=GIVEN.slots, seed=SEED)
            if index.insert_matrix_and_query_duplicate_flags(single, start_key=i)[0]:
                gone.add(i)
    phases.done("index")
    driver.write(GIVEN.output, kept=[row for i, row in enumerate(rows) if i not in gone], phases=phases.seconds)


def from_hashes(hashes: np.ndarray, offsets: np.ndarray) -> object:
    make = RMinHash.digest_matrix_from_flat_token_hashes
    if GIVEN.variant == "rho":
        make = RMinHash.digest_matrix_from_flat_token_hashes_rho
    return lambda: make(hashes, offsets, num_perm=GIVEN.slots, seed=SEED)


def from_texts(texts: list[str]) -> object:
    make = RMinHash.digest_matrix_from_token_sets
    if GIVEN.variant == "rho":
        make = RMinHash.digest_matrix_from_token_sets_rho
    return make([driver.shingles(text) for text in texts], num_perm=GIVEN.slots, seed=SEED)


if __name__ == "__main__":
    if GIVEN.mode == "dedup":
        rho() if GIVEN.variant == "rho" else full()
    else:
        driver.sketch_alone(GIVEN, from_hashes, from_texts)
