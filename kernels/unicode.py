"""Unicode as this package means it: one version, shipped as tables, the same under every interpreter.

The tables come from the Unicode Character Database by way of unicode_build.py and lie beside this file. Importing this
module loads nothing; the first call of a table function does.

Class bits of a code point, raw properties all (which bit wins is for the caller to say):

    WORD       general category L*, M*, N* or Pc
    SINGLE     in a blank-free range (Han, kana, Thai, Lao, Tibetan, Myanmar, Khmer; see BLANK_FREE in unicode_build.py,
               every code point of it, assigned or not), or general category So
    IGNORABLE  Default_Ignorable_Code_Point
    PUNCT      general category P* or S*
    SPACE      White_Space
    DIGIT      general category Nd
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

UNICODE_VERSION = "15.0.0"

WORD = 1
SINGLE = 2
IGNORABLE = 4
PUNCT = 8
SPACE = 16
DIGIT = 32

CODE_POINTS = 0x110000


@cache
def load() -> dict[str, npt.NDArray[np.generic]]:
    """All arrays of unicode.npz by name; see unicode_build.py for what they hold. Native byte order, one load."""
    with np.load(Path(__file__).with_name("unicode.npz"), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive}
    arrays = {name: np.ascontiguousarray(a.astype(a.dtype.newbyteorder("="))) for name, a in arrays.items()}
    version = ".".join(str(part) for part in arrays["version"])
    if version != UNICODE_VERSION:
        raise RuntimeError(f"unicode.npz is of Unicode {version}, not {UNICODE_VERSION}; reinstall gpu-dedup")
    return arrays


def class_table() -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8]]:
    """Class bits of every code point, as a two-stage table.

    returns  stage1 uint16[0x110000 >> 7], stage2 uint8[blocks * 128]; C-contiguous, writable, loaded once

    class(cp) = stage2[stage1[cp >> 7] * 128 + (cp & 127)], stage1 widened first; 0 <= cp < 0x110000.
    """
    arrays = load()
    stage1: npt.NDArray[np.uint16] = arrays["class_stage1"]  # type: ignore[assignment]
    stage2: npt.NDArray[np.uint8] = arrays["class_stage2"]  # type: ignore[assignment]
    return stage1, stage2
