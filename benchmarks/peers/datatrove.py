"""datatrove: its four MinHash stages on local files, 17 buckets of 7 hashes, 5 words, tasks and workers = cores.

Words are those of its tokeniser for the language (spaCy's English rules, jieba's words for Chinese: not single
characters), of the text lower-cased and without its punctuation; digits and accents stay as they are. Variant `words`
gives it, by its interface for tokenisers, the words that the other peers get: much faster, and nearer to ours. No
verification; of a cluster (connected components) one row stays. A text of fewer than five words has no shingle and
always stays. The file is cut into one part a task first, which is timed too.
"""

from __future__ import annotations

import json
import os

import driver  # first: it takes this folder from the front of the path

# isort: split

os.environ.setdefault("LOGURU_LEVEL", "ERROR")

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
)
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.text import TextNormConfig
from datatrove.utils.word_tokenizers import WordTokenizer

GIVEN = driver.arguments()
BUCKETS, HASHES = 17, 7


class Words(WordTokenizer):
    """The words of the other peers' shingles."""

    def word_tokenize(self, text: str) -> list[str]:
        return driver.units(text)

    def sent_tokenize(self, text: str) -> list[str]:
        return [text]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]


def cut(path: str, parts: int) -> str:
    where = driver.folder(GIVEN, "input")
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        for i in range(parts):
            with open(os.path.join(where, f"{i:05d}.jsonl"), "wb") as out:
                while file.tell() < size * (i + 1) // parts:
                    out.write(file.readline())
    return where


def dedup() -> None:
    phases = driver.Phases()
    source = cut(GIVEN.input, GIVEN.cores)
    phases.done("cut")
    norm = TextNormConfig(norm_unicode_diacritics=False, norm_numbers=False)
    config = MinhashConfig(n_grams=driver.N, num_buckets=BUCKETS, hashes_per_bucket=HASHES, norm_config=norm)
    signatures, buckets, removed, kept = (driver.folder(GIVEN, name) for name in ("sig", "buckets", "remove", "kept"))

    def run(name: str, steps: list, tasks: int) -> None:
        LocalPipelineExecutor(
            pipeline=steps,
            tasks=tasks,
            workers=min(tasks, GIVEN.cores),
            logging_dir=driver.folder(GIVEN, f"log-{name}"),
            start_method="fork",
        ).run()
        phases.done(name)

    reader = JsonlReader(source)
    words = Words() if GIVEN.variant == "words" else GIVEN.language
    run("signatures", [reader, MinhashDedupSignature(signatures, config=config, language=words)], GIVEN.cores)
    run("buckets", [MinhashDedupBuckets(signatures, buckets, config=config)], BUCKETS)
    run("cluster", [MinhashDedupCluster(buckets, removed, config=config)], 1)
    run("filter", [JsonlReader(source), MinhashDedupFilter(removed), JsonlWriter(kept, compression=None)], GIVEN.cores)
    rows = []
    for name in sorted(os.listdir(kept)):
        with open(os.path.join(kept, name), "rb") as file:
            rows += [int(json.loads(line)["id"]) for line in file]
    phases.done("rows")
    driver.write(GIVEN.output, kept=sorted(rows), phases=phases.seconds)


if __name__ == "__main__":
    if GIVEN.mode == "dedup":
        dedup()
    else:
        driver.write(GIVEN.output, why="signatures only as files of a pipeline")
