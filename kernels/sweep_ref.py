"""Candidate pairs, verified lazily one after the other under a rule (plain Python, the definition).

Both functions walk pairs (left[i], right[i]) in the order given and look at the similarity of a pair only if the rule
still wants it. What is compared follows from the type of `items`:

    uint64    Jaccard of sets: items and offsets as in ``jaccard_ref``
    uint32    Levenshtein of sequences: items and offsets as in ``edit_ref``
    int64     similarity is known: items[i] equal parts of pair i, out of offsets[0]; offsets[0] = -1: every pair is a
              match, and its numbers are unknown (-1, -1)

A pair matches if both have at most `limit` items and shared * 10**6 >= threshold_ppm * union with union > 0, where
(shared, union) are the two numbers of the kernel named. Exact below 2**41 items a set.

A pair names two members; `nodes` says which entry of the state arrays each member is. State arrays are changed in
place, only at the entries of these nodes, so that calls over disjoint nodes may run at the same time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.edit_ref import edit
from gpu_dedup.kernels.jaccard_ref import check_sets, jaccard

I64 = npt.NDArray[np.int64]

PPM = 1_000_000

# Rules of `sweep`. A node with a witness is one that goes.
LOWEST = 0  # left goes if it matches a right that stays: the first such right is its witness
BEST = 1  # the same, but all rights that stay are tried; the witness is the first of those with the greatest similarity
PARTNER = 2  # both go; the witness of each is the first it matches


def check_pairs(items: npt.NDArray[Any], offsets: I64, left: I64, right: I64, nodes: I64, *state: I64) -> None:
    """ValueError or IndexError for arguments that would read or write out of bounds."""
    if items.dtype == np.int64:
        if len(left) != len(right) or len(left) != len(items) or len(offsets) != 1:
            raise ValueError(f"{len(items)} known similarities for {len(left)} and {len(right)} members of pairs")
        for side in (left, right):
            if len(side) and (int(side.min()) < 0 or int(side.max()) >= len(nodes)):
                raise IndexError(f"member outside 0 to {len(nodes) - 1}")
    else:
        if items.dtype not in (np.uint64, np.uint32):
            raise ValueError(f"items of type {items.dtype} are neither sets, sequences nor known similarities")
        check_sets(items, offsets, left, right)
        if len(nodes) != len(offsets) - 1:
            raise ValueError(f"{len(nodes)} nodes for {len(offsets) - 1} sets")
    for array in state:
        if array.dtype != np.int64 or not array.flags.c_contiguous or not array.flags.writeable or array.ndim != 1:
            raise ValueError("state arrays must be writable int64 vectors")
        if len(array) != len(state[0]):
            raise ValueError("state arrays differ in length")
        if len(nodes) and (int(nodes.min()) < 0 or int(nodes.max()) >= len(array)):
            raise IndexError(f"node outside 0 to {len(array) - 1}")


def _similar(items: npt.NDArray[Any], offsets: I64, i: int, a: int, b: int) -> tuple[int, int]:
    if items.dtype == np.int64:
        whole = int(offsets[0])
        return (int(items[i]), whole) if whole >= 0 else (-1, -1)
    one, other = np.array([a]), np.array([b])
    pair = jaccard(items, offsets, one, other) if items.dtype == np.uint64 else edit(items, offsets, one, other, 0)
    return int(pair[0][0]), int(pair[1][0])


def _matches(shared: int, union: int, threshold_ppm: int) -> bool:
    return union < 0 or (union > 0 and shared * PPM >= threshold_ppm * union)


def _too_long(items: npt.NDArray[Any], offsets: I64, a: int, b: int, limit: int) -> bool:
    if items.dtype == np.int64:
        return False
    return max(int(offsets[a + 1] - offsets[a]), int(offsets[b + 1] - offsets[b])) > limit


def _wanted(rule: int, left_stays: bool, right_stays: bool) -> bool:
    if rule == LOWEST:
        return left_stays and right_stays
    return right_stays if rule == BEST else left_stays or right_stays


def sweep(
    items: npt.NDArray[Any], offsets: I64, left: I64, right: I64, threshold_ppm: int, limit: int, rule: int,
    nodes: I64, witness: I64, shared: I64, union: I64,
) -> tuple[int, int, int]:  # fmt: skip
    """Find who goes, and why.

    items, offsets   what is compared, see the head of this file
    left, right      int64[p], members of each pair. So that the rules mean what they say, members are in keeper order,
                     right before left, and pairs are sorted by (left, right)
    threshold_ppm    least similarity in millionths
    limit            most items of a member that can match
    rule             LOWEST, BEST or PARTNER
    nodes            int64[members], entry of the state arrays for each member
    witness          int64[m], changed: node that stands for one that goes; -1 where it stays
    shared, union    int64[m], changed: similarity with the witness
    returns          pairs verified, pairs that matched, pairs passed over because of `limit`

    Looked at are: for LOWEST pairs whose sides both stay, for BEST pairs whose right stays, for PARTNER pairs of which
    a side stays. BEST compares shared / union as exact fractions (below 2**31 items a set).
    Raises ValueError and IndexError as `check_pairs`.
    """
    check_pairs(items, offsets, left, right, nodes, witness, shared, union)
    if rule not in (LOWEST, BEST, PARTNER):
        raise ValueError(f"rule {rule} is unknown")
    verified = matched = passed = 0
    for i, (a, b) in enumerate(zip(left.tolist(), right.tolist(), strict=True)):
        x, y = int(nodes[a]), int(nodes[b])
        if not _wanted(rule, bool(witness[x] < 0), bool(witness[y] < 0)):
            continue
        if _too_long(items, offsets, a, b, limit):
            passed += 1
            continue
        verified += 1
        both, whole = _similar(items, offsets, i, a, b)
        if not _matches(both, whole, threshold_ppm):
            continue
        matched += 1
        if witness[x] < 0 or (rule == BEST and both * int(union[x]) > int(shared[x]) * whole):
            witness[x], shared[x], union[x] = y, both, whole
        if rule == PARTNER and witness[y] < 0:
            witness[y], shared[y], union[y] = x, both, whole
    return verified, matched, passed


def _root(parent: I64, node: int) -> int:
    while parent[node] != node:
        node = int(parent[node])
    return node


def join(
    items: npt.NDArray[Any], offsets: I64, left: I64, right: I64, threshold_ppm: int, limit: int,
    nodes: I64, parent: I64,
) -> tuple[I64, I64, I64, tuple[int, int, int]]:  # fmt: skip
    """Find the matches that join components which no earlier match has joined.

    items, offsets, left, right, threshold_ppm, limit, nodes   as `sweep`
    parent   int64[m], changed: union-find over nodes, parent[i] <= i; start with parent[i] = i
    returns  taken int64[q] (positions of the pairs that joined, ascending), shared int64[q], union int64[q],
             (pairs verified, pairs that matched, pairs passed over because of `limit`)

    A pair inside one component is not looked at. The taken pairs are a forest; which ones they are depends on the order
    of the pairs, the components do not. Raises ValueError and IndexError as `check_pairs`.
    """
    check_pairs(items, offsets, left, right, nodes, parent)
    taken: list[tuple[int, int, int]] = []
    verified = passed = 0
    for i, (a, b) in enumerate(zip(left.tolist(), right.tolist(), strict=True)):
        x, y = _root(parent, int(nodes[a])), _root(parent, int(nodes[b]))
        if x == y:
            continue
        if _too_long(items, offsets, a, b, limit):
            passed += 1
            continue
        verified += 1
        both, whole = _similar(items, offsets, i, a, b)
        if _matches(both, whole, threshold_ppm):
            parent[max(x, y)] = min(x, y)
            taken.append((i, both, whole))
    out = np.array(taken, np.int64).reshape(len(taken), 3)
    columns = [np.ascontiguousarray(out[:, c]) for c in range(3)]
    return columns[0], columns[1], columns[2], (verified, len(taken), passed)
