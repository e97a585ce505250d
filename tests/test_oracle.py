"""The oracle against answers written by hand, so that it is not only compared with what it judges."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import corpora
import oracle
import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))
import quality


@pytest.mark.parametrize(
    ("text", "unit", "want"),
    [
        ("Hello, big_world a+b", "token", ["Hello", "big_world", "a", "b"]),
        ("Hello, big_world a+b", "code", ["Hello", ",", "big_world", "a", "+", "b"]),
        ("Hello,  big\u3000world", "word", ["Hello,", "big", "world"]),
        ("清晨の駅 2nd", "token", ["清", "晨", "の", "駅", "2nd"]),
        ("co\u00adop \u200bzero\u200d\ufe0fwidth", "token", ["coop", "zerowidth"]),
        ("\U0001f600x\U0001f468\u200d\U0001f469", "token", ["\U0001f600", "x", "\U0001f468", "\U0001f469"]),
        ("เช้า", "token", list("เช้า")),
        ("산골 마을", "token", ["산골", "마을"]),
        ("cafe\u0301 x", "token", ["cafe\u0301", "x"]),
        ("a\ud800b", "token", ["a", "b"]),
        ("a b", "char", ["a", " ", "b"]),
        ("é", "byte", [0xC3, 0xA9]),
        ("...", "token", []),
        ("...", "code", [".", ".", "."]),
        ("", "token", []),
        ("", "word", []),
    ],
)
def test_units(text: str, unit: str, want: list[str]) -> None:
    assert oracle.units(text, unit) == want


@pytest.mark.parametrize(
    ("text", "steps", "want"),
    [
        ("Ｆｕｌｌ  \t ＷＩＤＴＨ ", ("nfkc", "lower", "whitespace"), "full width"),
        ("Straße ﬁn", ("lower",), "strasse fin"),
        ("e\u0301", ("nfc",), "é"),
        ("Ⅷ ٣ ½ 7", ("digits",), "Ⅷ 0 ½ 0"),
        ("a+b, c_d!", ("punctuation",), "a b  c d "),
        ("\u00a0a\u2003 b\u0085", ("whitespace",), "a b"),
        ("\u00a0a\u2003 b\u0085", ("nospace",), "ab"),
        ("\u0345\u0301", ("nfkc", "lower"), "\u0301\u03b9"),  # ordered by class first, folded to a letter then
        ("\U00010570\ua7cb", ("lower",), "\U00010597\ua7cb"),  # Unicode 14 folds, one of Unicode 16 does not exist yet
        ("İ", ("nfkc", "lower"), "i\u0307"),
        ("\ufdfa", ("nfkc",), "صلى الله عليه وسلم"),
        ("x\udc00Y", ("nfkc", "lower"), "x\udc00y"),
    ],
)
def test_normalise(text: str, steps: tuple[str, ...], want: str) -> None:
    assert oracle.normalise(text, steps) == want


def test_shingles_and_similarity() -> None:
    assert oracle.windows("a b c", "token", 2) == [("a", "b"), ("b", "c")]
    assert oracle.windows("a", "token", 2) == [("a",)]
    assert oracle.windows("", "token", 2) == []
    left, right = oracle.shingles("a b a b c", "token", 2), oracle.shingles("a b c d", "token", 2)
    assert oracle.jaccard(left, right) == (2, 4)
    assert oracle.meets(2, 4, 500_000)
    assert not oracle.meets(2, 4, 500_001)
    assert not oracle.meets(0, 0, 1)
    assert oracle.edit_distance("kitten", "sitting") == 3


def test_known_similarity_of_planted_copies() -> None:
    rng = random.Random(1)
    words = corpora.made_up(rng, 200)
    for edits in range(0, 38, 5):
        copy = corpora.exchange(rng, words, edits)
        sets = [oracle.shingles(" ".join(each), "token", 5) for each in (words, copy)]
        assert oracle.jaccard(*sets) == corpora.known_jaccard(200, edits)


@pytest.mark.parametrize("seed", range(6))
def test_planted_answers_are_those_of_brute_force(seed: int) -> None:
    corpus = corpora.planted(seed, huge=3_000)
    docs = [oracle.Doc("a", i, row["text"], row["id"]) for i, row in enumerate(corpus.rows)]
    removed = oracle.decide(docs, oracle.Rules()).removed
    assert [doc.id for doc in docs if doc.place not in removed] == corpus.kept


def test_published_hash_values() -> None:
    """SplitMix64 from 0 (Vigna's test vector), and hashes by hand."""
    assert [oracle.mix64((j + 1) * oracle.GOLDEN) for j in range(3)] == [
        0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F
    ]  # fmt: skip
    assert oracle.unit_hash("") == 0
    assert oracle.unit_hash("a") == oracle.mix64(oracle.GOLDEN + 0x61)
    assert oracle.shingle_hash(("a",)) == oracle.mix64(oracle.unit_hash("a") + oracle.GOLDEN)


def test_the_quality_benchmark_finds_the_pairs_that_brute_force_finds(tmp_path: Path) -> None:
    rng = random.Random("quality")
    rows = [row for seed in range(4) for row in corpora.planted(seed, huge=3_000).rows]
    rows += [{"id": str(i), "text": " ".join(rng.choice("abc") for _ in range(rng.randint(0, 14)))} for i in range(150)]
    path = tmp_path / "a.jsonl"
    path.write_bytes(corpora.lines(rows))
    truth = quality.Truth(path, "text")
    columns = (truth.later, truth.earlier, truth.shared, truth.union)
    got = {(a, b): (s, u) for a, b, s, u in zip(*(column.tolist() for column in columns), strict=True)}
    seen: dict[str, int] = {}
    sets = []
    for i, row in enumerate(rows):
        text = oracle.normalise(row["text"])
        copy = bool(text) and seen.setdefault(text, i) != i
        sets.append(frozenset() if copy else oracle.shingles(text, "token", 5))
    want = {}
    for (high, low), shared in oracle.candidate_pairs(sets).items():
        union = len(sets[high]) + len(sets[low]) - shared
        if 2 * shared >= union:
            want[high, low] = (shared, union)
    assert len(want) > 80
    assert got == want
