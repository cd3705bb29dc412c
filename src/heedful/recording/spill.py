"""A memory budget for recordings: calls that exceed it are stored in temporary files."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

from heedful.files import save_errors
from heedful.recording import file
from heedful.recording.capture import Capture
from heedful.recording.token_labels import Texts


class Spill:
    """Stores calls in memory up to a budget in bytes, and each call that exceeds it in a file.

    A file is deleted as soon as it is memory-mapped, so the system frees the space when the process
    ends. Windows cannot delete mapped files: there, files are deleted with the `Spill`.
    """

    def __init__(self, budget: int | None = None) -> None:
        self.budget = budget
        self.used = 0

    def store(self, capture: Capture) -> Capture:
        """Return the call, stored in memory or in a file; raise a SaveError if that fails."""
        if self.budget is None:
            return capture
        size = file.size(capture)
        if self.used + size <= self.budget:
            self.used += size
            return capture
        with save_errors(Path(tempfile.gettempdir())):
            directory = Path(tempfile.mkdtemp(prefix="heedful-"))
        try:
            file.save([capture], directory / "call.safetensors", Texts())
            [mapped], *_ = file.load(directory / "call.safetensors")
        finally:
            shutil.rmtree(directory, ignore_errors=True)
            if directory.exists():
                weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        return mapped
