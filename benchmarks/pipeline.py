"""The whole command, from files to files: time by stage, MB/s, peak memory.

    python benchmarks/pipeline.py INPUT... [--repeat 3] [--name NAME] [--json FILE] [-- RUN OPTIONS]
    python benchmarks/pipeline.py --corpus english --mb 1000

Each run is a process of its own, `gpu-dedup run` into an empty folder, its start included; the first one is not counted
(it may compile, and brings the input into the page cache). Also measured: CPU seconds, which other programs on the
machine change less, and a file of ten lines, for the start alone.
Figures of the machine (benchmarks/README.md says how to read them) go to results/pipeline-NAME.json.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import corpora

# The same run as a library call, its stages timed by the CPU's clock (of all threads) instead of the wall's.
BY_CPU = """
import json, sys, time
from gpu_dedup.pipeline import dedup
from gpu_dedup.progress import Progress
from gpu_dedup.run import Run
progress = Progress(False, clock=time.process_time)
before = time.process_time()
dedup(sys.argv[2:], sys.argv[1], run=Run(overwrite=True), progress=progress)
print(json.dumps({"imports": before, **progress.times}))
"""


def environment() -> dict[str, str]:
    """As after an installation, where modules are compiled once and not by each process."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def cpu_by_stage(inputs: list[str], folder: Path) -> dict[str, float]:
    """CPU seconds by stage of a run with default options."""
    command = [sys.executable, "-c", BY_CPU, str(folder / "out"), *inputs]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
    stages: dict[str, float] = json.loads(done.stdout)
    return stages


def once(inputs: list[str], options: list[str], folder: Path) -> dict[str, Any]:
    """One run: wall seconds of the process, and what its report says."""
    out = folder / "out"
    command = [sys.executable, "-m", "gpu_dedup", "run", *inputs, "-o", str(out), "--overwrite", "--quiet", *options]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, check=True, env=environment())
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = json.loads((out / "_gpu_dedup" / "report.json").read_bytes())
    result, machine = report["result"], report["machine"]
    return {
        "wall": wall,
        "cpu": after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime,
        "mb": result["bytes_read"] / 1e6,
        "mb_per_second": result["bytes_read"] / 1e6 / wall,
        "peak_memory_mb": machine["peak_memory"] / 1e6,
        "stages": machine["stages"],
        "backend": machine["backend"],
        "threads": machine["threads"],
        "rows": result["counts"]["read"],
        "removed": result["counts"]["removed"],
    }


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("input", nargs="*", help="files or folders for gpu-dedup run")
    parser.add_argument("--corpus", choices=corpora.KINDS, help="instead: made of text of this machine")
    parser.add_argument("--mb", type=int, default=1000, help="size of the made corpus")
    parser.add_argument("--name", help="of the result file")
    parser.add_argument("--repeat", type=int, default=3)
    own, options = sys.argv[1:], []
    if "--" in own:
        own, options = own[: own.index("--")], own[own.index("--") + 1 :]
    arguments = parser.parse_args(own)
    if bool(arguments.input) == bool(arguments.corpus):
        parser.error("give an input or --corpus")
    with tempfile.TemporaryDirectory(prefix="benchmark-pipeline-") as name:
        folder = Path(name)
        inputs = list(arguments.input)
        if arguments.corpus:
            size = (8 if arguments.quick else arguments.mb) * 10**6
            made = corpora.corpus(arguments.corpus, size, 1)
            corpora.write_texts(folder / "corpus.jsonl", made.texts)
            inputs = [str(folder / "corpus.jsonl")]
        once(inputs, options, folder)
        runs = [once(inputs, options, folder) for _ in range(arguments.repeat)]
        corpora.write_texts(folder / "ten.jsonl", [f"text number {i} of ten" for i in range(10)])
        cpu = [cpu_by_stage(inputs, folder) for _ in range(arguments.repeat)] if not options else []
        start = min(once([str(folder / "ten.jsonl")], [], folder)["wall"] for _ in range(3))
    middle = sorted(runs, key=lambda run: run["wall"])[len(runs) // 2]
    print(common.header(f"{middle['threads']} threads"))
    speeds = [run["mb_per_second"] for run in runs]
    print(f"{middle['mb']:,.0f} MB, {middle['rows']:,} rows, {middle['removed']:,} removed; {middle['backend']}")
    print(f"  {min(speeds):,.0f} to {max(speeds):,.0f} MB/s, median {statistics.median(speeds):,.0f}, whole process")
    print(
        f"  {max(run['peak_memory_mb'] for run in runs):,.0f} MB at the peak; a file of ten lines takes {start:.2f} s"
    )
    print(f"  {min(run['cpu'] for run in runs):.2f} CPU seconds, the least; by stage, wall and least CPU:")
    for stage, seconds in middle["stages"].items():
        least = min((by[stage] for by in cpu), default=None)
        print(f"    {stage:24}{seconds:8.2f} s" + ("" if least is None else f"{least:8.2f} s"))
    results = {"runs": runs, "ten_lines_seconds": start, "options": options, "cpu_by_stage": cpu}
    name = arguments.name or arguments.corpus or "input"
    common.save(arguments.json or common.RESULTS / f"pipeline-{name}.json", "pipeline", results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
