"""An output folder behind a URL: made on this machine, sent when it is complete, the report last of all.

A store has no rename and no lock, so what stands there is: nothing, some files without a report (a run that was killed
while it sent them; needs --overwrite), or a report and with it everything. Two runs into one folder at a time are the
user's to avoid.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any

from gpu_dedup.errors import InputError, OutputError, shown
from gpu_dedup.read.remote import filesystem
from gpu_dedup.write import REPORT
from gpu_dedup.write.folder import FOLDER, OWNED


class RemoteFolder:
    """url: the folder. Raises OutputError for a file system that is not there."""

    def __init__(self, url: str, overwrite: bool) -> None:
        self.url = url.rstrip("/")
        self.overwrite = overwrite
        try:
            self._fs, self._root = filesystem(url)
        except InputError as error:
            raise OutputError(str(error)) from None
        self._root = self._root.rstrip("/")

    def check(self) -> None:
        """Refuse a folder that holds anything else, or the result of another run without `overwrite`."""

        def look() -> None:
            self._fs.invalidate_cache()
            there = [] if not self._fs.exists(self._root) else self._fs.ls(self._root, detail=False)
            names = [str(path).rstrip("/").rsplit("/", 1)[-1] for path in there]
            if not names:
                return
            if FOLDER not in names:
                raise OutputError(
                    f"{shown(self.url)}: is not empty ({', '.join(sorted(names)[:3])}) and not an output of gpu-dedup; "
                    "choose a new or an empty folder"
                )
            if not self.overwrite:
                raise OutputError(
                    f"{shown(self.url)}: holds the output of another run; "
                    "choose another folder, or pass --overwrite to replace it"
                )

        self._guarded(look)

    def send(self, folder: str, advance: Callable[[int], object]) -> None:
        """Send all files of a finished output folder. What was sent is taken away again if this fails."""
        rels = sorted(
            os.path.relpath(os.path.join(parent, name), folder)
            for parent, _, names in os.walk(folder)
            for name in names
        )
        rels.remove(REPORT)
        sent: list[str] = []

        def work() -> None:
            earlier = self._earlier() if self.overwrite else set()
            for rel in [REPORT, *sorted(earlier - set(rels))]:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.rm_file(f"{self._root}/{rel}")
            for rel in [*rels, REPORT]:
                sent.append(rel)
                place = f"{self._root}/{rel}"
                self._fs.makedirs(place.rsplit("/", 1)[0], exist_ok=True)
                self._fs.put_file(os.path.join(folder, rel), place)
                advance(os.path.getsize(os.path.join(folder, rel)))

        try:
            self._guarded(work)
        except BaseException:
            for rel in reversed(sent):
                with contextlib.suppress(Exception):
                    self._fs.rm_file(f"{self._root}/{rel}")
            raise

    def _earlier(self) -> set[str]:
        """Files of an earlier run there."""
        place = f"{self._root}/{OWNED}"
        if not self._fs.exists(place):
            return set()
        with self._fs.open(place, "rb") as file:
            names = json.load(file)["files"]
        return {str(name) for name in names if all(part not in ("", ".", "..") for part in str(name).split("/"))}

    def _guarded(self, work: Callable[[], Any]) -> None:
        """Every store has its own exceptions; they become one line."""
        try:
            work()
        except OutputError:
            raise
        except Exception as error:
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise OutputError(
                f"{shown(self.url)}: cannot be written ({why}); check the name, the network and your credentials"
            ) from error
