"""A generation recorded pass by pass, beside eager attention over the whole text."""

import pytest
import torch
import transformers

import heedful
from heedful.errors import RunError
from heedful.generate import Sampling, generate
from heedful.models import GPT, GPTConfig

transformers.logging.set_verbosity_error()
SMALL = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
WIDE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 48}  # fmt: skip
MODELS = {
    "GPT2LMHeadModel": transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, **SMALL),
    "LlamaForCausalLM": transformers.LlamaConfig(**WIDE, **SMALL),
    "MistralForCausalLM": transformers.MistralConfig(sliding_window=6, **WIDE, **SMALL),
}


def test_our_own_generation():
    torch.manual_seed(2)
    config = GPTConfig(vocabulary=30, context=64, width=24, layers=2, heads=3)
    model, prompt = GPT(config).eval(), [1, 2, 3, 4]
    with heedful.record(model) as recording:
        made = [int(t) for t in generate(model, prompt, tokens=8, sampling=Sampling(temperature=0))]
    whole = torch.tensor([prompt + made[:-1]])
    for call, steps in zip(recording.stitched(), model.steps(whole), strict=True):
        torch.testing.assert_close(call.weights(), steps.weights[0], atol=1e-6, rtol=0)
        assert call.check.passed


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", MODELS)
def test_generation_by_transformers(name, cache):
    kind, generator = getattr(transformers, name), torch.Generator().manual_seed(5)
    model = kind._from_config(MODELS[name], attn_implementation="sdpa").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=generator)
    eager = kind._from_config(MODELS[name], attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    asked = {"cache_implementation": cache} if cache else {}
    ids = torch.randint(3, 50, (1, 5), generator=generator)
    with heedful.record(model) as recording:
        text = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=9, do_sample=False, **asked
        )
    maps = eager(text[:, :-1], output_attentions=True).attentions
    for call, map_ in zip(recording.stitched(), maps, strict=True):
        torch.testing.assert_close(call.weights(), map_[0].detach(), atol=2e-6, rtol=0)


def test_nothing_to_stitch():
    with heedful.record(torch.nn.Linear(2, 2)) as recording:
        pass
    with pytest.raises(RunError, match="no pass of self-attention"):
        recording.stitched()
