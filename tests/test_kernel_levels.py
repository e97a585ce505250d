"""Two kinds of match at once: by hand, by the words of the rule over all pairs, and Numba against the definition."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup.kernels import levels_cpu, levels_ref

BOTH = pytest.mark.parametrize("kernel", [levels_ref, levels_cpu], ids=["numpy", "numba"])
KINDS = [(False, False), (False, True), (True, False), (True, True)]


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


def call(
    kernel: ModuleType, group: list[int], edges: set[tuple[int, int]], far: list[tuple[int, int]],
    near_flags: bool = False, far_flags: bool = False,
) -> tuple[list[int], list[int], list[int]]:  # fmt: skip
    """edges: neighbouring groups; a group is next to itself."""
    count = max(group, default=-1) + 1
    around = [sorted({g} | {b for a, b in edges if a == g} | {a for a, b in edges if b == g}) for g in range(count)]
    first = np.cumsum([0, *map(len, around)])
    pairs = sorted(far)
    made = kernel.levels(
        ints(group), first.astype(np.int64), ints([g for one in around for g in one]), ints([hi for hi, _ in pairs]),
        ints([lo for _, lo in pairs]), near_flags, far_flags,
    )  # fmt: skip
    witness, level, state = (array.tolist() for array in made)
    return witness, level, state


def by_the_words(
    group: list[int], edges: set[tuple[int, int]], far: list[tuple[int, int]], near_flags: bool, far_flags: bool
) -> tuple[list[int], list[int], list[int]]:
    """The rule as it is written, over all pairs of members."""
    m = len(group)
    state = ["stays"] * m
    witness, level = [-1] * m, [-1] * m
    for x in range(m):
        kinds: dict[int, int] = {}
        for y in range(x):
            a, b = group[x], group[y]
            if a >= 0 and b >= 0 and (a == b or (a, b) in edges or (b, a) in edges):
                kinds[y] = 1
            elif (x, y) in far:
                kinds[y] = 2
        flags = {1: near_flags, 2: far_flags}
        removing = [y for y, kind in kinds.items() if not flags[kind] and state[y] != "removed"]
        flagging = [y for y, kind in kinds.items() if flags[kind] and state[y] == "stays"]
        if removing:
            state[x], witness[x] = "removed", min(removing)
        elif flagging:
            state[x], witness[x] = "flagged", min(flagging)
        if witness[x] >= 0:
            level[x] = kinds[witness[x]]
    return witness, level, [("stays", "flagged", "removed").index(one) for one in state]


@BOTH
def test_by_hand(kernel: ModuleType) -> None:
    # 0 and 2 are one group, 3 is next to it, 1 is alone and 4 is like 1 and like 3
    group, edges, far = [0, -1, 0, 1, -1], {(0, 1)}, [(4, 1), (4, 3)]
    assert call(kernel, group, edges, far) == ([-1, -1, 0, 0, 1], [-1, -1, 1, 1, 2], [0, 0, 2, 2, 2])
    # a flagged row is still there, and may stand for one that goes
    assert call(kernel, group, edges, [(4, 3)], near_flags=True) == (
        [-1, -1, 0, 0, 3], [-1, -1, 1, 1, 2], [0, 0, 1, 1, 2],
    )  # fmt: skip
    # but none that is flagged
    assert call(kernel, group, edges, [(4, 3)], near_flags=True, far_flags=True)[0] == [-1, -1, 0, 0, -1]
    assert call(kernel, [], set(), []) == ([], [], [])


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], set[tuple[int, int]], list[tuple[int, int]]]:
    group = draw(st.lists(st.integers(-1, 4), max_size=14))
    count = max(group, default=-1) + 1
    edges = {(a, b) for a in range(count) for b in range(a) if draw(st.integers(0, 3)) == 0}
    far = [
        (hi, lo)
        for hi in range(len(group))
        for lo in range(hi)
        if draw(st.integers(0, 4)) == 0
        and not (
            group[hi] >= 0
            and group[lo] >= 0
            and (group[hi] == group[lo] or (max(group[hi], group[lo]), min(group[hi], group[lo])) in edges)
        )
    ]
    return group, edges, far


@given(cases(), st.sampled_from(KINDS))
@settings(max_examples=150)
def test_by_the_words_of_the_rule(
    case: tuple[list[int], set[tuple[int, int]], list[tuple[int, int]]], kinds: tuple[bool, bool]
) -> None:
    wanted = by_the_words(*case, *kinds)
    for kernel in (levels_ref, levels_cpu):
        assert call(kernel, *case, *kinds) == wanted


@BOTH
def test_what_leaves_the_arrays_is_refused(kernel: ModuleType) -> None:
    good = [ints([0, 0, -1]), ints([0, 1]), ints([0]), ints([1]), ints([0])]
    for place, wrong, words in (
        (0, [1, 0, 0], "group outside -1 to 0"), (1, [0, 2], "first must rise from 0 to 1"),
        (2, [1], "neighbour outside 0 to 0"), (3, [3], "within 0 to 2"), (4, [1], "lo < hi"), (3, [1, 2], "2 higher"),
    ):  # fmt: skip
        arguments = list(good)
        arguments[place] = ints(wrong)
        with pytest.raises(ValueError, match=words):
            kernel.levels(*arguments, False, False)
    with pytest.raises(ValueError, match="sorted"):
        kernel.levels(*good[:3], ints([2, 1]), ints([0, 0]), False, False)
