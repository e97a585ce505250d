"""Lines of kernels/*.cu and *.cuh that tests run on the CPU never reach.

    python tests/cuda/kernel_coverage.py tests/test_cuda_text.py tests/test_cuda_collide.py

Runs the tests with gcov's counters in the kernels and prints, for each file, lines run of lines with code, and those
not run. A line counts as run if any instance of it ran.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parent.parent


def lines(folder: Path) -> dict[str, dict[int, int]]:
    """File -> line -> times run, over everything that was built in `folder`."""
    counts: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for notes in sorted(folder.glob("*/*.gcno")):
        command = ["gcov", "--json-format", "--stdout", str(notes)]
        out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=notes.parent).stdout
        for text in out.splitlines():
            for file in json.loads(text)["files"]:
                name = os.path.basename(file["file"])
                if name.endswith((".cu", ".cuh")) and (REPO / "kernels" / name).exists():
                    for line in file["lines"]:
                        counts[name][line["line_number"]] += line["count"]
    return counts


def main() -> int:
    if not sys.argv[1:] or shutil.which("gcov") is None:
        print("usage: kernel_coverage.py TEST... (gcov, which comes with gcc, must be installed)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        environment = {**os.environ, "GPU_DEDUP_COVERAGE": temporary}
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *sys.argv[1:]]
        done = subprocess.run(tests, env=environment, cwd=REPO, check=False)
        counts = lines(Path(temporary))
    for name, by_line in sorted(counts.items()):
        missed = sorted(number for number, count in by_line.items() if not count)
        print(f"{name}: {len(by_line) - len(missed)} of {len(by_line)} lines run")
        source = (REPO / "kernels" / name).read_text(encoding="utf-8").splitlines()
        for number in missed:
            print(f"    {number}: {source[number - 1].strip()}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
