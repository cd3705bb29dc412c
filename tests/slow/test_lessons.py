"""Each lesson runs, prints what is stored, and its answers run.

`tests/lessons.py` has the rule for differences between two runs.
"""

import subprocess
import sys

import lessons
import pytest
from matplotlib import font_manager


@pytest.mark.parametrize("path", lessons.LESSONS, ids=lambda path: path.stem)
def test_a_lesson_runs_and_prints_what_is_stored(path):
    """In a new process, so that lessons that run in parallel share no kernel."""
    assert font_manager.fontManager.ttflist, "building the font cache would print a message"
    process = subprocess.run(
        [sys.executable, lessons.__file__, "--check", path], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout + process.stderr
