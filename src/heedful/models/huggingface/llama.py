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


class Family(NamedTuple):
    """What tells one of them from the others.

    Args:
        kind: its `model_type`, in its own letters.
        fixed: our settings that are the same in all its models.
        defaults: their settings where a `config.json` leaves them out.
        windows: how it says which layers have a window: "never", "always" (where there is one),
            or "asked" (by `use_sliding_window`).
    """

    kind: str
    fixed: dict[str, Any]
    defaults: dict[str, Any]
    windows: str = "never"

    @property
    def classes(self) -> tuple[str, str]:
        """Its models with an output layer, and without."""
        return f"{self.kind}ForCausalLM", f"{self.kind}Model"


COMMON = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}
QWEN = {"vocab_size": 151936, "intermediate_size": 22016, "sliding_window": 4096,
        "max_window_layers": 28, "num_key_value_heads": 32}  # fmt: skip
FAMILIES = {
    "llama": Family(
        "Llama",
        {"qk_norm": False},
        {"vocab_size": 32000, "intermediate_size": 11008, "max_position_embeddings": 2048},
    ),
    "mistral": Family(
        "Mistral",
        {"qk_norm": False, "bias": False, "attention_bias": False},
        {"vocab_size": 32000, "intermediate_size": 14336, "max_position_embeddings": 131072,
         "num_key_value_heads": 8, "sliding_window": 4096},
        windows="always",
    ),
    "qwen2": Family(
        "Qwen2", {"qk_norm": False, "bias": False, "attention_bias": True}, QWEN, windows="asked"
    ),
    "qwen3": Family("Qwen3", {"qk_norm": True}, QWEN | {"head_dim": 128}, windows="asked"),
}  # fmt: skip


class Read:
    """A `config.json` of the family, with what it leaves out.

    Args:
        description: its content.
    """

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.family = FAMILIES[str(description["model_type"])]
        self.of: dict[str, Any] = COMMON | self.family.defaults | dict(description)
        rotary: Any = self.of.get("rope_scaling") or self.of.get("rope_parameters") or {}
        if not isinstance(rotary, Mapping):
            raise TypeError(f"rotary settings {rotary!r}")
        self.rotary = rotary

    @property
    def rope_type(self) -> str:
        """How its rotary frequencies are made; before transformers 4.43 the name was `type`."""
        return str(self.rotary.get("rope_type", self.rotary.get("type", "default")))

    @property
    def windows(self) -> list[int | None]:
        """The window of each layer."""
        of, size = self.of, self.of.get("sliding_window")
        layers = range(of["num_hidden_layers"])
        if self.family.windows == "always":
            return [size for _ in layers]
        if self.family.windows == "never" or not of.get("use_sliding_window"):
            return [None for _ in layers]
        kinds = of.get("layer_types") or [
            "sliding_attention" if i >= of["max_window_layers"] else "full_attention"
            for i in layers
        ]
        return [size if kind == "sliding_attention" else None for kind in kinds]

    @property
    def biases(self) -> dict[str, Any]:
        """Ours from theirs."""
        attention = bool(self.of.get("attention_bias"))
        of_feed = bool(self.of.get("mlp_bias")) and self.family.kind == "Llama"
        biases = {"attention_bias": attention, "bias": attention} | {
            name: value for name, value in self.family.fixed.items() if name != "qk_norm"
        }
        return biases if of_feed == biases["bias"] else biases | {"feed_bias": of_feed}


def lacking(description: Mapping[str, Any]) -> list[str]:
    """What a `config.json` asks for that our GPT does not have, as `name = value`."""
    read = Read(description)
    of, wrong = read.of, []
    if of["hidden_act"] not in ACTIVATION_OF:
        wrong.append(f"hidden_act = {of['hidden_act']!r}")
    if any(isinstance(value, Mapping) for value in read.rotary.values()):
        return [*wrong, "rotary positions that differ between layers"]
    if read.rope_type not in ("default", "linear", "llama3"):
        wrong.append(f"rope_type = {read.rope_type!r}")
    turned = read.rotary.get("partial_rotary_factor", of.get("partial_rotary_factor"))
    if turned not in (None, 1, 1.0):
        wrong.append(f"partial_rotary_factor = {turned}")
    if len(set(read.windows)) > 1:
        wrong.append("a window in some of its layers only")
    return wrong


def read_config(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> GPTConfig:
    """Our configuration from a `config.json` that is `lacking` nothing.

    Args:
        description: its content; what it leaves out has the family's own value.
        tensors: the checkpoint's; one without an output layer shares the token table.
    """
    read = Read(description)
    of = read.of
    activation = ACTIVATION_OF[of["hidden_act"]]
    if activation == "reglu" and _gate_is_copied(tensors):
        activation = "relu2"
    return GPTConfig(
        vocabulary=of["vocab_size"],
        context_length=of["max_position_embeddings"],
        width=of["hidden_size"],
        layers=of["num_hidden_layers"],
        heads=of["num_attention_heads"],
        kv_heads=of.get("num_key_value_heads"),
        head_width=_head_width(of),
        window=next(iter(read.windows), None),
        hidden=of["intermediate_size"],
        activation=activation,
        norm_epsilon=of["rms_norm_eps"],
        qk_norm=read.family.fixed["qk_norm"],
        tied=bool(of.get("tie_word_embeddings")) or "lm_head.weight" not in tensors,
        dropout=of.get("attention_dropout") or 0.0,
        rotary_base=read.rotary.get("rope_theta") or of.get("rope_theta") or 10_000.0,
        rotary_scaling=_scaling(read),
        **ALWAYS,
        **read.biases,
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
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context_length,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads or config.heads,
        "head_dim": config.width_of_heads,
        "intermediate_size": config.hidden or 4 * config.width,
        "hidden_act": GATE_OF[config.activation],
        "rms_norm_eps": config.norm_epsilon,
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
    found = of.get("head_dim")
    return (
        None if found is None or found * of["num_attention_heads"] == of["hidden_size"] else found
    )


def _gate_is_copied(tensors: Mapping[str, Tensor]) -> bool:
    """Whether each gate equals its up-projection, as in what we write for a squared ReLU."""
    gates = [name for name in tensors if ".gate_proj." in name]
    return all(
        torch.equal(tensors[name], tensors[name.replace("gate_proj", "up_proj")]) for name in gates
    )


def _scaling(read: Read) -> RotaryScaling | None:
    rotary = read.rotary
    if read.rope_type == "default":
        return None
    if read.rope_type == "linear":
        return RotaryScaling(kind="linear", factor=rotary["factor"])
    original = read.of.get("original_max_position_embeddings") or rotary.get(
        "original_max_position_embeddings", read.of["max_position_embeddings"]
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
    if scaling.kind == "linear":
        return {"rope_type": "linear", "factor": scaling.factor}
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
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
