"""Exported models: transformers loads them and computes the same."""

import json
import random

import pytest
import torch
from redrawn_parameters import redrawn
from safetensors import safe_open
from safetensors.torch import save_file

from heedful.errors import RunError
from heedful.models import GPT, GPTConfig, export_model, load_model, parameters_of

transformers = pytest.importorskip("transformers")

GPT2 = {
    "vocabulary": 37, "context_length": 19, "width": 20, "layers": 3, "heads": 5,
    "positions": "learned", "activation": "gelu_tanh", "norm": "layer", "qk_norm": False,
    "bias": True, "attention_bias": True,
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied": False},
        {"hidden": 33, "activation": "relu"},
        {"activation": "gelu", "norm_epsilon": 1e-3},
        {"kv_heads": 5, "dropout": 0.3, "embedding_dropout": 0.2},
    ],
    ids=str,
)
def test_transformers_gives_the_same_numbers(changes, tmp_path):
    ours = redrawn(GPT(GPTConfig(**{**GPT2, **changes})))
    export_model(ours, tmp_path)
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(theirs) is transformers.GPT2LMHeadModel
    ids = torch.randint(37, (2, 17))
    with torch.inference_mode():
        mine, expected = ours(ids), theirs.eval()(ids, output_hidden_states=True)
    torch.testing.assert_close(expected.logits, mine.logits, rtol=1e-5, atol=1e-5)
    for a, b in zip(mine.hidden_states, expected.hidden_states, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    dropouts = (theirs.config.resid_pdrop, theirs.config.attn_pdrop, theirs.config.embd_pdrop)
    assert dropouts == (ours.config.dropout, ours.config.dropout, ours.config.embedding_dropout)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_export_and_reload_keep_every_parameter(dtype, tmp_path):
    ours = redrawn(GPT(GPTConfig(**GPT2))).to(dtype)
    export_model(ours, tmp_path)
    reloaded = load_model(tmp_path)
    assert reloaded.config == GPTConfig(**GPT2)
    for name, parameter in parameters_of(ours).items():
        assert torch.equal(parameters_of(reloaded)[name], parameter)
        assert parameters_of(reloaded)[name].dtype == dtype
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] in str(dtype)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata()["format"] == "pt"


def test_a_flipped_bit_of_an_exported_file_is_refused(tmp_path):
    """100 bytes of the header, among them the first 20, and 50 bytes of the tensors."""
    export_model(redrawn(GPT(GPTConfig(**{**GPT2, "layers": 1}))), tmp_path)
    path = tmp_path / "model.safetensors"
    content, rng = path.read_bytes(), random.Random(0)
    end = 8 + int.from_bytes(content[:8], "little")
    header = [*range(20), *rng.sample(range(20, end), 80)]
    for position in [*header, *rng.sample(range(end, len(content)), 50)]:
        flipped = content[position] ^ 1 << rng.randrange(8)
        path.write_bytes(content[:position] + bytes([flipped]) + content[position + 1 :])
        with pytest.raises(RunError, match=r"copy it again"):
            load_model(tmp_path)
    path.write_bytes(content)
    load_model(tmp_path)


def test_an_export_saved_by_another_program_is_not_checked(tmp_path):
    ours = redrawn(GPT(GPTConfig(**GPT2)))
    export_model(ours, tmp_path)
    path = tmp_path / "model.safetensors"
    with safe_open(path, "pt") as file:
        changed = {name: file.get_tensor(name) + 1 for name in file.keys()}  # noqa: SIM118
        sums = json.loads(file.metadata()["heedful"])["sums"]
    save_file(changed, path)
    assert torch.equal(load_model(tmp_path).norm.weight, ours.norm.weight + 1)
    save_file(changed, path, {"heedful": json.dumps({"sums": sums})})  # without header_crc32
    with pytest.raises(RunError, match="header is not what was written"):
        load_model(tmp_path)
