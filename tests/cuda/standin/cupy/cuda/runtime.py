"""As cupy.cuda.runtime, the allow-listed names."""

from typing import Any

from cupy._standin import CUDARuntimeError, getDeviceCount, getDeviceProperties, machine, not_allowed

__all__ = ["CUDARuntimeError", "driverGetVersion", "getDeviceCount", "getDeviceProperties", "runtimeGetVersion"]


def runtimeGetVersion() -> int:  # noqa: N802 - CuPy's name
    return 12090


def driverGetVersion() -> int:  # noqa: N802 - CuPy's name
    return 0 if machine.driver_missing else 12090


def __getattr__(name: str) -> Any:
    raise not_allowed("cupy.cuda.runtime", name)
