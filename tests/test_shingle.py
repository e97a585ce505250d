"""Stop shingles from their texts."""

from __future__ import annotations

import numpy as np
import pytest
from hashes import UNIT_NAMES, shingle_hash

from gpu_dedup.backend import Backend
from gpu_dedup.batch import Tape
from gpu_dedup.errors import RecipeError
from gpu_dedup.recipe import ShingleSpec
from gpu_dedup.shingle import stop_hashes


def as_is(tape: Tape) -> Tape:
    return tape


def lower(tape: Tape) -> Tape:
    return Tape.of([text.lower() for text in tape.to_list()])


def test_hashes_are_those_of_the_shingles(backend: Backend) -> None:
    stops = stop_hashes(
        ["All rights reserved", "a b-c", "ALL RIGHTS, RESERVED!"], ShingleSpec("token", 3), lower, backend
    )
    assert stops.dtype == np.uint64
    assert stops.tolist() == sorted({shingle_hash(["all", "rights", "reserved"]), shingle_hash(["a", "b", "c"])})


def test_none(backend: Backend) -> None:
    assert stop_hashes([], ShingleSpec("token", 3), as_is, backend).tolist() == []


def test_they_stop_what_they_name(backend: Backend) -> None:
    spec = ShingleSpec("char", 2)
    stop = stop_hashes(["ab", "中文"], spec, as_is, backend)
    tape = Tape.of(["abx", "中文字"])
    items, offsets = backend.shingle_sets(tape, np.arange(2, dtype=np.int64), spec.unit_code, spec.n, stop)
    assert items.tolist() == [shingle_hash(["b", "x"]), shingle_hash(["文", "字"])]
    assert offsets.tolist() == [0, 1, 2]


@pytest.mark.parametrize("unit", UNIT_NAMES)
def test_another_count_of_units_is_refused(backend: Backend, unit: str) -> None:
    four = {"token": "a b c d", "word": "a b c d", "char": "abcd", "byte": "a中", "code": "a+b;"}[unit]
    two = {"token": "a b", "word": "a b", "char": "ab", "byte": "é", "code": "a+"}[unit]
    spec = ShingleSpec(unit, 4)
    assert len(stop_hashes([four], spec, as_is, backend)) == 1
    # Also one unit more: it would be two shingles, and nobody knows which of them was meant.
    for bad, count in ((two, 2), (four + two, 6 if unit != "word" and unit != "token" else 5), ("", 0)):
        with pytest.raises(RecipeError) as caught:
            stop_hashes([four, bad], spec, as_is, backend)
        message = str(caught.value)
        assert f"stop shingle 2, {bad!r}: {count} {unit} units" in message
        assert f"{unit}:4 needs exactly 4" in message
        assert "\n" not in message


def test_counts_are_those_after_normalisation(backend: Backend) -> None:
    def without_the(tape: Tape) -> Tape:
        return Tape.of([text.replace("the ", "") for text in tape.to_list()])

    spec = ShingleSpec("token", 2)
    assert len(stop_hashes(["the cat sat"], spec, without_the, backend)) == 1
    with pytest.raises(RecipeError, match="1 token unit after normalisation"):
        stop_hashes(["the cat"], spec, without_the, backend)


def test_a_long_text_is_quoted_in_part(backend: Backend) -> None:
    with pytest.raises(RecipeError) as caught:
        stop_hashes(["word " * 1000], ShingleSpec("token", 5), as_is, backend)
    assert len(str(caught.value)) < 200
    assert "1000 token units" in str(caught.value)
