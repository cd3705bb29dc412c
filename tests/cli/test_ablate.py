"""`heedful ablate`: numbers of the library, texts, pairs, metrics, resuming, pictures."""

import json
import re

import pytest
import torch
from command_checks import misused, refused

import heedful
from heedful.interventions import ablation

TEXT = "day and night, day and night, and day"
HEADS = [(layer, head) for layer in (0, 1) for head in (0, 1, 2)]


def data(result):
    """The JSON that a successful command has printed."""
    status, output, error = result
    assert (status, error) == (0, "")
    return json.loads(output)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "texts").mkdir()
    for name, count in {"a.txt": 12, "b.txt": 3}.items():
        (tmp_path / "texts" / name).write_text("night and day, or day and night. " * count)
    return tmp_path / "texts"


@pytest.fixture
def opened(night):
    return heedful.open(night, device="cpu")


def inputs(opened, text):
    return {"ids": torch.tensor([opened.tokenizer.encode(text)])}


def test_numbers_are_those_of_the_library(night, opened, cli):
    groups = {"all": ["0.*", "1.*"], "edge": ["1.0@-1:0-2"]}
    words = [f"--groups={name}={','.join(parts)}" for name, parts in groups.items()]
    printed = data(cli("ablate", night, TEXT, *words, "--json"))
    expected = heedful.ablate(opened.model, [inputs(opened, TEXT)], groups=groups)
    assert {name: printed.pop(name) for name in expected} == expected
    tokens = len(opened.tokenizer.encode(TEXT))
    assert printed == {"model": str(night), "metric": "loss", "kind": "zero", "texts": 1,
                       "tokens": tokens, "left_out": []}  # fmt: skip
    assert [(head["layer"], head["head"]) for head in expected["heads"]] == HEADS


def test_the_table_is_sorted_and_states_the_sign_and_the_proofs(night, cli):
    status, output, error = cli("ablate", night, TEXT, "--groups", "all=*.*", "--count", "4")
    assert (status, error) == (0, "")
    lines = output.splitlines()
    deltas = [float(line.split()[1]) for line in lines[1:5]]
    assert deltas == sorted(deltas, reverse=True)
    assert lines[0].split()[:3] == ["head", "Δ", "kind"]
    assert "positive: the model gets worse" in " ".join(output.split())
    assert "changed outputs: 7 proved" in output
    assert any(line.startswith("all ") for line in lines)


@pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
def test_texts_are_split_into_contexts_and_errors_are_over_texts(kind, night, opened, folder, cli):
    arguments = ["--texts", folder, "--context-length", "16", "--kind", kind, "--json"]
    status, output, error = cli("ablate", night, *arguments)
    contexts = [
        ablation.Context(part.inputs, text)
        for text, name in enumerate(("a.txt", "b.txt"))
        for part in opened.contexts((folder / name).read_text(), 16)
        if len(part.tokens) > 1
    ]
    expected = heedful.ablate(opened.model, contexts, kind=kind)
    printed = json.loads(output)
    assert status == 0
    assert ("left out: " in error) == (kind == "resample")
    assert {name: printed[name] for name in expected} == expected
    assert printed["texts"] == 2
    assert None not in [head["error"] for head in printed["heads"]]


def test_an_interrupted_command_continues(night, folder, cli, tmp_path, monkeypatch):
    out, runs = tmp_path / "a.json", []
    command = ["ablate", night, "--texts", folder, "--context-length", "16", "--json"]
    command += ["--groups", "a=0.0,1.1"]
    complete = data(cli(*command))
    changed = ablation.Ablation._changed

    def interrupted(self, *arguments):
        runs.append(1)
        if len(runs) == 10:
            raise KeyboardInterrupt
        return changed(self, *arguments)

    monkeypatch.setattr(ablation.Ablation, "_changed", interrupted)
    assert cli(*command, "--out", out)[0] == 130
    [part] = tmp_path.glob("a.json.*")
    with open(part, "a") as file:
        file.write('\n["cut')  # as if the process was killed while it wrote
    for other in (["--kind", "mean"], ["--groups", "b=0.1"], ["--context-length", "15"]):
        refused(cli(*command, "--out", out, *other), "results of another command", part.name)
    stored = part.read_text()
    part.write_text(re.sub(r'"plain", [^,]*', '"plain", 9.5', stored))  # of another checkpoint
    refused(cli(*command, "--out", out), "results of another command, model or metric")
    part.write_text(stored)
    assert data(cli(*command, "--out", out)) == complete == json.loads(out.read_text())
    assert len(runs) - 1 == (len(HEADS) + 1) * complete["contexts"]  # none was computed twice
    assert not part.exists()
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    refused(cli(*command, "--out", out), "already exists", "--overwrite")


def pairs(path, *rows):
    path.write_text("\n".join(["clean,corrupted,label", *rows]))
    return path


def test_loss_of_pairs_is_that_of_the_label(night, opened, cli, tmp_path):
    path = pairs(
        tmp_path / "a.csv", '"day and","night and"," night"', '"or day","or night"," and day"'
    )
    printed = data(cli("ablate", night, "--pairs", path, "--json"))
    losses = []
    for clean, label in (("day and", " night"), ("or day", " and day")):
        ids = inputs(opened, clean + label)["ids"]
        last = ids.shape[1] - len(opened.tokenizer.encode(clean))
        with torch.no_grad():
            logits = opened.model(ids).logits[0, -last - 1 : -1].double().log_softmax(-1)
        losses.append(float(-logits.gather(1, ids[0, -last:, None]).mean()))
    assert printed["plain"] == pytest.approx(sum(losses) / 2, abs=1e-5)
    assert (printed["texts"], printed["contexts"]) == (2, 2)


def test_logit_differences_of_pairs_resample_the_corrupted_text(night, opened, cli, tmp_path):
    path = pairs(tmp_path / "a.csv", '"day and","day day"," night/ day"')
    command = ["ablate", night, "--metric", "logit-difference", "--json"]
    printed = data(cli(*command, "--pairs", path, "--kind", "resample"))
    right, wrong = (opened.tokenizer.encode(word)[0] for word in (" night", " day"))
    clean, corrupted = (inputs(opened, text) for text in ("day and", "day day"))
    with torch.no_grad(), heedful.record(opened.model, values=True) as other:
        opened.model(**corrupted)
    with torch.no_grad():
        plain = opened.model(**clean).logits[0, -1]
        with heedful.intervene(opened.model, {"blocks.1": heedful.change.output_from(other, 2)}):
            new = opened.model(**clean).logits[0, -1]
    drop = (plain[right] - plain[wrong]) - (new[right] - new[wrong])
    assert printed["heads"][5]["delta"] == pytest.approx(float(drop), abs=1e-5)
    assert printed["plain"] == pytest.approx(float(plain[right] - plain[wrong]), abs=1e-5)
    tokens = data(cli(*command, "day and", "--tokens", " night", " day"))
    assert tokens["plain"] == printed["plain"]


def test_first_order_is_told_apart_and_has_its_correlation(night, cli):
    printed = data(cli("ablate", night, TEXT, "--first-order", "--json"))
    assert None not in [head["first_order"] for head in printed["heads"]]
    status, output, _ = cli("ablate", night, TEXT, "--first-order")
    assert status == 0
    assert output.split()[:3] == ["head", "Δ", "Δ₁"]
    assert f"rank correlation with Δ is {printed['correlation']:.2f}" in output


def test_a_function_of_a_file_is_a_metric(night, cli, tmp_path):
    (tmp_path / "m.py").write_text(
        "def moved(output, inputs, unchanged):\n"
        "    return (output.logits - unchanged.logits).abs().max()\n"
    )
    printed = data(cli("ablate", night, TEXT, "--metric", f"{tmp_path}/m.py:moved", "--json"))
    assert printed["plain"] == 0
    assert min(head["delta"] for head in printed["heads"]) > 0
    refused(cli("ablate", night, TEXT, "--metric", f"{tmp_path}/m.py:none"), "FILE.py:FUNCTION")
    refused(cli("ablate", night, TEXT, "--metric", "accuracy"), "loss, kl, logit-difference")


def test_wrong_inputs_are_one_line(night, folder, cli, tmp_path):
    def of_pairs(row, *arguments):
        return cli("ablate", night, "--pairs", pairs(tmp_path / "p.csv", row), *arguments)

    refused(of_pairs('"day","day and night"," and"', "--kind", "resample"), "line 2", "corrupted")
    refused(of_pairs('"nigh","night","t"'), "begin it with a space")
    refused(of_pairs('"day","night",""'), "'', 0 tokens after 'day'")
    (tmp_path / "bad.csv").write_text("clean,label\na,b\n")
    refused(cli("ablate", night, "--pairs", tmp_path / "bad.csv"), "clean, corrupted, label")
    (tmp_path / "latin.csv").write_bytes(b"clean,corrupted,label\ncaf\xe9,a,b\n")
    refused(cli("ablate", night, "--pairs", tmp_path / "latin.csv"), "latin.csv", "UTF-8")
    refused(cli("ablate", night, TEXT, "--groups", "a=7.0"), "'7.0' in the group 'a'", "1.2")
    refused(cli("ablate", night, TEXT, "--groups", "0.1"), "'' in the group '0.1'")
    refused(cli("ablate", night, TEXT, "--out", tmp_path / "a.png"), "ends in .json")
    (tmp_path / "b.png").touch()  # a picture that the results would replace
    refused(cli("ablate", night, TEXT, "--out", tmp_path / "b.json"), "b.png", "already exists")
    refused(cli("ablate", night, TEXT, "--out", tmp_path / "none" / "a.json"), "none")
    tokens = ["--metric", "logit-difference", "--tokens", " day and", " night"]
    refused(cli("ablate", night, TEXT, *tokens), "expected one token")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give TEXT, or one of"),
        ([TEXT, "--groups", "a=0.0", "--groups", "a=0.1"], "a different NAME"),
        ([TEXT, "--include", "*"], "--include"),
        (["--pairs", "a.csv", "--context-length", "9"], "no effect on --pairs"),
        ([TEXT, "--metric", "logit-difference"], "--tokens"),
        ([TEXT, "--tokens", "a", "b"], "--tokens"),
        ([TEXT, "--kind", "noise"], "noise"),
    ],
)
def test_wrong_usage(arguments, words, night, cli):
    misused(cli("ablate", night, *arguments), words)
