"""Stop shingles: runs of units that everybody has (a licence line, a cookie notice) and that make no texts alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpu_dedup.backend import Backend
from gpu_dedup.batch import U64, Tape
from gpu_dedup.errors import RecipeError
from gpu_dedup.recipe import ShingleSpec

_SHOWN = 60  # characters of a refused text that its message quotes


def stop_hashes(texts: Sequence[str], spec: ShingleSpec, normalise: Callable[[Tape], Tape], backend: Backend) -> U64:
    """Hashes of the shingles that do not count, from their texts.

    texts      each exactly spec.n units once normalised
    normalise  what the corpus passes through too, or a stop shingle would never be met
    returns    uint64[s], ascending, without repeats
    raises     RecipeError: a text of another number of units
    """
    if not texts:
        return np.zeros(0, np.uint64)
    tape = normalise(Tape.of(texts))
    every = np.arange(len(texts), dtype=np.int64)
    none = np.zeros(0, np.uint64)
    slot = np.ones(1, np.uint32)  # a sketch also counts units; its one slot is not looked at
    units = backend.sketch(tape, every, spec.unit_code, spec.n, none, slot, slot).units
    for number, (text, count) in enumerate(zip(texts, units.tolist(), strict=True), 1):
        if count != spec.n:
            quoted = repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
            raise RecipeError(
                f"stop shingle {number}, {quoted}: {count} {spec.unit} unit{'' if count == 1 else 's'} "
                f"after normalisation; --shingle {spec} needs exactly {spec.n}"
            )
    hashes, _ = backend.shingle_sets(tape, every, spec.unit_code, spec.n, none)
    return np.unique(hashes)
