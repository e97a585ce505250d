"""Writing: the output is the input, less rows.

jsonl    surviving lines byte for byte, compressed as the input was
parquet  surviving records with schema, metadata, codecs and row-group scale kept
arrow    surviving records with schema, metadata, codec and record batches kept
files    a file without removals, copied as it is
folder   temporary names, then rename; report.json last
"""

from gpu_dedup.write.files import copy_file
from gpu_dedup.write.folder import FOLDER, LOG, REPORT, OutputFolder
from gpu_dedup.write.jsonl import Encoded, JsonlWriter, encode

# `write.parquet` and `write.arrow` are imported where they are needed: pyarrow takes longer to import than a small file
# to deduplicate.
__all__ = [
    "FOLDER",
    "LOG",
    "REPORT",
    "Encoded",
    "JsonlWriter",
    "OutputFolder",
    "copy_file",
    "encode",
]
