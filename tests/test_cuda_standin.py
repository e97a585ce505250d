"""The stand-in for CuPy: opaque arrays, lazy streams in adversarial orders, checked launches, and CuPy's own names."""

from __future__ import annotations

import contextlib
import gc
import json
import subprocess
import sys

import emulator
import numpy as np
import pytest

SOURCE = """
extern "C" __global__ void __launch_bounds__(128) add(const unsigned int *x, unsigned int by, long long n,
                                                      unsigned int *out) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] + by;
}
extern "C" __global__ void bytes(unsigned char *x) { x[threadIdx.x] = (unsigned char)threadIdx.x; }
extern "C" __global__ void fours(const uint4 *x, unsigned int *out) { out[threadIdx.x] = x[threadIdx.x].w; }
extern "C" __global__ void count(unsigned int *out) { out[0] = out[0] + 1u; }
"""


def kernel(cupy, name: str):
    return cupy.RawModule(code=SOURCE, options=("--std=c++17",), backend="nvrtc").get_function(name)


def add(cupy, x, by: int, stream=None):
    out = cupy.empty(x.shape, np.uint32)
    if x.size:
        blocks = (x.size + 127) // 128
        kernel(cupy, "add")((blocks,), (128,), (x, np.uint32(by), np.int64(x.size), out), stream=stream)
    return out


@pytest.mark.parametrize("n", [0, 1, 127, 128, 129, 1000])
def test_kernel_and_copies(device_cupy, n):
    x = np.arange(n, dtype=np.uint32)
    device = device_cupy.asarray(x)
    out = add(device_cupy, device, 5)
    assert (out.dtype, out.shape, out.size, out.nbytes) == (np.uint32, (n,), n, 4 * n)
    assert out.get().tolist() == (x + 5).tolist()
    assert device_cupy.asnumpy(device).tolist() == x.tolist()


def test_scan_sort_take(device_cupy, rng):
    cupy = device_cupy
    keys = rng.integers(0, 50, 1000, dtype=np.uint64)
    device = cupy.asarray(keys)
    order = cupy.argsort(device)
    assert order.dtype == np.int64
    assert sorted(order.get().tolist()) == list(range(1000))
    assert cupy.take(device, order).get().tolist() == sorted(keys.tolist())
    assert cupy.sort(device).get().tolist() == sorted(keys.tolist())
    sums = cupy.cumsum(device, dtype=np.int64)
    assert sums.dtype == np.int64
    assert sums.get().tolist() == np.cumsum(keys.astype(np.int64)).tolist()
    out = cupy.zeros(1001, np.int64)
    cupy.cumsum(device, dtype=np.int64, out=out[1:])
    assert out.get().tolist() == [0, *np.cumsum(keys.astype(np.int64)).tolist()]
    for empty in (cupy.argsort(device[:0]), cupy.sort(device[:0]), cupy.cumsum(device[:0], dtype=np.int64)):
        assert empty.get().size == 0


def test_views(device_cupy):
    x = device_cupy.asarray(np.arange(12, dtype=np.uint32))
    assert x[3:7].get().tolist() == [3, 4, 5, 6]
    assert x[3:7].data.ptr == x.data.ptr + 12
    assert x[5:2].size == 0
    assert x.view(np.uint64).get().tolist() == np.arange(12, dtype=np.uint32).view(np.uint64).tolist()
    assert x.reshape(3, 4).get().tolist() == np.arange(12).reshape(3, 4).tolist()
    assert x.reshape((2, -1)).shape == (2, 6)
    assert device_cupy.zeros((2, 3), np.int64).get().tolist() == [[0] * 3] * 2


def test_arrays_are_opaque(standin):
    import cupy

    x = cupy.asarray(np.arange(4, dtype=np.uint32))
    attempts = [
        lambda: np.asarray(x), lambda: x + 1, lambda: 1 + x, lambda: np.uint32(1) + x, lambda: x == x, lambda: list(x),
        lambda: int(x[:1]), lambda: bool(x[:1]), lambda: len(x), lambda: x[0], lambda: x[::2], lambda: np.sum(x),
        lambda: cupy.asarray([1, 2]), lambda: x.__setitem__(slice(0, 1), 3), lambda: cupy.sort(np.arange(3)),
        lambda: np.arange(3) < x,
    ]  # fmt: skip
    for attempt in attempts:
        with pytest.raises(TypeError):
            attempt()


@pytest.mark.parametrize(
    "path", ["where", "unique", "ndarray.sum", "cuda.Event", "cuda.runtime.malloc", "cuda.memory.alloc", "x.sum", "x.T",
             "cuda.Stream.null.record", "module.compile"],
)  # fmt: skip
def test_names_outside_the_list(standin, path):
    import cupy

    roots = {"x": cupy.zeros(3, np.int64), "module": cupy.RawModule(code=SOURCE)}

    def look() -> None:
        first, *rest = path.split(".")
        thing = roots[first] if first in roots else getattr(cupy, first)
        for part in rest:
            thing = getattr(thing, part)

    with pytest.raises(AttributeError) as caught:
        look()
    if path != "ndarray.sum":  # a class's own lookup fails in Python's words
        assert "not in the allow-list" in str(caught.value)


def test_empty_is_poisoned(standin):
    import cupy

    assert cupy.empty(3, np.uint32).get().tolist() == [0xCBCBCBCB] * 3


def test_arguments_are_checked_at_the_call(standin):
    import cupy

    x, n = cupy.zeros(4, np.uint32), np.int64(4)
    launch = kernel(cupy, "add")
    for args, words in [
        ((x, 1, n, x), "parameter by is of type u4, but CuPy passes a Python int as 64 bits"),
        ((x, np.int32(1), n, x), r"parameter by is of type u4, but numpy\.int32"),
        ((x, np.uint32(1), np.int32(4), x), r"parameter n is of type i8, but numpy\.int32"),
        ((x, np.uint32(1), True, x), "parameter n: CuPy passes a Python bool as 64 bits"),
        ((x.view(np.int32), np.uint32(1), n, x), "parameter x is of type .u4, but an array of int32"),
        ((x.view(np.uint8), np.uint32(1), n, x), "parameter x is of type .u4, but an array of uint8"),
        ((x, np.uint32(1), n), "takes 4 arguments, not 3"),
        ((x, x, n, x), "parameter by is of type u4, but an array is given"),
        ((x, np.uint32(1), n, np.zeros(4, np.uint32)), "parameter out is of type .u4, but ndarray is given"),
        ((1, np.uint32(1), n, x), "parameter x is of type .u4"),
    ]:
        with pytest.raises(TypeError, match=words):
            launch((1,), (4,), args)
    launch((1,), (4,), (x, np.uint32(1), 4, x))  # a Python int where 64 bits are wanted
    assert x.get().tolist() == [1] * 4
    with pytest.raises(emulator.EmulatorError, match="launch bounds allow 128"):
        launch((1,), (129,), (x, np.uint32(1), n, x))
    with pytest.raises(TypeError, match="grid must be a tuple"):
        launch(1, (4,), (x, np.uint32(1), n, x))
    fours = kernel(cupy, "fours")
    fours((1,), (1,), (x, x))  # whole groups of 16 bytes from a multiple of 16
    with pytest.raises(TypeError, match="no multiple of 16 bytes"):
        fours((1,), (1,), (x[1:], x))
    with pytest.raises(TypeError, match="must be a tuple of str"):
        cupy.RawModule(code=SOURCE, options=["--std=c++17"])
    with pytest.raises(TypeError, match="use_fast_math"):
        cupy.RawModule(code=SOURCE, options=("--use_fast_math",))


def test_out_of_bounds_shows_when_the_work_runs(standin):
    import cupy

    x = cupy.zeros(5, np.uint8)
    kernel(cupy, "bytes")((1,), (6,), (x,))
    with pytest.raises(emulator.EmulatorError, match="bytes after an array of 5 bytes were written"):
        x.get()
    assert cupy.zeros(2, np.int64).get().tolist() == [0, 0]  # work queued afterwards is not harmed


def test_take_out_of_range(standin):
    import cupy

    taken = cupy.take(cupy.zeros(3, np.int64), cupy.asarray(np.array([3])))
    with pytest.raises(emulator.EmulatorError, match="index 3"):
        taken.get()


def outcomes(standin, body, seeds: int = 24) -> set:
    """What a body gives under many orders: a value, or the kind of error."""
    seen = set()
    for seed in range(seeds):
        standin.reset(seed=seed)
        try:
            seen.add(body())
        except emulator.EmulatorError:
            seen.add("error")
            standin.reset(seed=seed)
    return seen


def test_work_of_one_stream_keeps_its_order(standin):
    import cupy

    def body() -> int:
        with cupy.cuda.Stream(non_blocking=True):
            x = cupy.zeros(1, np.uint32)
            for _ in range(5):
                x = add(cupy, x, 1)  # what it was made from is given back at once
            return int(x.get()[0])

    assert outcomes(standin, body) == {5}


def test_streams_do_not_wait_for_each_other(standin):
    import cupy

    def body() -> int:
        first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        with first:
            x = cupy.asarray(np.array([7], np.uint32))
        with second:
            return int(x.get()[0])

    def waited() -> int:
        first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        with first:
            x = cupy.asarray(np.array([7], np.uint32))
        first.synchronize()
        with second:
            return int(x.get()[0])

    assert outcomes(standin, body) == {7, 0xCBCBCBCB}
    assert outcomes(standin, waited) == {7}


def test_default_stream_waits_for_blocking_streams(standin):
    import cupy

    def body(non_blocking: bool) -> int:
        with cupy.cuda.Stream(non_blocking=non_blocking):
            x = cupy.asarray(np.array([7], np.uint32))
        return int(x.get()[0])

    assert outcomes(standin, lambda: body(False)) == {7}
    assert outcomes(standin, lambda: body(True)) == {7, 0xCBCBCBCB}


def test_memory_given_back_while_another_stream_uses_it(standin):
    import cupy

    def body() -> int:
        other = cupy.cuda.Stream(non_blocking=True)
        x = cupy.asarray(np.array([7], np.uint32))
        cupy.cuda.Stream.null.synchronize()
        with other:
            y = cupy.empty(1, np.uint32)
        kernel(cupy, "add")((1,), (1,), (x, np.uint32(1), np.int64(1), y), stream=other)
        del x  # the pool gives it to whoever asks next on the default stream
        with other:
            return int(y.get()[0])

    assert outcomes(standin, body) == {8, "error"}


def test_ties_of_argsort_come_in_any_order(standin):
    import cupy

    seen = outcomes(standin, lambda: tuple(cupy.argsort(cupy.zeros(3, np.uint64)).get().tolist()), 60)
    assert len(seen) == 6


def test_threads_and_their_order_vary_with_the_seed(standin):
    """A racing kernel gives more than one answer."""
    import cupy

    def body() -> int:
        x = cupy.zeros(2, np.uint32)
        text = 'extern "C" __global__ void last(unsigned int *x) { x[0] = threadIdx.x + 64u * blockIdx.x; }'
        cupy.RawModule(code=text).get_function("last")((3,), (64,), (x,))
        return int(x.get()[0])

    assert len(outcomes(standin, body, 12)) > 2


def test_broken_sort_and_scan(standin):
    import cupy

    x = cupy.asarray(np.arange(5, dtype=np.uint64))
    standin.break_sort = True
    assert cupy.sort(x).get().tolist() == [4, 3, 2, 1, 0]
    assert cupy.sort(x).get().tolist() == [0, 1, 2, 3, 4]
    standin.break_scan = True
    assert cupy.cumsum(x, dtype=np.int64).get().tolist() == [0, 1, 3, 6, 0]


def test_out_of_memory_and_the_pool(standin):
    import cupy

    standin.reset(memory=1 << 20)
    pool = cupy.get_default_memory_pool()
    device = cupy.cuda.Device(0)
    x = cupy.empty(600 << 10, np.uint8)
    assert pool.used_bytes() == 600 << 10
    assert device.mem_info == (424 << 10, 1 << 20)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="allocating 614,400 bytes") as caught:
        cupy.empty(600 << 10, np.uint8)
    assert isinstance(caught.value, MemoryError)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.argsort(x[: 8 * 20000].view(np.uint64))  # 20,000 keys need more than 424 KB beside themselves
    pool.free_all_blocks()
    del x
    assert (pool.used_bytes(), device.mem_info[0]) == (0, 424 << 10)  # the pool keeps it
    pool.free_all_blocks()
    assert device.mem_info == (1 << 20, 1 << 20)
    pool.set_limit(size=100 << 10)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="limit set to: 102,400 bytes"):
        cupy.empty(101 << 10, np.uint8)


def test_a_refused_allocation_gives_nothing_back(standin):
    import cupy

    standin.reset(memory=1 << 20)
    held = cupy.empty(600 << 10, np.uint8)
    for _ in range(3):
        with contextlib.suppress(MemoryError):
            cupy.empty(600 << 10, np.uint8)
        gc.collect()
        assert cupy.get_default_memory_pool().used_bytes() == held.nbytes


def test_two_devices(standin):
    import cupy

    standin.reset(devices=2)
    assert cupy.cuda.runtime.getDeviceCount() == 2
    with cupy.cuda.Device(1):
        x = cupy.zeros(4, np.uint32)
        assert add(cupy, x, 2).get().tolist() == [2] * 4
    with pytest.raises(emulator.EmulatorError, match="an array of device 1 is used while device 0 is current"):
        add(cupy, x, 2)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="invalid device ordinal"):
        cupy.cuda.Device(2)


def test_no_device_and_no_driver(standin):
    import cupy

    standin.reset(devices=0)
    assert not cupy.cuda.is_available()
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="cudaErrorNoDevice"):
        cupy.cuda.runtime.getDeviceCount()
    standin.reset()
    standin.driver_missing = True
    assert cupy.cuda.runtime.driverGetVersion() == 0
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="cudaErrorInsufficientDriver") as caught:
        cupy.empty(1, np.int64)
    assert caught.value.status == 35


def test_array_of_two_to_the_31(standin):
    import cupy

    standin.reset(memory=1 << 40)
    with pytest.raises(emulator.EmulatorError, match="2147483648 elements"):
        cupy.empty(1 << 31, np.uint8)


def test_in_a_process_of_its_own():
    from cuda_fixtures import need

    need(emulator.missing())
    code = "import cupy, numpy as np; print(cupy.zeros(2, np.int64).get().sum(), cupy.cuda.Device(1).mem_info[1])"
    environment = emulator.standin_environment(seed=3, memory=1 << 20, devices=2)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (f"0 {1 << 20}\n", 0), done.stderr


def test_every_name_is_cupys_own(standin):
    """tests/cuda/cupy_names.json was made by asking CuPy itself; see tests/cuda/cupy_names.py."""
    import cupy_names

    known = json.loads(cupy_names.FILE.read_text())
    assert {version.split(".")[0] for version in known} >= {"13", "14"}
    names = set(cupy_names.standin_names())
    assert len(names) > 60
    for version, there in known.items():
        assert names <= set(there), f"CuPy {version} lacks them, or run cupy_names.py again"
