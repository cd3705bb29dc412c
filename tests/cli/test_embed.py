"""`heedful embed`: similarities, analogies, pictures and errors."""

import json

import numpy as np
import pytest
import torch
from command_checks import misused, refused
from rich.cells import cell_len

from heedful.models import load_model
from heedful.pictures import word_plane
from heedful.text import load_tokenizer


def test_document_001_with_no_source(cli, tmp_path):
    status, output, _ = cli("embed")
    assert status == 0
    assert "0.8802" in output
    path = tmp_path / "family.png"
    status, output, _ = cli("embed", "--analogy", "king", "queen", "dad", "--picture", path)
    assert status == 0
    assert "mom   1.0000" in output
    assert path.read_bytes().startswith(b"\x89PNG")


def test_json_of_an_analogy_without_and_with_its_own_words(cli):
    options = ["embed", "--analogy", "king", "queen", "dad", "--json"]
    result = json.loads(cli(*options)[1])
    assert [answer["word"] for answer in result["analogy"]] == ["mom"]
    result = json.loads(cli(*options, "--keep-given", "--between", "mom", "king")[1])
    assert result["analogy"][0]["word"] == "mom"
    assert len(result["analogy"]) == 4
    assert round(result["between"]["similarity"], 2) == 0.52


def test_an_analogy_shows_its_vectors_and_their_sum(cli):
    _, output, _ = cli("embed", "--analogy", "king", "queen", "dad")
    rows = [line.split() for line in output.splitlines()]
    assert ["queen", "0.20", "0.50", "0.10"] in rows
    assert ["-", "king", "0.90", "0.50", "0.10"] in rows
    assert ["+", "dad", "0.90", "0.70", "0.90"] in rows
    assert ["=", "sum", "0.20", "0.70", "0.90"] in rows  # document 001


def test_wide_vectors_of_an_analogy_are_abbreviated(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    table = np.random.default_rng(5).normal(size=(4, 200))
    path = tmp_path / "wide.json"
    path.write_text(json.dumps(dict(zip("abcd", table.tolist(), strict=True))))
    output = cli("embed", path, "--analogy", "a", "b", "c")[1]
    total = table[1] - table[0] + table[2]
    [line] = [line for line in output.splitlines() if "= sum" in line]
    first, last = line.split("sum")[1].split("…")
    assert first.split() == [f"{x:.4f}" for x in total[: len(first.split())]]
    assert last.split() == [f"{x:.4f}" for x in total[-len(last.split()) :]]
    assert max(map(cell_len, output.splitlines())) <= 60
    result = json.loads(cli("embed", path, "--analogy", "a", "b", "c", "--json")[1])
    np.testing.assert_allclose(result["sum"], total)


def test_a_cosine_is_written_out(cli, tmp_path):
    output = cli("embed", "--between", "mom", "king")[1]
    assert "0.20×0.90 + 0.70×0.50 + 0.90×0.10 = 0.62\n" in output
    mom, king = np.array([0.2, 0.7, 0.9]), np.array([0.9, 0.5, 0.1])
    norms = [f"{np.linalg.norm(vector):.5g}" for vector in (mom, king)]
    assert f"0.62 / ({norms[0]} × {norms[1]}) = 0.5178" in output
    path = tmp_path / "signed.csv"
    path.write_text("[bold]up,-3,4\ndown,6,8\n")  # a word that is markup of rich
    output = cli("embed", path, "--between", "[bold]up", "down")[1]
    assert "norm of [bold]up" in output
    assert "14 / (5 × 10) = 0.2800" in output


def test_words_of_a_run_are_its_tokens(night, cli, tmp_path):
    out = night
    status, output, _ = cli("embed", out, "--similar", "·day", "--count", "3", "--json")
    assert status == 0
    table = load_model(out).tokens.weight.detach()
    answers = json.loads(output)["similar"]
    assert len(answers) == 3
    assert "·day" not in [answer["word"] for answer in answers]
    day = load_tokenizer(out).pieces(range(len(table))).index("·day")
    expected = torch.cosine_similarity(table, table[day : day + 1]).sort(descending=True).values
    similarities = [answer["similarity"] for answer in answers]
    assert similarities == pytest.approx(expected[1:4].tolist(), abs=1e-5)
    pictured = tmp_path / "day.svg"
    assert cli("embed", out, "--similar", "day", "--picture", pictured)[0] == 0
    assert pictured.exists()
    error = cli("embed", out, "--picture", tmp_path / "all.svg")[2]
    assert "--similar" in error


PLACES = "france,8,3\nparis,9,1\nitaly,7.8,6.1\nrome,8.8,4.2\ncat,1,9\nzero,0,0\n"


@pytest.fixture
def places(tmp_path):
    path = tmp_path / "places.csv"
    path.write_text(PLACES)
    return path


@pytest.mark.parametrize("more", [[], ["--similar", "cat"], ["--keep-given"]])
def test_the_arrow_of_an_analogy_goes_to_its_answer(more, places, cli, tmp_path, monkeypatch):
    drawn = {}

    def words(points, labels, axes, *, arrows, title):
        drawn.update(arrows=[(labels[a], labels[b]) for a, b in arrows], title=title, all=labels)
        return original(points, labels, axes, arrows=arrows, title=title)

    original = word_plane.words
    monkeypatch.setattr(word_plane, "words", words)
    options = ["--analogy", "france", "paris", "italy", "--picture", tmp_path / "a.svg"]
    assert cli("embed", places, *options, *more)[0] == 0
    assert drawn["arrows"] == [("france", "paris"), ("italy", "rome")]
    assert drawn["title"] == "france : paris = italy : rome"
    assert ("cat" in drawn["all"]) == ("cat" in more)


def test_a_zero_vector_has_no_similarity(places, cli):
    status, output, _ = cli("embed", places, "--json")
    assert status == 0
    table = json.loads(output)["table"]
    assert table["zero"] == [None] * 6
    assert table["rome"][3] == pytest.approx(1)
    assert table["rome"][5] is None
    assert "–" in cli("embed", places)[1]
    for options in (["--similar", "zero"], ["--between", "cat", "zero"]):
        status, output, error = cli("embed", places, *options)
        assert (status, output) == (1, "")
        assert "a vector of zeros" in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--similar", "quen"], "queen"),
        (["--similar", ""], "no word ''"),
        (["no/such/place", "--similar", "king"], "no directory 'no/such/place'"),
        (["nowhere.csv"], "cannot read nowhere.csv: No such file"),
        (["--picture", "family.jpg"], ".png, .svg or .pdf"),
    ],
)
def test_errors_are_one_line(arguments, words, cli):
    refused(cli("embed", *arguments), words)
    misused(cli("embed", "--keep-given"), "--analogy")


def test_each_column_of_the_table_belongs_to_its_word(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = ["strawberry", "cherry", "international", "火", "banana", "elderberry"]
    rows = torch.randn(6, 3, generator=torch.manual_seed(3), dtype=torch.float64)
    path = tmp_path / "words.json"
    path.write_text(json.dumps(dict(zip(words, rows.tolist(), strict=True))))
    lines = cli("embed", path)[1].splitlines()
    assert max(map(cell_len, lines)) <= 80
    unit = rows / rows.norm(dim=1, keepdim=True)
    for word, expected in zip(words, (unit @ unit.T).tolist(), strict=True):
        [line] = [line for line in lines if line.startswith(word)]
        assert line.split()[1:] == [f"{value:.4f}" for value in expected]
