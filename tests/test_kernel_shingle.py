"""Units, shingle hashes and shingle sets: literals and a plain Python oracle first, then Numba against NumPy."""

from __future__ import annotations

import random
from itertools import pairwise
from types import ModuleType

import hashes
import numpy as np
import oracle
import pytest
from hashes import UNIT_NAMES, nasty, shingle_hash, shingle_hashes, unit_hash
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup.batch import Tape
from gpu_dedup.kernels import shingle_cpu, shingle_ref, units_ref
from gpu_dedup.kernels.unicode import class_table

BOTH = pytest.mark.parametrize("kernel", [shingle_ref, shingle_cpu], ids=["numpy", "numba"])
NONE = np.zeros(0, np.uint64)
TOKEN, WORD, CHAR, BYTE, CODE = range(5)


def everything(tape: Tape) -> np.ndarray:
    return np.arange(len(tape), dtype=np.int64)


def shingled(kernel: ModuleType, text: str, unit: int, n: int) -> list[int]:
    tape = Tape.of([text])
    found, offsets, windows = kernel.shingle(tape.blob, tape.offsets, everything(tape), unit, n, NONE)
    assert found.dtype == np.uint64
    assert offsets.tolist() == [0, len(found)]
    assert windows.tolist() == [len(found)]
    return found.tolist()


def same(tape: Tape, unit: int, n: int, select: np.ndarray | None = None, stop: np.ndarray = NONE) -> None:
    """Both kernels, both functions, bit for bit."""
    chosen = everything(tape) if select is None else select
    for name in ("shingle", "shingle_sets"):
        want = getattr(shingle_ref, name)(tape.blob, tape.offsets, chosen, unit, n, stop)
        got = getattr(shingle_cpu, name)(tape.blob, tape.offsets, chosen, unit, n, stop)
        for left, right in zip(want, got, strict=True):
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right, err_msg=f"{name} {UNIT_NAMES[unit]}:{n}")


# ------------------------------------------------------------------------------------------------------ literals

# What counts as a unit, spelled out by hand.
UNITS = [
    ("token", "Hello, World 5!", ["Hello", "World", "5"]),
    ("token", "snake_case x‿y", ["snake_case", "x‿y"]),
    ("token", "naïve cafe\u0301s", ["naïve", "cafe\u0301s"]),
    ("token", "soft\u00adhyphen", ["softhyphen"]),
    ("token", "\u00ad\u00ad a\u00ad b", ["a", "b"]),
    ("token", "我爱Python3编程", ["我", "爱", "Python3", "编", "程"]),
    ("token", "東京タワーへ", ["東", "京", "タ", "ワ", "ー", "へ"]),
    ("token", "한국어 문장", ["한국어", "문장"]),
    ("token", "ไทย", ["ไ", "ท", "ย"]),
    ("token", "བོད་", ["བ", "ོ", "ད", "་"]),
    ("token", "👨\u200d👩\u200d👧 ok", ["👨", "👩", "👧", "ok"]),
    ("token", "❤\ufe0f5", ["❤", "5"]),
    ("token", "a\u200d\u200cb", ["ab"]),
    ("token", "a\ud800b", ["a", "b"]),
    ("token", "٣٤ Ⅷ x²", ["٣٤", "Ⅷ", "x²"]),
    ("token", "-----", []),
    ("code", "a+b", ["a", "+", "b"]),
    ("code", "a-b_c", ["a", "-", "b_c"]),
    ("code", "f(x)=«y»;", ["f", "(", "x", ")", "=", "«", "y", "»", ";"]),
    ("code", "\x00a\x7f", ["a"]),
    ("word", "don't stop\u00a0now\u2003", ["don't", "stop", "now"]),
    ("word", "a\u200db\x1cc", ["a\u200db\x1cc"]),
    ("char", "a é\u00ad", ["a", " ", "é", "\u00ad"]),
    ("byte", "é!", [0xC3, 0xA9, 0x21]),
]


@BOTH
@pytest.mark.parametrize(("unit", "text", "expected"), UNITS)
def test_units_by_hand(kernel: ModuleType, unit: str, text: str, expected: list[str | int]) -> None:
    assert oracle.units(text, unit) == expected
    assert shingled(kernel, text, UNIT_NAMES.index(unit), 1) == [shingle_hash([one]) for one in expected]


# Written down once; they must hold on every machine, Python, NumPy and Numba.
GOLDEN = [
    (TOKEN, 5, "the quick brown fox jumps over", [0xA9431C5F0238BD08, 0xEF24C6DCAA23606D]),
    (TOKEN, 3, "中文分词 and word_s", [0xD98D98FD2C4B381B, 0x73A5EBDFDF40D2AA, 0xA15EC00EB7FB95BA, 0x9A8B38E8DBC40860]),
    (CODE, 4, "a+b=c_d;", [0xBFE0D3B2AA08B620, 0xDAD3B85153D0C35E, 0xDCF17F76264D2CC2]),
    (WORD, 2, "don't stop now", [0xF50B58EA419052C8, 0x57AEACA580010BAB]),
    (CHAR, 4, "héllo", [0x026DF99BD3BF6226, 0xCDA83CA7F9EA8807]),
    (BYTE, 9, "0123456789", [0x94B86788CB1FF174, 0xD7CC8455CAD523DC]),
    (TOKEN, 5, "too short", [0x3A3DCB7CB49CFBB0]),
]
GOLDEN_UNITS = {
    "a": 0x4F5DA978776A9DB1,
    "eightbyt": 0x89007B0FF3BC17E6,
    "ninebytes": 0xE694EFE8C0AE7872,
    "中": 0x44FA53804E188C5C,
}


@BOTH
@pytest.mark.parametrize(("unit", "n", "text", "expected"), GOLDEN)
def test_golden_shingles(kernel: ModuleType, unit: int, n: int, text: str, expected: list[int]) -> None:
    assert [hex(h) for h in shingled(kernel, text, unit, n)] == [hex(h) for h in expected]


def test_golden_units() -> None:
    got = {
        text: units_ref.unit_hashes(text.encode(), CHAR if len(text) == 1 else TOKEN).tolist() for text in GOLDEN_UNITS
    }
    assert got == {text: [h] for text, h in GOLDEN_UNITS.items()}


@BOTH
def test_fewer_units_than_n_are_one_shingle(kernel: ModuleType) -> None:
    assert shingled(kernel, "", TOKEN, 5) == []
    assert shingled(kernel, " ... ", TOKEN, 5) == []
    assert shingled(kernel, "one two", TOKEN, 5) == [shingle_hash(["one", "two"])]
    assert shingled(kernel, "a b c d e", TOKEN, 5) == [shingle_hash(list("abcde"))]
    assert shingled(kernel, "a b c d e f", TOKEN, 5) == [shingle_hash(list("abcde")), shingle_hash(list("bcdef"))]
    # A cut shingle is the hash of what is there, whatever n: "one two" is the same set under token:2 and token:5.
    assert shingled(kernel, "one two", TOKEN, 5) == shingled(kernel, "one two", TOKEN, 2)


@BOTH
def test_ignorable_code_points_leave_no_trace(kernel: ModuleType) -> None:
    plain = "international soft hyphens 中文 end"
    for mark in ("\u00ad", "\u200d", "\ufe0f", "\U000e0101"):
        marked = mark + plain.replace("t", f"t{mark}{mark}").replace("中", f"中{mark}") + mark
        for unit in (TOKEN, CODE):
            assert shingled(kernel, marked, unit, 2) == shingled(kernel, plain, unit, 2)
        assert shingled(kernel, marked, WORD, 2) != shingled(kernel, plain, WORD, 2)


@BOTH
def test_stop_shingles_leave_and_windows_count_them(kernel: ModuleType) -> None:
    tape = Tape.of(["a b c a b", "a b", "x y", ""])
    stop = np.array(sorted([shingle_hash(["a", "b"]), shingle_hash(["q", "r"])]), np.uint64)
    found, offsets, windows = kernel.shingle(tape.blob, tape.offsets, everything(tape), TOKEN, 2, stop)
    assert found.tolist() == [shingle_hash(["b", "c"]), shingle_hash(["c", "a"]), shingle_hash(["x", "y"])]
    assert offsets.tolist() == [0, 2, 2, 3, 3]
    assert windows.tolist() == [4, 1, 1, 0]


@BOTH
def test_sets_are_ascending_without_repeats(kernel: ModuleType) -> None:
    tape = Tape.of(["a a a a a a", "b a b a b a", ""])
    found, offsets = kernel.shingle_sets(tape.blob, tape.offsets, everything(tape), TOKEN, 2, NONE)
    pairs = [shingle_hash(["b", "a"]), shingle_hash(["a", "b"])]
    assert found.tolist() == [shingle_hash(["a", "a"]), *sorted(pairs)]
    assert offsets.tolist() == [0, 1, 3, 3]


@BOTH
def test_arguments_that_leave_the_arrays_are_refused(kernel: ModuleType) -> None:
    tape = Tape.of(["a b", "c"])
    every = everything(tape)
    for offsets in ([0, 2, 5], [-1, 2, 4], [3, 2, 4]):
        with pytest.raises(ValueError, match="offsets"):
            kernel.shingle(tape.blob, np.array(offsets, np.int64), every, TOKEN, 1, NONE)
    for select in ([2], [-1]):
        with pytest.raises(ValueError, match="select"):
            kernel.shingle_sets(tape.blob, tape.offsets, np.array(select, np.int64), TOKEN, 1, NONE)
    with pytest.raises(ValueError, match="unit 5"):
        kernel.shingle(tape.blob, tape.offsets, every, 5, 1, NONE)
    for n in (0, 1001):
        with pytest.raises(ValueError, match=f"n {n}"):
            kernel.shingle(tape.blob, tape.offsets, every, TOKEN, n, NONE)


def test_spans_say_where_shingles_stand() -> None:
    text = "héllo, wörld\u00ad! 中文 end"
    tape = Tape.of(["before", text])
    spans = shingle_ref.shingle_spans(tape.blob, tape.offsets, 1, TOKEN, 2)
    data = text.encode()
    assert [data[a:b].decode() for a, b in spans.tolist()] == ["héllo, wörld", "wörld\u00ad! 中", "中文", "文 end"]
    assert shingle_ref.shingle_spans(tape.blob, tape.offsets, 0, TOKEN, 2).tolist() == [[0, 6]]
    empty = Tape.of(["", "--"])
    assert shingle_ref.shingle_spans(empty.blob, empty.offsets, 1, TOKEN, 2).shape == (0, 2)
    assert shingle_ref.shingle_spans(empty.blob, empty.offsets, 0, BYTE, 2).shape == (0, 2)


# -------------------------------------------------------------------------------------------------------- oracle


@BOTH
@pytest.mark.parametrize("unit", range(5), ids=UNIT_NAMES)
def test_oracle_on_nasty_texts(kernel: ModuleType, unit: int, pyrng: random.Random) -> None:
    texts = ["", *(nasty(pyrng, pyrng.randint(1, 40)) for _ in range(60))]
    tape = Tape.of(texts)
    for n in (1, 3, 9):
        expected = [shingle_hashes(text, UNIT_NAMES[unit], n) for text in texts]
        found, offsets, windows = kernel.shingle(tape.blob, tape.offsets, everything(tape), unit, n, NONE)
        assert [found[a:b].tolist() for a, b in pairwise(offsets)] == expected
        assert windows.tolist() == [len(one) for one in expected]
        items, bounds = kernel.shingle_sets(tape.blob, tape.offsets, everything(tape), unit, n, NONE)
        assert [items[a:b].tolist() for a, b in pairwise(bounds)] == [sorted(set(one)) for one in expected]


def test_every_code_point_once() -> None:
    """Each code point between two letters, in all five units: what breaks, joins, stands alone or vanishes."""
    every = [chr(c) for c in range(0x110000)]
    for first in range(0, 0x110000, 0x8000):
        block = every[first : first + 0x8000]
        tape = Tape.of([f"a{char}b" for char in block])
        for unit in (TOKEN, CODE, WORD):
            _, offsets, _ = shingle_cpu.shingle(tape.blob, tape.offsets, everything(tape), unit, 1, NONE)
            got = (offsets[1:] - offsets[:-1]).tolist()
            if first in (0, 0x18000, 0x20000, 0xE0000):
                assert got == [len(oracle.units(f"a{char}b", UNIT_NAMES[unit])) for char in block], hex(first)
            bits = classes(np.arange(first, first + 0x8000))
            assert got == UNITS_BY_CLASS[unit][bits].tolist(), hex(first)
        same(Tape.of(["".join(block)]), TOKEN, 2)


def classes(points: np.ndarray) -> np.ndarray:
    stage1, stage2 = class_table()
    return stage2[stage1[points >> 7].astype(np.int64) * 128 + (points & 127)]


def _units_by_class(unit: int) -> np.ndarray:
    """How many units `a`, a code point with these class bits, `b` make."""
    out = np.full(64, 2, np.int64)
    for bits in range(64):
        if unit == WORD:
            out[bits] = 2 if bits & 16 else 1
        elif bits & 4:
            out[bits] = 1
        elif bits & 2 or (unit == CODE and bits & 8 and not bits & 1):
            out[bits] = 3
        elif bits & 1:
            out[bits] = 1
    return out


UNITS_BY_CLASS = {unit: _units_by_class(unit) for unit in (TOKEN, CODE, WORD)}


# -------------------------------------------------------------------------------------------------------- parity


@pytest.mark.parametrize("unit", range(5), ids=UNIT_NAMES)
def test_edges_around_multiples_of_64(unit: int) -> None:
    """Each kind of character at each place of a block, at the text's start, end, and the blob's end."""
    texts = []
    for lead in (0, 1, 2, *range(60, 68), *range(125, 130)):
        for middle in ("+", "é", "中", "😀", "\u00ad", " ", "", "_", "\ud800", "+-+", "中\u200d文"):
            texts.append("x" * lead + middle + "tail" * (lead % 3))
            texts.append("+" * lead + middle)
            texts.append("é" * lead + middle + "a")
    same(Tape.of(texts), unit, 3)
    for text in texts[::7]:  # alone: the text ends where the blob ends
        same(Tape.of([text]), unit, 2)


@pytest.mark.parametrize("unit", range(5), ids=UNIT_NAMES)
def test_neighbours_and_offsets_do_not_matter(unit: int, pyrng: random.Random) -> None:
    texts = [nasty(pyrng, pyrng.randint(0, 50)) for _ in range(40)]
    alone = [shingled(shingle_cpu, text, unit, 4) for text in texts]
    for before, after in (("", ""), ("word", "word"), ("中", "é"), ("x" * 63, "y" * 200)):
        whole = Tape.of([before, *texts, after])
        tape = Tape(whole.blob, whole.offsets[1:-1])  # offsets[0] above 0, bytes after the last text
        select = np.array([7, 3, 3, 0, 39], np.int64)
        found, offsets, _ = shingle_cpu.shingle(tape.blob, tape.offsets, select, unit, 4, NONE)
        assert [found[a:b].tolist() for a, b in pairwise(offsets)] == [alone[i] for i in select]
        same(tape, unit, 4, select)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 9, 17, 999, 1000])
def test_any_n_over_many_blocks(n: int, pyrng: random.Random) -> None:
    """Texts of several blocks of units: what one block hands to the next."""
    texts = [" ".join(nasty(pyrng, 3) for _ in range(count)) for count in (1, 300, 700, 1500, 4000)]
    texts += ["中" * 1023, "中" * 1024, "中" * 1025, "a " * 2048, "+" * 3000, "a" * 5000]
    for unit in range(5):
        same(Tape.of(texts), unit, n)


def test_units_of_megabytes() -> None:
    long = "x" * 3_000_001
    marked = "x\u00ad" * 500_000 + "x" * 2_500_001
    assert shingled(shingle_cpu, long, TOKEN, 5) == [shingle_hash([long])] == shingled(shingle_cpu, marked, TOKEN, 5)
    assert shingled(shingle_cpu, "\u00ad" * 1_000_000, TOKEN, 5) == []
    assert shingled(shingle_cpu, " " * 3_000_000 + "end", TOKEN, 5) == [shingle_hash(["end"])]
    same(Tape.of(["the cat sat on the mat " * 50_000, "中文，" * 100_000]), TOKEN, 5)


def test_more_shingles_than_room_was_made_for() -> None:
    """A unit per byte, where one in three bytes was expected: the answer grows, within the list and at its end."""
    same(Tape.of(["a b c", "+" * 20_000, "d e f", "", "+-" * 60_000]), CODE, 2)


def test_nothing_to_do() -> None:
    for texts in ([], [""], ["", "", ""]):
        for unit in range(5):
            same(Tape.of(texts), unit, 5)
    tape = Tape.of(["a b c"])
    same(tape, TOKEN, 2, select=np.zeros(0, np.int64))


def test_many_stop_shingles(pyrng: random.Random) -> None:
    tape = Tape.of([nasty(pyrng, 60) for _ in range(30)])
    found, _, _ = shingle_ref.shingle(tape.blob, tape.offsets, everything(tape), TOKEN, 2, NONE)
    near = np.concatenate([found[::2], found[1::4] ^ np.uint64(1), np.array([0, 2**64 - 1], np.uint64)])
    same(tape, TOKEN, 2, stop=np.unique(near))
    same(tape, TOKEN, 2, stop=np.unique(found))


def test_arrays_of_any_origin_compile_once() -> None:
    """Read-only, writable and strided inputs are one type to Numba: a second compilation costs the user seconds."""
    tape = Tape.of(["a b c d"])
    shingle_cpu.shingle(tape.blob, tape.offsets, everything(tape), TOKEN, 2, NONE)
    before = len(shingle_cpu._shingle.signatures)
    shingle_cpu.shingle(tape.blob.copy(), tape.offsets, everything(tape), TOKEN, 2, NONE)
    every_other = np.zeros(4, np.int64)[::2]
    shingle_cpu.shingle(tape.blob, tape.offsets, every_other, WORD, 3, np.ones(1, np.uint64))
    assert len(shingle_cpu._shingle.signatures) == before == 1


@given(st.lists(st.lists(st.sampled_from(hashes.PIECES), max_size=30).map("".join), max_size=6), st.integers(1, 12))
@settings(max_examples=60)
def test_parity_on_anything(texts: list[str], n: int) -> None:
    for unit in range(5):
        same(Tape.of(texts), unit, n)


@given(st.text(st.characters(codec="utf-8"), max_size=200), st.text(max_size=50))
@settings(max_examples=60)
def test_a_shingle_set_never_shrinks_with_more_text(text: str, more: str) -> None:
    """Appending after a break keeps every shingle of a text that has n units or more."""
    for unit in (TOKEN, CODE, WORD):
        if len(oracle.units(text, UNIT_NAMES[unit])) >= 2:
            assert set(shingled(shingle_cpu, text, unit, 2)) <= set(shingled(shingle_cpu, f"{text}\n{more}", unit, 2))


# ----------------------------------------------------------------------------------------- the ordered table alone


def unique(values: np.ndarray, bits: int) -> list[int]:
    room = np.concatenate([values, np.zeros(4, np.uint64)])
    table = np.zeros((1 << bits) + len(values) + 64, np.uint64)
    marks = np.zeros(len(table) // 64 + 2, np.uint64)
    count = shingle_cpu.unique(room, 0, len(values), np.uint64(64 - bits), table, marks)
    assert not marks.any()
    return room[:count].tolist()


@pytest.mark.parametrize("bits", [3, 8, 14])
def test_ordered_table_sorts_anything(bits: int, rng: np.random.Generator) -> None:
    top = np.uint64(2**64 - 1)
    spread = rng.integers(0, 2**64 - 1, 2000, dtype=np.uint64, endpoint=True)
    for values in (
        spread,
        np.concatenate([spread, spread[::-1]]),
        np.array([top, 0, top, 0, 1, top - np.uint64(1)], np.uint64),
        rng.permutation(np.arange(3000, dtype=np.uint64)),  # all in one place: given up, sorted by heap
        top - rng.permutation(np.arange(3000, dtype=np.uint64)),  # the same at the far end of the table
        np.repeat(np.uint64(7), 5000),
        spread[:1],
        spread[:0],
    ):
        assert unique(values, bits) == sorted(set(values.tolist()))


def test_unit_hashes_differ_by_length() -> None:
    """Zero padding is not confused with bytes of zero."""
    texts = ["\x00", "\x00\x00", "a", "a\x00", "a" * 8, "a" * 8 + "\x00"]
    assert len({unit_hash(text) for text in texts}) == len(texts)
    for text in texts:
        assert shingled(shingle_cpu, text, WORD, 1) == [shingle_hash([text])]
