"""The lessons run, show what they show, and their answers are right.

`tests/lessons.py` holds the rule for what may differ between two runs.
"""

import subprocess
import sys

import lessons
import pytest
from matplotlib import font_manager


@pytest.mark.parametrize("path", lessons.LESSONS, ids=lambda path: path.stem)
def test_a_lesson_runs_and_shows_what_is_stored(path):
    """In a process of its own, so that a kernel's sockets are its own as well."""
    assert font_manager.fontManager.ttflist, "a first look for fonts would speak in the lesson"
    checked = subprocess.run(
        [sys.executable, lessons.__file__, "--check", path], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
