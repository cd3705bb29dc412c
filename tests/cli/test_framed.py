"""A BERT of byte pairs, in RoBERTa's frame: heads, record, plot and fill against transformers."""

import json

import pytest
import torch
from typed import refused

import heedful

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

TEXT = "The capital of France is Paris, of Spain Madrid; and the cat sat. "


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    library = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    library.train_from_iterator([TEXT * 9], 320, special_tokens=special, show_progress=False)
    library.save_model(str(folder))
    return folder


@pytest.fixture(scope="module", params=["roberta", "template"])
def checkpoint(request, files, tmp_path_factory):
    """RoBERTa's frame, of one segment; or BERT's own, of two, around byte pairs."""
    mask = tokenizers.AddedToken("<mask>", lstrip=True, special=True)
    tokenizer = transformers.RobertaTokenizer.from_pretrained(files, mask_token=mask)
    if request.param == "template":
        library = tokenizer.backend_tokenizer
        library.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A </s>",
            pair="<s> $A </s> $B:1 </s>:1",
            special_tokens=[("<s>", 0), ("</s>", 2)],
        )
        names = {f"{name}_token": getattr(tokenizer, f"{name}_token") for name in (
            "cls", "sep", "pad", "unk", "mask")}  # fmt: skip
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=library,
            model_input_names=["input_ids", "token_type_ids", "attention_mask"],
            **names,
        )
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=40, max_position_embeddings=32, initializer_range=0.5, pad_token_id=1,
    )  # fmt: skip
    torch.manual_seed(5)
    model = transformers.BertForMaskedLM(config).eval()
    folder = tmp_path_factory.mktemp("bert")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    eager = transformers.BertForMaskedLM.from_pretrained(folder, attn_implementation="eager")
    return folder, eager.eval(), tokenizer


def theirs(checkpoint, *texts):
    _, model, tokenizer = checkpoint
    inputs = tokenizer(*texts, return_tensors="pt")
    with torch.inference_mode():
        return inputs["input_ids"][0], model(**inputs, output_attentions=True)


PAIR = ("The capital of France is", "Paris, of Spain")


@pytest.mark.parametrize("texts", [PAIR[:1], PAIR], ids=["text", "pair"])
def test_the_maps_of_transformers(texts, checkpoint, said, tmp_path):
    ids, output = theirs(checkpoint, *texts)
    second = ["--second", texts[1]] if len(texts) > 1 else []
    status, _, error = said("record", checkpoint[0], texts[0], *second, "--out", tmp_path / "r")
    assert (status, error) == (0, "")
    recording = heedful.load(tmp_path / "r")
    for call, weights in zip(recording, output.attentions, strict=True):
        torch.testing.assert_close(call.weights(), weights[0], atol=2e-6, rtol=0)
    tokens = recording[0].tokens
    assert len(tokens) == len(ids)
    assert (tokens[0], tokens[-1]) == ("<s>", "</s>")
    rows = json.loads(said("heads", checkpoint[0], texts[0], *second, "--json")[1])
    entropy = torch.special.entr(torch.cat(output.attentions)).sum(-1).mean(-1).flatten().tolist()
    assert [row["entropy"] for row in rows] == pytest.approx(entropy, abs=1e-5)
    pictures = said("plot", checkpoint[0], texts[0], *second, "--out", tmp_path, "--only", "heads")
    assert pictures[0] == 0


def test_the_words_of_transformers(checkpoint, said):
    text = "The <mask> of France is <mask>."
    ids, output = theirs(checkpoint, text)
    status, found, error = said("fill", checkpoint[0], text, "--json", "--count", 3)
    assert (status, error) == (0, "")
    found = json.loads(found)
    tokenizer = checkpoint[2]
    words = []
    for mask in found["masks"]:
        assert ids[mask["position"]] == tokenizer.mask_token_id
        top = output.logits[0, mask["position"]].softmax(-1).topk(3)
        assert [word["id"] for word in mask["words"]] == top.indices.tolist()
        likely = [word["probability"] for word in mask["words"]]
        assert likely == pytest.approx(top.values.tolist(), rel=1e-4)
        words.append(tokenizer.decode(top.indices[:1]))
    assert len(words) == 2
    assert found["filled"] == [f"The{words[0]} of France is{words[1]}."]
    refused(said("fill", checkpoint[0], "The [MASK] of"), "no <mask> in the text")


def test_a_bert_of_byte_pairs_is_embedded_and_exported(checkpoint, said, tmp_path):
    _, output, _ = said("embed", checkpoint[0], "--between", "is", "of", "--json")
    table = checkpoint[1].get_input_embeddings().weight
    rows = [table[id] for id in checkpoint[2].convert_tokens_to_ids(["is", "of"])]
    wanted = torch.cosine_similarity(*rows, dim=0).item()
    assert json.loads(output)["between"]["similarity"] == pytest.approx(wanted, abs=1e-5)
    assert said("export", checkpoint[0], "--to", tmp_path / "out")[0] == 0
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "The <mask> of France"
    assert again(text)["input_ids"] == checkpoint[2](text)["input_ids"]
