"""Daft: read_json, lower, regexp_replace to words, minhash (128 slots, 5 words, xxHash), all in Daft on its threads.

Daft stops at the signatures. Bands (17 of 7 rows) and the comparison of slots are NumPy here, which is faster than the
joins and the connected components that its guide has the user write: rows that agree in a band are candidates (each
with the first of its bucket and with its neighbour), equal slots at the threshold or above match, and in file order a
row goes if it matches an earlier one that stays. Words are \\w+ (and single Han or kana characters, for zh); a text of
fewer than five words is one shingle.
"""

from __future__ import annotations

import driver  # first: it takes this folder from the front of the path

# isort: split
import daft
import numpy as np
from daft import col
from daft.functions import lower, minhash, regexp_replace

GIVEN = driver.arguments()
BANDS, ROWS = 17, 7


def signatures(frame: daft.DataFrame) -> daft.DataFrame:
    text = lower(col("text"))
    if GIVEN.language == "zh":
        text = regexp_replace(text, r"([\p{Han}\p{Hiragana}\p{Katakana}])", " ${1} ")
    text = regexp_replace(regexp_replace(text, r"\W+", " "), "^ | $", "")
    made = minhash(text, num_hashes=GIVEN.slots, ngram_size=driver.N, hash_function="xxhash")
    return frame.select(col("id"), (text != "").alias("any"), made.alias("signature"))


def dedup() -> None:
    phases = driver.Phases()
    table = signatures(daft.read_json(GIVEN.input)).to_arrow().combine_chunks()
    phases.done("sketch")
    rows = np.array(table["id"].to_pylist(), np.int64)
    column = table["signature"].combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    order = np.argsort(rows, kind="stable")
    matrix = np.ascontiguousarray(flat.reshape(len(rows), GIVEN.slots)[order])
    usable = np.array(table["any"].to_pylist(), bool)[order]
    rows = rows[order]
    left, right = [], []
    for band in range(BANDS):
        keys = np.ascontiguousarray(matrix[:, band * ROWS : (band + 1) * ROWS]).view(f"V{4 * ROWS}").ravel()
        _, bucket = np.unique(keys, return_inverse=True)
        by_bucket = np.argsort(bucket, kind="stable")
        sorted_bucket = bucket[by_bucket]
        same = np.flatnonzero(sorted_bucket[1:] == sorted_bucket[:-1])
        first = np.searchsorted(sorted_bucket, sorted_bucket[same + 1])
        for partner in (same, first):
            left.append(by_bucket[partner])
            right.append(by_bucket[same + 1])
    a, b = np.concatenate(left), np.concatenate(right)
    keep = usable[a] & usable[b] & (a != b)
    pairs = np.unique(np.stack([a[keep], b[keep]], axis=1), axis=0) if keep.any() else np.zeros((0, 2), np.int64)
    equal = np.zeros(len(pairs), np.int64)
    for start in range(0, len(pairs), 1 << 16):
        part = pairs[start : start + (1 << 16)]
        equal[start : start + (1 << 16)] = (matrix[part[:, 0]] == matrix[part[:, 1]]).sum(axis=1)
    matches = pairs[equal >= GIVEN.threshold * GIVEN.slots]
    stays = driver.greedy(len(rows), matches.tolist())
    phases.done("bands")
    driver.write(GIVEN.output, kept=rows[np.array(stays, bool)].tolist(), phases=phases.seconds)


def from_texts(texts: list[str]) -> object:
    return signatures(daft.from_pydict({"id": [""] * len(texts), "text": texts})).to_arrow()


if __name__ == "__main__":
    if GIVEN.mode == "dedup":
        dedup()
    else:
        driver.sketch_alone(GIVEN, None, from_texts)
