"""Reading, decompressing and writing of several files at once: the same text in many forms, with 1 and 2 threads.

    python benchmarks/reading.py --corpus english --mb 120 [--method exact] [--repeat 3] [--only gz,two] [--json FILE]

Forms: one plain file; 24 small and two large files of plain lines, gzip, zstd and Parquet; and a text file for each of
10,000 documents. Each run is a process of its own, `gpu-dedup run` into an empty folder. `--method exact` does the
least with each byte, so that the rest of a run shows. The first run of each form is not counted.

`--alone`: reading, decompressing and hashing alone, with nobody at work on what is read: by whoever asks (0), and by
one or two threads ahead.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import common
import corpora
from pipeline import once

MANY, TWO, TINY = 24, 2, 10_000


def line(number: int, text: str) -> bytes:
    return json.dumps({"id": number, "text": text}, ensure_ascii=False).encode() + b"\n"


def packed(pack: Callable[[bytes], bytes], ending: str) -> Callable[[Path, Sequence[tuple[int, str]]], None]:
    def write(path: Path, rows: Sequence[tuple[int, str]]) -> None:
        path.with_suffix(ending).write_bytes(pack(b"".join(line(*row) for row in rows)))

    return write


def zstd(data: bytes) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def parquet(path: Path, rows: Sequence[tuple[int, str]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"id": [number for number, _ in rows], "text": [text for _, text in rows]})
    pq.write_table(table, path.with_suffix(".parquet"), compression="zstd", row_group_size=5000)


KINDS: dict[str, Callable[[Path, Sequence[tuple[int, str]]], None]] = {
    "plain": packed(bytes, ".jsonl"),
    "gz": packed(lambda data: gzip.compress(data, 6), ".jsonl.gz"),
    "zst": packed(zstd, ".jsonl.zst"),
    "parquet": parquet,
}


def make(folder: Path, form: str, texts: Sequence[str]) -> None:
    """Write the texts in a form: `KIND many`, `KIND two`, `plain one` or `txt`."""
    folder.mkdir()
    kind, _, how = form.partition(" ")
    if kind == "txt":
        for number in range(TINY):
            (folder / f"{number:06d}.txt").write_text(texts[number % len(texts)], encoding="utf-8", errors="replace")
        return
    count = {"one": 1, "two": TWO, "many": MANY}[how]
    rows = list(enumerate(texts))
    step = -(-len(rows) // count)
    for number in range(count):
        KINDS[kind](folder / f"{number:03d}", rows[number * step : (number + 1) * step])


def alone(folder: Path, readers: int) -> dict[str, float]:
    """Wall and CPU seconds of reading all files of a folder."""
    from gpu_dedup.pipeline.pool import Pool
    from gpu_dedup.read import Chunk, Source, discover, open_source

    def read(source: Source) -> Iterator[Chunk]:
        with open_source(source, 4 << 20, 0, ["text"]) as reader:
            yield from reader
            reader.content_hash()

    sources = discover([str(folder)], None)
    wall, cpu = time.perf_counter(), time.process_time()
    with Pool(2, readers, 32 << 20) as pool:
        for _ in pool.read(sources, read, lambda source: source, in_order=False):
            pass
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


FORMS = ["plain one", *(f"{kind} {how}" for kind in KINDS for how in ("many", "two")), "txt"]


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--corpus", choices=corpora.KINDS, default="english")
    parser.add_argument("--input", type=Path, help="instead: JSON lines with a field text")
    parser.add_argument("--mb", type=int, default=120, help="of text")
    parser.add_argument("--method", default="exact")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--alone", action="store_true", help="reading alone")
    parser.add_argument("--only", default="", help="forms with one of these words in their name")
    arguments = parser.parse_args()
    size = (4 if arguments.quick else arguments.mb) * 10**6
    if arguments.input:
        with arguments.input.open("rb") as file:
            texts = [json.loads(one)["text"] for one in file.readlines(size)]
    else:
        texts = corpora.corpus(arguments.corpus, size, 1).texts
    wanted = [word for word in arguments.only.split(",") if word]
    results: dict[str, Any] = {}
    print(common.header(f"{arguments.threads} threads"))
    columns = ("readers", "wall", "CPU") if arguments.alone else ("threads", "wall", "CPU", "read", "write")
    print(f"{'':14}" + "".join(f"{name:>8}" for name in columns) + f"   seconds, least of {arguments.repeat}")
    for form in FORMS:
        if wanted and not any(word in form for word in wanted):
            continue
        with tempfile.TemporaryDirectory(prefix="benchmark-reading-") as name:
            folder = Path(name)
            make(folder / "in", form, texts)
            if arguments.alone:
                for readers in (0, 1, 2):
                    found = [alone(folder / "in", readers) for _ in range(arguments.repeat)]
                    least = {key: min(one[key] for one in found) for key in ("wall", "cpu")}
                    results[f"{form}, {readers} readers"] = least
                    print(f"{form:14}{readers:>8}{least['wall']:8.3f}{least['cpu']:8.3f}", flush=True)
                continue
            for threads in arguments.threads.split(","):
                options = ["--method", arguments.method, "--threads", threads, "--device", "cpu", "--backend", "numba"]
                runs = [once([str(folder / "in")], options, folder) for _ in range(arguments.repeat + 1)][1:]
                stages = [run["stages"] for run in runs]
                read = min(seconds for one in stages for stage, seconds in one.items() if stage.startswith("read"))
                row = {
                    "wall": min(run["wall"] for run in runs),
                    "cpu": min(run["cpu"] for run in runs),
                    "read": read,
                    "write": min(one["write"] for one in stages),
                }
                results[f"{form}, {threads}"] = {**row, "memory_mb": max(run["peak_memory_mb"] for run in runs)}
                print(f"{form:14}{threads:>8}" + "".join(f"{value:8.2f}" for value in row.values()), flush=True)
    common.save(arguments.json, "reading", {"method": arguments.method, "forms": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
