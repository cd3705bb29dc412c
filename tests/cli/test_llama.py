"""The commands on checkpoints of Llama's family, saved by transformers."""

import json

import pytest
import torch
from command_checks import refused
from llama_tokenizers import of_bytes, of_characters
from redrawn_parameters import redrawn

import heedful
from heedful.loaded import LoadedGPT

transformers = pytest.importorskip("transformers")

SHAPE = {
    "vocab_size": 512,  # more rows than either tokenizer has tokens
    "hidden_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 44,
    "max_position_embeddings": 90,
    "bos_token_id": None,
    "eos_token_id": None,
}
PROMPT = "Bottle 7 of 49: naïve ☃"
CPU = ("--device", "cpu")


def saved(directory, kind, library, name, **changes):
    torch.manual_seed(5)
    config = getattr(transformers, f"{kind}Config")(**SHAPE, **changes)
    model = redrawn(getattr(transformers, f"{kind}ForCausalLM")(config), 0.3)
    model.save_pretrained(directory)
    library.save(str(directory / "tokenizer.json"))
    about = {"tokenizer_class": name, "bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(about))
    return directory


@pytest.fixture(scope="module")
def mistral(tmp_path_factory):
    """A Mistral with a window of five tokens and SentencePiece's byte pairs."""
    directory = tmp_path_factory.mktemp("mistral")
    return saved(directory, "Mistral", of_characters(), "LlamaTokenizer", sliding_window=5)


@pytest.fixture(scope="module")
def yarn(tmp_path_factory):
    rotary = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0,
              "original_max_position_embeddings": 20}  # fmt: skip
    directory = tmp_path_factory.mktemp("yarn")
    return saved(directory, "Llama", of_bytes(), "PreTrainedTokenizerFast", rope_parameters=rotary)


def their_maps(directory, text):
    """Return each layer's weights (H, N, N) by transformers' eager attention, ids and logits."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation="eager"
    )
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        output = model(ids, output_attentions=True)
    return [weights[0] for weights in output.attentions], ids[0].tolist(), output.logits[0]


def test_a_recording_has_the_maps_of_transformers(mistral):
    maps, ids, _ = their_maps(mistral, PROMPT)
    opened = heedful.open(mistral, device="cpu")
    assert type(opened) is LoadedGPT
    recording = opened.record(PROMPT)
    assert recording[0].tokens == opened.pieces(ids)
    assert recording[0].tokens[0] == "<s>"
    for call, weights in zip(recording, maps, strict=True):
        assert call.proof == "proved"
        torch.testing.assert_close(call.weights(), weights, atol=2e-6, rtol=0)
        assert (call.weights()[:, 9, :5] == 0).all()  # out of the window


def test_a_model_beyond_our_gpt_is_recorded_through_transformers(yarn, mistral, cli):
    refused(cli("generate", yarn, PROMPT), "rope_type = 'yarn'", "`heedful heads`")
    refused(cli("fill", mistral, PROMPT), "holds a GPT", "expected a BERT")
    maps, ids, _ = their_maps(yarn, PROMPT)
    recording = heedful.open(yarn, device="cpu").record(PROMPT)
    for call, weights in zip(recording, maps, strict=True):
        torch.testing.assert_close(call.weights(), weights, atol=2e-6, rtol=0)
    assert len(recording[0].tokens) == len(ids)
    assert cli("heads", yarn, PROMPT)[0] == 0
