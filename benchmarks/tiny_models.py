"""Small models of any architecture in transformers, built from its configuration class.

A configuration is shrunk by the names of its fields (`SIZES`); `OVERRIDES` has the exceptions of
each family. The parameters are redrawn so that attention is peaked.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

WIDTH, HEADS, LAYERS, VOCABULARY, IMAGE, PATCH = 64, 4, 2, 128, 32, 8
LARGEST = 100e6  # maximum number of parameters of a small model

# The largest allowed value of a field, by the first pattern that matches its full name.
SIZES = [
    (re.compile(pattern), size)
    for pattern, size in [
        (r"num_feat_extract_layers|num_adapter_layers|conv_.*|speech_decoder_postnet_.*", None),
        (r"num_kv_shared_layers", 0),
        (r"(num_|n_)?(key_value|kv|k_v)_heads|.*num_key_value_heads|n_head_kv|num_kv_heads", 2),
        (r"linear_num_key_heads|index_n_heads", 2),
        (r"mamba_num_heads", 8),
        (r"mamba_n_heads", 2),
        (r".*attention_heads|.*attn_heads|num_heads|n_heads?|heads|num_head|linear_num_.*heads"
         r"|linear_num_heads|cross_num_.*heads|.*_n_heads|nhead", 4),
        (r"max_window_layers|first_k_dense_replace|num_dense_layers", 1),
        (r".*layers|n_layer|depth|num_blocks|num_decoder_blocks|.*_depth"
         r"|.*_blocks|num_layer|num_hidden_groups", 2),
        (r".*(hidden|embed|embedding|embeddings|proj|projection|model|feature|output|hidden_state"
         r"|cross|kv|query|key|value|bottleneck|adapter|adapter_in|adapter_out|text_embed|embd|emb)"
         r"_(size|dim|dims|channels)|d_model|n_embd|dim|width|d_embed|hidden_dim|model_dim"
         r"|embed_dim|d_latents|output_size|input_dim|word_embed_proj_dim|project_dim"
         r"|out_dim|feature_size|projection_dim|hidden_channels|output_dim", WIDTH),
        (r".*intermediate_(size|dim)|.*ffn_dim|d_ff|n_inner|mlp_dim|ffn_hidden_size|.*ff_dim"
         r"|.*feedforward.*|inner_dim|linear_units|d_inner|ffn_size|hidden_mlp"
         r"|.*ffn_hidden_size|.*feed_forward_(size|dim|hidden_size)|mlp_hidden_size", 96),
        (r"qk_head_dim", 32),
        (r".*head_dim|d_kv|d_head|dim_head|head_size|rotary_dim", 16),
        (r".*lora_rank|.*_lora_dim", 16),
        (r".*vocab_size.*|vocabulary.*|n_vocab|output_vocab_size|.*codebook_size", VOCABULARY),
        (r".*experts_per_tok(en)?|moe_topk?|moe_k|top_k_experts|topk|experts_top_k|top_k|router_top_k"
         r"|.*num_selected_experts|num_experts_per_.*", 2),
        (r"n_group|topk_group|num_expert_group|n_groups_moe", 1),
        (r".*num.*experts|n_routed_experts|num_local_experts|moe_num_experts|ffn_num_experts", 4),
        (r"max_source_positions|.*max_audio_positions", 32),
        (r"(.*max_.*position.*|n_positions|n_ctx|max_seq_len|max_sequence_length|seq_length"
         r"|context_length|max_text_length|max_length|model_max_length)", 128),
        (r"sliding_window.*|attention_chunk_size|local_attention", 4),
        (r"(.*_)?image_size|img_size|.*crop_size|input_size|resolution|pretrain_image_size", IMAGE),
        (r"patch_size|vision_patch_size", PATCH),
        (r"num_queries|num_query_tokens|num_latents|n_latents|.*num_object_queries", 7),
        (r"num_frames|frames", 4),
        (r"index_topk", 6),
    ]
]  # fmt: skip
SKIPPED = {"per_layer_config", "id2label", "label2id", "model_type"}  # fields without sizes
STAGES = {"stage_names", "out_features"}  # lists with an entry per stage, not per layer
# fields of the outer configuration only
OUTER = {"transformers_version", "_name_or_path", "dtype", "num_labels"}
KEY_HEADS = re.compile(r"(.*)num_key_value_heads|num_kv_heads|n_head_kv")
# Required fields that some configurations leave at None.
MISSING = {"head_dim": 16, "vocab_size": VOCABULARY, "num_key_value_heads": 2,
           "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}  # fmt: skip
TOKENS = re.compile(r".*(token|tok)_(id|index|ids)|.*_id|.*_idx|.*token_index")

# Further fields of a family's configuration, or of a nested configuration.
# `start` has the fields without which the default configuration cannot be created.
RESNET = {"start": {"backbone_config": {"model_type": "resnet", "out_features": ["stage4"]}}}
ROTARY = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
QUARTER = {**ROTARY, "mrope_section": [2, 1, 1]}
FULL = {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
WINDOWS = {"embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
OVERRIDES: list[tuple[str, dict[str, Any]]] = [
    (r"(conditional_|dab-)?detr|table-transformer", RESNET),
    (r"dbrx", {"start": {"attn_config": {
        "kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0}}}),
    (r"bamba", {"attn_layer_indices": [1]}),
    (r"swin|donut-swin|maskformer-swin|swinv2|swin2sr", WINDOWS),
    (r"(qwen2_vl|qwen2_5_vl|glm4v|glm_ocr|glm_image|paddleocr_vl)_text",
     {"rope_parameters": ROTARY}),
    (r"qwen2_vl|qwen2_5_vl|glm4v|glm_ocr|glm_image|paddleocr_vl|glm46v|glmga"
     r"|qwen2_5_omni_thinker", {"text_config": {"rope_parameters": ROTARY}}),
    (r"glm4v_moe_text", {"rope_parameters": QUARTER}),
    (r"glm4v_moe", {"text_config": {"rope_parameters": QUARTER}}),
    (r"layoutlmv3", {"coordinate_size": 12, "shape_size": 8}),
    (r"lilt", {"hidden_size": 96}),
    (r"cohere_compass_text", {"rope_parameters": FULL}),
    (r"cohere_compass", {"text_config": {"rope_parameters": FULL}}),
    (r"jamba", {"attn_layer_period": 2, "attn_layer_offset": 1}),
    (r"granitemoehybrid", {"layer_types": ["linear_attention", "full_attention"]}),
    (r"recurrent_gemma", {"num_hidden_layers": 3, "lru_width": 64}),
    (r"lfm2_moe", {"layer_types": ["conv", "full_attention"]}),
    (r"cpmant", {"prompt_length": 0}),
    (r"reformer", {"axial_pos_embds_dim": [16, 48]}),
    (r"esm", {"pad_token_id": 1, "mask_token_id": 5}),
    (r"gemma3n_text", {"head_dim": 4}),  # scores without a scale grow with the width
    (r"diffusion_gemma", {"text_config": {
        "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 96}}),
    (r"glm5_next_text", {"index_topk": 16}),
    (r"glm5_next", {"text_config": {"index_topk": 16}}),
    (r"ernie4_5_vl_moe",
     {"text_config": {"rope_parameters": {**ROTARY, "mrope_section": [2, 2, 4]}}}),
    (r"step3p7", {"text_config": {"sliding_window": 4}}),
    (r"mistral4", {"head_dim": 32}),
    (r"zamba2", {"attention_hidden_size": 128, "attention_head_dim": 32}),
    (r"csm", {"codec_config": {"upsample_groups": 64}}),
    (r"mimi|mimi_decoder", {"upsample_groups": 64}),
    (r"clvp", {"text_config": {"hidden_size": 128}, "speech_config": {"hidden_size": 128}}),
    (r"xmod", {"default_language": "en_XX"}),
    (r"autoformer|informer|time_series_transformer", {"start": {"prediction_length": 4},
     "context_length": 8, "lags_sequence": [1, 2]}),
]  # fmt: skip


def build(kind: str, cls: type, implementation: str, draw: float) -> torch.nn.Module:
    """Build a small model with redrawn parameters, equal for every implementation."""
    config = small_config(kind)
    with torch.device("meta"):
        count = sum(p.numel() for p in cls._from_config(copy.deepcopy(config)).parameters())
    if count > LARGEST:
        raise ValueError(f"{count / 1e6:.0f} million parameters after shrinking")
    model = cls._from_config(config, attn_implementation=implementation)
    redraw(model, draw)
    return model.eval()


@torch.no_grad()
def redraw(model: torch.nn.Module, draw: float) -> None:
    """Redraw the parameters for peaked attention; perturb biases and scales of norms."""
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        if not parameter.is_floating_point():
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1:
            parameter.copy_(noise * draw * (parameter.shape[0] / max(1, parameter.numel())) ** 0.5)
        else:
            parameter.add_(0.1 * noise)


def small_config(kind: str) -> Any:
    cls = CONFIG_MAPPING[kind]
    overrides: dict[str, Any] = {}
    for pattern, fields in OVERRIDES:
        if re.fullmatch(pattern, kind):
            overrides = merged(overrides, fields)
    start = overrides.get("start", {})
    fields = cls(**start).to_dict()
    changed = merged(start, shrunk(fields))
    return cls(**merged(changed, {k: v for k, v in overrides.items() if k != "start"}))


def merged(first: dict, other: dict) -> dict:
    """Merge two nested dicts; entries of the second take precedence."""
    out = dict(first)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = merged(out[key], value) if both else value
    return out


def shrunk(fields: dict) -> dict:
    """Return the changed fields of a configuration, nested configurations included."""
    out: dict[str, Any] = {}
    staged = any(isinstance(fields.get(name), list) for name in ("depths", "num_heads"))
    for name, value in fields.items():
        if not isinstance(name, str) or name in SKIPPED or isinstance(value, bool):
            continue
        if value is None and name in MISSING:
            out[name] = MISSING[name]
        if isinstance(value, dict):
            inner = shrunk(value)
            if "model_type" in value:
                out[name] = {**plain(value), **inner}
            elif inner:
                out[name] = {**value, **inner}
        elif isinstance(value, int | float):
            new = size_of(name, value, staged)
            if (owner := KEY_HEADS.fullmatch(name)) and value == heads_of(fields, owner[1]):
                new = HEADS
            if new != value:
                out[name] = new
        elif isinstance(value, list):
            new = listed(name, value)
            if new is not None:
                out[name] = new
    return {**out, **by_layer(fields)}


def plain(part: dict) -> dict:
    """Return the fields from which a nested configuration is created again."""
    fields = {name: value for name, value in part.items() if not isinstance(value, dict | list)}
    if isinstance(part.get("depths"), list):
        fields["out_features"] = part.get("out_features")
    return {name: value for name, value in fields.items() if name not in OUTER}


def heads_of(fields: dict, owner: str | None) -> int | None:
    """Return the number of query heads in a configuration, or in its part with this prefix."""
    names = (f"{owner or ''}num_attention_heads", "n_head", "num_heads", "n_heads")
    return next((fields[name] for name in names if name in fields), None)


def size_of(name: str, value: float, staged: bool) -> float:
    if TOKENS.fullmatch(name) and value >= VOCABULARY:
        return special(name)
    for pattern, size in SIZES:
        if pattern.fullmatch(name):
            if size is None:
                return value
            if staged and size in (WIDTH, HEADS, PATCH):
                return value  # it must match lists with an entry per stage
            return min(value, 2 * size if staged and size == IMAGE else size)
    return value


def special(name: str) -> int:
    """Return an id for a special token, derived from its name; most are near the last id."""
    if name.startswith(("pad", "bos", "eos", "decoder_start")):
        return {"p": 0, "b": 1, "e": 2, "d": 1}[name[0]]
    return VOCABULARY - 1 - sum(map(ord, name)) % 40


def listed(name: str, value: list) -> list | None:
    """Return the shrunk list, or None if it does not change."""
    if name == "mrope_section":
        return ROTARY["mrope_section"]
    if name in ("depths", "blocks_per_stage", "layers"):
        return [min(size, 2) for size in value]
    if name.endswith("in_channels") and set(value) == {256}:
        return [WIDTH] * len(value)
    if name in ("image_size", "img_size") and all(isinstance(size, int) for size in value):
        return [min(size, IMAGE) for size in value]
    if re.fullmatch(r".*(indexes|indices)|cross_attention_layers", name):
        return None if name == "out_indices" else [1]
    if TOKENS.fullmatch(name) and all(isinstance(id_, int) for id_ in value):
        return [id_ if id_ < VOCABULARY else 2 for id_ in value]
    return None


def by_layer(fields: dict) -> dict:
    """Shorten lists with an entry per layer; keep layers of each kind."""
    names = [n for n in ("num_hidden_layers", "n_layer", "num_layers", "n_layers") if n in fields]
    if not names or not isinstance(fields[names[0]], int):
        return {}
    count = fields[names[0]]
    lists = {
        name: value
        for name, value in fields.items()
        if isinstance(value, list) and len(value) == count > LAYERS and name not in STAGES
    }
    per_layer = fields.get("per_layer_config") or {}
    changes = {int(i): shrunk(layer) for i, layer in per_layer.items()}
    if not lists:
        return {}
    kinds: dict[str, int] = {}
    for i in range(count):
        kinds.setdefault(repr([value[i] for value in lists.values()]), i)
    chosen = sorted(kinds.values())[:6]
    chosen += [i for i in range(count) if i not in chosen][: max(0, LAYERS - len(chosen))]
    chosen.sort()
    out: dict[str, Any] = {name: [value[i] for i in chosen] for name, value in lists.items()}
    if changes:  # fields that differ between layers
        out["per_layer_config"] = {n: changes[i] for n, i in enumerate(chosen) if i in changes}
    return {**out, names[0]: len(chosen)}
