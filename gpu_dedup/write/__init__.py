"""Writing: the output is the input, less rows.

jsonl    surviving lines byte for byte, compressed as the input was
parquet  surviving records with schema, metadata, codecs and row-group scale kept
arrow    surviving records with schema, metadata, codec and record batches kept
files    a file without removals, copied as it is
stream   the lines of all files, to standard output
mask     one bit for each row of the input
folder   temporary names, then rename; report.json last
"""

from gpu_dedup.write.files import copy_file, spool
from gpu_dedup.write.folder import FOLDER, LOG, REMOVED, REPORT, OutputFolder
from gpu_dedup.write.jsonl import Encoded, JsonlWriter, Segment, encode, segments
from gpu_dedup.write.mask import MASK, MaskWriter, read_mask
from gpu_dedup.write.stream import LineStream, standard_output

# `write.parquet` and `write.arrow` are imported where they are needed: pyarrow takes longer to import than a small file
# to deduplicate.
__all__ = [
    "FOLDER",
    "LOG",
    "MASK",
    "REMOVED",
    "REPORT",
    "Encoded",
    "JsonlWriter",
    "LineStream",
    "MaskWriter",
    "OutputFolder",
    "Segment",
    "copy_file",
    "encode",
    "read_mask",
    "segments",
    "spool",
    "standard_output",
]
