"""The normaliser: hand-written answers, unicodedata2 and the interpreter's folding as oracles, then numba = numpy."""

from __future__ import annotations

import bz2
import itertools
import unicodedata

import numpy as np
import pytest
import unicodedata2
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup.batch import Tape
from gpu_dedup.errors import RecipeError
from gpu_dedup.kernels import normalise_cpu, normalise_ref
from gpu_dedup.kernels.normalise_ref import (
    ACCENTS,
    DIGITS,
    HTML,
    LOWER,
    NFC,
    NFKC,
    NOSPACE,
    PAD,
    PUNCTUATION,
    WHITESPACE,
)
from gpu_dedup.kernels.normalise_tables import _Shape
from gpu_dedup.kernels.unicode import WORD, class_table
from gpu_dedup.normalise import step_bits
from gpu_dedup.recipe import NORMALIZE_STEPS

DEFAULT = NFKC | LOWER | WHITESPACE
EVERY = [
    form | lower | accents | digits | punctuation | space
    for form, lower, accents, digits, punctuation, space in itertools.product(
        (0, NFC, NFKC), (0, LOWER), (0, ACCENTS), (0, DIGITS), (0, PUNCTUATION), (0, WHITESPACE, NOSPACE)
    )
]
SPACES = set(map(chr, (*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B))))
SPACES |= set("\u2028\u2029\u202f\u205f\u3000")

# Each is odd in a way of its own: composes, decomposes, folds to several, moves, joins, blocks, is white, is inert.
NASTY = [
    *"aAeEiIoOsSnN<=>≤~0٣٤. ,-_(\n\t", *"ßſŉǰΐΰᾳᾼᾀᾈİıẞﬁﬃ⅓½①㎏㈱…¨`´΅῁῭", *"ÅKḱÉéÇçậÂ≮≰≱яЯΩςσ",
    "\u0300", "\u0301", "\u0302", "\u0308", "\u0313", "\u0342", "\u0345", "\u0323", "\u0327", "\u0331", "\u0338",
    "\u0335", "\u1e9b", "\u1e9b\u0323", "\u0344", "\u0340", "\u0374", "\u212b", "\u212a", "\u2126",
    "\u05d0", "\u05b0", "\u05bc", "\ufb1d", "\ufb2c", "\u0915", "\u093c", "\u094d", "\u0958", "\u0929",
    "\u09c7", "\u09be", "\u09d7", "\u0dd9", "\u0dcf", "\u0dca", "\u0ddd", "\u1025", "\u102e",
    "\u0e01", "\u0e33", "\u0e48", "\u0e38", "\u0eb3", "\u0f71", "\u0f72", "\u0f73", "\u0f81",
    "\u1100", "\u1112", "\u1161", "\u1175", "\u1176", "\u11a7", "\u11a8", "\u11c2", "가", "각", "힣",
    "\uffa1", "\uffc2", "\uff76", "\uff8a", "\uff9e", "\uff9f", "か", "\u3099", "が", "は", "\u309a", "\u309b", "ぱ",
    "\U00010400", "\U00010428", "\u13a0", "\uab70", "\u13f8",
    "\U0001d15e", "\U0001d165", "\U0001d16e", "\U0001d400",
    "\U0001d7d8", "\U000110a5", "\U000110ba", "\U0001133c", "\U00011131", "\U00011127", "\ufdfa", "\ufdfb",
    "\u200d", "\u200c", "\u00ad", "\ufe0f", "\u034f", "\ufeff", "\u115f", "\u180e",
    "中", "文", "，", "。", "！", "Ａ", "１", "豈", "\U0002f800",
    "\u3000", "\u00a0", "\u2003", "\u2028", "\u0085", "\u1680",
    "😀", "\U0001f468", "\ud800", "\udc00", "\udfff", "\U0010ffff", "\ue000", "\x00", "\x1c", "\x7f",
]  # fmt: skip


def oracle(text: str, steps: int) -> str:
    """The definition again, out of other people's parts."""
    form = "NFC" if steps & NFC else "NFKC" if steps & NFKC else None
    if form:
        text = unicodedata2.normalize(form, text)
    if steps & LOWER:
        text = text.casefold()
        if form:
            text = unicodedata2.normalize(form, text)
    if steps & ACCENTS:
        apart = unicodedata2.normalize("NFD", text)
        text = unicodedata2.normalize("NFC", "".join(char for char in apart if not "\u0300" <= char <= "\u036f"))
    if steps & DIGITS:
        text = "".join("0" if unicodedata2.category(char) == "Nd" else char for char in text)
    if steps & PUNCTUATION:
        text = "".join(" " if unicodedata2.category(char)[0] in "PS" else char for char in text)
    if steps & (WHITESPACE | NOSPACE):
        text = "".join(" " if char in SPACES else char for char in text)
        words = [word for word in text.split(" ") if word]
        text = (" " if steps & WHITESPACE else "").join(words)
    return text


def run(kernel, texts: list[str], steps: int) -> list[str]:
    tape = Tape.of(texts)
    return Tape(*kernel.normalise(tape.blob, tape.offsets, steps)).to_list()


def equal(texts: list[str], steps: int) -> None:
    """Both kernels, bit for bit, spare bytes and all."""
    tape = Tape.of(texts)
    blob, ends = normalise_ref.normalise(tape.blob, tape.offsets, steps)
    other, others = normalise_cpu.normalise(tape.blob, tape.offsets, steps)
    assert (blob.dtype, ends.dtype) == (other.dtype, others.dtype) == (np.uint8, np.int64)
    if not (np.array_equal(ends, others) and np.array_equal(blob, other)):
        for text, one, two in zip(texts, Tape(blob, ends).to_list(), Tape(other, others).to_list(), strict=True):
            assert one == two, (ascii(text), hex(steps))
    assert np.array_equal(blob, other)


@pytest.fixture(params=[normalise_ref, normalise_cpu], ids=["numpy", "numba"])
def kernel(request: pytest.FixtureRequest):
    return request.param


GOLDEN = [
    # steps, text, answer
    ("nfkc,lower,whitespace", "", ""),
    ("nfkc,lower,whitespace", " \t\n ", ""),
    ("nfkc,lower,whitespace", "  Hello,\r\n\tWORLD!  ", "hello, world!"),
    ("nfkc,lower,whitespace", "Straße", "strasse"),
    ("nfkc,lower,whitespace", "STRAẞE", "strasse"),
    ("nfkc,lower,whitespace", "e\u0301te\u0301", "\xe9t\xe9"),
    ("nfkc,lower,whitespace", "ＡＢＣ　１２３！", "abc 123!"),
    ("nfkc,lower,whitespace", "ﬁnal oﬃce", "final office"),
    ("nfkc,lower,whitespace", "ΟΔΥΣΣΕΥΣ", "οδυσσευσ"),
    ("nfkc,lower,whitespace", "K\u212a Å\u212b", "kk \xe5\xe5"),
    ("nfkc,lower,whitespace", "\u1e9b\u0323", "\u1e69"),
    ("nfkc,lower,whitespace", "中文，测试。", "中文,测试。"),
    ("nfkc,lower,whitespace", "ｶﾞｷﾞ", "ガギ"),
    ("nfkc,lower,whitespace", "\u1112\u1161\u11ab\u1100\u1173\u11af", "한글"),
    ("nfkc,lower,whitespace", "x²+y³", "x2+y3"),
    ("nfkc,lower,whitespace", "a\u2026b\u00a0\u00a0c\u2028d", "a...b c d"),
    ("nfkc,lower,whitespace", "\u00a8a", "\u0308a"),  # becomes a blank and a mark; the blank is at the start
    ("nfkc,lower,whitespace", "a\u00a8", "a \u0308"),
    ("nfkc,lower,whitespace", "soft\u00adhyphen\u200djoiner", "soft\u00adhyphen\u200djoiner"),
    ("nfkc,lower,whitespace", "\ud800A\udfff", "\ud800a\udfff"),
    ("nfkc,lower,whitespace", "\u0130", "i\u0307"),
    ("nfkc,lower,whitespace", "\u01f0", "\u01f0"),  # folds to j and a caron; the second form joins them again
    ("nfkc,lower,whitespace", "\u1fb3", "\u03b1\u03b9"),
    ("nfkc,lower,whitespace", "\u03b1\u0345", "\u03b1\u03b9"),
    ("nfkc,lower,whitespace", "\ufdfa", "صلى الله عليه وسلم"),
    ("nfkc,lower,whitespace", "\U00010400\u13f8", "\U00010428\u13f0"),
    ("nfkc,lower,whitespace", "\x1c \x1d", "\x1c \x1d"),  # str.split() calls these white space; Unicode does not
    ("nfc", "ＡＢＣ ﬁ e\u0301  \u2126", "ＡＢＣ ﬁ \xe9  \u03a9"),
    ("nfc", "a\u0323\u0302", "\u1ead"),
    ("nfc", "a\u0302\u0323", "\u1ead"),
    ("nfc", "\u0958", "\u0915\u093c"),  # taken apart, and never composed again
    ("nfc", "\u0344", "\u0308\u0301"),
    ("nfc", "a\u05b0\u0301", "\xe1\u05b0"),  # a lower class between does not block
    ("nfc", "\u1100\u1161\u1161", "\uac00\u1161"),
    ("nfc", "\uac00\u11a7", "\uac00\u11a7"),  # U+11A7 is no tail
    ("lower", "\u01f0", "j\u030c"),
    ("lower", "ŉ", "\u02bcn"),
    ("lower", "E\u0301", "e\u0301"),
    ("lower", "  Two  ", "  two  "),
    ("digits", "1٣\U0001d7d8²", "000²"),
    ("punctuation", "a+b=c_d, (e)", "a b c d   e "),
    ("punctuation", "€5 – “x”😀", " 5    x  "),
    ("nfc,punctuation", "a<\u0338b", "a b"),  # composes into a symbol first
    ("punctuation", "a<\u0338b", "a \u0338b"),
    ("punctuation,whitespace", " a, b.c ... ", "a b c"),
    ("punctuation,nospace", " a, b.c ... ", "abc"),
    ("whitespace", "\u3000a\u2003\u2003b\x85", "a b"),
    ("nospace", "\u3000a\u2003\u2003b\x85 c", "abc"),
    ("nfkc,nospace", "a\u00a8b", "a\u0308b"),
    ("accents", "r\xe9sum\xe9 re\u0301sume\u0301 \xc5ngstr\xf6m \u1e69 \u01f0", "resume resume Angstrom s j"),
    ("accents", "\u0301", ""),
    ("accents", " \u0301\u034f\u0344 x", "  x"),
    ("accents", "\u03ac \u1fb6 \u1fb3 \u0439 \u0451", "\u03b1 \u03b1 \u03b1 \u0438 \u0435"),
    ("accents", "\u304c \u304b\u3099 \u304b\u0301\u3099", "\u304c \u304c \u304c"),  # not of the range: they stay
    ("accents", "\u05e9\u05c1 \ufb2a", "\u05e9\u05c1 \u05e9\u05c1"),
    ("accents", "\u05d0\u05b7\u034f\u05b4", "\u05d0\u05b4\u05b7"),  # the joiner no longer keeps the marks apart
    ("accents", "\u1112\u0301\u1161\u11ab", "한"),
    ("accents", "o\u0338 \xf8 \u0142", "o \xf8 \u0142"),  # a stroke that is part of the letter is no accent
    ("nfkc,lower,accents", "\u0130STANBUL \ufb01nale\u0301", "istanbul finale"),
    ("accents,punctuation", "a\u2260b <\u0338", "a b  "),
    ("nfc,accents,whitespace", "a \u0301 b \xa0\u0301", "a b"),
    ("nfkc,digits,punctuation,whitespace", "⑴ № 7½", "0 No 00 0"),
]


@pytest.mark.parametrize(("names", "text", "answer"), GOLDEN)
def test_answers_by_hand(kernel, names: str, text: str, answer: str) -> None:
    assert run(kernel, [text], step_bits(names.split(","))) == [answer]


def test_bits_are_in_the_order_of_work() -> None:
    order = [HTML, NFC, NFKC, LOWER, ACCENTS, DIGITS, PUNCTUATION, WHITESPACE, NOSPACE]
    assert order == [1 << i for i in range(9)]
    places = [step_bits([name]) for name in NORMALIZE_STEPS]
    assert places == sorted(places)


def test_step_names() -> None:
    assert step_bits([]) == 0
    assert step_bits(["whitespace", "lower", "nfkc", "lower"]) == DEFAULT
    assert step_bits(["accents", "html"]) == HTML | ACCENTS
    with pytest.raises(RecipeError, match=r"accent'.*choose one of html, nfc, nfkc, lower, accents"):
        step_bits(["accent"])
    for pair in (["nfc", "nfkc"], ["nospace", "whitespace"]):
        with pytest.raises(RecipeError, match="exclude each other; drop one"):
            step_bits(pair)


@pytest.mark.parametrize("steps", [HTML, 1 << 9, NFC | NFKC, WHITESPACE | NOSPACE, DEFAULT | HTML])
def test_meaningless_bits_are_refused(kernel, steps: int) -> None:
    with pytest.raises(ValueError, match="steps"):
        run(kernel, ["a"], steps)


def test_no_steps_change_nothing(kernel) -> None:
    texts = ["", " A\u0301 ", "\ud800", "".join(NASTY)]
    assert run(kernel, texts, 0) == texts


def assigned() -> list[str]:
    """Code points that Unicode 15.0 assigns to letters, marks, numbers, punctuation and symbols."""
    stage1, stage2 = class_table()
    codes = np.arange(0x110000)
    classes = stage2[stage1[codes >> 7].astype(np.int64) * 128 + (codes & 127)]
    word = np.flatnonzero(classes & (WORD | 8 | 16 | 32 | 4)).tolist()
    found = [chr(code) for code in word if unicodedata2.category(chr(code)) != "Cn"]
    assert len(found) > 149_000
    return found


@pytest.mark.parametrize("steps", [NFC, NFKC], ids=["nfc", "nfkc"])
def test_forms_of_every_code_point(kernel, steps: int) -> None:
    """Later versions keep the forms of assigned code points (Unicode's stability policy), so a newer oracle will do."""
    form = "NFC" if steps == NFC else "NFKC"
    chars = assigned()
    # Alone, taken apart (as far as the version goes: all of it), and with a mark of low class before the others.
    texts = chars + [unicodedata2.normalize("NFD", c) for c in chars if unicodedata2.normalize("NFD", c) != c]
    texts += [c + "\u0334\u0301" for c in chars if unicodedata2.decomposition(c) or c < "\u0500"]
    for text, got in zip(texts, run(kernel, texts, steps), strict=True):
        assert got == unicodedata2.normalize(form, text), ascii(text)


def test_accents_of_every_code_point(kernel) -> None:
    chars = assigned()
    texts = chars + [c + "\u0301\u0334\u05b4" for c in chars if unicodedata2.decomposition(c) or c < "\u0500"]
    for text, got in zip(texts, run(kernel, texts, ACCENTS), strict=True):
        assert got == oracle(text, ACCENTS), ascii(text)


@pytest.mark.parametrize("steps", [LOWER, NFKC | LOWER | DIGITS | PUNCTUATION | WHITESPACE], ids=["lower", "all"])
def test_every_code_point_through_the_folding(kernel, steps: int) -> None:
    """Where the interpreter's version assigns the code point: foldings of assigned code points are stable, too."""
    chars = [char for char in assigned() if unicodedata.category(char) != "Cn"]
    assert len(chars) > 136_000  # Unicode 12.1, of Python 3.8, has so many
    for char, got in zip(chars, run(kernel, chars, steps), strict=True):
        assert got == oracle(char, steps), ascii(char)


def test_code_points_of_later_versions_are_inert(kernel) -> None:
    late = [
        "\ua7cb",
        "\ua7dc",
        "\U00010d40",
        "\U000105c9",
        "\U000105d2\u0307",
        "\U00010d50",
    ]  # 16.0: cased, digit, composite
    for steps in EVERY:
        marks = "\u0307" if steps & ACCENTS else ""
        assert run(kernel, late, steps) == [text.replace(marks, "") for text in late]


def test_official_conformance_file(kernel) -> None:
    """NormalizationTest.txt, wherever Debian's package unicode-data has put that of 15.0."""
    try:
        with bz2.open("/usr/share/unicode/NormalizationTest.txt.bz2", "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        pytest.skip("no NormalizationTest.txt.bz2 in /usr/share/unicode")
    if "15.0.0" not in lines[0]:
        pytest.skip(f"another version: {lines[0]}")
    rows = [
        ["".join(chr(int(code, 16)) for code in column.split()) for column in line.partition("#")[0].split(";")[:5]]
        for line in lines
        if line and line[0] not in "#@"
    ]
    assert len(rows) > 18_000
    flat = [text for row in rows for text in row]
    nfc, nfkc = run(kernel, flat, NFC), run(kernel, flat, NFKC)
    for i, (_, c2, _, c4, _) in enumerate(rows):
        assert nfc[5 * i : 5 * i + 5] == [c2, c2, c2, c4, c4], rows[i]
        assert nfkc[5 * i : 5 * i + 5] == [c4] * 5, rows[i]


NASTY_TEXTS = st.lists(st.lists(st.sampled_from(NASTY), max_size=12).map("".join), max_size=4)


@given(NASTY_TEXTS, st.sampled_from(EVERY))
@settings(max_examples=400)
def test_nasty_strings_against_the_oracle(texts: list[str], steps: int) -> None:
    want = [oracle(text, steps) for text in texts]
    for kernel in (normalise_ref, normalise_cpu):
        assert run(kernel, texts, steps) == want


def test_many_nasty_strings(pyrng) -> None:
    """The same at length: clusters of many kinds behind one another, block edges among them."""
    for steps in EVERY:
        texts = []
        for _ in range(60):
            pick = pyrng.sample(NASTY, pyrng.choice([3, 8, len(NASTY)]))
            texts.append("".join(pyrng.choices(pick, k=pyrng.choice([1, 2, 5, 30, 100]))))
        got = run(normalise_cpu, texts, steps)
        for text, result in zip(texts, got, strict=True):
            assert result == oracle(text, steps), (ascii(text), hex(steps))
        equal(texts, steps)


@pytest.mark.parametrize("tail", ["", "\u0301", "\u0338", "é", "中", "\u0301\u0345", "\u00a0", "😀", "\u094d"])
def test_block_edges(tail: str) -> None:
    """White space, letters and symbols at every place of a 64-byte block, with what joins them behind."""
    texts = []
    for size in (0, 1, 2, 15, 31, *range(60, 68), *range(125, 131)):
        for end in ("a", " ", "<", "\n", "  ", "A ", " ="):
            texts.append(("Ab" * 70)[:size] + end + tail)
            texts.append(("a b" * 50)[:size] + end + tail + " Cd  " * 16)
            texts.append(" " * size + end + tail)
    for steps in (
        DEFAULT,
        NFC | PUNCTUATION | WHITESPACE,
        NFKC | PUNCTUATION | NOSPACE,
        NFC | PUNCTUATION,
        LOWER,
        NFC | DIGITS,
        ACCENTS,
        DEFAULT | ACCENTS,
        ACCENTS | PUNCTUATION | NOSPACE,
    ):
        equal(texts, steps)
        for text, got in zip(texts[::5], run(normalise_cpu, texts[::5], steps), strict=True):
            assert got == oracle(text, steps), ascii(text)


def test_ascii_against_the_oracle(pyrng) -> None:
    ascii_only = [chr(code) for code in range(128)]
    texts = ["".join(ascii_only)]
    for _ in range(60):
        pick = pyrng.choice([ascii_only, ["a", "B", " ", "\n"], ["a", " "], [" ", "\t"], ["x", ".", "9"]])
        texts.append("".join(pyrng.choices(pick, k=pyrng.choice([1, 63, 64, 65, 127, 128, 129, 500]))))
    for steps in EVERY:
        want = [oracle(text, steps) for text in texts]
        for kernel in (normalise_ref, normalise_cpu):
            assert run(kernel, texts, steps) == want


@given(NASTY_TEXTS, st.sampled_from(EVERY), st.integers(0, 80), st.binary(max_size=9))
def test_a_result_depends_on_its_document_alone(texts: list[str], steps: int, skip: int, after: bytes) -> None:
    """Not on neighbours, on offsets[0], or on bytes before and behind; every text alone gives the same."""
    whole = run(normalise_cpu, texts, steps)
    assert whole == [run(normalise_cpu, [text], steps)[0] for text in texts]
    tape = Tape.of(["\u0301" * skip, *texts, after.decode("latin-1")])
    for kernel in (normalise_ref, normalise_cpu):
        blob, ends = kernel.normalise(tape.blob, tape.offsets[1:-1], steps)
        assert ends[0] == 0
        assert Tape(blob, ends).to_list() == whole
        assert len(blob) == ends[-1] + PAD
        assert not blob[ends[-1] :].any()


@pytest.mark.parametrize("steps", [NFC, NFKC, NFC | LOWER, NFKC | LOWER])
def test_texts_may_be_cut_where_a_code_point_starts(steps: int, pyrng) -> None:
    shape = _Shape(steps)
    for _ in range(3000):
        left = "".join(pyrng.choices(NASTY, k=pyrng.randrange(4)))
        right = "".join(pyrng.choices(NASTY, k=pyrng.randrange(1, 4)))
        if shape.starts(right[0]):
            assert oracle(left + right, steps) == oracle(left, steps) + oracle(right, steps), ascii(left + "|" + right)


def test_han_is_what_it_was_under_every_step(pyrng) -> None:
    """The fast road for pairs of U+4E00 to U+9FFF assumes it; and it must end where they end."""
    han = "".join(map(chr, range(0x4E00, 0xA000)))
    edge = "\u4e00\u9fff\u4dff\ua000\u3400\uf900中文国A \u0301\u3099かé"
    texts = ["".join(pyrng.choices(edge, k=pyrng.randrange(40))) for _ in range(100)]
    tails = ["", "x", "\u0301", " ", "\u9fff\u4dff\u4dff", "\u4dff"]
    runs = [han[size * 64 : size * 65] + tail for size in range(45) for tail in tails]
    for steps in EVERY[::7]:
        assert oracle(han, steps) == han
        equal([han, *texts, *runs], steps)


@pytest.mark.parametrize(
    "steps", [NFC, NFKC, LOWER, WHITESPACE, NOSPACE, DIGITS, PUNCTUATION | WHITESPACE, DEFAULT, ACCENTS]
)
def test_twice_is_once(kernel, steps: int, pyrng) -> None:
    texts = ["".join(pyrng.choices(NASTY, k=pyrng.randrange(12))) for _ in range(300)]
    if steps == DEFAULT:  # U+0345 folds to a letter, which may then stand between a letter and its accent
        texts = [text.replace("\u0345", "") for text in texts]
    once = run(kernel, texts, steps)
    assert run(kernel, once, steps) == once


@pytest.mark.parametrize("marks", ["\u0301\u0323", "\u0301", "\u0345\u0301\u0334\u0323\u0338", "\u0f71\u0f72\u0f73"])
@pytest.mark.parametrize("lead", ["", "a", "中", "\ud7a3", "<"])
def test_a_text_of_combining_marks_alone(kernel, marks: str, lead: str) -> None:
    """One cluster of 200,000 code points: sorted in linear time, in scratch that grows."""
    text = lead + marks * (200_000 // len(marks))
    short = lead + marks * 20
    for steps in (NFC, DEFAULT):
        assert run(kernel, [short, text, short], steps) == [
            oracle(short, steps),
            oracle(text, steps),
            oracle(short, steps),
        ]


def test_a_long_run_keeps_the_order_of_equals(kernel, pyrng) -> None:
    pool = [
        "\u0316",
        "\u0317",
        "\u0334",
        "\u0335",
        "\u0345",
        "\u0313",
        "\u0314",
        "\u05b0",
        "\u3099",
        "\u0958",
        "\u0344",
    ]
    for size in (2, 23, 24, 25, 26, 100, 1000):
        text = "x" + "".join(pyrng.choices(pool, k=size)) + "y"
        for steps in (NFC, NFC | LOWER):
            assert run(kernel, [text], steps) == [oracle(text, steps)]


@pytest.mark.parametrize(
    ("char", "steps", "times"),
    [
        ("\ufdfa", NFKC, 11),
        ("\U0001d160", NFC, 3),
        ("\u0390", LOWER, 3),
        ("\ufdfa", DEFAULT, 11),
        ("\u0149\u0301", NFKC | LOWER, 1),
    ],
)
def test_results_that_are_larger_than_the_input(kernel, char: str, steps: int, times: int) -> None:
    for count in (1, 7, 300, 5000):
        texts = ["before", char * count, "", char * (count // 2) + "x", "behind"]
        got = run(kernel, texts, steps)
        assert got == [oracle(text, steps) for text in texts]
        assert len(got[1].encode()) >= times * len((char * count).encode()) * 9 // 10


def test_no_documents_and_empty_documents(kernel) -> None:
    for steps in (0, DEFAULT):
        blob, ends = kernel.normalise(np.zeros(0, np.uint8), np.zeros(1, np.int64), steps)
        assert (len(blob), ends.tolist()) == (PAD, [0])
        assert run(kernel, ["", "", ""], steps) == ["", "", ""]
        assert run(kernel, ["", "A", "", "é", ""], steps) == ["", "a" if steps else "A", "", "é", ""]


@given(st.lists(st.binary(max_size=40), max_size=4), st.sampled_from([0, DEFAULT, NFC | NOSPACE, NFKC | PUNCTUATION]))
def test_bytes_that_are_not_utf8_stay_inside_the_buffers(pieces: list[bytes], steps: int) -> None:
    tape = Tape.of([piece + b"\xf0" for piece in pieces] + [b"\xe4"])
    blob, ends = normalise_cpu.normalise(tape.blob, tape.offsets, steps)
    assert len(ends) == len(tape.offsets)
    assert ends[0] == 0
    assert (np.diff(ends) >= 0).all()
    assert len(blob) == ends[-1] + PAD


def test_one_type_for_every_array() -> None:
    """Read-only and writable inputs, all sets of steps: one compiled kernel."""
    data = "Aé中 e\u0301\u0345".encode() * 30
    offsets = np.array([0, len(data)], np.int64)
    for blob in (np.frombuffer(data, np.uint8), np.frombuffer(bytearray(data), np.uint8)):
        for give in (offsets, np.frombuffer(offsets.tobytes(), np.int64)):
            for steps in (0, LOWER, DEFAULT):
                normalise_cpu.normalise(blob, give, steps)
    assert len(normalise_cpu._run.signatures) == 1
