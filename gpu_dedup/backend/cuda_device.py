"""A GPU, found or refused: what stands in the way of the CUDA backend, each with its remedy.

CuPy is imported by `load_cupy`, when a GPU is asked for, never before."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from gpu_dedup.errors import RunError

ON_CPU = "or run with --device cpu, which gives the same answer"
INSTALL = "pip install 'gpu-dedup[cuda13]', or 'gpu-dedup[cuda12]' where nvidia-smi shows CUDA Version 12"
LEAST_CAPABILITY = (7, 0)  # older GPUs have no independent threads, on which the _sync forms of warp code rest
LEAST_FREE = 256 << 20  # bytes of free device memory

NO_DEVICE, OLD_DRIVER = 100, 35  # of cudaError_t


@dataclass(frozen=True)
class GpuFacts:
    """One device, as the driver tells it. Memory in bytes."""

    index: int
    name: str
    capability: tuple[int, int]
    free: int
    total: int

    def __str__(self) -> str:
        return f"GPU {self.index}, {self.name}"


def version_text(number: int) -> str:
    """'12.9' of 12090."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _usable(folder: str) -> bool:
    """True if this process may create files in `folder`."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def kernel_cache() -> str:
    """The folder where CuPy keeps compiled kernels, writable; CUPY_CACHE_DIR is set to it.

    The user's CUPY_CACHE_DIR if it can be written, else a place of this user's own. CuPy's default is under the home
    folder, which containers and clusters often mount read-only. Raises RunError where there is none.
    """
    given = os.environ.get("CUPY_CACHE_DIR")
    home = os.path.expanduser("~")
    base = os.environ.get("XDG_CACHE_HOME") or (os.path.join(home, ".cache") if os.path.isabs(home) else "")
    places = [given, os.path.join(base, "gpu-dedup", "cupy") if base else None]
    places.append(os.path.join(tempfile.gettempdir(), f"gpu-dedup-{os.getuid()}", "cupy"))
    for place in places:
        if place and _usable(place) and (place == given or os.stat(place).st_uid == os.getuid()):
            os.environ["CUPY_CACHE_DIR"] = place
            return place
    raise RunError(
        f"no folder for compiled GPU kernels can be written (tried {', '.join(str(p) for p in places if p)}); "
        f"set CUPY_CACHE_DIR to one that can, {ON_CPU}"
    )


def load_cupy() -> Any:
    """The module cupy. Raises RunError where it is missing or does not load."""
    kernel_cache()
    if importlib.util.find_spec("cupy") is None:
        raise RunError(f"the GPU backend needs CuPy, which is not installed; {INSTALL}, {ON_CPU}")
    try:
        return import_module("cupy")
    except Exception as error:  # CuPy raises what its loader met: ImportError, OSError, its own kinds
        raise RunError(f"CuPy is installed but does not load ({first_line(error)}); {INSTALL}, {ON_CPU}") from None


def first_line(error: BaseException) -> str:
    """An error of somebody else's in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def count_devices(cupy: Any) -> int:
    """How many GPUs there are, one at least. Raises RunError where there is none, or no driver that CuPy can use."""
    runtime = cupy.cuda.runtime
    try:
        count = int(runtime.getDeviceCount())
    except Exception as error:
        status = getattr(error, "status", None)
        driver = _driver(cupy)
        if not driver:
            raise RunError(
                "no NVIDIA driver on this machine; install one (nvidia-smi must work; in a container pass --gpus all), "
                f"{ON_CPU}"
            ) from None
        if status == OLD_DRIVER:
            built = version_text(int(runtime.runtimeGetVersion()))
            raise RunError(
                f"the driver knows CUDA {version_text(driver)}, but this CuPy is made for CUDA {built}; update the "
                f"driver, or install the CuPy for it (pip install 'gpu-dedup[cuda{driver // 1000}]'), {ON_CPU}"
            ) from None
        if status == NO_DEVICE:
            count = 0
        else:
            raise RunError(f"the GPU cannot be used ({first_line(error)}); see gpu-dedup doctor, {ON_CPU}") from None
    if not count:
        raise RunError(
            "the driver finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES"
            f"{_visible()} (in a container pass --gpus all), {ON_CPU}"
        )
    return count


def _visible() -> str:
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if value is None else f" (now {value!r})"


def _driver(cupy: Any) -> int:
    try:
        return int(cupy.cuda.runtime.driverGetVersion())
    except Exception:
        return 0


def facts(cupy: Any, index: int) -> GpuFacts:
    """What the driver tells of a device."""
    properties = cupy.cuda.runtime.getDeviceProperties(index)
    name = properties["name"]
    with cupy.cuda.Device(index):
        free, total = cupy.cuda.Device(index).mem_info
    return GpuFacts(
        index,
        name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name),
        (int(properties["major"]), int(properties["minor"])),
        int(free),
        int(total),
    )


def check(found: GpuFacts) -> None:
    """Raises RunError for a device that is too old or too full."""
    if found.capability < LEAST_CAPABILITY:
        raise RunError(
            f"{found} has compute capability {found.capability[0]}.{found.capability[1]}; "
            f"{LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]} is the least that works; use a newer GPU, {ON_CPU}"
        )
    if found.free < LEAST_FREE:
        raise RunError(
            f"{found} has {found.free >> 20} MiB of {found.total >> 20} MiB free; at least {LEAST_FREE >> 20} MiB are "
            f"needed; end what else runs on it (nvidia-smi shows it), {ON_CPU}"
        )


def compile_one(cupy: Any, index: int) -> None:
    """Compile and run one small kernel. Raises RunError where NVRTC is missing, or made for another CUDA."""
    import numpy as np

    from gpu_dedup.kernels import cuda

    try:
        with cupy.cuda.Device(index):
            sums, total = cuda.scan(cupy.asarray(np.arange(5, dtype=np.int64)))
            if total != 10 or sums.get().tolist() != [0, 1, 3, 6, 10]:
                raise RuntimeError(f"0 to 4 were summed to {total}")
    except Exception as error:
        built = int(cupy.cuda.runtime.runtimeGetVersion()) // 1000
        raise RunError(
            f"GPU {index} does not run a small kernel ({first_line(error)}); install NVRTC and the headers that belong "
            f"to this CuPy (pip install 'gpu-dedup[cuda{built}]'), see gpu-dedup doctor, {ON_CPU}"
        ) from None
