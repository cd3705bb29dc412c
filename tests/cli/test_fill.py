"""`heedful fill`, and `plot` and `export` on a BERT, on directories that transformers saved."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from typed import refused

from heedful.models import GPT, Bert, BertConfig, GPTConfig, load_model, write_description
from heedful.text import BPETokenizer, CharacterTokenizer, WordPieceTokenizer, load_tokenizer

transformers = pytest.importorskip("transformers")

TEXT = "The capital of France is Paris, of Spain Madrid. Transformers, robots in disguise. " * 9


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A BERT and its tokenizer, as transformers saves them, and the two themselves."""
    folder = tmp_path_factory.mktemp("checkpoints")
    trained = WordPieceTokenizer.train([TEXT], 120)
    words = [trained.token_bytes(id).decode() for id in range(trained.size)]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    torch.manual_seed(3)
    model = transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=len(words), hidden_size=36, num_hidden_layers=4, num_attention_heads=12,
            intermediate_size=40, max_position_embeddings=32, initializer_range=0.5,
        )
    ).eval()  # fmt: skip
    with torch.no_grad():
        model.bert.embeddings.position_embeddings.weight.mul_(4)  # another word at each place
    for part in (model, tokenizer):
        part.save_pretrained(folder / "bert")
    shutil.copy(folder / "vocab.txt", folder / "bert")
    return folder / "bert", model, tokenizer


@pytest.fixture
def copied(checkpoint, tmp_path):
    shutil.copytree(checkpoint[0], tmp_path / "copy")
    return tmp_path / "copy"


def expected(checkpoint, *texts):
    """Ids and probabilities (N, V) as transformers has them."""
    _, model, tokenizer = checkpoint
    inputs = tokenizer(*texts, return_tensors="pt")
    with torch.inference_mode():
        return inputs.input_ids[0], model(**inputs).logits[0].softmax(-1)


def test_the_words_of_transformers(checkpoint, said):
    text = "The [MASK] of France is [MASK]."
    status, output, error = said("fill", checkpoint[0], text, "--json", "--count", 3)
    assert (status, error) == (0, "")
    found = json.loads(output)
    ids, likely = expected(checkpoint, text)
    tokenizer = checkpoint[2]
    assert found["text"] == text
    assert found["second"] is None
    best = []
    for mask in found["masks"]:
        assert ids[mask["position"]] == tokenizer.mask_token_id
        top = likely[mask["position"]].topk(3)
        assert [word["id"] for word in mask["words"]] == top.indices.tolist()
        assert [word["word"] for word in mask["words"]] == tokenizer.convert_ids_to_tokens(
            top.indices
        )
        assert [word["probability"] for word in mask["words"]] == pytest.approx(
            top.values.tolist(), rel=1e-4
        )
        best.append(mask["words"][0]["word"])
    assert len(set(best)) == 2
    filled = f"The {best[0]} of France is {best[1]}."
    assert found["filled"] == [filled.replace(" ##", "")]


def test_a_pair_as_a_table(checkpoint, said):
    first, second = "Transformers, robots", "in [MASK]."
    status, output, _ = said("fill", checkpoint[0], first, "--second", second, "--count", 2)
    assert status == 0
    ids, likely = expected(checkpoint, first, second)
    place = (ids == checkpoint[2].mask_token_id).nonzero().item()
    top = likely[place].topk(2)
    words = checkpoint[2].convert_ids_to_tokens(top.indices)
    rows = [line.split() for line in output.splitlines()]
    assert rows[0] == ["mask", "word", "probability"]
    for row, word, probability in zip(rows[1:], words, top.values.tolist(), strict=False):
        assert row == ["1", word, f"{100 * probability:.1f}", "%"]
    filled = f"in {words[0]}.".replace(" ##", "")  # a piece that goes on within a word
    assert output.splitlines()[-2:] == [first, filled]


@pytest.mark.parametrize("form", ["vocab.txt", "tokenizer.json"])
def test_either_form_of_the_tokenizer(form, checkpoint, copied, said):
    for name in {"vocab.txt", "tokenizer.json"} - {form}:
        (copied / name).unlink()
    text = "The capital of [MASK]"
    assert said("fill", copied, text, "--json") == said("fill", checkpoint[0], text, "--json")


def test_a_directory_of_our_own(said, tmp_path):
    tokenizer = WordPieceTokenizer.train([TEXT], 120)
    config = BertConfig(vocabulary=tokenizer.size, context_length=16, width=12, layers=1, heads=2)
    write_description(tmp_path, config)
    save_file(dict(Bert(config).named_parameters()), tmp_path / "model.safetensors")
    tokenizer.save(tmp_path)
    status, output, _ = said("fill", tmp_path, "Paris is [MASK]", "--json")
    assert status == 0
    assert len(json.loads(output)["masks"][0]["words"]) == 5


def test_wrong_input_is_one_clear_line(checkpoint, copied, said, tmp_path):
    bert = checkpoint[0]
    refused(said("fill", bert, "The capital."), "no [MASK] in the text")
    refused(said("fill", bert, ""), "empty text")
    refused(said("fill", bert, "Paris " * 40 + "[MASK]"), "43 tokens", "context of 32")
    refused(said("fill", tmp_path, "[MASK]"), "no file", "config.json")
    refused(said("fill", tmp_path / "missing", "[MASK]"), "no directory")
    refused(said("generate", bert, "Paris"), "holds a Bert", "a GPT", "heedful fill")
    out = copied / "pictures"
    both = ["--only", "heads", "--only", "scores"]
    refused(said("plot", bert, "Paris", *both, "--out", out), "scores")
    assert not out.exists()
    (copied / "model.safetensors").write_bytes(b"cut")
    refused(said("fill", copied, "[MASK]"), "model.safetensors", "damaged or truncated")


def test_a_model_that_is_no_bert(said, tmp_path):
    tokenizer = BPETokenizer.train([TEXT], 300)
    config = GPTConfig(vocabulary=tokenizer.size, context_length=16, width=12, layers=1, heads=2)
    write_description(tmp_path, config)
    save_file(dict(GPT(config).named_parameters()), tmp_path / "model.safetensors")
    tokenizer.save(tmp_path)
    refused(said("fill", tmp_path, "[MASK]"), "holds a GPT", "expected a BERT", "heedful generate")
    options = ("--only", "heads", "--device", "cpu")
    refused(said("plot", tmp_path, "a", "--second", "b", *options), "second text", "BERT")


def test_tokenizers_that_do_not_fit(checkpoint, copied, said):
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (copied / name).unlink()
    refused(said("fill", copied, "[MASK]"), "tokenizer.json")
    BPETokenizer.train(["a"], 256).save(copied)
    config = json.loads((copied / "config.json").read_text())
    refused(said("fill", copied, "[MASK]"), "tokens", f"at most {config['vocab_size']}")
    characters = "".join(sorted(set(TEXT)))
    CharacterTokenizer(characters).save(copied)
    refused(said("fill", copied, "[MASK]"), "kind characters", "WordPiece")
    (copied / "tokenizer.json").unlink()
    words = [*checkpoint[2].get_vocab(), "one", "more"]
    (copied / "vocab.txt").write_text("\n".join(dict.fromkeys(words)))
    refused(said("fill", copied, "[MASK]"), "tokenizer of another model")


def test_plot_draws_the_twelve_maps_of_a_layer(checkpoint, said, tmp_path, drawn):
    """The maps are transformers' own, on a pair with its segments, and no cell is left out."""
    first, second = "Transformers, robots", "in disguise."
    path = tmp_path / "pair.png"
    options = ["--second", second, "--layers", 0, "--out", path]
    assert said("plot", checkpoint[0], first, *options)[:2] == (0, f"{path}\n")
    with Image.open(path) as image:
        assert min(image.size) > 100
    [([block], _)] = drawn
    _, model, tokenizer = checkpoint
    inputs = tokenizer(first, second, return_tensors="pt")
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        theirs = model(**inputs, output_attentions=True).attentions[0][0]
    tokens = tokenizer.convert_ids_to_tokens(inputs.input_ids[0])
    bare = [name.rstrip("₀₁₂₃₄₅₆₇₈₉") for name in block.queries]
    assert bare == [token.rstrip("₀₁₂₃₄₅₆₇₈₉") for token in tokens]
    assert len(set(block.queries)) == len(tokens)
    assert block.queries == block.keys
    assert block.borders == ([tokens.index("[SEP]") + 1],) * 2
    assert block.heads == list(range(12))
    [line] = block.lines
    assert not np.ma.getmaskarray(np.ma.stack(line.maps)).any()
    np.testing.assert_allclose(np.stack(line.maps), theirs, rtol=1e-5, atol=1e-5)


def test_a_gpt_still_has_its_hidden_upper_half(said, tmp_path, drawn):
    tokenizer = BPETokenizer.train(["abcd"], 256)
    config = GPTConfig(vocabulary=256, context_length=16, width=12, layers=1, heads=2)
    write_description(tmp_path, config)
    save_file(dict(GPT(config).named_parameters()), tmp_path / "model.safetensors")
    tokenizer.save(tmp_path)
    assert said("plot", tmp_path, "abcd", "--only", "heads")[0] == 0
    [([block], _)] = drawn
    for values in block.lines[0].maps:
        np.testing.assert_array_equal(~np.ma.getmaskarray(values), np.tri(4) > 0)


def test_the_tokens_of_a_bert_have_vectors(checkpoint, said):
    folder, model, tokenizer = checkpoint
    first, second = (tokenizer.convert_ids_to_tokens(id) for id in (20, 30))
    status, output, _ = said("embed", folder, "--between", first, second, "--json")
    assert status == 0
    rows = model.bert.embeddings.word_embeddings.weight[[20, 30]]
    expected = torch.nn.functional.cosine_similarity(*rows, dim=0).item()
    assert json.loads(output)["between"]["similarity"] == pytest.approx(expected, abs=1e-5)


def test_export_comes_back_through_transformers(checkpoint, said, tmp_path):
    out = tmp_path / "exported"
    assert said("export", checkpoint[0], "--to", out)[0] == 0
    model = transformers.AutoModelForMaskedLM.from_pretrained(out).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    texts = "The capital of [MASK]", "is Paris, naïvely 火."
    _, likely = expected(checkpoint, *texts)
    inputs = tokenizer(*texts, return_tensors="pt")
    with torch.inference_mode():
        again = model(**inputs).logits[0].softmax(-1)
    torch.testing.assert_close(again, likely, rtol=1e-4, atol=1e-6)


def test_tokenize_with_wordpiece(checkpoint, said):
    text = "Transformers, robots in disguise."
    _, output, _ = said("tokenize", text, "--tokenizer", "wordpiece", "--json")
    found = json.loads(output)
    assert found["vocabulary"] == 1024
    assert "".join(piece.removeprefix("##") for piece in found["pieces"]) == (
        "transformers,robotsindisguise."
    )
    _, output, _ = said("tokenize", text, "--tokenizer", checkpoint[0], "--json")
    theirs = checkpoint[2](text, add_special_tokens=False).input_ids
    assert json.loads(output)["ids"] == theirs == load_tokenizer(checkpoint[0]).encode(text)


def test_a_bert_of_ones_own_text_needs_no_network(said, tmp_path):
    """Trained, continued, filled, and opened by transformers with the same guesses."""
    (tmp_path / "text.txt").write_text(TEXT * 3)
    out = tmp_path / "run"
    small = ["--vocabulary", "256", "--context-length", "16", "--width", "16", "--layers", "1",
             "--heads", "2", "--batch", "4", "--device", "cpu"]  # fmt: skip
    options = ["--preset", "bert", "--attention-dropout", "0.2", *small]
    status, output, _ = said("train", tmp_path / "text.txt", "--out", out, "--steps", "3", *options)
    assert status == 0
    assert f'fill {out} "' in output
    assert "wordpiece" in output
    model = load_model(out)
    assert isinstance(model, Bert)
    assert (model.config.attention_dropout, model.config.pooler) == (0.2, False)
    assert said("train", "--out", out, "--resume", "--steps", "5")[0] == 0
    text = "The [MASK] of France"
    _, output, _ = said("fill", out, text, "--json", "--count", "3")
    [mask] = json.loads(output)["masks"]
    assert said("export", out, "--to", tmp_path / "out")[0] == 0
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(text, return_tensors="pt")
    with torch.inference_mode():
        likely = theirs(**inputs).logits[0, mask["position"]].softmax(-1).topk(3)
    assert [word["id"] for word in mask["words"]] == likely.indices.tolist()
    found = [word["probability"] for word in mask["words"]]
    assert found == pytest.approx(likely.values.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("--preset bert --qk-norm", "qk_norm"),
        ("--attention-dropout 0.1", "attention_dropout"),
        ("--preset bert --tokenizer characters", "wordpiece"),
        ("--tokenizer wordpiece", "GPT"),
        ("--preset bert --vocabulary 300 --compact", "compact"),
    ],
)
def test_options_of_another_kind_of_model_are_refused(options, word, said, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    out = tmp_path / "run"
    refused(said("train", tmp_path / "text.txt", "--out", out, *options.split()), word)
    assert not out.exists()
