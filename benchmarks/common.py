"""What all benchmarks share: the machine in words, the best of some runs, and how results are kept.

A result file says where it comes from: {"benchmark", "command", "date", "machine", "versions", "commit", "load", and
what the benchmark measured}. Numbers of one file come from one run; a ratio is only worth something within one file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
RESULTS = REPO / "benchmarks" / "results"
PACKAGES = ("numpy", "numba", "llvmlite", "pyarrow", "xxhash")
_STARTED = datetime.now(timezone.utc)
_LOAD = os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def best(function: Callable[[], Any], times: int = 5) -> tuple[float, Any]:
    """Fewest seconds of some runs, and the last result. The first run, which may compile, counts as any other."""
    seconds = []
    result = None
    for _ in range(times):
        start = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def _first_of(path: str, key: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == key:
                    return value.strip()
    except OSError:
        pass
    return None


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=REPO, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def machine() -> dict[str, Any]:
    """Processor, usable cores, memory, operating system."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    model = _first_of("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()
    return {"processor": model, "cores": cores, "memory_gb": round(memory / 1e9, 1), "system": platform.platform()}


def versions() -> dict[str, str]:
    """This package, Python and what kernels lean on; nothing is imported for it."""
    import gpu_dedup

    out = {"gpu-dedup": gpu_dedup.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            out[name] = "not installed"
    return out


def facts(benchmark: str) -> dict[str, Any]:
    """Where numbers come from. `load`: running processes in the minute before the benchmark began; over the number of
    cores the times are worth little. `commit` ends in + where the working tree had changes."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    if commit and _git("status", "--porcelain", "--untracked-files=no", "--", "gpu_dedup", "kernels", "benchmarks"):
        commit += "+"
    command = [Path(sys.argv[0]).name, *(Path(a).name if os.path.sep in a else a for a in sys.argv[1:])]
    return {
        "benchmark": benchmark,
        "command": shlex.join(command),
        "date": _STARTED.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "machine": machine(),
        "versions": versions(),
        "commit": commit,
        "load": None if _LOAD is None else round(_LOAD, 2),
    }


def header(cores: str = "one core") -> str:
    """One line for the top of a table."""
    here = machine()
    versions_text = ", ".join(f"{name} {version}" for name, version in versions().items() if name != "xxhash")
    load = "" if _LOAD is None else f", load {_LOAD:.1f}"
    return f"{here['processor']}, {cores} of {here['cores']}{load}; {versions_text}; {_STARTED:%Y-%m-%d}"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with what every benchmark takes: --json FILE and --quick."""
    out = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there, too")
    out.add_argument("--quick", action="store_true", help="sizes at which it ends in seconds; times are then rough")
    return out


def save(path: Path | None, benchmark: str, results: dict[str, Any]) -> None:
    """Write a result file, by a temporary name. None: nowhere."""
    if path is None:
        return
    text = json.dumps({**facts(benchmark), **results}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def rounded(value: Any, digits: int = 4) -> Any:
    """Floats of nested results with so many figures that count."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: rounded(entry, digits) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(entry, digits) for entry in value]
    return value
