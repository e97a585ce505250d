"""Reading: JSON lines taken apart on one core, and the road from the file to the rows, in MB of input per second.

    python benchmarks/bench_extract.py [--megabytes 32] [--quick] [--json FILE]

Lines are made from seeds: documents of some kilobytes with an id, an address and some nested data, as crawls have them.
Every text is checked against `json.loads` before anything is timed; the best of five runs over batches of 4 MiB.
`json` and, where they are installed, `orjson` and `msgspec` (a typed decoder of the one field) take the text out of the
same lines one by one; they need the GIL for it. `copy` is the same batch copied once, in the same minute.
`kernel` is the kernel alone, `rows` the whole of `chunk.parse`, `file` a plain file read, hashed and cut into lines.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
import common
from common import best

from gpu_dedup.backend import host_backend
from gpu_dedup.kernels import jsonl_cpu
from gpu_dedup.read import discover, open_source

BATCH = 4 << 20

ENGLISH = """
the of and to in that is was for it with as his on be at by had not are but from or have an they which one you were all
her she there would their we him been has when who will no more if out so up said what its about than into them only
other time new some could these two may first then do any like my now over such our man me even most made after
"""


def english(rng: random.Random, size: int) -> str:
    """Paragraphs of sentences, with a quotation mark, a typographic quote or a dash here and there."""
    vocabulary = ENGLISH.split()
    out: list[str] = []
    length = 0
    while length < size:
        words = [vocabulary[min(int(rng.expovariate(0.05)), len(vocabulary) - 1)] for _ in range(rng.randrange(5, 25))]
        if rng.random() < 0.1:
            words[0] = '"' + words[0] + '"'
        if rng.random() < 0.05:
            words[-1] += "’s — "
        out.append(" ".join(words).capitalize() + rng.choice([". ", ". ", ".\n"]))
        length += len(out[-1])
    return "".join(out)


def chinese(rng: random.Random, size: int) -> str:
    """Common ideographs, three in four from a few hundred, with full-width punctuation."""
    common = [chr(rng.randrange(0x4E00, 0x9FA5)) for _ in range(400)]
    out = []
    for _ in range(size):
        roll = rng.random()
        if roll < 0.07:
            out.append("，")
        elif roll < 0.1:
            out.append("。\n" if roll < 0.08 else "。")
        else:
            out.append(rng.choice(common) if roll < 0.8 else chr(rng.randrange(0x4E00, 0x9FA5)))
    return "".join(out)


def lines_of(make: Callable[[random.Random, int], str], ascii_only: bool, size: int, total: int) -> list[bytes]:
    rng = random.Random(7)
    pool = [make(rng, rng.randrange(size // 2, 2 * size)) for _ in range(200)]
    out = []
    length = 0
    while length < total:
        record = {
            "id": f"doc-{len(out):09}",
            "url": f"https://example.org/a/{len(out)}",
            "meta": {"lang": "xx", "score": round(rng.random(), 6), "tags": ["a", "b"], "date": None},
            "text": rng.choice(pool),
        }
        out.append(json.dumps(record, ensure_ascii=ascii_only).encode() + b"\n")
        length += len(out[-1])
    return out


def others() -> dict[str, Callable[[bytes], str]]:
    """Parsers of one line to its text, by name."""
    found: dict[str, Callable[[bytes], str]] = {"json": lambda line: str(json.loads(line)["text"])}
    try:
        orjson = importlib.import_module("orjson")
        found["orjson"] = lambda line: orjson.loads(line)["text"]
    except ImportError:
        pass
    try:
        msgspec = importlib.import_module("msgspec")
        decoder = msgspec.json.Decoder(msgspec.defstruct("Record", [("text", str)]))
        found["msgspec"] = lambda line: decoder.decode(line).text
    except ImportError:
        pass
    return found


def measure(lines: list[bytes], folder: Path) -> dict[str, float]:
    """MB/s by name, after a check of every text."""
    data = b"".join(lines)
    path = folder / "lines.jsonl"
    path.write_bytes(data)
    (source,) = discover([str(path)], None)
    backend = host_backend("numba")
    with open_source(source, BATCH) as reader:
        chunks = list(reader)
    row = 0
    for chunk in chunks:
        rows = chunk.parse(backend, ("text",))
        for text in rows.tape.to_list():
            assert text == json.loads(lines[row])["text"], row
            row += 1
    assert row == len(lines)

    def read() -> None:
        with open_source(source, BATCH) as reader:
            for _ in reader:
                pass
            reader.content_hash()

    seconds = {
        "kernel": best(lambda: [jsonl_cpu.extract(c.data, c.size, ("text",), (), None) for c in chunks])[0],
        "rows": best(lambda: [c.parse(backend, ("text",)) for c in chunks])[0],
        "rows+id": best(lambda: [c.parse(backend, ("text",), ("id",)) for c in chunks])[0],
        "file": best(read)[0],
        "copy": best(lambda: [c.data.copy() for c in chunks])[0],
    }
    for name, parse in others().items():
        seconds[name] = best(lambda parse=parse: [parse(line) for line in lines], 2)[0]  # type: ignore[misc]
    return {name: len(data) / 1e6 / value for name, value in seconds.items()}


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--megabytes", type=float, help="of each kind of line  [default: 32, --quick: 2]")
    options = parser.parse_args()
    megabytes = options.megabytes or (2 if options.quick else 32)
    total = round(megabytes * 1_000_000)
    kinds: dict[str, tuple[Callable[[random.Random, int], str], bool, int]] = {
        "English": (english, False, 3000),
        "English, short": (english, False, 100),
        "Chinese": (chinese, False, 1000),
        "Chinese, escaped": (chinese, True, 1000),
    }
    print(f"MB of input per second, {megabytes:g} MB of each kind; {common.header()}")
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, (make, ascii_only, size) in kinds.items():
            lines = lines_of(make, ascii_only, size, total)
            results[kind] = measure(lines, Path(folder))
            if len(results) == 1:
                print(f"{'':17} {'B/line':>7}" + "".join(f"{name:>9}" for name in results[kind]))
            mean = sum(map(len, lines)) // len(lines)
            print(f"{kind:17} {mean:7}" + "".join(f"{value:9.0f}" for value in results[kind].values()), flush=True)
    common.save(options.json, "extract", {"megabytes": megabytes, "mb_per_second": common.rounded(results)})


if __name__ == "__main__":
    main()
