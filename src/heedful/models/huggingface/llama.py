"""Conversion of Llama, Mistral, Qwen2 and Qwen3 between Hugging Face and heedful's GPT.

These models differ in biases, sliding windows, and norms of queries and keys. All have a gated
feed-forward layer, act(gate) · up. heedful's squared ReLU has no gate. It is exported as a ReLU
gate with the weights of the up-projection, because relu(x) · x = relu(x)². The results are equal
until further training changes gate and up-projection separately.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.models.gpt import GPTConfig
from heedful.models.huggingface.config_fields import is_tied
from heedful.models.huggingface.parameter_names import ParameterNames
from heedful.models.huggingface.parameter_names import llama as names_of
from heedful.rotary_scaling import RotaryScaling

GATE_OF = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu", "relu2": "relu"}
ACTIVATION_OF = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "relu": "reglu"}
# The settings of GPTConfig that all these models share
COMMON_SETTINGS: dict[str, Any] = {
    "positions": "rotary",
    "norm": "rms",
    "norm_order": "pre",
    "convolution": 0,
    "logit_bias": False,
}
# heedful's setting → Hugging Face's name
SETTING_NAMES = {
    "vocabulary": "vocab_size",
    "context_length": "max_position_embeddings",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "hidden": "intermediate_size",
    "norm_epsilon": "rms_norm_eps",
}


class Family(NamedTuple):
    """The properties of a model family.

    kind: the family's name in classes of transformers. fixed: the settings of GPTConfig that its
    models share. windows: whether layers have a sliding window: "never", "always" (if a size is
    set), or "flag" (if `use_sliding_window` is set).
    """

    kind: str
    fixed: dict[str, Any]
    windows: str = "never"

    @property
    def classes(self) -> tuple[str, str]:
        """The classes of transformers, with and without an output layer."""
        return f"{self.kind}ForCausalLM", f"{self.kind}Model"


UNBIASED = {"qk_norm": False, "bias": False, "attention_bias": False}
FAMILIES = {
    "llama": Family("Llama", {"qk_norm": False}),
    "mistral": Family("Mistral", UNBIASED, "always"),
    "qwen2": Family("Qwen2", UNBIASED | {"attention_bias": True}, "flag"),
    "qwen3": Family("Qwen3", {"qk_norm": True}, "flag"),
}


def _rotary(description: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of rotary positions; their key in the file changed in transformers 5."""
    rotary = description.get("rope_scaling") or description.get("rope_parameters") or {}
    if not isinstance(rotary, Mapping):
        raise TypeError(f"rotary settings {rotary!r}")
    return rotary


def _rope_type(rotary: Mapping[str, Any]) -> str:
    """Return the type of rotary scaling; before transformers 4.43 its key was `type`."""
    return str(rotary.get("rope_type", rotary.get("type", "default")))


def _windows(description: Mapping[str, Any]) -> set[int | None]:
    """Return the distinct window sizes of the layers; None is no window."""
    # 4096 is transformers' default, which applies if the file does not set a size
    size = description.get("sliding_window", 4096)
    windows = FAMILIES[description["model_type"]].windows
    if windows == "never" or (windows == "flag" and not description.get("use_sliding_window")):
        return {None}
    if windows == "always":
        return {size}
    kinds = description.get("layer_types")
    if kinds:
        return {size if kind == "sliding_attention" else None for kind in kinds}
    first, layers = description["max_window_layers"], description["num_hidden_layers"]
    return {size if i >= first else None for i in (0, layers - 1)}


def _biases(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bias settings of GPTConfig."""
    family = FAMILIES[description["model_type"]]
    attention = bool(description.get("attention_bias"))
    feed = family.kind == "Llama" and bool(description.get("mlp_bias"))
    biases = {"attention_bias": attention, "bias": attention} | family.fixed
    return biases if feed == biases["bias"] else biases | {"feed_bias": feed}


def unsupported(description: Mapping[str, Any]) -> list[str]:
    """Return the settings of a `config.json` that heedful's GPT lacks, as `name = value`."""
    rotary, differences = _rotary(description), []
    activation = description.get("hidden_act", "silu")
    if activation not in ACTIVATION_OF:
        differences.append(f"hidden_act = {activation!r}")
    if any(isinstance(value, Mapping) for value in rotary.values()):
        return [*differences, "rotary positions that differ between layers"]
    if _rope_type(rotary) not in ("default", "linear", "llama3"):
        differences.append(f"rope_type = {_rope_type(rotary)!r}")
    partial = rotary.get("partial_rotary_factor", description.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        differences.append(f"partial_rotary_factor = {partial}")
    if len(_windows(description)) > 1:
        differences.append("a window in only some of its layers")
    return differences


def read_config(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> GPTConfig:
    """Convert a `config.json` without `unsupported` settings to heedful's configuration."""
    rotary = _rotary(description)
    activation = ACTIVATION_OF[description["hidden_act"]]
    if activation == "reglu" and _gate_is_copied(tensors):
        activation = "relu2"
    [window] = _windows(description)
    head, heads = description.get("head_dim"), description["num_attention_heads"]
    is_default = head and head * heads == description["hidden_size"]
    return GPTConfig(
        **{name: description[key] for name, key in SETTING_NAMES.items()},
        kv_heads=description.get("num_key_value_heads"),
        head_width=None if is_default else head,
        window=window,
        activation=activation,
        tied=is_tied(description, tensors, default=False),
        dropout=description.get("attention_dropout") or 0.0,
        rotary_base=rotary.get("rope_theta") or description.get("rope_theta") or 10_000.0,
        rotary_scaling=_scaling(description, rotary),
        **COMMON_SETTINGS,
        **_biases(description),
    )


def names(config: GPTConfig) -> ParameterNames:
    """Return the parameter names of a model of this configuration."""
    head = config.width_of_heads
    return names_of(
        config.heads * head,
        (config.kv_heads or config.heads) * head,
        copied_gate=config.activation == "relu2",
    )


def mismatches(config: GPTConfig, kind: str) -> list[str]:
    """Return the settings that the models of a family lack, as `name = value`."""
    family = FAMILIES[kind]
    fixed = COMMON_SETTINGS | family.fixed | ({"window": None} if family.windows == "never" else {})
    differences = [name for name, value in fixed.items() if getattr(config, name) != value]
    if _feed_bias(config) and kind != "llama":
        differences.append("bias" if config.feed_bias is None else "feed_bias")
    elif "bias" not in fixed and config.bias != config.attention_bias:
        differences.append("attention_bias")  # all four projections have biases, or none has
    differences += ["activation"] if config.activation not in GATE_OF else []
    return [f"{name} = {getattr(config, name)!r}" for name in dict.fromkeys(differences)]


def write_config(config: GPTConfig, kind: str) -> dict[str, Any]:
    """Return the content of a `config.json`; the only dropout in it is of attention weights."""
    family = FAMILIES[kind]
    scaling = config.rotary_scaling
    rotary: dict[str, Any] = {"rope_theta": config.rotary_base, "rope_type": "default"}
    if scaling is not None:
        rotary |= {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling is not None and scaling.kind == "llama3":
        rotary |= {
            "original_max_position_embeddings": scaling.original_context,
            "low_freq_factor": scaling.low_frequency,
            "high_freq_factor": scaling.high_frequency,
        }
    entries: dict[str, Any] = {}  # the settings that only some families have
    if kind in ("llama", "qwen3"):
        entries["attention_bias"] = config.attention_bias
    if kind == "llama":
        entries["mlp_bias"] = _feed_bias(config)
    if family.windows != "never":
        entries["sliding_window"] = config.window
    if family.windows == "flag":
        entries |= {"use_sliding_window": config.window is not None, "max_window_layers": 0}
    return {
        "architectures": [family.classes[0]],
        "model_type": kind,
        **{key: getattr(config, name) for name, key in SETTING_NAMES.items()},
        "intermediate_size": config.hidden or 4 * config.width,
        "num_key_value_heads": config.kv_heads or config.heads,
        "head_dim": config.width_of_heads,
        "hidden_act": GATE_OF[config.activation],
        "rope_parameters": rotary,
        "rope_theta": config.rotary_base,  # transformers before 5 reads this entry and the next
        **({"rope_scaling": rotary} if config.rotary_scaling else {}),
        **entries,
        "tie_word_embeddings": config.tied,
        "attention_dropout": config.dropout,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _gate_is_copied(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether each gate equals its up-projection, as in an exported squared ReLU."""
    gates = [name for name in tensors if ".gate_proj." in name]
    return all(
        torch.equal(tensors[name], tensors[name.replace("gate_proj", "up_proj")]) for name in gates
    )


def _scaling(description: Mapping[str, Any], rotary: Mapping[str, Any]) -> RotaryScaling | None:
    if _rope_type(rotary) == "default":
        return None
    if _rope_type(rotary) == "linear":
        return RotaryScaling(kind="linear", factor=rotary["factor"])
    original = description.get("original_max_position_embeddings") or rotary.get(
        "original_max_position_embeddings", description["max_position_embeddings"]
    )
    return RotaryScaling(
        kind="llama3",
        factor=rotary["factor"],
        original_context=original,
        low_frequency=rotary["low_freq_factor"],
        high_frequency=rotary["high_freq_factor"],
    )


def _feed_bias(config: GPTConfig) -> bool:
    return config.bias if config.feed_bias is None else config.feed_bias
