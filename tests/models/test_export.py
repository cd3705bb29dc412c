"""Models of ours written for transformers, which opens them and gives the same numbers."""

import json

import pytest
import torch
from redrawn import redrawn
from safetensors import safe_open

from heedful.generate import Sampling, generate
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
        mine, his = ours(ids), theirs.eval()(ids, output_hidden_states=True)
    torch.testing.assert_close(his.logits, mine.logits, rtol=1e-5, atol=1e-5)
    for a, b in zip(mine.hidden_states, his.hidden_states, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    dropouts = (theirs.config.resid_pdrop, theirs.config.attn_pdrop, theirs.config.embd_pdrop)
    assert dropouts == (ours.config.dropout, ours.config.dropout, ours.config.embedding_dropout)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_comes_back_as_it_was(dtype, tmp_path):
    ours = redrawn(GPT(GPTConfig(**GPT2))).to(dtype)
    export_model(ours, tmp_path)
    again = load_model(tmp_path)
    assert again.config == GPTConfig(**GPT2)
    for name, parameter in parameters_of(ours).items():
        assert torch.equal(parameters_of(again)[name], parameter)
        assert parameters_of(again)[name].dtype == dtype
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] in str(dtype)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata()["format"] == "pt"


MODERN = {"vocabulary": 37, "context_length": 70, "width": 24, "layers": 3, "heads": 6}
BIASED = {"bias": True, "attention_bias": True, "qk_norm": False}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied": False, "kv_heads": 2, "rotary_base": 500.0, "norm_epsilon": 0.1},
        {"activation": "swiglu", "hidden": 40, "kv_heads": 3},
        {"qk_norm": False},
        {"activation": "swiglu", "kv_heads": 1, "tied": False, **BIASED},
        {"norm_epsilon": 0.1, "dropout": 0.3, **BIASED},
    ],
    ids=str,
)
def test_rotary_models_are_llamas_or_qwens(changes, tmp_path):
    ours = GPT(config := GPTConfig(**MODERN | changes)).eval()
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.normal_(float("norm.weight" in name), 0.2)
    export_model(ours, tmp_path)
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    theirs.eval()
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(theirs).__name__ == ("Qwen3" if config.qk_norm else "Llama") + "ForCausalLM"
    ids = torch.randint(37, (2, 6))
    with torch.inference_mode():
        for real in (None, torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])):
            keep = None if real is None else real.bool()
            mine = ours(ids, keep=keep)
            place = None if real is None else (real.cumsum(-1) - 1).clamp(min=0)
            his = theirs(ids, attention_mask=real, position_ids=place, output_hidden_states=True)
            seen = torch.ones(2, 6, dtype=torch.bool) if keep is None else keep
            torch.testing.assert_close(his.logits[seen], mine.logits[seen], rtol=1e-5, atol=1e-5)
            for a, b in zip(mine.hidden_states, his.hidden_states, strict=True):
                torch.testing.assert_close(a[seen], b[seen], rtol=1e-5, atol=1e-5)
        text = theirs.generate(ids[:1], attention_mask=torch.ones(1, 6), max_new_tokens=24,
                               do_sample=False, pad_token_id=0)  # fmt: skip
    assert text[0, 6:].tolist() == [
        int(token)
        for token in generate(ours, ids[0].tolist(), tokens=24, sampling=Sampling(temperature=0.0))
    ]
