"""The definitions once more, in plain Python sets and whole numbers, sharing no line with the package under test.

Imports nothing of ours. Unicode 15.0 whatever the interpreter: `unicodedata2` (a later version) with the code points
that came after 15.0 taken as unassigned; case folding by `str.casefold` with the few pairs that Python 3.10 does not
know yet. No hashing decides anything here: shingles are tuples, exact classes are equal strings. Only `Lsh` repeats
the published hash definitions, on Python integers, so that it is known as well which pairs meet under a recipe's
bands.
"""

from __future__ import annotations

import html
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import unicodedata2
import xxhash

PPM = 10**6


def _ranges(text: str) -> list[tuple[int, int]]:
    out = []
    for part in text.replace("\n", " ").replace(",", " ").split():
        low, _, high = part.partition("-")
        out.append((int(low, 16), int(high or low, 16)))
    return out


def _members(text: str) -> frozenset[int]:
    return frozenset(c for low, high in _ranges(text) for c in range(low, high + 1))


# --------------------------------------------------------------------------------------------------- Unicode 15.0

# Code points assigned by Unicode 15.1 to 18.0: unassigned, thus inert, in 15.0.
LATER = _members(
    """
    0558, 058B-058C, 05C8-05C9, 088F, 0897, 0B53-0B54, 0C5C, 0CDC, 1ACF-1AF0, 1B4E-1B4F, 1B7F, 1C89-1C8A, 208F,
    209D-209F, 20C1-20C4, 2427-2429, 2B96, 2E60-2E63, 2FFC-2FFF, 31E4-31E5, 31EF, A7CB-A7CF, A7D2, A7D4, A7DA-A7DD,
    A7E2, A7F1, AB6C-AB6D, FBC3-FBD2, FD90-FD91, FDC8-FDCE, 105C0-105F3, 107BB-107BF, 10940-10959, 10D40-10D65,
    10D69-10D85, 10D8E-10D8F, 10EC2-10EC7, 10EC9-10EEE, 10EF0-10EFC, 11380-11389, 1138B, 1138E, 11390-113B5,
    113B7-113C0, 113C2, 113C5, 113C7-113CA, 113CC-113D5, 113D7-113D8, 113E1-113E2, 116D0-116E3, 11B0A, 11B60-11B67,
    11BC0-11BE1, 11BF0-11BF9, 11DB0-11DDB, 11DE0-11DE9, 11DF0-11DF1, 11F5A, 1246F, 12475-1247F, 12550-12686,
    13460-143FA, 16100-16139, 16D40-16D79, 16EA0-16EB8, 16EBB-16ED3, 16FF2-16FF6, 187F8-187FF, 18CD6-18CDA, 18CFF,
    18D09-18D20, 18D80-18DF2, 18E00-19191, 191A0-191D2, 1B123-1B128, 1B168, 1CC00-1CCFC, 1CD00-1CEB3, 1CEBA-1CED0,
    1CED2-1CED4, 1CEDD-1CEFD, 1D127-1D128, 1D1EB-1D1FF, 1D250-1D281, 1D6A6, 1DB00-1DB1C, 1DF1F-1DF24, 1DF2B-1DF81,
    1DF90-1DF96, 1DFCD-1DFFF, 1E5D0-1E5FA, 1E5FF, 1E6C0-1E6DE, 1E6E0-1E6F5, 1E6FE-1E6FF, 1F1AE, 1F6D8-1F6D9,
    1F777-1F77A, 1F7DA-1F7DB, 1F7F1-1F7FF, 1F8B2-1F8BB, 1F8C0-1F8C1, 1F8D0-1F8D8, 1FA54-1FA57, 1FA89-1FA8F, 1FABE,
    1FAC6, 1FAC8, 1FACC-1FACD, 1FADC-1FADD, 1FADF, 1FAE9-1FAEB, 1FAEF, 1FAF9-1FAFA, 1FBCB-1FBEF, 1FBFA, 2B73A-2B73F,
    2B81E, 2CEA2-2CEAD, 2EBF0-2EE5D, 323B0-33479, 3D000-3FC3F
    """
)
# Case pairs of Unicode 14.0, which Python 3.10 (13.0) lacks; 15.0 added none.
FOLD_14 = {
    0x2C2F: 0x2C5F,
    **{upper: upper + 1 for upper in (0xA7C0, 0xA7D0, 0xA7D6, 0xA7D8)},
    **{upper: upper + 39 for upper in _members("10570-1057A 1057C-1058A 1058C-10592 10594-10595")},
}
WHITE_SPACE = _members("0009-000D 0020 0085 00A0 1680 2000-200A 2028-2029 202F 205F 3000")
IGNORABLE = _members(
    "00AD 034F 061C 115F-1160 17B4-17B5 180B-180F 200B-200F 202A-202E 2060-206F 3164 FE00-FE0F FEFF FFA0 FFF0-FFF8 "
    "1BCA0-1BCA3 1D173-1D17A E0000-E0FFF"
)
BLANK_FREE = _members(
    "3005-3007 3040-30FF 31F0-31FF 3400-4DBF 4E00-9FFF F900-FAFF FF66-FF9F 20000-323AF "  # Han, kana
    "0E00-0EFF 0F00-0FFF 1000-109F A9E0-A9FF AA60-AA7F 1780-17FF"  # Thai, Lao, Tibetan, Myanmar, Khmer
)
if int(unicodedata2.unidata_version.partition(".")[0]) > 18:
    raise ImportError(f"unicodedata2 {unicodedata2.unidata_version}: LATER lists code points up to Unicode 18.0 only")


def category(char: str) -> str:
    return "Cn" if ord(char) in LATER else unicodedata2.category(char)


def _form(form: str, text: str) -> str:
    """Normalisation form of Unicode 15.0: a code point unassigned there is an inert starter, so it splits the work."""
    out, run = [], []
    for char in text:
        if ord(char) in LATER:
            out += [unicodedata2.normalize(form, "".join(run)), char]
            run = []
        else:
            run.append(char)
    return "".join(out) + unicodedata2.normalize(form, "".join(run))


def casefold(text: str) -> str:
    out = []
    for char in text:
        point = ord(char)
        if point in FOLD_14:
            out.append(chr(FOLD_14[point]))
        else:
            out.append(char if point in LATER else char.casefold())
    return "".join(out)


def split(text: str) -> list[str]:
    """The words between runs of White_Space."""
    return [word for word in "".join(" " if ord(char) in WHITE_SPACE else char for char in text).split(" ") if word]


def plain(text: str) -> str:
    """HTML to text: one walk over the characters, html.unescape for what is between tags."""
    white = "\t\n\f\r "

    def tag(at: int) -> int:
        """Behind the tag at text[at], -1 if it never ends."""
        state = "inside"
        for place in range(at + 2, len(text)):
            char = text[place]
            if state in ('"', "'"):
                state = "inside" if char == state else state
            elif char == ">":
                return place + 1
            elif char == "=" or (char in white and state == "value"):
                state = "value"
            elif char in "\"'" and state == "value":
                state = char
            else:
                state = "inside"
        return -1

    def named(at: int, name: str) -> bool:
        end = at + len(name)
        return text[at:end].lower() == name and text[at:end].isascii() and text[end : end + 1] in [*white, "/", ">"]

    out, run, at = [], [], 0
    while at < len(text):
        end = -1
        after = text[at + 1 : at + 2]
        if text.startswith("<!--", at):
            found = text.find("-->", at + 2)
            end = found + 3 if found >= 0 else -1
        elif text[at] == "<" and after and (after in "/!?" or (after.isascii() and after.isalpha())):
            end = tag(at)
            for name in ("script", "style"):
                if end >= 0 and named(at + 1, name):
                    closing = [k for k in range(end, len(text)) if text[k : k + 2] == "</" and named(k + 2, name)]
                    last = text.find(">", closing[0]) if closing else -1
                    end = last + 1 if last >= 0 else end
        if end < 0:
            run.append(text[at])
            at += 1
        else:
            out += [html.unescape("".join(run)), " "]
            run, at = [], end
    return "".join(out) + html.unescape("".join(run))


def normalise(text: str, steps: Iterable[str] = ("nfkc", "lower", "whitespace")) -> str:
    steps = set(steps)
    if "html" in steps:
        text = plain(text)
    if text.isascii():
        forms = []
    else:
        forms = [form.upper() for form in ("nfc", "nfkc") if form in steps]
    for form in forms:
        text = _form(form, text)
    if "lower" in steps:
        text = text.lower() if text.isascii() else casefold(text)
        for form in forms:
            text = _form(form, text)
    if "accents" in steps and not text.isascii():
        text = _form("NFC", "".join(char for char in _form("NFD", text) if not 0x300 <= ord(char) <= 0x36F))
    if "digits" in steps:
        text = "".join("0" if category(char) == "Nd" else char for char in text)
    if "punctuation" in steps:
        text = "".join(" " if category(char)[0] in "PS" else char for char in text)
    if "whitespace" in steps:
        text = " ".join(split(text))
    if "nospace" in steps:
        text = "".join(char for char in text if ord(char) not in WHITE_SPACE)
    return text


# ------------------------------------------------------------------------------------------------ units, shingles


def units(text: str, unit: str) -> list[str] | list[int]:
    """The units of a normalised text, in order."""
    if unit == "byte":
        return list(text.encode("utf-8", "surrogatepass"))
    if unit == "char":
        return list(text)
    if unit == "word":
        return split(text)
    if unit not in ("token", "code"):
        raise ValueError(unit)
    out: list[str] = []
    run: list[str] = []

    def close() -> None:
        if run:
            out.append("".join(run))
            run.clear()

    for char in text:
        if ord(char) in IGNORABLE:
            continue
        kind = category(char)
        if ord(char) in BLANK_FREE or kind == "So":
            close()
            out.append(char)
        elif kind[0] in "LMN" or kind == "Pc":
            run.append(char)
        else:
            close()
            if unit == "code" and kind[0] in "PS":
                out.append(char)
    close()
    return out


def windows(text: str, unit: str, n: int) -> list[tuple[Any, ...]]:
    """Every shingle of a normalised text in order, repeats kept; fewer than n units make one shingle of all of them."""
    parts = units(text, unit)
    if not parts:
        return []
    if len(parts) < n:
        return [tuple(parts)]
    return [tuple(parts[i : i + n]) for i in range(len(parts) - n + 1)]


def shingles(
    text: str, unit: str, n: int, stop: frozenset[tuple[Any, ...]] = frozenset()
) -> frozenset[tuple[Any, ...]]:
    return frozenset(windows(text, unit, n)) - stop


def jaccard(left: frozenset[Any], right: frozenset[Any]) -> tuple[int, int]:
    """(shared, union), whole numbers."""
    shared = len(left & right)
    return shared, len(left) + len(right) - shared


def meets(shared: int, union: int, threshold_ppm: int) -> bool:
    """Two empty sets are not alike."""
    return union > 0 and shared * PPM >= threshold_ppm * union


def edit_distance(left: str, right: str) -> int:
    """Levenshtein distance of code points, the textbook table row by row."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        above, row[0] = row[0], i
        for j, b in enumerate(right, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (a != b))
    return row[-1]


def digest(text: str) -> tuple[int, int]:
    """Two XXH64 words over the XXH64s of successive 4,096-byte chunks, then the length."""
    data = text.encode("utf-8", "surrogatepass")
    words = []
    for seed in (0, 0x9E3779B97F4A7C15):
        chunks = [xxhash.xxh64_intdigest(data[i : i + 4096], seed) for i in range(0, len(data), 4096)]
        packed = b"".join(value.to_bytes(8, "little") for value in [*chunks, len(data)])
        words.append(xxhash.xxh64_intdigest(packed, seed))
    return words[0], words[1]


# ------------------------------------------------------------------------------- the published hashes, on big integers

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix64(z: int) -> int:
    """The finaliser of SplitMix64."""
    z &= MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def chain(data: bytes, start: int) -> int:
    h = start & MASK
    for i in range(0, len(data), 8):
        h = mix64(h + int.from_bytes(data[i : i + 8], "little"))
    return h


def unit_hash(unit: str | int) -> int:
    data = bytes([unit]) if isinstance(unit, int) else unit.encode("utf-8", "surrogatepass")
    return chain(data, len(data) * GOLDEN)


def shingle_hash(window: tuple[Any, ...]) -> int:
    h = 0
    for unit in window:
        h = (h * 0xD6E8FEB86659FD95 + unit_hash(unit)) & MASK
    return mix64(h + len(window) * GOLDEN)


@dataclass(frozen=True)
class Lsh:
    """Which pairs of heads meet: bands, the cap rule, the sieve. `cut` 0 for no sieve."""

    bands: int
    rows: int
    seed: int = 0
    cut: int = 0
    cap: int = 256
    lowest: int = 32
    splits: int = 8
    split_slots: int = 4
    fast: bool = False  # the fast similarity sketch instead of MinHash

    def signature(self, windows_: Iterable[tuple[Any, ...]]) -> list[int]:
        """min over shingles of (a x + b) mod 2**32, x = the hash's high half; a and b from SplitMix64 of the seed."""
        if self.fast:
            return self._fast([shingle_hash(window) for window in set(windows_)])
        high = [shingle_hash(window) >> 32 for window in set(windows_)]
        out = []
        for j in range(self.bands * self.rows):
            draw = mix64(self.seed + (j + 1) * GOLDEN)
            a, b = (draw & 0xFFFFFFFF) | 1, draw >> 32
            out.append(min((a * x + b) & 0xFFFFFFFF for x in high))
        return out

    def _fast(self, hashes: Sequence[int]) -> list[int]:
        """Bin by bin: the least of the shingles that fall into it, or, where none does, of all."""
        slots = self.bands * self.rows
        draws = [mix64(self.seed + (j + 1) * GOLDEN) for j in range(slots + 2)]
        into: dict[int, list[int]] = defaultdict(list)
        for h in hashes:
            place, value = (
                ((d & 0xFFFFFFFF | 1) * half + (d >> 32)) & 0xFFFFFFFF
                for d, half in zip(draws, (h & 0xFFFFFFFF, h >> 32), strict=False)
            )
            into[(place >> 10) * slots >> 22].append(value >> 1)
        out = []
        for j, draw in enumerate(draws[2:]):
            a, b = (draw & 0xFFFFFFFF) | 1, draw >> 32
            out.append(
                min(into[j]) if into[j] else min((a * (h >> 32) + b) & 0xFFFFFFFF for h in hashes) >> 1 | 1 << 31
            )
        return out

    def candidates(self, signatures: Sequence[Sequence[int]]) -> dict[tuple[int, int], int]:
        """(higher rank, lower rank) -> equal slots, for all pairs that meet and pass the sieve. Slots themselves are
        the buckets' keys here: that their 64-bit hash collides is left out."""
        found: set[tuple[int, int]] = set()
        slots = self.bands * self.rows
        for band in range(self.bands):
            inside = range(band * self.rows, (band + 1) * self.rows)
            for bucket in self._buckets(signatures, range(len(signatures)), inside):
                found |= self._pairs(bucket)
                if len(bucket) > self.cap and slots > self.rows:
                    outside = [(band * self.rows + self.rows + i) % slots for i in range(slots - self.rows)]
                    width = min(self.split_slots, len(outside))
                    for split in range(self.splits):
                        chosen = [outside[(split * self.split_slots + i) % len(outside)] for i in range(width)]
                        for smaller in self._buckets(signatures, bucket, chosen):
                            found |= self._pairs(smaller)
        agree = {
            (high, low): sum(a == b for a, b in zip(signatures[high], signatures[low], strict=True))
            for high, low in found
        }
        return {pair: count for pair, count in agree.items() if count >= self.cut}

    def _buckets(
        self, signatures: Sequence[Sequence[int]], ranks: Iterable[int], slots: Iterable[int]
    ) -> list[list[int]]:
        slots = list(slots)
        by_key: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for rank in ranks:
            by_key[tuple(signatures[rank][slot] for slot in slots)].append(rank)
        return list(by_key.values())

    def _pairs(self, bucket: list[int]) -> set[tuple[int, int]]:
        """`bucket` ascends by rank."""
        if len(bucket) <= self.cap:
            return {(high, low) for i, high in enumerate(bucket) for low in bucket[:i]}
        return {(high, low) for high in bucket for low in bucket[: self.lowest] if low < high}


@dataclass(frozen=True)
class Prints:
    """Which pairs of heads are near by SimHash: all of them, counted bit by bit. Used in place of an `Lsh`."""

    distance: int
    bands: int = 0
    rows: int = 0

    def signature(self, windows_: Iterable[tuple[Any, ...]]) -> int:
        """Bit i is the sign of the sum over the set of shingles of +1 for a hash with bit i and -1 for one without."""
        hashes = [shingle_hash(window) for window in set(windows_)]
        return sum(1 << bit for bit in range(64) if sum(1 if h >> bit & 1 else -1 for h in hashes) > 0)

    def candidates(self, prints: Sequence[int]) -> dict[tuple[int, int], int]:
        """(higher rank, lower rank) -> bits that differ."""
        return {
            (high, low): (prints[high] ^ prints[low]).bit_count()
            for high in range(len(prints))
            for low in range(high)
            if (prints[high] ^ prints[low]).bit_count() <= self.distance
        }


# ----------------------------------------------------------------------------------------- what one run should do


@dataclass(frozen=True)
class Doc:
    """One row that has a text. `file` and `row` are its identity; `value` is the keeper's field."""

    file: str
    row: int
    text: str
    id: Any = None
    value: Any = None

    @property
    def place(self) -> tuple[str, int]:
        return self.file, self.row


@dataclass(frozen=True)
class Rules:
    """What the oracle needs to know of a recipe."""

    method: str = "minhash"
    steps: tuple[str, ...] = ("nfkc", "lower", "whitespace")
    unit: str = "token"
    n: int = 5
    threshold_ppm: int = 800_000
    keep: str = "first"
    cluster: str = "representative"
    witness: str = "lowest"
    verify: str = "exact"
    min_shingles: int = 0
    stop: frozenset[tuple[Any, ...]] = frozenset()
    on_no_text: str = "keep"
    edit_max_chars: int = 50_000


@dataclass(frozen=True)
class Removal:
    witness: tuple[str, int] | None
    shared: int | None
    union: int | None
    reason: str
    witness_kept: bool | None = True  # None without a witness
    linked: tuple[str, int] | None = None
    linked_shared: int | None = None
    linked_union: int | None = None


@dataclass
class Verdict:
    """`removed` by place; every other document stays. `matches` holds the true pairs (place of higher rank, of
    lower)."""

    removed: dict[tuple[str, int], Removal] = field(default_factory=dict)
    heads: list[Doc] = field(default_factory=list)
    sets: dict[tuple[str, int], frozenset[Any]] = field(default_factory=dict)


def keeper_order(docs: Sequence[Doc], keep: str) -> list[Doc]:
    """Documents in keeper order: who stands earlier is kept before who stands later; ties to the earlier row."""
    kind = keep.partition(":")[0]
    if kind in ("first", "none"):
        return list(docs)
    if kind in ("longest", "shortest"):
        sign = -1 if kind == "longest" else 1
        return sorted(docs, key=lambda doc: sign * len(doc.text))

    def absent(value: Any) -> bool:
        return not isinstance(value, (int, float, str)) or value != value

    there = [doc for doc in docs if not absent(doc.value)]
    # sorted() is stable in both directions, so ties stay with the earlier row; Python compares int and float exactly.
    there = sorted(there, key=lambda doc: doc.value, reverse=kind == "max")
    return there + [doc for doc in docs if absent(doc.value)]


def candidate_pairs(sets: Sequence[frozenset[Any]]) -> Counter[tuple[int, int]]:
    """All pairs (higher, lower) that share a shingle, with how many they share: an inverted index, no LSH."""
    index: dict[Any, list[int]] = defaultdict(list)
    shared: Counter[tuple[int, int]] = Counter()
    for rank, items in enumerate(sets):
        for item in items:
            for lower in index[item]:
                shared[rank, lower] += 1
            index[item].append(rank)
    return shared


def components(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """Lowest member of each one's component, by breadth-first search."""
    around: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        around[a].append(b)
        around[b].append(a)
    label = [-1] * count
    for start in range(count):
        if label[start] != -1:
            continue
        label[start] = start
        front = [start]
        while front:
            new = []
            for node in front:
                for other in around[node]:
                    if label[other] == -1:
                        label[other] = start
                        new.append(other)
            front = new
    return label


def decide(docs: Sequence[Doc], rules: Rules, lsh: Lsh | Prints | None = None) -> Verdict:
    """What a run does: with perfect recall (brute force over all pairs), or with the very candidates that `lsh`
    gives."""
    order = keeper_order(docs, rules.keep)
    texts = {doc.place: normalise(doc.text, rules.steps) for doc in docs}
    verdict = Verdict()

    # Exact classes: equal normalised text; the head is the first member in keeper order.
    head_of: dict[tuple[str, int], Doc] = {}
    first: dict[str, Doc] = {}
    members: dict[tuple[str, int], list[Doc]] = defaultdict(list)
    for doc in order:
        text = texts[doc.place]
        if text == "" and rules.method != "exact":
            continue
        head = first.setdefault(text, doc)
        head_of[doc.place] = head
        members[head.place].append(doc)
    heads = [doc for doc in order if head_of.get(doc.place) is doc]
    verdict.heads = heads

    if rules.method != "exact":
        counted_of = {}
        for doc in heads:
            counted = [window for window in windows(texts[doc.place], rules.unit, rules.n) if window not in rules.stop]
            counted_of[doc.place] = counted if len(counted) >= rules.min_shingles else []
            verdict.sets[doc.place] = frozenset(counted_of[doc.place])
        ranked = [doc for doc in heads if counted_of[doc.place]]
        met = None
        if lsh is not None:
            sketches: list[Any] = [lsh.signature(counted_of[doc.place]) for doc in ranked]
            met = lsh.candidates(sketches)
        _near(ranked, texts, rules, verdict, met, lsh.bands * lsh.rows if lsh else 0)

    # Members of a class: the head's fate with the head's witness, or the head itself.
    for doc in order:
        head = head_of.get(doc.place)
        if head is None or head is doc:
            continue
        gone = verdict.removed.get(head.place)
        if rules.keep == "none":
            # every row with a partner goes; an exact copy is a partner
            verdict.removed[doc.place] = Removal(head.place, None, None, "exact", witness_kept=False)
        elif gone is None:
            verdict.removed[doc.place] = Removal(head.place, None, None, "exact")
        else:
            verdict.removed[doc.place] = Removal(
                gone.witness, gone.shared, gone.union, "exact+near", gone.witness_kept, gone.linked
            )
    if rules.keep == "none":
        for head_place, group in members.items():
            if len(group) > 1:
                verdict.removed[head_place] = Removal(group[1].place, None, None, "exact", witness_kept=False)

    # Rows with nothing to compare: kept, unless the policy drops them (also those with exact copies).
    if rules.on_no_text == "drop":
        for doc in docs:
            nothing = texts[doc.place] == ""
            if rules.method != "exact":
                nothing = not shingles(texts[doc.place], rules.unit, rules.n, rules.stop)
            if nothing:
                verdict.removed[doc.place] = Removal(None, None, None, "no-text", witness_kept=None)
    return verdict


def _near(
    heads: list[Doc],
    texts: Mapping[tuple[str, int], str],
    rules: Rules,
    verdict: Verdict,
    met: Mapping[tuple[int, int], int] | None,
    slots: int,
) -> None:
    """Decide about heads in keeper order. met: pairs to look at, with their equal slots of `slots`; None for all
    pairs."""
    sets = [verdict.sets[doc.place] for doc in heads]

    def similarity(a: int, b: int) -> tuple[int, int] | tuple[None, None]:
        if rules.verify == "none":
            return None, None
        if rules.verify == "signature":
            assert met is not None, "verify=signature is known only with the candidates of an Lsh"
            return met[max(a, b), min(a, b)], slots
        if rules.verify == "edit":
            left, right = texts[heads[a].place], texts[heads[b].place]
            longest = max(len(left), len(right))
            return longest - edit_distance(left, right), longest
        return jaccard(sets[a], sets[b])

    edges: dict[int, dict[int, tuple[Any, Any]]] = defaultdict(dict)
    for high, low in candidate_pairs(sets) if met is None else met:
        long = max(len(texts[heads[high].place]), len(texts[heads[low].place]))
        if rules.verify == "edit" and long > rules.edit_max_chars:
            continue
        value = similarity(high, low)
        if value[0] is None or value[1] is None or meets(value[0], value[1], rules.threshold_ppm):
            edges[high][low] = value

    def remove(rank: int, witness: int, value: tuple[Any, Any], **more: Any) -> None:
        verdict.removed[heads[rank].place] = Removal(heads[witness].place, *value, "near", **more)

    if rules.keep == "none":
        partners: dict[int, dict[int, tuple[Any, Any]]] = defaultdict(dict)
        for high, lows in edges.items():
            for low, value in lows.items():
                partners[high][low] = partners[low][high] = value
        for rank, others in partners.items():
            witness = min(others)
            remove(rank, witness, others[witness], witness_kept=False)
    elif rules.cluster == "representative":
        gone: set[int] = set()
        for high in sorted(edges):
            stays = {low: value for low, value in edges[high].items() if low not in gone}
            if not stays:
                continue
            if rules.witness == "best":
                # greatest shared/union as exact fractions, then the lowest rank
                scale = math.lcm(*(union for _, union in stays.values()))
                witness = max(sorted(stays), key=lambda low: stays[low][0] * (scale // stays[low][1]))
            else:
                witness = min(stays)
            gone.add(high)
            remove(high, witness, stays[witness])
    else:
        label = components(len(heads), ((high, low) for high in edges for low in edges[high]))
        for rank, lowest in enumerate(label):
            if rank != lowest:
                remove(rank, lowest, similarity(rank, lowest))


# ------------------------------------------------------------------------------------------- judging a finished run


def check_run(
    inputs: Mapping[str, Sequence[Any]],
    outputs: Mapping[str, Sequence[Any]],
    removed: Sequence[Mapping[str, Any]],
    rules: Rules,
    text_of: Callable[[Any], str | None],
    value_of: Callable[[Any], Any] = lambda row: None,
) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    """Hold a finished run (`removed`: rows of the log) against its raw input. Returns the missed removals.

    inputs   all rows of each file, numbered from 0; for JSONL the raw lines as bytes, line ends included
    outputs  the rows of each output file, of the same kind
    text_of  the raw text of a row; None for a row that has none (bad or blank): such a row takes part in nothing
    Asserts: the output is the input less the removed rows, in order and unchanged; no row is removed twice; every
    witness is a kept row with a text; the logged shared and union are those recomputed from the raw texts, and meet
    the threshold. A missed removal is a kept row with an earlier kept row (in keeper order) whose true similarity
    meets the threshold.
    """
    gone = {(entry["file"], entry["row"]) for entry in removed}
    assert len(gone) == len(removed), "a row is logged twice"
    assert set(inputs) == set(outputs), "an input file has no output file, or the other way round"
    for file, rows in inputs.items():
        blank = {i for i, row in enumerate(rows) if isinstance(row, bytes) and not row.strip(b" \t\r\n")}
        expected = [row for i, row in enumerate(rows) if (file, i) not in gone and i not in blank]
        assert list(outputs[file]) == expected, f"{file}: the output is not the input less the removed rows"

    docs = {}
    for file, rows in inputs.items():
        for i, row in enumerate(rows):
            text = text_of(row)
            if text is not None:
                docs[file, i] = Doc(file, i, text, value=value_of(row))
    texts = {place: normalise(doc.text, rules.steps) for place, doc in docs.items()}
    sets = {place: shingles(text, rules.unit, rules.n, rules.stop) for place, text in texts.items()}
    for entry in removed:
        place, witness = (entry["file"], entry["row"]), (entry["kept_file"], entry["kept_row"])
        if entry["reason"] in ("no-text", "bad-row"):
            assert witness == (None, None), f"{place} has no partner, yet names {witness}"
            continue
        assert witness in docs, f"{place} names {witness}, which has no text"
        assert witness != place, f"{place} is its own witness"
        if rules.keep != "none":
            assert witness not in gone, f"{place} names {witness}, which is removed"
        if texts[place] == texts[witness]:
            assert entry["reason"] == "exact", f"{place}: equal texts, but reason {entry['reason']}"
            assert entry["similarity"] == 1.0
            continue
        assert entry["reason"] in ("near", "exact+near"), f"{place}: different texts, but reason {entry['reason']}"
        if rules.verify == "exact":
            shared, union = jaccard(sets[place], sets[witness])
            assert (entry["shared"], entry["union"]) == (shared, union), f"{place}: shared or union is not true"
            assert entry["similarity"] == shared / union, f"{place}: similarity is not shared / union"
            if rules.cluster == "representative":
                assert meets(shared, union, rules.threshold_ppm), f"{place}: below the threshold"

    kept = [doc for doc in keeper_order(list(docs.values()), rules.keep) if doc.place not in gone]
    seen: dict[str, Doc] = {}
    missed = []
    for doc in kept:
        text = texts[doc.place]
        if text and text in seen:
            missed.append((doc.place, seen[text].place))
        seen.setdefault(text, doc)
    if rules.method != "exact":
        ranked = [doc for doc in kept if seen[texts[doc.place]] is doc]
        pairs = candidate_pairs([sets[doc.place] for doc in ranked])
        for (high, low), shared in sorted(pairs.items()):
            left, right = sets[ranked[high].place], sets[ranked[low].place]
            if meets(shared, len(left) + len(right) - shared, rules.threshold_ppm):
                missed.append((ranked[high].place, ranked[low].place))
    return missed


def jsonl_text(line: bytes, name: str = "text") -> str | None:
    """Text of a raw JSON line by the standard library; None for a blank or bad one."""
    if not line.strip(b" \t\r\n"):
        return None
    try:
        record = json.loads(line.decode("utf-8"))
    except ValueError:
        return None
    text = record.get(name) if isinstance(record, dict) else None
    return text if isinstance(text, str) else None
