"""What every test may lean on: the machine printed first, a generator seeded by the test's name, one body per
backend."""

from __future__ import annotations

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
from hypothesis import HealthCheck, settings

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(1, str(REPO / "tests" / "cuda"))

from cuda_fixtures import device_cupy, emulated, standin  # noqa: E402, F401 - known to all tests from here

BACKENDS = ("numpy", "numba", "cuda")

# Same examples on every machine and run; a shared CI core is no place for deadlines.
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


@pytest.fixture(params=BACKENDS)
def backend_name(request: pytest.FixtureRequest) -> str:
    """Each backend's name. cuda skips with its reason, and fails instead where GPU_DEDUP_REQUIRE_CUDA=1."""
    name: str = request.param
    if name == "cuda":
        reason = cuda_missing()
        if reason is not None:
            if require_cuda():
                pytest.fail(f"GPU_DEDUP_REQUIRE_CUDA=1, but cuda cannot be tested: {reason}")
            pytest.skip(f"cuda: {reason}")
    return name


@pytest.fixture
def backend(backend_name: str):
    """The backend itself: one test body runs on all of them."""
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
