"""Builds a `.cu` file of kernels/ with g++ and runs its kernels on the CPU; see emulator.h for what that proves.

    import emulator
    module = emulator.load("minhash.cu")                        # a file of kernels/, or a path
    module.run("minhash", (4,), (128,), (x, np.int64(x.size), out), shared=0)     # every order; arrays change in place

Arrays are copied into memory that ends at a page nobody may touch, and back. A scalar's dtype must be the parameter's.
`run` runs the kernel once per order of threads and blocks on equal memory and raises if the results differ; where the
order may show (a list filled by atomics), give `order=` for a single one.

With GPU_DEDUP_SANITIZE=1 kernels are built with ASan and UBSan and arrays are heap blocks of their exact size with red
zones: `sanitized_pytest` runs tests so, in a process of its own. GPU_DEDUP_COVERAGE names a folder where kernels are
built with gcov's counters: kernel_coverage.py shows the lines that tests leave out.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import hashlib
import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
REPO = HERE.parent.parent
KERNELS = REPO / "kernels"
HEADER = HERE / "emulator.h"

ORDERS = ("ascending", "descending", "shuffle:1", "shuffle:2")
MAX_SHARED = 48 << 10
MAX_THREADS = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = ((1 << 31) - 1, 65535, 65535)
POISON = 0xCB
PAGE = mmap.PAGESIZE
SANITIZE = os.environ.get("GPU_DEDUP_SANITIZE") == "1"
COVERAGE = os.environ.get("GPU_DEDUP_COVERAGE")

WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-function", "-Wno-unused-parameter", "-Wno-unknown-pragmas")
COMMON = ("-std=c++17", "-g", "-fPIC", "-shared", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-fvisibility=hidden")
# Without the sanitizers' library undefined behaviour becomes a trap, which emulator.h turns into a message.
PLAIN = ("-O1", "-fsanitize=undefined", "-fno-sanitize=null,vptr", "-fsanitize-undefined-trap-on-error")
SANITIZED = ("-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
             "-fsanitize-sections=emu_shared")  # fmt: skip


class EmulatorError(AssertionError):
    """A kernel did on the CPU what it must not do on a GPU, or was launched in a way that a GPU refuses."""


def compiler() -> str | None:
    """Path of g++; None where there is none."""
    return shutil.which(os.environ.get("CXX", "g++"))


def missing() -> str | None:
    """Why kernels cannot be run here; None if they can."""
    return None if compiler() else "g++ is missing (Debian, Ubuntu: apt install g++)"


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "gpu-dedup" / "emulator"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    folder = Path(tempfile.gettempdir()) / f"gpu-dedup-emulator-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _call(command: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "ASAN_OPTIONS")}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **more)


# ------------------------------------------------------------------------------------------------------- source text

SIGNATURE = re.compile(
    r"__global__\s+(?:__launch_bounds__\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)\s*)?void\s+"
    r"(?:__launch_bounds__\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)\s*)?(\w+)\s*\(([^)]*)\)\s*\{"
)
DYNAMIC = re.compile(r"extern\s+__shared__\s+([^;\[\]]*?)\b(\w+)\s*\[\s*\]\s*;")
ALIGN = re.compile(r"(?:__align__|alignas)\s*\(\s*\d+\s*\)")


@dataclass(frozen=True)
class Kernel:
    """A kernel's parsed signature. codes: `*u1` pointer to unsigned char, `i8` long long, `u4x4` uint4, ..."""

    name: str
    number: int
    parameters: tuple[str, ...]
    codes: tuple[str, ...]
    max_threads: int
    static_shared: int


def _preprocess(text: str, name: str, folders: Sequence[Path], defines: Sequence[str]) -> str:
    """The text after the preprocessor, CUDA's words untouched. No include folder but `folders`, as under NVRTC."""
    includes = [f"-I{folder}" for folder in folders]
    command = [str(compiler()), "-E", "-x", "c++", "-std=c++17", "-nostdinc", "-nostdinc++", *includes, *defines, "-"]
    done = _call(command, input=f'#line 1 "{name}"\n' + text)
    if done.returncode:
        raise EmulatorError(f"{name} does not pass the preprocessor:\n{done.stderr}")
    return done.stdout


def _cpu_text(text: str) -> tuple[str, list[tuple[str, str, str]]]:
    """The translation unit's kernels as (name, launch bounds, parameters), and its text made fit for g++."""
    kernels = [(m[3], m[1] or m[2] or "", m[4]) for m in SIGNATURE.finditer(text)]
    if len(kernels) != len(re.findall(r"\b__global__\b", text)):
        raise EmulatorError('a __global__ function is not of the form: extern "C" __global__ void name(...) { ... }')

    def pointer(match: re.Match[str]) -> str:
        kind = ALIGN.sub("", match[1]).strip()
        return f"{kind} *const {match[2]} = reinterpret_cast<{kind} *>(::emu_dynamic_shared);"

    text = DYNAMIC.sub(pointer, text)
    # Everything lies in an unnamed namespace, where no name of a C library stands in the way.
    text = re.sub(r'extern\s+"C"\s*\{', "inline namespace emu_c {", text)
    text = re.sub(r'extern\s+"C"\s+', "", text)
    return text, kernels


def _glue(kernels: list[tuple[str, str, str]]) -> str:
    lines = []
    for name, bounds, _ in kernels:
        lines.append(f"static void emu_call_{name}(void **emu_args) {{ emu::apply({name}, emu_args); }}")
        lines.append(f"static void emu_signature_{name}(char *emu_out) {{ emu::signature({name}, emu_out); }}")
        first = bounds.split(",")[0].strip() or str(MAX_THREADS)
        lines.append(f'static_assert(({first}) <= {MAX_THREADS}, "launch bounds");')
    calls = ", ".join(f"&emu_call_{name}" for name, _, _ in kernels)
    signatures = ", ".join(f"&emu_signature_{name}" for name, _, _ in kernels)
    bounds_list = ", ".join(f"({b.split(',')[0].strip() or MAX_THREADS})" for _, b, _ in kernels)
    return (
        "\n".join(lines)
        + f"""
static const emu::Kernel emu_calls[] = {{{calls}}};
static void (*const emu_signatures[])(char *) = {{{signatures}}};
static const int emu_bounds[] = {{{bounds_list}}};
#define EMU_EXPORT extern "C" __attribute__((visibility("default")))
EMU_EXPORT void emu_signature(int number, char *out) {{ emu_signatures[number](out); }}
EMU_EXPORT int emu_bound(int number) {{ return emu_bounds[number]; }}
EMU_EXPORT int emu_launch(int number, const uint32_t *shape, uint64_t shared, void **args, int order, uint64_t seed,
                          char *text, uint64_t size) {{
    return emu::launch(emu_calls[number], shape, shared, args, order, seed, text, size);
}}
"""
    )


def _build(unit: str, stem: str) -> Path:
    flags = (*COMMON, *(SANITIZED if SANITIZE else PLAIN), *(("--coverage",) if COVERAGE else ()))
    version = _call([str(compiler()), "-dumpfullversion", "-dumpmachine"]).stdout
    key = hashlib.sha256("\0".join([unit, HEADER.read_text(), version, *flags]).encode()).hexdigest()[:24]
    if COVERAGE:  # counters are written beside the library when the process ends
        folder = Path(COVERAGE) / f"{stem}-{key}"
        folder.mkdir(parents=True, exist_ok=True)
    else:
        folder = _cache()
    library = folder / f"{stem}-{key}.so"
    if library.exists():
        return library
    if COVERAGE:
        (folder / f"{stem}.cpp").write_text(unit)
        _compile([*flags, f"-I{HERE}", "-o", str(library), str(folder / f"{stem}.cpp")], stem)
        return library
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        source = Path(temporary) / f"{stem}.cpp"
        source.write_text(unit)
        built = Path(temporary) / "built.so"
        _compile([*flags, f"-I{HERE}", "-o", str(built), str(source)], stem)
        built.replace(library)
    return library


def _compile(arguments: Sequence[str], stem: str) -> None:
    done = _call([str(compiler()), *WARNINGS, *arguments])
    if done.returncode:
        raise EmulatorError(f"{stem} does not compile:\n{done.stderr}")


def _static_shared(library: Path) -> tuple[dict[str, int], int]:
    """Bytes of static shared memory by the function it is in, from the symbol table, and the file's other bytes."""
    symbols = _call(["nm", "-S", "--defined-only", str(library)]).stdout.splitlines()
    start = next((int(s.split()[0], 16) for s in symbols if s.endswith(" __start_emu_shared")), 0)
    stop = next((int(s.split()[0], 16) for s in symbols if s.endswith(" __stop_emu_shared")), 0)
    owned: dict[str, int] = {}
    other = 0
    for symbol in symbols:
        parts = symbol.split()
        if len(parts) != 4 or not start <= int(parts[0], 16) < stop:
            continue
        size = int(parts[1], 16)
        match = re.match(r"_ZZN(?:12_GLOBAL__N_1|5emu_c|\d+_GLOBAL__N_\d+)+(\d+)", parts[3])
        if match:
            length = int(match[1])
            name = parts[3][match.end() : match.end() + length]
            owned[name] = owned.get(name, 0) + size
        else:
            other += size
    return owned, other


# ------------------------------------------------------------------------------------------------------------ memory

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]
FRONT = 0x5A


QUARANTINED = 1 << 14  # freed blocks whose addresses are not used again
_QUARANTINE: collections.deque[tuple[int, int]] = collections.deque()


class Memory:
    """`size` bytes of poisoned device memory at a multiple of 16, ending (up to 15 bytes) at a page that faults.

    With the sanitizers it is a heap block of the exact size. `address` is the first byte, `view` a uint8 array over it.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.base = 0
        self.slack = -size % 16
        if SANITIZE:
            self.address = _libc.malloc(max(size, 1))
            if not self.address:
                raise MemoryError(f"{size} bytes")
        else:
            pages = -(-(size + self.slack) // PAGE) * PAGE
            self.length = pages + 2 * PAGE
            # 0: PROT_NONE; 0x22: MAP_PRIVATE | MAP_ANONYMOUS
            self.base = _libc.mmap(None, self.length, 0, 0x22, -1, 0)
            if self.base in (None, ctypes.c_void_p(-1).value):
                self.base = 0
                raise MemoryError(f"{size} bytes")
            if pages:
                _libc.mprotect(self.base + PAGE, pages, 3)
            self.address = self.base + PAGE + pages - size - self.slack
            ctypes.memset(self.base + PAGE, FRONT, pages)
        self.poison()

    @property
    def view(self) -> np.ndarray:
        if not self.size:
            return np.empty(0, np.uint8)
        return np.frombuffer((ctypes.c_ubyte * self.size).from_address(self.address), np.uint8)

    def poison(self) -> None:
        if self.size:
            ctypes.memset(self.address, POISON, self.size)

    def check(self) -> None:
        """Raise if something was written beside the array on its own pages."""
        if SANITIZE or not self.base:
            return
        front = self.address - self.base - PAGE
        for at, size in ((self.base + PAGE, front), (self.address + self.size, self.slack)):
            if size and ctypes.string_at(at, size) != bytes([FRONT]) * size:
                where = "before" if at < self.address else "after"
                ctypes.memset(at, FRONT, size)
                raise EmulatorError(f"bytes {where} an array of {self.size} bytes were written")

    def free(self) -> None:
        """Give the memory back; touching it afterwards faults.

        Its addresses stay reserved for a long time: tests use memory after it was freed on purpose, and if the system
        had given the place to Python in between, they would write over Python's objects instead of faulting.
        """
        if SANITIZE:
            if self.address:
                _libc.free(self.address)
                self.address = 0
        elif self.base:
            # 0: PROT_NONE; 0x32: MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, which also lets go of the pages
            _libc.mmap(self.base, self.length, 0, 0x32, -1, 0)
            _QUARANTINE.append((self.base, self.length))
            self.base = 0
            while len(_QUARANTINE) > QUARANTINED:
                _libc.munmap(*_QUARANTINE.popleft())

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.free()


@dataclass(frozen=True)
class Shifted:
    """An array whose element 0 is addressed as element `by`: a kernel with 32-bit indices then misses it by far."""

    array: np.ndarray
    by: int


# ---------------------------------------------------------------------------------------------------------- launching


def code_of(dtype: np.dtype[Any]) -> str:
    """The code of a dtype, as in Kernel.codes."""
    kind = {"u": "u", "i": "i", "f": "f", "b": "b"}.get(dtype.kind)
    if kind is None or not dtype.isnative:
        raise TypeError(f"dtype {dtype} has no counterpart in a kernel")
    return f"{kind}{dtype.itemsize}"


def fits(pointer: str, dtype: np.dtype[Any], address: int, nbytes: int) -> str | None:
    """Why an array cannot be given to a pointer parameter of this code; None if it can."""
    code = code_of(dtype)
    target = pointer[1:]
    if target in ("v", code) or (target == "u1" and code == "b1"):
        return None
    if "x" in target:
        element, lanes = target.split("x")
        size = int(element[1:]) * int(lanes)
        if element == code or code == "u1":
            if address % size or nbytes % size:
                return f"its address or size is no multiple of {size} bytes"
            return None
    return f"an array of {dtype} is given"


def _triple(shape: Any, what: str) -> tuple[int, int, int]:
    if not isinstance(shape, tuple) or not 1 <= len(shape) <= 3:
        raise TypeError(f"{what} must be a tuple of one to three integers, not {shape!r}")
    values = tuple(int(v) for v in shape)
    return (*values, 1, 1, 1)[:3]  # type: ignore[return-value]


class Module:
    """A built `.cu` file: `kernels` by name, `run` for NumPy arrays, `launch` for addresses."""

    def __init__(self, library: Path, parsed: list[tuple[str, str, str]], title: str) -> None:
        self.title = title
        self.library = library
        self._dll = ctypes.CDLL(str(library))
        self._dll.emu_launch.argtypes = [
            ctypes.c_int, ctypes.POINTER(ctypes.c_uint32), ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p),
            ctypes.c_int, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint64,
        ]  # fmt: skip
        owned, other = _static_shared(library)
        names = [name for name, _, _ in parsed]
        other += sum(size for name, size in owned.items() if name not in names)
        self.kernels: dict[str, Kernel] = {}
        for number, (name, _, parameters) in enumerate(parsed):
            text = ctypes.create_string_buffer(4096)
            self._dll.emu_signature(number, text)
            codes = tuple(text.value.decode().split())
            words = [p.strip().split()[-1].lstrip("*&") for p in parameters.split(",") if p.strip() not in ("", "void")]
            self.kernels[name] = Kernel(
                name, number, tuple(words), codes, self._dll.emu_bound(number), owned.get(name, 0) + other
            )

    def _kernel(self, name: str) -> Kernel:
        if name not in self.kernels:
            raise EmulatorError(f"{self.title} has no kernel {name!r}; it has {', '.join(self.kernels)}")
        return self.kernels[name]

    def check_launch(self, name: str, grid: Any, block: Any, shared: int) -> tuple[int, ...]:
        """The six numbers of grid and block, if a GPU would take them."""
        kernel = self._kernel(name)
        grid, block = _triple(grid, "grid"), _triple(block, "block")
        for axis, value, most in zip("xyzxyz", grid + block, MAX_GRID + MAX_BLOCK, strict=True):
            if not 1 <= value <= most:
                raise EmulatorError(f"{name}: grid {grid}, block {block}: {axis} must be 1 to {most}")
        threads = block[0] * block[1] * block[2]
        if threads > kernel.max_threads:
            raise EmulatorError(f"{name}: {threads} threads a block; its launch bounds allow {kernel.max_threads}")
        if shared < 0 or kernel.static_shared + shared > MAX_SHARED:
            raise EmulatorError(
                f"{name}: {kernel.static_shared} bytes of static and {shared} of dynamic shared memory; "
                f"{MAX_SHARED} is the limit"
            )
        return grid + block

    def launch(
        self, name: str, grid: Any, block: Any, values: Sequence[bytes], shared: int = 0, order: str = "ascending"
    ) -> None:
        """Run a kernel once. values: each argument's bytes, as wide as its parameter."""
        kernel = self._kernel(name)
        shape = (ctypes.c_uint32 * 6)(*self.check_launch(name, grid, block, shared))
        if len(values) != len(kernel.codes):
            raise EmulatorError(f"{name} takes {len(kernel.codes)} arguments, not {len(values)}")
        cells = [ctypes.create_string_buffer(value, max(16, len(value))) for value in values]
        pointers = (ctypes.c_void_p * max(1, len(cells)))(*[ctypes.addressof(cell) for cell in cells])
        kind, _, seed = order.partition(":")
        if kind not in ("ascending", "descending", "shuffle"):
            raise ValueError(f"order {order!r}; choose one of {ORDERS}")
        number = ("ascending", "descending", "shuffle").index(kind)
        message = ctypes.create_string_buffer(2048)
        with _launch_lock:
            code = self._dll.emu_launch(kernel.number, shape, shared, pointers, number, int(seed or 0), message, 2048)
        if code:
            raise EmulatorError(f"{self.title}: {name}, order {order}, {self._where(message.value.decode())}")

    def _where(self, message: str) -> str:
        """The message with a program counter turned into file and line."""
        match = re.search(r" \[pc\+(0x[0-9a-f]+)\]", message)
        if not match:
            return message
        with open("/proc/self/maps", encoding="utf-8") as maps:
            base = next((int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(str(self.library))), 0)
        tool = shutil.which("addr2line")
        place = ""
        if tool and base:
            out = _call([tool, "-i", "-s", "-e", str(self.library), hex(int(match[1], 16) - base)]).stdout.split("\n")
            own = [line for line in out if line and "?" not in line and not line.startswith("emulator.h")]
            place = f" at {own[0].split(' ')[0]}" if own else ""
        return message.replace(match[0], place)

    def run(
        self, name: str, grid: Any, block: Any, args: Sequence[Any], shared: int = 0, order: str | None = None
    ) -> None:
        """Run a kernel on NumPy arrays and scalars; see the module's head. `None` is a null pointer."""
        kernel = self._kernel(name)
        if len(args) != len(kernel.codes):
            raise EmulatorError(f"{name} takes {len(kernel.codes)} arguments, not {len(args)}")
        results: list[bytes] | None = None
        arrays = [a.array if isinstance(a, Shifted) else a for a in args]
        shifts = [a.by if isinstance(a, Shifted) else 0 for a in args]
        before = [a.tobytes() if isinstance(a, np.ndarray) else b"" for a in arrays]
        for each in (order,) if order else ORDERS:
            values, memories = [], []
            for i, (a, code) in enumerate(zip(arrays, kernel.codes, strict=True)):
                if isinstance(a, np.ndarray):
                    if not code.startswith("*"):
                        raise TypeError(f"{name}: parameter {kernel.parameters[i]} is a scalar, an array is given")
                    memory = Memory(a.nbytes)
                    problem = fits(code, a.dtype, memory.address, a.nbytes)
                    if problem:
                        raise TypeError(f"{name}: parameter {kernel.parameters[i]} is of type {code}, but {problem}")
                    memory.view[:] = np.frombuffer(before[i], np.uint8)
                    address = memory.address - shifts[i] * a.itemsize
                    values.append((address % (1 << 64)).to_bytes(8, "little"))
                    memories.append((a, memory))
                else:
                    values.append(scalar_bytes(name, kernel.parameters[i], code, a))
            self.launch(name, grid, block, values, shared, each)
            for _, memory in memories:
                memory.check()
            outcome = [memory.view.tobytes() for _, memory in memories]
            if results is not None and outcome != results:
                which = next(i for i, (x, y) in enumerate(zip(outcome, results, strict=True)) if x != y)
                raise EmulatorError(f"{self.title}: {name}: array argument {which} differs between orders (at {each})")
            results = outcome
        for (a, _), data in zip(memories, results or [], strict=True):
            if a.flags.writeable:
                a[...] = np.frombuffer(data, a.dtype).reshape(a.shape)
            elif data != a.tobytes():
                raise EmulatorError(f"{name} wrote into a read-only array")


def scalar_bytes(kernel: str, parameter: str, code: str, value: Any) -> bytes:
    """A scalar's bytes as CuPy passes them: a Python int as 64 bits, a NumPy scalar as its own dtype."""
    if value is None:
        if not code.startswith("*"):
            raise TypeError(f"{kernel}: parameter {parameter} is of type {code}, but None is given")
        return bytes(8)
    if isinstance(value, bool):
        raise TypeError(f"{kernel}: parameter {parameter}: CuPy passes a Python bool as 64 bits; use a NumPy type")
    if isinstance(value, int):
        if code not in ("i8", "u8"):
            raise TypeError(
                f"{kernel}: parameter {parameter} is of type {code}, but CuPy passes a Python int as 64 bits; "
                f"wrap it in numpy.{'u' if code[0] == 'u' else ''}int{8 * int(code[1:]) if code[1:].isdigit() else 32}"
            )
        value = np.int64(value)
        code = "i8"
    elif isinstance(value, float):
        value = np.float64(value)
    if not isinstance(value, np.generic):
        raise TypeError(f"{kernel}: parameter {parameter} is of type {code}, but {type(value).__name__} is given")
    if code_of(value.dtype) != code:
        raise TypeError(f"{kernel}: parameter {parameter} is of type {code}, but numpy.{value.dtype} is given")
    return value.tobytes()


_expanded: dict[str, str] = {}  # by source and settings; files do not change under a running process
_loaded: dict[str, Module] = {}
_load_lock = threading.Lock()
# Signal handlers are the process's, shared memory and fibers the library's own: one launch at a time.
_launch_lock = threading.Lock()


def load_text(
    text: str, title: str = "kernel.cu", folders: Sequence[str | os.PathLike[str]] = (), defines: Sequence[str] = (),
    arch: int = 90,
) -> Module:  # fmt: skip
    """Build CUDA source text. Includes are looked for in `folders` and kernels/."""
    reason = missing()
    if reason:
        raise EmulatorError(reason)
    places = [*(Path(folder) for folder in folders), KERNELS]
    macros = ["-D__CUDACC__", "-D__CUDACC_RTC__", f"-D__CUDA_ARCH__={arch}0", *defines]
    asked = repr((text, title, places, macros))
    with _load_lock:
        if asked not in _expanded:
            _expanded[asked] = _preprocess(text, title, places, macros)
        expanded = _expanded[asked]
        if expanded not in _loaded:
            body, parsed = _cpu_text(expanded)
            unit = f'#include "emulator.h"\nnamespace {{\n{body}\n}}  // namespace\n#line 1 "glue.cpp"\n{_glue(parsed)}'
            stem = re.sub(r"\W", "_", Path(title).stem)
            _loaded[expanded] = Module(_build(unit, stem), parsed, title)
        return _loaded[expanded]


def load(path: str | os.PathLike[str], defines: Sequence[str] = (), arch: int = 90) -> Module:
    """Build a `.cu` file: a name in kernels/ or a path."""
    file = Path(path)
    if not file.is_absolute() and not file.exists():
        file = KERNELS / file
    return load_text(file.read_text(encoding="utf-8"), file.name, [file.parent], defines, arch)


# --------------------------------------------------------------------------------------------------------- sanitizers


def sanitizer_environment() -> dict[str, str] | None:
    """Environment of a Python process whose kernels run under ASan and UBSan; None where the libraries are missing."""
    libraries = []
    for name in ("libasan.so", "libubsan.so"):
        path = _call([str(compiler()), f"-print-file-name={name}"]).stdout.strip()
        if not os.path.isabs(path):
            return None
        libraries.append(os.path.realpath(path))
    return {
        **os.environ,
        "LD_PRELOAD": ":".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:allocator_may_return_null=1:detect_stack_use_after_return=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "GPU_DEDUP_SANITIZE": "1",
    }


def sanitized(arguments: Sequence[str], timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run Python with `arguments` under the sanitizers, tests/cuda and the repository on its path."""
    environment = sanitizer_environment()
    if environment is None:
        raise EmulatorError("libasan or libubsan is missing (part of g++)")
    paths = [str(HERE), str(REPO), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=timeout, cwd=REPO, check=False
    )


def sanitized_pytest(*arguments: str, timeout: float = 300) -> None:
    """Run tests under the sanitizers: sanitized_pytest("tests/test_x.py", "-k", "small"); raises with what they say."""
    done = sanitized(
        ["-m", "pytest", "-q", "-x", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments], timeout
    )
    if done.returncode or " passed" not in done.stdout:
        said = f"{done.stdout[-4000:]}\n{done.stderr[-6000:]}"
        raise EmulatorError(f"under the sanitizers, exit {done.returncode}:\n{said}")


def standin_environment(seed: int = 0, memory: int = 4 << 30, devices: int = 1) -> dict[str, str]:
    """Environment of a process that finds the stand-in where it imports cupy."""
    paths = [str(HERE / "standin"), str(HERE), str(REPO), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = f"seed={seed},memory={memory},devices={devices}"
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "GPU_DEDUP_STANDIN": settings}
