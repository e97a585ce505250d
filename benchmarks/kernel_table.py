"""What each CUDA kernel takes of each architecture, read from the compiled code, and what that predicts. Needs no GPU.

    python benchmarks/kernel_table.py [--arch 75 80 86 90 100 120] [--write]

For every kernel and architecture: registers and shared memory (ptxas), occupancy from these and the block that its
launcher uses, machine instructions and the widths of its loads (nvdisasm). `--write` keeps the numbers and the tables
as kernel_table.json and kernel_table.txt in benchmarks/results.

Then the road from normalised text to band keys on an H100 or H200, kernel by kernel: bytes moved and thread
instructions per byte of English, and the time for 1 GB. These times are **predicted**: the larger of traffic over the
copy rate and instructions over the issue rate, with all code of a kernel counted once (rare paths too) and its main
loop by MODEL's passes, without latency and launches. They say where to look first, not what a GPU will do.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from sass_minhash import ARCHITECTURES, INSTRUCTION, LABEL, loops, tool

REPO = Path(__file__).resolve().parent.parent
KERNELS = REPO / "kernels"
RESULTS = REPO / "benchmarks" / "results"

# Of a multiprocessor: threads, blocks, bytes of shared memory, bytes of it that each block loses to the system.
LIMITS = {
    75: (1024, 16, 64 << 10, 0),
    80: (2048, 32, 164 << 10, 1 << 10),
    86: (1536, 16, 100 << 10, 1 << 10),
    90: (2048, 32, 228 << 10, 1 << 10),
    100: (2048, 32, 228 << 10, 1 << 10),
    120: (1536, 24, 100 << 10, 1 << 10),
}
REGISTERS = 65536  # of a multiprocessor, given out to warps in lots of 256

# An H100 or H200, as measured on one (copy) and by the datasheet's clocks (the rest).
COPY = 4.3e12  # bytes a second, read and written ones together
MULTIPLY_ADD = 16.7e12  # 32-bit integer ones a second: half a lane each
ISSUE = 2 * MULTIPLY_ADD  # thread instructions a second
PCIE = 50e9  # bytes a second to the device

MINHASH_BLOCK = {119: 128, 260: 288}  # threads, minhash_cuda.shape


@dataclass(frozen=True)
class Text:
    """Per byte of normalised text. English: 6 bytes a word with its blank, 3,000 a document, windows of five words."""

    units: float = 1 / 6.0
    documents: float = 1 / 3000
    n: int = 5

    @property
    def shingles(self) -> float:
        return self.units - (self.n - 1) * self.documents


@dataclass(frozen=True)
class Step:
    """A kernel on the road: threads, passes of the main loop per thread, bytes read and written; per byte of text.

    A thread is taken to run all of its kernel's code once, rare paths too, and the main loop (as compiled, unrolled)
    for each further pass: an upper bound. Scans, which are CuPy's, count their traffic alone.
    """

    name: str
    kernel: str | None
    threads: Callable[[Text], float]
    passes: Callable[[Text], float]
    traffic: Callable[[Text], float]


def _scan(of: str, count: Callable[[Text], float]) -> Step:
    """CuPy's sum of int64 (read, written, read again by a two-pass scan) and the check of it (two reads)."""
    return Step(f"scan of {of}", None, lambda t: 0, lambda t: 0, lambda t: 40 * count(t))


TILE = 1 / 4096

MODEL = (
    Step("gather (digest)", "gather", lambda t: 1 / 4, lambda t: 0, lambda t: 2.0),
    Step(
        "chunk_digests", "chunk_digests", lambda t: 4 * max(t.documents, TILE),
        lambda t: 1 / (32 * max(t.documents, TILE)), lambda t: 1.0 + 16 * max(t.documents, TILE),
    ),
    Step("row_digests", "row_digests", lambda t: 2 * t.documents, lambda t: 1, lambda t: 32 * t.documents),
    Step("gather (sketch)", "gather", lambda t: 1 / 4, lambda t: 0, lambda t: 2.0),
    Step("boundaries", "boundaries", lambda t: t.documents, lambda t: 0, lambda t: 1 / 8 + 40 * t.documents),
    Step("tile_states", "tile_states", lambda t: TILE, lambda t: 2, lambda t: 80 * TILE),
    _scan("tiles with a state", lambda t: TILE),
    Step("tile_known", "tile_known", lambda t: TILE, lambda t: 0, lambda t: 18 * TILE),
    Step("unit_count", "unit_count", lambda t: 1 / 16, lambda t: 0, lambda t: 1 + 1 / 8 + 1 / 2),
    _scan("units of a tile", lambda t: TILE),
    Step("unit_mark", "unit_mark", lambda t: 1 / 16, lambda t: 32 * t.units, lambda t: 1 / 2 + 8 * t.units),
    Step("unit_rows", "unit_rows", lambda t: t.documents, lambda t: 27, lambda t: 27 * 32 * t.documents),
    Step("unit_hash", "unit_hash", lambda t: t.units, lambda t: 0, lambda t: 1 + (8 + 1 / 8 + 8) * t.units),
    Step("window_counts", "window_counts", lambda t: t.documents, lambda t: 0, lambda t: 24 * t.documents),
    _scan("windows of a document", lambda t: t.documents),
    Step("shingle", "shingle", lambda t: t.units / 4, lambda t: t.n, lambda t: 16 * t.units),
    Step("group_counts", "group_counts", lambda t: t.documents, lambda t: 0, lambda t: 24 * t.documents),
    _scan("groups of a document", lambda t: t.documents),
)  # fmt: skip


def kernels_of(source: Path) -> dict[str, int]:
    """Kernels of a file and the threads of their blocks, from their launch bounds."""
    text = source.read_text(encoding="utf-8")
    threads = re.search(r"#define THREADS (\d+)", text)
    named = {"THREADS": int(threads[1])} if threads else {}
    found = re.findall(r"__global__ void __launch_bounds__\((\w+)\)\s*(\w+)\s*\(", text)
    return {name: named.get(bound) or int(bound) for bound, name in found}


def occupancy(arch: int, block: int, registers: int, shared: int) -> float:
    """Share of a multiprocessor's threads that can be resident."""
    threads, blocks, memory, lost = LIMITS[arch]
    warps = -(-block // 32)
    per_warp = -(-registers * 32 // 256) * 256
    fit = min(blocks, threads // (32 * warps), REGISTERS // per_warp // warps)
    if shared:
        fit = min(fit, memory // (shared + lost))
    return fit * warps * 32 / threads


def compiled(nvcc: str, nvdisasm: str, source: Path, arch: int, folder: Path) -> list[dict[str, Any]]:
    """One row for each kernel of a file."""
    cubin = folder / "kernel.cubin"
    command = [nvcc, f"-arch=sm_{arch}", "-std=c++17", "-cubin", "-Xptxas", "-v", "-o", str(cubin), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{source.name} does not compile for sm_{arch}:\n{done.stderr}")
    listing = subprocess.run([nvdisasm, "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    rows = []
    for name, block in kernels_of(source).items():
        said = done.stderr.split(f"Compiling entry function '{name}'")[1].split("Compiling entry function")[0]

        def number(pattern: str, said: str = said) -> int:
            match = re.search(pattern, said)
            return int(match[1]) if match else 0

        lines: list[tuple[str, str]] = []
        for line in listing.split(f".text.{name}:", 1)[1].split("\n//-----", 1)[0].splitlines():
            label, found = LABEL.match(line), INSTRUCTION.match(line)
            if label:
                lines.append((label[1] + ":", ""))
            elif found:
                lines.append((found[2], (found[1] or "") + found[3]))
        opcodes = Counter(op for op, _ in lines if not op.endswith(":") and op != "NOP")
        main = max(loops(lines), key=lambda ops: sum(ops.values()), default=Counter())
        registers, shared = number(r"Used (\d+) registers"), number(r"(\d+) bytes smem")
        if name == "minhash":
            block = MINHASH_BLOCK[119]
        rows.append(
            {
                "file": source.name,
                "kernel": name,
                "arch": f"sm_{arch}",
                "block": block,
                "registers": registers,
                "shared": shared,
                "spilled": number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
                "occupancy": round(occupancy(arch, block, registers, shared), 3),
                "instructions": sum(opcodes.values()),
                "main_loop": sum(main.values()),
                "global_loads": widths(opcodes, ("LDG", "LD")),
                "global_stores": widths(opcodes, ("STG", "ST")),
                "shared_loads": widths(opcodes, ("LDS",)),
            }
        )
    return rows


def widths(opcodes: Counter[str], names: tuple[str, ...]) -> dict[str, int]:
    """Bits of a thread's accesses and how many instructions of each."""
    out: Counter[str] = Counter()
    for opcode, count in opcodes.items():
        head, *marks = opcode.split(".")
        if head in names:
            width = next((m for m in ("128", "64") if m in marks), None)
            width = width or (
                "8" if "U8" in marks or "S8" in marks else "16" if "U16" in marks or "S16" in marks else "32"
            )
            out[width] += count
    return dict(sorted(out.items(), key=lambda item: -int(item[0])))


def predict(rows: list[dict[str, Any]], text: Text, slots: int) -> list[dict[str, Any]]:
    """The road kernel by kernel, per byte of text, on sm_90."""
    by_name = {row["kernel"]: row for row in rows if row["arch"] == "sm_90"}
    out = []
    for step in MODEL:
        thread = 0.0
        if step.kernel is not None:
            own = by_name[step.kernel]
            thread = own["instructions"] + max(step.passes(text) - 1, 0) * own["main_loop"]
        out.append({"step": step.name, "instructions": step.threads(text) * thread, "traffic": step.traffic(text)})
    minhash = json.loads((RESULTS / "sass_minhash.json").read_text(encoding="utf-8"))
    each = next(row["per_shingle_and_slot"] for row in minhash["rows"] if row["arch"] == "sm_90")
    lanes = MINHASH_BLOCK[slots]  # idle lanes of the last warp issue, too
    out.append({
        "step": f"minhash, {slots} slots",
        "instructions": each * text.shingles * lanes,
        "traffic": 8 * text.shingles * -(-slots // 512) + 8 * slots * text.documents,
    })  # fmt: skip
    bands = {119: 17, 260: 20}[slots]
    keys = by_name["band_keys"]
    per_key = keys["instructions"] + (slots / bands / 2 - 1) * keys["main_loop"]
    out.append({
        "step": f"band_keys, {bands} bands",
        "instructions": bands * text.documents * per_key,
        "traffic": (4 * slots + 8 * bands) * text.documents,
    })  # fmt: skip
    for entry in out:
        entry["predicted_ms"] = 1e12 * max(entry["traffic"] / COPY, entry["instructions"] / ISSUE)
    return out


def resources_text(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"{'kernel':<16}{'arch':>7}{'block':>7}{'regs':>6}{'shared':>8}{'spill':>7}{'occ.':>7}{'instr.':>8}{'loop':>6}"
        "  loads (bits x instructions); stores; shared loads"
    ]

    def shown(found: dict[str, int]) -> str:
        return " ".join(f"{width}x{count}" for width, count in found.items()) or "-"

    for row in rows:
        lines.append(
            f"{row['kernel']:<16}{row['arch']:>7}{row['block']:>7}{row['registers']:>6}{row['shared']:>8}{row['spilled']:>7}"
            f"{row['occupancy']:>7.0%}{row['instructions']:>8}{row['main_loop']:>6}  "
            f"{shown(row['global_loads'])}; {shown(row['global_stores'])}; {shown(row['shared_loads'])}"
        )
    return lines


def prediction_text(road: list[dict[str, Any]], slots: int) -> list[str]:
    total = sum(entry["predicted_ms"] for entry in road)
    copy = 1e12 / PCIE
    lines = [
        f"PREDICTED, not measured: 1 GB of English, {slots} slots, H100 or H200 (sm_90)",
        f"{'step':<26}{'instr./byte':>12}{'bytes/byte':>12}{'ms':>9}",
    ]
    for entry in road:
        lines.append(
            f"{entry['step']:<26}{entry['instructions']:>12.3f}{entry['traffic']:>12.3f}{entry['predicted_ms']:>9.3f}"
        )
    lines.append(f"{'all kernels':<26}{'':>24}{total:>9.3f}")
    lines.append(f"{'PCIe copy of the text':<26}{'':>24}{copy:>9.3f}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--arch", type=int, nargs="+", default=list(ARCHITECTURES), choices=sorted(LIMITS))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    nvcc, nvdisasm = tool("nvcc"), tool("nvdisasm")
    if nvcc is None or nvdisasm is None:
        raise SystemExit("nvcc or nvdisasm is missing: install the CUDA toolkit, or pip install nvidia-cuda-nvdisasm")
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"V([\d.]+)", said)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted(KERNELS.glob("*.cu")):
            for arch in options.arch:
                rows += compiled(nvcc, nvdisasm, source, arch, Path(folder))
    rows.sort(key=lambda row: (row["file"], row["kernel"], int(row["arch"][3:])))
    lines = [f"nvcc {release[1] if release else '?'}", "", *resources_text(rows)]
    predictions = {}
    if 90 in options.arch:
        for slots in MINHASH_BLOCK:
            predictions[slots] = predict(rows, Text(), slots)
            lines += ["", *prediction_text(predictions[slots], slots)]
    print("\n".join(lines))
    if options.write:
        RESULTS.mkdir(exist_ok=True)
        found = {"nvcc": release[1] if release else said, "kernels": rows, "predicted": predictions}
        (RESULTS / "kernel_table.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        (RESULTS / "kernel_table.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    spilled = sorted({row["kernel"] for row in rows if row["spilled"]})
    if spilled:
        print(f"kernels that spill registers: {', '.join(spilled)}", file=sys.stderr)
    return 1 if spilled else 0


if __name__ == "__main__":
    raise SystemExit(main())
