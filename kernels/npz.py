"""Shipped tables: the same bytes for the same arrays. For the scripts that build them; nothing else imports this."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np


def pack(arrays: dict[str, np.ndarray]) -> bytes:
    """An .npz whose bytes depend on the arrays alone: fixed order and time stamps, not deflated."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            member = io.BytesIO()
            array = arrays[name]
            np.lib.format.write_array(member, array.astype(array.dtype.newbyteorder("<")), version=(1, 0))
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, member.getvalue())
    return buffer.getvalue()


def deliver(target: Path, arrays: dict[str, np.ndarray], source: str, check: bool) -> int:
    """Write the table, or with `check` say whether the shipped one is it; the exit code. source: what gives it."""
    data = pack(arrays)
    if check:
        same = target.is_file() and target.read_bytes() == data
        print(f"{target}: {'is' if same else 'is NOT'} what {source} gives")
        return 0 if same else 1
    target.write_bytes(data)
    print(f"{target}: {len(data)} bytes")
    return 0
