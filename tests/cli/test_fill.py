"""`heedful fill`, `record`, `heads`, `plot`, `embed` and `export` on BERTs of transformers."""

import json
import shutil

import numpy as np
import pytest
import torch
from command_checks import refused

import heedful
from heedful.models import Bert, load_model
from heedful.text import WordPieceTokenizer

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

TEXT = "The capital of France is Paris, of Spain Madrid. Transformers, robots in disguise. " * 9


def of_words(folder):
    """A WordPiece tokenizer, as BERT has."""
    trained = WordPieceTokenizer.train([TEXT], 120)
    words = [trained.token_bytes(id).decode() for id in range(trained.size)]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    return transformers.BertTokenizer.from_pretrained(folder)


def of_bytes(folder, segments=False):
    """Byte pairs with RoBERTa's special tokens and one segment id; or, as in BERT, with two."""
    library = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    library.train_from_iterator([TEXT], 320, special_tokens=special, show_progress=False)
    library.save_model(str(folder))
    mask = tokenizers.AddedToken("<mask>", lstrip=True, special=True)
    tokenizer = transformers.RobertaTokenizer.from_pretrained(folder, mask_token=mask)
    if not segments:
        return tokenizer
    library = tokenizer.backend_tokenizer
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    names = {f"{name}_token": getattr(tokenizer, f"{name}_token") for name in (
        "cls", "sep", "pad", "unk", "mask")}  # fmt: skip
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, model_input_names=inputs, **names
    )


KINDS = {"words": of_words, "bytes": of_bytes, "segments": lambda path: of_bytes(path, True)}


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(request, tmp_path_factory):
    """The directory of a BERT with its tokenizer, the model and the tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoints")
    tokenizer = KINDS[request.param](folder)
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=36, num_hidden_layers=4, num_attention_heads=12,
        intermediate_size=40, max_position_embeddings=32, initializer_range=0.5,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = transformers.BertForMaskedLM(config).eval()
    with torch.no_grad():
        model.bert.embeddings.position_embeddings.weight.mul_(4)  # another guess at each position
    for part in (model, tokenizer):
        part.save_pretrained(folder / "bert")
    model.set_attn_implementation("eager")
    return folder / "bert", model, tokenizer


words_alone = pytest.mark.parametrize("checkpoint", ["words"], indirect=True)


def theirs(checkpoint, *texts):
    """Return ids, probabilities (N, V) and maps as transformers computes them."""
    _, model, tokenizer = checkpoint
    inputs = tokenizer(*texts, return_tensors="pt")
    with torch.inference_mode():
        output = model(**inputs, output_attentions=True)
    return inputs.input_ids[0], output.logits[0].softmax(-1), output.attentions


def test_the_words_of_transformers(checkpoint, cli):
    tokenizer = checkpoint[2]
    text = "The MASK of France is MASK.".replace("MASK", tokenizer.mask_token)
    status, output, error = cli("fill", checkpoint[0], text, "--json", "--count", 3)
    assert (status, error) == (0, "")
    result = json.loads(output)
    ids, likely, _ = theirs(checkpoint, text)
    assert (result["text"], result["second"], len(result["masks"])) == (text, None, 2)
    for mask in result["masks"]:
        assert ids[mask["position"]] == tokenizer.mask_token_id
        top = likely[mask["position"]].topk(3)
        assert [word["id"] for word in mask["words"]] == top.indices.tolist()
        probabilities = [word["probability"] for word in mask["words"]]
        assert probabilities == pytest.approx(top.values.tolist(), rel=1e-4)
    best = [tokenizer.decode(mask["words"][0]["id"]) for mask in result["masks"]]
    [filled] = result["filled"]
    assert all(word.removeprefix("##").strip() in filled for word in best)


@words_alone
def test_a_pair_as_a_table(checkpoint, cli):
    first, second = "Transformers, robots", "in [MASK]."
    status, output, _ = cli("fill", checkpoint[0], first, "--second", second, "--count", 2)
    assert status == 0
    ids, likely, _ = theirs(checkpoint, first, second)
    top = likely[(ids == checkpoint[2].mask_token_id).nonzero().item()].topk(2)
    words = checkpoint[2].convert_ids_to_tokens(top.indices)
    rows = [line.split() for line in output.splitlines()]
    assert rows[0] == ["mask", "word", "probability"]
    for row, word, probability in zip(rows[1:], words, top.values.tolist(), strict=False):
        assert row == ["1", word, f"{100 * probability:.1f}", "%"]
    filled = f"in {words[0]}.".replace(" ##", "")  # ## continues a word
    assert output.splitlines()[-2:] == [first, filled]


@pytest.mark.parametrize(
    "texts", [("The capital of France is",), ("Transformers, robots", "in it")]
)
def test_the_maps_of_transformers(texts, checkpoint, cli, tmp_path, drawn):
    """A recording, a list of heads and a picture have the maps; no cell is masked."""
    directory, _, tokenizer = checkpoint
    ids, _, maps = theirs(checkpoint, *texts)
    reads = [directory, texts[0], *(["--second", texts[1]] if len(texts) > 1 else [])]
    status, _, error = cli("record", *reads, "--out", tmp_path / "r")
    assert (status, error) == (0, "")
    recording = heedful.load(tmp_path / "r")
    for call, weights in zip(recording, maps, strict=True):
        torch.testing.assert_close(call.weights(), weights[0], atol=4e-5, rtol=0)
    assert len(recording[0].tokens) == len(ids)
    rows = json.loads(cli("heads", *reads, "--json")[1])
    entropy = torch.special.entr(torch.cat(maps)).sum(-1).mean(-1).flatten().tolist()
    assert [row["entropy"] for row in rows] == pytest.approx(entropy, abs=5e-5)
    path = tmp_path / "pair.png"
    assert cli("plot", *reads, "--layers", 0, "--out", path)[:2] == (0, f"{path}\n")
    [([block], _)] = drawn
    separators = [n for n, id in enumerate(ids) if id == tokenizer.sep_token_id]
    if len(texts) > 1 and "token_type_ids" in tokenizer.model_input_names:
        assert block.borders == ([separators[0] + 1],) * 2
    assert (block.queries, block.heads) == (block.keys, list(range(12)))
    [line] = block.lines
    assert not np.ma.getmaskarray(np.ma.stack(line.maps)).any()
    np.testing.assert_allclose(np.stack(line.maps), maps[0][0], atol=4e-5)


def test_embed_and_export_of_a_bert_of_transformers(checkpoint, cli, tmp_path):
    directory, model, tokenizer = checkpoint
    first, second = tokenizer.convert_ids_to_tokens([20, 30])
    between = ["--between", *(name.replace("Ġ", "·") for name in (first, second))]
    status, output, _ = cli("embed", directory, *between, "--json")
    assert status == 0
    rows = model.get_input_embeddings().weight[[20, 30]]
    expected = torch.cosine_similarity(*rows, dim=0).item()
    assert json.loads(output)["between"]["similarity"] == pytest.approx(expected, abs=1e-5)
    out = tmp_path / "exported"
    assert cli("export", directory, "--to", out)[0] == 0
    again = transformers.AutoModelForMaskedLM.from_pretrained(out).eval()
    texts = (f"The {tokenizer.mask_token} of Paris, naïvely 火",)
    if tokenizer.mask_token == "[MASK]":
        texts += ("is France.",)
    _, likely, _ = theirs(checkpoint, *texts)
    inputs = transformers.AutoTokenizer.from_pretrained(out)(*texts, return_tensors="pt")
    with torch.inference_mode():
        probabilities = again(**inputs).logits[0].softmax(-1)
    torch.testing.assert_close(probabilities, likely, rtol=1e-4, atol=1e-6)


@pytest.fixture
def copied(checkpoint, tmp_path):
    shutil.copytree(checkpoint[0], tmp_path / "copy")
    return tmp_path / "copy"


@words_alone
def test_wrong_input_is_one_clear_line(checkpoint, copied, cli):
    bert = checkpoint[0]
    refused(cli("fill", bert, "The capital."), "no [MASK] in the text")
    refused(cli("fill", bert, "Paris " * 40 + "[MASK]"), "43 tokens", "context of 32")
    out = copied / "pictures"
    both = ["--only", "heads", "--only", "scores"]
    refused(cli("plot", bert, "Paris", *both, "--out", out), "scores")
    assert not out.exists()
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (copied / name).unlink(missing_ok=True)
    refused(cli("fill", copied, "[MASK]"), "tokenizer.json")


def test_a_bert_is_trained_resumed_used_and_exported_offline(cli, tmp_path):
    """A BERT is trained, resumed and used, and transformers computes the same guesses."""
    (tmp_path / "text.txt").write_text(TEXT * 3)
    out = tmp_path / "run"
    small = ["--vocabulary", "256", "--context-length", "16", "--width", "16", "--layers", "1",
             "--heads", "2", "--batch", "4", "--device", "cpu"]  # fmt: skip
    options = ["--preset", "bert", "--attention-dropout", "0.2", *small]
    status, output, _ = cli("train", tmp_path / "text.txt", "--out", out, "--steps", "3", *options)
    assert status == 0
    assert f'fill {out} "' in output
    assert "wordpiece" in output
    model = load_model(out)
    assert isinstance(model, Bert)
    assert (model.config.attention_dropout, model.config.pooler) == (0.2, False)
    assert cli("train", "--out", out, "--resume", "--steps", "5")[0] == 0
    text = "The [MASK] of France"
    _, output, _ = cli("fill", out, text, "--json", "--count", "3")
    [mask] = json.loads(output)["masks"]
    assert cli("export", out, "--to", tmp_path / "out")[0] == 0
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(text, return_tensors="pt")
    with torch.inference_mode():
        likely = theirs(**inputs).logits[0, mask["position"]].softmax(-1).topk(3)
    assert [word["id"] for word in mask["words"]] == likely.indices.tolist()
    probabilities = [word["probability"] for word in mask["words"]]
    assert probabilities == pytest.approx(likely.values.tolist(), abs=1e-5)


def test_improbable_words_are_not_put_into_the_text(checkpoint, cli, monkeypatch):
    text = f"The capital of {checkpoint[2].mask_token}."
    best = json.loads(cli("fill", checkpoint[0], text, "--json")[1])["masks"][0]["words"][0]
    for limit in (best["probability"] * 0.9, best["probability"] * 1.1):
        monkeypatch.setattr("heedful.cli.fill.UNCERTAIN", limit)
        last = cli("fill", checkpoint[0], text)[1].splitlines()[-1]
        assert last.startswith("No filled text") == (limit > best["probability"])
