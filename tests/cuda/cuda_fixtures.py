"""Fixtures of the CUDA tests; tests/conftest.py makes them known.

def test_x(standin):            the stand-in is what `import cupy` gives; standin.reset(seed=2, memory=1 << 20)
def test_x(device_cupy):        the same body on the stand-in and, where there is a GPU, on CuPy; gives the module
"""

from __future__ import annotations

import importlib
import os
import sys
import zlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import emulator
import pytest

REAL = ("cupy", "cupyx", "cupy_backends")


def need(reason: str | None) -> None:
    """Skip with the reason; in CI, where nothing may be missing, fail."""
    if reason is None:
        return
    if os.environ.get("GPU_DEDUP_CI") == "1":
        pytest.fail(f"GPU_DEDUP_CI=1, but {reason}")
    pytest.skip(reason)


@pytest.fixture
def emulated() -> ModuleType:
    """The emulator, where there is a compiler for it."""
    need(emulator.missing())
    return emulator


def _forget_product() -> None:
    """Drop the product's CUDA modules: they hold kernels compiled by the CuPy that was there."""
    for name in [n for n in sys.modules if n.startswith("gpu_dedup.") and "cuda" in n.rpartition(".")[2]]:
        module = sys.modules.pop(name)
        parent = sys.modules.get(name.rpartition(".")[0])
        if parent is not None and getattr(parent, name.rpartition(".")[2], None) is module:
            delattr(parent, name.rpartition(".")[2])


def _pop_cupy() -> dict[str, ModuleType]:
    return {n: sys.modules.pop(n) for n in list(sys.modules) if n.partition(".")[0] in REAL}


def _standin(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Orders of streams, threads and ties follow from the test's name; GPU_DEDUP_STANDIN=seed=7 gives others."""
    need(emulator.missing())
    folder = str(emulator.HERE / "standin")
    real = _pop_cupy()
    _forget_product()
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    machine = importlib.import_module("cupy._standin").machine
    machine.reset(seed=machine.seed + zlib.crc32(request.node.nodeid.partition("::")[2].encode()))
    try:
        yield machine
        machine.wait(list(machine.pending))  # what nobody waited for must not fault either
    finally:
        machine.reset()
        sys.path.remove(folder)
        _pop_cupy()
        sys.modules.update(real)
        _forget_product()


@pytest.fixture
def standin(request: pytest.FixtureRequest) -> Iterator[Any]:
    """`import cupy` gives the stand-in; the value is its `machine` (tests/cuda/standin/cupy/_standin.py)."""
    yield from _standin(request)


@pytest.fixture(params=["standin", "gpu"])
def device_cupy(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The module `cupy`: the stand-in, and CuPy itself where a GPU is; GPU_DEDUP_REQUIRE_CUDA=1: one must be."""
    if request.param == "standin":
        for _ in _standin(request):
            yield importlib.import_module("cupy")
        return
    from conftest import cuda_missing, require_cuda

    reason = cuda_missing()
    if reason is not None:
        if require_cuda():
            pytest.fail(f"GPU_DEDUP_REQUIRE_CUDA=1, but cuda cannot be tested: {reason}")
        pytest.skip(f"cuda: {reason}")
    _forget_product()
    yield importlib.import_module("cupy")
    _forget_product()
