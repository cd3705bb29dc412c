"""The class of each loaded model, and models that are refused."""

import json
import re
import subprocess
import sys

import pytest
from safetensors.torch import save_file
from small_models import KINDS

import heedful
from heedful.errors import ArgumentError, RunError
from heedful.loaded import LoadedBert, LoadedGPT, open_as, open_heedful
from heedful.models import parameters_of, write_model_config
from heedful.models.huggingface.checkpoints import unsupported_architecture
from heedful.text import CharacterTokenizer


def saved(kind, folder):
    family, config, tokenizer = KINDS[kind]
    model = family(config)
    save_file(parameters_of(model), folder / "model.safetensors")
    write_model_config(folder, config)
    tokenizer.save(folder)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_each_kind(kind, tmp_path):
    model = saved(kind, tmp_path)
    opened = heedful.open(str(tmp_path), device="cpu")
    assert type(opened) is type(open_as(kind, tmp_path, device="cpu")) is kind
    assert opened.directory == tmp_path
    assert opened.tokenizer.size == KINDS[kind][2].size
    assert not opened.model.training
    for name, tensor in model.state_dict().items():
        assert opened.model.state_dict()[name].equal(tensor)
    for other in {*KINDS} - {kind}:
        with pytest.raises(ArgumentError, match=re.escape(f"holds {kind.description}")) as caught:
            open_as(other, tmp_path, device="cpu")
        assert other.description in str(caught.value)
        assert kind.purpose in str(caught.value)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, None),
        ({"model_type": "bert"}, None),
        ({"model_type": "heedful-gpt"}, None),
        ({}, None),
        ([], None),
        ({"model_type": "bert", "architectures": ["BertForTokenClassification"]},
         "BertForTokenClassification"),
        ({"model_type": "qwen3", "architectures": ["Qwen3Model"]}, None),
        ({"model_type": "mistral"}, None),
        ({"model_type": "bloom", "architectures": ["BloomForCausalLM"]}, "BloomForCausalLM"),
        ({"model_type": "bloom"}, "bloom"),
    ],
)  # fmt: skip
def test_architectures_that_heedful_does_not_implement(config, name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert unsupported_architecture(tmp_path) == name
    if name:
        with pytest.raises(RunError, match=f"holds a model of the architecture {name};"):
            open_heedful(tmp_path)


def test_models_that_cannot_be_opened(tmp_path):
    saved(LoadedGPT, tmp_path)
    for arguments, error, words in [
        ({"device": "abacus"}, ArgumentError, "device 'abacus'"),
        ({"checkpoint": "middle"}, ArgumentError, "checkpoint 'middle'"),
        ({"checkpoint": "last"}, RunError, "last.safetensors"),
    ]:
        with pytest.raises(error, match=words):
            heedful.open(tmp_path, **{"device": "cpu", **arguments})
    CharacterTokenizer(" abcdefgxyz").save(tmp_path)
    with pytest.raises(RunError, match="has 11 tokens; expected at most 8"):
        heedful.open(tmp_path)
    with pytest.raises(RunError, match="nowhere"):
        heedful.open(tmp_path / "nowhere")
    saved(LoadedBert, tmp_path)
    CharacterTokenizer("ab").save(tmp_path)
    with pytest.raises(RunError, match="a BERT with a tokenizer of the kind characters"):
        heedful.open(tmp_path)


def test_loading_our_models_imports_no_unneeded_library(tmp_path):
    """torch's compiler is one of them: initialising on the meta device would import it."""
    saved(LoadedGPT, tmp_path)
    program = (
        "import sys, heedful\n"
        f"heedful.open({str(tmp_path)!r}).record('abba')\n"
        "print([n for n in ('transformers', 'tokenizers', 'tiktoken', 'rich', 'click', "
        "'matplotlib', 'huggingface_hub', 'torch._dynamo') if n in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"
