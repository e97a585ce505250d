"""The rules of sweep_ref over pairs whose similarities a device has worked out in one go.

A device compares all candidates of a part faster than it could be asked about them one by one; the lazy rule then runs
over the finished numbers on the host. It gives the same witnesses, takes the same pairs and counts the same pairs as
looked at: those that the lazy rule would have asked for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.jit import frozen, inline, jit
from gpu_dedup.kernels.sweep_ref import BEST, LOWEST, PARTNER, check_pairs

I64 = npt.NDArray[np.int64]

PPM = 1_000_000


@inline
def _too_long(offsets: I64, a: int, b: int, limit: int) -> bool:
    too_long: bool = max(offsets[a + 1] - offsets[a], offsets[b + 1] - offsets[b]) > limit
    return too_long


@jit
def _replay(
    both: I64, whole: I64, offsets: I64, left: I64, right: I64, threshold_ppm: int, limit: int, rule: int,
    nodes: I64, witness: I64, shared: I64, union: I64,
) -> tuple[int, int, int]:  # fmt: skip
    verified = np.int64(0)
    matched = np.int64(0)
    passed = np.int64(0)
    for i in range(len(left)):
        x = nodes[left[i]]
        y = nodes[right[i]]
        if rule == PARTNER:
            if witness[x] >= 0 and witness[y] >= 0:
                continue
        elif witness[y] >= 0 or (rule == LOWEST and witness[x] >= 0):
            continue
        if _too_long(offsets, left[i], right[i], limit):
            passed += 1
            continue
        verified += 1
        if whole[i] == 0 or both[i] * PPM < threshold_ppm * whole[i]:
            continue
        matched += 1
        if witness[x] < 0 or (rule == BEST and both[i] * union[x] > shared[x] * whole[i]):
            witness[x] = y
            shared[x] = both[i]
            union[x] = whole[i]
        if rule == PARTNER and witness[y] < 0:
            witness[y] = x
            shared[y] = both[i]
            union[y] = whole[i]
    return verified, matched, passed


def replay(
    both: I64, whole: I64, offsets: I64, left: I64, right: I64, threshold_ppm: int, limit: int, rule: int,
    nodes: I64, witness: I64, shared: I64, union: I64,
) -> tuple[int, int, int]:  # fmt: skip
    """Find who goes, and why, as ``sweep_ref.sweep`` over sets.

    both, whole  int64[p]: items in both sets and in either set of each pair
    offsets      int64[members + 1]: of the sets; only their sizes are looked at
    the rest and what returns  as sweep_ref.sweep
    """
    if rule not in (LOWEST, BEST, PARTNER):
        raise ValueError(f"rule {rule} is unknown")
    _check(both, whole, offsets, left, right, nodes, witness, shared, union)
    plain = [frozen(array, np.int64) for array in (both, whole, offsets, left, right)]
    counts: tuple[int, int, int] = _replay(
        plain[0], plain[1], plain[2], plain[3], plain[4], int(threshold_ppm), int(limit), int(rule),
        frozen(nodes, np.int64), witness, shared, union,
    )  # fmt: skip
    return counts


def _check(both: I64, whole: I64, offsets: I64, left: I64, right: I64, nodes: I64, *state: I64) -> None:
    if len(whole) != len(both):
        raise ValueError(f"{len(both)} shared counts but {len(whole)} unions")
    if len(nodes) != len(offsets) - 1:
        raise ValueError(f"{len(nodes)} nodes for {len(offsets) - 1} sets")
    check_pairs(both, np.zeros(1, np.int64), left, right, nodes, *state)


@inline
def _root(parent: I64, node: int) -> int:
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@jit
def _replay_join(
    both: I64, whole: I64, offsets: I64, left: I64, right: I64, threshold_ppm: int, limit: int,
    nodes: I64, parent: I64, taken: I64,
) -> tuple[int, int, int]:  # fmt: skip
    verified = np.int64(0)
    matched = np.int64(0)
    passed = np.int64(0)
    for i in range(len(left)):
        x = _root(parent, nodes[left[i]])
        y = _root(parent, nodes[right[i]])
        if x == y:
            continue
        if _too_long(offsets, left[i], right[i], limit):
            passed += 1
            continue
        verified += 1
        if whole[i] > 0 and both[i] * PPM >= threshold_ppm * whole[i]:
            parent[max(x, y)] = min(x, y)
            taken[matched] = i
            matched += 1
    return verified, matched, passed


def replay_join(
    both: I64, whole: I64, offsets: I64, left: I64, right: I64, threshold_ppm: int, limit: int, nodes: I64, parent: I64
) -> tuple[I64, I64, I64, tuple[int, int, int]]:
    """Find the matches that join components, as ``sweep_ref.join`` over sets; both, whole, offsets as in `replay`."""
    _check(both, whole, offsets, left, right, nodes, parent)
    taken = np.empty(min(len(left), max(len(nodes) - 1, 0)), np.int64)
    plain = [frozen(array, np.int64) for array in (both, whole, offsets, left, right)]
    counts: tuple[int, int, int] = _replay_join(
        plain[0], plain[1], plain[2], plain[3], plain[4], int(threshold_ppm), int(limit),
        frozen(nodes, np.int64), parent, taken,
    )  # fmt: skip
    taken = taken[: counts[1]].copy()
    return taken, both[taken], whole[taken], counts
