"""Connected components and breadth-first trees of a graph (plain Python, the definition)."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


def check_edges(m: int, left: I64, right: I64) -> None:
    """ValueError for sides of unequal length, IndexError for a node outside 0 to m - 1."""
    if len(left) != len(right):
        raise ValueError(f"{len(left)} nodes on the left but {len(right)} on the right")
    for side in (left, right):
        if len(side) and (int(side.min()) < 0 or int(side.max()) >= m):
            raise IndexError(f"node outside 0 to {m - 1}")


def components(m: int, left: I64, right: I64) -> I64:
    """Label of each node's connected component: its lowest node.

    m        number of nodes
    left     int64[p], one end of each edge
    right    int64[p], the other end; loops and repeats are allowed
    returns  int64[m]; the same whatever the order of the edges. A node without edges is its own label

    Raises ValueError and IndexError as `check_edges`.
    """
    return tree(m, left, right)[1]


def tree(m: int, left: I64, right: I64) -> tuple[I64, I64, I64]:
    """Breadth-first tree of each component from its lowest node.

    m        number of nodes
    left     int64[p], one end of each edge
    right    int64[p], the other end
    returns  parent int64[m], root int64[m], depth int64[m]: root = lowest node of the component, depth = fewest edges
             from the root, parent = lowest neighbour that is one edge nearer to the root; -1 for a root

    Raises ValueError and IndexError as `check_edges`.
    """
    check_edges(m, left, right)
    around: list[list[int]] = [[] for _ in range(m)]
    for a, b in zip(left.tolist(), right.tolist(), strict=True):
        around[a].append(b)
        around[b].append(a)
    parent, root, depth = [-1] * m, [-1] * m, [0] * m
    for start in range(m):
        if root[start] >= 0:
            continue
        root[start] = start
        queue = deque([start])
        while queue:
            node = queue.popleft()
            for other in around[node]:
                if root[other] < 0:
                    root[other], depth[other], parent[other] = start, depth[node] + 1, node
                    queue.append(other)
                elif depth[other] == depth[node] + 1:
                    parent[other] = min(parent[other], node)
    return np.array(parent, np.int64), np.array(root, np.int64), np.array(depth, np.int64)
