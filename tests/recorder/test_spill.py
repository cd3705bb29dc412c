"""A recording past its budget of memory goes on, on the disk, and is the same."""

import gc
import tempfile
import weakref
from pathlib import Path

import pytest
import torch

import heedful
from heedful.errors import ArgumentError, SaveError
from heedful.models import GPT, GPTConfig
from heedful.recorder.spill import Spill

IDS = torch.arange(2 * 11).view(2, 11) % 23
CALL = 2 * (2 * 4 * 11 * 6) * 4 + IDS.nbytes  # query and key in float32, and the ids


@pytest.fixture
def model():
    return GPT(GPTConfig(vocabulary=23, context=32, width=24, layers=3, heads=4)).eval()


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def spilled(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("heedful-*/*"))


@pytest.mark.parametrize(("budget", "files"), [(None, 0), (3 * CALL, 0), (2 * CALL, 1), (0, 3)])
def test_what_is_spilled_is_the_same(model, temporary, budget, files):
    with heedful.record(model) as whole:
        model(IDS)
    with heedful.record(model, budget=budget) as recording:
        model(IDS)
    assert spilled(temporary) == [f"{i}.safetensors" for i in range(files)]
    for one, other in zip(whole.sequences, recording.sequences, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a.weights(), b.weights())
            assert torch.equal(a.ids, b.ids)
    again = heedful.load(recording.save(temporary / "all.safetensors"))
    assert torch.equal(again[2].weights(), whole[2].weights())


def test_what_is_spilled_is_no_longer_held(model, temporary):
    with heedful.record(model) as recording:
        model(IDS)
    capture = recording._captures[1]
    again, held = Spill(0).keep(capture), weakref.ref(capture.query)
    expected = capture.query.tolist()
    del capture, recording
    gc.collect()
    assert held() is None
    assert again.query.tolist() == expected


def test_files_go_with_the_recording(model, temporary):
    with heedful.record(model, budget=0) as recording:
        model(IDS)
    weights = recording[1].weights()
    call = recording[1]
    del recording
    gc.collect()
    assert not list(temporary.glob("heedful-*"))
    assert torch.equal(call.weights(), weights)  # what is still held can still be read


def test_a_budget_that_cannot_be(model, temporary, monkeypatch):
    with (
        pytest.raises(ArgumentError, match="budget=-1"),
        heedful.record(model, budget=-1),
    ):
        pass
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "missing"))
    with pytest.raises(SaveError, match="cannot write"), heedful.record(model, budget=0):
        model(IDS)
