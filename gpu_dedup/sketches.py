"""The hash family of a recipe: which multipliers and addends a seed stands for."""

from __future__ import annotations

import numpy as np

from gpu_dedup.batch import U32
from gpu_dedup.kernels.mix64 import splitmix64
from gpu_dedup.recipe import Recipe

OWN_NUMBERS = 2


def permutations(seed: int, k: int) -> tuple[U32, U32]:
    """Multipliers and addends of k MinHash slots.

    seed     0 to 2**64 - 1
    returns  a uint32[k], odd; b uint32[k]

    Draw j of SplitMix64 from `seed` gives slot j: a = its low 32 bits with the lowest set, b = its high 32 bits. A slot
    depends on seed and j alone, so fewer slots are a prefix of more.
    """
    draws = np.array(splitmix64(seed, k), np.uint64)
    a = (draws & np.uint64(0xFFFFFFFF)).astype(np.uint32) | np.uint32(1)
    return a, (draws >> np.uint64(32)).astype(np.uint32)


def numbers_of(recipe: Recipe, slots: int = 0) -> tuple[U32, U32]:
    """Multipliers and addends of a recipe's sketch, as the backend's `sketch` or `fast_sketch` takes them.

    slots  MinHash has so many at least. Of the fast sketch there are the recipe's: another number of them is another
           sketch. It has OWN_NUMBERS more numbers than slots: of bins, and of values in them
    """
    if not recipe.banded:
        return permutations(recipe.seed, 0)
    if recipe.sketch == "fast":
        return permutations(recipe.seed, recipe.slots + OWN_NUMBERS)
    return permutations(recipe.seed, max(recipe.slots, slots))
