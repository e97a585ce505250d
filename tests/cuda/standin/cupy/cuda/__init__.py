"""As cupy.cuda, the allow-listed names."""

from typing import Any

from cupy._standin import Device, Stream, is_available, not_allowed
from cupy.cuda import memory, runtime

__all__ = ["Device", "Stream", "is_available", "memory", "runtime"]


def __getattr__(name: str) -> Any:
    raise not_allowed("cupy.cuda", name)
