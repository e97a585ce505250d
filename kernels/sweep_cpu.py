"""Candidate pairs, verified lazily one after the other under a rule (Numba). Contract: ``sweep_ref.py``.

One body for all that can be compared: Numba compiles it anew for each type of `items` that is really used, with the
comparison of that type inside. The similarity of a pair is given up as soon as it cannot reach the threshold.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types
from numba.extending import overload

from gpu_dedup.kernels import edit_cpu, jaccard_cpu
from gpu_dedup.kernels.jit import frozen, inline, jit
from gpu_dedup.kernels.sweep_ref import BEST, LOWEST, PARTNER, check_pairs

I64 = npt.NDArray[np.int64]

PPM = 1_000_000

_jaccard = jaccard_cpu.similar
_edit = edit_cpu.similar


def _similar(items: npt.NDArray[Any], offsets: I64, i: int, a: int, b: int, threshold_ppm: int) -> tuple[int, int]:
    """(shared, union) of pair i, members a and b; shared may be -1 where it cannot reach the threshold."""
    raise NotImplementedError("only compiled code calls this")


@overload(_similar, strict=False, jit_options={"error_model": "numpy"})
def _similar_of(items: Any, offsets: Any, i: Any, a: Any, b: Any, threshold_ppm: Any) -> Any:
    if items.dtype == types.uint64:
        return lambda items, offsets, i, a, b, threshold_ppm: _jaccard(items, offsets, a, b, threshold_ppm)
    if items.dtype == types.uint32:
        return lambda items, offsets, i, a, b, threshold_ppm: _edit(items, offsets, a, b, threshold_ppm)
    return lambda items, offsets, i, a, b, threshold_ppm: (items[i] if offsets[0] >= 0 else np.int64(-1), offsets[0])


def _size(items: npt.NDArray[Any], offsets: I64, a: int) -> int:
    """Items of member a; 0 where similarities are known."""
    raise NotImplementedError("only compiled code calls this")


@overload(_size, strict=False)
def _size_of(items: Any, offsets: Any, a: Any) -> Any:
    if items.dtype == types.int64:
        return lambda items, offsets, a: np.int64(0)
    return lambda items, offsets, a: offsets[a + 1] - offsets[a]


@inline
def _matches(shared: int, union: int, threshold_ppm: int) -> bool:
    return union < 0 or (union > 0 and shared * PPM >= threshold_ppm * union)


@jit
def _sweep(
    items: npt.NDArray[Any], offsets: I64, left: I64, right: I64, threshold_ppm: int, limit: int, rule: int,
    nodes: I64, witness: I64, shared: I64, union: I64,
) -> tuple[int, int, int]:  # fmt: skip
    verified = np.int64(0)
    matched = np.int64(0)
    passed = np.int64(0)
    for i in range(len(left)):
        a = left[i]
        b = right[i]
        x = nodes[a]
        y = nodes[b]
        if rule == PARTNER:
            if witness[x] >= 0 and witness[y] >= 0:
                continue
        elif witness[y] >= 0 or (rule == LOWEST and witness[x] >= 0):
            continue
        if max(_size(items, offsets, a), _size(items, offsets, b)) > limit:
            passed += 1
            continue
        verified += 1
        both, whole = _similar(items, offsets, i, a, b, threshold_ppm)
        if not _matches(both, whole, threshold_ppm):
            continue
        matched += 1
        if witness[x] < 0 or (rule == BEST and both * union[x] > shared[x] * whole):
            witness[x] = y
            shared[x] = both
            union[x] = whole
        if rule == PARTNER and witness[y] < 0:
            witness[y] = x
            shared[y] = both
            union[y] = whole
    return verified, matched, passed


def sweep(
    items: npt.NDArray[Any], offsets: I64, left: I64, right: I64, threshold_ppm: int, limit: int, rule: int,
    nodes: I64, witness: I64, shared: I64, union: I64,
) -> tuple[int, int, int]:  # fmt: skip
    """Find who goes, and why; see ``sweep_ref.sweep``."""
    check_pairs(items, offsets, left, right, nodes, witness, shared, union)
    if rule not in (LOWEST, BEST, PARTNER):
        raise ValueError(f"rule {rule} is unknown")
    counts: tuple[int, int, int] = _sweep(
        frozen(items, items.dtype), frozen(offsets, np.int64), frozen(left, np.int64), frozen(right, np.int64),
        int(threshold_ppm), int(limit), int(rule), frozen(nodes, np.int64), witness, shared, union,
    )  # fmt: skip
    return counts


@inline
def _root(parent: I64, node: int) -> int:
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@jit
def _join(
    items: npt.NDArray[Any], offsets: I64, left: I64, right: I64, threshold_ppm: int, limit: int,
    nodes: I64, parent: I64, taken: I64,
) -> tuple[int, int, int]:  # fmt: skip
    """taken[k] = (pair, shared, union) of the k-th match that joins."""
    verified = np.int64(0)
    matched = np.int64(0)
    passed = np.int64(0)
    for i in range(len(left)):
        a = left[i]
        b = right[i]
        x = _root(parent, nodes[a])
        y = _root(parent, nodes[b])
        if x == y:
            continue
        if max(_size(items, offsets, a), _size(items, offsets, b)) > limit:
            passed += 1
            continue
        verified += 1
        both, whole = _similar(items, offsets, i, a, b, threshold_ppm)
        if _matches(both, whole, threshold_ppm):
            parent[max(x, y)] = min(x, y)
            taken[matched, 0] = i
            taken[matched, 1] = both
            taken[matched, 2] = whole
            matched += 1
    return verified, matched, passed


def join(
    items: npt.NDArray[Any], offsets: I64, left: I64, right: I64, threshold_ppm: int, limit: int,
    nodes: I64, parent: I64,
) -> tuple[I64, I64, I64, tuple[int, int, int]]:  # fmt: skip
    """Find the matches that join components; see ``sweep_ref.join``."""
    check_pairs(items, offsets, left, right, nodes, parent)
    # a forest over the members has fewer edges than members
    taken = np.empty((min(len(left), max(len(nodes) - 1, 0)), 3), np.int64)
    counts: tuple[int, int, int] = _join(
        frozen(items, items.dtype), frozen(offsets, np.int64), frozen(left, np.int64), frozen(right, np.int64),
        int(threshold_ppm), int(limit), frozen(nodes, np.int64), parent, taken,
    )  # fmt: skip
    columns = [np.ascontiguousarray(taken[: counts[1], c]) for c in range(3)]
    return columns[0], columns[1], columns[2], counts
