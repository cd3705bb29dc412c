"""`heedful record` and `heedful heads`."""

import json
import shutil

import pytest
import torch
from command_checks import misused, refused
from head_scores_by_definition import means

import heedful
from heedful.cli.record import check_in_words, heads_in_words
from heedful.recording import from_attentions

TEXT = "day and night, day and night"


def test_a_recording_is_written_and_its_heads_are_listed(night, cli, tmp_path):
    out = tmp_path / "r.safetensors"
    status, output, _ = cli("record", night, TEXT, "--out", out, "--values")
    assert status == 0
    assert "2 layers, 3 heads each" in output
    assert f"heads {out}" in output
    recording = heedful.load(out)
    assert recording[0].tokens == recording.tokens[0]
    assert "".join(recording[0].tokens).replace("·", " ") == TEXT
    assert recording[1].value is not None
    rows = json.loads(cli("heads", out, "--json")[1])
    assert [(row["layer"], row["head"]) for row in rows] == [
        (i, h) for i in (0, 1) for h in (0, 1, 2)
    ]
    entropy = recording[1].entropy().nanmean(-1)
    assert [row["entropy"] for row in rows[3:]] == pytest.approx(entropy.tolist(), abs=1e-5)
    induction = means(recording[0])["induction"]
    assert [row["induction"] for row in rows[:3]] == pytest.approx(induction.tolist(), abs=1e-5)


def test_heads_of_a_model_sorted(night, cli):
    status, output, _ = cli("heads", night, TEXT, "--sort", "previous", "--count", "4", "--json")
    assert status == 0
    scores = [row["previous"] for row in json.loads(output)]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 4
    status, output, _ = cli("heads", night, TEXT)
    assert status == 0
    assert [line.split()[0] for line in output.splitlines()[7:9]] == ["chance", "queries"]
    assert output.splitlines()[9:] == ["", "proof: proved; layout: told"]
    assert {"prev", "sink", "induct", "entropy"} <= set(output.split("\n")[0].split())


def test_errors_are_one_line(night, cli, tmp_path):
    for arguments, words in [
        (["record", night, "day " * 200, "--out", tmp_path / "x"], "context of 32"),
        (["heads", night / "config.json"], "is not a recording"),
        (["heads", tmp_path / "nothing", TEXT], "nothing"),
        (["heads", "nothing.safetensors", "--json"], "written by recording.save"),
        (["record", night, TEXT, "--out", tmp_path / "x", "--layers", "7"], "from 0 to 1"),
        (["record", night, TEXT, "--out", tmp_path / "x", "--heads", "1,1"], "each once"),
    ]:
        refused(cli(*arguments), words)
    misused(cli("heads", night), "--file")
    misused(cli("record", night, TEXT, "--out", tmp_path / "x", "--heads", "one"), "--heads")
    refused(cli("record", night, TEXT, "--out", tmp_path / "x", "--budget", "nan"), "budget=nan")
    empty = from_attentions([]).save(tmp_path / "empty.safetensors")
    refused(cli("heads", empty), "nothing was recorded in")
    none = from_attentions([torch.zeros(0, 2, 3, 3)]).save(tmp_path / "none.safetensors")
    refused(cli("heads", none), "no sequence in layer 0")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "", "empty", "no/x",
                                   "tokenizer.json/x"])  # fmt: skip
def test_nothing_but_a_recording_is_replaced(name, night, cli, tmp_path, monkeypatch):
    """The error is raised before the model is opened."""
    monkeypatch.setattr("heedful.loaded.open_model", lambda *_, **__: pytest.fail("opened"))
    run = shutil.copytree(night, tmp_path / "run")
    (run / "empty").touch()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    refused(cli("record", run, TEXT, "--out", run / name), str(run / name))
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("end", [None, -20])
def test_a_recording_is_replaced_even_if_truncated(end, night, cli, tmp_path):
    path = from_attentions([torch.eye(3).expand(1, 2, 3, 3)]).save(tmp_path / "r")
    path.write_bytes(path.read_bytes()[:end])
    status, _, error = cli("record", night, TEXT, "--out", path)
    assert (status, error) == (0, "")
    assert len(heedful.load(path)) == 2


def test_some_layers_and_heads_keep_the_numbers_of_the_model(night, cli, tmp_path):
    out, complete = tmp_path / "some.safetensors", tmp_path / "all.safetensors"
    assert cli("record", night, TEXT, "--out", complete)[0] == 0
    selection = ["--layers", "1", "--heads", "2,0-0", "--budget", "0"]
    status, output, _ = cli("record", night, TEXT, "--out", out, *selection)
    assert status == 0
    assert "1 layer, 2 heads each (2, 0)" in output
    rows = json.loads(cli("heads", out, "--json")[1])
    assert [(row["layer"], row["head"]) for row in rows] == [(1, 2), (1, 0)]
    expected = {row["head"]: row for row in json.loads(cli("heads", complete, "--json")[1])[3:]}
    for row in rows:
        for name in ("entropy", "previous"):
            assert row[name] == pytest.approx(expected[row["head"]][name], abs=1e-5)
    lines = cli("heads", out)[1].split("\n")
    assert [line.split()[0] for line in lines[1:3]] == ["1.2", "1.0"]


def test_calls_that_cannot_be_compared_are_counted(night, cli, tmp_path):
    recording = from_attentions([torch.eye(3).expand(1, 2, 3, 3)] * 3)
    assert check_in_words(recording) == "nothing: not compared: only the weights are known"
    with heedful.record(HALF) as half:
        HALF(torch.randn(1, 2, 5, 4))
    assert "1 of 2 calls not" in check_in_words(half)
    assert "nan" not in check_in_words(half)


class Half(torch.nn.Module):
    """Two calls of attention, the first with dropout."""

    def forward(self, x):
        first = heedful.attention(x, x, x, dropout=0.5)
        return heedful.attention(first, first, first)


HALF = Half()


def test_two_calls_of_one_layer_have_their_own_rows(cli, tmp_path):
    path = tmp_path / "twice.safetensors"
    with heedful.record(HALF) as recording:
        HALF(torch.randn(1, 2, 5, 4))
    recording.save(path)
    assert heads_in_words(recording) == "2 calls (self) of 1 layer, 2 heads each"
    assert recording[0].layer is None
    header, *lines = cli("heads", path, "--sort", "entropy", "--count", "1")[1].splitlines()
    assert header.split()[:4] == ["head", "call", "proof", "kind"]
    rows = json.loads(cli("heads", path, "--json")[1])
    assert [row["call"] for row in rows] == [0, 0, 1, 1]
    highest = max(rows, key=lambda row: row["entropy"])
    assert lines[0].split()[:2] == [f"–.{highest['head']}", str(highest["call"])]


def test_a_batch_shows_all_sequences_or_the_requested_sequence(cli, tmp_path):
    map_ = torch.rand(3, 2, 9, 9).softmax(-1)
    path = from_attentions([map_]).save(tmp_path / "r.safetensors")
    rows = json.loads(cli("heads", path, "--json")[1])
    assert [(row["sequence"], row["head"]) for row in rows] == [
        (b, h) for b in range(3) for h in (0, 1)
    ]
    sinks = map_[:, :, 1:, 0].mean(-1).flatten()
    assert [row["sink"] for row in rows] == pytest.approx(sinks.tolist(), abs=1e-5)
    header, *lines = cli("heads", path)[1].splitlines()
    assert header.split()[:2] == ["head", "seq"]
    assert [line.split()[1] for line in lines[:6]] == ["0", "0", "1", "1", "2", "2"]
    assert json.loads(cli("heads", path, "--sequence", "2", "--json")[1]) == rows[4:]
    refused(cli("heads", path, "--sequence", "3"), "sequence 3")


def test_the_evidence_of_each_kind(cli, tmp_path):
    previous_token = torch.eye(12).roll(-1, 1)
    previous_token[0] = torch.eye(12)[0]
    previous_token[1:] = torch.eye(12)[:-1]
    maps = torch.stack([previous_token, torch.ones(12, 12).tril() / torch.arange(1, 13)[:, None]])
    path = from_attentions([maps[None]]).save(tmp_path / "r.safetensors")
    header, first, second = cli("heads", path, "--evidence")[1].splitlines()[:3]
    assert header.split() == ["head", "kind", "score", "chance", "queries", "why"]
    chance = sum(1 / n for n in range(2, 13)) / 11
    assert first.split() == ["0.0", "previous", "1.00", f"{chance:.2f}", "11"]
    assert second.split() == ["0.1", "broad", "1.00", "–", "11"]
    header, *lines = cli("heads", path, "--evidence", "--sort", "self")[1].splitlines()[:3]
    assert "self" in header.split()  # the score that the rows are sorted by
    assert [line.split()[0] for line in lines] == ["0.1", "0.0"]
    row = json.loads(cli("heads", path, "--json")[1])[0]
    assert row["chance"]["previous"] == pytest.approx(chance, abs=1e-5)
    assert (row["queries"]["previous"], row["chance"]["broad"]) == (11, None)
