"""Moves a recording that outgrows its share of memory on to the disk, call by call."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

from heedful.files import saving
from heedful.recording import file
from heedful.recording.capture import Capture
from heedful.recording.token_labels import Texts


class Spill:
    """Keeps calls in memory up to a budget in bytes, and those after it in files of their own.

    They are read again where somebody asks for a part of them. A file has no name as soon as its
    tensors are mapped, and goes with the program, however that ends. Where files that are mapped
    keep their names, as on Windows, they go when the spill does.
    """

    def __init__(self, budget: int | None = None) -> None:
        self.budget = budget
        self.held = 0

    def keep(self, capture: Capture) -> Capture:
        """The same call, in memory or in a file; raises a SaveError where the disk is full."""
        if self.budget is None:
            return capture
        size = file.size(capture)
        if self.held + size <= self.budget:
            self.held += size
            return capture
        with saving(Path(tempfile.gettempdir())):
            directory = Path(tempfile.mkdtemp(prefix="heedful-"))
        try:
            file.save([capture], directory / "call.safetensors", Texts())
            [again], *_ = file.load(directory / "call.safetensors")
        finally:
            shutil.rmtree(directory, ignore_errors=True)
            if directory.exists():
                weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        return again
