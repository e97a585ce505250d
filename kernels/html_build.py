"""Builds html.npz, the frozen table of HTML's character references, from Python's html package. Run by hand.

    python kernels/html_build.py            # writes kernels/html.npz
    python kernels/html_build.py --check    # exit 1 if the shipped file differs

Nothing imports this file. The bytes it writes depend on html.entities.html5 and html.unescape alone.

    name_start   uint32[a + 1], name_data uint8[...]: names without the `&`, ascending, those that end in `;` with it
    value_start  uint32[a + 1], value_data uint8[...]: what each becomes, UTF-8
    number       uint32[0xA0]: what a number below 0xA0 becomes; NOTHING where that is no code point
"""

from __future__ import annotations

import argparse
import html
import io
import sys
import zipfile
from collections.abc import Sequence
from html.entities import html5
from pathlib import Path

import numpy as np

NOTHING = 0xFFFFFFFF


def build() -> dict[str, np.ndarray]:
    names = sorted(html5, key=str.encode)
    out: dict[str, np.ndarray] = {}

    def ragged(stem: str, parts: Sequence[bytes]) -> None:
        out[f"{stem}_start"] = np.cumsum([0] + [len(part) for part in parts]).astype(np.uint32)
        out[f"{stem}_data"] = np.frombuffer(b"".join(parts), np.uint8)

    ragged("name", [name.encode("ascii") for name in names])
    ragged("value", [html5[name].encode() for name in names])
    numbers = [html.unescape(f"&#{number};") for number in range(0xA0)]
    out["number"] = np.array([ord(text) if text else NOTHING for text in numbers], np.uint32)
    return out


def pack(arrays: dict[str, np.ndarray]) -> bytes:
    """An .npz whose bytes depend on the arrays alone."""
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


def main() -> int:
    parser = argparse.ArgumentParser(description="Build kernels/html.npz from Python's html package.")
    parser.add_argument("--check", action="store_true", help="compare with the shipped file instead of writing it")
    options = parser.parse_args()
    target = Path(__file__).with_name("html.npz")
    data = pack(build())
    if options.check:
        same = target.is_file() and target.read_bytes() == data
        print(f"{target}: {'is' if same else 'is NOT'} what Python {sys.version.split()[0]} gives")
        return 0 if same else 1
    target.write_bytes(data)
    print(f"{target}: {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
