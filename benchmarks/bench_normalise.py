"""Normalise and count: MB of input per second on one core, by kind of text and set of steps.

    python benchmarks/bench_normalise.py [--megabytes 16] [--quick] [--json FILE]

Texts are made from seeds, in documents of about 2,000 characters. Numba is checked against NumPy on a part of them, bit
for bit, before anything is timed; the best of five runs. `copy` is the same blob copied once, in the same minute.
"""

from __future__ import annotations

import random
import sys
import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent))
import common
from common import best

from gpu_dedup.batch import Tape
from gpu_dedup.kernels import normalise_cpu, normalise_ref, utf8_cpu, utf8_ref
from gpu_dedup.normalise import step_bits

STEPS = ("nfkc,lower,whitespace", "nfc", "nfkc,lower,digits,punctuation,whitespace", "nfkc,lower,punctuation,nospace")
DOCUMENT = 2000  # characters
CHECKED = 200_000  # bytes that NumPy does, too

ENGLISH = """
the of and to in that is was for it with as his on be at by had not are but from or have an they which one you were all
her she there would their we him been has when who will no more if out so up said what its about than into them only
other time new some could these two may first then do any like my now over such our man me even most made after
"""
FRENCH = """
de la le et les des en un du une que est pour qui dans par plus pas au sur ne se ce il sont été même où à très après
déjà être première année république française général côté forêt élève garçon naïf œuvre façon État théâtre près
développement économique système société problème président également plusieurs ministère région européenne
"""
RUSSIAN = """
и в не на я быть он с что а по это она этот к но они мы весь который из у то за свой ко от так о для ты же год один
такой тот или если только его бы себя другой когда уже до время ещё мочь сказать человек первый жизнь день рука
"""
HINDI = """
है के में की और को का से पर ने एक यह हिन्दी लिखा हुआ क्षेत्र विद्यालय प्रश्न कृष्ण स्वतंत्रता भारत राज्य लोग बहुत वर्ष
"""


def prose(rng: random.Random, vocabulary: str, size: int) -> str:
    """Sentences of words of a rank-skewed frequency, paragraphs, some numbers."""
    words = vocabulary.split()
    out: list[str] = []
    length = 0
    while length < size:
        count = rng.randrange(5, 25)
        picks = [words[min(int(rng.expovariate(0.05)), len(words) - 1)] for _ in range(count)]
        picks[0] = picks[0].capitalize()
        if rng.random() < 0.3:
            picks[rng.randrange(count)] += ","
        if rng.random() < 0.2:
            picks.append(str(rng.randrange(3000)))
        out.append(" ".join(picks) + rng.choice([". ", ". ", "? ", ".\n", ".\n\n"]))
        length += len(out[-1])
    return "".join(out)


def chinese(rng: random.Random, size: int) -> str:
    """Han of a skewed frequency, full-width punctuation every dozen characters, some ASCII digits."""
    out: list[str] = []
    while len(out) < size:
        out += [chr(0x4E00 + min(int(rng.expovariate(0.0006)), 0x51A4)) for _ in range(rng.randrange(4, 20))]
        out.append(rng.choice("，，，。。、！？\n"))
        if rng.random() < 0.05:
            out.append(str(rng.randrange(3000)))
    return "".join(out)


def corpora(megabytes: float) -> dict[str, Tape]:
    """Texts by kind, each of about so many bytes, from fixed seeds; one megabyte repeated."""

    def tape(make: Callable[[random.Random, int], str]) -> Tape:
        rng = random.Random(1)
        texts: list[str] = []
        size = 0
        while size < min(1e6, megabytes * 1e6):
            texts.append(make(rng, DOCUMENT))
            size += len(texts[-1].encode())
        return Tape.of(texts * max(1, round(megabytes * 1e6 / size)))

    french: Callable[[random.Random, int], str] = lambda rng, size: prose(rng, FRENCH, size)  # noqa: E731
    return {
        "English": tape(lambda rng, size: prose(rng, ENGLISH, size)),
        "Chinese": tape(chinese),
        "French": tape(french),
        "French, accents apart": tape(lambda rng, size: unicodedata.normalize("NFD", french(rng, size))),
        "Russian": tape(lambda rng, size: prose(rng, RUSSIAN, size)),
        "Hindi": tape(lambda rng, size: prose(rng, HINDI, size)),
        "mixed": tape(lambda rng, size: rng.choice([chinese(rng, size), prose(rng, ENGLISH, size), french(rng, size)])),
    }


def part(tape: Tape) -> Tape:
    """The first documents, as many as NumPy does in a moment."""
    return Tape(tape.blob, tape.offsets[: int(np.searchsorted(tape.offsets, CHECKED)) + 1])


def check(tape: Tape) -> None:
    """Numba gives what NumPy gives, on the first documents."""
    blob, offsets = part(tape).blob, part(tape).offsets
    for steps in STEPS:
        bits = step_bits(steps.split(","))
        want, ends = normalise_ref.normalise(blob, offsets, bits)
        got, others = normalise_cpu.normalise(blob, offsets, bits)
        assert np.array_equal(want, got), steps
        assert np.array_equal(ends, others), steps
    assert np.array_equal(utf8_ref.valid(blob, offsets), utf8_cpu.valid(blob, offsets))
    assert np.array_equal(utf8_ref.code_points(blob, offsets), utf8_cpu.code_points(blob, offsets))
    codes, ends = utf8_ref.decode(blob, offsets)
    others_codes, others = utf8_cpu.decode(blob, offsets)
    assert np.array_equal(codes, others_codes)
    assert np.array_equal(ends, others)


def measure(tape: Tape) -> dict[str, float]:
    """MB per second of every kernel on one kind of text."""
    row: dict[str, float] = {}

    def time_it(name: str, texts: Tape, function: Callable[[], Any]) -> None:
        row[name] = texts.nbytes / best(function)[0] / 1e6

    for steps in STEPS:
        bits = step_bits(steps.split(","))
        time_it(steps, tape, partial(normalise_cpu.normalise, tape.blob, tape.offsets, bits))
    small, bits = part(tape), step_bits(STEPS[0].split(","))
    time_it(f"{STEPS[0]} (numpy)", small, partial(normalise_ref.normalise, small.blob, small.offsets, bits))
    for name in ("valid", "code_points", "decode"):
        time_it(name, tape, partial(getattr(utf8_cpu, name), tape.blob, tape.offsets))
    time_it("copy", tape, tape.blob.copy)
    return row


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--megabytes", type=float, help="of each kind of text  [default: 16, --quick: 1]")
    options = parser.parse_args()
    megabytes = options.megabytes or (1 if options.quick else 16)

    print(f"MB of input per second, {megabytes:g} MB of each kind; {common.header()}")
    rates: dict[str, dict[str, float]] = {}
    for kind, tape in corpora(megabytes).items():
        check(tape)
        rates[kind] = measure(tape)
    width = max(map(len, next(iter(rates.values()))))
    print(" " * width, *(f"{kind[:12]:>12}" for kind in rates))
    for name in next(iter(rates.values())):
        print(f"{name:{width}}", *(f"{row[name]:12,.0f}" for row in rates.values()))
    common.save(options.json, "normalise", {"megabytes": megabytes, "mb_per_second": common.rounded(rates)})


if __name__ == "__main__":
    main()
