"""Sampled sets against all: hand-written answers, Python sets, parity of the fast kernel with the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_dedup.backend import host_backend
from gpu_dedup.kernels import audit_cpu, audit_ref

KERNELS = {"numpy": audit_ref, "numba": audit_cpu}
Sets = list[list[int]]


def ragged(sets: Sets) -> tuple[Any, Any]:
    items = np.array([x for s in sets for x in sorted(set(s))], np.uint64)
    return items, np.cumsum([0, *(len(set(s)) for s in sets)])


def matches(kernel: Any, sampled: Sets, others: Sets, threshold_ppm: int) -> list[tuple[int, int, int, int]]:
    index = kernel.audit_index(*ragged(sampled))
    found = kernel.audit(*ragged(others), *index, threshold_ppm)
    assert all(array.dtype == np.int64 for array in found)
    return list(zip(*(array.tolist() for array in found), strict=True))


def expected(sampled: Sets, others: Sets, threshold_ppm: int) -> list[tuple[int, int, int, int]]:
    out = []
    for i, left in enumerate(others):
        for j, right in enumerate(sampled):
            shared, union = len({*left} & {*right}), len({*left} | {*right})
            if shared and shared * 10**6 >= threshold_ppm * union:
                out.append((i, j, shared, union))
    return out


@pytest.mark.parametrize("name", KERNELS)
def test_by_hand(name: str) -> None:
    sampled = [[1, 2, 3, 4], [4, 5], [], [2**64 - 1, 0]]
    others = [[1, 2, 3], [4], [], [0, 2**64 - 1], [1, 2, 3, 4, 5], [9]]
    assert matches(KERNELS[name], sampled, others, 500_000) == [
        (0, 0, 3, 4), (1, 1, 1, 2), (3, 3, 2, 2), (4, 0, 4, 5),
    ]  # fmt: skip
    # the threshold itself is a match, a millionth more is not
    assert matches(KERNELS[name], [[1, 2, 3, 4]], [[1, 2, 3]], 750_000) == [(0, 0, 3, 4)]
    assert matches(KERNELS[name], [[1, 2, 3, 4]], [[1, 2, 3]], 750_001) == []


@pytest.mark.parametrize("name", KERNELS)
def test_the_index_by_hand(name: str) -> None:
    high = 3 << 62  # its two highest bits are set
    keys, starts, owners, directory, sizes = KERNELS[name].audit_index(*ragged([[1, high], [1, 2], []]))
    assert keys.tolist() == [1, 2, high]
    assert starts.tolist() == [0, 2, 3, 4]
    assert owners.tolist() == [0, 1, 1, 0]
    assert directory.tolist() == [0, 2, 2, 2, 3]
    assert sizes.tolist() == [2, 2, 0]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("empty", [([], []), ([[]], [[]]), ([[1]], []), ([], [[1]]), ([[]], [[1]]), ([[1]], [[]])])
def test_nothing(name: str, empty: tuple[Sets, Sets]) -> None:
    assert matches(KERNELS[name], *empty, 1) == []


@pytest.mark.parametrize("name", KERNELS)
def test_more_pairs_than_fit_at_once(name: str) -> None:
    sampled, others = [[7, 8, 9]] * 40, [[7, 8, 9]] * 41
    assert matches(KERNELS[name], sampled, others, 1_000_000) == [(i, j, 3, 3) for i in range(41) for j in range(40)]
    assert audit_cpu.ROOM < 40 * 41


@pytest.mark.parametrize("name", KERNELS)
def test_offsets_may_start_inside(name: str) -> None:
    kernel = KERNELS[name]
    items = np.array([5, 1, 2, 3, 9], np.uint64)
    index = kernel.audit_index(items, np.array([1, 4]))
    assert index[0].tolist() == [1, 2, 3]
    found = kernel.audit(items, np.array([1, 3, 4]), *index, 500_000)
    assert [a.tolist() for a in found] == [[0], [0], [2], [3]]


@pytest.mark.parametrize("name", KERNELS)
def test_what_does_not_fit_is_refused(name: str) -> None:
    kernel = KERNELS[name]
    items, offsets = ragged([[1, 2], [3]])
    with pytest.raises(ValueError, match="offsets must rise"):
        kernel.audit_index(items, np.array([0, 2, 4]))
    with pytest.raises(ValueError, match="offsets must rise"):
        kernel.audit_index(items, np.array([2, 0]))
    with pytest.raises(ValueError, match="twice"):
        kernel.audit_index(np.array([4, 4], np.uint64), np.array([0, 2]))
    keys, starts, owners, directory, sizes = kernel.audit_index(items, offsets)
    with pytest.raises(ValueError, match="threshold 0"):
        kernel.audit(items, offsets, keys, starts, owners, directory, sizes, 0)
    with pytest.raises(ValueError, match="directory must"):
        kernel.audit(items, offsets, keys, starts, owners, directory[:-1], sizes, 1)
    with pytest.raises(ValueError, match="starts must cut"):
        kernel.audit(items, offsets, keys, starts[:-1], owners, directory, sizes, 1)
    with pytest.raises(ValueError, match="must not fall"):
        kernel.audit(items, offsets, keys, np.array([0, 3, 1, 3]), owners, directory, sizes, 1)
    with pytest.raises(ValueError, match="owner is outside"):
        kernel.audit(items, offsets, keys, starts, owners + 1, directory, sizes, 1)
    with pytest.raises(ValueError, match="offsets must rise"):
        kernel.audit(items, offsets + 1, keys, starts, owners, directory, sizes, 1)


SMALL = st.lists(st.lists(st.integers(0, 12).map(lambda x: x * 0x1555555555555555 % 2**64), max_size=9), max_size=9)


@given(SMALL, SMALL, st.integers(1, 1_000_000))
def test_python_sets_say_the_same(sampled: Sets, others: Sets, threshold_ppm: int) -> None:
    want = expected([[*set(s)] for s in sampled], [[*set(s)] for s in others], threshold_ppm)
    for kernel in KERNELS.values():
        assert matches(kernel, sampled, others, threshold_ppm) == want


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 1000])
def test_parity_on_larger_sets(count: int, rng: np.random.Generator) -> None:
    pool = rng.integers(0, 2**64, 3000, dtype=np.uint64)
    pool[:200] >>= np.uint64(50)  # a crowded corner of the directory
    sets = [np.unique(rng.choice(pool, int(rng.integers(0, 120)))).tolist() for _ in range(count)]
    others = [s if rng.random() < 0.5 else sets[int(rng.integers(0, count))][: rng.integers(0, 99)] for s in sets]
    for one, other in zip(audit_ref.audit_index(*ragged(sets)), audit_cpu.audit_index(*ragged(sets)), strict=True):
        np.testing.assert_array_equal(one, other)
    found = matches(audit_cpu, sets, others, 600_000)
    assert found == matches(audit_ref, sets, others, 600_000)
    if count > 60:
        assert len(found) > count // 3


def test_the_backends_have_it(rng: np.random.Generator) -> None:
    items, offsets = ragged([rng.integers(0, 50, 20).tolist() for _ in range(30)])
    answers = []
    for name in ("numpy", "numba"):
        backend = host_backend(name)
        answers.append(backend.audit(items, offsets, backend.audit_index(items, offsets), 300_000))
    for one, other in zip(*answers, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(answers[0][0]) >= 30  # each set is like itself
