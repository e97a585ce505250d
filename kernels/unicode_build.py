"""Builds unicode.npz from the text files of the Unicode Character Database. Run by hand when the version changes,
with the package installed.

    python kernels/unicode_build.py /usr/share/unicode            # Debian's package unicode-data installs them there
    python kernels/unicode_build.py /usr/share/unicode --check    # exit 1 if the shipped file differs

Nothing imports this file. The bytes it writes depend on the input alone: fixed names, order and time stamps; not
deflated, so that no compressor's version shows in them.

Contents of unicode.npz, all for version VERSION:

    version        uint8[3]
    class_stage1   uint16[0x110000 >> 7], class_stage2 uint8[blocks * 128]: class bits of `kernels/unicode.py`
    ccc_code       uint32[a], ccc_value uint8[a]: canonical combining class where it is not 0, by code point
    nfd_code       uint32[b], nfd_start uint16[b + 1], nfd_data uint32[...]: full canonical decomposition, in canonical
                   order, of every code point that has one, Hangul syllables aside (they are computed)
    nfkd_code      the same for the full compatibility decomposition, only where it differs from the canonical one
    pair           uint32[c, 3]: first, second, composite of every primary composite, sorted; Hangul aside
    fold_code      uint32[d], fold_start uint16[d + 1], fold_data uint32[...]: full case folding, status C and F
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gpu_dedup.kernels.npz import deliver

VERSION = (15, 0, 0)
SIZE = 0x110000
SHIFT = 7

WORD, SINGLE, IGNORABLE, PUNCT, SPACE, DIGIT = 1, 2, 4, 8, 16, 32

# Scripts written without blanks between words: each code point of these ranges is a unit of its own.
BLANK_FREE = (
    (0x3005, 0x3007), (0x3040, 0x30FF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),  # Han, kana
    (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x20000, 0x323AF),  # compatibility and half-width forms, supplementary Han
    (0x0E00, 0x0EFF), (0x0F00, 0x0FFF),  # Thai and Lao, Tibetan
    (0x1000, 0x109F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
)  # fmt: skip


def fields(path: Path) -> Iterator[list[str]]:
    """Lines of a UCD file, split at semicolons, without comments."""
    for line in path.read_text(encoding="utf-8").splitlines():
        line = line.partition("#")[0].strip()
        if line:
            yield [part.strip() for part in line.split(";")]


def require_version(path: Path) -> None:
    want = "-{}.{}.{}.txt".format(*VERSION)
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    if want not in first:
        raise SystemExit(f"{path}: first line {first!r} is not of Unicode {want[1:-4]}; give that version")


def ranges(path: Path, name: str) -> Iterator[tuple[int, int]]:
    """Code point ranges (both ends in) that have a binary property."""
    for parts in fields(path):
        if parts[1] == name:
            low, _, high = parts[0].partition("..")
            yield int(low, 16), int(high or low, 16)


def build(folder: Path) -> dict[str, np.ndarray]:
    for name in ("CaseFolding.txt", "DerivedCoreProperties.txt", "PropList.txt", "DerivedNormalizationProps.txt"):
        require_version(folder / name)

    classes = np.zeros(SIZE, np.uint8)
    ccc: dict[int, int] = {}
    canonical: dict[int, list[int]] = {}
    compatible: dict[int, list[int]] = {}
    first = -1
    for parts in fields(folder / "UnicodeData.txt"):
        code, name, category = int(parts[0], 16), parts[1], parts[2]
        if name.endswith(", First>"):
            first = code
            continue
        low = first if name.endswith(", Last>") else code
        span = slice(low, code + 1)
        if category[0] in "LMN" or category == "Pc":
            classes[span] |= WORD
        if category == "So":
            classes[span] |= SINGLE
        if category[0] in "PS":
            classes[span] |= PUNCT
        if category == "Nd":
            classes[span] |= DIGIT
        if int(parts[3]):
            ccc[code] = int(parts[3])
        if parts[5]:
            mapping = [int(x, 16) for x in parts[5].split() if not x.startswith("<")]
            compatible[code] = mapping
            if not parts[5].startswith("<"):
                canonical[code] = mapping
    for low, high in BLANK_FREE:
        classes[low : high + 1] |= SINGLE
    for low, high in ranges(folder / "DerivedCoreProperties.txt", "Default_Ignorable_Code_Point"):
        classes[low : high + 1] |= IGNORABLE
    for low, high in ranges(folder / "PropList.txt", "White_Space"):
        classes[low : high + 1] |= SPACE

    def full(code: int, table: dict[int, list[int]]) -> list[int]:
        return [c for part in table[code] for c in full(part, table)] if code in table else [code]

    def ordered(codes: list[int]) -> list[int]:
        """Canonical order: stable by combining class within each run of non-starters."""
        out: list[int] = []
        run: list[int] = []
        for code in codes:
            if ccc.get(code, 0) == 0:
                out += [*sorted(run, key=lambda c: ccc[c]), code]
                run = []
            else:
                run.append(code)
        return out + sorted(run, key=lambda c: ccc[c])

    nfd = {code: ordered(full(code, canonical)) for code in canonical}
    # `compatible` holds both kinds of mapping: a compatibility decomposition applies either.
    every = {code: ordered(full(code, compatible)) for code in compatible}
    nfkd = {code: codes for code, codes in every.items() if nfd.get(code) != codes}

    excluded: set[int] = set()
    for low, high in ranges(folder / "DerivedNormalizationProps.txt", "Full_Composition_Exclusion"):
        excluded.update(range(low, high + 1))
    pairs = sorted((*to, code) for code, to in canonical.items() if code not in excluded)

    fold: dict[int, list[int]] = {}
    for parts in fields(folder / "CaseFolding.txt"):
        if parts[1] in ("C", "F"):
            fold[int(parts[0], 16)] = [int(x, 16) for x in parts[2].split()]

    stage1 = np.zeros(SIZE >> SHIFT, np.uint16)
    blocks: dict[bytes, int] = {}
    for i, block in enumerate(classes.reshape(-1, 1 << SHIFT)):
        stage1[i] = blocks.setdefault(block.tobytes(), len(blocks))

    out: dict[str, np.ndarray] = {
        "version": np.array(VERSION, np.uint8),
        "class_stage1": stage1,
        "class_stage2": np.frombuffer(b"".join(blocks), np.uint8),
        "ccc_code": np.array(sorted(ccc), np.uint32),
        "ccc_value": np.array([ccc[c] for c in sorted(ccc)], np.uint8),
        "pair": np.array(pairs, np.uint32),
    }
    for name, table in (("nfd", nfd), ("nfkd", nfkd), ("fold", fold)):
        codes = sorted(table)
        starts = np.cumsum([0] + [len(table[c]) for c in codes])
        assert starts[-1] < 1 << 16
        out[f"{name}_code"] = np.array(codes, np.uint32)
        out[f"{name}_start"] = starts.astype(np.uint16)
        out[f"{name}_data"] = np.array([x for c in codes for x in table[c]], np.uint32)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description="Build kernels/unicode.npz from the UCD text files in FOLDER.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="compare with the shipped file instead of writing it")
    options = parser.parse_args()
    target = Path(__file__).with_name("unicode.npz")
    return deliver(target, build(options.folder), str(options.folder), options.check)


if __name__ == "__main__":
    sys.exit(main())
