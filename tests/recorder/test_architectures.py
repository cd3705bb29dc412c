"""Recorded maps beside those of eager attention, for models of transformers built tiny.

Adding an architecture is a line in `DECODERS` or `ENCODERS`: its configuration class, and what of
the configuration is its own.
"""

import pytest
import torch
import transformers

import heedful

transformers.logging.set_verbosity_error()
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50,
         "intermediate_size": 48, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2}  # fmt: skip
GROUPED = {"num_key_value_heads": 2}
MIXTURE = {"num_local_experts": 2, "num_experts_per_tok": 1}
DECODERS = {
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "Llama": GROUPED,
    "Qwen2": GROUPED,
    "Qwen3": GROUPED | {"head_dim": 8},
    "Phi3": GROUPED,
    "Mistral": GROUPED | {"sliding_window": 4},
    "Gemma": GROUPED | {"head_dim": 8},
    "Gemma2": GROUPED | {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4},
    "Cohere2": GROUPED | {"sliding_window": 4},
    "Olmo2": GROUPED,
    "GptOss": GROUPED | MIXTURE | {"head_dim": 8, "sliding_window": 4},
    "OPT": {"ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
    "GPTNeoX": {},
    "Falcon": {},
    "StableLm": GROUPED,
}
ENCODERS = {
    "Bert": {},
    "Roberta": {"max_position_embeddings": 64},
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "Electra": {"embedding_size": 32},
    "ModernBert": {"local_attention": 4, "global_attn_every_n_layers": 2},
}
LENGTH = 9
PADDING = {"none": [0, LENGTH], "left": [3, LENGTH], "right": [0, LENGTH - 3]}


def tiny(name, implementation, causal):
    config = getattr(transformers, f"{name}Config")(**SMALL | (DECODERS | ENCODERS)[name])
    head = "" if not causal else "LMHead" if name == "GPT2" else "For"
    suffix = {"": "", "LMHead": "", "For": "CausalLM"}[head]
    kind = getattr(transformers, f"{name}{head if head == 'LMHead' else suffix and 'For'}"
                   f"{'Model' if not causal or head == 'LMHead' else suffix}")  # fmt: skip
    model = kind._from_config(config, attn_implementation=implementation)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():  # peaked attention, and biases that are not zero
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=generator)
    return model.eval()


def compare(name, implementation, padding, causal):
    model, eager = tiny(name, implementation, causal), tiny(name, "eager", causal)
    eager.load_state_dict(model.state_dict())
    ids = torch.randint(3, 50, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    keep = torch.ones(2, LENGTH, dtype=torch.long)
    first, last = PADDING[padding]
    keep[1, :first] = keep[1, last:] = 0
    with torch.no_grad():
        before = model(ids, attention_mask=keep)[0]
        with heedful.record(model, values=True) as recording:
            during = model(ids, attention_mask=keep)[0]
        maps = eager(ids, attention_mask=keep, output_attentions=True).attentions
    assert torch.equal(before, during)
    assert len(recording) == len(maps) == 2
    for b, sequence in enumerate(recording.sequences):
        real = keep[b].nonzero()[:, 0]
        for layer, (call, whole) in enumerate(zip(sequence, maps, strict=True)):
            torch.testing.assert_close(
                call.weights(), whole[b][:, real][:, :, real], atol=2e-6, rtol=0
            )
            assert call.check.passed
            assert call.layer == layer


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", DECODERS)
def test_decoders(name, padding):
    implementation = "eager" if name in ("Gemma2", "GptOss") else "sdpa"
    compare(name, implementation, padding, causal=True)


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", ENCODERS)
def test_encoders(name, padding):
    compare(name, "sdpa", padding, causal=False)


@pytest.mark.parametrize("name", ["GPT2", "Llama", "Mistral"])
def test_eager_models(name):
    compare(name, "eager", "left", causal=True)
