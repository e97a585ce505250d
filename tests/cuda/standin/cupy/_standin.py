"""What stands behind the stand-in's names: devices, memory, streams and their work, arrays.

Nothing runs when it is called. Work is queued per stream and runs when something waits for it, in an order that CUDA
would allow and that `machine.seed` chooses: a missing wait shows as poison (0xCB), as an address outside every array,
or as a result that changes with the seed. Kernels run under the emulator, each in an order of threads that the seed
chooses.

`machine` is what a test turns:

    machine.reset(seed=3, memory=1 << 30, devices=1)     forget all work; free memory in bytes of each device
    machine.break_sort = machine.break_scan = True       the next sort or scan gives wrong data without an error
    machine.launches                                     names of the kernels run so far, in order
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

_HERE = str(Path(__file__).resolve().parents[2])
if _HERE not in sys.path:  # a process that was given the stand-in alone
    sys.path.append(_HERE)

import emulator  # noqa: E402
from emulator import EmulatorError  # noqa: E402

ROUND = 512  # CuPy's pool rounds up to this
MAX_ITEMS = (1 << 31) - 1


def not_allowed(where: str, name: str) -> AttributeError:
    return AttributeError(f"{where}.{name} is not in the allow-list of the stand-in for CuPy (tests/cuda/standin)")


class OutOfMemoryError(MemoryError):
    """As cupy.cuda.memory.OutOfMemoryError."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        text = f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes"
        super().__init__(text + (f", limit set to: {limit:,} bytes)." if limit else ")."))


class CUDARuntimeError(RuntimeError):
    """As cupy.cuda.runtime.CUDARuntimeError."""

    _names: ClassVar[dict[int, str]] = {
        100: "cudaErrorNoDevice: no CUDA-capable device is detected",
        101: "cudaErrorInvalidDevice: invalid device ordinal",
        35: "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
    }

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(self._names[status])


class _Op:
    __slots__ = ("after", "done", "run", "stream")

    def __init__(self, stream: Stream, run: Callable[[], None], after: list[_Op]) -> None:
        self.stream = stream
        self.run: Callable[[], None] | None = run
        self.after = after
        self.done = False


class _Device:
    def __init__(self, number: int, memory: int) -> None:
        self.number = number
        self.memory = memory
        self.used = 0
        self.kept: dict[int, int] = {}  # blocks the pool keeps, by size
        self.limit = 0

    def kept_bytes(self) -> int:
        return sum(size * n for size, n in self.kept.items())

    def reserve(self, size: int) -> None:
        """Count a block as used. A kept block is given out again only for its own size: pools do fragment."""
        if size == 0:
            return
        if self.kept.get(size, 0):
            self.kept[size] -= 1
        else:
            most = min(self.memory, self.limit or self.memory)
            if self.used + self.kept_bytes() + size > most:
                self.kept.clear()
            if self.used + size > most:
                raise OutOfMemoryError(size, self.used, self.limit)
        self.used += size

    def release(self, size: int) -> None:
        if size:
            self.used -= size
            self.kept[size] = self.kept.get(size, 0) + 1


class _Machine:
    """All devices, all pending work."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        settings = dict(part.split("=") for part in os.environ.get("GPU_DEDUP_STANDIN", "").split(",") if part)
        unknown = set(settings) - {"seed", "memory", "devices"}
        if unknown:
            raise ValueError(f"GPU_DEDUP_STANDIN: unknown setting {sorted(unknown)}")
        self.generation = 0
        self.reset(**{name: int(value) for name, value in settings.items()})

    def reset(self, seed: int = 0, memory: int = 4 << 30, devices: int = 1) -> None:
        with self.lock:
            self.generation += 1
            self.seed = seed
            self.random = random.Random(seed)
            self.devices = [_Device(i, memory) for i in range(devices)]
            self.pending: list[_Op] = []
            self.last: dict[Any, _Op] = {}
            self.break_sort = False
            self.break_scan = False
            self.driver_missing = False
            self.launches: list[str] = []
            self.local = threading.local()

    def free_memory(self, device: int = 0) -> int:
        """Bytes a new allocation may still take on a device, blocks kept by the pool included."""
        return self.devices[device].memory - self.devices[device].used

    @property
    def device(self) -> int:
        number: int = getattr(self.local, "device", 0)
        if self.driver_missing or not self.devices:
            raise CUDARuntimeError(35 if self.driver_missing else 100)
        return number

    @property
    def stream(self) -> Stream:
        return getattr(self.local, "streams", {}).get(self.device) or Stream.null

    def set_stream(self, stream: Stream | None) -> None:
        if not hasattr(self.local, "streams"):
            self.local.streams = {}
        self.local.streams[self.device] = stream

    def queue(self, stream: Stream, run: Callable[[], None]) -> _Op:
        """Add work behind what CUDA puts before it: the stream's own, and the legacy default stream's rule."""
        with self.lock:
            device = self.device
            after = [self.last.get((device, stream.key))]
            if stream.is_null:
                after += [op for (d, _), op in self.last.items() if d == device and not op.stream.non_blocking]
            elif not stream.non_blocking:
                after.append(self.last.get((device, Stream.null.key)))
            op = _Op(stream, run, [a for a in after if a is not None and not a.done])
            self.pending.append(op)
            self.last[(device, stream.key)] = op
            return op

    def wait(self, targets: list[_Op]) -> None:
        """Run pending work until `targets` are done; what else runs before them, and in which order, is chance."""
        with self.lock:
            needed: set[int] = set()
            stack = [op for op in targets if not op.done]
            while stack:
                op = stack.pop()
                if id(op) not in needed:
                    needed.add(id(op))
                    stack.extend(a for a in op.after if not a.done)
            mode = self.random.choice(("needed", "others first", "mixed", "in order"))
            try:
                while needed:
                    ready = [op for op in self.pending if all(a.done for a in op.after)]
                    mine = [op for op in ready if id(op) in needed]
                    others = [op for op in ready if id(op) not in needed]
                    if mode == "in order":
                        op = self.pending[0]
                    elif mode == "needed" or not others:
                        op = self.random.choice(mine)
                    elif mode == "others first" or not mine:
                        op = self.random.choice(others)
                    else:
                        op = self.random.choice(ready)
                    self.pending.remove(op)
                    needed.discard(id(op))
                    op.done = True
                    op.after = []
                    run, op.run = op.run, None
                    if run is not None:
                        run()
            except BaseException:
                # As on a GPU, nothing after a fault can be trusted.
                for op in self.pending:
                    op.done = True
                self.pending.clear()
                raise

    def wait_stream(self, stream: Stream) -> None:
        last = self.last.get((self.device, stream.key))
        if last is not None:
            self.wait([last])

    def wait_device(self) -> None:
        self.wait([op for (device, _), op in self.last.items() if device == self.device])

    def thread_order(self) -> str:
        return self.random.choice(("ascending", "descending", f"shuffle:{self.random.randrange(1 << 20)}"))


# -------------------------------------------------------------------------------------------------------------- streams


class Stream:
    """As cupy.cuda.Stream: a context manager, `use`, `synchronize`."""

    null: Stream
    _next = 1

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None
    ) -> None:
        if ptds:
            raise TypeError("per-thread default streams are not in the allow-list of the stand-in for CuPy")
        self.is_null = null
        self.non_blocking = non_blocking and not null
        self.key = 0 if null else Stream._next
        self._outer: list[Stream | None] = []
        if not null:
            Stream._next += 1
            machine.device  # noqa: B018 - raises where there is no device

    def __enter__(self) -> Stream:
        self._outer.append(machine.stream)
        machine.set_stream(self)
        return self

    def __exit__(self, *_: object) -> None:
        machine.set_stream(self._outer.pop())

    def use(self) -> Stream:
        machine.set_stream(self)
        return self

    def synchronize(self) -> None:
        machine.wait_stream(self)

    def __getattr__(self, name: str) -> Any:
        raise not_allowed("cupy.cuda.Stream", name)


machine = _Machine.__new__(_Machine)
Stream.null = Stream(null=True)
machine.__init__()  # type: ignore[misc]


# --------------------------------------------------------------------------------------------------------------- arrays


class _Block:
    """Device memory that arrays share. Given back in the order of the stream it was made on, as by CuPy's pool: work
    of another stream that still uses it finds it gone."""

    def __init__(self, size: int) -> None:
        self.device = machine.device
        self.rounded = -(-size // ROUND) * ROUND
        self.stream = machine.stream
        machine.devices[self.device].reserve(self.rounded)
        self.memory = emulator.Memory(size)
        self.generation = machine.generation  # last: a block that was refused has nothing to give back

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if machine.generation == self.generation:
                machine.devices[self.device].release(self.rounded)
                with Device(self.device):
                    machine.queue(self.stream, self.memory.free)


class _Pointer:
    """As cupy.cuda.MemoryPointer, its address alone."""

    __slots__ = ("ptr",)

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class ndarray:  # noqa: N801 - CuPy's name
    """A C-contiguous device array that says its shape and gives its bytes to `get`, nothing else."""

    __slots__ = ("_block", "_start", "dtype", "shape")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("make arrays with empty, zeros or asarray")

    @classmethod
    def _make(cls, block: _Block, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ndarray:
        self = object.__new__(cls)
        self._block, self._start, self.shape, self.dtype = block, start, shape, dtype
        return self

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def data(self) -> _Pointer:
        return _Pointer(self._block.memory.address + self._start)

    def _host(self) -> Callable[[], np.ndarray]:
        """What gives the array's bytes as NumPy's, once its work is done. Holds the memory, not the block: the block's
        end must not wait for queued work."""
        memory, start, shape, dtype, nbytes = self._block.memory, self._start, self.shape, self.dtype, self.nbytes

        def view() -> np.ndarray:
            if not (memory.base or (emulator.SANITIZE and memory.address)):
                raise EmulatorError("queued work uses an array whose memory was given back on another stream")
            return memory.view[start : start + nbytes].view(dtype).reshape(shape)

        return view

    def get(
        self, stream: Stream | None = None, order: str = "C", out: None = None, blocking: bool = True
    ) -> np.ndarray:
        if order != "C" or out is not None or not blocking:
            raise TypeError("the stand-in for CuPy knows get(stream=...) alone")
        _same_device("get", self)
        source = self._host()
        results: list[np.ndarray] = []
        machine.wait([machine.queue(stream or machine.stream, lambda: results.append(source().copy()))])
        return results[0]

    def __getitem__(self, key: Any) -> ndarray:
        if self.ndim != 1 or not isinstance(key, slice) or key.step not in (None, 1):
            raise TypeError("the stand-in for CuPy slices 1-D arrays as a[start:stop], nothing else")
        start, stop, _ = key.indices(self.size)
        stop = max(start, stop)
        return self._make(self._block, self._start + start * self.itemsize, (stop - start,), self.dtype)

    def view(self, dtype: Any) -> ndarray:
        new = np.dtype(dtype)
        if self.ndim == 0 or (self.shape[-1] * self.itemsize) % new.itemsize:
            raise ValueError(f"shape {self.shape} of {self.dtype} cannot be viewed as {new}")
        if (self._block.memory.address + self._start) % new.itemsize:
            raise EmulatorError(f"view of {new} at an address that is no multiple of {new.itemsize}")
        shape = (*self.shape[:-1], self.shape[-1] * self.itemsize // new.itemsize)
        return self._make(self._block, self._start, shape, new)

    def reshape(self, *shape: Any) -> ndarray:
        new = np.empty(self.shape, np.dtype("V0")).reshape(*shape).shape  # NumPy's rules, no memory
        return self._make(self._block, self._start, new, self.dtype)

    def __getattr__(self, name: str) -> Any:
        raise not_allowed("cupy.ndarray", name)

    def _opaque(self, *_: object) -> Any:
        raise TypeError("a device array is opaque: bring it to the host with get() or cupy.asnumpy")

    __array__ = __bool__ = __int__ = __float__ = __index__ = __iter__ = __len__ = __contains__ = __setitem__ = _opaque
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _opaque  # type: ignore[assignment]
    __add__ = __radd__ = __iadd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __and__ = __or__ = __xor__ = _opaque
    __truediv__ = __floordiv__ = __mod__ = __lshift__ = __rshift__ = __invert__ = __neg__ = __pow__ = _opaque
    __array_ufunc__ = None


def _shape(shape: Any) -> tuple[int, ...]:
    values = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    if any(not isinstance(v, (int, np.integer)) or v < 0 for v in values):
        raise ValueError(f"shape {shape!r} is not of integers from 0")
    size = 1
    for v in values:
        size *= int(v)
    if size > MAX_ITEMS:
        raise EmulatorError(f"a device array of {size} elements; cut batches below 2**31")
    return tuple(int(v) for v in values)


def _same_device(what: str, *arrays: ndarray) -> None:
    for a in arrays:
        if not isinstance(a, ndarray):
            raise TypeError(f"{what}: a cupy.ndarray is needed, not {type(a).__name__}")
        if a._block.device != machine.device:
            raise EmulatorError(
                f"{what}: an array of device {a._block.device} is used while device {machine.device} is current"
            )


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    if order != "C":
        raise TypeError("the stand-in for CuPy knows order='C' alone")
    with machine.lock:
        sizes, kind = _shape(shape), np.dtype(dtype)
        return ndarray._make(_Block(int(np.prod(sizes, dtype=np.int64)) * kind.itemsize), 0, sizes, kind)


def _fill(target: ndarray, values: np.ndarray | int) -> ndarray:
    view = target._host()

    def run() -> None:
        view()[...] = values

    machine.queue(machine.stream, run)
    return target


def zeros(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return _fill(empty(shape, dtype, order), 0)


def asarray(a: Any, dtype: Any = None, order: str | None = None, *, blocking: bool = False) -> ndarray:
    """Host to device. The host's bytes are read at the call, as CuPy does by way of pinned memory."""
    if order not in (None, "C"):
        raise TypeError("the stand-in for CuPy knows order='C' alone")
    if isinstance(a, ndarray):
        if dtype is not None and np.dtype(dtype) != a.dtype:
            raise TypeError("the stand-in for CuPy does not convert device arrays")
        return a
    if not isinstance(a, np.ndarray):
        raise TypeError(f"the stand-in for CuPy takes NumPy arrays to the device, not {type(a).__name__}")
    host = np.array(a, dtype=dtype, order="C", copy=True)
    emulator.code_of(host.dtype)
    return _fill(empty(host.shape, host.dtype), host)


def asnumpy(
    a: Any, stream: Stream | None = None, order: str = "C", out: None = None, *, blocking: bool = True
) -> np.ndarray:
    if not isinstance(a, ndarray):
        raise TypeError(f"asnumpy: a cupy.ndarray is needed, not {type(a).__name__}")
    return a.get(stream, order, out, blocking)


def _line(what: str, a: ndarray) -> None:
    _same_device(what, a)
    if a.ndim != 1:
        raise TypeError(f"the stand-in for CuPy knows {what} of 1-D arrays alone")


@contextlib.contextmanager
def _workspace(size: int) -> Iterator[None]:
    """Memory that a call needs while it runs; it must be free, and the pool keeps it."""
    device = machine.devices[machine.device]
    rounded = -(-size // ROUND) * ROUND
    device.reserve(rounded)
    try:
        yield
    finally:
        device.release(rounded)


def cumsum(a: ndarray, axis: int | None = None, dtype: Any = None, out: ndarray | None = None) -> ndarray:
    _line("cumsum", a)
    if axis not in (None, 0):
        raise TypeError("the stand-in for CuPy knows cumsum of 1-D arrays alone")
    if dtype is None and out is None:
        raise TypeError("cumsum: give dtype or out; the default differs with the platform")
    with machine.lock:
        if out is None:
            out = empty(a.shape, dtype)
        else:
            _line("cumsum", out)
            if out.shape != a.shape or (dtype is not None and np.dtype(dtype) != out.dtype):
                raise ValueError(f"cumsum: out is {out.dtype}{out.shape}")
        with _workspace(a.size // 64 * out.itemsize + ROUND):
            pass
        source, target, kind, broken = a._host(), out._host(), out.dtype, machine.break_scan
        machine.break_scan = False

        def run() -> None:
            with np.errstate(over="ignore"):
                target()[...] = np.cumsum(source(), dtype=kind)
            if broken and target().size:
                target()[-1] = 0

        machine.queue(machine.stream, run)
        return out


def sort(a: ndarray, axis: int = -1, kind: None = None) -> ndarray:
    _line("sort", a)
    if axis not in (-1, 0) or kind is not None:
        raise TypeError("the stand-in for CuPy knows sort(a) alone")
    with machine.lock:
        out = empty(a.shape, a.dtype)
        with _workspace(2 * a.nbytes + ROUND):
            pass
        source, target, broken = a._host(), out._host(), machine.break_sort
        machine.break_sort = False

        def run() -> None:
            target()[...] = source()[::-1] if broken else np.sort(source())

        machine.queue(machine.stream, run)
        return out


def argsort(a: ndarray, axis: int = -1, kind: None = None) -> ndarray:
    """int64 positions. Equal keys in an order of chance: CuPy says it sorts stably, but no answer may hang on it."""
    _line("argsort", a)
    if axis not in (-1, 0) or kind is not None:
        raise TypeError("the stand-in for CuPy knows argsort(a) alone")
    with machine.lock:
        out = empty(a.shape, np.int64)
        with _workspace(2 * a.nbytes + 2 * out.nbytes + ROUND):
            pass
        source, target, broken, seed = a._host(), out._host(), machine.break_sort, machine.random.randrange(1 << 32)
        machine.break_sort = False

        def run() -> None:
            keys = source()
            ties = np.random.default_rng(seed).permutation(keys.size)
            order = np.lexsort((ties, keys))
            target()[...] = order[::-1] if broken else order

        machine.queue(machine.stream, run)
        return out


def take(a: ndarray, indices: ndarray, axis: int | None = None, out: ndarray | None = None) -> ndarray:
    _line("take", a)
    _same_device("take", indices)
    if axis not in (None, 0) or indices.dtype.kind not in "iu":
        raise TypeError("the stand-in for CuPy takes elements of a 1-D array by integers")
    with machine.lock:
        if out is None:
            out = empty(indices.shape, a.dtype)
        else:
            _same_device("take", out)
            if out.shape != indices.shape or out.dtype != a.dtype:
                raise ValueError(f"take: out is {out.dtype}{out.shape}")
        source, places, target = a._host(), indices._host(), out._host()

        def run() -> None:
            values, at = source(), places()
            # CuPy wraps such indices round without a word.
            if at.size and (int(at.min()) < 0 or int(at.max()) >= values.size):
                raise EmulatorError(f"take: index {int(at.min())} or {int(at.max())} of an array of {values.size}")
            target()[...] = values[at]

        machine.queue(machine.stream, run)
        return out


# -------------------------------------------------------------------------------------------------------------- kernels

OPTIONS = ("--std=c++17", "-std=c++17", "-lineinfo", "--generate-line-info")


class RawModule:
    """As cupy.RawModule for source text; the emulator compiles it, at the first get_function as CuPy does."""

    def __init__(
        self, *, code: str | None = None, path: None = None, options: tuple[str, ...] = (), backend: str = "nvrtc",
        translate_cucomplex: bool = False, enable_cooperative_groups: bool = False, name_expressions: None = None,
        jitify: bool = False,
    ) -> None:  # fmt: skip
        if not isinstance(code, str) or path is not None:
            raise TypeError("the stand-in for CuPy takes code=str alone")
        if backend != "nvrtc" or translate_cucomplex or enable_cooperative_groups or name_expressions or jitify:
            raise TypeError("the stand-in for CuPy knows code, options and backend='nvrtc' alone")
        if not isinstance(options, tuple):
            raise TypeError("options must be a tuple of str")
        self._code = code
        self._defines = [o for o in options if o.startswith("-D")]
        self._folders = [o[2:] for o in options if o.startswith("-I")]
        for option in options:
            if not option.startswith(("-D", "-I")) and option not in OPTIONS:
                raise TypeError(f"option {option!r} is not in the allow-list of the stand-in for CuPy")

    def get_function(self, name: str) -> RawKernel:
        machine.device  # noqa: B018 - raises where there is no device
        title = "kernel.cu"
        module = emulator.load_text(self._code, title, self._folders, self._defines)
        if name not in module.kernels:
            there = ", ".join(module.kernels)
            raise EmulatorError(f"CUDA_ERROR_NOT_FOUND: named symbol not found: {name}; there are {there}")
        return RawKernel(module, name)

    def __getattr__(self, name: str) -> Any:
        raise not_allowed("cupy.RawModule", name)


class RawKernel:
    """What RawModule.get_function returns."""

    def __init__(self, module: emulator.Module, name: str) -> None:
        self._module = module
        self._name = name

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], *, shared_mem: int = 0,
        stream: Stream | None = None,
    ) -> None:  # fmt: skip
        module, name = self._module, self._name
        kernel = module.kernels[name]
        if not isinstance(args, (tuple, list)):
            raise TypeError(f"{name}: args must be a tuple")
        module.check_launch(name, grid, block, shared_mem)
        if len(args) != len(kernel.codes):
            raise TypeError(f"{name} takes {len(kernel.codes)} arguments, not {len(args)}")
        values: list[bytes] = []
        memories: list[emulator.Memory] = []
        for value, code, parameter in zip(args, kernel.codes, kernel.parameters, strict=True):
            if isinstance(value, ndarray):
                _same_device(name, value)
                if not code.startswith("*"):
                    raise TypeError(f"{name}: parameter {parameter} is of type {code}, but an array is given")
                problem = emulator.fits(code, value.dtype, value.data.ptr, value.nbytes)
                if problem:
                    raise TypeError(f"{name}: parameter {parameter} is of type {code}, but {problem}")
                values.append(value.data.ptr.to_bytes(8, "little"))
                memories.append(value._block.memory)
            else:
                values.append(emulator.scalar_bytes(name, parameter, code, value))
        with machine.lock:
            order = machine.thread_order()

            def run() -> None:
                for memory in memories:
                    if not (memory.base or (emulator.SANITIZE and memory.address)):
                        raise EmulatorError(f"{name} uses an array whose memory was given back on another stream")
                machine.launches.append(name)
                module.launch(name, grid, block, values, shared_mem, order)
                for memory in memories:
                    memory.check()

            machine.queue(stream or machine.stream, run)

    def __getattr__(self, name: str) -> Any:
        raise not_allowed("cupy.RawKernel", name)


# -------------------------------------------------------------------------------------------------------------- devices


class Device:
    """As cupy.cuda.Device."""

    def __init__(self, device: int | None = None) -> None:
        current = machine.device
        self.id = current if device is None else int(device)
        if not 0 <= self.id < len(machine.devices):
            raise CUDARuntimeError(101)
        self._outer: list[int] = []

    def use(self) -> None:
        machine.local.device = self.id

    def __enter__(self) -> Device:
        self._outer.append(machine.device)
        self.use()
        return self

    def __exit__(self, *_: object) -> None:
        machine.local.device = self._outer.pop()

    def synchronize(self) -> None:
        with self:
            machine.wait_device()

    @property
    def compute_capability(self) -> str:
        return "90"

    @property
    def mem_info(self) -> tuple[int, int]:
        device = machine.devices[self.id]
        return device.memory - device.used - device.kept_bytes(), device.memory

    @property
    def attributes(self) -> dict[str, int]:
        return {
            "MaxThreadsPerBlock": emulator.MAX_THREADS,
            "MaxSharedMemoryPerBlock": emulator.MAX_SHARED,
            "MaxSharedMemoryPerBlockOptin": 227 << 10,
            "MaxSharedMemoryPerMultiprocessor": 228 << 10,
            "MaxThreadsPerMultiProcessor": 2048,
            "MaxGridDimX": emulator.MAX_GRID[0],
            "MaxGridDimY": emulator.MAX_GRID[1],
            "MaxGridDimZ": emulator.MAX_GRID[2],
            "MultiProcessorCount": 4,  # few, so that small inputs take several rounds
            "WarpSize": 32,
            "ClockRate": 1_980_000,
            "ComputeCapabilityMajor": 9,
            "ComputeCapabilityMinor": 0,
        }

    def __getattr__(self, name: str) -> Any:
        raise not_allowed("cupy.cuda.Device", name)


class MemoryPool:
    """The default pool of the current device."""

    def free_all_blocks(self, stream: Stream | None = None) -> None:
        machine.devices[machine.device].kept.clear()

    def used_bytes(self) -> int:
        return machine.devices[machine.device].used

    def total_bytes(self) -> int:
        device = machine.devices[machine.device]
        return device.used + device.kept_bytes()

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        device = machine.devices[machine.device]
        if (size is None) == (fraction is None):
            raise ValueError("give size or fraction")
        device.limit = int(size) if size is not None else int(fraction * device.memory)  # type: ignore[operator]

    def __getattr__(self, name: str) -> Any:
        raise not_allowed("cupy.cuda.MemoryPool", name)


_pool = MemoryPool()


def get_default_memory_pool() -> MemoryPool:
    return _pool


def getDeviceCount() -> int:  # noqa: N802 - CuPy's name
    machine.device  # noqa: B018 - raises where there is no device
    return len(machine.devices)


def getDeviceProperties(device: int) -> dict[str, Any]:  # noqa: N802 - CuPy's name
    if not 0 <= device < getDeviceCount():
        raise CUDARuntimeError(101)
    return {
        "name": b"Stand-in for a GPU",
        "totalGlobalMem": machine.devices[device].memory,
        "major": 9,
        "minor": 0,
        "multiProcessorCount": 4,
        "sharedMemPerBlock": emulator.MAX_SHARED,
        "maxThreadsPerBlock": emulator.MAX_THREADS,
        "warpSize": 32,
    }


def is_available() -> bool:
    try:
        return getDeviceCount() > 0
    except CUDARuntimeError:
        return False
