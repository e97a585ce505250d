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

Then, of the text that the steps have left: the recipe's `strip` strings, which pass the same steps, go from its ends,
and `max_chars` cuts what is longer at the end of a sentence (kernels/trim_ref.py says where exactly). So a template's
name at the end of a long text is gone before the cut, and `punctuation` leaves only blanks to cut at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu_dedup.backend import Backend
from gpu_dedup.batch import Tape
from gpu_dedup.errors import RecipeError
from gpu_dedup.kernels.normalise_ref import ACCENTS, DIGITS, HTML, LOWER, NFC, NFKC, NOSPACE, PUNCTUATION, WHITESPACE
from gpu_dedup.recipe import NORMALIZE_STEPS, Recipe

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


_SHOWN = 60  # characters of a refused string that its message quotes


@dataclass(frozen=True)
class Normaliser:
    """All that a recipe does to a text before it is compared.

    steps  set of bits
    words  strings to strip, normalised
    blank  whether blanks at a stripped end go too
    most   code points that count; 0: all
    """

    steps: int
    words: Tape
    blank: bool
    most: int

    @classmethod
    def of(cls, recipe: Recipe, backend: Backend) -> Normaliser:
        """Raises RecipeError for a string to strip of which the steps leave nothing."""
        steps = step_bits(recipe.steps)
        words = Tape.of([])
        if recipe.strip:
            words = backend.normalise(Tape.of(recipe.strip), steps)
            empty = np.flatnonzero(np.diff(words.offsets) == 0)
            if len(empty):
                text = recipe.strip[empty[0]]
                quoted = ascii(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
                raise RecipeError(
                    f"strip string {empty[0] + 1}, {quoted}: nothing is left of it after "
                    f"--normalize {','.join(recipe.steps) or 'none'}; drop it"
                )
        return cls(steps, words, "whitespace" in recipe.steps, recipe.max_chars or 0)

    def __call__(self, tape: Tape, backend: Backend) -> Tape:
        """The texts as they are compared."""
        normal = backend.normalise(tape, self.steps)
        if len(self.words) or self.most:
            return backend.trim(normal, self.words, self.blank, self.most)
        return normal
