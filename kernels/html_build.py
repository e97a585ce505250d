"""Builds html.npz, the frozen table of HTML's character references, from Python's html package. Run by hand,
with the package installed.

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
import sys
from collections.abc import Sequence
from html.entities import html5
from pathlib import Path

import numpy as np

from gpu_dedup.kernels.npz import deliver

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


def main() -> int:
    parser = argparse.ArgumentParser(description="Build kernels/html.npz from Python's html package.")
    parser.add_argument("--check", action="store_true", help="compare with the shipped file instead of writing it")
    options = parser.parse_args()
    target = Path(__file__).with_name("html.npz")
    return deliver(target, build(), f"Python {sys.version.split()[0]}", options.check)


if __name__ == "__main__":
    sys.exit(main())
