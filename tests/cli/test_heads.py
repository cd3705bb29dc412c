"""`heedful record` and `heedful heads`, as a person types them."""

import json

import pytest
import torch

import heedful
from heedful.cli.main import run
from heedful.recorder import kinds

SMALL = ["--context", "32", "--width", "24", "--layers", "2", "--heads", "3", "--steps", "2",
         "--batch", "2", "--device", "cpu", "--vocabulary", "300"]  # fmt: skip
TEXT = "day and night, day and night"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    (folder / "text.txt").write_text("night and day, day and night. " * 60)
    assert run(["train", str(folder / "text.txt"), "--out", str(folder / "run"), *SMALL]) == 0
    return folder / "run"


@pytest.fixture
def said(capsys):
    def call(*arguments):
        status = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_a_recording_is_written_and_its_heads_are_listed(trained, said, tmp_path):
    out = tmp_path / "r.safetensors"
    status, output, _ = said("record", trained, TEXT, "--out", out, "--values")
    assert status == 0
    assert "2 layers of 3 heads" in output
    assert f"heads {out}" in output
    recording = heedful.load(out)
    assert recording[0].tokens == recording.tokens[0]
    assert "".join(recording[0].tokens).replace("·", " ") == TEXT
    assert recording[1].value is not None
    rows = json.loads(said("heads", out, "--json")[1])
    assert [(row["layer"], row["head"]) for row in rows] == [
        (i, h) for i in (0, 1) for h in (0, 1, 2)
    ]
    entropy = recording[1].entropy().nanmean(-1)
    assert [row["entropy"] for row in rows[3:]] == pytest.approx(entropy.tolist(), abs=1e-5)
    induction = kinds.scores(recording[0])["induction"]
    assert [row["induction"] for row in rows[:3]] == pytest.approx(induction.tolist(), abs=1e-5)


def test_heads_of_a_model_sorted(trained, said):
    status, output, _ = said("heads", trained, TEXT, "--sort", "previous", "--count", "4", "--json")
    assert status == 0
    scores = [row["previous"] for row in json.loads(output)]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 4
    status, output, _ = said("heads", trained, TEXT)
    assert status == 0
    assert output.count("\n") == 7
    assert {"prev", "sink", "induct", "entropy"} <= set(output.split("\n")[0].split())


def test_help_defines_each_score_and_names_its_source(said):
    output = " ".join(said("heads", "--help")[1].split())
    for name, kind in kinds.KINDS.items():
        assert f"{name}: {kind.definition}" in output
        assert kind.source in output


def test_what_is_wrong_is_one_line(trained, said, tmp_path):
    for arguments, words in [
        (["record", trained, "day " * 200, "--out", tmp_path / "x"], "context of 32"),
        (["record", trained, TEXT, "--out", tmp_path / "no" / "x"], "cannot write"),
        (["heads", trained / "config.json"], "cannot read"),
        (["heads", trained / "model.safetensors"], "is no recording"),
        (["heads", tmp_path / "nothing", TEXT], "nothing"),
    ]:
        status, _, error = said(*arguments)
        assert status == 1
        assert words in error
        assert error.count("\n") == 1
    assert said("heads", trained)[0] == 2
    assert not torch.is_inference_mode_enabled()
