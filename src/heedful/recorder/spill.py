"""A recording that outgrows its share of memory goes on, call by call, on the disk."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

from heedful.files import saving
from heedful.recorder import file
from heedful.recorder.capture import Capture


class Spill:
    """Keeps calls in memory up to a budget, and those after it in files of their own.

    The files are read again where somebody asks for a part of them. They stand in a directory that
    goes when the spill does, with its recording or with the program.

    Args:
        budget: bytes of memory; None is no limit.
    """

    def __init__(self, budget: int | None = None) -> None:
        self.budget = budget
        self.held = 0
        self.spilled = 0
        self._directory: Path | None = None

    def keep(self, capture: Capture) -> Capture:
        """The same call, from memory or from the disk.

        Raises:
            SaveError: a full disk.
        """
        if self.budget is None:
            return capture
        size = file.size(capture)
        if self.held + size <= self.budget:
            self.held += size
            return capture
        path = self._place() / f"{self.spilled}.safetensors"
        file.save([capture], path, None)
        self.spilled += 1
        [again], _ = file.load(path)
        return again

    def _place(self) -> Path:
        if self._directory is None:
            with saving(Path(tempfile.gettempdir())):
                self._directory = Path(tempfile.mkdtemp(prefix="heedful-"))
            weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        return self._directory
