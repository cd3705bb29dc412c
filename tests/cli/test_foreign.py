"""`heedful record` and `heedful heads` on architectures that heedful does not build."""

import json
import sys

import pytest
import torch
from command_checks import refused
from llama_tokenizers import of_bytes
from safetensors.torch import load_file, save_file

import heedful

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

TEXT = "the cat sat on the mat, and the cat ran"
SMALL = {"vocab_size": 400, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}


def pieces_of_sentences():
    """A tokenizer of unigrams, with ▁ for a space and </s> at the end."""
    library = tokenizers.Tokenizer(tokenizers.models.Unigram())
    library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    library.decoder = tokenizers.decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=60, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    library.train_from_iterator([TEXT] * 9, trainer)
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return fast(library)


def fast(library):
    return transformers.PreTrainedTokenizerFast(tokenizer_object=library)


def saved(model, tokenizer, directory):
    """Save a checkpoint with large random weights, so that no head attends uniformly."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def olmo(tmp_path_factory):
    config = transformers.OlmoConfig(
        **SMALL, intermediate_size=32, num_key_value_heads=1, max_position_embeddings=40
    )
    model = transformers.OlmoForCausalLM(config)
    return saved(model, fast(of_bytes()), tmp_path_factory.mktemp("olmo"))


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    config = transformers.T5Config(
        vocab_size=64, d_model=24, d_kv=8, d_ff=32, num_layers=2, num_heads=3,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    return saved(model, pieces_of_sentences(), tmp_path_factory.mktemp("t5"))


@pytest.fixture(scope="module")
def mpnet(tmp_path_factory):
    """A model whose attention axes no door reports, so its layout is "usual"."""
    config = transformers.MPNetConfig(**SMALL, intermediate_size=32, max_position_embeddings=40)
    return saved(
        transformers.MPNetModel(config), fast(of_bytes()), tmp_path_factory.mktemp("mpnet")
    )


def eager(directory, family, **inputs):
    model = family.from_pretrained(directory, attn_implementation="eager")
    with torch.no_grad():
        return model(**inputs, output_attentions=True)


def induction_scores(map_, ids):
    """Return the induction score of each head by definition."""
    places = [[m for m in range(1, n) if ids[m - 1] == ids[n]] for n in range(len(ids))]
    rows = [map_[:, n, keys].sum(-1) for n, keys in enumerate(places) if keys]
    return torch.stack(rows).mean(0).tolist() if rows else [None] * len(map_)


def test_an_encoder_decoder_is_recorded_over_a_text_and_its_translation(t5, cli, tmp_path):
    status, output, _ = cli("record", t5, TEXT, "--out", tmp_path / "r")
    assert status == 0
    line = " ".join(output.split())
    calls = list(heedful.load(tmp_path / "r"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(t5)
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    family = transformers.T5ForConditionalGeneration
    model = family.from_pretrained(t5)
    target = model.generate(ids, do_sample=False, max_new_tokens=64)
    target = target[:, :-1] if target[0, -1] == 1 else target
    assert "6 calls (2 self, 2 causal, 2 cross)" in line
    assert f"tokens {ids.shape[1]} read, {target.shape[1]} written" in line
    output = eager(t5, family, input_ids=ids, decoder_input_ids=target)
    parts = (output.encoder_attentions, output.decoder_attentions, output.cross_attentions)
    for name, maps in zip(("self", "causal", "cross"), parts, strict=True):
        selected = [call for call in calls if call.kind == name]
        for call, weights in zip(selected, maps, strict=True):
            torch.testing.assert_close(call.weights(), weights[0], atol=1e-5, rtol=0)
    status, output, error = cli("heads", tmp_path / "r")
    assert (status, error) == (0, "")
    header, *lines = output.split("\n\n")[0].splitlines()
    assert header.split()[:3] == ["head", "map", "kind"]
    assert [line.split()[1] for line in lines] == [c.kind for c in calls for _ in range(3)]
    rows = json.loads(cli("heads", tmp_path / "r", "--json")[1])
    for name, maps, tokens in zip(("self", "causal"), parts[:2], (ids, target), strict=True):
        expected = [score for map_ in maps for score in induction_scores(map_[0], tokens[0])]
        assert [row["induction"] for row in rows if row["attention"] == name] == [
            score and pytest.approx(score, abs=1e-5) for score in expected
        ]
    cross_rows = [row for row in rows if row["attention"] == "cross"]
    assert len(cross_rows) == 6
    for row in cross_rows:
        assert row["previous"] is row["self"] is row["induction"] is None


def test_verify_turns_usual_layouts_into_verified(mpnet, cli, tmp_path):
    path = tmp_path / "r"
    summary = json.loads(cli("record", mpnet, "the cat", "--out", path, "--json")[1])
    assert [call["layout"] for call in summary["calls"]] == ["usual"] * 2
    before = [call.weights() for call in heedful.load(path)]
    status, output, error = cli("record", mpnet, "the cat", "--out", path, "--verify")
    assert (status, error) == (0, "layout of 2 calls: verified\n")
    assert ["layout", "verified"] in [line.split() for line in output.splitlines()]
    for call, weights in zip(heedful.load(path), before, strict=True):
        assert (call.proof, call.layout) == ("proved", "verified")
        torch.testing.assert_close(call.weights(), weights, atol=0, rtol=0)


def test_other_commands_verify_too(mpnet, cli, tmp_path):
    for command, *rest in (["heads"], ["look", "--html", tmp_path / "p.html"],
                           ["plot", "--layers", "0", "--out", tmp_path / "p.svg"]):  # fmt: skip
        status, output, error = cli(command, mpnet, "the cat", "--verify", *rest)
        assert (status, "verified" in error) == (0, True)
        if command == "heads":
            assert "proof: proved; layout: verified" in output
    assert "proof: proved; layout: verified" in (tmp_path / "p.svg").read_text("utf-8")


def test_errors_are_one_line(olmo, cli, tmp_path, monkeypatch):
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in olmo.iterdir():
        (damaged / path.name).write_bytes(path.read_bytes())
    tensors = load_file(damaged / "model.safetensors")
    del tensors["model.layers.1.self_attn.q_proj.weight"]
    save_file(tensors, damaged / "model.safetensors", {"format": "pt"})
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_bytes((olmo / "config.json").read_bytes())
    for directory, text, words in [
        (olmo, "cat " * 60, "the model's context of 40"),
        (damaged, TEXT, "has no weights for model.layers.1.self_attn.q_proj.weight"),
        (bare, TEXT, "transformers cannot open"),
    ]:
        refused(cli("heads", directory, text), words)
    for command in (["generate"], ["explain", "--model"], ["fill"], ["translate"]):
        refused(cli(*command, olmo, TEXT), "OlmoForCausalLM", "`heedful heads`")
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused(cli("heads", olmo, TEXT), "pip install 'transformers")
