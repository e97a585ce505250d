"""The integer mixer that every hash of this package is made of, in plain Python and NumPy.

``mix64`` is the finaliser of SplitMix64 (Steele, Lea, Flood 2014; constants of Stafford's Mix13). The chain over a byte
string is ours and defined by

    chain(data, start):  h = start
                         for each 8-byte little-endian word w of data (the last one zero-padded): h = mix64(h + w)
    unit hash of a text unit of L bytes:  chain(bytes, L * GOLDEN)
    shingle hash of units u_1 ... u_n:    s = 0 ; s = s * POLY + hash(u_i) ; mix64(s + n * GOLDEN)
    band key of band t with slots m_1 ... m_r: chain(little-endian uint32 bytes of the slots, (t + 1) * GOLDEN)

all modulo 2**64. POLY = 5 mod 8, so that a shingle of n equal units loses at most log2(n) bits before the mixer. A
shingle hash can be rolled (one multiply to enter, one to leave), whatever n.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MASK64 = 0xFFFFFFFFFFFFFFFF
GOLDEN = 0x9E3779B97F4A7C15
M1 = 0xBF58476D1CE4E5B9
M2 = 0x94D049BB133111EB
POLY = 0xD6E8FEB86659FD95  # 5 mod 8


def mix64(z: int) -> int:
    """SplitMix64 finaliser on a Python integer."""
    z &= MASK64
    z = ((z ^ (z >> 30)) * M1) & MASK64
    z = ((z ^ (z >> 27)) * M2) & MASK64
    return z ^ (z >> 31)


def mix64_array(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64 finaliser on a uint64 array (wraps silently, as arrays do)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(M1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(M2)
    out: npt.NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return out


def chain(data: bytes, start: int) -> int:
    """Mixer chained over 8-byte words; see the head of this file."""
    h = start & MASK64
    for i in range(0, len(data), 8):
        h = mix64(h + int.from_bytes(data[i : i + 8], "little"))
    return h


def splitmix64(seed: int, count: int) -> list[int]:
    """The first `count` outputs of SplitMix64 from `seed`; output j depends on seed and j alone."""
    return [mix64(seed + (j + 1) * GOLDEN) for j in range(count)]
