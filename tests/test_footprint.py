"""--memory: what a run may hold, what it says when that is too little, and what it takes in the end."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import corpora
import pytest

from gpu_dedup.errors import RunError
from gpu_dedup.pipeline import footprint
from gpu_dedup.pipeline.footprint import (
    Footprint,
    ahead_of,
    batch_of,
    gone_bytes,
    matches_bytes,
    parts_of,
    readers_of,
    row_bytes,
    verify_of,
)
from gpu_dedup.pipeline.pool import Pool
from gpu_dedup.recipe import Recipe
from gpu_dedup.run import Run
from gpu_dedup.spool import Budget

GB = 10**9


def made(memory: int | None, input_bytes: int = 100 * GB, **settings: object) -> tuple[Footprint, Budget]:
    budget = Budget(0)
    run = Run(memory=memory, threads=2, **settings)  # type: ignore[arg-type]
    return Footprint(Recipe(bands=17, rows=7), run, "numba", input_bytes, budget), budget


def test_tables_get_what_rows_leave() -> None:
    one, budget = made(2 * GB)
    batch = batch_of(Run(memory=2 * GB))
    # what was read and waits for two threads, and what their two readers have in their hands
    fixed = (390 << 20) + 6 * batch * 8 + 8 * batch + 2 * (batch + (2 << 20)) + 250_000_000
    assert one.fixed == fixed
    assert budget.total == one.room == 2 * GB - fixed
    each = sum(size for _, size in row_bytes(Recipe()))
    assert each == 6
    one.met(1000, 5_000_000)
    assert budget.total == 2 * GB - fixed - 1000 * each


def test_a_memory_that_cannot_work_is_refused_with_the_least_that_can() -> None:
    with pytest.raises(RunError, match=r"too little for 2 threads; the least that works is [\d.]+ MB") as caught:
        made(300_000_000)
    least = float(re.findall(r"works is ([\d.]+) MB", str(caught.value))[0]) * 1e6
    made(int(least))
    with pytest.raises(RunError):
        made(int(least * 0.97))
    # Ten rows a kilobyte of 100 GB: a billion rows. Said when a fiftieth was read, not when it is too late.
    one, _ = made(2 * GB)
    one.met(100_000, 10_000_000)
    one.in_turn(100_000, 10_000_000)
    one.met(2_700_000, 270_000_000)
    with pytest.raises(RunError, match=r"about 1,000,000,000 rows.*the least that works is about ([\d.]+) GB"):
        one.in_turn(2_700_000, 270_000_000)


def test_what_was_read_ahead_says_nothing_about_the_rest() -> None:
    """Rows of later files, which come when they come, are counted; what all will be is judged in input order."""
    one, budget = made(2 * GB)
    before = budget.total
    one.met(1_000_000, 300_000_000)
    assert budget.total == before - 1_000_000 * one.per_row
    one.in_turn(10, 300_000_000)
    one.in_turn(999_990, 0)


def test_reading_ahead_is_a_part_of_the_memory_and_less_of_a_small_one() -> None:
    assert (ahead_of(Run(threads=2)), readers_of(Run(threads=2))) == (8 * (4 << 20), 2)
    for memory in (256 * 10**6, GB, 8 * GB):
        for threads in (1, 2, 16, 512):
            run = Run(memory=memory, threads=threads)
            assert ahead_of(run) <= memory // 32
            assert 1 <= readers_of(run) <= min(threads, 16)
            assert readers_of(run) * batch_of(run) <= max(ahead_of(run), batch_of(run))


def test_rows_that_fit_are_met_to_the_end_and_no_further() -> None:
    one, budget = made(2 * GB, input_bytes=10 * GB)
    one.met(10_000, 200_000_000)
    many = one.room // one.per_row
    one.met(many, 9 * GB)
    assert 0 <= budget.total < one.per_row
    with pytest.raises(RunError, match=r"raise --memory, or run on shards"):
        one.met(1, 1000)


def test_a_memory_that_nobody_asked_for_refuses_nothing() -> None:
    one, budget = made(None)
    one.met(10**12, 50 * GB)
    assert budget.total == 0


def test_buckets_are_found_by_all_threads_in_parts_that_fit() -> None:
    one, budget = made(2 * GB, input_bytes=60 * GB)
    assert one.collide(1000, 8) == (8, 1)
    one.met(5_000_000, 50 * GB)
    assert budget.take(one.room)
    free = one.work
    parts = parts_of(Recipe(), Run(memory=2 * GB, threads=2), "numba")
    assert free == parts.bytes - parts.program > 400_000_000  # what neither reading nor verifying needs now
    for threads in (1, 2, 8, 64):
        for heads in (10_000, 5_000_000, 40_000_000, 300_000_000, 10**9):
            at_once, parts = one.collide(heads, threads)
            assert 1 <= at_once <= threads
            assert parts & (parts - 1) == 0
            assert at_once * parts <= 256 or parts == 1, "each part is a file"
            # twice the average, as parts are not all of one size
            fits = heads * footprint.COLLIDE * at_once * (1 if parts == 1 else 2) <= free * parts
            assert fits or (at_once == 1 and parts == 256)
            if parts > 1:
                assert heads * footprint.COLLIDE * at_once > free


def test_what_is_met_takes_its_share_from_tables_and_ends_the_run_where_it_is_too_much() -> None:
    one, budget = made(2 * GB, input_bytes=GB)
    one.met(1_000_000, GB)
    room = one.room
    one.holds("gone", 1000 * gone_bytes(Recipe()), "1,000 copies by text")
    assert budget.total == one.room == room - 80_000
    one.holds("gone", 3000 * gone_bytes(Recipe()), "3,000 copies by text")
    one.holds("matches", matches_bytes(Recipe(), 10, 100), "10 texts in 100 pairs")
    assert one.room == room - 240_000 - 1500 - 8000
    one.holds("matches", 0, "")
    assert one.room == room - 240_000
    words = (
        r"too little for 1,000,000 rows with 3,000 copies by text and 9,000,000 texts in 5 pairs; .* ([\d.]+) GB; raise"
    )
    with pytest.raises(RunError, match=words) as caught:
        one.holds("matches", matches_bytes(Recipe(), 9_000_000, 5), "9,000,000 texts in 5 pairs")
    least = float(re.findall(r"works is ([\d.]+) GB", str(caught.value))[0])
    enough, _ = made(int(least * GB), input_bytes=GB)
    enough.met(1_000_000, GB)
    enough.holds("matches", matches_bytes(Recipe(), 9_000_000, 5), "")
    other, _ = made(None)
    other.holds("matches", 10**15, "a guide for tables refuses nothing")
    assert matches_bytes(Recipe(cluster="connected"), 1, 0) > matches_bytes(Recipe(), 1, 0)


def test_batches_and_verification_are_parts_of_the_memory() -> None:
    assert batch_of(Run()) == 4 << 20
    assert batch_of(Run(memory=GB)) == GB // 512
    assert batch_of(Run(memory=8 * GB)) == 4 << 20
    assert verify_of(Run(memory=GB)) == GB // 8
    assert verify_of(Run(memory=64 * GB)) == footprint.VERIFY


def test_ordered_keeps_to_its_threads() -> None:
    import threading

    at_work, most, lock = 0, 0, threading.Lock()

    def work(item: int) -> int:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        threading.Event().wait(0.002)
        with lock:
            at_work -= 1
        return item * item

    with Pool(6) as pool:
        for threads in (1, 2, 6, None):
            most = 0
            assert list(pool.ordered(work, range(40), threads)) == [i * i for i in range(40)]
            assert most <= (threads or 6)


def test_a_run_stays_below_its_memory(tmp_path: Path) -> None:
    """Whole process, mapped pages and all, over more rows than its tables could hold."""
    rng = random.Random(1)
    words = [f"w{i}" for i in range(5000)]
    path = tmp_path / "rows.jsonl"
    with open(path, "wb") as file:
        for number in range(400_000):
            text = " ".join(rng.choices(words, k=12)) if number % 7 else "the same text again and again, once more"
            file.write(corpora.line({"id": number, "text": text}))
    command = [
        sys.executable, "-m", "gpu_dedup", "run", str(path), "-o", str(tmp_path / "out"), "--memory", "700MB",
        "--threads", "2", "--checkpoint", "8MB",
    ]  # fmt: skip
    code = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], capture_output=True, text=True); "
        "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, done.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, timeout=300)
    status, peak, rest = done.stdout.split(" ", 2)
    assert status == "0", rest
    assert int(peak) < 700 * 10**6
    report = json.loads((tmp_path / "out" / "_gpu_dedup" / "report.json").read_text())
    assert report["machine"]["spilled"] > 0, "the tables were meant to outgrow the memory"
