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
        turned = [tensor.T if self.transposed else tensor for tensor in tensors]
        return turned[0] if len(turned) == 1 or self.copies else torch.cat(turned)

    def theirs(self, parameter: Tensor) -> dict[str, Tensor]:
        """Their tensors from our parameter."""
        if self.copies:
            parts = [parameter] + [parameter.clone() for _ in self.names[1:]]
        elif self.rows:
            parts = list(parameter.split(self.rows))
        else:
            parts = list(parameter.chunk(len(self.names)))
        turned = (part.T if self.transposed else part for part in parts)
        return dict(zip(self.names, turned, strict=True))

    def shapes(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """The shapes of their tensors for a parameter of ours."""
        return {
            n: tuple(t.shape) for n, t in self.theirs(torch.empty(shape, device="meta")).items()
        }


def same(*names: str) -> Theirs:
    """The same tensor under another name, or the rows of several."""
    return Theirs(names)


def transposed(*names: str) -> Theirs:
    """As `same`, each with rows and columns exchanged."""
    return Theirs(names, transposed=True)


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


def _both(ours: str, theirs: str) -> dict[str, Theirs]:
    """Weight and bias of a layer that is the same in both."""
    return {f"{ours}.{part}": same(f"{theirs}.{part}") for part in ("weight", "bias")}


def _conv1d(ours: str, theirs: str) -> dict[str, Theirs]:
    """Weight and bias of a linear layer that they keep as `Conv1D`."""
    weight, bias = f"{theirs}.weight", f"{theirs}.bias"
    return {f"{ours}.weight": transposed(weight), f"{ours}.bias": same(bias)}


GPT2 = Names(
    prefix="transformer.",
    table={
        "tokens.weight": same("transformer.wte.weight"),
        "positions": same("transformer.wpe.weight"),
        **_both("blocks.N.attend_norm", "transformer.h.N.ln_1"),
        **_conv1d("blocks.N.attend.projection", "transformer.h.N.attn.c_attn"),
        **_conv1d("blocks.N.attend.output", "transformer.h.N.attn.c_proj"),
        **_both("blocks.N.feed_norm", "transformer.h.N.ln_2"),
        **_conv1d("blocks.N.feed.enter", "transformer.h.N.mlp.c_fc"),
        **_conv1d("blocks.N.feed.output", "transformer.h.N.mlp.c_proj"),
        **_both("norm", "transformer.ln_f"),
        "head.weight": same("lm_head.weight"),
    },
    ignored=(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",),  # masks, kept as buffers
    shared={"lm_head.weight": "transformer.wte.weight"},
)

_LLAMA_LAYER = "model.layers.N"


def llama(queries: int, keys: int, copied_gate: bool = False) -> Names:
    """The names of Llama and of those that followed it: Mistral, Qwen2 and Qwen3.

    Args:
        queries, keys: rows of the projection to queries, and of those to keys and to values.
        copied_gate: gate and up-projection are equal, and one matrix of ours.
    """
    projected = (queries, keys, keys)
    return Names(
        prefix="model.",
        table={
            "tokens.weight": same("model.embed_tokens.weight"),
            "blocks.N.attend_norm.weight": same(f"{_LLAMA_LAYER}.input_layernorm.weight"),
            "blocks.N.feed_norm.weight": same(f"{_LLAMA_LAYER}.post_attention_layernorm.weight"),
            "blocks.N.attend.query_norm.weight": same(f"{_LLAMA_LAYER}.self_attn.q_norm.weight"),
            "blocks.N.attend.key_norm.weight": same(f"{_LLAMA_LAYER}.self_attn.k_norm.weight"),
            **_of_llama("attend.projection", *_PROJECTIONS, rows=projected),
            **_of_llama("attend.output", "self_attn.o_proj"),
            **_of_llama("feed.enter", "mlp.gate_proj", "mlp.up_proj", copies=copied_gate),
            **_of_llama("feed.output", "mlp.down_proj"),
            "norm.weight": same("model.norm.weight"),
            "head.weight": same("lm_head.weight"),
        },
        # frequencies, which older versions kept
        ignored=(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
        shared={"lm_head.weight": "model.embed_tokens.weight"},
    )


_PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


def _of_llama(ours: str, *theirs: str, **how: Any) -> dict[str, Theirs]:
    """Weight and bias of a layer of a block."""
    return {
        f"blocks.N.{ours}.{part}": Theirs(
            tuple(f"{_LLAMA_LAYER}.{name}.{part}" for name in theirs), **how
        )
        for part in ("weight", "bias")
    }


_BERT_LAYER = "bert.encoder.layer.N"
BERT = Names(
    prefix="bert.",
    table={
        "tokens.weight": same("bert.embeddings.word_embeddings.weight"),
        "positions": same("bert.embeddings.position_embeddings.weight"),
        "segments.weight": same("bert.embeddings.token_type_embeddings.weight"),
        **_both("norm", "bert.embeddings.LayerNorm"),
        **{
            f"blocks.N.attend.projection.{part}": same(
                *(
                    f"{_BERT_LAYER}.attention.self.{name}.{part}"
                    for name in ("query", "key", "value")
                )
            )
            for part in ("weight", "bias")
        },
        **_both("blocks.N.attend.output", f"{_BERT_LAYER}.attention.output.dense"),
        **_both("blocks.N.attend_norm", f"{_BERT_LAYER}.attention.output.LayerNorm"),
        **_both("blocks.N.feed.enter", f"{_BERT_LAYER}.intermediate.dense"),
        **_both("blocks.N.feed.output", f"{_BERT_LAYER}.output.dense"),
        **_both("blocks.N.feed_norm", f"{_BERT_LAYER}.output.LayerNorm"),
        **_both("pooler", "bert.pooler.dense"),
        **_both("head.transform", "cls.predictions.transform.dense"),
        **_both("head.norm", "cls.predictions.transform.LayerNorm"),
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
