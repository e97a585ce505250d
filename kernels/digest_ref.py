"""Digest of a text for exact classes, in plain Python: the definition.

For each of the two SEEDS s, with c_i = XXH64(chunk i of 4,096 bytes, seed s), the last chunk shorter:

    digest = XXH64(c_0 c_1 ... and the text's length in bytes, each as 8 little-endian bytes, seed s)

An empty text has no chunk. 128 bits, over chunks that can be hashed side by side. XXH64 as published in the file
doc/xxhash_spec.md of Cyan4973/xxHash on GitHub.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash

from gpu_dedup.kernels.mix64 import GOLDEN

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

CHUNK = 4096
SEEDS = (0, GOLDEN)


def check(blob: U8, offsets: I64) -> None:
    """raises ValueError where offsets leave the blob."""
    if len(offsets) < 1 or bool((offsets[1:] < offsets[:-1]).any()):
        raise ValueError("offsets must have n + 1 entries and never fall")
    if offsets[0] < 0 or offsets[-1] > len(blob):
        raise ValueError(f"offsets {offsets[0]} to {offsets[-1]} leave the blob of {len(blob)} bytes")


def digest(blob: U8, offsets: I64) -> U64:
    """Two 64-bit words that stand for a text.

    blob     uint8[>= offsets[-1]], any bytes
    offsets  int64[n + 1]
    returns  uint64[n, 2], one column per seed
    raises   ValueError: offsets that leave the blob
    """
    check(blob, offsets)
    out = np.empty((len(offsets) - 1, 2), np.uint64)
    for i in range(len(out)):
        text = blob[offsets[i] : offsets[i + 1]].tobytes()
        for column, seed in enumerate(SEEDS):
            chunks = [xxhash.xxh64_intdigest(text[at : at + CHUNK], seed) for at in range(0, len(text), CHUNK)]
            words = b"".join(word.to_bytes(8, "little") for word in (*chunks, len(text)))
            out[i, column] = xxhash.xxh64_intdigest(words, seed)
    return out
