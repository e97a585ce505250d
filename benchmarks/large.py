"""A run over more text than fits in memory, killed in the middle and started again: throughput, memory, disk, truth.

    python benchmarks/large.py --work DIR [--gb 20] [--memory 2GB] [--threads 2] [--json FILE] [-- RUN OPTIONS]

Makes --gb of JSON lines in four files below DIR (from 18 GB on each has more than 2^32 bytes) out of real text of this
machine: the texts as they are, then the same words dealt anew, pass after pass (`corpora.grow`). Among them, by seed:

    near copies    a share of the texts comes again with some words exchanged, inserted or taken out (similarity 0.5 to
                   1), up to LAG texts later in the same file, or, of the real texts, in each of the other files
    exact copies   the real texts, as they are, at the beginning of the second file

The truth is in DIR/pairs-*.tsv: place of the original, place of the copy, shared and united shingles, counted.
Then `gpu-dedup run`, killed with SIGKILL once half of its parts are there (--no-kill: not at all) and started again by
the same command. Recorded: the estimate that the run printed, seconds and MB/s by stage, the peak of memory of the
whole process tree (and the kernel's own high-water mark), the most that work folder and output took on the disk. Of the
result: which planted pairs lost a row, by similarity; and --sample near removals that are checked against their
witness by the oracle of the tests, which shares no code with the package. --undisturbed runs once more without a kill
and compares all outputs. DIR keeps the corpus for another run; --clean removes all that was made.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import corpora

FILES = 4
LAG = 20_000  # texts between an original and its copy, at most
REAL = 80_000_000  # bytes of real text at most
CHECKPOINT = 256_000_000
BLOCK = 2000  # pairs that are counted at a time
BUCKETS = (500_000, 600_000, 700_000, 750_000, 800_000, 850_000, 900_000, 950_000, 1_000_001)


# ---- the corpus ------------------------------------------------------------------------------------------------------


def stream(number: int, real: list[str], near: float, seed: int) -> Iterator[tuple[str, tuple[int, int, str] | None]]:
    """Endless texts of a file; with a copy comes (file, row, text) of its original."""
    rng = random.Random(f"large {seed} {number}")
    waiting: dict[int, list[tuple[int, int, str]]] = {}
    row = 0
    if number == 0:
        fresh: Iterator[str] = corpora.grow(real, seed * FILES)  # pass 0: row i of file 0 is real text i
    else:
        for i, text in enumerate(real if number == 1 else []):
            yield text, (0, i, text)
            row += 1
        for i, text in enumerate(real):
            if rng.random() < near:
                yield corpora.edited(rng, text, rng.uniform(0.5, 1.0)), (0, i, text)
                row += 1
        fresh = corpora.grow(real, seed * FILES + number, first_pass=1)
    for text in fresh:
        for source in waiting.pop(row, []):
            yield corpora.edited(rng, source[2], rng.uniform(0.5, 1.0)), source
            row += 1
            if row in waiting:  # those of this row wait for the next one
                waiting.setdefault(row + 1, []).extend(waiting.pop(row))
        yield text, None
        if rng.random() < near and not (number == 0 and row < len(real)):
            waiting.setdefault(row + rng.randrange(1, LAG), []).append((number, row, text))
        row += 1


def make_file(folder: Path, number: int, size: int, near: float, seed: int, real_bytes: int) -> None:
    """One file of the corpus and its pairs."""
    real, _ = corpora._take(corpora.machine_texts("english"), real_bytes)
    path, listing = folder / "corpus" / f"{number}.jsonl", folder / f"pairs-{number}.tsv"
    pending: list[tuple[int, int, int, str, str]] = []
    with (
        open(f"{path}.tmp", "w", encoding="utf-8", newline="\n") as file,
        open(listing, "w", encoding="ascii", newline="\n") as pairs,
    ):
        pairs.write("file\trow\tcopy_file\tcopy_row\tshared\tunion\n")

        def count() -> None:
            counts = corpora.jaccards([(one, other) for *_, one, other in pending])
            for (of, original, row, *_), (shared, union) in zip(pending, counts, strict=True):
                pairs.write(f"{of}\t{original}\t{number}\t{row}\t{shared}\t{union}\n")
            pending.clear()

        written = 0
        for row, (text, source) in enumerate(stream(number, real, near, seed)):
            if written >= size:
                break
            plain = text.encode("utf-8", "surrogatepass") == text.encode("utf-8", "ignore")
            line = json.dumps({"id": f"{number}-{row}", "text": text}, ensure_ascii=not plain) + "\n"
            written += len(line) if line.isascii() else len(line.encode())
            file.write(line)
            if source is not None:
                pending.append((source[0], source[1], row, source[2], text))
                if len(pending) >= BLOCK:
                    count()
        count()
    os.rename(f"{path}.tmp", path)


def make(folder: Path, size: int, near: float, seed: int, makers: int) -> None:
    """The corpus, unless it is there."""
    wanted = {"size": size, "near": near, "seed": seed}
    note = folder / "corpus.json"
    if note.exists() and json.loads(note.read_text()) == wanted:
        return
    note.unlink(missing_ok=True)
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    real = min(REAL, size // 12)
    work = [(folder, number, size // FILES, near, seed, real) for number in range(FILES)]
    with multiprocessing.get_context("spawn").Pool(makers) as pool:
        pool.starmap(make_file, work, chunksize=1)
    note.write_text(json.dumps(wanted))


# ---- the run ---------------------------------------------------------------------------------------------------------


def children(pid: int) -> list[int]:
    out = [pid]
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                for child in file.read().split():
                    out += children(int(child))
    except (OSError, ValueError):
        pass
    return out


def status(pid: int, field: str) -> int:
    """Bytes of a field of /proc/PID/status, 0 where the process is gone."""
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith(field + ":"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 0


def folder_bytes(folder: Path) -> int:
    """Bytes on the disk of all files below."""
    total, waiting = 0, [str(folder)]
    while waiting:
        try:
            for entry in os.scandir(waiting.pop()):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue
    return total


class Watch(threading.Thread):
    """Looks at a process until it ends: the most memory of its tree, the most disk of its output folder."""

    def __init__(self, process: subprocess.Popen[str], out: Path, kill_at: int | None) -> None:
        super().__init__(daemon=True)
        self.process, self.out, self.kill_at = process, out, kill_at
        self.tree = self.mark = self.disk = 0
        self.killed = False

    def run(self) -> None:
        count = 0
        while self.process.poll() is None:
            self.tree = max(self.tree, sum(status(pid, "VmRSS") for pid in children(self.process.pid)))
            self.mark = max(self.mark, status(self.process.pid, "VmHWM"))
            if count % 10 == 0:
                self.disk = max(self.disk, folder_bytes(self.out))
            if self.kill_at is not None and not self.killed:
                work = self.out / "_gpu_dedup" / "work"
                if work.is_dir() and len(list(work.glob("part-*.gdp"))) >= self.kill_at:
                    self.killed = True
                    self.process.send_signal(signal.SIGKILL)
            count += 1
            time.sleep(0.05)


def once(command: list[str], out: Path, kill_at: int | None) -> dict[str, Any]:
    """One start of the command. Raises SystemExit where it fails otherwise than by our kill."""
    started = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(common.REPO)}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as run:
        watch = Watch(run, out, kill_at)
        watch.start()
        assert run.stderr is not None
        said = run.stderr.read().splitlines()
        run.wait()
        watch.join()
    seconds = time.perf_counter() - started
    if run.returncode not in (0, -signal.SIGKILL) or (run.returncode and not watch.killed):
        raise SystemExit("\n".join([*said[-20:], f"the run ended with {run.returncode}"]))
    return {
        "seconds": seconds,
        "killed": watch.killed,
        "peak_tree_mb": watch.tree / 1e6,
        "peak_process_mb": watch.mark / 1e6,
        "peak_disk_gb": watch.disk / 1e9,
        "estimate": next((line for line in said if "estimate:" in line), ""),
        "notes": [line for line in said if "going on from" in line or "warning" in line],
    }


def digests(out: Path) -> dict[str, str]:
    """BLAKE2 of all output files but report, page and what names the machine."""
    found = {}
    for path in sorted(out.rglob("*")):
        if path.is_file() and path.name not in ("report.json", "report.html", "outputs.json", "lock"):
            hasher = hashlib.blake2b()
            with open(path, "rb") as file:
                while block := file.read(1 << 22):
                    hasher.update(block)
            found[str(path.relative_to(out))] = hasher.hexdigest()
    return found


# ---- the truth -------------------------------------------------------------------------------------------------------


def removed_rows(out: Path) -> dict[str, dict[int, tuple[str, int, int, int, str]]]:
    """By file and row of what went: witness file, row, shared, union, reason."""
    import pyarrow.parquet as pq

    place = out / "_gpu_dedup" / "removed.parquet"
    found: dict[str, dict[int, tuple[str, int, int, int, str]]] = {}
    for part in sorted(place.iterdir()) if place.is_dir() else [place]:
        for batch in pq.ParquetFile(part).iter_batches(
            columns=["file", "row", "kept_file", "kept_row", "shared", "union", "reason"]
        ):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                found.setdefault(row[0], {})[row[1]] = (row[2], row[3], row[4] or 0, row[5] or 0, row[6])
    return found


def recall(folder: Path, removed: dict[str, dict[int, Any]]) -> list[dict[str, Any]]:
    """Planted pairs of which a row went, by similarity."""
    buckets = [{"from": low / 1e6, "pairs": 0, "found": 0} for low in BUCKETS[:-1]]
    exact = {"from": 1.0, "pairs": 0, "found": 0}
    for path in sorted(folder.glob("pairs-*.tsv")):
        with open(path, encoding="ascii") as file:
            next(file)
            for line in file:
                one, row, other, copy, shared, union = map(int, line.split("\t"))
                if not union or shared * 10**6 < BUCKETS[0] * union:
                    continue
                similar = shared * 10**6 // union
                bucket = exact if shared == union else next(
                    b for b, high in zip(buckets, BUCKETS[1:], strict=True) if similar < high
                )  # fmt: skip
                bucket["pairs"] += 1
                gone = row in removed.get(f"{one}.jsonl", {}) or copy in removed.get(f"{other}.jsonl", {})
                bucket["found"] += gone
    return [*buckets, exact]


def lines_of(folder: Path, wanted: dict[str, set[int]]) -> dict[tuple[str, int], str]:
    """Texts of some rows."""
    out = {}
    for name, rows in wanted.items():
        with open(folder / "corpus" / name, "rb") as file:
            last = max(rows, default=-1)
            for row, line in enumerate(file):
                if row > last:
                    break
                if row in rows:
                    out[name, row] = json.loads(line)["text"]
    return out


def unfounded(folder: Path, removed: dict[str, dict[int, Any]], sample: int, threshold_ppm: int) -> dict[str, Any]:
    """Of a sample of near removals: witnesses that went themselves, wrong counts, similarities under the threshold."""
    sys.path.append(str(common.REPO / "tests"))
    import oracle

    near = [(name, row) for name in sorted(removed) for row in sorted(removed[name]) if removed[name][row][4] == "near"]
    chosen = random.Random("sample").sample(near, min(sample, len(near)))
    wanted: dict[str, set[int]] = {}
    for name, row in chosen:
        wanted.setdefault(name, set()).add(row)
        wanted.setdefault(removed[name][row][0], set()).add(removed[name][row][1])
    texts = lines_of(folder, wanted)
    wrong = {"looked_at": len(chosen), "witness_gone": 0, "wrong_counts": 0, "under_threshold": 0}
    for name, row in chosen:
        kept_file, kept_row, shared, union, _ = removed[name][row]
        one, other = (oracle.shingles(oracle.normalise(texts[at]), "token", 5)
                      for at in ((name, row), (kept_file, kept_row)))  # fmt: skip
        both, whole = len(one & other), len(one | other)
        wrong["witness_gone"] += kept_row in removed.get(kept_file, {})
        wrong["wrong_counts"] += (both, whole) != (shared, union)
        wrong["under_threshold"] += both * 10**6 < threshold_ppm * whole
    return wrong


# ---- all of it -------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for corpus and output: three times --gb")
    parser.add_argument("--gb", type=float, default=20.0)
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--near", type=float, default=0.06, help="share of the texts that a near copy is planted of")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, default=1000)
    parser.add_argument("--no-kill", action="store_true")
    parser.add_argument("--undisturbed", action="store_true")
    parser.add_argument("--clean", action="store_true")
    parser.add_argument("--json", type=Path)
    own, options = sys.argv[1:], []
    if "--" in own:
        own, options = own[: own.index("--")], own[own.index("--") + 1 :]
    given = parser.parse_args(own)
    size = round(given.gb * 1e9)
    began = time.perf_counter()
    make(given.work, size, given.near, given.seed, given.threads)
    made = time.perf_counter() - began
    files = sorted((given.work / "corpus").glob("*.jsonl"))
    total = sum(path.stat().st_size for path in files)
    print(common.header(f"{given.threads} threads"))
    print(
        f"{total / 1e9:.2f} GB in {len(files)} files, the largest {max(p.stat().st_size for p in files):,} bytes",
        end="",
    )
    print(f" (made in {made:.0f} s)" if made > 5 else "")

    out = given.work / "out"
    shutil.rmtree(out, ignore_errors=True)
    command = [
        sys.executable, "-m", "gpu_dedup", "run", str(given.work / "corpus"), "-o", str(out), "--memory", given.memory,
        "--threads", str(given.threads), "--checkpoint", str(min(CHECKPOINT, max(1, total // 8))), *options,
    ]  # fmt: skip
    checkpoint = int(command[command.index("--checkpoint") + 1])
    starts = []
    if not given.no_kill:
        starts.append(once(command, out, max(1, total // checkpoint // 2)))
        if not starts[0]["killed"]:
            raise SystemExit("the run was over before it could be killed; take a larger --gb")
    starts.append(once(command, out, None))
    report = json.loads((out / "_gpu_dedup" / "report.json").read_bytes())
    result, machine = report["result"], report["machine"]
    removed = removed_rows(out)
    found = recall(given.work, removed)
    wrong = unfounded(given.work, removed, given.sample, result["recipe"]["threshold_ppm"])
    stages = {name: {"seconds": round(seconds, 2)} for name, seconds in machine["stages"].items()}
    for name, over in (("read, sketch", total), ("write", total)):
        if stages.get(name, {}).get("seconds"):
            stages[name]["mb_per_second"] = round(over / 1e6 / stages[name]["seconds"], 1)
    seconds = sum(start["seconds"] for start in starts)
    for start in starts:
        what = "killed after" if start["killed"] else "done after"
        print(f"  {what} {start['seconds']:,.0f} s; memory {start['peak_process_mb']:,.0f} MB, tree "
              f"{start['peak_tree_mb']:,.0f} MB; disk {start['peak_disk_gb']:.1f} GB")  # fmt: skip
        for note in [start["estimate"], *start["notes"]]:
            print(f"    {note}")
    print(f"  {total / 1e6 / seconds:,.0f} MB/s in all; {result['counts']['read']:,} rows, "
          f"{result['counts']['removed']:,} removed")  # fmt: skip
    for name, facts in stages.items():
        rate = f"{facts['mb_per_second']:10,.0f} MB/s" if "mb_per_second" in facts else ""
        print(f"    {name:24}{facts['seconds']:10,.1f} s{rate}")
    print("  planted pairs of which a row went, by true similarity:")
    for bucket in found:
        share = f"{100 * bucket['found'] / bucket['pairs']:.2f} %" if bucket["pairs"] else "-"
        print(f"    {bucket['from']:.2f}  {bucket['found']:>9,} of {bucket['pairs']:>9,}  {share:>9}")
    print(
        "  near removals looked at: " + ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in wrong.items())
    )
    same = None
    if given.undisturbed:
        first = digests(out)
        shutil.rmtree(out)
        once(command, out, None)
        same = digests(out) == first
        print(f"  a run that nothing disturbed has {'the same' if same else 'OTHER'} outputs")
    results = {
        "gb": total / 1e9, "files": len(files), "largest_file": max(path.stat().st_size for path in files),
        "memory": given.memory, "threads": given.threads, "options": options, "starts": starts, "stages": stages,
        "mb_per_second": total / 1e6 / seconds, "rows": result["counts"]["read"],
        "removed": result["counts"]["removed"], "by_reason": result["counts"]["by_reason"],
        "spilled_gb": machine["spilled"] / 1e9, "recall": found, "sample": wrong, "same_as_undisturbed": same,
    }  # fmt: skip
    common.save(given.json or common.RESULTS / f"large-{given.gb:g}gb.json", "large", common.rounded(results, 6))
    if given.clean:
        for name in ("corpus", "out"):
            shutil.rmtree(given.work / name, ignore_errors=True)
        for path in (*given.work.glob("pairs-*.tsv"), given.work / "corpus.json"):
            path.unlink(missing_ok=True)
    limit = re.fullmatch(r"([\d.]+)GB", given.memory)
    over = limit is not None and max(start["peak_tree_mb"] for start in starts) > float(limit[1]) * 1000
    if over:
        print("  MEMORY WAS OVER ITS LIMIT")
    return int(over or same is False or any(wrong[name] for name in wrong if name != "looked_at"))


if __name__ == "__main__":
    sys.path.insert(0, str(common.REPO))
    raise SystemExit(main())
