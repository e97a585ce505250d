"""What every test may lean on: the machine printed first, a generator seeded by the test's name, one body per
backend."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import random
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # benchmarks/gpu_check.py runs the CUDA tests, which do without it, on machines that lack it
    settings = None

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(1, str(REPO / "tests" / "cuda"))

from cuda_fixtures import device_cupy, emulated, standin  # noqa: E402, F401 - known to all tests from here

# Same examples on every machine and run; a shared CI core is no place for deadlines.
if settings is not None:
    settings.register_profile(
        "fixed",
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    settings.load_profile("fixed")


def require_cuda() -> bool:
    return os.environ.get("GPU_DEDUP_REQUIRE_CUDA") == "1"


@functools.cache
def cuda_missing() -> str | None:
    """Why there is no CUDA backend to test here; None if there is one."""
    if not any((REPO / "kernels").glob("*_cuda.py")):
        return "this version has no CUDA kernels"
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # CuPy raises its own kinds for a missing driver, library or device
        return f"no usable GPU: {error}"
    return None if count else "no GPU on this machine"


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def pytest_report_header(config: pytest.Config) -> list[str]:
    versions = []
    for name in ("numpy", "numba", "llvmlite", "pyarrow", "xxhash", "click", "tqdm", "hypothesis", "unicodedata2"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{name} missing")
    reason = cuda_missing()
    return [
        f"machine: {_cpu_model()}, {len(os.sched_getaffinity(0))} usable cores, {platform.platform()}",
        f"python {sys.version.split()[0]}; " + ", ".join(versions),
        "backends: numpy, numba, " + ("cuda" if reason is None else f"cuda not tested ({reason})"),
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test body for every backend. Where cuda cannot run it takes no part, and one test says so for all of them
    (tests/test_backends.py): it skips with the reason, or fails where GPU_DEDUP_REQUIRE_CUDA=1."""
    chosen = any("backend_name" in str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize"))
    if "backend_name" in metafunc.fixturenames and not chosen:
        names = ["numpy", "numba", *(["cuda"] if cuda_missing() is None else [])]
        metafunc.parametrize("backend_name", names, indirect=True)


@pytest.fixture
def backend_name(request: pytest.FixtureRequest) -> str:
    """Name of the backend that this test is for."""
    name: str = request.param
    return name


@pytest.fixture
def backend(backend_name: str):
    """The backend itself: one test body runs on all of them."""
    if backend_name == "cuda":
        from gpu_dedup.backend.cuda import cuda_backend

        return cuda_backend(0)
    from gpu_dedup.backend import host_backend

    return host_backend(backend_name)


def _seed(request: pytest.FixtureRequest) -> int:
    return zlib.crc32(request.node.nodeid.partition("::")[2].encode())


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """NumPy generator seeded by the test's name: the same numbers whenever and wherever the test runs."""
    return np.random.default_rng(_seed(request))


@pytest.fixture
def pyrng(request: pytest.FixtureRequest) -> random.Random:
    """The same for the standard library's generator."""
    return random.Random(_seed(request))
