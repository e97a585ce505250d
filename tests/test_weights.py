"""Tables of document frequencies: parts add up, files keep them and refuse what is not theirs."""

from __future__ import annotations

import os
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hashes import shingle_hashes

from gpu_dedup.backend import host_backend
from gpu_dedup.batch import Tape
from gpu_dedup.errors import InputError, OutputError, RecipeError, RunError
from gpu_dedup.kernels.weights_ref import CELLS, MOST_DOCUMENTS, ONE
from gpu_dedup.recipe import Recipe
from gpu_dedup.weights import HEAD, SIZE, DocumentFrequencies, terms_key

TEXTS = ["one two three", "two three", "three three", "...", "four"]
KEY = terms_key(Recipe(shingle="token:1"))


def counted(texts: list[str], name: str = "numba") -> DocumentFrequencies:
    backend = host_backend(name)
    tape = Tape.of(texts)
    out = DocumentFrequencies(KEY)
    out.add(backend, *backend.cells(tape, np.arange(len(tape), dtype=np.int64), 0, 1, np.zeros(0, np.uint64)))
    return out


def cell(word: str) -> int:
    return shingle_hashes(word, "token", 1)[0] >> 40


def test_counts_by_hand() -> None:
    found = counted(TEXTS)
    assert found.documents == 4
    wanted = Counter({cell("one"): 1, cell("two"): 2, cell("three"): 3, cell("four"): 1})
    assert {int(c): int(found.counts[c]) for c in np.flatnonzero(found.counts)} == wanted
    assert found.cells == 4
    weights = found.idf()
    # log2(5 / 2) and 1 for words of one document: 2.321928... in 16.16, which a table rounds down
    assert abs(int(weights[cell("one")]) - 152_170) <= 2
    assert int(weights[cell("three")]) == int(weights[cell("one")]) - ONE  # log2(5 / 4), and 1
    assert weights[cell("one")] == weights[cell("four")] > weights[cell("two")] > weights[cell("three")]


def test_parts_add_up_to_the_whole_in_any_order() -> None:
    whole = counted(TEXTS)
    for order in ((0, 1), (1, 0)):
        parts = [counted(TEXTS[:2]), counted(TEXTS[2:], "numpy")]
        total = DocumentFrequencies(KEY)
        for i in order:
            total.merge(parts[i])
        assert (total.documents, total.checksum()) == (whole.documents, whole.checksum())
        np.testing.assert_array_equal(total.counts, whole.counts)


def test_the_checksum_tells_tables_apart() -> None:
    one, other = counted(TEXTS), counted(TEXTS)
    assert one.checksum() == other.checksum()
    other.documents += 1
    assert one.checksum() != other.checksum()
    other.documents -= 1
    other.counts[7] += np.uint32(1)
    assert one.checksum() != other.checksum()


def test_terms_of_another_recipe_do_not_mix() -> None:
    base = Recipe(method="minhash")
    same = [base, base.with_(threshold_ppm=500_000), base.with_(keep="longest"), base.with_(text_field=("body",))]
    assert len({terms_key(recipe) for recipe in same}) == 1
    others = [
        base.with_(max_chars=9),
        base.with_(shingle="token:4"),
        base.with_(normalize=("nfc",)),
        base.with_(stop_shingles=("a b c d e",)),
    ]
    assert len({terms_key(recipe) for recipe in (base, *others)}) == 5
    assert terms_key(base) == terms_key(base.with_(normalize=("whitespace", "lower", "nfkc"))), "the default, spelled"
    with pytest.raises(RecipeError, match="count different terms"):
        counted(TEXTS).merge(DocumentFrequencies(terms_key(base)))


def test_too_many_documents() -> None:
    full = DocumentFrequencies(KEY, MOST_DOCUMENTS - 3)
    with pytest.raises(RunError, match=r"4,294,967,295 documents are more than .* --df-table"):
        full.merge(counted(TEXTS))
    assert full.documents == MOST_DOCUMENTS - 3


def test_a_file_keeps_a_table(tmp_path: Path) -> None:
    path = str(tmp_path / "terms.df")
    made = counted(TEXTS)
    made.save(path)
    assert os.listdir(tmp_path) == ["terms.df"]
    assert os.path.getsize(path) == SIZE
    for key in (KEY, None):
        found = DocumentFrequencies.load(path, key)
        assert (found.key, found.documents, found.checksum()) == (KEY, 4, made.checksum())
        np.testing.assert_array_equal(found.counts, made.counts)
        found.merge(made)  # what was read can be added to
    made.save(path)  # the same table is there: of a run that was stopped after it
    with pytest.raises(OutputError, match="another table is there already; name another file, or pass --overwrite"):
        found.save(path)
    assert DocumentFrequencies.load(path).documents == 4
    found.save(path, overwrite=True)
    assert DocumentFrequencies.load(path).documents == 8
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match="a file that is no table stands there"):
            made.save(str(other), overwrite)
    assert other.read_text() == "mine"
    with pytest.raises(RecipeError, match=r"terms\.df: counts the terms of another"):
        DocumentFrequencies.load(path, terms_key(Recipe()))


def test_golden_file(tmp_path: Path) -> None:
    """The first bytes of version 1, made here from the description of the format alone."""
    path = str(tmp_path / "terms.df")
    made = counted(TEXTS)
    made.save(path)
    head = struct.pack("<8sIIQ", b"GDTERMS\0", 1, 24, 4) + KEY.encode() + made.checksum().encode()
    head += struct.pack("<Q", xxhash.xxh3_64_intdigest(head))
    data = (tmp_path / "terms.df").read_bytes()
    assert data[:HEAD] == head + bytes(4096 - len(head))
    at = HEAD + 4 * cell("three")
    assert data[at : at + 4] == b"\3\0\0\0"


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "terms.df"
    counted(TEXTS).save(str(path))
    whole = path.read_bytes()

    def altered(at: int, data: bytes) -> bytes:
        return whole[:at] + data + whole[at + len(data) :]

    longer = whole + b"\0"
    for data, words in (
        (b"", "is no table of document frequencies; give a file that --save-df-table wrote"),
        (b"GDTERMS", "is no table"),
        (altered(0, b"GDBLOOM\0"), "is no table"),
        (altered(8, b"\2"), "is of version 2, and this gpu-dedup reads version 1"),
        (altered(16, b"\5"), "is cut short or was altered"),
        (altered(96, b"\1"), "is cut short or was altered"),
        (altered(HEAD - 1, b"\1"), "is cut short or was altered"),
        (altered(HEAD + 4 * cell("two"), b"\1"), "is cut short or was altered"),
        (whole[:-1], "is cut short or was altered"),
        (whole[:HEAD], "is cut short or was altered"),
        (longer, "is cut short or was altered"),
    ):
        path.write_bytes(data)
        with pytest.raises(InputError, match=words) as caught:
            DocumentFrequencies.load(str(path))
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="cannot be read \\(No such file or directory\\)"):
        DocumentFrequencies.load(str(tmp_path / "none"))
    with pytest.raises(InputError, match="cannot be read"):
        DocumentFrequencies.load(str(tmp_path))
    with pytest.raises(OutputError, match="another file"):
        DocumentFrequencies(KEY).save(str(tmp_path / "no" / "where"))


def test_a_table_that_lies_about_itself(tmp_path: Path) -> None:
    """Sums that fit counts which cannot be: more documents in a cell than there are."""
    path = str(tmp_path / "terms.df")
    counts = np.zeros(CELLS, np.uint32)
    counts[3] = 9
    DocumentFrequencies(KEY, 8, counts).save(path)
    with pytest.raises(InputError, match="altered"):
        DocumentFrequencies.load(path)
