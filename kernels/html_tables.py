"""HTML's character references as this package means them: one table, shipped, the same under every interpreter.

The table comes from Python's html package by way of html_build.py and lies beside this file. Importing this module
loads nothing.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

NOTHING = 0xFFFFFFFF  # in `numbers`: the reference becomes nothing at all
REPLACEMENT = 0xFFFD


@cache
def _load() -> dict[str, npt.NDArray[np.generic]]:
    with np.load(Path(__file__).with_name("html.npz"), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive}


def _ragged(stem: str) -> list[bytes]:
    arrays = _load()
    data, starts = arrays[f"{stem}_data"].tobytes(), arrays[f"{stem}_start"].tolist()
    return [data[low:high] for low, high in pairwise(starts)]


@cache
def names() -> dict[bytes, bytes]:
    """What each name becomes, UTF-8; names without the `&`, those that end in `;` with it."""
    return dict(zip(_ragged("name"), _ragged("value"), strict=True))


@cache
def numbers() -> npt.NDArray[np.uint32]:
    """uint32[0xA0]: code point that a number below 0xA0 becomes (0x80 to 0x9F as in windows-1252), or NOTHING."""
    return np.ascontiguousarray(_load()["number"], np.uint32)


class Trie(NamedTuple):
    """The names as a tree of bytes, node 0 the empty name.

    edges   int32[nodes + 1]: edges of node k are edges[k] to edges[k + 1]
    bytes_  uint8[nodes - 1]: byte of an edge; of one node ascending
    to      int32[nodes - 1]: where an edge leads
    value   int32[nodes]: number of the value of the name that ends here, -1 where none does
    starts  int32[values + 1], data uint8[...]: value k is data[starts[k]:starts[k + 1]]
    numbers uint32[0xA0]: as `numbers`
    """

    edges: npt.NDArray[np.int32]
    bytes_: npt.NDArray[np.uint8]
    to: npt.NDArray[np.int32]
    value: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]
    numbers: npt.NDArray[np.uint32]


@cache
def trie() -> Trie:
    """The table for fast kernels, made at the first call (some ten milliseconds)."""
    table = names()
    prefixes = sorted({name[:size] for name in table for size in range(len(name) + 1)})  # a node before its children
    node = {prefix: number for number, prefix in enumerate(prefixes)}
    number_of = {name: number for number, name in enumerate(table)}
    children: list[list[bytes]] = [[] for _ in prefixes]
    for prefix in prefixes[1:]:
        children[node[prefix[:-1]]].append(prefix)
    flat = [child for some in children for child in some]
    sizes = [len(value) for value in table.values()]
    return Trie(
        np.cumsum([0] + [len(some) for some in children]).astype(np.int32),
        np.array([child[-1] for child in flat], np.uint8),
        np.array([node[child] for child in flat], np.int32),
        np.array([number_of.get(prefix, -1) for prefix in prefixes], np.int32),
        np.cumsum([0, *sizes]).astype(np.int32),
        np.frombuffer(bytearray(b"".join(table.values())), np.uint8),
        numbers(),
    )
