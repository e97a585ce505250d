"""One command for a machine with a GPU: what CI shows without one, on the real thing. Under 8 minutes, no network.

    python benchmarks/gpu_check.py [--out DIR] [--parts tests,probes,kernels,run] [--megabytes 200]

    tests    the CUDA tests on this device (GPU_DEDUP_REQUIRE_CUDA=1: none may be skipped for want of it)
    probes   how CuPy behaves where the backend or the stand-in of the tests leans on it: dtypes, errors, empty arrays,
             ties, scalar arguments, the pool; the same probes on the stand-in (where there is g++) must answer alike
    kernels  every kernel timed by events over text made here, beside what kernel_table.json predicts; the copy rates
    run      whole runs, GPU against Numba, over English, Chinese and code with planted copies: equal bits, both times

Needs Python, NumPy, CuPy, Numba, pyarrow, xxhash, pytest, click and tqdm. Prints one table at the end; `--out` (the
current folder if not given) gets gpu_check.json and the tests' output. Exit code 1 where anything failed or differed.

`--stand-in` runs what can be run without a GPU, on the stand-in for CuPy, with little text and no times.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

REPO = Path(__file__).resolve().parent.parent
PARTS = ("tests", "probes", "kernels", "run")
TESTS_LIMIT = 200  # seconds

# --------------------------------------------------------------------------------------------------------------- probes

PROBES: dict[str, Callable[[Any], Any]] = {}

SOURCE = """
extern "C" __global__ void add(const unsigned int *x, unsigned int n, unsigned int by, unsigned int *out) {
    const unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] + by;
}
extern "C" __global__ void wide(long long n, unsigned long long by, long long *out) {
    if (threadIdx.x == 0 && blockIdx.x == 0) out[0] = n, out[1] = (long long)by;
}
extern "C" __global__ void narrow(int n, unsigned char c, unsigned short s, long long *out) {
    if (threadIdx.x == 0 && blockIdx.x == 0) out[0] = n, out[1] = c, out[2] = s;
}
extern "C" __global__ void shared(unsigned int *out) {
    extern __shared__ unsigned int held[];
    held[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = held[blockDim.x - 1 - threadIdx.x];
}
"""


def probe(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    PROBES[function.__name__] = function
    return function


def _add(name: str, function: Callable[[Any], Any]) -> None:
    PROBES[name] = function


def plain(value: Any) -> Any:
    """A value as JSON has it; arrays with dtype and shape."""
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "shape": list(value.shape), "values": value.reshape(-1)[:64].tolist()}
    if isinstance(value, np.generic):
        return {"dtype": str(value.dtype), "value": value.item()}
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def answer(cupy: Any, function: Callable[[Any], Any]) -> Any:
    """What a probe gives, an error as its kind and first line."""
    try:
        return plain(function(cupy))
    except Exception as error:
        lines = str(error).splitlines()
        kinds = [k.__name__ for k in type(error).__mro__[:-1]]
        return {"error": type(error).__name__, "kinds": kinds, "text": lines[0][:200] if lines else ""}


def run_probes(cupy: Any) -> dict[str, Any]:
    return {name: answer(cupy, function) for name, function in PROBES.items()}


def _module(cupy: Any) -> Any:
    return cupy.RawModule(code=SOURCE, options=("--std=c++17",))


def _up(cupy: Any, values: Any, dtype: Any) -> Any:
    return cupy.asarray(np.array(values, dtype))


def _kind(array: Any) -> list[Any]:
    return [str(array.dtype), list(array.shape), int(array.nbytes)]


for _dtype in ("uint8", "uint32", "int64", "uint64"):
    _add(f"empty of {_dtype}", lambda c, d=_dtype: _kind(c.empty((3,), d)))
    _add(f"sort of {_dtype}", lambda c, d=_dtype: c.sort(_up(c, [3, 1, 2, 1], d)).get())
    _add(f"argsort of {_dtype}", lambda c, d=_dtype: c.argsort(_up(c, [3, 0, 2, 1], d)).get())
    _add(f"sort of no {_dtype}", lambda c, d=_dtype: c.sort(c.empty((0,), d)).get())
    _add(f"argsort of no {_dtype}", lambda c, d=_dtype: c.argsort(c.empty((0,), d)).get())
    _add(f"cumsum of {_dtype} to int64", lambda c, d=_dtype: c.cumsum(_up(c, [3, 1, 2], d), dtype=np.int64).get())
    _add(f"cumsum of {_dtype}, default", lambda c, d=_dtype: c.cumsum(_up(c, [3, 1, 2], d)).get())
    _add(f"take of {_dtype}", lambda c, d=_dtype: c.take(_up(c, [3, 1, 2], d), _up(c, [2, 0], np.int64)).get())

_add("sort of extremes", lambda c: c.sort(_up(c, [2**64 - 1, 0, 2**63, 2**63 - 1], np.uint64)).get())
_add("argsort of extremes", lambda c: c.argsort(_up(c, [2**64 - 1, 0, 2**63, 2**63 - 1], np.uint64)).get())
_add("empty of no elements", lambda c: _kind(c.empty((0,), np.int64)))
_add("empty of no rows", lambda c: _kind(c.empty((0, 7), np.int64)))
_add("zeros", lambda c: c.zeros((2, 3), np.uint32).get())
_add("zeros of none", lambda c: c.zeros((0,), np.uint32).get())
_add("asarray of no elements", lambda c: c.asarray(np.zeros(0, np.uint64)).get())
_add("asarray of read-only", lambda c: c.asarray(np.frombuffer(b"abcd", np.uint8)).get())
_add("asarray of every second", lambda c: c.asarray(np.arange(6, dtype=np.int64)[::2]).get())
_add("asarray of an odd address", lambda c: c.asarray(np.arange(9, dtype=np.uint8)[1:]).get())
_add("asnumpy", lambda c: c.asnumpy(_up(c, [1, 2], np.int64)))
_add("cumsum of none", lambda c: c.cumsum(c.empty((0,), np.int64), dtype=np.int64).get())
_add("cumsum with out", lambda c: c.cumsum(_up(c, [1, 2], np.int64), out=c.empty((2,), np.int64)).get())
_add("cumsum that wraps", lambda c: c.cumsum(_up(c, [2**62, 2**62, 5], np.int64), dtype=np.int64).get())
_add("take by none", lambda c: c.take(_up(c, [1], np.int64), c.empty((0,), np.int64)).get())
_add(
    "take with out",
    lambda c: c.take(_up(c, [5, 6], np.int64), _up(c, [1], np.int64), out=c.empty((1,), np.int64)).get(),
)
_add("take by uint32", lambda c: c.take(_up(c, [5, 6], np.int64), _up(c, [1], np.uint32)).get())
_add("take past the end", lambda c: c.take(_up(c, [5, 6], np.int64), _up(c, [7], np.int64)).get())
_add("slice", lambda c: _up(c, [1, 2, 3, 4], np.int64)[1:3].get())
_add("slice past the end", lambda c: _up(c, [1, 2, 3, 4], np.int64)[3:9].get())
_add("slice shares memory", lambda c: (lambda a: int(a[2:].data.ptr - a.data.ptr))(_up(c, [1, 2, 3], np.int64)))
_add("view as bytes", lambda c: _up(c, [258], np.uint32).view(np.uint8).get())
_add("view as wider", lambda c: _up(c, [1, 1], np.uint32).view(np.uint64).get())
_add("view that does not divide", lambda c: _kind(_up(c, [1, 2, 3], np.uint32).view(np.uint64)))
_add("reshape", lambda c: _kind(_up(c, range(6), np.int64).reshape((2, 3))))
_add("reshape that does not fit", lambda c: _kind(_up(c, range(6), np.int64).reshape((4, 2))))
_add("alignment of empty", lambda c: sorted({int(c.empty((n,), np.uint8).data.ptr % 512) for n in (1, 3, 700)}))
_add("empty of negative size", lambda c: _kind(c.empty((-1,), np.int64)))
_add("len", lambda c: len(_up(c, [1, 2, 3], np.int64)))


@probe
def scalars_by_numpy_type(c: Any) -> Any:
    out = c.zeros((2,), np.int64)
    _module(c).get_function("wide")((1,), (32,), (np.int64(-5), np.uint64(2**63 + 1), out))
    return out.get()


@probe
def scalars_by_python_int(c: Any) -> Any:
    """64 bits, by CuPy's rule."""
    out = c.zeros((2,), np.int64)
    _module(c).get_function("wide")((1,), (32,), (-5, 7, out))
    return out.get()


@probe
def narrow_scalars(c: Any) -> Any:
    out = c.zeros((3,), np.int64)
    _module(c).get_function("narrow")((1,), (32,), (np.int32(-3), np.uint8(200), np.uint16(60000), out))
    return out.get()


@probe
def launch_of_a_slice(c: Any) -> Any:
    x, out = _up(c, range(8), np.uint32), c.zeros((3,), np.uint32)
    _module(c).get_function("add")((1,), (32,), (x[5:], np.uint32(3), np.uint32(10), out))
    return out.get()


@probe
def dynamic_shared_memory(c: Any) -> Any:
    out = c.zeros((8,), np.uint32)
    _module(c).get_function("shared")((1,), (8,), (out,), shared_mem=32)
    return out.get()


@probe
def empty_grid(c: Any) -> Any:
    out = c.zeros((8,), np.uint32)
    _module(c).get_function("shared")((0,), (8,), (out,), shared_mem=32)
    return out.get()


@probe
def block_of_2048(c: Any) -> Any:
    out = c.zeros((2048,), np.uint32)
    _module(c).get_function("shared")((1,), (2048,), (out,), shared_mem=8192)
    return out.get()


@probe
def too_much_shared_memory(c: Any) -> Any:
    out = c.zeros((8,), np.uint32)
    _module(c).get_function("shared")((1,), (8,), (out,), shared_mem=64 << 10)
    return out.get()


@probe
def unknown_kernel(c: Any) -> Any:
    return repr(_module(c).get_function("no_such_kernel"))


@probe
def source_that_does_not_compile(c: Any) -> Any:
    return repr(c.RawModule(code='extern "C" __global__ void k() { nonsense }', options=()).get_function("k"))


@probe
def arrays_of_an_empty_size_as_arguments(c: Any) -> Any:
    out = c.zeros((3,), np.uint32)
    _module(c).get_function("add")((1,), (32,), (c.empty((0,), np.uint32), np.uint32(0), np.uint32(1), out))
    return out.get()


@probe
def out_of_memory(c: Any) -> Any:
    """The kind that the backend catches, and that memory is whole again after it."""
    kind = c.cuda.memory.OutOfMemoryError
    try:
        c.empty((1 << 30,), np.uint64), [c.empty(((1 << 31) - 1,), np.uint64) for _ in range(64)]
    except kind as error:
        return [type(error).__name__, isinstance(error, MemoryError), str(error).startswith("Out of memory allocating")]
    finally:
        c.get_default_memory_pool().free_all_blocks()
    return "no error"


@probe
def pool_gives_back(c: Any) -> Any:
    pool = c.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.used_bytes()
    array = c.empty((1000,), np.uint8)
    held = pool.used_bytes() - before
    del array
    return [int(held), int(pool.used_bytes() - before), int(pool.total_bytes() - before) >= 1024]


@probe
def pool_limit(c: Any) -> Any:
    pool = c.get_default_memory_pool()
    pool.free_all_blocks()
    pool.set_limit(size=pool.used_bytes() + (4 << 20))
    try:
        c.empty((8 << 20,), np.uint8)
        return "no error"
    except c.cuda.memory.OutOfMemoryError as error:
        return "limit set to" in str(error)
    finally:
        pool.set_limit(size=0)


@probe
def pool_across_streams(c: Any) -> Any:
    """Whether a block given back on one stream comes again on another."""
    one, other = c.cuda.Stream(non_blocking=True), c.cuda.Stream(non_blocking=True)
    with one:
        array = c.empty((12345,), np.uint8)
        place = int(array.data.ptr)
        del array
        same = int(c.empty((12345,), np.uint8).data.ptr) == place
    with other:
        foreign = int(c.empty((12345,), np.uint8).data.ptr) == place
    return [same, foreign]


@probe
def stream_is_restored(c: Any) -> Any:
    outer = c.cuda.Stream(non_blocking=True)
    with outer:
        with c.cuda.Stream(non_blocking=True):
            pass
        a = c.zeros((4,), np.uint32)
        return a.get()


@probe
def device_in_another_thread(c: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append((int(c.cuda.Device().id), c.zeros((2,), np.int64).get().tolist()))
    )
    thread.start()
    thread.join()
    return found


@probe
def array_given_back_by_another_thread(c: Any) -> Any:
    held = [c.zeros((100,), np.int64)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    return c.zeros((100,), np.int64).get().sum()


@probe
def ties_of_argsort(c: Any) -> Any:
    """Whether equal keys keep their order, which the backend does not lean on."""
    keys = np.random.default_rng(1).integers(0, 50, 100_000).astype(np.uint64)
    return bool(np.array_equal(c.argsort(c.asarray(keys)).get(), np.argsort(keys, kind="stable")))


@probe
def sort_of_a_million(c: Any) -> Any:
    keys = np.random.default_rng(2).integers(0, 1 << 63, 1 << 20).astype(np.uint64)
    return bool(np.array_equal(c.sort(c.asarray(keys)).get(), np.sort(keys)))


@probe
def cumsum_of_ten_million(c: Any) -> Any:
    counts = np.random.default_rng(3).integers(0, 9, 10_000_000)
    return bool(np.array_equal(c.cumsum(c.asarray(counts), dtype=np.int64).get(), np.cumsum(counts)))


@probe
def device_names(c: Any) -> Any:
    properties = c.cuda.runtime.getDeviceProperties(0)
    return [
        type(properties["name"]).__name__,
        sorted(k for k in properties if k in ("major", "minor", "totalGlobalMem")),
    ]


@probe
def device_that_is_not_there(c: Any) -> Any:
    with c.cuda.Device(99):
        return c.zeros((1,), np.int64).get()


@probe
def free_memory(c: Any) -> Any:
    free, total = c.cuda.Device(0).mem_info
    return [type(free).__name__, type(total).__name__, 0 < free <= total]


@probe
def availability(c: Any) -> Any:
    return [c.cuda.is_available(), c.cuda.runtime.getDeviceCount() > 0, c.cuda.runtime.driverGetVersion() > 0]


@probe
def error_kinds(c: Any) -> Any:
    kinds = (c.cuda.memory.OutOfMemoryError, c.cuda.runtime.CUDARuntimeError)
    return [[k.__name__ for k in kind.__mro__[:-1]] for kind in kinds]


# Probes that may differ between the stand-in and CuPy: what the stand-in refuses on purpose, and what it leaves open.
STRICTER = {
    "cumsum of uint8, default", "cumsum of uint32, default", "cumsum of int64, default", "cumsum of uint64, default",
    "take past the end", "len", "scalars_by_python_int", "out_of_memory", "ties_of_argsort", "pool_across_streams",
    "source_that_does_not_compile", "empty_grid", "block_of_2048", "too_much_shared_memory", "unknown_kernel",
    "reshape that does not fit", "view that does not divide", "empty of negative size", "device_that_is_not_there",
    "alignment of empty",
}  # fmt: skip


def differences(standin: dict[str, Any], real: dict[str, Any]) -> list[str]:
    """Probes for which the stand-in gives another answer than CuPy did, those left open aside."""
    return [name for name in standin if name in real and name not in STRICTER and standin[name] != real[name]]


# ----------------------------------------------------------------------------------------------------------------- text


def _vocabulary(rng: np.random.Generator, size: int, letters: str, shortest: int, longest: int) -> np.ndarray:
    chars = np.array(list(letters))
    words = ["".join(chars[rng.integers(0, len(chars), rng.integers(shortest, longest + 1))]) for _ in range(size)]
    return np.array(words, dtype=object)


def corpus(seed: int, size: int) -> list[str]:
    """About `size` bytes of texts: English-like, Chinese, code; one in four is a near copy of one before it."""
    rng, choose = np.random.default_rng(seed), random.Random(seed)
    english = _vocabulary(rng, 20_000, "etaoinshrdlucmfwypvbgk", 2, 9)
    code = _vocabulary(rng, 3_000, "abcdefgxyz_", 1, 8)
    han = np.array([chr(0x4E00 + i) for i in range(3000)], dtype=object)
    signs = np.array([" = ", "(", ")", ".", ", ", " + ", ":\n    ", "\n", "[0]", " == "], dtype=object)
    out: list[str] = []
    made = 0
    while made < size:
        if out and choose.random() < 0.25:
            words = choose.choice(out[-2000:]).split(" ")
            for _ in range(choose.randrange(1 + len(words) // 40)):
                words[choose.randrange(len(words))] = str(choose.choice(english))
            text = " ".join(words)
        else:
            kind, n = choose.random(), int(rng.lognormal(5.8, 1.0)) + 1
            if kind < 0.6:
                text = " ".join(english[(rng.zipf(1.3, n) - 1) % len(english)])
            elif kind < 0.8:
                text = "".join(han[(rng.zipf(1.2, 3 * n) - 1) % len(han)])
            else:
                pieces = np.empty(2 * n, dtype=object)
                pieces[0::2], pieces[1::2] = code[rng.integers(0, len(code), n)], signs[rng.integers(0, len(signs), n)]
                text = "".join(pieces)
        if made > size // 2 and made - len(text) <= size // 2:
            text = (
                text * 1 + " " + " ".join(english[rng.integers(0, len(english), min(size // 40, 400_000))])
            )  # a long one
        out.append(text)
        made += len(text.encode())
    return out


# -------------------------------------------------------------------------------------------------------------- kernels


class Clock:
    """Times every kernel launch by events; where there are none (the stand-in) it counts launches."""

    def __init__(self, cupy: Any, events: bool) -> None:
        self.cupy, self.events = cupy, events
        self.spans: dict[str, list[Any]] = defaultdict(list)
        self._undo: list[tuple[Any, Any]] = []

    def __enter__(self) -> Clock:
        from gpu_dedup.kernels import cuda

        original = cuda.function

        def function(stem: str, name: str) -> Any:
            kernel = original(stem, name)

            def launch(grid: Any, block: Any, args: Any, **more: Any) -> None:
                if not self.events:
                    kernel(grid, block, args, **more)
                    self.spans[name].append(None)
                    return
                start, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
                start.record()
                kernel(grid, block, args, **more)
                end.record()
                self.spans[name].append((start, end))

            return launch

        for module in list(sys.modules.values()):
            if (
                getattr(module, "__name__", "").startswith("gpu_dedup.kernels.")
                and getattr(module, "function", None) is original
            ):
                self._undo.append((module, original))
                module.function = function  # type: ignore[attr-defined]
        return self

    def __exit__(self, *_: object) -> None:
        for module, original in self._undo:
            module.function = original

    def milliseconds(self) -> dict[str, tuple[int, float | None]]:
        out: dict[str, tuple[int, float | None]] = {}
        for name, spans in self.spans.items():
            if not self.events:
                out[name] = (len(spans), None)
                continue
            spans[-1][1].synchronize()
            out[name] = (len(spans), sum(self.cupy.cuda.get_elapsed_time(a, b) for a, b in spans))
        return out


def copy_rates(cupy: Any) -> dict[str, float]:
    """Bytes a second: device to device (reads and writes together), host to device from plain and pinned memory."""
    size = 1 << 30
    a, b = cupy.zeros((size,), np.uint8), cupy.empty((size,), np.uint8)
    host = np.ones(size >> 2, np.uint8)
    pinned = cupy.cuda.alloc_pinned_memory(size >> 2)
    place = int(pinned.ptr)
    target = cupy.empty((size >> 2,), np.uint8)
    stream = cupy.cuda.get_current_stream()

    def rate(work: Callable[[], Any], nbytes: int) -> float:
        work()
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        for _ in range(5):
            work()
        end.record()
        end.synchronize()
        return 5 * nbytes / (cupy.cuda.get_elapsed_time(start, end) / 1e3)

    return {
        "device to device": rate(lambda: cupy.copyto(b, a), 2 * size),
        "host to device": rate(lambda: cupy.asarray(host), len(host)),
        "pinned to device": rate(lambda: target.data.copy_from_host_async(place, size >> 2, stream), size >> 2),
    }


def time_kernels(cupy: Any, size: int, events: bool) -> dict[str, Any]:
    """Every road once to warm up, then timed: milliseconds per kernel, in all and per GB of text."""
    from gpu_dedup.backend import host_backend
    from gpu_dedup.backend.cuda import cuda_backend
    from gpu_dedup.batch import Tape
    from gpu_dedup.sketches import permutations

    gpu = cuda_backend(0)
    texts = corpus(11, min(size, 32 << 20))
    while sum(len(t) for t in texts) < size // 2:
        texts = texts * 2
    tape = Tape.of(texts)
    # lowercasing and blanks are the host's work; these texts need none
    every = np.arange(len(tape), dtype=np.int64)
    some = every[: max(len(every) // 4, min(len(every), 5000))]  # texts that are compared by their sets
    a, b = permutations(0, 119)
    stop = np.zeros(0, np.uint64)
    made = gpu.sketch(tape, every, 0, 5, stop, a, b)
    numbers = permutations(0, 119 + 2)
    fast = gpu.fast_sketch(tape, every, 0, 5, stop, *numbers)

    def road() -> None:
        normal = gpu.normalise(tape, 0)
        gpu.digest(normal)
        signatures = gpu.sketch(normal, every, 0, 5, stop, a, b).signatures
        keys = gpu.band_keys(signatures, 17, 7)
        gpu.fast_sketch(normal, every, 0, 5, stop, *numbers)
        sets, bounds = gpu.shingle_sets(normal, some, 0, 5, stop)
        high = low = np.zeros(0, np.int64)
        for band in range(2):
            members, starts = gpu.buckets(np.ascontiguousarray(keys[:, band]), np.array([0, len(keys)]))
            offsets = gpu.pair_offsets(starts, 256, 32)
            high, low = gpu.bucket_pairs(members, starts, offsets, 0, len(members))
            gpu.agreements(signatures, high, low)
        near = (high < len(bounds) - 1) & (low < len(bounds) - 1)
        gpu.jaccard(sets, bounds, high[near], low[near])

    road()
    with Clock(cupy, events) as clock:
        road()
        times = clock.milliseconds()
    host = host_backend("numba")
    reference = host.sketch(tape, every[:2000], 0, 5, stop, a, b).signatures
    fast_reference = host.fast_sketch(tape, every[:2000], 0, 5, stop, *numbers).signatures
    predicted: dict[str, float] = defaultdict(float)
    table = REPO / "benchmarks" / "results" / "kernel_table.json"
    if table.exists():
        for entry in json.loads(table.read_text())["predicted"]["119"]:
            predicted[entry["step"].partition(",")[0].partition(" (")[0]] += entry["predicted_ms"]
    gigabytes = tape.nbytes / 1e9
    return {
        "bytes": tape.nbytes,
        "texts": len(tape),
        "equal": bool(
            np.array_equal(made.signatures[:2000], reference) and np.array_equal(fast.signatures[:2000], fast_reference)
        ),
        "kernels": {
            name: {
                "launches": count,
                "ms": ms,
                "ms_per_gb": None if ms is None else ms / gigabytes,
                "predicted_ms_per_gb": predicted.get(name),
            }
            for name, (count, ms) in sorted(times.items(), key=lambda item: -(item[1][1] or 0))
        },
        "copies": answer(cupy, copy_rates) if events else {},
    }


# ----------------------------------------------------------------------------------------------------------------- runs


def whole_runs(folder: Path, size: int) -> dict[str, Any]:
    """GPU and Numba over the same files: the surviving bytes and the removal log must be equal."""
    import pyarrow.parquet as pq

    from gpu_dedup import Recipe, Run, dedup

    source = folder / "in"
    source.mkdir()
    texts = corpus(5, size)
    for part in range(4):
        with open(source / f"{part}.jsonl", "w", encoding="utf-8") as file:
            for number, text in enumerate(texts[part::4]):
                file.write(json.dumps({"id": f"{part}-{number}", "text": text}, ensure_ascii=False) + "\n")
    out: dict[str, Any] = {"bytes": sum(f.stat().st_size for f in source.iterdir()), "rows": len(texts)}
    found: dict[str, Any] = {}
    for name, run in (("gpu, first", {"device": "gpu"}), ("gpu", {"device": "gpu"}), ("numba", {"backend": "numba"})):
        target = folder / name
        started = time.perf_counter()
        report = dedup([str(source)], str(target), Recipe(), Run(progress=False, batch_bytes=32 << 20, **run))
        seconds = time.perf_counter() - started
        files = sorted(f for f in target.rglob("*.jsonl"))
        log = pq.read_table(target / "_gpu_dedup" / "removed.parquet").to_pylist()
        digest = hashlib.sha256()
        for file in files:
            digest.update(file.name.encode() + file.read_bytes())
        found[name] = (digest.hexdigest(), log)
        out[name] = {
            "seconds": round(seconds, 3), "removed": len(log), "backend": report.machine.backend,
            "why": report.machine.backend_why, "stages": report.machine.stages, "sha256": digest.hexdigest(),
        }  # fmt: skip
        shutil.rmtree(target)
    out["equal"] = found["gpu"] == found["numba"] == found["gpu, first"]
    out["removed"] = len(found["numba"][1])
    return out


# ----------------------------------------------------------------------------------------------------------------- main


def run_tests(out: Path) -> dict[str, Any]:
    """The CUDA tests; their output in gpu_check_tests.txt."""
    files = sorted(str(f) for f in (REPO / "tests").glob("test_cuda_*.py"))
    environment = {**os.environ, "GPU_DEDUP_REQUIRE_CUDA": "1", "PYTHONPATH": str(REPO)}
    # Bodies under `gpu` run on the device; what concerns the stand-in alone is CI's.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "gpu", "--durations=5", *files]
    log = out / "gpu_check_tests.txt"
    started = time.perf_counter()
    with open(log, "w", encoding="utf-8") as file:
        try:
            code: int | str = subprocess.run(
                command,
                cwd=REPO,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=TESTS_LIMIT,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = f"stopped after {TESTS_LIMIT} s"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return {"exit": code, "seconds": round(time.perf_counter() - started, 1), "last_line": lines[-1] if lines else ""}


def machine(cupy: Any) -> dict[str, Any]:
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return {
        "gpu": properties["name"].decode(),
        "capability": f"{properties['major']}.{properties['minor']}",
        "memory": int(properties["totalGlobalMem"]),
        "cupy": cupy.__version__,
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "runtime": cupy.cuda.runtime.runtimeGetVersion(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "platform": platform.platform(),
    }


def table(found: dict[str, Any]) -> str:
    lines = [
        f"{'gpu':<18}{found['machine']['gpu']}, CuPy {found['machine']['cupy']}, driver {found['machine']['driver']}"
    ]
    if "tests" in found:
        lines.append(
            f"{'tests':<18}exit {found['tests'].get('exit')}: {found['tests'].get('last_line', found['tests'])}"
        )
    if "probes" in found:
        lines.append(
            f"{'probes':<18}{len(found['probes'])}, stand-in differs in {found.get('standin_differs', 'not compared')}"
        )
    kernels = found.get("kernels", {})
    if "kernels" in kernels:
        lines.append(
            f"{'text':<18}{kernels['bytes'] / 1e6:.0f} MB, {kernels['texts']} texts, equal to numba: {kernels['equal']}"
        )
        for name, rate in kernels["copies"].items():
            lines.append(f"{name:<18}{rate / 1e9:9.1f} GB/s" if isinstance(rate, float) else f"{name:<18}{rate}")
        lines.append(f"{'kernel':<18}{'launches':>9}{'ms':>10}{'ms/GB':>10}{'predicted':>11}{'times':>7}")
        for name, row in kernels["kernels"].items():
            ms, per, limit = row["ms"], row["ms_per_gb"], row["predicted_ms_per_gb"]
            shown = [f"{v:.3f}" if v is not None else "-" for v in (ms, per, limit)]
            ratio = f"{per / limit:.1f}" if per is not None and limit else "-"
            lines.append(f"{name:<18}{row['launches']:>9}{shown[0]:>10}{shown[1]:>10}{shown[2]:>11}{ratio:>7}")
    run = found.get("run", {})
    if "equal" in run:
        lines.append(
            f"{'run':<18}{run['bytes'] / 1e6:.0f} MB, {run['rows']} rows, {run['removed']} gone, equal: {run['equal']}"
        )
        for name in ("gpu, first", "gpu", "numba"):
            stages = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in run[name]["stages"].items())
            rate = run["bytes"] / run[name]["seconds"] / 1e6
            lines.append(f"{name:<18}{run[name]['seconds']:9.2f} s{rate:9.1f} MB/s  {stages}")
    for part in PARTS:
        if "failed" in found.get(part, {}):
            lines.append(f"{part:<18}FAILED: {found[part]['failed']}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument(
        "--megabytes", type=int, default=200, help="text of a whole run; of the kernels: half as much more"
    )
    parser.add_argument("--stand-in", action="store_true")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    sys.path.insert(0, str(REPO))
    if options.stand_in:
        sys.path.insert(0, str(REPO / "tests" / "cuda" / "standin"))
        parts = [part for part in parts if part != "tests"]
    size = 60_000 if options.stand_in else options.megabytes * 1_000_000
    options.out.mkdir(parents=True, exist_ok=True)

    from gpu_dedup.backend.cuda_device import count_devices, load_cupy
    from gpu_dedup.errors import RunError

    try:
        cupy = load_cupy()
        count_devices(cupy)
    except RunError as error:
        raise SystemExit(f"gpu_check: {error}") from None
    started = time.perf_counter()
    found: dict[str, Any] = {"machine": machine(cupy), "stand_in": options.stand_in}

    def part(name: str, work: Callable[[], Any]) -> None:
        """A part that fails is said, and the others still run."""
        if name not in parts:
            return
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            found[name] = work()
        except Exception as error:
            traceback.print_exc()
            found[name] = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        (options.out / "gpu_check.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    part("probes", lambda: run_probes(cupy))
    part("kernels", lambda: time_kernels(cupy, size * 3 // 2, not options.stand_in))
    with tempfile.TemporaryDirectory() as folder:
        part("run", lambda: whole_runs(Path(folder), size))
    part("tests", lambda: run_tests(options.out))
    if "probes" in found and not options.stand_in:
        found["standin_differs"] = compare_with_standin(found["probes"])
    found["seconds"] = round(time.perf_counter() - started, 1)
    (options.out / "gpu_check.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(found))
    bad = [name for name in parts if "failed" in found[name]]
    bad += [name for name in ("kernels", "run") if found.get(name, {}).get("equal") is False]
    bad += ["tests"] if found.get("tests", {}).get("exit", 0) != 0 else []
    print(f"{found['seconds']} s; " + (f"NOT in order: {', '.join(dict.fromkeys(bad))}" if bad else "all in order"))
    return 1 if bad else 0


def compare_with_standin(real: dict[str, Any]) -> list[str] | str:
    """The same probes on the stand-in, in a process of its own; needs g++."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__)), "--stand-in", "--parts", "probes", "--out", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["failed"])[-1]
        return differences(json.loads((Path(folder) / "gpu_check.json").read_text())["probes"], real)


if __name__ == "__main__":
    raise SystemExit(main())
