"""What this machine has, what runs on it, and why something does not. A broken part is a line, not an error."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator

from gpu_dedup.progress import bytes_text
from gpu_dedup.report import versions
from gpu_dedup.run import default_memory, usable_cpus

CODECS = ("gzip", "zstd", "snappy", "lz4", "brotli")


def doctor() -> str:
    """The text of `gpu-dedup doctor`."""
    lines = []
    for title, part in PARTS:
        lines.append(title)
        try:
            lines += [f"  {name:<14}{text}" for name, text in part()]
        except Exception as error:  # the next part may still tell something
            lines.append(f"  {'failed':<14}{type(error).__name__}: {error}")
        lines.append("")
    return "\n".join(lines)


def _versions() -> Iterator[tuple[str, str]]:
    yield from versions().items()
    yield "executable", sys.executable


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return "unknown processor"


def _machine() -> Iterator[tuple[str, str]]:
    yield "processor", _processor()
    cores = usable_cpus()
    yield "cores", f"{cores} usable of {os.cpu_count() or cores}"
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        yield "memory", f"{bytes_text(total)}; --memory is {bytes_text(default_memory())} unless given"
    except (OSError, ValueError):
        yield "memory", "size unknown"
    limit = _memory_limit()
    if limit is not None:
        yield "limit", f"{bytes_text(limit)} by the control group (container); give --memory a good part less"


def _memory_limit() -> int | None:
    """The control group's memory limit, if there is one."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="ascii") as file:
                text = file.read().strip()
        except (OSError, ValueError):
            continue
        if text.isdigit() and int(text) < 1 << 60:
            return int(text)
    return None


def _backends() -> Iterator[tuple[str, str]]:
    for name, why in (("numpy", "the definition; for tiny inputs"), ("numba", "for every CPU")):
        problem = _backend_problem(name)
        yield name, f"available: {why}" if problem is None else f"not available: {problem}"
    problem = _gpu_problem()
    yield "cuda", "available: for NVIDIA GPUs, see below" if problem is None else f"not available: {problem}"


def _backend_problem(name: str) -> str | None:
    """Why a backend cannot be used; None if it can. Loads it and takes one text through it."""
    try:
        from gpu_dedup.backend import host_backend
        from gpu_dedup.batch import Tape

        digest = host_backend(name).digest(Tape.of(["doctor"]))
        return None if digest.shape == (1, 2) else f"digest of one text has shape {digest.shape}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _gpu_problem() -> str | None:
    """Why no GPU can be used, with the remedy; None if one can. The first GPU is opened as a run opens it."""
    from gpu_dedup.errors import RunError

    try:
        from gpu_dedup.backend.cuda import cuda_backend

        cuda_backend(0)
    except RunError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _cuda() -> Iterator[tuple[str, str]]:
    """What a GPU run leans on, link by link; the first that is broken ends the list with its remedy."""
    from gpu_dedup.backend import cuda_device
    from gpu_dedup.errors import RunError

    try:
        yield "kernel cache", f"{cuda_device.kernel_cache()} (writable)"
        cupy = cuda_device.load_cupy()
        runtime = cupy.cuda.runtime
        yield "CuPy", f"version {cupy.__version__}, for CUDA {cuda_device.version_text(runtime.runtimeGetVersion())}"
        count = cuda_device.count_devices(cupy)
        yield "driver", f"for CUDA {cuda_device.version_text(runtime.driverGetVersion())}"
    except RunError as error:
        yield "problem", str(error)
        return
    for index in range(count):
        try:
            found = cuda_device.facts(cupy, index)
            major, minor = found.capability
            yield (
                f"GPU {index}",
                f"{found.name}, compute capability {major}.{minor}, "
                f"{bytes_text(found.free)} of {bytes_text(found.total)} free",
            )
            cuda_device.check(found)
            started = time.perf_counter()
            cuda_device.compile_one(cupy, index)
            yield "", f"one kernel compiled and run in {time.perf_counter() - started:.1f} s"
        except RunError as error:
            yield "problem", str(error)


def _caches() -> Iterator[tuple[str, str]]:
    from gpu_dedup.kernels import jit

    folder = jit.CACHE_DIR
    if folder is None:
        yield "kernels", "no writable folder: every process compiles anew (about 20 s); set NUMBA_CACHE_DIR to one"
        return
    files = size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.path.getsize(os.path.join(parent, name))
                files += 1
            except OSError:
                continue
    state = f"{files} files, {bytes_text(size)}" if files else "empty: the next run compiles first (about 20 s)"
    writable = "writable" if os.access(folder, os.W_OK) else "not writable: compiled kernels are not kept"
    yield "kernels", f"{folder} ({writable}; {state})"


def _formats() -> Iterator[tuple[str, str]]:
    import pyarrow as pa

    yield "JSON lines", ".jsonl .ndjson .json, each also .gz .zst"
    yield "CSV, TSV", ".csv .tsv, each also .gz .zst"
    yield "plain text", ".txt .md, each also .gz .zst"
    yield "Parquet", ".parquet .pq"
    yield "Arrow", ".arrow .feather .arrows .ipc (files and streams)"
    there = [name for name in CODECS if pa.Codec.is_available(name)]
    missing = [name for name in CODECS if name not in there]
    yield "codecs", ", ".join(there) + (f"; this pyarrow lacks {', '.join(missing)}" if missing else "")


PARTS: tuple[tuple[str, Callable[[], Iterator[tuple[str, str]]]], ...] = (
    ("versions", _versions),
    ("machine", _machine),
    ("backends", _backends),
    ("CUDA", _cuda),
    ("caches", _caches),
    ("formats", _formats),
)
