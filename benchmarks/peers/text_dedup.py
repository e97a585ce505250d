"""text-dedup: `python -m text_dedup.minhash` with 17 bands of 7 rows of 128 hashes and exact verification.

Words are what stands between \\W characters, so a clause without blanks (Chinese) is one word. min_length is 1: by
default it takes texts of fewer than five words out. Those without a word it takes out even so; here they count as
kept. Its caches start empty.
"""

from __future__ import annotations

import os
import subprocess
import sys

import driver  # first: it takes this folder from the front of the path

# isort: split

GIVEN = driver.arguments()


def dedup() -> None:
    phases = driver.Phases()
    home, out = driver.folder(GIVEN, "home"), driver.folder(GIVEN, "out")
    path = os.path.abspath(GIVEN.input)
    settings = f"""
[input]
input_type = "local_files"
file_type = "json"
[input.read_arguments]
path = "json"
data_files = "{path}"
split = "train"
cache_dir = "{home}/cache"
[algorithm]
algorithm_name = "minhash"
text_column = "text"
num_perm = {GIVEN.slots}
bands = 17
rows = 7
threshold = {GIVEN.threshold}
ngram_size = {driver.N}
min_length = 1
num_proc = {GIVEN.cores}
check_false_positive = true
[output]
output_dir = "{out}"
keep_index_column = true
[debug]
enable_profiling = false
"""
    with open(os.path.join(home, "config.toml"), "w", encoding="utf-8") as file:
        file.write(settings)
    environment = {**os.environ, "HF_HOME": home, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    subprocess.run([sys.executable, "-m", "text_dedup.minhash"], cwd=home, env=environment, check=True)
    phases.done("run")
    from datasets import load_from_disk

    kept = set(load_from_disk(out)["__INDEX__"])
    import json
    import re

    with open(path, "rb") as file:
        kept.update(row for row, line in enumerate(file) if not re.search(r"\w", json.loads(line)["text"]))
    phases.done("rows")
    driver.write(GIVEN.output, kept=sorted(kept), phases=phases.seconds)


if __name__ == "__main__":
    if GIVEN.mode == "dedup":
        dedup()
    else:
        driver.write(GIVEN.output, why="signatures only inside its run")
