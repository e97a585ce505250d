"""The shipped Unicode tables: right for version 15.0, the same under every interpreter, and what the UCD gives."""

from __future__ import annotations

import subprocess
import sys
import unicodedata

import numpy as np
import pytest
import unicodedata2
from conftest import REPO

from gpu_dedup.kernels.unicode import (
    DIGIT,
    IGNORABLE,
    PUNCT,
    SINGLE,
    SPACE,
    UNICODE_VERSION,
    WORD,
    class_table,
    load,
)

UCD = "/usr/share/unicode"  # where Debian's package unicode-data puts the files


def classes() -> np.ndarray:
    stage1, stage2 = class_table()
    codes = np.arange(0x110000)
    return stage2[stage1[codes >> 7].astype(np.int64) * 128 + (codes & 127)]


def members(bit: int) -> set[int]:
    return set(np.flatnonzero(classes() & bit).tolist())


def ranges(*bounds: tuple[int, int]) -> set[int]:
    return {code for low, high in bounds for code in range(low, high + 1)}


def test_table_shape() -> None:
    stage1, stage2 = class_table()
    assert stage1.shape == (0x110000 >> 7,)
    assert stage1.dtype == np.uint16
    assert stage2.dtype == np.uint8
    assert len(stage2) % 128 == 0
    assert int(stage1.max()) == len(stage2) // 128 - 1
    for array in (stage1, stage2):
        assert array.flags.c_contiguous
        assert array.flags.writeable
    assert class_table()[0] is stage1


def test_version_is_known_without_the_tables() -> None:
    assert UNICODE_VERSION == "15.0.0"
    assert load()["version"].tolist() == [15, 0, 0]
    code = "import gpu_dedup.kernels.unicode as u; assert u.UNICODE_VERSION and u.load.cache_info().currsize == 0"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPO)


@pytest.mark.parametrize(
    ("char", "want"),
    [
        ("a", WORD),
        ("_", WORD | PUNCT),
        (" ", SPACE),
        ("\t", SPACE),
        ("\x1c", 0),
        ("7", WORD | DIGIT),
        ("²", WORD),
        ("٣", WORD | DIGIT),
        ("+", PUNCT),
        ("中", WORD | SINGLE),
        ("か", WORD | SINGLE),
        ("가", WORD),
        ("ก", WORD | SINGLE),
        ("〆", WORD | SINGLE),
        ("。", PUNCT),
        ("é", WORD),
        ("\u0301", WORD),
        ("😀", PUNCT | SINGLE),
        ("©", PUNCT | SINGLE),
        ("→", PUNCT),
        ("\u200d", IGNORABLE),
        ("\u00ad", IGNORABLE),
        ("\ufe0f", WORD | IGNORABLE),
        ("\u3164", WORD | IGNORABLE),
        ("\ud800", 0),
        ("\ue000", 0),
        ("\U0001d2c0", WORD),  # new in 15.0
        ("\U00011f50", WORD | DIGIT),  # new in 15.0
        ("\U00010d40", 0),  # a digit from 16.0 on
        ("\U0002ebf0", SINGLE),  # a Han letter from 15.1 on: in a blank-free range, but not yet assigned
        ("\u0eff", SINGLE),  # never assigned, in a blank-free range
    ],
)
def test_class_of(char: str, want: int) -> None:
    assert int(classes()[ord(char)]) == want


@pytest.mark.parametrize("database", [unicodedata, unicodedata2], ids=["interpreter", "unicodedata2"])
def test_categories_agree_with_other_databases(database) -> None:
    """The bits of general categories, wherever both versions assign the code point; elsewhere one side has none."""
    found = classes() & (WORD | PUNCT | DIGIT)
    newer = tuple(map(int, database.unidata_version.split("."))) >= (15, 0, 0)
    compared = 0
    for code in range(0x110000):
        category = database.category(chr(code))
        want = (WORD if category[0] in "LMN" or category == "Pc" else 0) | (PUNCT if category[0] in "PS" else 0)
        want |= DIGIT if category == "Nd" else 0
        got = int(found[code])
        if newer and got == 0:
            continue  # either nothing to both, or not assigned in 15.0
        if not newer and want == 0:
            continue
        assert got == want, hex(code)
        compared += 1
    assert compared > 140_000


def test_counts() -> None:
    assert len(members(DIGIT)) == 680  # 68 sets of ten
    assert members(DIGIT) <= members(WORD)
    assert len(members(SPACE)) == 25


def test_white_space() -> None:
    others = {0x20, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
    assert members(SPACE) == ranges((0x09, 0x0D), (0x2000, 0x200A)) | others


def test_default_ignorable() -> None:
    assert members(IGNORABLE) == ranges(
        (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
        (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
        (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
    )  # fmt: skip


def test_single() -> None:
    blank_free = ranges(
        (0x3005, 0x3007), (0x3040, 0x30FF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF),
        (0xFF66, 0xFF9F), (0x20000, 0x323AF), (0x0E00, 0x0FFF), (0x1000, 0x109F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F),
        (0x1780, 0x17FF),
    )  # fmt: skip
    found = members(SINGLE)
    assert blank_free <= found
    assert found - blank_free <= members(PUNCT)
    for code in found - blank_free:
        assert unicodedata2.category(chr(code)) == "So", hex(code)


def test_decompositions_agree_with_unicodedata2() -> None:
    arrays = load()
    for name, form in (("nfd", "NFD"), ("nfkd", "NFKD")):
        starts, data = arrays[f"{name}_start"].tolist(), arrays[f"{name}_data"].tolist()
        for i, code in enumerate(arrays[f"{name}_code"].tolist()):
            want = unicodedata2.normalize(form, chr(code))
            assert "".join(map(chr, data[starts[i] : starts[i + 1]])) == want, hex(code)


def test_combining_classes_agree_with_unicodedata2() -> None:
    arrays = load()
    ours = dict(zip(arrays["ccc_code"].tolist(), arrays["ccc_value"].tolist(), strict=True))
    marks = members(WORD)
    for code in marks:
        assert ours.get(code, 0) == unicodedata2.combining(chr(code)), hex(code)
    assert set(ours) <= marks


def test_shipped_file_is_what_the_ucd_gives() -> None:
    """Byte for byte, wherever the Unicode Character Database of this version is installed."""
    try:
        with open(f"{UCD}/CaseFolding.txt", encoding="utf-8") as file:
            first = file.readline()
    except OSError:
        pytest.skip(f"no Unicode Character Database in {UCD}")
    if UNICODE_VERSION not in first:
        pytest.skip(f"{UCD} is of another version: {first.strip()}")
    run = subprocess.run(
        [sys.executable, str(REPO / "kernels" / "unicode_build.py"), UCD, "--check"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_builder_refuses_another_version(tmp_path) -> None:
    for name in ("CaseFolding", "DerivedCoreProperties", "PropList", "DerivedNormalizationProps"):
        (tmp_path / f"{name}.txt").write_text(f"# {name}-16.0.0.txt\n", encoding="utf-8")
    run = subprocess.run(
        [sys.executable, str(REPO / "kernels" / "unicode_build.py"), str(tmp_path)], capture_output=True, text=True
    )
    assert run.returncode != 0
    assert "CaseFolding-16.0.0.txt" in run.stderr
    assert "15.0.0" in run.stderr
