"""`heedful embed`, as a person types it."""

import json

import pytest
import torch

from heedful.cli.main import run
from heedful.models import load_model
from heedful.text import load_tokenizer

SMALL = ["--context", "8", "--width", "12", "--layers", "1", "--heads", "2", "--steps", "2",
         "--batch", "2", "--device", "cpu", "--vocabulary", "300"]  # fmt: skip


@pytest.fixture
def said(capsys):
    def call(*arguments):
        status = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_document_001_with_no_source(said, tmp_path):
    status, output, _ = said("embed")
    assert status == 0
    assert "0.8802" in output
    path = tmp_path / "family.png"
    status, output, _ = said("embed", "--analogy", "king", "queen", "dad", "--picture", path)
    assert status == 0
    assert "mom   1.0000" in output
    assert path.read_bytes().startswith(b"\x89PNG")


def test_json_and_who_is_left_out(said):
    asked = ["embed", "--analogy", "king", "queen", "dad", "--json"]
    found = json.loads(said(*asked)[1])
    assert [answer["word"] for answer in found["analogy"]] == ["mom"]
    found = json.loads(said(*asked, "--keep-given", "--between", "mom", "king")[1])
    assert found["analogy"][0]["word"] == "mom"
    assert len(found["analogy"]) == 4
    assert round(found["between"]["similarity"], 2) == 0.52


def test_a_run_answers_with_its_tokens(said, tmp_path):
    text, out = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("night and day, day and night. " * 60)
    assert said("train", text, "--out", out, *SMALL)[0] == 0
    status, output, _ = said("embed", out, "--similar", "·day", "--count", "3", "--json")
    assert status == 0
    table = load_model(out).tokens.weight.detach()
    answers = json.loads(output)["similar"]
    assert len(answers) == 3
    assert "·day" not in [answer["word"] for answer in answers]
    day = load_tokenizer(out).pieces(range(len(table))).index("·day")
    expected = torch.cosine_similarity(table, table[day : day + 1]).sort(descending=True).values
    found = [answer["similarity"] for answer in answers]
    assert found == pytest.approx(expected[1:4].tolist(), abs=1e-5)
    pictured = tmp_path / "day.svg"
    assert said("embed", out, "--similar", "day", "--picture", pictured)[0] == 0
    assert pictured.exists()
    error = said("embed", out, "--picture", pictured)[2]
    assert "--word night --word day" in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--similar", "quen"], "queen"),
        (["nowhere", "--similar", "king"], "no nowhere"),
        (["--picture", "family.jpg"], ".png, .svg or .pdf"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, words, said):
    status, _, error = said("embed", *arguments)
    assert status == 1
    assert words in error
    assert error.count("\n") == 1


def test_wrong_usage(said):
    assert said("embed", "--between", "king")[0] == 2
