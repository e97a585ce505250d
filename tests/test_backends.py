"""Which backends the other tests ran on."""

from __future__ import annotations

import pytest
from conftest import cuda_missing, require_cuda

from gpu_dedup.backend import Backend


def test_cuda_takes_part() -> None:
    """Skips with the reason, so that a run says what it did not test; with GPU_DEDUP_REQUIRE_CUDA=1 it fails."""
    reason = cuda_missing()
    if reason is not None and require_cuda():
        pytest.fail(f"GPU_DEDUP_REQUIRE_CUDA=1, but no test can run on cuda: {reason}")
    if reason is not None:
        pytest.skip(f"no test ran on cuda: {reason}")


def test_backend_is_what_it_says(backend: Backend, backend_name: str) -> None:
    assert backend.name == backend_name
