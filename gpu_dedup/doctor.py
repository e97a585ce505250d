"""What this machine has, what runs on it, and why something does not. A broken part is a line, not an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module

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
    yield "cuda", "not built in this version; numba gives the same answer on the CPU"
    yield "CuPy", _cupy()


def _backend_problem(name: str) -> str | None:
    """Why a backend cannot be used; None if it can. Loads it and takes one text through it."""
    try:
        from gpu_dedup.backend import host_backend
        from gpu_dedup.batch import Tape

        digest = host_backend(name).digest(Tape.of(["doctor"]))
        return None if digest.shape == (1, 2) else f"digest of one text has shape {digest.shape}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _cupy() -> str:
    try:
        cupy = import_module("cupy")
    except ImportError as error:
        return f"not importable ({error})"
    except Exception as error:
        return f"fails to load: {type(error).__name__}: {error}"
    text = f"version {cupy.__version__}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
        driver = cupy.cuda.runtime.driverGetVersion()
        names = [cupy.cuda.runtime.getDeviceProperties(i)["name"].decode() for i in range(count)]
        return f"{text}, driver for CUDA {driver // 1000}.{driver % 1000 // 10}, {count} GPU: {', '.join(names)}"
    except Exception as error:
        return f"{text}, but no usable GPU: {error}"


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
    yield "Parquet", ".parquet .pq"
    there = [name for name in CODECS if pa.Codec.is_available(name)]
    missing = [name for name in CODECS if name not in there]
    yield "codecs", ", ".join(there) + (f"; this pyarrow lacks {', '.join(missing)}" if missing else "")


PARTS: tuple[tuple[str, Callable[[], Iterator[tuple[str, str]]]], ...] = (
    ("versions", _versions),
    ("machine", _machine),
    ("backends", _backends),
    ("caches", _caches),
    ("formats", _formats),
)
