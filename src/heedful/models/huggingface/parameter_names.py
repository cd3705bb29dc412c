"""What Hugging Face checkpoints call our parameters: one table per family, read both ways.

In a name `N` stands for the number of a layer. A table maps our name to theirs; where one of our
parameters is several of theirs, they are its rows, one below the other.
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
class Theirs:
    """What one parameter of ours is in a checkpoint of theirs.

    Args:
        names: one name, or several whose tensors are the parameter's rows.
        transposed: they keep a matrix as (in, out), as GPT-2's `Conv1D` does; ours is (out, in).
        rows: how many of the rows each has; default equal numbers.
        copies: each of the names has all rows, and they are equal.
    """

    names: tuple[str, ...]
    transposed: bool = False
    rows: tuple[int, ...] = ()
    copies: bool = False

    def ours(self, tensors: Iterable[Tensor]) -> Tensor:
        """Our parameter from their tensors, in the order of `names`; a view where it can be."""
        turned = [tensor.t() if self.transposed else tensor for tensor in tensors]
        return turned[0] if len(turned) == 1 or self.copies else torch.cat(turned)

    def theirs(self, parameter: Tensor) -> dict[str, Tensor]:
        """Their tensors from our parameter."""
        if self.copies:
            parts = [parameter] + [parameter.clone() for _ in self.names[1:]]
        elif self.rows:
            parts = list(parameter.split(self.rows))
        else:
            parts = list(parameter.chunk(len(self.names)))
        turned = (part.t() if self.transposed else part for part in parts)
        return dict(zip(self.names, turned, strict=True))

    def shapes(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """The shapes of their tensors for a parameter of ours."""
        return {
            n: tuple(t.shape) for n, t in self.theirs(torch.empty(shape, device="meta")).items()
        }


def same(name: str) -> Theirs:
    """The same tensor under another name."""
    return Theirs((name,))


@dataclass(frozen=True)
class Names:
    """The names of a family.

    Args:
        table: our name → theirs, written in full, with `N` for the layer.
        prefix: what a checkpoint of the bare model, without a head, leaves out.
        ignored: patterns of tensors that are no parameters, or that no model of ours has.
        shared: their name of a tensor → the one that it must equal where the model ties the two.
        old: endings that older checkpoints use → today's.
    """

    table: Mapping[str, Theirs]
    prefix: str = ""
    ignored: tuple[str, ...] = ()
    shared: Mapping[str, str] = field(default_factory=dict)
    old: Mapping[str, str] = field(default_factory=dict)

    def of(self, parameter: str) -> Theirs:
        """What a parameter of ours is in their checkpoint.

        >>> GPT2.of("blocks.3.feed.enter.weight").names
        ('transformer.h.3.mlp.c_fc.weight',)
        """
        layer = re.search(r"\.(\d+)\.", parameter)
        if layer is None:
            return self.table[parameter]
        entry = self.table[parameter.replace(layer[0], ".N.", 1)]
        names = (name.replace(".N.", layer[0], 1) for name in entry.names)
        return dataclasses.replace(entry, names=tuple(names))

    def recognised(self, found: Collection[str], wanted: Collection[str]) -> dict[str, str]:
        """The full name of today → the name in the checkpoint, without what is ignored."""
        named = {self._full(name, wanted): name for name in found}
        return {full: name for full, name in named.items() if not self._is_ignored(full)}

    def _full(self, name: str, wanted: Collection[str]) -> str:
        for old, new in self.old.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        is_bare = name not in wanted and self.prefix + name in wanted
        return self.prefix + name if is_bare else name

    def _is_ignored(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)


def _layer(ours: str, *theirs: str, **how: Any) -> dict[str, Theirs]:
    """Weight and bias of a layer, which is one of theirs or several, as `Theirs`."""
    return {
        f"{ours}.{part}": Theirs(tuple(f"{name}.{part}" for name in theirs), **how)
        for part in ("weight", "bias")
    }


_GPT2_LAYER = "transformer.h.N"
GPT2 = Names(
    prefix="transformer.",
    table={
        "tokens.weight": same("transformer.wte.weight"),
        "positions": same("transformer.wpe.weight"),
        **_layer("blocks.N.attend_norm", f"{_GPT2_LAYER}.ln_1"),
        **_layer("blocks.N.attend.projection", f"{_GPT2_LAYER}.attn.c_attn", transposed=True),
        **_layer("blocks.N.attend.output", f"{_GPT2_LAYER}.attn.c_proj", transposed=True),
        **_layer("blocks.N.feed_norm", f"{_GPT2_LAYER}.ln_2"),
        **_layer("blocks.N.feed.enter", f"{_GPT2_LAYER}.mlp.c_fc", transposed=True),
        **_layer("blocks.N.feed.output", f"{_GPT2_LAYER}.mlp.c_proj", transposed=True),
        **_layer("norm", "transformer.ln_f"),
        "head.weight": same("lm_head.weight"),
    },
    ignored=(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",),  # masks, kept as buffers
    shared={"lm_head.weight": "transformer.wte.weight"},
)


def llama(queries: int, keys: int, copied_gate: bool = False) -> Names:
    """The names of Llama and of those that followed it: Mistral, Qwen2 and Qwen3.

    Args:
        queries, keys: rows of the projection to queries, and of those to keys and to values.
        copied_gate: gate and up-projection are equal, and one matrix of ours.
    """
    layer, attention = "model.layers.N", "model.layers.N.self_attn"
    projections = [f"{attention}.{name}_proj" for name in "qkv"]
    gates = [f"{layer}.mlp.{name}_proj" for name in ("gate", "up")]
    return Names(
        prefix="model.",
        table={
            "tokens.weight": same("model.embed_tokens.weight"),
            **_layer("blocks.N.attend_norm", f"{layer}.input_layernorm"),
            **_layer("blocks.N.feed_norm", f"{layer}.post_attention_layernorm"),
            **_layer("blocks.N.attend.query_norm", f"{attention}.q_norm"),
            **_layer("blocks.N.attend.key_norm", f"{attention}.k_norm"),
            **_layer("blocks.N.attend.projection", *projections, rows=(queries, keys, keys)),
            **_layer("blocks.N.attend.output", f"{attention}.o_proj"),
            **_layer("blocks.N.feed.enter", *gates, copies=copied_gate),
            **_layer("blocks.N.feed.output", f"{layer}.mlp.down_proj"),
            **_layer("norm", "model.norm"),
            "head.weight": same("lm_head.weight"),
        },
        # frequencies, which older versions kept
        ignored=(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
        shared={"lm_head.weight": "model.embed_tokens.weight"},
    )


_BERT_LAYER = "bert.encoder.layer.N"
_BERT_HEADS = [f"{_BERT_LAYER}.attention.self.{name}" for name in ("query", "key", "value")]
BERT = Names(
    prefix="bert.",
    table={
        "tokens.weight": same("bert.embeddings.word_embeddings.weight"),
        "positions": same("bert.embeddings.position_embeddings.weight"),
        "segments.weight": same("bert.embeddings.token_type_embeddings.weight"),
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
        "head.output.bias": same("cls.predictions.bias"),
    },
    # 0, 1, 2, … kept as a buffer; and the head that only pre-training used
    ignored=(r"(bert\.)?embeddings\.position_ids", r"cls\.seq_relationship\..*"),
    shared={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    old={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
)
