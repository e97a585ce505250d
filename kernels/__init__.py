"""Kernels: arrays and integers in, arrays and integers out. Installed as ``gpu_dedup.kernels``.

A kernel file is named operation first (``minhash_ref.py``, ``minhash_cpu.py``, ``minhash.cu``): ``_ref`` is NumPy and
is the definition, ``_cpu`` is Numba and equals it bit for bit. Kernels know no recipe, no file and no other operation.
"""

if __name__ != "gpu_dedup.kernels":
    raise ImportError("this folder is the package gpu_dedup.kernels: write `from gpu_dedup.kernels import ...`")
