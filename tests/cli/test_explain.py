"""`heedful explain`: pages, JSON, pictures and errors."""

import base64
import json
import re
import struct
import zlib
from functools import partial

import pytest
import torch
from command_checks import misused, refused
from safetensors.torch import save_file

from heedful.cli.explain import VARIANTS
from heedful.explain import VARIANTS as KNOWN
from heedful.models import (
    GPT,
    Bert,
    BertConfig,
    GPTConfig,
    Seq2Seq,
    Seq2SeqConfig,
    load_model,
)
from heedful.models.directory import parameters_of, write_model_config
from heedful.text import CharacterTokenizer, WordPieceTokenizer, load_tokenizer
from heedful.views.explorer.wire import unpacked

SENTENCE = "Your journey starts with one step"


@pytest.fixture
def cli(cli):
    return partial(cli, "explain")


def saved(folder, model, tokenizer):
    folder.mkdir(exist_ok=True)
    write_model_config(folder, model.config)
    save_file(parameters_of(model), folder / "model.safetensors")
    tokenizer.save(folder)
    return folder


@pytest.fixture
def model(tmp_path):
    """A run directory with a small GPT whose tokens are the letters of a sentence."""
    tokenizer = CharacterTokenizer.train([SENTENCE])
    config = GPTConfig(vocabulary=tokenizer.size, context_length=40, width=24, layers=2, heads=4)
    return saved(tmp_path / "gpt", GPT(config), tokenizer)


@pytest.fixture
def bert(tmp_path):
    tokenizer = WordPieceTokenizer.train([SENTENCE * 9], 90)
    size = {"context_length": 20, "width": 24, "layers": 3, "heads": 4}
    return saved(tmp_path / "bert", Bert(BertConfig(vocabulary=tokenizer.size, **size)), tokenizer)


@pytest.fixture
def pairs(tmp_path):
    tokenizer = CharacterTokenizer.train([SENTENCE])
    size = {"context_length": 20, "width": 24, "layers": 2, "heads": 4}
    config = Seq2SeqConfig(vocabulary=tokenizer.size + 2, **size)
    return saved(tmp_path / "pairs", Seq2Seq(config), tokenizer)


def test_steps_have_the_numbers_of_the_model(cli, model):
    text = "with one step"
    where = ["--model", model, "--layer", 1, "--head", 3, "--device", "cpu"]
    status, output, _ = cli(text, *where, "--json")
    assert status == 0
    ids = torch.tensor([json_ids(model, text)])
    with torch.inference_mode():
        expected = list(load_model(model).steps(ids))[1]
    for name, numbers in expected._asdict().items():
        numbers_of_step = torch.tensor(with_infinity(steps(output)[name]["numbers"]))
        torch.testing.assert_close(numbers_of_step, numbers[0])
    assert "head 3 of 4" in cli(text, *where)[1]
    assert "layer 1 of 2" in cli(text, *where, "--query", "p")[1]
    refused(cli(text, "--model", model, "--layer", 2), "layer 2", "0 to 1")
    refused(cli(text, "--model", model, "--head", 4), "head 4", "0 to 3")
    refused(cli("one " * 30, "--model", model), "context of 40")


def json_ids(model, text):
    return load_tokenizer(model).encode(text)


def steps(output):
    return {step["name"]: step for step in json.loads(output)["steps"]}


def test_a_page(cli):
    status, output, error = cli(SENTENCE)
    assert (status, error) == (0, "")
    assert "0.9544   1.4950" in output
    assert "Document 002 (after Raschka) prints" in output


def test_json_of_a_variant(cli):
    status, output, _ = cli(SENTENCE, "--variant", "multihead", "--json", "--seed", 4)
    assert status == 0
    result = json.loads(output)
    assert (result["tokens"], result["heads"], result["head"]) == (SENTENCE.split(), 2, 0)
    assert steps(output)["masked"]["numbers"][1][0][1] is None
    rows = torch.tensor(steps(output)["weights"]["numbers"]).sum(-1)
    torch.testing.assert_close(rows, torch.ones(2, 6))


def with_infinity(numbers):
    if isinstance(numbers, list):
        return [with_infinity(number) for number in numbers]
    return float("-inf") if numbers is None else numbers


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([""], "empty"),
        (["a", "--query", "b"], "no token"),
        (["a", "--head", "1"], "head 1; expected 0, the only one"),
        (["a", "--memory", "b"], "second text"),
        (["a", "--model", "/nowhere"], "/nowhere"),
    ],
)
def test_errors_are_one_clear_line(cli, arguments, word):
    refused(cli(*arguments), word)


@pytest.mark.parametrize(
    "arguments",
    ["--layer 1", "--model run --variant causal", "--target b",
     "--second b", "--variant none", "--heads 0", "--html a.html --json",
     "--html a.html --query a", "--html a.html --pictures here"],
)  # fmt: skip
def test_wrong_usage(cli, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tuple(KNOWN) == VARIANTS
    misused(cli("a", *arguments.split()))
    assert not list(tmp_path.iterdir())


def test_the_steps_of_a_gpt_end_with_its_next_token(cli, model):
    status, output, _ = cli("with one step", "--model", model, "--json")
    assert status == 0
    [answer] = json.loads(output)["answers"]
    with torch.inference_mode():
        logits = load_model(model)(torch.tensor([json_ids(model, "with one step")])).logits[0]
    numbers_of_step = torch.tensor(steps(output)["logits"]["numbers"])
    torch.testing.assert_close(numbers_of_step, logits, atol=1e-5, rtol=0)
    top = logits[-1].softmax(-1).topk(10)
    assert [token["id"] for token in answer["likeliest"]] == top.indices.tolist()
    assert [token["probability"] for token in answer["likeliest"]] == pytest.approx(
        top.values.tolist(), abs=1e-5
    )
    _, page, _ = cli("with one step", "--model", model)
    assert "Likeliest tokens after p @12" in page
    assert page.splitlines()[-1].startswith("More: ")


def test_a_model_has_a_summary_and_every_step_on_request(cli, model):
    _, page, _ = cli("one", "--model", model)
    assert len(page.splitlines()) <= 60
    assert "learned" not in page  # the model is untrained
    assert "trained" not in page
    _, every, _ = cli("one", "--model", model, "--all")
    assert len(every.splitlines()) > 200
    _, step, _ = cli("one", "--model", model, "--step", "scores", "--query", "@1")
    assert sum(" = " in line for line in step.splitlines()) == 1 + 3  # the formula and three keys
    assert "scores" in cli("one", "--step", "scores")[1]
    refused(cli("one", "--model", model, "--step", "score"), "'score'", "scaled")
    misused(cli("one", "--model", model, "--step", "scores", "--json"), "--step")


def test_json_of_a_token_writes_out_its_row(cli, model):
    _, output, _ = cli("with one step", "--model", model, "--query", "@1", "--json")
    [answer] = json.loads(output)["answers"]
    numbers = steps(output)["probabilities"]
    assert numbers["written_out"].startswith(f"i → {answer['likeliest'][0]['token']}: e^")
    total = float(numbers["written_out"].split(" = ")[1])
    assert total == pytest.approx(max(numbers["numbers"][0]), abs=6e-5)


def test_the_steps_of_a_bert_end_with_words_at_its_masks(cli, bert):
    status, output, _ = cli("[MASK] journey", "--second", "one [MASK]", "--model", bert, "--json")
    assert status == 0
    result = json.loads(output)
    assert [answer["token"] for answer in result["answers"]] == ["[MASK]"] * 2
    assert "Write [MASK] in place of" in cli(SENTENCE, "--model", bert)[1].replace("\n   ", " ")
    assert steps(output)["segments"]["axes"] == ["tokens", "width"]


def test_the_steps_of_an_encoder_decoder_start_from_the_target(cli, pairs):
    status, output, _ = cli("one step", "--model", pairs, "--target", "wit", "--json")
    assert status == 0
    result = json.loads(output)
    assert result["tokens"] == ["▶", "w", "i", "t"]
    assert result["memory"][-1] == "■"
    assert [answer["place"] for answer in result["answers"]] == [0, 1, 2, 3]
    assert "cross-attention" in [g["title"].split(": ")[-1].split(",")[0] for g in result["groups"]]
    status, page, _ = cli("one step", "--model", pairs)
    assert status == 0
    assert "Likeliest tokens after" in page
    refused(cli("one", "--model", pairs, "--target", "t" * 20), "expected at most 19")
    refused(cli("one", "--model", pairs, "--second", "two"), "a second text")


def test_pictures_of_the_walk(cli, tmp_path):
    out = tmp_path / "walk"
    status, output, error = cli("one step", "--pictures", out, "--format", "svg")
    assert (status, error) == (0, "")
    names = sorted(path.name for path in out.iterdir())
    assert (names[0], names[-1]) == ("01-vectors.svg", "04-context.svg")
    assert all(f"{out / name}\n" in output for name in names)
    refused(cli("one step", "--pictures", out, "--format", "svg"), "--overwrite")


def read_page(path):
    """Return a page's description and the data of each of its walks."""
    [text] = re.findall(r'id="walks">([^<]+)<', path.read_text("utf-8"))
    data = zlib.decompress(base64.b64decode(text))
    about, _ = unpacked(data)
    start = 4 + struct.unpack_from("<I", data)[0]
    walks = []
    for walk in about["walks"]:
        walks.append(unpacked(data[start : start + walk["bytes"]]))
        start += walk["bytes"]
    return about, walks


def test_a_page_that_computes_any_sentence(cli, tmp_path):
    path = tmp_path / "walk.html"
    status, output, error = cli("--html", path)
    assert (status, error) == (0, "")
    assert output == f"{path}, 0.2 MB: opens in any browser, with no network\n"
    about, walks = read_page(path)
    assert [walk["label"] for walk in about["walks"]] == [
        "simple", "trainable", "projected", "causal", "multihead", "cross", "document 004",
    ]  # fmt: skip
    assert (about["text"], about["start"]) == (SENTENCE, 0)
    refused(cli("--html", path), "--overwrite")
    options = ["--variant", "cross", "--memory", "du thé", "--heads", 3, "--head", 2, "--seed", 3]
    assert cli("a cup of tea", *options, "--html", path, "--overwrite")[0] == 0
    about, walks = read_page(path)
    assert (about["text"], about["memory"], about["start"]) == ("a cup of tea", "du thé", 5)
    assert (walks[5][0]["heads"], walks[5][0]["head"]) == (3, 2)
    assert [head.get("seed") for head, _ in walks] == [3] * 6 + [None]
    for place in (tmp_path, tmp_path / "no/a.html"):
        refused(cli("tea", "--model", "none/here", "--html", place), str(place.parent))


def test_a_page_of_a_model(cli, model, tmp_path):
    path, where = tmp_path / "walk.html", ["--model", model, "--layer", 1]
    assert cli("with one step", *where, "--html", path)[0] == 0
    _, [(head, _)] = read_page(path)
    expected = json.loads(cli("with one step", *where, "--json")[1])
    assert head["tokens"] == expected["tokens"]
    assert {step["name"] for step in expected["steps"]} <= {s["name"] for s in head["stages"]}
