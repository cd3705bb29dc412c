"""Commands in environments with a missing plot backend, no columns, and other encodings."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
from heedful.cli.main import main
for arguments in {commands!r}:
    try:
        main(arguments)
    except SystemExit as end:
        assert end.code == 0, arguments
    print("end of command")
"""


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_commands_print_their_results(encoding, night, tmp_path):
    run, text = str(night), "night — 夜"
    commands = [
        ["describe", run],
        ["explain", "night and day"],
        ["explain", "night and day", "--model", run],
        ["heads", run, "night and day, day and night"],
        ["generate", run, "night", "--tokens", "3", "--seed", "1", "--probabilities", "2"],
        ["plot", run, "night and day", "--out", str(tmp_path / "a.png")],
        ["embed", "--picture", str(tmp_path / "b.png")],
        ["tokenize", text],
        ["tokenize", text, "--tokenizer", "characters", "--json"],
    ]
    environment = {"COLUMNS": "0", "MPLBACKEND": "missing", "PYTHONIOENCODING": encoding}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(commands=commands)],
        env={**os.environ, **environment}, capture_output=True, encoding=encoding,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    outputs = result.stdout.split("end of command\n")[:-1]
    assert len(outputs) == len(commands)
    assert all(output.strip() for output in outputs)
    assert json.loads(outputs[-1])["pieces"] == list("night·—·夜")
    assert all((tmp_path / name).stat().st_size for name in ("a.png", "b.png"))
