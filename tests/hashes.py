"""The published hash definitions on Python integers, sharing no line with the package under test."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import oracle

ALL = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
POLY = 0xD6E8FEB86659FD95
UNIT_NAMES = ("token", "word", "char", "byte", "code")


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & ALL
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & ALL
    return z ^ (z >> 31)


def chain(data: bytes, start: int) -> int:
    h = start & ALL
    data += bytes(-len(data) % 8)
    for i in range(0, len(data), 8):
        h = mix((h + int.from_bytes(data[i : i + 8], "little")) & ALL)
    return h


def as_bytes(unit: Any) -> bytes:
    return bytes([unit]) if isinstance(unit, int) else unit.encode("utf-8", "surrogatepass")


def unit_hash(unit: Any) -> int:
    data = as_bytes(unit)
    return chain(data, len(data) * GOLDEN)


def shingle_hash(units: Sequence[Any]) -> int:
    s = 0
    for unit in units:
        s = (s * POLY + unit_hash(unit)) & ALL
    return mix((s + len(units) * GOLDEN) & ALL)


def shingle_hashes(text: str, unit: str, n: int) -> list[int]:
    """One per window, in order."""
    return [shingle_hash(window) for window in oracle.windows(text, unit, n)]


def draws(seed: int, count: int) -> list[int]:
    """SplitMix64."""
    return [mix((seed + (j + 1) * GOLDEN) & ALL) for j in range(count)]


def signature(hashes: Sequence[int], a: Sequence[int], b: Sequence[int]) -> list[int]:
    return [min(((p * (h >> 32) + q) % 2**32 for h in hashes), default=2**32 - 1) for p, q in zip(a, b, strict=True)]


def fast_signature(hashes: Sequence[int], a: Sequence[int], b: Sequence[int]) -> list[int]:
    """Fast similarity sketch: for each slot the least key, which shingle after shingle names."""
    slots = len(a) - 2
    out = [2**32 - 1] * slots
    for h in hashes:
        high, low = h >> 32, h % 2**32
        own = ((a[0] * low + b[0]) % 2**32 >> 10) * slots >> 22
        for j in range(slots):
            key = (a[1] * high + b[1]) % 2**32 // 2
            if j != own:
                key = 2**31 + (a[j + 2] * high + b[j + 2]) % 2**32 // 2
            out[j] = min(out[j], key)
    return out


# Scripts and code points that treat their neighbours in different ways, for texts that no tester would think of.
PIECES = [
    *"aZ09_ \n\t-+.^`~\x00\x1f\x7f",
    "ab", "word", "sevenby", "eightbyt", "ninebytes", "x" * 16, "y" * 17, "a_b", "  ", ", ",
    "é", "ß", "e\u0301", "\u0301", "наука", "Ωμέγα", "שלום", "العربية", "हिन्दी", "한국어", "\u1100\u1161\u11a8",
    "中", "中文分词", "ひらがな", "カタカナ", "\uff71", "々", "〇", "ไทย", "ລາວ", "བོད", "မြန်မာ", "ខ្មែរ",
    "𠮷", "𝒳", "\U000323af",
    "\u00ad", "\u200d", "\u200c", "\ufe0f", "\u2060", "\ufeff", "\u034f", "\u115f", "\u17b4", "\U000e0001",
    "😀", "👨\u200d👩\u200d👧", "❤\ufe0f", "🏳\ufe0f\u200d🌈", "©", "°", "№", "½", "²", "①", "٣", "Ⅷ",
    "。", "，", "—", "«", "€", "∑", "‿", "\uff3f", "\u00a0", "\u2003", "\u3000", "\u2028", "\u0085", "\u1680",
    "\ud800", "\udfff", "\ufdd0", "\U0010ffff", "\u0378", "\ue000",
]  # fmt: skip


def nasty(rng: random.Random, pieces: int) -> str:
    return "".join(rng.choice(PIECES) for _ in range(pieces))
