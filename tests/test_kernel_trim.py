"""Ends of texts: hand-written answers, an oracle by regular expressions, then numba = numpy."""

from __future__ import annotations

import re
import time

import numpy as np
import oracle
import pytest
import unicodedata2
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup.batch import Tape
from gpu_dedup.kernels import trim_cpu, trim_ref

ENGLISH = "One is here. Two, at 3.5 of them, is there! (Is it?) So it goes on"


def run(kernel, texts: list[str], words: list[str] = (), blank: bool = True, most: int = 0) -> list[str]:  # type: ignore[assignment]
    tape, listed = Tape.of(texts), Tape.of(words)
    blob, offsets = kernel.trim(tape.blob, tape.offsets, listed.blob, listed.offsets, blank, most)
    assert (blob.dtype, offsets.dtype) == (np.uint8, np.int64)
    return Tape(blob, offsets).to_list()


@pytest.fixture(params=[trim_ref, trim_cpu], ids=["numpy", "numba"])
def kernel(request: pytest.FixtureRequest):
    return request.param


@pytest.mark.parametrize(
    ("text", "most", "answer"),
    [
        (ENGLISH, 100, ENGLISH),
        (ENGLISH, len(ENGLISH), ENGLISH),
        (ENGLISH, 65, "One is here. Two, at 3.5 of them, is there! (Is it?)"),
        (ENGLISH, 52, "One is here. Two, at 3.5 of them, is there! (Is it?)"),  # the bracket still fits
        (ENGLISH, 51, "One is here. Two, at 3.5 of them, is there!"),  # it does not, and ? alone ends nothing
        (ENGLISH, 42, "One is here. Two, at 3.5 of them, is"),  # the only end is in the first half: a blank will do
        (ENGLISH, 20, "One is here."),
        (ENGLISH, 12, "One is here."),
        (ENGLISH, 11, "One is"),
        (ENGLISH, 2, "On"),
        (ENGLISH, 1, "O"),
        ("one two", 3, "one"),
        ("a b", 1, "a"),
        ("3.141592", 4, "3.14"),
        ("I shall see e.g.this", 15, "I shall see"),
        ("x" * 300, 130, "x" * 130),
        ("é" * 300, 130, "é" * 130),
        ("我来了。你呢？他不来", 8, "我来了。你呢？"),
        ("我来了。你呢?他不来", 8, "我来了。你呢?"),  # as nfkc leaves it
        ("他说：「我来了。」你呢", 10, "他说：「我来了。」"),
        ("他说：「我来了。」你呢", 8, "他说：「我来了。"),
        ("आप हैं। वह जाता है", 9, "आप हैं।"),
        ("Great!😀 Yes", 8, "Great!"),
        ("Wait\u2026 what is it", 9, "Wait\u2026"),
        ("\ud800\udfff. \ud800\ud800\ud800", 4, "\ud800\udfff."),
        ("a\u3000b cd ef", 4, "a\u3000b"),
    ],
)
def test_cuts_by_hand(kernel, text: str, most: int, answer: str) -> None:
    assert run(kernel, [text], most=most) == [answer]
    assert run(kernel, ["x", text, "", text + "y" * 90], most=most)[:3] == [answer[:0] + "x", answer, ""]


@pytest.mark.parametrize(
    ("text", "words", "answer"),
    [
        ("news | the site", ["| the site"], "news"),
        ("news | the site", ["the site", "| the site"], "news"),  # the longest first
        ("news the site the site", ["the site"], "news"),
        ("cookies! news", ["cookies!"], "news"),
        ("ab ba x ab", ["ab", "ba"], "x"),
        ("the site", ["the site"], ""),
        ("the site the", ["the site"], "the"),
        ("aaa", ["aa"], "a"),
        ("aba", ["ab", "ba"], "a"),  # from the end first
        ("新闻 - 新浪网", ["- 新浪网", "网"], "新闻"),
        ("é", ["\u0301"], "é"),
        ("x", ["xx"], "x"),
        ("", ["x"], ""),
    ],
)
def test_strips_by_hand(kernel, text: str, words: list[str], answer: str) -> None:
    assert run(kernel, [text, text], words) == [answer, answer]


def test_blanks_stay_where_they_mean_something(kernel) -> None:
    assert run(kernel, ["site  a b  site"], ["site"], blank=False) == ["  a b  "]
    assert run(kernel, ["site  a b  site", " a "], ["site"]) == ["a b", " a "]


def test_strip_comes_before_the_cut(kernel) -> None:
    assert run(kernel, ["head one two three tail"], ["head", "tail"], most=13) == ["one two three"]
    assert run(kernel, ["head one two three tail"], ["three"], most=13) == ["head one two"]


def test_texts_that_stay_are_not_copied(kernel) -> None:
    tape, words = Tape.of(["one", "two words", ""]), Tape.of(["three"])
    blob, offsets = kernel.trim(tape.blob, tape.offsets, words.blob, words.offsets, True, 9)
    assert blob is tape.blob
    assert offsets is tape.offsets


def test_what_means_nothing_is_refused(kernel) -> None:
    with pytest.raises(ValueError, match="byte or more"):
        run(kernel, ["a"], ["a", ""])
    with pytest.raises(ValueError, match="-1"):
        run(kernel, ["a"], most=-1)


def test_all_ends_and_closers_are_punctuation() -> None:
    """The fast kernel leans on it."""
    for code in (*trim_ref.WEAK, *trim_ref.STRONG, *trim_ref.CLOSERS):
        assert unicodedata2.category(chr(code)).startswith("P"), hex(code)


PIECES = [*"abé中.!?。！…\"')」 \n\u3000\u2003😀3", "\ud800", "word ", "end. ", "x" * 70, "中" * 30]
TEXTS = st.lists(st.lists(st.sampled_from(PIECES), max_size=30).map("".join), max_size=4)
WORDS = st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map("".join), max_size=5)


def shortened(text: str, words: list[str], blank: bool, most: int) -> str:
    """The definition again, by regular expressions."""
    if words:
        either = "|".join(map(re.escape, sorted(words, key=lambda word: -len(word.encode("utf-8", "surrogatepass")))))
        # One word at a time: of those that fit at the end the longest begins first, so `search` finds it.
        while found := re.search(f"(?:{either})\\Z", text):
            text = text[: found.start()].rstrip(" ") if blank else text[: found.start()]
        while found := re.match(either, text):
            text = text[found.end() :].lstrip(" ") if blank else text[found.end() :]
    if not 0 < most < len(text):
        return text
    half, ends = most // 2, []
    for found in re.finditer("([.!?…．])|([。｡！？؟۔।॥።។။‼⁇⁈⁉])", text[:most]):
        if found.start() < half:
            continue
        closers = re.compile("[\"')\\]}»›’”〉》」』】〕〗）］｝｣]*").match(text, found.end(), most)
        assert closers is not None
        for end in range(found.end(), closers.end() + 1):
            after = text[end]
            white = ord(after) in oracle.WHITE_SPACE or ord(after) in oracle.BLANK_FREE
            if found[2] or white or oracle.category(after) == "So":
                ends.append(end)
    if ends:
        return text[: max(ends)]
    blanks = [end for end in range(half + 1, most + 1) if ord(text[end]) in oracle.WHITE_SPACE]
    return text[: max(blanks)] if blanks else text[:most]


@given(TEXTS, WORDS, st.booleans(), st.integers(0, 120))
@settings(max_examples=600)
def test_against_the_oracle(texts: list[str], words: list[str], blank: bool, most: int) -> None:
    want = [shortened(text, words, blank, most) for text in texts]
    for kernel in (trim_ref, trim_cpu):
        assert run(kernel, texts, words, blank, most) == want


def test_much_at_length(pyrng) -> None:
    for _ in range(40):
        pick = pyrng.sample(PIECES, pyrng.choice([3, 8, len(PIECES)]))
        texts = ["".join(pyrng.choices(pick, k=pyrng.choice([5, 50, 400]))) for _ in range(20)]
        words = ["".join(pyrng.choices(pick, k=pyrng.choice([1, 2, 3]))) for _ in range(pyrng.choice([0, 1, 30]))]
        for most in (0, pyrng.randrange(1, 64), pyrng.randrange(64, 2000)):
            want = [shortened(text, words, True, most) for text in texts]
            assert run(trim_cpu, texts, words, True, most) == want
            assert run(trim_ref, texts, words, True, most) == want


@given(TEXTS, WORDS, st.integers(0, 40), st.integers(0, 80), st.binary(max_size=9))
def test_a_result_depends_on_its_document_alone(
    texts: list[str], words: list[str], most: int, skip: int, after: bytes
) -> None:
    tape, listed = Tape.of(["." * skip, *texts, after.decode("latin-1")]), Tape.of(words)
    for kernel in (trim_ref, trim_cpu):
        made = kernel.trim(tape.blob, tape.offsets[1:-1], listed.blob, listed.offsets, True, most)
        assert Tape(*made).to_list() == [run(kernel, [text], words, True, most)[0] for text in texts]


@given(TEXTS, st.integers(1, 60), st.sampled_from(PIECES))
def test_what_follows_the_cut_does_not_matter(texts: list[str], most: int, tail: str) -> None:
    """But for the one code point behind it."""
    long = [text for text in texts if len(text) > most]
    for kernel in (trim_ref, trim_cpu):
        assert run(kernel, [text[: most + 1] + tail for text in long], most=most) == run(kernel, long, most=most)


def test_long_runs_of_closers_take_no_time() -> None:
    texts = ["a." + ")" * 200_000 + "b" for _ in range(20)]
    run(trim_cpu, texts[:1], most=5)
    begun = time.process_time()
    assert run(trim_cpu, texts, most=200_000) == [text[:200_000] for text in texts]
    assert time.process_time() - begun < 2


def test_one_type_for_every_array() -> None:
    data = b"head one. two " * 30
    offsets = np.array([0, len(data)], np.int64)
    words = Tape.of(["head"])
    for blob in (np.frombuffer(data, np.uint8), np.frombuffer(bytearray(data), np.uint8)):
        for give in (offsets, np.frombuffer(offsets.tobytes(), np.int64)):
            for most in (0, np.int64(9)):
                trim_cpu.trim(blob, give, words.blob, words.offsets, True, most)
    assert len(trim_cpu._run.signatures) == 1
