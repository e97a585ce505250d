"""Normalise: what is done to a text before it is compared. One normaliser for all methods; output is never touched.

Steps run in this order, in whatever order they are named; Unicode is of one fixed version (`UNICODE_VERSION`).

| step          | what becomes of the text                                                                      |
| ------------- | --------------------------------------------------------------------------------------------- |
| `html`        | each tag becomes one blank, `script` and `style` with their bodies; `&eacute;` becomes `é`    |
| `nfc`         | Normalization Form C: a letter with its accent is one code point, however it was typed        |
| `nfkc`        | Normalization Form KC: full-width, ligature, superscript and other variants become plain, too |
| `lower`       | full case folding (`ß` becomes `ss`); then the same form again, because folding can undo it   |
| `accents`     | U+0300 to U+036F go, alone or as part of a letter (`é` becomes `e`); the rest in Form C       |
| `digits`      | each decimal digit of any script becomes `0`                                                  |
| `punctuation` | each punctuation mark or symbol becomes one blank                                             |
| `whitespace`  | each run of white space becomes one blank; none at either end                                 |
| `nospace`     | white space is removed                                                                        |

`nfc` and `nfkc` exclude each other, and so do `whitespace` and `nospace`. Kernels know steps as a set of bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_dedup.errors import RecipeError
from gpu_dedup.kernels.normalise_ref import ACCENTS, DIGITS, HTML, LOWER, NFC, NFKC, NOSPACE, PUNCTUATION, WHITESPACE
from gpu_dedup.recipe import NORMALIZE_STEPS

BITS = {
    "html": HTML,
    "nfc": NFC,
    "nfkc": NFKC,
    "lower": LOWER,
    "accents": ACCENTS,
    "digits": DIGITS,
    "punctuation": PUNCTUATION,
    "whitespace": WHITESPACE,
    "nospace": NOSPACE,
}


def step_bits(steps: Sequence[str]) -> int:
    """The set of bits that kernels take as `steps`.

    steps  names from `recipe.NORMALIZE_STEPS`, in any order; a name twice is the same as once

    Raises RecipeError for a name that is unknown, and for two that exclude each other.
    """
    bits = 0
    for step in steps:
        if step not in BITS:
            raise RecipeError(f"normalize step {step!r} is unknown; choose one of {', '.join(NORMALIZE_STEPS)}")
        bits |= BITS[step]
    for one, other in (("nfc", "nfkc"), ("whitespace", "nospace")):
        if bits & BITS[one] and bits & BITS[other]:
            raise RecipeError(f"normalize steps {one} and {other} exclude each other; drop one")
    return bits
