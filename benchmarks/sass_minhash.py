"""Machine instructions of the MinHash inner loop per shingle and slot, read from the compiled kernel; no GPU is needed.

    python benchmarks/sass_minhash.py [--arch 90 ...] [--limit 1.9] [--write]

Compiles kernels/minhash.cu with nvcc for each architecture, disassembles it with nvdisasm and finds the loops of the
kernel `minhash` by their backward branches. The inner loop is the one with most integer multiply-adds (one per shingle:
a thread has one slot). Everything between its label and its branch counts, loop overhead included. For sm_90 more than
--limit is exit code 1. `--write` keeps the table as benchmarks/results/sass_minhash.json.

nvcc comes with the CUDA toolkit; nvdisasm too, or from PyPI: pip install nvidia-cuda-nvdisasm
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
SOURCE = REPO / "kernels" / "minhash.cu"
RESULT = REPO / "benchmarks" / "results" / "sass_minhash.json"
KERNEL = "minhash"
ARCHITECTURES = (75, 80, 86, 90, 100, 120)

LABEL = re.compile(r"^(\.L_x?_?\w+):")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:\{\s*)?(@!?U?P[T0-9]+\s+)?([A-Z][A-Z0-9_.]*)\b(.*?);")


def tool(name: str) -> str | None:
    """Path of a CUDA tool: on PATH, in /usr/local/cuda, or in a wheel of this Python."""
    found = shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")
    if found is None:
        places = Path(sysconfig.get_paths()["purelib"]).glob(f"nvidia/*/bin/{name}")
        found = next((str(place) for place in places), None)
    return found


def compile_kernel(nvcc: str, arch: int, folder: Path) -> tuple[Path, dict[str, int]]:
    """The cubin, and registers, shared memory and spilled bytes of the kernel as ptxas prints them."""
    cubin = folder / f"minhash_{arch}.cubin"
    command = [nvcc, f"-arch=sm_{arch}", "-std=c++17", "-cubin", "-Xptxas", "-v", "-o", str(cubin), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"nvcc fails for sm_{arch}:\n{done.stderr}")
    block = done.stderr.split(f"Compiling entry function '{KERNEL}'")[1].split("Compiling entry function")[0]

    def number(pattern: str) -> int:
        match = re.search(pattern, block)
        return int(match[1]) if match else 0

    return cubin, {
        "registers": number(r"Used (\d+) registers"),
        "shared_bytes": number(r"(\d+) bytes smem"),
        "spilled_bytes": number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
    }


def body(listing: str) -> list[tuple[str, str]]:
    """(label or opcode, operands) of the kernel's lines; operands are '' for a label."""
    text = listing.split(f".text.{KERNEL}:", 1)[1].split("\n//-----", 1)[0]
    out: list[tuple[str, str]] = []
    for line in text.splitlines():
        label = LABEL.match(line)
        found = INSTRUCTION.match(line)
        if label:
            out.append((label[1] + ":", ""))
        elif found:
            out.append((found[2], (found[1] or "") + found[3]))
    return out


def loops(lines: list[tuple[str, str]]) -> list[Counter[str]]:
    """Opcodes of each innermost loop: from a label to the first branch back to it, with no loop inside."""
    places = {name[:-1]: i for i, (name, _) in enumerate(lines) if name.endswith(":")}
    found: list[tuple[int, int]] = []
    for i, (opcode, operands) in enumerate(lines):
        target = re.search(r"\((\.L\w+)\)", operands)
        if opcode.startswith("BRA") and target and places.get(target[1], i) < i:
            found.append((places[target[1]], i))
    inner = [a for a in found if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in found)]
    return [Counter(op for op, _ in lines[start : end + 1] if not op.endswith(":")) for start, end in inner]


def measure(nvcc: str, nvdisasm: str, arch: int) -> dict[str, Any]:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        cubin, resources = compile_kernel(nvcc, arch, Path(folder))
        done = subprocess.run([nvdisasm, "-c", str(cubin)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"nvdisasm fails for sm_{arch}:\n{done.stderr}")
    best = max(loops(body(done.stdout)), key=lambda ops: sum(n for op, n in ops.items() if op == "IMAD"))
    shingles = best["IMAD"]
    loads = best["LDS.128"] + best["LDS.U.128"]
    # Each 16-byte load brings four shingles, each of them one multiply-add; else the loop is not the one meant.
    if not shingles or shingles != 4 * loads:
        raise SystemExit(f"sm_{arch}: no loop with four multiply-adds per 16-byte load was found: {dict(best)}")
    total = sum(best.values())
    return {
        "arch": f"sm_{arch}",
        "shingles_per_pass": shingles,
        "instructions_per_pass": total,
        "per_shingle_and_slot": round(total / shingles, 4),
        "opcodes": dict(sorted(best.items(), key=lambda item: (-item[1], item[0]))),
        **resources,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--arch", type=int, nargs="+", default=list(ARCHITECTURES))
    parser.add_argument("--limit", type=float, default=1.9)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    nvcc, nvdisasm = tool("nvcc"), tool("nvdisasm")
    if nvcc is None or nvdisasm is None:
        raise SystemExit("nvcc or nvdisasm is missing: install the CUDA toolkit, or pip install nvidia-cuda-nvdisasm")
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release [\d.]+, V([\d.]+)", version)
    rows = [measure(nvcc, nvdisasm, arch) for arch in options.arch]
    print(f"{'arch':8}{'instructions':>13}{'shingles':>9}{'each':>8}{'registers':>10}{'shared':>8}  opcodes")
    for row in rows:
        mix = " ".join(f"{op}:{n}" for op, n in row["opcodes"].items())
        print(
            f"{row['arch']:8}{row['instructions_per_pass']:13}{row['shingles_per_pass']:9}{row['per_shingle_and_slot']:8.3f}"
            f"{row['registers']:10}{row['shared_bytes']:8}  {mix}"
        )
    if options.write:
        RESULT.parent.mkdir(exist_ok=True)
        found = {"kernel": "minhash", "nvcc": release[1] if release else version, "rows": rows}
        RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    over = [row for row in rows if row["arch"] == "sm_90" and row["per_shingle_and_slot"] > options.limit]
    if over:
        print(f"sm_90 takes more than {options.limit} instructions per shingle and slot", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main())
