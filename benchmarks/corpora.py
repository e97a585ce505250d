"""Corpora for the benchmarks: real text of this machine with planted near-copies, and corpora of any size.

    python benchmarks/corpora.py english|chinese|code|short -o FILE [--mb 64] [--seed 1] [--near 0.1]
    python benchmarks/corpora.py grow --from FILE -o FILE [--mb 1000] [--seed 1] [--near 0.1]

Nothing is downloaded. `english` takes licences, documentation and manual pages, `code` Python sources, `short`
single paragraphs of the documentation, `chinese` the manual pages in Chinese; what is missing to the size asked for is
made of the same text by `grow` (Chinese: of characters by Zipf's law). Long English texts are cut between paragraphs to
lengths from 1 to 12 KB, drawn evenly on a log scale. Real text has near-copies of its own; to them `plant` adds, for a
share of the texts, a copy with some words exchanged, inserted or taken out. Its true Jaccard similarity (token:5) is
counted, not assumed, and written to FILE.pairs.tsv: row of the original, row of the copy, shared, union.

`grow` takes texts apart into runs of two to four words and deals them anew, another way on every pass: length, words
and bytes are those of the source while few shingles of five survive, so that any size costs what real text costs and is
not one heap of copies.

The same texts, seed and size give the same bytes; a machine with other packages has other texts.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

KINDS = ("english", "chinese", "code", "short")
N = 5
MANUALS = "/usr/share/man"
_HAN = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)
# Words, and characters of scripts without blanks: near enough to place edits; what they did is counted by the package.
UNIT = re.compile(f"[{_HAN}]|[^\\W{_HAN}]+")
_RUNS = {k: re.compile(f"(?:(?:[{_HAN}]|[^\\W{_HAN}]+)\\W*){{1,{k}}}") for k in (2, 3, 4)}
_SPARE_HAN = "龘靐齉爩麤龗灪籱厵驫"  # rare: an exchanged character meets no other
BLOCK = 256  # texts that are counted at a time


@dataclass(frozen=True)
class Pair:
    """A planted near-copy: rows of the corpus, and the shared and united shingles of the two."""

    original: int
    copy: int
    shared: int
    union: int


@dataclass(frozen=True)
class Corpus:
    """`texts` in file order, and the near-copies among them that were planted."""

    texts: list[str]
    pairs: list[Pair]

    @property
    def bytes(self) -> int:
        return sum(len(text.encode("utf-8", "surrogatepass")) for text in self.texts)


# --------------------------------------------------------------------------------------------------------- real text


def machine_texts(kind: str) -> Iterator[str]:
    """Texts of this machine of one kind, in a fixed order."""
    from gpu_dedup import demo

    if kind == "chinese":
        yield from _chinese_manuals()
        return
    wanted = ("sources",) if kind == "code" else ("docs",) if kind == "short" else ("docs", "manual", "licences")
    kinds = {found.name: found.paths for found in demo.gather()}
    # Kinds take turns, so that a small corpus has something of each.
    for paths in itertools.zip_longest(*(kinds[name] for name in wanted)):
        for path in paths:
            text = None if path is None else demo.read_text(path)
            if text is None:
                continue
            if kind == "short":
                yield from (part for part in _paragraphs(text) if 3 <= len(part.split()) <= 60)
            elif kind == "english":
                yield from _passages(text, path)
            else:
                yield text


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        part = " ".join(paragraph.split())
        if part:
            yield part


def _passages(text: str, name: str) -> Iterator[str]:
    """A text cut between paragraphs, where one ends after a length drawn by the name of its file."""
    rng = random.Random(f"passages {os.path.basename(name)}")
    part, room = "", 0.0
    for piece in re.split(r"(?<=\n)(?=\s*\n)", text):
        if not part:
            room = 1000 * 12 ** rng.random()
        part += piece
        if len(part) >= room:
            yield part
            part = ""
    if part.strip():
        yield part


def _chinese_manuals() -> Iterator[str]:
    for folder in sorted(Path(MANUALS).glob("zh*")):
        for path in sorted(folder.rglob("*.gz")):
            if not path.is_file() or path.is_symlink():
                continue
            try:
                text = gzip.decompress(path.read_bytes()).decode("utf-8")
            except (OSError, EOFError, UnicodeDecodeError):
                continue
            for paragraph in re.split(r"\n\.(?:SH|SS|PP|TP)[^\n]*\n", text):
                if len(re.findall(f"[{_HAN}]", paragraph)) >= 40:
                    yield paragraph


def made_chinese(seed: int) -> Iterator[str]:
    """Endless texts of characters by Zipf's law, 50 to 1,500 characters, a comma or full stop every dozen."""
    rng = np.random.default_rng(seed)
    weights = np.cumsum(1.0 / np.arange(1, 4001))
    while True:
        draws = rng.random(int(rng.integers(50, 1500))) * weights[-1]
        chars = [chr(0x4E00 + 5 * int(i)) for i in np.minimum(np.searchsorted(weights, draws), 3999)]
        for i in range(11, len(chars), 12):
            chars[i] = "。" if i % 5 == 0 else "，"
        yield "".join(chars)


def base_texts(kind: str, size: int, seed: int) -> list[str]:
    """Texts of about `size` bytes: of this machine first, then what `grow` or `made_chinese` make."""
    real = machine_texts(kind)
    taken, left = _take(real, size)
    if left > 0:
        more = made_chinese(seed) if kind == "chinese" else grow(taken, seed, first_pass=1)
        taken += _take(more, left)[0]
    return taken


def _take(texts: Iterable[str], size: int) -> tuple[list[str], int]:
    out = []
    for text in texts:
        if size <= 0:
            break
        out.append(text)
        size -= len(text.encode("utf-8", "surrogatepass"))
    return out, size


# ------------------------------------------------------------------------------------------------------------- edits


def edited(rng: random.Random, text: str, similarity: float) -> str:
    """A copy whose Jaccard similarity is about `similarity`: units exchanged, inserted and taken out, spread evenly.

    An edit far from others takes out N shingles and puts N in: S shingles and e edits give (S - N e) / (S + N e).
    """
    spans = [match.span() for match in UNIT.finditer(text)]
    shingles = len(spans) - N + 1
    if shingles < 1:
        return text
    edits = round(shingles * (1 - similarity) / (N * (1 + similarity)))
    edits = max(1, min(edits, len(spans)))
    pieces, end = [], 0
    for i in range(edits):
        low, high = len(spans) * i // edits, len(spans) * (i + 1) // edits
        start, stop = spans[rng.randrange(low, high)]
        pieces.append(text[end:start])
        old = text[start:stop]
        new = rng.choice(_SPARE_HAN) if re.match(f"[{_HAN}]", old) else f"ed{rng.randrange(10**8)}"
        kind = rng.randrange(6)
        if kind == 0:
            gap = "" if new in _SPARE_HAN else " "
            pieces.append(f"{new}{gap}{old}")
        elif kind != 1:  # 1: taken out
            pieces.append(new)
        end = stop
    return "".join(pieces) + text[end:]


def jaccards(pairs: Sequence[tuple[str, str]]) -> list[tuple[int, int]]:
    """(shared, union) of the token:5 sets of each pair of texts, counted by the package."""
    from gpu_dedup.backend import host_backend
    from gpu_dedup.batch import Tape
    from gpu_dedup.normalise import step_bits
    from gpu_dedup.recipe import UNITS

    backend = host_backend("numba")
    out: list[tuple[int, int]] = []
    for first in range(0, len(pairs), BLOCK):
        block = pairs[first : first + BLOCK]
        tape = backend.normalise(
            Tape.of([text for pair in block for text in pair]), step_bits(("nfkc", "lower", "whitespace"))
        )
        every = np.arange(2 * len(block), dtype=np.int64)
        items, offsets = backend.shingle_sets(tape, every, UNITS.index("token"), N, np.zeros(0, np.uint64))
        shared, union = backend.jaccard(items, offsets, every[0::2].copy(), every[1::2].copy())
        out += list(zip(shared.tolist(), union.tolist(), strict=True))
    return out


def plant(texts: Sequence[str], seed: int, near: float = 0.1, exact: float = 0.02) -> Corpus:
    """The texts with near-copies of a share of them (similarity 0.5 to 1) and exact copies, all in a shuffled order."""
    rng = random.Random(f"plant {seed}")
    out = list(texts)
    made: list[tuple[int, int]] = []
    for i, text in enumerate(texts):
        if rng.random() < near:
            made.append((i, len(out)))
            out.append(edited(rng, text, rng.uniform(0.5, 1.0)))
        if rng.random() < exact:
            out.append(text)
    order = list(range(len(out)))
    rng.shuffle(order)
    place = [0] * len(out)
    for new, old in enumerate(order):
        place[old] = new
    counts = jaccards([(out[a], out[b]) for a, b in made])
    pairs = [Pair(place[a], place[b], *count) for (a, b), count in zip(made, counts, strict=True)]
    return Corpus([out[old] for old in order], sorted(pairs, key=lambda pair: pair.copy))


def grow(texts: Sequence[str], seed: int, near: float = 0.0, first_pass: int = 0) -> Iterator[str]:
    """Endless texts made of the given ones. Pass 0 gives them as they are; every later pass deals their words anew.

    near  share of the texts that an edited copy follows
    """
    if not any(UNIT.search(text) for text in texts):
        raise SystemExit("nothing to make a corpus of: the source has no text")
    for number in itertools.count(first_pass):
        rng = random.Random(f"grow {seed} {number}")
        runs = _RUNS[2 + number % 3]
        for text in texts:
            if number:
                pieces = runs.findall(text)
                rng.shuffle(pieces)
                text = "".join(pieces)
            yield text
            if near and rng.random() < near:
                yield edited(rng, text, rng.uniform(0.5, 1.0))


def corpus(kind: str, size: int, seed: int, near: float = 0.1) -> Corpus:
    """A corpus of about `size` bytes of one of KINDS, with planted near-copies."""
    return plant(base_texts(kind, round(size / (1 + near + 0.02)), seed), seed, near)


# ------------------------------------------------------------------------------------------------------------- files


def write_texts(path: Path, texts: Iterable[str], size: int | None = None) -> tuple[int, int]:
    """JSON lines {"id": row, "text": text}; stops after `size` bytes of text. (rows, bytes of text)"""
    rows = total = 0
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for text in texts:
            if size is not None and total >= size:
                break
            raw = len(text.encode("utf-8", "surrogatepass"))
            plain = raw == len(text.encode("utf-8", "ignore"))
            file.write(json.dumps({"id": str(rows), "text": text}, ensure_ascii=not plain) + "\n")
            rows += 1
            total += raw
    return rows, total


def read_texts(paths: Iterable[Path], field: str = "text", rows: int | None = None) -> Iterator[str]:
    """Texts of JSON lines (.gz too) of files and folders; lines without a text are passed over."""
    files: list[Path] = []
    for path in paths:
        inside = sorted(p for p in path.rglob("*") if p.name.endswith((".jsonl", ".jsonl.gz"))) if path.is_dir() else []
        files += inside or [path]
    count = 0
    for path in files:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            for line in file:
                try:
                    value = json.loads(line)
                except ValueError:
                    continue
                text = value.get(field) if isinstance(value, dict) else None
                if not isinstance(text, str):
                    continue
                if rows is not None and count >= rows:
                    return
                count += 1
                yield text


def main() -> int:
    parser = argparse.ArgumentParser(description="Make a corpus of text that this machine has.")
    parser.add_argument("kind", choices=(*KINDS, "grow"))
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--mb", type=float, default=64.0, help="millions of bytes of text")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--near", type=float, default=0.1, help="share of texts that get a near-copy")
    parser.add_argument("--from", dest="source", type=Path, help="for grow: JSON lines, or a folder of them")
    parser.add_argument("--text-field", default="text")
    given = parser.parse_args()
    size = round(given.mb * 1e6)
    if (given.kind == "grow") != (given.source is not None):
        parser.error("--from FILE goes with grow, and grow needs it")
    if given.kind == "grow":
        if not os.path.exists(given.source):
            parser.error(f"--from {given.source}: no such file or folder")
        source = list(read_texts([given.source], given.text_field))
        rows, total = write_texts(given.output, grow(source, given.seed, given.near), size)
        print(f"{given.output}: {rows:,} texts, {total / 1e6:.1f} MB")
        return 0
    made = corpus(given.kind, size, given.seed, given.near)
    rows, total = write_texts(given.output, made.texts)
    listing = given.output.with_name(given.output.name + ".pairs.tsv")
    with open(listing, "w", encoding="ascii", newline="\n") as file:
        file.write("original\tcopy\tshared\tunion\n")
        file.writelines(f"{p.original}\t{p.copy}\t{p.shared}\t{p.union}\n" for p in made.pairs)
    print(f"{given.output}: {rows:,} texts, {total / 1e6:.1f} MB, {len(made.pairs):,} planted near-copies in {listing}")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    sys.exit(main())
