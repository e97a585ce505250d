"""doctor answers whatever is broken."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpu_dedup import __version__, doctor


def test_doctor_names_versions_backends_caches_and_codecs() -> None:
    text = doctor.doctor()
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert __version__ in lines["gpu-dedup"]
    assert sys.version.split()[0] in lines["python"]
    assert "available: the definition" in lines["numpy"]
    assert "zstd" in lines["codecs"]
    assert "available" in lines["cuda"]
    assert "writable" in next(line for name, line in lines.items() if name == "kernel")
    assert f"{len(os.sched_getaffinity(0))} usable" in lines["cores"]
    assert "failed" not in lines


def test_numba_is_available_here() -> None:
    assert doctor._backend_problem("numba") is None
    assert doctor._backend_problem("nothing") == "RunError: backend 'nothing' is unknown; choose numpy or numba"


def test_a_broken_part_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> object:
        raise RuntimeError("driver says no")

    monkeypatch.setattr(doctor, "PARTS", (("backends", broken), *doctor.PARTS[-1:]))
    text = doctor.doctor()
    assert "RuntimeError: driver says no" in text
    assert "codecs" in text


def test_a_folder_that_cannot_hold_kernels_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gpu_dedup.kernels import jit

    monkeypatch.setattr(jit, "CACHE_DIR", None)
    assert "NUMBA_CACHE_DIR" in doctor.doctor()
    monkeypatch.setattr(jit, "CACHE_DIR", str(tmp_path))
    assert f"{tmp_path} (writable; empty: the next run compiles first" in doctor.doctor()
    (tmp_path / "kernel.nbc").write_bytes(b"x" * 5000)
    assert f"{tmp_path} (writable; 1 files, 5 kB)" in doctor.doctor()


def cuda_lines() -> dict[str, str]:
    return {name or "compiled": text for name, text in doctor._cuda()}


def test_a_gpu_is_described(standin) -> None:
    standin.reset(memory=8 << 30)
    found = cuda_lines()
    assert found["CuPy"] == "version 13.6.0, for CUDA 12.9"
    assert found["driver"] == "for CUDA 12.9"
    assert found["GPU 0"].startswith("Stand-in for a GPU, compute capability 9.0, 8.59 GB of 8.59 GB free")
    assert found["compiled"].startswith("one kernel compiled and run in ")
    assert "problem" not in found
    assert doctor._gpu_problem() is None


def test_what_stands_in_the_way_of_a_gpu_comes_with_its_remedy(standin, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_dedup.backend import cuda_device

    standin.driver_missing = True
    assert cuda_lines()["problem"].startswith("no NVIDIA driver on this machine; install one")
    assert doctor._gpu_problem() == cuda_lines()["problem"]
    assert f"not available: {doctor._gpu_problem()}" in doctor.doctor()
    standin.reset(memory=64 << 20)
    found = cuda_lines()
    assert found["GPU 0"].endswith("67.1 MB of 67.1 MB free")
    assert "at least 256 MiB are needed; end what else runs on it" in found["problem"]
    assert "compiled" not in found
    standin.reset()
    standin.break_scan = True
    assert "install NVRTC and the headers" in cuda_lines()["problem"]
    monkeypatch.setattr(cuda_device, "_usable", lambda folder: False)
    found = cuda_lines()
    assert list(found) == ["problem"]
    assert "set CUPY_CACHE_DIR to one that can" in found["problem"]


def test_every_gpu_is_looked_at(standin) -> None:
    standin.reset(devices=3)
    assert [name for name, _ in doctor._cuda() if name.startswith("GPU")] == ["GPU 0", "GPU 1", "GPU 2"]


def test_a_backend_that_fails_in_any_way_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_dedup.backend import cuda

    def fails(index: int) -> object:
        raise OSError("libcuda.so.1: cannot open")

    monkeypatch.setattr(cuda, "cuda_backend", fails)
    assert doctor._gpu_problem() == "OSError: libcuda.so.1: cannot open"
