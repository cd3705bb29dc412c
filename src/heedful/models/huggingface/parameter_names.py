"""The names of heedful's parameters in Hugging Face checkpoints: one table per family.

In a name, `N` is the number of a layer. A table maps heedful's name to the checkpoint's names. A
parameter that corresponds to several tensors is their concatenation, or equals each (`copies`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class CheckpointTensors:
    """The tensors of a checkpoint that correspond to one parameter of heedful.

    Args:
        names: one name, or several names of tensors that are parts of the parameter's rows.
        transposed: whether the checkpoint stores (in, out), as GPT-2's `Conv1D` does; heedful
            stores (out, in).
        rows: the number of rows of each tensor; empty: equal numbers.
        copies: whether each tensor equals the parameter.
    """

    names: tuple[str, ...]
    transposed: bool = False
    rows: tuple[int, ...] = ()
    copies: bool = False

    def from_checkpoint(self, tensors: Iterable[Tensor]) -> Tensor:
        """Convert tensors, in the order of `names`, to the parameter; a view if possible."""
        parts = [tensor.t() if self.transposed else tensor for tensor in tensors]
        return parts[0] if len(parts) == 1 or self.copies else torch.cat(parts)

    def to_checkpoint(self, parameter: Tensor) -> dict[str, Tensor]:
        """Convert the parameter to the tensors of the checkpoint."""
        if self.copies:
            parts = [parameter] + [parameter.clone() for _ in self.names[1:]]
        elif self.rows:
            parts = list(parameter.split(self.rows))
        else:
            parts = list(parameter.chunk(len(self.names)))
        stored = (part.t() if self.transposed else part for part in parts)
        return dict(zip(self.names, stored, strict=True))

    def shapes(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the checkpoint's tensors for a parameter of this shape."""
        tensors = self.to_checkpoint(torch.empty(shape, device="meta"))
        return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


@dataclass(frozen=True)
class ParameterNames:
    """The parameter names of a model family.

    Args:
        table: heedful's name → the checkpoint's tensors, with full names and `N` for the layer.
        prefix: the start of full names; checkpoints without an output layer omit it.
        ignored: patterns of tensors that are not parameters, or that heedful's models lack.
        shared: name of a tensor → name of the tensor that it equals in a model that ties the two.
        old_endings: endings of names in older checkpoints → current endings.
    """

    table: Mapping[str, CheckpointTensors]
    prefix: str = ""
    ignored: tuple[str, ...] = ()
    shared: Mapping[str, str] = field(default_factory=dict)
    old_endings: Mapping[str, str] = field(default_factory=dict)

    def entry(self, parameter: str) -> CheckpointTensors:
        """Return the checkpoint tensors of a parameter.

        >>> GPT2.entry("blocks.3.feed.enter.weight").names
        ('transformer.h.3.mlp.c_fc.weight',)
        """
        layer = re.search(r"\.(\d+)\.", parameter)
        if layer is None:
            return self.table[parameter]
        entry = self.table[parameter.replace(layer[0], ".N.", 1)]
        names = (name.replace(".N.", layer[0], 1) for name in entry.names)
        return dataclasses.replace(entry, names=tuple(names))

    def match(self, stored: Collection[str], expected: Collection[str]) -> dict[str, str]:
        """Map full, current names of tensors to their stored names, without ignored tensors."""
        full_names = {self._full(name, expected): name for name in stored}
        return {
            full: name
            for full, name in full_names.items()
            if not any(re.fullmatch(pattern, full) for pattern in self.ignored)
        }

    def _full(self, name: str, expected: Collection[str]) -> str:
        for old, new in self.old_endings.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        is_bare = name not in expected and self.prefix + name in expected
        return self.prefix + name if is_bare else name


def _layer(layer: str, *stored: str, **options: Any) -> dict[str, CheckpointTensors]:
    """Return the entries of a layer's weight and bias; options as in `CheckpointTensors`."""
    return {
        f"{layer}.{part}": CheckpointTensors(tuple(f"{name}.{part}" for name in stored), **options)
        for part in ("weight", "bias")
    }


_GPT2_LAYER = "transformer.h.N"
GPT2 = ParameterNames(
    prefix="transformer.",
    table={
        "tokens.weight": CheckpointTensors(("transformer.wte.weight",)),
        "positions": CheckpointTensors(("transformer.wpe.weight",)),
        **_layer("blocks.N.attend_norm", f"{_GPT2_LAYER}.ln_1"),
        **_layer("blocks.N.attend.projection", f"{_GPT2_LAYER}.attn.c_attn", transposed=True),
        **_layer("blocks.N.attend.output", f"{_GPT2_LAYER}.attn.c_proj", transposed=True),
        **_layer("blocks.N.feed_norm", f"{_GPT2_LAYER}.ln_2"),
        **_layer("blocks.N.feed.enter", f"{_GPT2_LAYER}.mlp.c_fc", transposed=True),
        **_layer("blocks.N.feed.output", f"{_GPT2_LAYER}.mlp.c_proj", transposed=True),
        **_layer("norm", "transformer.ln_f"),
        "head.weight": CheckpointTensors(("lm_head.weight",)),
    },
    ignored=(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",),  # buffers with masks
    shared={"lm_head.weight": "transformer.wte.weight"},
)


def llama(queries: int, keys: int, copied_gate: bool = False) -> ParameterNames:
    """Return the parameter names of Llama, Mistral, Qwen2 and Qwen3.

    Args:
        queries, keys: the number of rows of the query projection, and of the key projection.
        copied_gate: whether gate and up-projection are copies of one matrix of heedful.
    """
    layer, attention = "model.layers.N", "model.layers.N.self_attn"
    projections = [f"{attention}.{name}_proj" for name in "qkv"]
    gates = [f"{layer}.mlp.{name}_proj" for name in ("gate", "up")]
    return ParameterNames(
        prefix="model.",
        table={
            "tokens.weight": CheckpointTensors(("model.embed_tokens.weight",)),
            **_layer("blocks.N.attend_norm", f"{layer}.input_layernorm"),
            **_layer("blocks.N.feed_norm", f"{layer}.post_attention_layernorm"),
            **_layer("blocks.N.attend.query_norm", f"{attention}.q_norm"),
            **_layer("blocks.N.attend.key_norm", f"{attention}.k_norm"),
            **_layer("blocks.N.attend.projection", *projections, rows=(queries, keys, keys)),
            **_layer("blocks.N.attend.output", f"{attention}.o_proj"),
            **_layer("blocks.N.feed.enter", *gates, copies=copied_gate),
            **_layer("blocks.N.feed.output", f"{layer}.mlp.down_proj"),
            **_layer("norm", "model.norm"),
            "head.weight": CheckpointTensors(("lm_head.weight",)),
        },
        # frequencies, which older versions of transformers stored
        ignored=(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
        shared={"lm_head.weight": "model.embed_tokens.weight"},
    )


_BERT_LAYER = "bert.encoder.layer.N"
_BERT_HEADS = [f"{_BERT_LAYER}.attention.self.{name}" for name in ("query", "key", "value")]
BERT = ParameterNames(
    prefix="bert.",
    table={
        "tokens.weight": CheckpointTensors(("bert.embeddings.word_embeddings.weight",)),
        "positions": CheckpointTensors(("bert.embeddings.position_embeddings.weight",)),
        "segments.weight": CheckpointTensors(("bert.embeddings.token_type_embeddings.weight",)),
        **_layer("norm", "bert.embeddings.LayerNorm"),
        **_layer("blocks.N.attend.projection", *_BERT_HEADS),
        **_layer("blocks.N.attend.output", f"{_BERT_LAYER}.attention.output.dense"),
        **_layer("blocks.N.attend_norm", f"{_BERT_LAYER}.attention.output.LayerNorm"),
        **_layer("blocks.N.feed.enter", f"{_BERT_LAYER}.intermediate.dense"),
        **_layer("blocks.N.feed.output", f"{_BERT_LAYER}.output.dense"),
        **_layer("blocks.N.feed_norm", f"{_BERT_LAYER}.output.LayerNorm"),
        **_layer("pooler", "bert.pooler.dense"),
        **_layer("head.transform", "cls.predictions.transform.dense"),
        **_layer("head.norm", "cls.predictions.transform.LayerNorm"),
        "head.output.bias": CheckpointTensors(("cls.predictions.bias",)),
    },
    # the buffer 0, 1, 2, …, and the head for next-sentence prediction
    ignored=(r"(bert\.)?embeddings\.position_ids", r"cls\.seq_relationship\..*"),
    shared={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    old_endings={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
)
