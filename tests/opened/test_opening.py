"""Which models are opened as what, and what is refused."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

import heedful
from heedful.errors import ArgumentError, RunError
from heedful.models import GPT, Bert, BertConfig, GPTConfig, Seq2Seq, Seq2SeqConfig, parameters_of
from heedful.models import write_description as describe
from heedful.models.huggingface.checkpoints import foreign_name
from heedful.opened import (
    OpenedBert,
    OpenedGPT,
    OpenedSeq2Seq,
    open_as,
    open_ours,
)
from heedful.text import CharacterTokenizer, WordPieceTokenizer

LETTERS = " abcdefg"
WORDS = WordPieceTokenizer.train(["the cat sat on the mat"], 60)
SIZES = {"context_length": 16, "width": 12, "layers": 2, "heads": 3}
KINDS = {
    OpenedGPT: (GPT, GPTConfig(vocabulary=8, **SIZES), CharacterTokenizer(LETTERS)),
    OpenedBert: (Bert, BertConfig(vocabulary=WORDS.size, **SIZES), WORDS),
    OpenedSeq2Seq: (Seq2Seq, Seq2SeqConfig(vocabulary=10, **SIZES), CharacterTokenizer(LETTERS)),
}


def saved(kind, folder):
    family, config, tokenizer = KINDS[kind]
    model = family(config)
    save_file(parameters_of(model), folder / "model.safetensors")
    describe(folder, config)
    tokenizer.save(folder)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_each_kind(kind, tmp_path):
    model = saved(kind, tmp_path)
    opened = heedful.open(str(tmp_path), device="cpu")
    assert type(opened) is kind
    assert opened.directory == tmp_path
    assert opened.tokenizer.size == KINDS[kind][2].size
    assert not opened.model.training
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(opened.model.state_dict()[name], tensor, atol=0, rtol=0)
    assert type(open_as(kind, tmp_path, device="cpu")) is kind
    others = [other for other in KINDS if other is not kind]
    for other in others:
        with pytest.raises(ArgumentError, match=f"holds a {KINDS[kind][0].__name__};") as caught:
            open_as(other, tmp_path, device="cpu")
        assert other.described in str(caught.value)
        assert kind.purpose in str(caught.value)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, None),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, None),
        ({"model_type": "bert"}, None),
        ({"model_type": "heedful-gpt"}, None),
        ({}, None),
        ([], None),
        (
            {"model_type": "bert", "architectures": ["BertForTokenClassification"]},
            "BertForTokenClassification",
        ),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, None),
        ({"model_type": "qwen3", "architectures": ["Qwen3Model"]}, None),
        ({"model_type": "mistral"}, None),
        (
            {"model_type": "qwen2", "architectures": ["Qwen2ForTokenClassification"]},
            "Qwen2ForTokenClassification",
        ),
        ({"model_type": "bloom", "architectures": ["BloomForCausalLM"]}, "BloomForCausalLM"),
        ({"model_type": "bloom"}, "bloom"),
    ],
)
def test_which_models_are_not_ours(config, name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert foreign_name(tmp_path) == name
    if name:
        with pytest.raises(RunError, match=f"holds a model of the architecture {name}; expected a"):
            open_ours(tmp_path)


def test_what_cannot_be_opened_is_one_line(tmp_path):
    saved(OpenedGPT, tmp_path)
    for arguments, error, words in [
        ({"device": "abacus"}, ArgumentError, "device 'abacus'"),
        ({"checkpoint": "middle"}, ArgumentError, "checkpoint 'middle'"),
        ({"checkpoint": "last"}, RunError, "last.safetensors"),
    ]:
        with pytest.raises(error, match=words):
            heedful.open(tmp_path, **{"device": "cpu", **arguments})
    CharacterTokenizer(LETTERS + "xyz").save(tmp_path)
    with pytest.raises(RunError, match="has 11 tokens; expected at most 8, the rows"):
        heedful.open(tmp_path)
    with pytest.raises(RunError, match="nowhere"):
        heedful.open(tmp_path / "nowhere")
    bert = tmp_path / "bert"
    bert.mkdir()
    saved(OpenedBert, bert)
    CharacterTokenizer(LETTERS).save(bert)
    with pytest.raises(RunError, match="a BERT with a tokenizer of the kind characters"):
        heedful.open(bert)


def test_opening_one_of_ours_brings_no_library_that_it_does_not_need(tmp_path):
    saved(OpenedGPT, tmp_path)
    program = (
        "import sys, heedful\n"
        f"heedful.open({str(tmp_path)!r}).record('abba')\n"
        "print([n for n in ('transformers', 'tokenizers', 'tiktoken', 'rich', 'click', "
        "'matplotlib', 'huggingface_hub') if n in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"
