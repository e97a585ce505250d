"""Sampled sets against every set: who shares enough with whom (NumPy, the definition).

An inverted index of the sample - item to the sampled sets that hold it - turns brute force over all pairs into one look
for each item of the other sets.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

PPM = 1_000_000


def check_ragged(items: U64, offsets: I64) -> None:
    """ValueError for offsets that do not cut `items` up."""
    if len(offsets) < 1 or offsets[0] < 0 or offsets[-1] > len(items) or bool((offsets[1:] < offsets[:-1]).any()):
        raise ValueError(f"offsets must rise from 0 or more to at most {len(items)}, the number of items")


def audit_index(items: U64, offsets: I64) -> tuple[U64, I64, I64, I64, I64]:
    """Inverted index of n sampled sets.

    items    uint64[offsets[n]]: the sets one after the other, each item once within a set
    offsets  int64[n + 1]
    returns  keys       uint64[u], ascending: every different item
             starts     int64[u + 1]
             owners     int64[starts[u]]: sets that hold keys[i] are owners[starts[i]:starts[i + 1]], ascending
             directory  int64[2**d + 1]: keys whose highest d bits are j stand at directory[j] to directory[j + 1];
                        2**d is the first power of two, from 2 on, that is not below u
             sizes      int64[n]

    Raises ValueError for offsets that do not cut `items` up, or for a set that holds an item twice.
    """
    check_ragged(items, offsets)
    sizes = np.diff(offsets)
    owners = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    flat = items[offsets[0] : offsets[-1]]
    order = np.lexsort((owners, flat))
    flat, owners = flat[order], owners[order]
    if bool(((flat[1:] == flat[:-1]) & (owners[1:] == owners[:-1])).any()):
        raise ValueError("a set holds an item twice")
    first = np.flatnonzero(np.concatenate([np.ones(min(len(flat), 1), np.bool_), flat[1:] != flat[:-1]]))
    keys = flat[first]
    starts = np.append(first, len(flat)).astype(np.int64)
    bits = max(1, (len(keys) - 1).bit_length())
    edges = np.arange(1, 2**bits, dtype=np.uint64) << np.uint64(64 - bits)
    directory = np.zeros(2**bits + 1, np.int64)
    directory[1:-1] = np.searchsorted(keys, edges)
    directory[-1] = len(keys)
    return keys, starts, owners, directory, sizes


def check_index(keys: U64, starts: I64, owners: I64, directory: I64, sizes: I64) -> None:
    """ValueError for arrays that `audit_index` cannot have made: they would lead out of bounds."""
    cells = len(directory) - 1
    if cells < 2 or cells & (cells - 1) or directory[0] != 0 or directory[-1] != len(keys):
        raise ValueError("directory must have 2**d + 1 entries from 0 to the number of keys")
    if len(starts) != len(keys) + 1 or starts[0] != 0 or starts[-1] != len(owners):
        raise ValueError("starts must cut the owners up, key by key")
    for array in (directory, starts):
        if bool((array[1:] < array[:-1]).any()):
            raise ValueError("directory and starts must not fall")
    if len(owners) and (int(owners.min()) < 0 or int(owners.max()) >= len(sizes)):
        raise ValueError(f"an owner is outside 0 to {len(sizes) - 1}")


def audit(
    items: U64, offsets: I64, keys: U64, starts: I64, owners: I64, directory: I64, sizes: I64, threshold_ppm: int
) -> tuple[I64, I64, I64, I64]:
    """Pairs of a set and a sampled set at or above a Jaccard similarity, by counting what each pair shares.

    items    uint64[offsets[m]]: m sets one after the other, each item once within a set
    offsets  int64[m + 1]
    keys, starts, owners, directory, sizes   as `audit_index` gave them, n sampled sets
    threshold_ppm  least similarity in millionths, 1 or more
    returns  left int64[p] set, right int64[p] sampled set, shared int64[p], union int64[p]; ascending by (left, right)

    A pair is given where shared * 10**6 >= threshold_ppm * union, in whole numbers, and shared >= 1.
    Raises ValueError for arrays that do not fit together or a threshold below 1.
    """
    check_ragged(items, offsets)
    check_index(keys, starts, owners, directory, sizes)
    if threshold_ppm < 1:
        raise ValueError(f"threshold {threshold_ppm} is below 1 millionth: every pair would match")
    found: list[tuple[int, int, int, int]] = []
    for document in range(len(offsets) - 1):
        mine = items[offsets[document] : offsets[document + 1]]
        place = np.searchsorted(keys, mine)
        inside = place < len(keys)
        hits = place[inside][keys[place[inside]] == mine[inside]]
        counts = np.zeros(len(sizes), np.int64)
        for key in hits.tolist():
            counts[owners[starts[key] : starts[key + 1]]] += 1
        union = sizes + len(mine) - counts
        for sampled in np.flatnonzero((counts > 0) & (counts * PPM >= threshold_ppm * union)).tolist():
            found.append((document, sampled, int(counts[sampled]), int(union[sampled])))
    left, right, shared, both = np.array(found, np.int64).reshape(len(found), 4).T
    return left.copy(), right.copy(), shared.copy(), both.copy()
