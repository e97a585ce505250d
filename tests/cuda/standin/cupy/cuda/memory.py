"""As cupy.cuda.memory, the allow-listed name."""

from typing import Any

from cupy._standin import OutOfMemoryError, not_allowed

__all__ = ["OutOfMemoryError"]


def __getattr__(name: str) -> Any:
    raise not_allowed("cupy.cuda.memory", name)
