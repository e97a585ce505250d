"""Shared and differing stretches of two texts, for people: on the screen (`show`) and on the page (`page`)."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

# Words, runs of blanks, line ends; everything else (Chinese, punctuation, emoji) one code point at a time.
_TOKEN = re.compile(
    r"\r?\n|[^\S\n]+|[^\W\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uf900-\ufaff\U00020000-\U000323af]+|.",
    re.S,
)
_SMALL = 160  # tokens on either side up to which a gap between anchors is compared in full
SHARED, DIFFERENT = 0, 1


@dataclass(frozen=True)
class Span:
    """A stretch of both texts. kind SHARED: left and right are the same to the normaliser; DIFFERENT: they are not."""

    kind: int
    left: str
    right: str


def tokens(text: str) -> list[str]:
    """Pieces of a text that are compared whole; joined, they are the text."""
    return _TOKEN.findall(text)


def spans(left: str, right: str, keys: tuple[Sequence[Any], Sequence[Any]] | None = None) -> list[Span]:
    """Shared and differing stretches of two texts, in order; joined by side, they are the texts.

    keys  what is compared, for each token of each text; None: the tokens themselves
    """
    a, b = tokens(left), tokens(right)
    keys_a, keys_b = keys if keys is not None else (a, b)
    out: list[Span] = []
    i = j = 0
    for start, other, size in (*_matches(keys_a, keys_b), (len(a), len(b), 0)):
        if start > i or other > j:
            out.append(Span(DIFFERENT, "".join(a[i:start]), "".join(b[j:other])))
        if size:
            out.append(Span(SHARED, "".join(a[start : start + size]), "".join(b[other : other + size])))
        i, j = start + size, other + size
    return out


def reflow(text: str) -> str:
    """White space as a recipe sees it that folds it: one blank, and one line end between paragraphs."""
    return re.sub(r"\s+", lambda found: "\n" if found[0].count("\n") > 1 else " ", text).strip()


def tidy(parts: Sequence[Span]) -> list[Span]:
    """The same stretches, easier to read: what is shared by chance between two larger differences joins them.

    A stretch that only holds blanks, or is no longer than the differences on both sides of it, tells nothing; whole
    sentences that were replaced then stand as one.
    """
    out: list[Span] = []
    for index, part in enumerate(parts):
        if out and out[-1].kind == DIFFERENT:
            before, after = out[-1], parts[index + 1] if index + 1 < len(parts) else None
            chance = part.kind == SHARED and after is not None and _by_chance(part, before, after)
            if chance or part.kind == DIFFERENT:
                out[-1] = Span(DIFFERENT, before.left + part.left, before.right + part.right)
                continue
        out.append(part)
    return [Span(SHARED, p.left, p.right) if p.left == p.right else p for p in out]


def _by_chance(part: Span, before: Span, after: Span) -> bool:
    text = part.left.strip()
    if not text:
        return bool((before.left and after.left) or (before.right and after.right))
    return len(text) <= min(len(before.left + before.right), len(after.left + after.right)) and len(text) <= 24


def _matches(a: Sequence[Any], b: Sequence[Any]) -> list[tuple[int, int, int]]:
    """Runs of equal tokens (start in a, start in b, length), ascending in both, joined where they touch.

    Near-linear: common ends are stripped, then windows of tokens that occur once in each text are anchors (patience
    diff, Bram Cohen), and only small gaps between anchors are compared in full.
    """
    found: list[tuple[int, int, int]] = []
    todo = [(0, len(a), 0, len(b), 8)]
    while todo:
        a0, a1, b0, b1, window = todo.pop()
        size = 0
        while a0 + size < a1 and b0 + size < b1 and a[a0 + size] == b[b0 + size]:
            size += 1
        if size:
            found.append((a0, b0, size))
            a0, b0 = a0 + size, b0 + size
        size = 0
        while a1 - size > a0 and b1 - size > b0 and a[a1 - size - 1] == b[b1 - size - 1]:
            size += 1
        if size:
            a1, b1 = a1 - size, b1 - size
            found.append((a1, b1, size))
        if a0 == a1 or b0 == b1:
            continue
        if max(a1 - a0, b1 - b0) <= _SMALL:
            for match in SequenceMatcher(None, a[a0:a1], b[b0:b1], autojunk=False).get_matching_blocks():
                if match.size:
                    found.append((a0 + match.a, b0 + match.b, match.size))
            continue
        anchors = _anchors(a, a0, a1, b, b0, b1, window)
        if not anchors:
            if window > 1:
                todo.append((a0, a1, b0, b1, window // 2))
            continue
        i, j = a0, b0
        for x, y in anchors:
            # A stretch up to an anchor begins after the anchor before it, so its first tokens extend that one.
            todo.append((i, x, j, y, window))
            i, j = x, y
        todo.append((i, a1, j, b1, window))
        # Every gap but the first begins with an anchored token, so it is smaller than what it was cut from.
    found.sort()
    joined: list[tuple[int, int, int]] = []
    for x, y, size in found:
        if joined and joined[-1][0] + joined[-1][2] == x and joined[-1][1] + joined[-1][2] == y:
            joined[-1] = (joined[-1][0], joined[-1][1], joined[-1][2] + size)
        else:
            joined.append((x, y, size))
    return joined


def _anchors(
    a: Sequence[Any], a0: int, a1: int, b: Sequence[Any], b0: int, b1: int, window: int
) -> list[tuple[int, int]]:
    """Positions of windows that occur once on each side, in an order that ascends on both (longest such chain)."""
    left = [tuple(a[i : i + window]) for i in range(a0, a1 - window + 1)]
    right = [tuple(b[j : j + window]) for j in range(b0, b1 - window + 1)]
    once_left, once_right = Counter(left), Counter(right)
    place = {key: b0 + j for j, key in enumerate(right) if once_right[key] == 1}
    pairs = [(a0 + i, place[key]) for i, key in enumerate(left) if once_left[key] == 1 and key in place]
    # Longest increasing subsequence of the positions on the right.
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = [-1] * len(pairs)
    for index, (_, y) in enumerate(pairs):
        at = bisect_left(ends, y)
        before[index] = last[at - 1] if at else -1
        if at == len(ends):
            ends.append(y)
            last.append(index)
        else:
            ends[at] = y
            last[at] = index
    chain: list[tuple[int, int]] = []
    index = last[-1] if last else -1
    while index >= 0:
        chain.append(pairs[index])
        index = before[index]
    return chain[::-1]


_PICTURES = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "\u2421"}
_PICTURES |= {code: f"<{code:02X}>" for code in range(0x80, 0xA0)}
# Characters that would turn the rest of the line around, and halves of surrogate pairs.
_PICTURES |= {
    code: f"<{code:04X}>" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)
}
_PICTURES[9] = "    "
del _PICTURES[10]


def safe(text: str) -> str:
    """Text that cannot steer a terminal: control characters as pictures, tabs as blanks; line ends stay."""
    text = text.replace("\r\n", "\n").translate(_PICTURES)
    return text if text.isascii() else re.sub("[\ud800-\udfff]", "\ufffd", text)
