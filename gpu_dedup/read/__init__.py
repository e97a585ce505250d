"""Reading: which files there are, their bytes in chunks, and the rows in a chunk.

    sources = discover(["crawl/", "more/*.jsonl.gz"], "clean")
    with open_source(sources[0], 4 << 20, 0, ["text", "id"]) as reader:
        for chunk in reader:                              # one thread, in file order
            rows = chunk.parse(backend, ("text",), ("id",))   # any thread
        again = reader.read_refs([chunk.ref, ...])        # the same chunks once more

Where chunks end never changes a row: neither its number, nor its text, nor why it is bad.
"""

from gpu_dedup.read.chunks import Chunk, ChunkRef, Reader, fields_here
from gpu_dedup.read.discover import STANDARD, Source, StandardInput, discover
from gpu_dedup.read.files import open_source, read_rows, state_of
from gpu_dedup.read.guess import first_fields, guess_text_field

__all__ = [
    "STANDARD",
    "Chunk",
    "ChunkRef",
    "Reader",
    "Source",
    "StandardInput",
    "discover",
    "fields_here",
    "first_fields",
    "guess_text_field",
    "open_source",
    "read_rows",
    "state_of",
]
