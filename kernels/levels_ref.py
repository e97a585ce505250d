"""Who goes under two kinds of match at once, in keeper order (plain Python, the definition).

Near matches are those of whole groups: every two members of a group, and of neighbouring groups. Far matches are given
pair by pair. Each kind takes out what it finds, or only flags it:

    removed   a member with a match of a kind that removes, whose other side comes before it and is not removed; the
              lowest such is its witness. A flagged one will do: it is still there
    flagged   a member that is not removed, with a match of a kind that flags, whose other side comes before it and is
              neither removed nor flagged; the lowest such is its witness

So with both kinds removing it is the ordinary rule, and with both flagging the same rows are named.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

STAYS, FLAGGED, REMOVED = 0, 1, 2
NEAR, FAR = 1, 2


def check_levels(group: I64, first: I64, neighbours: I64, hi: I64, lo: I64) -> None:
    """ValueError for arguments that would leave the arrays or are in no order."""
    groups, m = len(first) - 1, len(group)
    if groups < 0 or int(first[0]) != 0 or int(first[-1]) != len(neighbours) or bool((first[1:] < first[:-1]).any()):
        raise ValueError(f"first must rise from 0 to {len(neighbours)}, the number of neighbours")
    if len(group) and not -1 <= int(group.min()) <= int(group.max()) < groups:
        raise ValueError(f"group outside -1 to {groups - 1}")
    if len(neighbours) and not 0 <= int(neighbours.min()) <= int(neighbours.max()) < groups:
        raise ValueError(f"neighbour outside 0 to {groups - 1}")
    if len(hi) != len(lo):
        raise ValueError(f"{len(hi)} higher members but {len(lo)} lower ones")
    if len(hi) and (int(lo.min()) < 0 or int(hi.max()) >= m or bool((lo >= hi).any())):
        raise ValueError(f"pairs must be lo < hi, within 0 to {m - 1}")
    if bool(((hi[1:] < hi[:-1]) | ((hi[1:] == hi[:-1]) & (lo[1:] <= lo[:-1]))).any()):
        raise ValueError("pairs must be sorted by (hi, lo), each once")


def levels(
    group: I64, first: I64, neighbours: I64, hi: I64, lo: I64, near_flags: bool, far_flags: bool
) -> tuple[I64, I64, I64]:
    """Decide about m members in keeper order.

    group       int64[m]: group of each member, -1 for none
    first       int64[g + 1], neighbours int64[e]: groups next to group i are neighbours[first[i]:first[i + 1]]; itself
                is one of them where its own members match each other
    hi, lo      int64[p]: far matches, lo < hi, sorted by (hi, lo), each once; none of them is near
    near_flags, far_flags   the kind flags, and does not remove
    returns     witness int64[m], -1 where a member stays; level int64[m]: NEAR or FAR, the kind of match with the
                witness, -1 where it stays; state int64[m]: STAYS, FLAGGED or REMOVED

    Raises ValueError as `check_levels`.
    """
    check_levels(group, first, neighbours, hi, lo)
    m = len(group)
    witness, level = np.full(m, -1, np.int64), np.full(m, -1, np.int64)
    state = np.zeros(m, np.int64)
    there: dict[int, int] = {}  # of each group the lowest member that is not removed
    plain: dict[int, int] = {}  # and the lowest that is not flagged, either
    far: dict[int, list[int]] = {}
    for high, low in zip(hi.tolist(), lo.tolist(), strict=True):
        far.setdefault(high, []).append(low)
    for x in range(m):
        own = int(group[x])
        removing: list[tuple[int, int]] = []
        flagging: list[tuple[int, int]] = []
        if own >= 0:
            found = plain if near_flags else there
            around = neighbours[first[own] : first[own + 1]].tolist()
            (flagging if near_flags else removing).extend((found[g], NEAR) for g in around if g in found)
        for y in far.get(x, ()):
            if far_flags:
                if state[y] == STAYS:
                    flagging.append((y, FAR))
            elif state[y] != REMOVED:
                removing.append((y, FAR))
        chosen = removing or flagging
        if chosen:
            witness[x], level[x] = min(chosen)
            state[x] = REMOVED if removing else FLAGGED
        if own >= 0 and state[x] != REMOVED:
            there.setdefault(own, x)
            if state[x] == STAYS:
                plain.setdefault(own, x)
    return witness, level, state
