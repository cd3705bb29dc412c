"""Every table and picture states proofs and layouts, and warns of guessed layouts."""

import json

import pytest
import torch

from heedful.pictures import head_grid
from heedful.recording import from_attentions, load
from heedful.recording.proof import Layout

WHY = "its 2 heads may be 2 texts"
REASON = f"not compared: only the weights are known; {WHY}"
WARNING = f"warning: guessed layout (1 of 2 calls): {REASON}"
WORDS = "proof: unproved; layout: 1 told, 1 guessed"


@pytest.fixture
def path(tmp_path):
    """The file of a recording with two calls; the layout of the second is guessed."""
    maps = from_attentions([torch.ones(1, 2, 6, 6).tril() / torch.arange(1, 7)[:, None]] * 2)
    maps._captures[1].layout = Layout("guessed", WHY)
    return maps.save(tmp_path / "r.safetensors")


@pytest.fixture
def recording(path):
    return load(path)


def test_a_picture_notes_proofs_and_warns_of_a_guess(recording, monkeypatch):
    notes = []
    monkeypatch.setattr(head_grid, "draw", lambda blocks, **look: notes.append(look["notes"]))
    recording.plot()
    recording.plot(layers=0)
    recording[1].plot()
    guess = ["proof: unproved; layout: guessed", f"warning: guessed layout: {REASON}"]
    assert notes == [[WORDS, WARNING], ["proof: unproved; layout: told"], guess]


@pytest.mark.parametrize("rest", [[], ["--segments", "a=0:3"]], ids=["heads", "segments"])
def test_a_table_in_a_terminal(rest, path, cli):
    status, output, _ = cli("heads", path, *rest)
    assert status == 0
    assert "layout" in output.splitlines()[0].split()
    below = " ".join(output.partition("\n\n")[2].split())
    missing = "unproved (1 of 2 calls): not compared: only the weights are known"
    assert below == f"{WORDS} {missing} {WARNING}"
    rows = json.loads(cli("heads", path, *rest, "--json")[1])
    assert {row["layout"] for row in rows} == {"told", "guessed"}
