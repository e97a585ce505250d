"""gaoya: MinHashStringIndex, 32-bit slots, 17 bands of 7 rows; words or characters are cut in Rust.

Bulk insert and bulk query with its own threads; matches are the ids that it returns (estimate above the threshold). In
file order a row goes if it matches an earlier one that stays. A text shorter than five units has no shingle here, and
all such texts match one another, so they are kept without asking.
"""

from __future__ import annotations

import driver  # first: it takes this folder from the front of the path

# isort: split
from gaoya.minhash import MinHashStringIndex

GIVEN = driver.arguments()


def units(text: str) -> int:
    return len(text) if GIVEN.language == "zh" else len(text.split())


def dedup() -> None:
    phases = driver.Phases()
    rows = [row for block in driver.blocks(GIVEN.input) for row in driver.block_rows(block)]
    phases.done("read")
    analyzer = "char" if GIVEN.language == "zh" else "word"
    index = MinHashStringIndex(32, GIVEN.threshold, 17, 7, None, analyzer, True, (driver.N, driver.N), "vec")
    asked = [(row, text) for row, text in rows if units(text) >= driver.N]
    numbers, texts = [row for row, _ in asked], [text for _, text in asked]
    index.par_bulk_insert_docs(numbers, texts)
    phases.done("insert")
    found = index.par_bulk_query(texts)
    phases.done("query")
    place = {row: i for i, row in enumerate(numbers)}
    stays = driver.greedy(len(numbers), ((i, place[other]) for i, others in enumerate(found) for other in others))
    gone = {row for row, stay in zip(numbers, stays, strict=True) if not stay}
    driver.write(GIVEN.output, kept=[row for row, _ in rows if row not in gone], phases=phases.seconds)


def sketch(texts: list[str]) -> object:
    raise SystemExit("gaoya gives no signatures")


if __name__ == "__main__":
    if GIVEN.mode == "dedup":
        dedup()
    else:
        driver.write(GIVEN.output, why="gives no signatures")
