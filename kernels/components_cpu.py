"""Connected components and breadth-first trees (Numba). Contract: ``components_ref.py``.

Union-find with path halving, the lower root always on top: a node's pointer never goes up, so that the labels fall out
of one ascending pass. Nothing recurses; a path of edges in any order costs near-linear time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.components_ref import check_edges
from gpu_dedup.kernels.jit import frozen, jit

I64 = npt.NDArray[np.int64]


@jit
def _components(parent: I64, left: I64, right: I64) -> None:
    for e in range(len(left)):
        a = left[e]
        while parent[a] != a:
            parent[a] = parent[parent[a]]
            a = parent[a]
        b = right[e]
        while parent[b] != b:
            parent[b] = parent[parent[b]]
            b = parent[b]
        if a < b:
            parent[b] = a
        else:
            parent[a] = b
    for i in range(len(parent)):
        parent[i] = parent[parent[i]]


def components(m: int, left: I64, right: I64) -> I64:
    """Lowest node of each node's component; see ``components_ref.components``."""
    check_edges(m, left, right)
    label = np.arange(m, dtype=np.int64)
    _components(label, frozen(left, np.int64), frozen(right, np.int64))
    return label


@jit
def _tree(left: I64, right: I64, parent: I64, root: I64, depth: I64) -> None:
    m = len(parent)
    begin = np.zeros(m + 2, np.int64)
    for e in range(len(left)):
        begin[left[e] + 2] += 1
        begin[right[e] + 2] += 1
    for i in range(m):
        begin[i + 2] += begin[i + 1]
    near = np.empty(2 * len(left), np.int64)
    for e in range(len(left)):  # begin[i + 1] walks to where the neighbours of i end
        a = left[e]
        b = right[e]
        near[begin[a + 1]] = b
        begin[a + 1] += 1
        near[begin[b + 1]] = a
        begin[b + 1] += 1
    queue = np.empty(m, np.int64)
    for start in range(m):
        if root[start] >= 0:
            continue
        root[start] = start
        queue[0] = start
        head = 0
        tail = 1
        while head < tail:
            node = queue[head]
            head += 1
            for at in range(begin[node], begin[node + 1]):
                other = near[at]
                if root[other] < 0:
                    root[other] = start
                    depth[other] = depth[node] + 1
                    parent[other] = node
                    queue[tail] = other
                    tail += 1
                elif depth[other] == depth[node] + 1 and node < parent[other]:
                    parent[other] = node


def tree(m: int, left: I64, right: I64) -> tuple[I64, I64, I64]:
    """parent, root, depth of each node; see ``components_ref.tree``."""
    check_edges(m, left, right)
    parent, root, depth = np.full(m, -1, np.int64), np.full(m, -1, np.int64), np.zeros(m, np.int64)
    _tree(frozen(left, np.int64), frozen(right, np.int64), parent, root, depth)
    return parent, root, depth
