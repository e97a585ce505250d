"""The emulator and the stand-in for CuPy are themselves tested: a fault they cannot see is one no test sees."""

from __future__ import annotations

import numpy as np
import pytest


def build(emulated, body: str, signature: str = "unsigned int *x, int n", head: str = ""):
    text = f'{head}\nextern "C" __global__ void k({signature}) {{\n{body}\n}}\n'
    return emulated.load_text(text, "k.cu")


def run(emulated, body: str, x=None, n=64, *, grid=(1,), block=(64,), shared=0, order=None, head=""):
    x = np.zeros(64, np.uint32) if x is None else x
    build(emulated, body, head=head).run("k", grid, block, (x, np.int32(n)), shared, order)
    return x


SUM = """
extern "C" __global__ void __launch_bounds__(256) total(const unsigned int *__restrict__ x, long long n,
                                                       unsigned long long *out) {
    __shared__ unsigned long long part[256];
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0u;
    __syncthreads();
    for (unsigned int d = blockDim.x / 2; d > 0; d /= 2) {
        if (threadIdx.x < d) part[threadIdx.x] += part[threadIdx.x + d];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(out, part[0]);
}
"""


@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 5000])
def test_reduction_with_barriers(emulated, n, rng):
    x = rng.integers(0, 1 << 32, n, dtype=np.uint32)
    out = np.zeros(1, np.uint64)
    module = emulated.load_text(SUM, "sum.cu")
    module.run("total", (max(1, -(-n // 256)),), (256,), (x, np.int64(n), out))
    assert int(out[0]) == sum(x.tolist())


def test_blocks_of_1024_threads(emulated):
    x = run(
        emulated,
        "__shared__ unsigned int s[1024];\n"
        "const unsigned int t = threadIdx.x + 32 * threadIdx.y;\n"
        "s[t] = t;\n__syncthreads();\nx[t] = s[1023 - t];",
        np.zeros(1024, np.uint32),
        block=(32, 32),
    )
    assert x.tolist() == list(range(1023, -1, -1))


def test_signature(emulated):
    module = build(
        emulated,
        "",
        "const unsigned char *a, const unsigned long long *__restrict__ b, uint4 *c, unsigned int d, long long e,"
        " const void *f, unsigned short g, const int h",
    )
    kernel = module.kernels["k"]
    assert kernel.parameters == ("a", "b", "c", "d", "e", "f", "g", "h")
    assert kernel.codes == ("*u1", "*u8", "*u4x4", "u4", "i8", "*v", "u2", "i4")


def test_launch_bounds_and_static_shared_are_read(emulated):
    text = """
    #define BLOCK 128
    __device__ __forceinline__ unsigned int twice(unsigned int x) { return 2u * x; }
    extern "C" __global__ void __launch_bounds__(BLOCK * 2, 4) a(unsigned int *x) {
        __shared__ uint4 s[BLOCK]; s[threadIdx.x & 127] = make_uint4(1, 2, 3, 4); x[0] = twice(s[0].y * 0);
    }
    extern "C" __global__ void b(unsigned int *x) { 
        __shared__ unsigned char s[3]; s[threadIdx.x % 3] = 1; x[0] = s[x[0]];
    }
    """
    module = emulated.load_text(text, "two.cu")
    a, b = module.kernels["a"], module.kernels["b"]
    assert (a.max_threads, a.static_shared) == (256, 2048)
    assert (b.max_threads, b.static_shared) == (1024, 3)
    with pytest.raises(emulated.EmulatorError, match="launch bounds allow 256"):
        module.run("a", (1,), (257,), (np.zeros(1, np.uint32),))


def test_dynamic_shared_memory(emulated):
    body = (
        "extern __shared__ __align__(16) unsigned int s[];\n"
        "if (threadIdx.x == 0) x[0] = s[n];\n__syncthreads();\ns[threadIdx.x] = threadIdx.x;\n__syncthreads();\n"
        "x[1 + threadIdx.x] = s[n - threadIdx.x];"
    )
    x = run(emulated, body, np.zeros(65, np.uint32), 63, shared=256)
    assert x[0] == 0xCBCBCBCB  # never zero at the start
    assert x[1:].tolist() == list(range(63, -1, -1))


def test_static_shared_memory_is_poisoned_in_every_block(emulated):
    body = "__shared__ unsigned int s[4];\nif (threadIdx.x == 0) x[blockIdx.x] = s[n];\n__syncthreads();\ns[n] = 7u;"
    assert run(emulated, body, n=2, grid=(64,)).tolist() == [0xCBCBCBCB] * 64


def test_arithmetic_words(emulated):
    body = """
    const unsigned int a = 0xdeadbeefu, b = 0x12345678u;
    unsigned int i = 0;
    x[i++] = a * b;
    x[i++] = a + 0x80000000u;
    x[i++] = __umulhi(a, b);
    x[i++] = (unsigned int)(__umul64hi(0xdeadbeefdeadbeefull, 0x1234567812345678ull) >> 16);
    x[i++] = __clz((int)b); x[i++] = __clzll(1ll); x[i++] = __ffs(8); x[i++] = __ffs(0); x[i++] = __popc(a);
    x[i++] = __popcll(0xffff0000ffffull); x[i++] = __funnelshift_l(a, b, 8); x[i++] = __funnelshift_r(a, b, 8);
    x[i++] = __byte_perm(a, b, 0x7016u); x[i++] = __brev(1u);
    x[i++] = min(-1, 2) + 10; x[i++] = max(3u, 4u); x[i++] = (unsigned int)min(5ull, 6ull); x[i++] = min(7, 9u);
    x[i++] = __ldg(x + 15);
    """
    a, b = 0xDEADBEEF, 0x12345678
    both = b << 32 | a
    data = both.to_bytes(8, "little")
    expected = [
        a * b & 0xFFFFFFFF, a + 0x80000000 & 0xFFFFFFFF, a * b >> 32,
        (0xDEADBEEFDEADBEEF * 0x1234567812345678 >> 64) >> 16 & 0xFFFFFFFF,
        3, 63, 4, 0, bin(a).count("1"), 32, (both << 8) >> 32 & 0xFFFFFFFF, both >> 8 & 0xFFFFFFFF,
        data[6] | data[1] << 8 | data[0] << 16 | data[7] << 24, 1 << 31, 9, 4, 5, 7, 4,
    ]  # fmt: skip
    x = run(emulated, body, block=(1,))
    assert x[: len(expected)].tolist() == expected


def test_warp_instructions(emulated):
    body = """
    const unsigned int F = 0xffffffffu, lane = threadIdx.x & 31u;
    unsigned int *out = x + 16u * threadIdx.x;
    out[0] = __shfl_sync(F, lane * 3u, 5);
    out[1] = __shfl_up_sync(F, lane, 1);
    out[2] = __shfl_down_sync(F, lane, 4, 16);
    out[3] = __shfl_xor_sync(F, lane, 16);
    out[4] = __ballot_sync(F, lane % 3u == 0u);
    out[5] = __any_sync(F, threadIdx.x == 40u);
    out[6] = __all_sync(F, threadIdx.x < 32u);
    out[7] = __reduce_min_sync(F, lane + 9u);
    out[8] = __reduce_add_sync(F, lane);
    out[9] = __syncthreads_count(lane == 1u);
    out[10] = __syncthreads_or(threadIdx.x == 63u);
    out[11] = (unsigned int)(__shfl_sync(F, (unsigned long long)lane << 40, 31) >> 40);
    out[12] = (unsigned int)__reduce_min_sync(F, (int)lane - 5);
    out[13] = __shfl_sync(F, lane, (int)lane + 1, 8);
    __syncwarp();
    """
    x = run(emulated, body, np.zeros(64 * 16, np.uint32)).reshape(64, 16)
    for t in range(64):
        lane = t % 32
        down = lane + 4 if lane % 16 + 4 < 16 else lane
        ballot = sum(1 << i for i in range(0, 32, 3))
        expected = [15, max(lane - 1, 0), down, lane ^ 16, ballot, t >= 32, t < 32, 9, 496, 2, 1, 31, 2**32 - 5,
                    lane // 8 * 8 + (lane + 1) % 8]  # fmt: skip
        assert x[t, :14].tolist() == [int(v) for v in expected], t


def test_atomics(emulated):
    body = """
    unsigned long long *wide = (unsigned long long *)(x + 8);
    int *s = (int *)(x + 16);
    atomicAdd(x, threadIdx.x); atomicMin(x + 1, threadIdx.x + 5u); atomicMax(x + 2, threadIdx.x);
    atomicOr(x + 3, 1u << (threadIdx.x & 31u)); atomicAnd(x + 4, ~(1u << (threadIdx.x & 3u)));
    atomicAdd(wide, 1ull << 33); atomicMin(s, -(int)threadIdx.x); atomicMax(s + 1, (int)threadIdx.x);
    if (atomicCAS(x + 5, 0u, 9u) == 0u) atomicAdd(x + 6, 1u);
    atomicExch(x + 7, 3u);
    """
    x = np.zeros(64, np.uint32)
    x[1], x[4] = 1000, 0xFF
    run(emulated, body, x)
    assert x[:8].tolist() == [64 * 63 // 2, 5, 63, 0xFFFFFFFF, 0xF0, 9, 1, 3]
    assert int(x[8:10].view(np.uint64)[0]) == 64 << 33
    assert x[16:18].view(np.int32).tolist() == [-63, 63]


FAULTS = {
    "past the end": ("x[threadIdx.x + 1] = 1u;", "outside every array.* at k.cu:3"),
    # the lowest pages are never mapped; anywhere else a stray write might hit memory of this very process
    "far away": ("((unsigned int *)4096)[threadIdx.x] = 1u;", "outside every array"),
    "before the start": ("x[(long long)threadIdx.x - 1] = 1u;", "bytes before an array of 256 bytes were written"),
    "barriers of two branches": (
        "if (threadIdx.x < 32)\n__syncthreads();\nelse\n__syncthreads();",
        "thread 0 waits in __syncthreads at k.cu:4, but thread 32 waits in __syncthreads at k.cu:6",
    ),
    "missing barrier": (
        "if (threadIdx.x < 5) __syncthreads();",
        "thread 0 waits in __syncthreads at k.cu:3, but thread 5 has left the kernel",
    ),
    "divergent shuffle": (
        "if (threadIdx.x < 5)\n__shfl_sync(0xffffffffu, n, 0);\nelse\n__shfl_sync(0xffffffffu, n, 1);",
        "thread 0 waits in __shfl_sync at k.cu:4, but thread 5 waits in __shfl_sync at k.cu:6",
    ),
    "shuffle against barrier": (
        "if (threadIdx.x < 5)\n__syncwarp();\nelse\n__syncthreads();",
        "thread 5 waits in __syncthreads at k.cu:6, but thread 0 waits in __syncwarp at k.cu:4",
    ),
    "shuffle from a lane that left": (
        "if (threadIdx.x < 5) return;\n__shfl_sync(0xffffffffu, n, 0);",
        "reads lane 0 at k.cu:4, which has left",
    ),
    "part of a mask": ("__shfl_sync(0xffffu, n, 0);", "mask 0x0000ffff; only the full mask"),
    "shift by 32": ("x[0] = 1u << (n / 2);", "undefined behaviour.* at k.cu:3"),
    "signed overflow": ("x[0] = (unsigned int)(n * 100000000);", "undefined behaviour.* at k.cu:3"),
    "division by zero": ("x[0] = (unsigned int)(n / (int)threadIdx.x);", "undefined behaviour.* at k.cu:3"),
    "misaligned": ("x[0] = ((const uint4 *)(x + 1))->x;", "undefined behaviour.* at k.cu:3"),
    "index of a shared array": (
        "__shared__ unsigned int s[32];\ns[threadIdx.x] = 1u;\nx[0] = s[n & 1];", "undefined behaviour.* at k.cu:4",
    ),
    "clz of zero": ("x[0] = __clz(n - 64);", r"__clz\(0\) at k.cu:3"),
    "spinning": ("while (atomicAdd(x, 0u) == 0u) {}", "spins at an atomic at k.cu:3"),
    "race without a barrier": (
        "__shared__ unsigned int s[64];\ns[threadIdx.x] = threadIdx.x;\nx[threadIdx.x] = s[63 - threadIdx.x];",
        "differs between orders",
    ),
    "check, then act": ("if (x[0] == 0u) { atomicAdd(x + 1, 1u); x[0] = 1u; }", "differs between orders"),
    "race of blocks": ("if (threadIdx.x == 0) x[0] = blockIdx.x;", "differs between orders"),
    "too much shared memory": (
        "__shared__ unsigned int s[12289]; s[threadIdx.x] = 0u; x[0] = s[n];", "49156 bytes of static",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_fault(emulated, name):
    body, words = FAULTS[name]
    with pytest.raises(emulated.EmulatorError, match=words):
        run(emulated, body, grid=(3,))
    assert run(emulated, "x[threadIdx.x] = 1u;").tolist() == [1] * 64  # and the next launch is none the worse


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"shared": 49153}, "49152 is the limit"),
        ({"block": (1025,)}, "x must be 1 to 1024"),
        ({"block": (1, 1, 65)}, "z must be 1 to 64"),
        ({"block": (64, 64)}, "4096 threads a block"),
        ({"block": (0,)}, "x must be"),
        ({"grid": (0,)}, "x must be"),
        ({"grid": (1 << 31,)}, "x must be"),
        ({"grid": (1, 65536)}, "y must be"),
        ({"grid": (1, 1, 65536)}, "z must be"),
    ],
)
def test_launch_refused(emulated, more, words):
    with pytest.raises(emulated.EmulatorError, match=words):
        run(emulated, "x[0] = 1u;", **more)


def test_wrong_arguments(emulated):
    module = build(emulated, "x[0] = n;")
    x = np.zeros(4, np.uint32)
    with pytest.raises(TypeError, match="parameter n is of type i4, but CuPy passes a Python int as 64 bits"):
        module.run("k", (1,), (1,), (x, 1))
    with pytest.raises(TypeError, match=r"parameter n is of type i4, but numpy\.uint32"):
        module.run("k", (1,), (1,), (x, np.uint32(1)))
    with pytest.raises(TypeError, match=r"parameter x is of type \*u4, but an array of int32"):
        module.run("k", (1,), (1,), (x.view(np.int32), np.int32(1)))
    with pytest.raises(emulated.EmulatorError, match="takes 2 arguments, not 1"):
        module.run("k", (1,), (1,), (x,))


def test_64_bit_index_base(emulated):
    """An array whose element 0 has index 2**33: a kernel that keeps the index in 32 bits misses it."""
    base = 1 << 33
    signature = "unsigned int *x, long long base"
    good = build(emulated, "const long long i = base + threadIdx.x; x[i] = threadIdx.x;", signature)
    bad = build(emulated, "const unsigned int i = (unsigned int)base + threadIdx.x; x[i] = threadIdx.x;", signature)
    x = np.zeros(64, np.uint32)
    good.run("k", (1,), (64,), (emulated.Shifted(x, base), np.int64(base)))
    assert x.tolist() == list(range(64))
    with pytest.raises(emulated.EmulatorError, match="outside every array"):
        bad.run("k", (1,), (64,), (emulated.Shifted(x, base), np.int64(base)))


def test_includes_nothing_but_the_given_folders(emulated, tmp_path):
    (tmp_path / "a.cuh").write_text("__device__ unsigned int seven() { return 7u; }\n")
    text = '#include "a.cuh"\nextern "C" __global__ void k(unsigned int *x) { x[threadIdx.x] = seven(); }\n'
    x = np.zeros(3, np.uint32)
    emulated.load_text(text, "k.cu", [tmp_path]).run("k", (1,), (3,), (x,))
    assert x.tolist() == [7] * 3
    with pytest.raises(emulated.EmulatorError, match=r"stdint\.h"):
        emulated.load_text("#include <stdint.h>\n" + text, "k.cu", [tmp_path])


def test_kernel_of_another_form_is_refused(emulated):
    with pytest.raises(emulated.EmulatorError, match="not of the form"):
        emulated.load_text("template <int N> __global__ int k(int *x) { return N; }")


UNDER_SANITIZERS = """
import sys
import numpy as np, emulator
module = emulator.load_text('''extern "C" __global__ void k(const unsigned char *x, unsigned int *y, int n) {
    __shared__ unsigned int s[8];
    extern __shared__ unsigned int d[];
    s[threadIdx.x & 7] = x[threadIdx.x]; d[threadIdx.x] = 1u;
    __syncthreads();
    %s
}''', "k.cu")
x, y = np.arange(33, dtype=np.uint8), np.zeros(33, np.uint32)
module.run("k", (2,), (33,), (x, y, np.int32(33)), 33 * 4, "ascending")
print(y.sum())
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("y[threadIdx.x] = s[0] + d[0] - 32u;", None),
        ("y[threadIdx.x] = x[threadIdx.x + 1];", "heap-buffer-overflow"),  # one byte past 33
        ("y[threadIdx.x] = x[n];", "heap-buffer-overflow"),
        ("y[threadIdx.x] = x[-1];", "heap-buffer-overflow"),
        ("unsigned int *p = s; y[threadIdx.x] = p[8];", "insufficient space for an object"),
        ("y[threadIdx.x] = d[n];", "use-after-poison"),
        ("y[threadIdx.x] = 1u << n;", "shift exponent 33 is too large"),
    ],
)
def test_sanitizers(emulated, line, words):
    from cuda_fixtures import need

    if emulated.sanitizer_environment() is None:
        need("libasan or libubsan is missing")
    done = emulated.sanitized(["-c", UNDER_SANITIZERS % line])
    if words is None:
        assert (done.returncode, done.stdout) == (0, "33\n"), done.stderr
    else:
        assert done.returncode != 0, done.stdout
        assert words in done.stderr
        assert "k.cu:6" in done.stderr


def test_sanitized_pytest_runs_tests_and_fails_with_them(emulated, tmp_path):
    from cuda_fixtures import need

    if emulated.sanitizer_environment() is None:
        need("libasan or libubsan is missing")
    test = tmp_path / "test_small.py"
    test.write_text(
        "import emulator\n"
        "def test_good():\n    assert emulator.SANITIZE\n"
        "def test_bad():\n    assert not emulator.SANITIZE\n"
    )
    emulated.sanitized_pytest(str(test), "-k", "good")
    with pytest.raises(emulated.EmulatorError, match="1 failed"):
        emulated.sanitized_pytest(str(test), "-k", "bad")
    with pytest.raises(emulated.EmulatorError, match="exit 5"):
        emulated.sanitized_pytest(str(test), "-k", "nothing")
