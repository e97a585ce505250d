"""gpu-dedup beside its peers: one machine, the same JSON lines, alternating runs; speed and quality in one table.

    python benchmarks/compare.py --corpus english --mb 64      text of this machine (benchmarks/corpora.py)
    python benchmarks/compare.py --input PATH --name NAME      your own JSON lines; --mb 200 cuts, --grow makes more
    python benchmarks/compare.py ... --peers rensa,daft --repeat 5   some of them; `--peers none`: gpu-dedup alone

Peers are installed from PyPI, newest release, one virtual environment each below --peers-env, so that no peer's
requirements hold another back. One that cannot be installed, fails or runs into --limit is a row that says why. What
each is made to do, and where its shingles differ, is said in benchmarks/peers/<name>.py and benchmarks/README.md.

End to end: a process from a JSONL file to the rows that stay, its start included. Runs alternate: gpu-dedup, peer,
gpu-dedup, peer ... (--repeat each), after a run of each on a few rows that is not counted (compilers' and file caches).
    wall, CPU   medians, s; CPU of the process and all its children
    memory      largest, MB: the process tree's proportional set size every 0.2 s, or the kernel's peak of its
                largest process if that is more
    MB/s        bytes of text over wall
    times ours  median over the pairs of neighbouring runs of peer's wall / gpu-dedup's wall; below 1 the peer is faster
Quality, against brute force over all pairs (benchmarks/quality.py) of the first --quality-rows rows:
    no witness  removed rows that no kept row is like (equal text, or Jaccard of token:5 at the threshold)
    missed      kept rows with an earlier kept row like them
    recall      share of the true pairs of which a row went
Sketch alone: 128 slots, one core. Millions of hashed shingles a second by shingles a document, and MB/s from texts in
memory.

Results, with machine, date, load, versions and command, go to benchmarks/results/compare-NAME.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
for place in (str(HERE), str(HERE.parent)):
    if place not in sys.path:
        sys.path.insert(0, place)
import common  # noqa: E402

SLOTS = 128
LENGTHS = (100, 1000, 10_000)  # shingles of a document, sketch alone
SHINGLES = 1_000_000
WARM_ROWS = 200
OURS = "gpu-dedup"
FAST = "gpu-dedup --sketch fast"


@dataclass(frozen=True)
class Peer:
    """One row of the tables: how to install a tool and how to call its driver."""

    name: str
    packages: tuple[str, ...]  # the first is the tool
    driver: str
    variant: str = ""
    python: tuple[int, int] = (3, 10)  # oldest that its newest release runs on
    sketch: bool = True  # has a sketch that can be had alone

    @property
    def environment(self) -> str:
        return self.packages[0].partition("[")[0]


DATATROVE = ("datatrove[io,processing]", "spacy", "jieba", "orjson")
PEERS = (
    Peer("datasketch", ("datasketch", "numpy"), "datasketch"),
    Peer("rensa full", ("rensa", "numpy"), "rensa", "full"),
    Peer("rensa rho", ("rensa", "numpy"), "rensa", "rho"),
    Peer("daft", ("daft", "numpy"), "daft"),
    Peer("datatrove", DATATROVE, "datatrove", sketch=False),
    Peer("datatrove words", DATATROVE, "datatrove", "words", sketch=False),
    Peer("fastsketchlsh", ("fastsketchlsh", "numpy"), "fastsketchlsh", python=(3, 11)),
    Peer("gaoya", ("gaoya",), "gaoya", sketch=False),
    Peer("text-dedup", ("text-dedup",), "text_dedup", python=(3, 12), sketch=False),
)


class PeerError(Exception):
    """Why a peer has no figures, in one line."""


# ------------------------------------------------------------------------------------------------------ environments


def interpreter(least: tuple[int, int]) -> str:
    """A Python of at least this version: this one, or one on the path. This one if there is none: pip then says why."""
    if sys.version_info[:2] >= least:
        return sys.executable
    for minor in range(least[1], least[1] + 4):
        for found in (shutil.which(f"python3.{minor}"), *_pyenv(minor)):
            if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
                return found
    return sys.executable


def _pyenv(minor: int) -> list[str]:
    return [str(path) for path in sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))]


def install(peer: Peer, root: Path) -> tuple[Path, dict[str, str]]:
    """The interpreter of the peer's environment, made if need be, and the versions in it. Raises PeerError."""
    where = root / peer.environment
    python, ready = where / "bin" / "python", where / "installed.json"
    wanted = list(peer.packages)
    if not ready.exists() or json.loads(ready.read_text())["packages"] != wanted:
        shutil.rmtree(where, ignore_errors=True)
        for command in (
            [interpreter(peer.python), "-m", "venv", str(where)],
            [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-q", *wanted],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise PeerError(f"cannot be installed: {last_line(done.stderr + done.stdout)}")
        listing = subprocess.run(
            [str(python), "-m", "pip", "list", "--format=json", "--disable-pip-version-check"],
            capture_output=True,
            text=True,
            check=True,
        )
        versions = {entry["name"].lower(): entry["version"] for entry in json.loads(listing.stdout)}
        ready.write_text(json.dumps({"packages": wanted, "versions": versions}))
    versions = json.loads(ready.read_text())["versions"]
    names = [re.split(r"[\[=<>]", package)[0] for package in wanted]
    return python, {name: versions.get(name.lower(), "?") for name in names}


def last_line(text: str) -> str:
    """The line of a log that says most: the last that names an error, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"error|exception|no module|refused|killed", line, re.I)]
    return (errors or lines or ["no message"])[-1][:200]


# ------------------------------------------------------------------------------------------------------- measurement


@dataclass(frozen=True)
class Cost:
    """What a process and its children took."""

    wall: float
    cpu: float
    memory: int  # bytes


def tree(pid: int) -> list[int]:
    """A process and its descendants, as far as they are there."""
    out, todo = [], [pid]
    while todo:
        one = todo.pop()
        out.append(one)
        try:
            for task in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{task}/children", encoding="ascii") as file:
                    todo += map(int, file.read().split())
        except OSError:
            continue
    return out


def tree_memory(pid: int) -> int:
    """Bytes of a process tree; pages that several share are counted once (proportional set size)."""
    total = 0
    for one in tree(pid):
        try:
            with open(f"/proc/{one}/smaps_rollup", encoding="ascii") as file:
                total += next(int(line.split()[1]) for line in file if line.startswith("Pss:")) << 10
        except (OSError, StopIteration):
            continue
    return total


def run_measured(command: Sequence[str], log: Path, cpus: set[int], limit: float, **env: str) -> Cost:
    """Run a command on some cores. Raises PeerError if it fails or takes longer than `limit` seconds."""
    ended = threading.Event()
    result: list[Any] = []
    with open(log, "wb") as out:
        start = time.perf_counter()
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, **env},
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )

        def wait() -> None:
            _, status, usage = os.wait4(process.pid, 0)
            result.extend((time.perf_counter() - start, status, usage))
            ended.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        peak, late = 0, False
        try:
            while not ended.wait(0.2):
                peak = max(peak, tree_memory(process.pid))
                if time.perf_counter() - start > limit:
                    late = True
                    break
        finally:
            if not ended.is_set():
                os.killpg(process.pid, signal.SIGKILL)
            waiter.join()
    wall, status, usage = result
    process.returncode = os.waitstatus_to_exitcode(status)
    if late:
        raise PeerError(f"not done after {limit:.0f} s")
    if process.returncode:
        raise PeerError(f"exit {process.returncode}: {last_line(log.read_text(errors='replace'))}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, max(peak, usage.ru_maxrss << 10))


@dataclass(frozen=True)
class Bench:
    """What all runs share."""

    work: Path
    cores: tuple[int, ...]
    threshold: float
    language: str
    limit: float
    ours: tuple[str, ...]  # further options of gpu-dedup run

    def scratch(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.work))

    def _environment(self, cores: int) -> dict[str, str]:
        """Threads that libraries make for themselves; gpu-dedup is found by the path of this tree."""
        numbers = {name: str(cores) for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "POLARS_MAX_THREADS")}
        path = os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH", ""))))
        return {**numbers, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}

    def run_ours(self, source: Path) -> tuple[Cost, list[int]]:
        """gpu-dedup run on a file: the cost, and the rows that stay. Ends the comparison if it fails."""
        import pyarrow.parquet as pq

        folder = self.scratch()
        out = folder / "out"
        command = [sys.executable, "-m", "gpu_dedup", "run", str(source), "-o", str(out), "--quiet"]
        command += ["--threshold", str(self.threshold), "--num-perm", str(SLOTS), "--threads", str(len(self.cores))]
        command += ["--max-removed", "1", *self.ours]
        try:
            cost = run_measured(
                command, folder / "log", set(self.cores), self.limit, **self._environment(len(self.cores))
            )
            gone = set(pq.read_table(out / "_gpu_dedup" / "removed.parquet", columns=["row"])["row"].to_pylist())
            with open(source, "rb") as file:
                return cost, [row for row, _ in enumerate(file) if row not in gone]
        except PeerError as failure:
            raise SystemExit(f"gpu-dedup itself failed, so there is nothing to compare: {failure}") from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def run_peer(self, peer: Peer, python: Path, source: Path) -> tuple[Cost, list[int], dict[str, float]]:
        """A peer's driver on a file: the cost, the rows that stay, seconds of its steps. Raises PeerError."""
        cost, said = self._drive(peer.driver, peer.variant, python, "dedup", source, self.cores)
        rows = said["kept"]
        if len(set(rows)) != len(rows):
            raise PeerError("keeps a row twice")
        return cost, sorted(rows), said["phases"]

    def sketch(self, driver: str, variant: str, python: Path, source: Path, mode: str, length: int) -> dict[str, Any]:
        """The modes `hashes` and `text` of a driver, on one core."""
        options = ["--documents", str(max(1, SHINGLES // length)), "--length", str(length)]
        return self._drive(driver, variant, python, mode, source, self.cores[:1], *options)[1]

    def sketch_ours(self, source: Path, mode: str, length: int, variant: str = "") -> dict[str, Any]:
        """The same of gpu-dedup's own driver, MinHash or `fast`. Ends the comparison if it fails."""
        try:
            return self.sketch("ours", variant, Path(sys.executable), source, mode, length)
        except PeerError as failure:
            raise SystemExit(f"gpu-dedup's own sketch failed: {failure}") from None

    def _drive(
        self, driver: str, variant: str, python: Path, mode: str, source: Path, cores: tuple[int, ...], *options: str
    ) -> tuple[Cost, dict[str, Any]]:
        folder = self.scratch()
        try:
            command = [str(python), str(HERE / "peers" / f"{driver}.py"), mode, str(source), str(folder / "said.json")]
            command += ["--cores", str(len(cores)), "--threshold", str(self.threshold), "--slots", str(SLOTS)]
            command += ["--language", self.language, "--variant", variant, "--work", str(folder), *options]
            cost = run_measured(command, folder / "log", set(cores), self.limit, **self._environment(len(cores)))
            return cost, json.loads((folder / "said.json").read_text())
        finally:
            shutil.rmtree(folder, ignore_errors=True)


# -------------------------------------------------------------------------------------------------------- the tables


def summary(costs: Sequence[Cost], size: int) -> dict[str, Any]:
    """Medians of some runs."""
    wall = statistics.median(cost.wall for cost in costs)
    return {
        "wall_s": round(wall, 3),
        "cpu_s": round(statistics.median(cost.cpu for cost in costs), 3),
        "memory_mb": round(max(cost.memory for cost in costs) / 1e6, 1),
        "mb_per_s": round(size / 1e6 / wall, 2),
        "walls": [round(cost.wall, 3) for cost in costs],
    }


def end_to_end(
    bench: Bench, peers: Sequence[tuple[Peer, Path | PeerError]], source: Path, warm: Path, size: int, repeat: int,
    say: Callable[[str], None],
) -> tuple[dict[str, dict[str, Any]], dict[str, list[int]]]:  # fmt: skip
    """Figures by tool, and the rows each kept."""
    bench.run_ours(warm)
    ours: list[Cost] = []
    table: dict[str, dict[str, Any]] = {}
    kept: dict[str, list[int]] = {}
    if not peers:
        for _ in range(repeat):
            cost, kept[OURS] = bench.run_ours(source)
            ours.append(cost)
    for peer, python in peers:
        try:
            if isinstance(python, PeerError):
                raise python
            bench.run_peer(peer, python, warm)
            pairs = []
            for _ in range(repeat):
                mine, rows = bench.run_ours(source)
                if kept.setdefault(OURS, rows) != rows:
                    raise AssertionError("gpu-dedup kept other rows than in an earlier run")
                ours.append(mine)
                cost, kept[peer.name], phases = bench.run_peer(peer, python, source)
                pairs.append((mine, cost))
            ratio = statistics.median(cost.wall / mine.wall for mine, cost in pairs)
            table[peer.name] = {
                **summary([cost for _, cost in pairs], size),
                "times_ours": round(ratio, 2),
                "kept": len(kept[peer.name]),
                "phases_s": phases,
            }
            say(f"  {peer.name}: {table[peer.name]['wall_s']} s, {ratio:.2f} times gpu-dedup")
        except PeerError as failure:
            kept.pop(peer.name, None)
            table[peer.name] = {"why": str(failure)}
            say(f"  {peer.name}: {failure}")
    if not ours:  # every peer failed
        cost, kept[OURS] = bench.run_ours(source)
        ours.append(cost)
    return {OURS: {**summary(ours, size), "times_ours": 1.0, "kept": len(kept[OURS])}, **table}, kept


def sketches(
    bench: Bench, peers: Sequence[tuple[Peer, Path | PeerError]], source: Path, say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Sketch alone by tool: M shingles/s by length and MB/s from texts; gpu-dedup's two again before each peer."""
    out: dict[str, dict[str, Any]] = {OURS: {}, FAST: {}}
    rates: dict[tuple[str, str], list[float]] = {}
    steps = [(f"hashes_{length}", "hashes", length) for length in LENGTHS] + [("text", "text", 1000)]
    able = [(peer, python) for peer, python in peers if peer.sketch]
    for peer, python in able:
        out[peer.name] = {}
        for key, mode, length in steps:
            for name, variant in ((OURS, ""), (FAST, "fast")):
                rates.setdefault((name, key), []).append(rate(bench.sketch_ours(source, mode, length, variant)))
            try:
                if isinstance(python, PeerError):
                    raise python
                said = bench.sketch(peer.driver, peer.variant, python, source, mode, length)
                out[peer.name][key] = said["why"] if "why" in said else round(rate(said), 2)
            except PeerError as failure:
                out[peer.name][key] = str(failure)
        say(f"  {peer.name}: {out[peer.name]}")
    for key, mode, length in steps:
        for name, variant in ((OURS, ""), (FAST, "fast")):
            known = rates.get((name, key)) or [rate(bench.sketch_ours(source, mode, length, variant))]
            out[name][key] = round(statistics.median(known), 2)
    return out


def rate(said: dict[str, Any]) -> float:
    """Millions of shingles, or of bytes, a second: the median of the calls."""
    return float(said.get("shingles") or said["bytes"]) / statistics.median(said["seconds"]) / 1e6


def quality(truth: Any, kept: dict[str, list[int]], threshold: float) -> dict[str, dict[str, Any]]:
    """Figures by tool against brute force."""
    import quality as brute

    ppm = round(threshold * 10**6)
    out = {}
    for name, rows in kept.items():
        said = brute.judge_kept(truth, rows, ppm)
        out[name] = {
            key: said[key]
            for key in (
                "documents", "true_pairs", "removed", "without_witness", "without_partner", "removed_without_text",
                "missed_removals", "missed_exact_copies", "recall",
            )
        }  # fmt: skip
    return out


def _figure(value: Any, form: str) -> str:
    return "" if value is None else format(value, form)


def markdown(results: dict[str, Any]) -> str:
    """The tables and what they say, as Markdown."""
    runs, judged, alone = results["end_to_end"], results["quality"], results["sketch"]
    lines = [
        f"{results['corpus']}: {results['rows']:,} texts, {results['text_mb']:.1f} MB, {results['cores']} "
        f"core{'s' if results['cores'] > 1 else ''}, threshold {results['threshold']:g}, median of {results['repeat']}",
        "",
        "| tool | wall s | CPU s | memory MB | MB/s | times ours | kept | no witness | missed | recall |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for name, row in runs.items():
        label = f"{name} {results['peers'].get(name, {}).get('version', '')}".strip()
        if "why" in row:
            lines.append(f"| {label} | {row['why'].replace('|', '/')} |" + " |" * 8)
            continue
        seen = judged.get(name, {})
        cells = [
            f"{row['wall_s']:.2f}", f"{row['cpu_s']:.1f}", f"{row['memory_mb']:.0f}", f"{row['mb_per_s']:.1f}",
            f"{row['times_ours']:.2f}", f"{row['kept']:,}", _figure(seen.get("without_witness"), ",d"),
            _figure(seen.get("missed_removals"), ",d"), _figure(seen.get("recall"), ".4f"),
        ]  # fmt: skip
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    if judged:
        first = next(iter(judged.values()))
        lines += ["", f"Quality over {first['documents']:,} texts with {first['true_pairs']:,} true pairs."]
    if alone:
        lines += [
            "",
            f"Sketch alone, {SLOTS} slots, one core:",
            "",
            "| tool | " + " | ".join(f"M shingles/s, {n:,} a text" for n in LENGTHS) + " | MB/s from text |",
            "| --- |" + " --: |" * (len(LENGTHS) + 1),
        ]
        for name, row in alone.items():
            keys = [*(f"hashes_{length}" for length in LENGTHS), "text"]
            cells = [row[key].replace("|", "/") if isinstance(row[key], str) else f"{row[key]:.2f}" for key in keys]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *verdicts(results)]) + "\n"


def verdicts(results: dict[str, Any]) -> list[str]:
    """One line for everything at which a peer does better than gpu-dedup, and one that says so where none does."""
    measures = (
        ("end_to_end", "wall_s", "faster end to end", 1, "s"),
        ("end_to_end", "cpu_s", "less CPU time", 1, "s"),
        ("end_to_end", "memory_mb", "less memory", 1, "MB"),
        ("quality", "without_witness", "fewer removals without a witness", 1, ""),
        ("quality", "missed_removals", "fewer missed removals", 1, ""),
        *(
            ("sketch", f"hashes_{n}", f"faster sketch of {n:,} hashed shingles", -1, "M shingles/s")
            for n in LENGTHS
        ),
        ("sketch", "text", "faster sketch from text", -1, "MB/s"),
    )  # fmt: skip
    out = []
    for part, key, words, sign, unit in measures:
        table = results[part]
        mine = table.get(OURS, {}).get(key)
        if mine is None:
            continue
        better = []
        for name, row in table.items():
            value = row.get(key)
            if name in (OURS, FAST) or not isinstance(value, (int, float)):
                continue
            # Walls are compared run by run, so that a slow minute of the machine does not decide.
            wins = row["times_ours"] < 1 if key == "wall_s" else sign * value < sign * mine
            if wins:
                better.append(f"{name} ({value:,} {unit}".rstrip() + ")")
        if better:
            fast = table.get(FAST, {}).get(key)
            ours = f"{mine:,} {unit}".rstrip() + ("" if fast is None else f"; {FAST}: {fast:,} {unit}")
            out.append(f"- A peer wins: {words} than {OURS} ({ours}): {', '.join(better)}.")
    measured = [name for name in results["end_to_end"] if name != OURS and "why" not in results["end_to_end"][name]]
    if measured and not out:
        out.append("- No peer did better than gpu-dedup in any column.")
    return out


# ------------------------------------------------------------------------------------------------------------- main


def corpora_module() -> Any:
    import quality as brute

    return brute.benchmark_corpora()


def language_of(texts: Sequence[str]) -> str:
    """zh if a third of the characters are Han, else en."""
    sample = "".join(text[:2000] for text in texts[:300])
    han = sum("\u3400" <= char <= "\u9fff" for char in sample)
    return "zh" if 3 * han > len(sample) else "en"


def head(source: Path, target: Path, rows: int) -> int:
    """Copy the first rows of a file; returns how many it has."""
    count = 0
    with open(source, "rb") as file, open(target, "wb") as out:
        for line in file:
            if count == rows:
                break
            out.write(line)
            count += 1
    return count


def default_environments() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "gpu-dedup-peers"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--corpus", choices=("english", "chinese", "code", "short"), default="english")
    what.add_argument("--input", type=Path, help="JSON lines (.gz too), or a folder of them")
    parser.add_argument("--name", help="name of the corpus in the results; for --input")
    parser.add_argument("--text-field", default="text")
    parser.add_argument("--mb", type=float, help="millions of bytes of text [default: 64; all of an --input]")
    parser.add_argument("--grow", action="store_true", help="make an --input larger, up to --mb, by seeded edits")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--language", choices=("en", "zh"), help="for peers that must be told [default: seen]")
    parser.add_argument(
        "--peers", default="all", help=f"names with commas: {', '.join(p.name for p in PEERS)}; or none"
    )
    parser.add_argument("--peers-env", type=Path, default=default_environments(), help="folder for their environments")
    parser.add_argument("--cores", type=int, help="cores that every tool may use [default: all]")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--quality-rows", type=int, default=20_000, help="rows judged by brute force; 0: none")
    parser.add_argument("--no-sketch", action="store_true", help="leave out the sketches alone")
    parser.add_argument("--limit", type=float, default=1800, help="seconds that a run may take")
    parser.add_argument("--ours", default="--device cpu", help="further options of gpu-dedup run")
    parser.add_argument("--work-dir", type=Path, help="folder for files in between")
    parser.add_argument("--json", type=Path, help="where the results go [default: benchmarks/results]")
    given = parser.parse_args()
    names = {peer.name: peer for peer in PEERS}
    wanted = [] if given.peers == "none" else list(names) if given.peers == "all" else given.peers.split(",")
    for name in wanted:
        if name not in names:
            parser.error(f"--peers {name!r} is unknown; choose of {', '.join(names)}")
    given.chosen = [names[name] for name in wanted]
    usable = sorted(os.sched_getaffinity(0))
    if given.cores is not None and not 1 <= given.cores <= len(usable):
        parser.error(f"--cores {given.cores}: this process may use 1 to {len(usable)}")
    given.cpus = tuple(usable[: given.cores])
    if given.input is not None:
        if not given.input.exists():
            parser.error(f"--input {given.input}: no such file or folder")
        if given.grow and given.mb is None:
            parser.error("--grow needs --mb")
    elif given.grow or given.name:
        parser.error("--grow and --name go with --input")
    if given.repeat < 1:
        parser.error("--repeat must be 1 or more")
    return given


def make_source(given: argparse.Namespace, target: Path) -> tuple[int, int, int | None]:
    """Write the corpus as {"id": row, "text"}: (rows, bytes of text, planted near-copies where known)."""
    corpora = corpora_module()
    if given.input is None:
        made = corpora.corpus(given.corpus, round((given.mb or 64) * 1e6), given.seed)
        return (*corpora.write_texts(target, made.texts), len(made.pairs))
    texts = corpora.read_texts([given.input], given.text_field)
    if given.grow:
        texts = corpora.grow(list(texts), given.seed, near=0.1)
    return (*corpora.write_texts(target, texts, None if given.mb is None else round(given.mb * 1e6)), None)


def main() -> int:
    given = arguments()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    name = given.name or (given.corpus if given.input is None else given.input.name.partition(".")[0])

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(dir=given.work_dir, prefix="compare-") as folder:
        work = Path(folder)
        source, warm, judged = work / "corpus.jsonl", work / "warm.jsonl", work / "judged.jsonl"
        rows, size, planted = make_source(given, source)
        if not rows:
            print(f"{name}: no text; name the field with --text-field", file=sys.stderr)
            return 2
        corpora = corpora_module()
        language = given.language or language_of(list(corpora.read_texts([source], rows=300)))
        head(source, warm, WARM_ROWS)
        bench = Bench(work, given.cpus, given.threshold, language, given.limit, tuple(given.ours.split()))
        say(f"{name}: {rows:,} texts, {size / 1e6:.1f} MB, language {language}")
        peers: list[tuple[Peer, Path | PeerError]] = []
        versions: dict[str, dict[str, Any]] = {}
        for peer in given.chosen:
            try:
                python, found = install(peer, given.peers_env)
                peers.append((peer, python))
                versions[peer.name] = {"version": found[peer.environment], "packages": found}
            except PeerError as failure:
                peers.append((peer, failure))
                versions[peer.name] = {"version": "", "packages": {}}
        runs, kept = end_to_end(bench, peers, source, warm, size, given.repeat, say)
        checked: dict[str, dict[str, Any]] = {}
        if given.quality_rows:
            import quality as brute

            if rows > given.quality_rows:
                head(source, judged, given.quality_rows)
                kept = {OURS: bench.run_ours(judged)[1]}
                for peer, python in peers:
                    if isinstance(python, Path) and "why" not in runs[peer.name]:
                        try:
                            kept[peer.name] = bench.run_peer(peer, python, judged)[1]
                        except PeerError as failure:
                            say(f"  {peer.name}, quality: {failure}")
            else:
                judged = source
            say("brute force")
            checked = quality(brute.Truth(judged), kept, given.threshold)
        alone = {} if given.no_sketch else sketches(bench, peers, source, say)
    results = {
        "corpus": name, "language": language, "rows": rows, "text_mb": round(size / 1e6, 2), "planted": planted,
        "cores": len(given.cpus), "threshold": given.threshold, "slots": SLOTS, "repeat": given.repeat,
        "ours": given.ours, "peers": versions, "end_to_end": runs, "quality": checked, "sketch": alone,
    }  # fmt: skip
    common.save(given.json or common.RESULTS / f"compare-{name}.json", "compare", results)
    here = common.machine()
    print(f"{here['processor']}, {time.strftime('%Y-%m-%d')}, load at the start {common.facts('compare')['load']}\n")
    print(markdown(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
