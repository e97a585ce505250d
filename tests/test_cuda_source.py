"""The text of kernels/*.cu and *.cuh: rules that shrink what a CPU cannot see, and NVRTC for every architecture."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cuda_fixtures import need

REPO = Path(__file__).resolve().parent.parent
KERNELS = REPO / "kernels"
FILES = sorted([*KERNELS.glob("*.cu"), *KERNELS.glob("*.cuh")])
UNITS = [file for file in FILES if file.suffix == ".cu"]
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
SYNC = re.compile(
    r"\b(__(?:shfl|shfl_up|shfl_down|shfl_xor|ballot|any|all|syncwarp|reduce_\w+|match_\w+)(?:_sync)?)"
    r"\s*\(\s*([^,()]*)"
)
FULL = ("0xffffffffu", "0xffffffff", "~0u")
WIDE = r"\((?:i64|u64|(?:unsigned )?long long)\)\s*$"

# What no kernel says: (rule, pattern, why).
FORBIDDEN = [
    ("inline PTX", r"\basm\b|\b__asm", "no inline PTX until a GPU has run the plain version"),
    ("asynchronous copies", r"cp\.async|memcpy_async|__pipeline|\bcuda::|\bcp_async", "plain loads and stores only"),
    ("headers of CUDA or C", r"#\s*include\s*<", "NVRTC finds no header where CUDA's are not installed"),
    ("waiting for blocks", r"__threadfence|\bvolatile\b|__nanosleep|cooperative_groups", "a grid's barrier is its end"),
    ("warp words without _sync", r"\b__(?:shfl|shfl_up|shfl_down|shfl_xor|ballot|any|all)\s*\(", "use the _sync form"),
    ("active masks", r"__activemask", "full masks only"),
    ("plain char", r"(?<!unsigned )(?<!signed )\bchar\b", "its sign differs between machines"),
    ("floating point", r"\b(?:float|double|half)\d?\b|\d\.\d|\d[eE]-\d", "whole numbers wherever something is decided"),
    ("calls of debugging", r"\bprintf\b|\bclock(?:64)?\s*\(|\bassert\s*\(", "nothing of it is meant to stay"),
    ("float atomics", r"atomic\w+_(?:block|system)", "plain integer atomics only"),
    ("long", r"(?<!long )\blong\b(?! long)", "its width differs between machines"),
    ("names of a build system", r"__INTELLISENSE__|__CUDACC_VER", "one text for all compilers"),
]  # fmt: skip


def code(text: str) -> str:
    """The text with comments blanked out, lines kept."""
    return COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def faults(text: str) -> Iterator[str]:
    """Every breach of the rules in a kernel's text, as `line: what`."""
    text = code(text)

    def line(at: int) -> int:
        return text.count("\n", 0, at) + 1

    for rule, pattern, why in FORBIDDEN:
        for match in re.finditer(pattern, text):
            yield f"{line(match.start())}: {rule}: {match[0]!r}; {why}"

    # Masks: the literal, or a name that stands for it.
    names = dict(re.findall(r"#\s*define\s+(\w+)\s+(\S+)", text))
    names.update(re.findall(r"\bconst(?:expr)?\s+(?:u32|unsigned(?: int)?)\s+(\w+)\s*=\s*([^;]+);", text))
    for match in SYNC.finditer(text):
        mask = names.get(match[2].strip(), match[2].strip()).lower()
        if match[1] == "__syncwarp" and not mask:
            continue
        if mask not in FULL:
            yield f"{line(match.start())}: mask {match[2].strip()!r} of {match[1]}; full masks only"

    # 32-bit products with blockIdx.x: the grid's x reaches 2**31. (y and z stay below 65,536, a block below 1,025.)
    for match in re.finditer(r"\b(?:blockIdx|gridDim)\.x\b", text):
        before, after = text[: match.start()], text[match.end() :]
        times = re.match(r"\s*(?:\*|<<)", after) or re.search(r"\*\s*$", re.sub(WIDE, "", before))
        if times and not re.search(WIDE, before):
            yield f"{line(match.start())}: {match[0]} in a product without a cast to 64 bits directly before it"

    for match in re.finditer(r"(?:<<|>>)=?\s*(\d+)", text):
        if int(match[1]) >= 64:
            yield f"{line(match.start())}: shift by {match[1]}"

    for match in re.finditer(r"__global__[^{]*\{", text):
        if 'extern "C"' not in text[max(0, match.start() - 12) : match.start()]:
            yield f'{line(match.start())}: a kernel without extern "C"'
        if "__launch_bounds__" not in match[0]:
            yield f"{line(match.start())}: a kernel without __launch_bounds__: its registers are unbounded by its block"


def test_there_are_kernels():
    if not UNITS:
        pytest.skip("this version has no CUDA kernels")
    assert len(UNITS) >= 5


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_rules(file):
    text = file.read_text(encoding="utf-8")
    found = list(faults(text))
    assert not found, "\n".join(f"{file.name}:{fault}" for fault in found)
    for name in re.findall(r'#\s*include\s*"([^"]+)"', code(text)):
        assert (KERNELS / name).is_file(), f"{file.name} includes {name}"
        assert name.endswith(".cuh")


GOOD = """
#include "mix64.cuh"
#define FULL 0xffffffffu
// asm volatile, __shfl(x), 1.5 and blockIdx.x * blockDim.x may stand in a comment
extern "C" __global__ void __launch_bounds__(256) k(const unsigned char *x, long long n) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned int slot = blockIdx.y * blockDim.x + threadIdx.x;
    const unsigned long long j = (unsigned long long)blockIdx.x * 4096;
    const int v = __shfl_sync(FULL, 1, 0) + __ballot_sync(0xFFFFFFFFu, 1) + rows[blockIdx.x + 1] + (1u << 31);
    __syncwarp();
}
"""


def test_rules_pass_good_text():
    assert list(faults(GOOD)) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('asm("nop;");', "inline PTX"),
        ("__pipeline_memcpy_async(a, b, 16);", "asynchronous copies"),
        ("#include <cuda_runtime.h>", "headers of CUDA"),
        ("__threadfence();", "waiting for blocks"),
        ("volatile unsigned int *flag;", "waiting for blocks"),
        ("x = __shfl(y, 0);", "warp words without _sync"),
        ("x = __shfl_sync(0xffffu, y, 0);", "full masks only"),
        ("x = __shfl_sync(mask, y, 0);", "full masks only"),
        ("x = __ballot_sync(__activemask(), y);", "active masks"),
        ("__syncwarp(0x1u);", "full masks only"),
        ("const char *text;", "plain char"),
        ("float x;", "floating point"),
        ("x = y * 0.5;", "floating point"),
        ('printf("%d", 1);', "debugging"),
        ("unsigned long x;", "its width differs"),
        ("const long long i = blockIdx.x * blockDim.x + threadIdx.x;", "without a cast"),
        ("const long long i = threadIdx.x + blockDim.x * blockIdx.x;", "without a cast"),
        ("const long long i = (long long)(blockIdx.x * 256u);", "without a cast"),
        ("const unsigned int i = blockIdx.x << 8;", "without a cast"),
        ("i += gridDim.x * blockDim.x;", "without a cast"),
        ("x = y >> 64;", "shift by 64"),
        ("} __global__ void __launch_bounds__(64) f(int *x) { ", 'without extern "C"'),
        ('} extern "C" __global__ void f(int *x) { ', "without __launch_bounds__"),
    ],
)
def test_rules_find(line, words):
    text = GOOD.replace("    __syncwarp();", "    " + line)
    found = list(faults(text))
    assert any(words in fault and fault.startswith("10: ") for fault in found), found


# ---------------------------------------------------------------------------------------------------------------- NVRTC


def nvrtc_libraries() -> list[Path]:
    """libnvrtc of every installed wheel: nvidia-cuda-nvrtc-cu12 has 12, nvidia-cuda-nvrtc has 13."""
    found: list[Path] = []
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return found
    for place in (spec.submodule_search_locations or []) if spec else []:
        for pattern in ("cuda_nvrtc/lib/libnvrtc.so.*", "cu1*/lib/libnvrtc.so.*"):
            found += sorted(file for file in Path(place).glob(pattern) if re.fullmatch(r"libnvrtc\.so\.\d+", file.name))
    return found


class Nvrtc:
    """NVRTC through ctypes: source text to machine code and the compilers' words."""

    def __init__(self, library: Path) -> None:
        self.dll = ctypes.CDLL(str(library))
        self.dll.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        assert self.dll.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
        self.version = (major.value, minor.value)

    def compile(
        self, text: str, name: str, architecture: str, options: tuple[str, ...] = ("--std=c++17",)
    ) -> tuple[bool, str]:
        program = ctypes.c_void_p()
        code = self.dll.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
        assert code == 0, self.dll.nvrtcGetErrorString(code)
        words = [word.encode() for word in (*options, f"--gpu-architecture={architecture}", "--ptxas-options=-v")]
        code = self.dll.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
        size = ctypes.c_size_t()
        self.dll.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        self.dll.nvrtcGetProgramLog(program, log)
        self.dll.nvrtcDestroyProgram(ctypes.byref(program))
        return code == 0, log.value.decode()


@pytest.fixture(scope="module")
def nvrtc():
    libraries = nvrtc_libraries()
    if not libraries:
        need("NVRTC is missing (pip install 'gpu-dedup[cuda-test]')")
    compilers = [Nvrtc(library) for library in libraries]
    assert any(c.version >= (12, 8) for c in compilers), "sm_100 and sm_120 need NVRTC 12.8"
    return [c for c in compilers if c.version >= (12, 8)]


def resources(log: str) -> dict[str, dict[str, int]]:
    """Kernel -> registers, shared, stack, spilled bytes, as ptxas -v says."""
    out: dict[str, dict[str, int]] = {}
    for part in re.split(r"Compiling entry function '", log)[1:]:
        name = part[: part.index("'")]
        registers = re.search(r"Used (\d+) registers", part)
        spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        assert registers, f"ptxas says nothing about {name}"
        assert spills, f"ptxas says nothing about {name}"
        shared = re.search(r"(\d+) bytes smem", part)
        out[name] = {
            "registers": int(registers[1]),
            "shared": int(shared[1]) if shared else 0,
            "stack": max(int(s[0]) for s in spills),
            "spilled": sum(int(s[1]) + int(s[2]) for s in spills),
        }
    return out


def bounds(text: str) -> dict[str, int]:
    """Kernel -> threads of its launch bounds, where they are a number or a macro of one."""
    text = code(text)
    names = dict(re.findall(r"#\s*define\s+(\w+)\s+(\d+)", text))
    names.update(re.findall(r"\bconst(?:expr)?\s+\w+\s+(\w+)\s*=\s*(\d+)", text))
    found = re.findall(r"__launch_bounds__\s*\(\s*(\w+)[^)]*\)\s*(\w+)\s*\(", text)
    return {kernel: int(names.get(value, value)) for value, kernel in found}


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_nvrtc(file, nvrtc):
    """Every kernel compiles for every architecture without a warning and without a register spilled to memory."""
    from gpu_dedup.kernels import cuda

    text = cuda.source(file.stem)  # as the launchers give it to NVRTC
    kernels = re.findall(r"__global__[^(]*\bvoid\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(", code(text))
    threads = bounds(text)
    assert kernels
    for compiler in nvrtc:
        for architecture in ARCHITECTURES:
            good, log = compiler.compile(text, file.name, architecture, cuda.OPTIONS)
            where = f"{file.name} for {architecture} by NVRTC {compiler.version[0]}.{compiler.version[1]}"
            assert good, f"{where}:\n{log}"
            # "ptxas info" and its continuation are what -v asked for.
            odd = [line for line in log.splitlines() if "warning" in line.lower() or "error" in line.lower()]
            assert not odd, f"{where}:\n{log}"
            used = resources(log)
            assert set(used) == set(kernels), where
            for kernel, numbers in used.items():
                assert numbers["spilled"] == 0, f"{where}: {kernel} spills {numbers['spilled']} bytes"
                assert numbers["shared"] <= 48 << 10, where
                # A block's registers, given out to each warp in units of 256, are 65,536 at most.
                warps = -(-threads[kernel] // 32)
                assert warps * -(-numbers["registers"] * 32 // 256) * 256 <= 65536, f"{where}: {kernel}: {numbers}"


def test_nvrtc_says_what_is_wrong(nvrtc):
    for compiler in nvrtc:
        good, log = compiler.compile('extern "C" __global__ void k(int *x) { x[0] = y; }', "bad.cu", "sm_90")
        assert not good
        assert "bad.cu(1)" in log
        text = 'extern "C" __global__ void k(unsigned *x) { x[0] = x[1] << 40; }'
        good, log = compiler.compile(text, "odd.cu", "sm_90")
        assert good
        assert "warning" in log
        heavy = """extern "C" __global__ void __launch_bounds__(1024, 2) k(unsigned long long *x) {
            unsigned long long v[48];
            #pragma unroll
            for (int i = 0; i < 48; i++) v[i] = x[i * 1024];
            __syncthreads();
            #pragma unroll
            for (int i = 0; i < 48; i++) x[i * 977] = v[i] * v[47 - i];
        }"""
        good, log = compiler.compile(heavy, "heavy.cu", "sm_90")
        assert good
        assert resources(log)["k"]["spilled"] > 0


def test_nvcc_agrees(tmp_path):
    """Where nvcc is, it takes the files as they are; in CI it need not be."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is missing")
    if not UNITS:
        pytest.skip("this version has no CUDA kernels")
    file = next((f for f in UNITS if f.name == "minhash.cu"), UNITS[0])
    flags = ["-std=c++17", "-arch=sm_90", "-cubin", "-Xptxas=-v", "-Werror=all-warnings"]
    command = [nvcc, *flags, "-o", str(tmp_path / "a.cubin"), str(file)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    used = resources(done.stderr)
    assert used
    assert all(numbers["spilled"] == 0 for numbers in used.values()), used
