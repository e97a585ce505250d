"""All benchmarks of this machine, one after the other, each in a process of its own; results as JSON.

    python benchmarks/run_all.py [--quick] [--only normalise,sketch] [--results benchmarks/results]

Writes <results>/<name>.json for each (with --quick: <name>-quick.json, so that rough numbers never replace good ones)
and the plots of `quality` and `hamming` as SVG. A benchmark that fails is named at the end, and the others run all the
same; the exit status is then 1. For numbers that are worth keeping let nothing else run; the load at the start is in
every file.

Not here, because they need something that this machine may lack: compare.py (other tools, from PyPI), labelled.py
(labelled sets), gpu_check.py and kernel_table.py (a GPU, a CUDA compiler).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))
import common  # noqa: E402

SCRIPTS = {
    "extract": "bench_extract.py",
    "normalise": "bench_normalise.py",
    "sketch": "bench_sketch.py",
    "simhash": "bench_simhash.py",
    "collide": "bench_collide.py",
    "hamming": "bench_hamming.py",
    "cascade": "bench_cascade.py",
    "verify": "bench_verify.py",
    "audit": "bench_audit.py",
    "bloom": "bench_bloom.py",
    "quality": "quality.py",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="sizes at which all of it ends in a few minutes")
    parser.add_argument("--only", metavar="A,B", help=f"some of {', '.join(SCRIPTS)}")
    parser.add_argument("--results", type=Path, default=common.RESULTS, metavar="DIR")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(SCRIPTS)
    if unknown := [name for name in names if name not in SCRIPTS]:
        parser.error(f"{unknown[0]!r} is no benchmark; choose among {', '.join(SCRIPTS)}")
    given.results.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in names:
        target = given.results / f"{name}{'-quick' if given.quick else ''}.json"
        command = [sys.executable, str(HERE / SCRIPTS[name]), "--json", str(target)]
        if given.quick:
            command.append("--quick")
        if name in ("quality", "hamming"):
            command += ["--plots", str(given.results / "quick" if given.quick else given.results)]
        print(f"---- {name}", flush=True)
        start = time.perf_counter()
        code = subprocess.run(command, check=False).returncode
        print(
            f"---- {name}: {'ok' if code == 0 else f'FAILED ({code})'}, {time.perf_counter() - start:.0f} s\n",
            flush=True,
        )
        if code:
            failed.append(name)
    print("all benchmarks ran" if not failed else f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
