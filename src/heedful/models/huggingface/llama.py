"""Llama, Mistral, Qwen2 and Qwen3 as Hugging Face writes them, to our GPT and back.

They differ by biases, by a window and by norms on queries and keys. All have a gated feed-forward
layer, act(gate) · up. Ours without a gate, by a squared ReLU, is written as a ReLU gate that equals
its own up-projection, for relu(x) · x = relu(x)²: the same numbers, until somebody trains the two
apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.models.gpt import GPTConfig
from heedful.models.huggingface.parameter_names import Names
from heedful.models.huggingface.parameter_names import llama as names_of
from heedful.rotary_scaling import RotaryScaling

GATE_OF = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu", "relu2": "relu"}
ACTIVATION_OF = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "relu": "reglu"}
# What all are, in our words
ALWAYS: dict[str, Any] = {
    "positions": "rotary",
    "norm": "rms",
    "norm_order": "pre",
    "convolution": 0,
    "logit_bias": False,
}


# Our settings that are theirs by another name
SAME = {
    "vocabulary": "vocab_size",
    "context_length": "max_position_embeddings",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "hidden": "intermediate_size",
    "norm_epsilon": "rms_norm_eps",
}


class Family(NamedTuple):
    """What distinguishes one of them.

    kind: its `model_type`, in its own letters. fixed: our settings that are the same in all its
    models. windows: which layers have one: "never", "always" (where its size is given), or "asked"
    (by `use_sliding_window`).
    """

    kind: str
    fixed: dict[str, Any]
    windows: str = "never"

    @property
    def classes(self) -> tuple[str, str]:
        """Its models with an output layer, and without."""
        return f"{self.kind}ForCausalLM", f"{self.kind}Model"


UNBIASED = {"qk_norm": False, "bias": False, "attention_bias": False}
FAMILIES = {
    "llama": Family("Llama", {"qk_norm": False}),
    "mistral": Family("Mistral", UNBIASED, "always"),
    "qwen2": Family("Qwen2", UNBIASED | {"attention_bias": True}, "asked"),
    "qwen3": Family("Qwen3", {"qk_norm": True}, "asked"),
}


def _rotary(description: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of rotary positions, which have another name since transformers 5."""
    rotary = description.get("rope_scaling") or description.get("rope_parameters") or {}
    if not isinstance(rotary, Mapping):
        raise TypeError(f"rotary settings {rotary!r}")
    return rotary


def _rope_type(rotary: Mapping[str, Any]) -> str:
    """How its frequencies are made; before transformers 4.43 the name was `type`."""
    return str(rotary.get("rope_type", rotary.get("type", "default")))


def _windows(description: Mapping[str, Any]) -> set[int | None]:
    """The windows that its layers have."""
    # the only setting whose default changes numbers in silence
    size, windows = description.get("sliding_window", 4096), _family(description).windows
    if windows == "never" or (windows == "asked" and not description.get("use_sliding_window")):
        return {None}
    if windows == "always":
        return {size}
    kinds = description.get("layer_types")
    if kinds:
        return {size if kind == "sliding_attention" else None for kind in kinds}
    first, layers = description["max_window_layers"], description["num_hidden_layers"]
    return {size if i >= first else None for i in range(layers)}


def _biases(description: Mapping[str, Any]) -> dict[str, Any]:
    """Ours from theirs."""
    family, attention = _family(description), bool(description.get("attention_bias"))
    of_feed = family.kind == "Llama" and bool(description.get("mlp_bias"))
    biases = {"attention_bias": attention, "bias": attention} | family.fixed
    return biases if of_feed == biases["bias"] else biases | {"feed_bias": of_feed}


def _family(description: Mapping[str, Any]) -> Family:
    return FAMILIES[str(description["model_type"])]


def lacking(description: Mapping[str, Any]) -> list[str]:
    """What a `config.json` asks for that our GPT does not have, as `name = value`."""
    rotary, wrong = _rotary(description), []
    activation = description.get("hidden_act", "silu")
    if activation not in ACTIVATION_OF:
        wrong.append(f"hidden_act = {activation!r}")
    if any(isinstance(value, Mapping) for value in rotary.values()):
        return [*wrong, "rotary positions that differ between layers"]
    if _rope_type(rotary) not in ("default", "linear", "llama3"):
        wrong.append(f"rope_type = {_rope_type(rotary)!r}")
    turned = rotary.get("partial_rotary_factor", description.get("partial_rotary_factor"))
    if turned not in (None, 1, 1.0):
        wrong.append(f"partial_rotary_factor = {turned}")
    if len(_windows(description)) > 1:
        wrong.append("a window in some of its layers only")
    return wrong


def read_config(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> GPTConfig:
    """Our configuration from a `config.json` that is `lacking` nothing, and the tensors.

    Without an output layer among them it shares the token table.
    """
    of, rotary = description, _rotary(description)
    activation = ACTIVATION_OF[of["hidden_act"]]
    if activation == "reglu" and _gate_is_copied(tensors):
        activation = "relu2"
    [window] = _windows(of)
    return GPTConfig(
        **{ours: of[theirs] for ours, theirs in SAME.items()},
        kv_heads=of.get("num_key_value_heads"),
        head_width=_head_width(of),
        window=window,
        activation=activation,
        tied=bool(of.get("tie_word_embeddings")) or "lm_head.weight" not in tensors,
        dropout=of.get("attention_dropout") or 0.0,
        rotary_base=rotary.get("rope_theta") or of.get("rope_theta") or 10_000.0,
        rotary_scaling=_scaling(of, rotary),
        **ALWAYS,
        **_biases(of),
    )


def names(config: GPTConfig) -> Names:
    """What the parameters of a model of this configuration are called."""
    head = config.width_of_heads
    return names_of(
        config.heads * head,
        (config.kv_heads or config.heads) * head,
        copied_gate=config.activation == "relu2",
    )


def unlike(config: GPTConfig, kind: str) -> list[str]:
    """The settings that a family's models do not have, as `name = value`."""
    family = FAMILIES[kind]
    fixed = ALWAYS | family.fixed | ({"window": None} if family.windows == "never" else {})
    wrong = [name for name, value in fixed.items() if getattr(config, name) != value]
    if _feed_bias(config) and kind != "llama":
        wrong.append("bias" if config.feed_bias is None else "feed_bias")
    elif "bias" not in fixed and config.bias != config.attention_bias:
        wrong.append("attention_bias")  # attention has all its biases, or none
    wrong += ["activation"] if config.activation not in GATE_OF else []
    return [f"{name} = {getattr(config, name)!r}" for name in dict.fromkeys(wrong)]


def write_config(config: GPTConfig, kind: str) -> dict[str, Any]:
    """The content of a `config.json`; of dropout, only that of the weights has a place there."""
    family = FAMILIES[kind]
    rotary = {"rope_theta": config.rotary_base, **_written(config.rotary_scaling)}
    return {
        "architectures": [family.classes[0]],
        "model_type": kind,
        **{theirs: getattr(config, ours) for ours, theirs in SAME.items()},
        "intermediate_size": config.hidden or 4 * config.width,
        "num_key_value_heads": config.kv_heads or config.heads,
        "head_dim": config.width_of_heads,
        "hidden_act": GATE_OF[config.activation],
        "rope_parameters": rotary,
        "rope_theta": config.rotary_base,  # for transformers before 5, as is the next
        **({"rope_scaling": rotary} if config.rotary_scaling else {}),
        **_written_biases(config, kind),
        **_written_window(config, family),
        "tie_word_embeddings": config.tied,
        "attention_dropout": config.dropout,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _head_width(of: Mapping[str, Any]) -> int | None:
    """None where it is the width by the number of heads."""
    width = of.get("head_dim")
    return None if width and width * of["num_attention_heads"] == of["hidden_size"] else width


def _gate_is_copied(tensors: Mapping[str, Tensor]) -> bool:
    """Whether each gate equals its up-projection, as in what we write for a squared ReLU."""
    gates = [name for name in tensors if ".gate_proj." in name]
    return all(
        torch.equal(tensors[name], tensors[name.replace("gate_proj", "up_proj")]) for name in gates
    )


def _scaling(of: Mapping[str, Any], rotary: Mapping[str, Any]) -> RotaryScaling | None:
    if _rope_type(rotary) == "default":
        return None
    if _rope_type(rotary) == "linear":
        return RotaryScaling(kind="linear", factor=rotary["factor"])
    original = of.get("original_max_position_embeddings") or rotary.get(
        "original_max_position_embeddings", of["max_position_embeddings"]
    )
    return RotaryScaling(
        kind="llama3",
        factor=rotary["factor"],
        original_context=original,
        low_frequency=rotary["low_freq_factor"],
        high_frequency=rotary["high_freq_factor"],
    )


def _written(scaling: RotaryScaling | None) -> dict[str, Any]:
    if scaling is None:
        return {"rope_type": "default"}
    written = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "linear":
        return written
    return written | {
        "original_max_position_embeddings": scaling.original_context,
        "low_freq_factor": scaling.low_frequency,
        "high_freq_factor": scaling.high_frequency,
    }


def _feed_bias(config: GPTConfig) -> bool:
    return config.bias if config.feed_bias is None else config.feed_bias


def _written_biases(config: GPTConfig, kind: str) -> dict[str, bool]:
    """Where a family leaves a choice."""
    if kind == "llama":
        return {"attention_bias": config.attention_bias, "mlp_bias": _feed_bias(config)}
    return {"attention_bias": config.attention_bias} if kind == "qwen3" else {}


def _written_window(config: GPTConfig, family: Family) -> dict[str, Any]:
    if family.windows == "never":
        return {}
    asked = {"use_sliding_window": config.window is not None, "max_window_layers": 0}
    return {"sliding_window": config.window, **(asked if family.windows == "asked" else {})}
