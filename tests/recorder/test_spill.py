"""Calls that exceed the memory budget are stored in files, with the same results."""

import gc
import os
import shutil
import tempfile
import weakref

import pytest
import torch
from shown_maps import recorded

import heedful
from heedful.errors import ArgumentError, SaveError
from heedful.models import GPT, GPTConfig
from heedful.recording import file
from heedful.recording.spill import Spill

IDS = torch.arange(2 * 11).view(2, 11) % 23
# Query and key in float32, a log-sum-exp for each row, and the ids
CALL = 2 * (2 * 4 * 11 * 6) * 4 + (2 * 4 * 11) * 4 + IDS.nbytes


@pytest.fixture
def model():
    return GPT(GPTConfig(vocabulary=23, context_length=32, width=24, layers=3, heads=4)).eval()


def test_calls_on_disk_can_be_used_outside_inference_mode(model, tmp_path):
    """Computed log-sum-exps are written into the tensors of the file."""
    with torch.inference_mode(), heedful.record(model, budget=CALL) as recording:
        model(IDS)
    with torch.no_grad(), heedful.record(model) as expected:
        model(IDS)
    path = expected.save(tmp_path / "r.safetensors")
    with torch.inference_mode():
        loaded = heedful.load(path)
    for stored in (recording, loaded):
        assert [head.kind for head in stored.heads()] == [head.kind for head in expected.heads()]
        for call, other in zip(stored, expected, strict=True):
            assert torch.equal(call.weights(), other.weights())


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def written(monkeypatch):
    """The paths of all files that were written."""
    paths, save = [], file.save
    monkeypatch.setattr(file, "save", lambda *args: paths.append(args[1]) or save(*args))
    return paths


@pytest.mark.parametrize(("budget", "files"), [(None, 0), (3 * CALL, 0), (2 * CALL, 1), (0, 3)])
def test_calls_on_disk_equal_calls_in_memory(model, temporary, written, budget, files):
    with heedful.record(model) as in_memory:
        model(IDS)
    recording = recorded(model, IDS, budget=budget)
    assert len(written) == files
    for sequence, other in zip(in_memory.sequences, recording.sequences, strict=True):
        for a, b in zip(sequence, other, strict=True):
            assert torch.equal(a.weights(), b.weights())
            assert torch.equal(a.ids, b.ids)
    loaded = heedful.load(recording.save(temporary / "all.safetensors"))
    assert torch.equal(loaded[2].weights(), in_memory[2].weights())


def test_tensors_moved_to_disk_are_freed(model, temporary):
    recording = recorded(model, IDS)
    capture = recording._captures[1]
    stored, query_ref = Spill(0).store(capture), weakref.ref(capture.query)
    expected = capture.query.tolist()
    del capture, recording
    gc.collect()
    assert query_ref() is None
    assert stored.query.tolist() == expected


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot unlink a mapped file")
def test_a_killed_program_leaves_no_file(model, temporary):
    with heedful.record(model, budget=0) as recording:
        model(IDS)
        assert not list(temporary.iterdir())
    weights = recording[1].weights()
    call = recording[2]
    del recording
    gc.collect()
    assert call.weights().shape == weights.shape  # a call that is still referenced can be read


def test_mapped_files_are_removed_with_the_recording(model, temporary, monkeypatch):
    """On Windows, mapped files cannot be unlinked: here, the first removal of each file fails."""
    failed, rmtree = set(), shutil.rmtree

    def remove(path, ignore_errors):
        return rmtree(path) if path in failed else failed.add(path)

    monkeypatch.setattr(shutil, "rmtree", remove)
    recording = recorded(model, IDS, budget=0)
    assert len(list(temporary.glob("heedful-*/call.safetensors"))) == 3
    del recording
    gc.collect()
    assert not list(temporary.iterdir())


def test_a_full_disk_leaves_no_file(model, temporary, monkeypatch):
    def is_full(*arguments):
        raise SaveError("cannot write", cause="a full disk")

    monkeypatch.setattr(file, "save", is_full)
    with pytest.raises(SaveError), heedful.record(model, budget=0):
        model(IDS)
    assert not list(temporary.iterdir())


def test_invalid_budgets_are_refused(model, temporary, monkeypatch):
    with (
        pytest.raises(ArgumentError, match="budget=-1"),
        heedful.record(model, budget=-1),
    ):
        pass
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "missing"))
    with pytest.raises(SaveError, match="cannot write"), heedful.record(model, budget=0):
        model(IDS)
