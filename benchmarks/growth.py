"""How cost grows: the same run over 1, 4, 16 and 64 times a corpus; time by stage, memory and disk, with slopes.

    python benchmarks/growth.py [--mb 8] [--times 1,4,16,64] [--corpus english | INPUT...] [--plots DIR] [--json FILE]
                                [-- RUN OPTIONS]

The corpus is real text of this machine with near-copies (corpora.py); a larger one has the same words dealt anew, so
that text, and copies in it, grow alike. Each size is run --repeat times after one that is not counted; of every stage
the least seconds count. A slope is that of log(cost) over log(size) by least squares: 1 is linear. Stages under a
hundredth of a second say nothing and have no slope. What a run takes whatever the size (start, program) is shown beside
the slopes, not in them.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import corpora
import large
from plots import Plot

LEAST = 0.01  # seconds of a stage that count
FIXED = ("start", "end")


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Least-squares slope of log y over log x; None with fewer than two points."""
    good = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
    if len({x for x, _ in good}) < 2:
        return None
    mean_x, mean_y = (sum(side) / len(good) for side in zip(*good, strict=True))
    over = sum((x - mean_x) ** 2 for x, _ in good)
    return sum((x - mean_x) * (y - mean_y) for x, y in good) / over


def once(path: Path, options: list[str]) -> dict[str, Any]:
    """One run: seconds by stage, peak memory, the most disk that the output folder took beside the output."""
    out = path.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "gpu_dedup", "run", str(path), "-o", str(out), *options]
    environment = {**os.environ, "PYTHONPATH": str(common.REPO)}
    started = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as run:
        watch = large.Watch(run, out, None)
        watch.start()
        assert run.stderr is not None
        said = run.stderr.read()
        run.wait()
        watch.join()
    if run.returncode:
        raise SystemExit(f"{said}\nthe run ended with {run.returncode}")
    wall = time.perf_counter() - started
    report = json.loads((out / "_gpu_dedup" / "report.json").read_bytes())
    log = sum(p.stat().st_size for p in (out / "_gpu_dedup").rglob("*") if "removed.parquet" in str(p) and p.is_file())
    machine, counts = report["machine"], report["result"]["counts"]
    shutil.rmtree(out)
    return {
        "wall": wall, "stages": machine["stages"], "memory": machine["peak_memory"], "disk": watch.disk, "log": log,
        "rows": counts["read"], "removed": counts["removed"],
        "candidates": (report["result"].get("collisions") or {}).get("candidates", 0),
    }  # fmt: skip


def measure(path: Path, options: list[str], repeat: int) -> dict[str, Any]:
    """The least of some runs, stage by stage."""
    once(path, options)
    runs = [once(path, options) for _ in range(repeat)]
    names = list(runs[0]["stages"])
    return {
        **runs[0],
        "bytes": path.stat().st_size,
        "wall": min(run["wall"] for run in runs),
        "memory": max(run["memory"] for run in runs),
        "disk": max(run["disk"] for run in runs),
        "stages": {name: min(run["stages"][name] for run in runs) for name in names},
    }


def slopes(sizes: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """By stage, of the sum of stages that grow, and of candidates and log bytes. Memory's is that of what grows."""
    out: dict[str, float | None] = {}
    for name in sizes[-1]["stages"]:
        if name not in FIXED:
            out[name] = slope([(s["bytes"], s["stages"][name]) for s in sizes if s["stages"].get(name, 0) >= LEAST])
    out["all that grows"] = slope([(s["bytes"], growing(s)) for s in sizes])
    out["candidates"] = slope([(s["bytes"], s["candidates"]) for s in sizes])
    out["removal log"] = slope([(s["bytes"], s["log"]) for s in sizes])
    return out


def growing(size: dict[str, Any]) -> float:
    return sum(seconds for name, seconds in size["stages"].items() if name not in FIXED)


def plot(sizes: Sequence[dict[str, Any]], found: dict[str, float | None]) -> Plot:
    """Seconds by stage over megabytes, both as powers of two."""
    xs = [math.log2(s["bytes"] / 1e6) for s in sizes]
    stages = sorted((n for n in sizes[-1]["stages"] if n not in FIXED), key=lambda n: -sizes[-1]["stages"][n])[:4]
    every = [max(seconds, LEAST) for s in sizes for seconds in s["stages"].values()] + [growing(s) for s in sizes]
    y = (math.floor(math.log2(min(every))), math.ceil(math.log2(max(every))))
    out = Plot("Cost by size of the corpus", "input, log2 of MB", "log2 of seconds", (xs[0], xs[-1]), y)
    named = [
        ("all that grows", [growing(s) for s in sizes]),
        *((n, [s["stages"].get(n, 0) for s in sizes]) for n in stages),
    ]
    for name, seconds in named:
        points = [(x, math.log2(value)) for x, value in zip(xs, seconds, strict=True) if value >= LEAST]
        power = found.get(name)
        if len(points) > 1:
            out.line(points, name if power is None else f"{name}, slope {power:.2f}")
    return out


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--mb", type=float, default=8.0, help="bytes of the smallest corpus, in millions")
    parser.add_argument("--times", default="1,4,16,64")
    parser.add_argument("--corpus", choices=corpora.KINDS, default="english")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--plots", type=Path, metavar="DIR")
    own, options = sys.argv[1:], []
    if "--" in own:
        own, options = own[: own.index("--")], own[own.index("--") + 1 :]
    given = parser.parse_args(own)
    times = [int(number) for number in given.times.split(",")]
    if given.quick:
        times, given.repeat = times[:2], 1
    if len(times) < 2 or sorted(set(times)) != times:
        parser.error("--times takes two or more numbers that rise, such as 1,4,16,64")
    sizes = []
    print(common.header("all cores"))
    with tempfile.TemporaryDirectory(prefix="benchmark-growth-") as name:
        path = Path(name) / "corpus.jsonl"
        base = corpora.base_texts(given.corpus, round(given.mb * 1e6), 1)
        for factor in times:
            corpora.write_texts(path, corpora.grow(base, 1, 0.1), round(given.mb * 1e6 * factor))
            sizes.append({"times": factor, **measure(path, options, given.repeat)})
            last = sizes[-1]
            print(f"  x {factor:<4}{last['bytes'] / 1e6:10,.0f} MB {last['rows']:>10,} rows {last['wall']:8.2f} s "
                  f"{last['memory'] / 1e6:8,.0f} MB memory {last['disk'] / 1e6:8,.0f} MB disk", flush=True)  # fmt: skip
    found = slopes(sizes)
    print(f"  {'':22}" + "".join(f"{'x ' + str(s['times']):>10}" for s in sizes) + f"{'slope':>8}")
    for stage in sizes[-1]["stages"]:
        row = "".join(f"{s['stages'].get(stage, 0):10.3f}" for s in sizes)
        power = found.get(stage)
        print(f"  {stage:22}{row}" + ("" if power is None else f"{power:8.2f}"))
    for stage in ("all that grows", "candidates", "removal log"):
        values = {"all that grows": growing, "candidates": lambda s: s["candidates"], "removal log": lambda s: s["log"]}
        row = "".join(f"{values[stage](s):10,.4g}" for s in sizes)
        print(f"  {stage:22}{row}" + ("" if found[stage] is None else f"{found[stage]:8.2f}"))
    first, last = sizes[0], sizes[-1]
    per_row = (last["memory"] - first["memory"]) / max(1, last["rows"] - first["rows"])
    print(f"  memory: {first['memory'] / 1e6:,.0f} MB and {per_row:,.0f} bytes for each further row, sketches included")
    if last["removed"]:
        print(f"  removal log: {last['log'] / last['removed']:.1f} bytes a row that goes")
    if given.plots is not None:
        given.plots.mkdir(parents=True, exist_ok=True)
        plot(sizes, found).save(given.plots / "growth.svg")
    results = {"corpus": given.corpus, "options": options, "sizes": sizes, "slopes": found,
               "memory_per_row": per_row, "log_bytes_per_row": last["log"] / max(1, last["removed"])}  # fmt: skip
    common.save(given.json, "growth", common.rounded(results))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(common.REPO))
    raise SystemExit(main())
