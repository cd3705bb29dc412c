"""Recorded maps equal those of eager attention, for tiny models of transformers.

To add an architecture, add a line to `TEXT`, `PAIRS` or `OTHERS`: the class of its model, and the
settings of its configuration.
"""

import pytest
import torch
import transformers

import heedful
from heedful.ops.masks import Causal, Combined

transformers.logging.set_verbosity_error()
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50,
         "intermediate_size": 48, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2}  # fmt: skip
GROUPED = {"num_key_value_heads": 2}
MIXTURE = {"num_local_experts": 2, "num_experts_per_tok": 1}
LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": 12, "qk_rope_head_dim": 4,
          "qk_nope_head_dim": 8,
          "v_head_dim": 6, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
          "num_experts_per_tok": 2, "moe_intermediate_size": 16,
          "first_k_dense_replace": 1}  # fmt: skip
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
          "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
          "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
          "shared_expert_intermediate_size": 16, "head_dim": 8}  # fmt: skip
TEXT = {
    "GPT2Model": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "LlamaModel": GROUPED,
    "Qwen2Model": GROUPED,
    "Qwen3Model": GROUPED | {"head_dim": 8},
    "Qwen3NextModel": GROUPED | LINEAR,
    "Phi3Model": GROUPED,
    "MistralModel": GROUPED | {"sliding_window": 4},
    "GemmaModel": GROUPED | {"head_dim": 8},
    "Gemma2Model": GROUPED | {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4},
    "Gemma3TextModel": GROUPED | {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4,
                                  "layer_types": ["sliding_attention", "full_attention"]},
    "Cohere2Model": GROUPED | {"sliding_window": 4},
    "Olmo2Model": GROUPED,
    "GptOssModel": GROUPED | MIXTURE | {"head_dim": 8, "sliding_window": 4},
    "DeepseekV3Model": LATENT,
    "OPTModel": {"ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
    "GPTNeoXModel": {},
    "FalconModel": {},
    "StableLmModel": GROUPED,
    "BloomModel": {},
    "BertModel": {},
    "RobertaModel": {"max_position_embeddings": 64},
    "DistilBertModel": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "ElectraModel": {"embedding_size": 32},
    "ModernBertModel": {"local_attention": 4, "global_attn_every_n_layers": 2},
    "CLIPTextModel": {},
}  # fmt: skip
SIDES = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48, "d_model": 32,
         "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48}  # fmt: skip
PAIRS = {
    "T5Model": {"d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 2, "d_ff": 48},
    "BartModel": SIDES | {"max_position_embeddings": 64},
    "WhisperModel": SIDES | {"num_mel_bins": 6, "max_source_positions": 9},
}
PICTURE = {"image_size": 12, "patch_size": 4}
OTHERS = {
    "ViTModel": PICTURE,
    "Dinov2Model": PICTURE | {"mlp_ratio": 2},
    "SwinModel": {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [2, 2],
                  "num_heads": [2, 4], "window_size": 4},
}  # fmt: skip
LENGTH = 9
PADDING = {"none": [0, LENGTH], "left": [3, LENGTH], "right": [0, LENGTH - 3]}


def tiny(name, implementation="eager"):
    """A tiny model, with the same weights for every implementation."""
    kind = getattr(transformers, name)
    own = (TEXT | PAIRS | OTHERS)[name]
    config = kind.config_class(**own if "depths" in own else SMALL | own)
    if implementation == "sdpa" and not kind._supports_sdpa:
        implementation = "eager"
    model = kind._from_config(config, attn_implementation=implementation)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():  # peaked attention, and biases that are not zero
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=generator)
    return model.eval()


def padding_mask(padding, length=LENGTH):
    """A padding mask (2, length), True for real tokens; only the second sequence has padding."""
    first, last = PADDING[padding]
    keep = torch.ones(2, length, dtype=torch.long)
    keep[1, :first] = keep[1, last - LENGTH + length :] = 0
    return keep


def words(length=LENGTH):
    return torch.randint(3, 50, (2, length), generator=torch.Generator().manual_seed(1))


def recorded(name, implementation, inputs):
    """The recording, and the output of eager attention with the same weights."""
    model = tiny(name, implementation)
    with torch.no_grad():
        before = model(**inputs)[0]
        with heedful.record(model, values=True) as recording:
            during = model(**inputs)[0]
        returned = tiny(name)(**inputs, output_attentions=True)
    assert torch.equal(before, during)
    return recording, returned


def calls_of(recording):
    """All calls of all texts and their windows, in order."""
    return [
        [part for sequence in recording.sequences for part in sequence[at].parts]
        for at in range(len(recording))
    ]


def same(calls, maps, queries, keys, limit=2e-6):
    """Check each call on its real rows; `queries` and `keys` (B, …) are True for real ones."""
    maps = [map_ for map_ in maps if map_ is not None]  # None: a layer without a map
    assert len(calls) == len(maps) > 0
    for layer, (of_texts, map_of_layer) in enumerate(zip(calls, maps, strict=True)):
        assert len(of_texts) == len(map_of_layer)
        for b, call in enumerate(of_texts):
            rows, columns = (side[b].nonzero()[:, 0] for side in (queries, keys))
            torch.testing.assert_close(
                call.weights(), map_of_layer[b][:, rows][:, :, columns], atol=limit, rtol=0,
                msg=lambda text, layer=layer, b=b: f"layer {layer}, sequence {b}: {text}",
            )  # fmt: skip
            assert not call.check.worst > call.check.tolerance


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", TEXT)
def test_text_models(name, padding):
    keep = padding_mask(padding)
    recording, returned = recorded(name, "sdpa", {"input_ids": words(), "attention_mask": keep})
    same(calls_of(recording), returned.attentions, keep, keep)
    layers = [1] if name == "Qwen3NextModel" else range(len(recording))  # 0 is of another kind
    assert [call.layer for call in recording] == list(layers)
    assert [call.index for call in recording] == list(range(len(recording)))
    is_told = name not in ("FalconModel", "BloomModel")
    assert {call.proof for call in recording} == {"proved"}
    assert {(call.layout, call.why) for call in recording} == {("told" if is_told else "usual", "")}
    assert [sequence[0].shape[1] for sequence in recording.sequences] == keep.sum(1).tolist()


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", PAIRS)
def test_encoders_with_decoders(name, padding):
    read, written = padding_mask(padding), padding_mask(padding, 7)
    inputs = {"decoder_input_ids": words(7), "decoder_attention_mask": written}
    if name == "WhisperModel":  # sound has no padding
        read = padding_mask("none")
        inputs["input_features"] = torch.randn(2, 6, 18)
    else:
        inputs |= {"input_ids": words(), "attention_mask": read}
    recording, returned = recorded(name, "sdpa", inputs)
    calls = calls_of(recording)
    reads = [pair for pair in calls if pair[0].name.startswith("encoder.")]
    writes = [pair for pair in calls if pair[0].name.startswith("decoder.")]
    crossing = [pair for pair in writes if pair[0].kind == "cross"]
    same(reads, returned.encoder_attentions, read, read, limit=1e-5)
    same(crossing, returned.cross_attentions, written, read, limit=1e-5)
    writes = [pair for pair in writes if pair[0].kind == "causal"]
    same(writes, returned.decoder_attentions, written, written, limit=1e-5)
    assert len(recording) == len(reads) + len(crossing) + len(writes)


@pytest.mark.parametrize("name", OTHERS)
def test_image_models(name):
    size = OTHERS[name]["image_size"]
    recording, returned = recorded(name, "sdpa", {"pixel_values": torch.randn(2, 3, size, size)})
    maps = returned.attentions
    step = len(recording) // len(maps)  # Swin returns only the last map of each stage
    for calls, map_ in zip(calls_of(recording)[step - 1 :: step], maps, strict=True):
        every = torch.ones(len(map_), map_.shape[-1])  # windows are rows of the batch
        same([calls], [map_], every, every)


@pytest.mark.parametrize("name", ["GPT2Model", "LlamaModel", "MistralModel"])
def test_eager_models(name):
    keep = padding_mask("left")
    recording, returned = recorded(name, "eager", {"input_ids": words(), "attention_mask": keep})
    same(calls_of(recording), returned.attentions, keep, keep)
    for sequence in recording.sequences:  # the added mask is recognised
        causes = sequence[1].causes
        assert isinstance(causes.mask, Causal | Combined)
        assert causes.bias is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, within torch
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", ["LlamaModel", "MistralModel"])
def test_flex_attention_and_its_block_masks(name, padding):
    keep = padding_mask(padding)
    with torch.compiler.set_stance("force_eager"):
        inputs = {"input_ids": words(), "attention_mask": keep}
        recording, returned = recorded(name, "flex_attention", inputs)
    assert recording[0].door == "transformers, flex_attention"
    same(calls_of(recording), returned.attentions, keep, keep)
