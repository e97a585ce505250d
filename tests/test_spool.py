"""Tables in memory and on disk give the same rows, and the disk's refusals are one line."""

from __future__ import annotations

import errno
import itertools
import os
import struct
import threading

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup import spool
from gpu_dedup.errors import InternalError, OutputError
from gpu_dedup.spool import Budget, Numbers, RaggedTable, Table, check_file, partition, read_blocks

PLENTY = 1 << 40


def no_folder():
    raise AssertionError("the folder was asked for though the budget was enough")


def filled(tmp_path, budget, parts, dtype=np.uint32, width=3):
    table = Table(dtype, width, lambda: str(tmp_path), Budget(budget))
    for part in parts:
        table.append(part)
    table.finish()
    return table


# -- Budget ---------------------------------------------------------------------------------------------------------


def test_budget_counts():
    budget = Budget(10)
    assert budget.take(4)
    assert not budget.take(7)
    assert budget.take(6)
    assert budget.used == 10
    budget.give(4)
    assert budget.take(4)
    assert not budget.take(1)
    with pytest.raises(InternalError, match="11 bytes given back"):
        budget.give(11)


def test_budget_is_safe_between_threads():
    budget = Budget(1000)
    got = []

    def work():
        got.extend(budget.take(1) for _ in range(500))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(got) == 1000
    assert budget.used == 1000


# -- Table ----------------------------------------------------------------------------------------------------------


def test_in_memory_no_folder_is_asked_for():
    table = Table(np.int64, None, no_folder, Budget(PLENTY))
    table.append(np.array([5, 6], np.int64))
    table.append(np.array([], np.int64))
    table.append(np.array([7], np.int64))
    table.finish()
    assert len(table) == 3
    assert table.path is None
    assert table.array.tolist() == [5, 6, 7]
    assert table.take(np.array([2, 0, 2])).tolist() == [7, 5, 7]
    assert table.slice(1, 3).tolist() == [6, 7]


def test_on_disk_has_the_same_rows(tmp_path):
    budget = Budget(12)
    table = Table(np.uint32, 3, lambda: str(tmp_path), budget)
    table.append(np.array([[1, 2, 3]], np.uint32))
    assert os.listdir(tmp_path) == []
    table.append(np.array([[4, 5, 6], [7, 8, 9]], np.uint32))
    assert budget.used == 0, "memory goes back to the others as the table moves to disk"
    table.append(np.array([[10, 11, 12]], np.uint32))
    table.finish()
    assert len(table) == 4
    assert table.array is None
    assert table.take(np.array([3, 0, 3])).tolist() == [[10, 11, 12], [1, 2, 3], [10, 11, 12]]
    assert table.take(np.array([], np.int64)).shape == (0, 3)
    assert table.slice(1, 3).tolist() == [[4, 5, 6], [7, 8, 9]]
    assert table.slice(2, 2).shape == (0, 3)
    path = table.path
    assert os.path.dirname(path) == str(tmp_path)
    table.close()
    assert not os.path.exists(path)


def test_the_file_is_what_the_head_of_the_module_says(tmp_path):
    rows = np.array([[1, 2], [3, 1 << 40]], np.uint64)
    table = filled(tmp_path, 0, [rows], np.uint64, 2)
    with open(table.path, "rb") as file:
        content = file.read()
    payload = struct.pack("<4Q", 1, 2, 3, 1 << 40)
    assert content[:8] == b"GDSPOOL\0"
    assert struct.unpack("<II16sqqQ8x", content[8:64]) == (
        1, 8, b"<u8" + bytes(13), 2, 2, xxhash.xxh3_64_intdigest(payload)
    )  # fmt: skip
    assert content[64:] == payload
    assert check_file(table.path) == (np.dtype(np.uint64), 2, 2)
    table.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: b[:63], "is not a table"),
        (lambda b: b"X" + b[1:], "is not a table"),
        (lambda b: b[:8] + b"\x02" + b[9:], "has version 2"),
        (lambda b: b[:40] + b"\xff" * 8 + b[48:], "was not finished"),
        (lambda b: b[:-1], "is damaged"),
        (lambda b: b + b"\0", "is damaged"),
        (lambda b: b[:-1] + bytes([b[-1] ^ 1]), "is damaged"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, change, words):
    table = filled(tmp_path, 0, [np.arange(6, dtype=np.uint32).reshape(2, 3)])
    copy = tmp_path / "copy"
    with open(table.path, "rb") as file:
        copy.write_bytes(change(file.read()))
    with pytest.raises(OutputError, match=words) as caught:
        check_file(str(copy))
    assert str(caught.value).startswith(f"{copy}: ")
    table.close()


@pytest.mark.parametrize("budget", [0, PLENTY])
@pytest.mark.parametrize(
    ("dtype", "width"), [(np.uint8, None), (np.bool_, None), (np.int64, 1), (np.float64, 2), (np.uint32, 0)]
)
def test_no_rows_and_other_types(tmp_path, budget, dtype, width):
    table = filled(tmp_path, budget, [], dtype, width)
    shape = (0,) if width is None else (0, width)
    assert len(table) == 0
    assert table.array.shape == shape
    assert table.array.dtype == dtype
    assert table.take(np.zeros(0, np.int64)).shape == shape
    table.close()
    shape = (3,) if width is None else (3, width)
    table = filled(tmp_path, budget, [np.ones(shape, dtype)], dtype, width)
    assert np.array_equal(table.slice(0, 3), np.ones(shape, dtype))
    assert table.take(np.array([2, 1])).shape == (2, *shape[1:])
    table.close()
    assert os.listdir(tmp_path) == []


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    parts=st.lists(st.integers(0, 40), max_size=8),
    budget=st.integers(0, 2000),
    width=st.sampled_from([None, 1, 3]),
    gap=st.sampled_from([0, 16, 1 << 14]),
    span=st.sampled_from([1, 50, 1 << 20]),
    buffer=st.sampled_from([1, 100, 1 << 20]),
    seed=st.integers(0, 1000),
)
def test_any_budget_gives_the_same_rows(tmp_path_factory, parts, budget, width, gap, span, buffer, seed):
    folder = tmp_path_factory.getbasetemp()
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "READ_GAP", gap)
        patch.setattr(spool, "READ_SPAN", span)
        patch.setattr(spool, "WRITE_BUFFER", buffer)
        arrays = [rng.integers(0, 1 << 32, (m,) if width is None else (m, width)).astype(np.uint32) for m in parts]
        expected = np.concatenate([*arrays, np.zeros((0,) if width is None else (0, width), np.uint32)])
        shared = Budget(budget)
        with Table(np.uint32, width, lambda: str(folder), shared) as table:
            for array in arrays:
                table.append(array)
            table.finish()
            n = len(expected)
            assert len(table) == n
            assert (table.array is None) == (expected.nbytes > budget)
            if table.array is None:
                assert check_file(table.path)[2] == n
            else:
                assert np.array_equal(table.array, expected)
            rows = rng.integers(0, n, 3 * n) if n else np.zeros(0, np.int64)
            for chosen in (rows, np.unique(rows), rows[:1], rows[:0]):
                assert np.array_equal(table.take(chosen), expected[chosen])
            start, stop = sorted(rng.integers(0, n + 1, 2).tolist())
            assert np.array_equal(table.slice(start, stop), expected[start:stop])
        assert shared.used == 0


def test_rows_are_copied_and_growth_keeps_them(tmp_path):
    table = Table(np.int64, None, no_folder, Budget(PLENTY))
    buffer = np.zeros(10_000, np.int64)
    for i in range(100):
        buffer[:] = np.arange(i * 10_000, (i + 1) * 10_000)
        table.append(buffer)
    table.finish()
    assert np.array_equal(table.array, np.arange(1_000_000))


def test_strided_rows_are_taken(tmp_path):
    keys = np.arange(12, dtype=np.uint64).reshape(4, 3)
    for budget in (0, PLENTY):
        with filled(tmp_path, budget, [keys[:, 1], keys[::2, 2]], np.uint64, None) as table:
            assert table.slice(0, 6).tolist() == [1, 4, 7, 10, 2, 8]


def test_arrays_outlive_the_table():
    table = Table(np.int64, None, no_folder, Budget(PLENTY))
    table.append(np.arange(1000))
    table.finish()
    array = table.array
    table.close()
    table.close()
    assert array.sum() == 499_500


def test_misuse_is_an_internal_error(tmp_path):
    table = Table(np.uint32, 2, lambda: str(tmp_path), Budget(PLENTY))
    with pytest.raises(InternalError, match="do not fit a table"):
        table.append(np.zeros((1, 3), np.uint32))
    with pytest.raises(InternalError, match="do not fit a table"):
        table.append(np.zeros((1, 2), np.int32))
    with pytest.raises(InternalError, match="after it is finished"):
        table.take(np.array([0]))
    table.append(np.zeros((1, 2), np.uint32))
    table.finish()
    with pytest.raises(InternalError, match="grows no more"):
        table.append(np.zeros((1, 2), np.uint32))
    for wrong in ([1], [-1], [0, 1]):
        with pytest.raises(InternalError, match="of a table of 1"):
            table.take(np.array(wrong))
    for start, stop in ((0, 2), (-1, 1), (1, 0)):
        with pytest.raises(InternalError, match="of a table of 1"):
            table.slice(start, stop)


def test_many_threads_read_one_file(tmp_path):
    expected = np.random.default_rng(5).integers(0, 1 << 60, (5000, 4)).astype(np.uint64)
    with filled(tmp_path, 0, [expected], np.uint64, 4) as table:
        wrong = []

        def work(seed):
            rng = np.random.default_rng(seed)
            for _ in range(20):
                rows = rng.integers(0, 5000, 300)
                if not np.array_equal(table.take(rows), expected[rows]):
                    wrong.append(seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


# -- RaggedTable ----------------------------------------------------------------------------------------------------


def test_ragged_by_hand(tmp_path):
    for budget in (0, 40, PLENTY):
        with RaggedTable(np.uint64, lambda: str(tmp_path), Budget(budget)) as table:
            table.append(np.array([99, 10, 11, 12], np.uint64), np.array([1, 3, 3, 4]))
            table.append(np.array([], np.uint64), np.array([0]))
            table.append(np.array([20], np.uint64), np.array([0, 0, 1]))
            table.finish()
            assert len(table) == 5
            assert table.lengths().tolist() == [2, 0, 1, 0, 1]
            items, offsets = table.take(np.array([4, 1, 0, 0, 2, 3]))
            assert items.tolist() == [20, 10, 11, 10, 11, 12]
            assert offsets.tolist() == [0, 1, 1, 3, 5, 6, 6]
            items, offsets = table.take(np.array([], np.int64))
            assert items.dtype == np.uint64
            assert (len(items), offsets.tolist()) == (0, [0])
        assert os.listdir(tmp_path) == []


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    batches=st.lists(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=12), max_size=8), max_size=6),
    budget=st.integers(0, 800),
    gap=st.sampled_from([0, 8, 1 << 14]),
    span=st.sampled_from([1, 40, 1 << 20]),
    data=st.data(),
)
def test_ragged_equals_lists(tmp_path_factory, batches, budget, gap, span, data):
    folder = tmp_path_factory.getbasetemp()
    documents = [document for batch in batches for document in batch]
    chosen = data.draw(st.lists(st.integers(0, len(documents) - 1), max_size=30)) if documents else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "READ_GAP", gap)
        patch.setattr(spool, "READ_SPAN", span)
        with RaggedTable(np.uint32, lambda: str(folder), Budget(budget)) as table:
            for batch in batches:
                offsets = np.cumsum([2, *[len(document) for document in batch]])
                table.append(np.array([7, 7, *itertools.chain(*batch), 7], np.uint32), offsets)
            table.finish()
            assert table.lengths().tolist() == [len(document) for document in documents]
            items, offsets = table.take(np.array(chosen, np.int64))
            taken = [items[a:b].tolist() for a, b in itertools.pairwise(offsets)]
            assert taken == [documents[i] for i in chosen]


def test_ragged_in_memory_by_parts():
    lengths = np.random.default_rng(3).integers(0, 4000, 2000)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    items = np.arange(offsets[-1], dtype=np.uint64)
    with RaggedTable(np.uint64, no_folder, Budget(PLENTY)) as table:
        table.append(items, offsets)
        table.finish()
        assert offsets[-1] > 3 << 20, "several parts"
        again, same = table.take(np.arange(2000))
        assert np.array_equal(again, items)
        assert np.array_equal(same, offsets)


def test_reads_are_grouped_by_gap_and_span(monkeypatch):
    monkeypatch.setattr(spool, "READ_GAP", 16)
    monkeypatch.setattr(spool, "READ_SPAN", 80)

    def groups(low, high):
        return list(spool._groups(np.array(low, np.int64), np.array(high, np.int64), 8))

    assert groups([], []) == []
    assert groups([5], [5]) == [(0, 1)]
    assert groups([0, 2, 5], [1, 3, 6]) == [(0, 3)], "gaps of 8 and 16 bytes are read over"
    assert groups([0, 2, 6], [1, 3, 7]) == [(0, 2), (2, 3)], "one of 24 is not"
    assert groups([0, 5, 9, 10], [5, 9, 10, 12]) == [(0, 3), (3, 4)], "80 bytes are one read, 96 are two"
    assert groups([0, 1000], [1000, 1001]) == [(0, 1), (1, 2)], "a long one is read alone"
    assert groups([0, 0, 3], [2, 2, 4]) == [(0, 3)], "a repeat is read once"


def test_ragged_refuses_offsets_that_do_not_fit():
    table = RaggedTable(np.uint64, no_folder, Budget(PLENTY))
    for wrong in ([0, 4], [-1, 2], [2, 1], [0, 3, 2]):
        with pytest.raises(InternalError, match="do not fit 3 items"):
            table.append(np.zeros(3, np.uint64), np.array(wrong))


# -- the disk refuses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "no space left"), (errno.EDQUOT, "quota"), (errno.EIO, "cannot be written")],
)
def test_a_refusing_disk_is_one_line(tmp_path, monkeypatch, code, words):
    budget = Budget(100)
    table = Table(np.uint64, None, lambda: str(tmp_path), budget)
    table.append(np.zeros(10, np.uint64))
    real = os.write

    def full(descriptor, data):
        if len(data) > 64:
            raise OSError(code, os.strerror(code))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OutputError, match=words) as caught:
        table.append(np.zeros(1 << 18, np.uint64))
    message = str(caught.value)
    assert message.startswith(str(tmp_path))
    assert "--work-dir" in message
    assert "\n" not in message
    table.close()
    assert os.listdir(tmp_path) == []
    assert budget.used == 0


def test_a_missing_folder_is_one_line(tmp_path):
    table = Table(np.uint64, None, lambda: str(tmp_path / "gone"), Budget(0))
    with pytest.raises(OutputError, match=r"gone/table-.*--work-dir"):
        table.append(np.zeros(1, np.uint64))
    table.close()


def test_a_file_that_was_cut_is_one_line(tmp_path):
    with filled(tmp_path, 0, [np.zeros((1000, 3), np.uint32)]) as table:
        os.truncate(table.path, 600)
        with pytest.raises(OutputError, match="was cut short by another program"):
            table.take(np.array([999]))


def test_memory_that_cannot_grow_moves_to_disk(tmp_path, monkeypatch):
    table = Table(np.uint64, None, lambda: str(tmp_path), Budget(PLENTY))
    table.append(np.arange(10, dtype=np.uint64))

    def no_memory(self, size):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(Table, "_grow", no_memory)
    table.append(np.arange(10, dtype=np.uint64))
    table.finish()
    assert table.array is None
    assert table.slice(0, 20).tolist() == [*range(10), *range(10)]
    table.close()


# -- of another process ----------------------------------------------------------------------------------------------


def test_blocks_of_a_finished_file(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "READ_SPAN", 25)  # two rows
    rows = np.arange(21, dtype=np.uint32).reshape(7, 3)
    path = filled(tmp_path, 0, [rows]).path
    blocks = list(read_blocks(path, np.uint32, 3, 7))
    assert [len(block) for block in blocks] == [2, 2, 2, 1]
    assert np.array_equal(np.concatenate(blocks), rows)
    flat = filled(tmp_path, 0, [np.arange(5, dtype=np.int64)], np.int64, None).path
    assert np.concatenate(list(read_blocks(flat, np.int64, None, 5))).tolist() == [0, 1, 2, 3, 4]
    for wrong in [(np.int32, 3, 7), (np.uint32, 2, 7), (np.uint32, None, 7), (np.uint32, 3, 6)]:
        with pytest.raises(OutputError, match="holds 7 rows of uint32 x 3, not "):
            list(read_blocks(path, *wrong))
    with open(path, "ab") as file:
        file.write(b"x")
    with pytest.raises(OutputError, match="is damaged"):
        list(read_blocks(path, np.uint32, 3, 7))
    os.truncate(path, 64 + 13)
    with pytest.raises(OutputError, match=r"is damaged \(13 bytes of 84"):
        list(read_blocks(path, np.uint32, 3, 7))
    os.unlink(path)
    with pytest.raises(OutputError, match="cannot be read"):
        list(read_blocks(path, np.uint32, 3, 7))


# -- Numbers and partition ------------------------------------------------------------------------------------------


def made_by(tmp_path, budget):
    return lambda dtype, width: Table(dtype, width, lambda: str(tmp_path), Budget(budget))


@pytest.mark.parametrize("budget", [0, PLENTY])
def test_numbers_take_no_memory_while_they_count(tmp_path, budget):
    def none(dtype, width):
        raise AssertionError("a table was made for numbers that count")

    plain = Numbers(none)
    plain.append(np.arange(3))
    plain.append(np.arange(3, 3))
    plain.append(np.arange(3, 5))
    plain.finish()
    assert plain.plain
    numbers = Numbers(made_by(tmp_path, budget))
    for part in ([0, 1, 2], [], [3, 7], [5]):
        numbers.append(np.array(part, np.int64))
    numbers.finish()
    assert not numbers.plain
    for one, want in ((plain, [0, 1, 2, 3, 4]), (numbers, [0, 1, 2, 3, 7, 5])):
        assert len(one) == len(want)
        assert one.array.tolist() == want
        assert one.slice(1, 4).tolist() == want[1:4]
        assert one.take(np.array([4, 0, 4])).tolist() == [want[4], 0, want[4]]
        assert [(start, block.tolist()) for start, block in one.blocks()] == [(0, want)]


def test_numbers_that_count_at_first_are_all_there_later(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "READ_SPAN", 80)
    numbers = Numbers(made_by(tmp_path, 100))
    for start in range(0, 35, 7):
        numbers.append(np.arange(start, start + 7))
    numbers.append(np.array([9, 9]))
    numbers.finish()
    want = [*range(35), 9, 9]
    assert numbers.array.tolist() == want
    assert [block.tolist() for _, block in numbers.blocks()] == [want[i : i + 10] for i in range(0, 37, 10)]


@pytest.mark.parametrize("budget", [0, PLENTY])
@pytest.mark.parametrize("parts", [1, 2, 8, 256])
def test_a_partition_keeps_keys_together_and_order(tmp_path, rng, budget, parts):
    keys = rng.integers(0, 2**64, 40, dtype=np.uint64)[rng.integers(0, 40, 3000)]
    keys[:4] = [0, 2**63 - 1, 2**63, 2**64 - 1]
    records = np.stack([np.arange(3000, dtype=np.uint64), keys], axis=1)
    blocks = [(keys[start : start + 700], records[start : start + 700]) for start in range(0, 3000, 700)]
    out = partition(blocks, parts, 2, made_by(tmp_path, budget))
    assert len(out) == parts
    for number, part in enumerate(out):
        got = part.slice(0, len(part)).tolist()
        assert got == [[i, key] for i, key in enumerate(keys.tolist()) if key * parts >> 64 == number]
        part.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("parts", [0, 3, 512])
def test_parts_are_a_power_of_two_and_few(tmp_path, parts):
    with pytest.raises(InternalError, match="a power of two up to 256"):
        partition([], parts, 2, made_by(tmp_path, 0))


@pytest.mark.parametrize("finished", [False, True])
def test_a_table_moves_when_others_need_its_memory(tmp_path, finished):
    budget = Budget(PLENTY)
    table = Table(np.int64, None, lambda: str(tmp_path), budget)
    table.append(np.arange(5))
    before = None
    if finished:
        table.finish()
        before = table.slice(0, 5)
    assert (table.held, budget.used) == (40, 40)
    budget.limit(39)
    assert budget.over
    table.move()
    table.move()
    assert (table.held, budget.used, budget.over) == (0, 0, False)
    if not finished:
        table.append(np.arange(5, 7))
        table.finish()
    assert table.take(np.array([4, 1])).tolist() == [4, 1]
    assert check_file(table.path) == (np.dtype(np.int64), None, len(table))
    if before is not None:
        assert before.tolist() == [0, 1, 2, 3, 4]
    table.close()
    table.move()
    assert os.listdir(tmp_path) == []


def test_ragged_tables_move_and_are_put_together_from_their_columns(tmp_path):
    make = made_by(tmp_path, PLENTY)
    items, ends = make(np.uint8, None), make(np.int64, None)
    items.append(np.frombuffer(b"abcde", np.uint8))
    ends.append(np.array([2, 2, 5]))
    table = RaggedTable.over(items, ends)
    table.finish()
    assert table.held == 5 + 24
    table.move()
    assert table.held == 0
    assert table.spilled == 5 + 24
    got, offsets = table.take(np.array([2, 0, 1]))
    assert (got.tobytes(), offsets.tolist()) == (b"cdeab", [0, 3, 5, 5])
    table.close()
