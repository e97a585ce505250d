"""Two kinds of match at once, in Numba; the definition is levels_ref."""

from __future__ import annotations

import numpy as np

from gpu_dedup.kernels.jit import frozen, jit
from gpu_dedup.kernels.levels_ref import FAR, FLAGGED, I64, NEAR, REMOVED, STAYS, check_levels


@jit
def _levels(
    group: I64, first: I64, neighbours: I64, hi: I64, lo: I64, near_flags: bool, far_flags: bool, there: I64,
    plain: I64, witness: I64, level: I64, state: I64,
) -> None:  # fmt: skip
    at = 0
    none = len(group)
    for x in range(len(group)):
        removing = none
        removing_level = -1
        flagging = none
        flagging_level = -1
        own = group[x]
        if own >= 0:
            for i in range(first[own], first[own + 1]):
                g = neighbours[i]
                if near_flags:
                    if plain[g] >= 0 and plain[g] < flagging:
                        flagging = plain[g]
                        flagging_level = NEAR
                elif there[g] >= 0 and there[g] < removing:
                    removing = there[g]
                    removing_level = NEAR
        while at < len(hi) and hi[at] == x:
            y = lo[at]
            at += 1
            if far_flags:
                if state[y] == STAYS and y < flagging:
                    flagging = y
                    flagging_level = FAR
            elif state[y] != REMOVED and y < removing:
                removing = y
                removing_level = FAR
        if removing < none:
            witness[x] = removing
            level[x] = removing_level
            state[x] = REMOVED
        elif flagging < none:
            witness[x] = flagging
            level[x] = flagging_level
            state[x] = FLAGGED
        if own >= 0 and state[x] != REMOVED:
            if there[own] < 0:
                there[own] = x
            if state[x] == STAYS and plain[own] < 0:
                plain[own] = x


def levels(
    group: I64, first: I64, neighbours: I64, hi: I64, lo: I64, near_flags: bool, far_flags: bool
) -> tuple[I64, I64, I64]:
    """Decide about members in keeper order; see levels_ref.levels."""
    check_levels(group, first, neighbours, hi, lo)
    m, groups = len(group), len(first) - 1
    witness, level = np.full(m, -1, np.int64), np.full(m, -1, np.int64)
    state = np.zeros(m, np.int64)
    there, plain = np.full(groups, -1, np.int64), np.full(groups, -1, np.int64)
    plain_arrays = [frozen(array, np.int64) for array in (group, first, neighbours, hi, lo)]
    _levels(
        plain_arrays[0], plain_arrays[1], plain_arrays[2], plain_arrays[3], plain_arrays[4], bool(near_flags),
        bool(far_flags), there, plain, witness, level, state,
    )  # fmt: skip
    return witness, level, state
