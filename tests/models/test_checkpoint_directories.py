"""Files beside a checkpoint's weights: end tokens and a missing output layer."""

import json
import shutil

import pytest
import torch
from llama_tokenizers import of_bytes
from safetensors.torch import load_file, save_file

from heedful.cli.main import run
from heedful.errors import RunError
from heedful.loaded import LoadedGPT, open_as
from heedful.models import load_model

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A Llama of transformers with random weights and an untied output layer."""
    folder = tmp_path_factory.mktemp("llama")
    of_bytes().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=of_bytes().get_vocab_size(), hidden_size=24, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=32, max_position_embeddings=64,
        bos_token_id=0, eos_token_id=None, pad_token_id=None, initializer_range=0.4,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def greedy(directory, ids, tokens=20):
    model = transformers.LlamaForCausalLM.from_pretrained(directory)
    return model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=tokens)[0].tolist()


def test_generation_stops_at_each_end_token(directory, capsys):
    path = directory / "generation_config.json"
    loaded = open_as(LoadedGPT, directory)
    ids = loaded.ids("the thing")[0].tolist()
    path.write_text(json.dumps({"eos_token_id": None}))
    new = greedy(directory, ids)[len(ids) :]
    is_new = [id not in new[:n] for n, id in enumerate(new)]
    ends = [id for id, first in zip(new, is_new, strict=True) if first][3:5]
    for eos in (ends, ends[::-1], ends[1], [*ends, 10**6]):
        path.write_text(json.dumps({"eos_token_id": eos}))
        *stopped, end = greedy(directory, ids)
        assert end in ends
        options = ["--greedy", "--tokens", "20", "--json"]
        assert run(["generate", str(directory), "the thing", *options]) == 0
        text = json.loads(capsys.readouterr().out)["samples"][0]
        assert text == loaded.tokenizer.decode(stopped[len(ids) :])
    path.unlink()
    assert loaded.ends == {loaded.tokenizer.special["eos"]}


def test_a_missing_output_layer_is_refused_unless_tied(directory, tmp_path):
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(RunError, match=r"missing lm_head\.weight"):
        load_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    model = load_model(tmp_path)
    assert model.head.weight is model.tokens.weight


def test_errors_of_unsupported_weights_are_short(directory, tmp_path):
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")

    def refusal(changed):
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(RunError) as error:
            load_model(tmp_path)
        assert len(str(error.value)) < 600
        return str(error.value)

    compiled = {f"_orig_mod.{name}": tensor for name, tensor in weights.items()}
    assert "torch.compile" in refusal(compiled)
    quantised = {
        name: tensor.to(torch.float8_e4m3fn) if tensor.ndim == 2 else tensor
        for name, tensor in weights.items()
    }
    scales = {f"{name}_scale_inv": torch.ones(1) for name in quantised}
    assert "quantised" in refusal({**quantised, **scales})


@pytest.mark.parametrize("eos", [[[1]], {"id": 1}, "end", None])
def test_malformed_end_tokens_are_ignored(eos, directory):
    path = directory / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": eos}))
    loaded = open_as(LoadedGPT, directory)
    assert loaded.ends == {loaded.tokenizer.special["eos"]}
    path.unlink()
