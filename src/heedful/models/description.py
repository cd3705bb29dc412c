"""Descriptions of models: settings, parameters by part, and the tensor shapes of a forward pass.

Letters of shapes: B sequences, N tokens (in an encoder–decoder, of the target), M tokens of the
source. The numbers come from the model's layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from torch import nn

from heedful.configuration import Configuration
from heedful.errors import ArgumentError
from heedful.files import read_json
from heedful.layers import (
    CrossAttention,
    MultiHeadAttention,
    PreNormBlock,
    PreNormDecoderBlock,
    RMSNorm,
)
from heedful.models.bert import Bert
from heedful.models.gpt import GPT
from heedful.models.huggingface.tensor_files import mapped_tensors
from heedful.models.seq2seq import Seq2Seq

Size: TypeAlias = int | str  # a number, or a letter for a size that depends on the batch
Shape: TypeAlias = tuple[Size, ...]
IDS: Shape = ("B", "N")
DERIVED: dict[str, Callable[[Any], Any]] = {  # values of settings that are None
    "kv_heads": lambda config: config.heads,
    "head_width": lambda config: config.width // config.heads,
    "hidden": lambda config: 4 * config.width,
    "feed_bias": lambda config: config.bias,
    "decoder_layers": lambda config: config.layers,
}


class Setting(NamedTuple):
    """A setting: its name, value and meaning."""

    name: str
    value: Any
    meaning: str


class Part(NamedTuple):
    """A part of a model that occurs `times` times, with `parameters` parameters each time.

    `parts` are its components; `note` explains the number of parameters, such as a shared table.
    """

    name: str
    parameters: int
    times: int = 1
    parts: tuple[Part, ...] = ()
    note: str = ""

    @property
    def total(self) -> int:
        """The number of parameters of all occurrences."""
        return self.times * self.parameters


class ShapeStep(NamedTuple):
    """The tensor shapes at a step of the forward pass; `within` names the block of the step."""

    step: str
    shapes: tuple[Shape, ...]
    within: str = ""


class Description(NamedTuple):
    """The result of `describe`.

    `kind` is GPT, BERT, encoder–decoder, or the name of another architecture; `norm_order` is
    "pre", "post", or None if unknown.
    """

    kind: str
    norm_order: str | None
    settings: tuple[Setting, ...]
    parts: tuple[Part, ...]
    shape_steps: tuple[ShapeStep, ...]

    @property
    def parameters(self) -> int:
        """The total number of parameters; shared parameters count once."""
        return sum(part.total for part in self.parts)


def describe(model: nn.Module) -> Description:
    """Describe a GPT, a BERT or a Seq2Seq: settings, parameters by part, and shapes.

    Raises:
        ArgumentError: the model is of another class.

    >>> from heedful.models import GPTConfig
    >>> description = describe(GPT(GPTConfig(vocabulary=11, width=12, heads=3, layers=2)))
    >>> [(part.name, part.times, part.parameters) for part in description.parts[:2]]
    [('token table', 1, 132), ('block', 2, 1760)]
    >>> description.shape_steps[3]
    ShapeStep(step='query', shapes=(('B', 'N', 12), ('B', 'N', 3, 4), ('B', 3, 'N', 4)), \
within='block')
    """
    if type(model) not in FAMILIES:
        raise ArgumentError(
            f"a {type(model).__name__}",
            expected="a GPT, a Bert or a Seq2Seq of heedful.models",
            remedy="`heedful describe` shows the parameters of any checkpoint",
        )
    kind, items_of = FAMILIES[type(model)]
    items, config = list(items_of(model)), cast(Any, model.config)
    return Description(
        kind,
        getattr(config, "norm_order", "post"),
        tuple(_settings(config)),
        tuple(item for item in items if isinstance(item, Part)),
        tuple(item for item in items if isinstance(item, ShapeStep)),
    )


def describe_files(directory: Path, kind: str, *, allow_pickle: bool = False) -> Description:
    """Describe a checkpoint of another architecture from its files: settings and sizes by part.

    A part is a list of blocks, or a module of the top two levels. Forward shapes are unknown.

    Args:
        directory: a directory in Hugging Face format.
        kind: the name of the architecture.
        allow_pickle: whether to read `.bin` files if there are no safetensors.

    Raises:
        RunError: files are missing or damaged.
    """
    sizes: dict[str, dict[str, int]] = {}
    for name, tensor in mapped_tensors(directory, allow_pickle).items():
        if tensor.is_floating_point():  # integers and booleans are not parameters
            part, block = _top_part(name)
            blocks = sizes.setdefault(part, {})
            blocks[block] = blocks.get(block, 0) + tensor.numel()
    parts = [_file_part(name, list(blocks.values())) for name, blocks in sizes.items()]
    settings = tuple(_flatten(read_json(directory / "config.json")))
    return Description(kind, None, settings, tuple(parts), ())


def _top_part(name: str) -> tuple[str, str]:
    """Return the part of a parameter, and the number of its block (empty if in no block).

    >>> _top_part("model.layers.3.mlp.up_proj.weight"), _top_part("lm_head.weight")
    (('model.layers', '3'), ('lm_head', ''))
    """
    steps = name.split(".")
    number = next((i for i, step in enumerate(steps) if step.isdecimal()), None)
    if number:
        return ".".join(steps[:number]), steps[number]
    return ".".join(steps[:2][: max(1, len(steps) - 1)]), ""


def _file_part(name: str, sizes: list[int]) -> Part:
    if len(set(sizes)) == 1:
        return Part(name, sizes[0], len(sizes))
    return Part(name, sum(sizes), note=f"{len(sizes)} blocks of several sizes")


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[Setting]:
    """Yield the settings of a `config.json`, with dotted names for nested settings."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif value is not None:
            yield Setting(prefix + name, value, "")


def parameters_in(*modules: nn.Module, excluded: Iterable[nn.Module] = ()) -> int:
    """Count the distinct parameters of modules, without the parameters of `excluded`."""
    excluded_ids = {id(p) for module in excluded for p in module.parameters()}
    sizes = {id(p): p.numel() for module in modules for p in module.parameters()}
    return sum(size for key, size in sizes.items() if key not in excluded_ids)


def _gpt(model: GPT) -> Iterator[Part | ShapeStep]:
    config = model.config
    state: Shape = ("B", "N", config.width)
    yield _part("token table", model.tokens)
    yield from _embedding(config.width)
    if config.positions == "learned":
        yield Part("position table", model.positions.numel())
    if model.convolution is not None:
        yield _part("short convolution", model.convolution)
        yield ShapeStep("short convolution", (state,))
    yield from _blocks("block", model.blocks, config.norm_order)
    if config.norm_order == "pre":
        yield _part("final norm", model.norm)
        yield ShapeStep("final norm", (state,))
    yield _output(model.head, model.tokens, config.tied)
    yield ShapeStep("logits", (("B", "N", config.vocabulary),))


def _bert(model: Bert) -> Iterator[Part | ShapeStep]:
    width = model.config.width
    yield _part("token table", model.tokens)
    yield Part("position table", model.positions.numel())
    yield _part("segment table", model.segments)
    yield from _embedding(width)
    yield _part("norm of embeddings", model.norm)
    yield ShapeStep("norm", (("B", "N", width),))
    yield from _blocks("block", model.blocks, "post")
    if model.pooler is not None:
        yield _part("pooler", model.pooler)
        yield ShapeStep("pooled", (("B", width),))
    if model.head is not None:
        number = parameters_in(model.head, excluded=[model.tokens])
        yield Part("masked-word head", number, note="its output layer shares the token table")
        yield ShapeStep("logits", (("B", "N", model.config.vocabulary),))


def _seq2seq(model: Seq2Seq) -> Iterator[Part | ShapeStep]:
    config = model.config
    if config.shared:
        number = parameters_in(model.source_tokens)
        yield Part("token table", number, note="of source and target")
    else:
        yield _part("source table", model.source_tokens)
        yield _part("target table", model.target_tokens)
    yield from _embedding(config.width, "source ", "M")
    yield from _blocks("encoder block", model.encoder, config.norm_order, "M")
    if config.norm_order == "pre":
        yield _part("encoder norm", model.encoder_norm)
    yield ShapeStep("memory", (("B", "M", config.width),))
    yield from _embedding(config.width, "target ")
    yield from _blocks("decoder block", model.decoder, config.norm_order)
    if config.norm_order == "pre":
        yield _part("decoder norm", model.decoder_norm)
        yield ShapeStep("decoder norm", (("B", "N", config.width),))
    yield ShapeStep("logits", (("B", "N", config.vocabulary),))
    yield _output(model.head, model.target_tokens, config.tied)


def _part(name: str, module: nn.Module) -> Part:
    return Part(name, parameters_in(module))


def _output(head: nn.Module, table: nn.Module, tied: bool) -> Part:
    note = "shares the token table" if tied else ""
    return Part("output layer", parameters_in(head, excluded=[table] if tied else []), note=note)


def _embedding(width: int, prefix: str = "", tokens: str = "N") -> Iterator[ShapeStep]:
    yield ShapeStep(f"{prefix}ids", (("B", tokens),))
    yield ShapeStep(f"{prefix}embeddings", (("B", tokens, width),))


def _blocks(
    name: str, blocks: Iterable[nn.Module], order: str, tokens: str = "N"
) -> Iterator[Part | ShapeStep]:
    """Yield identical blocks as one repeated part, then the shapes within one block."""
    first, *others = cast("Iterable[PreNormBlock | PreNormDecoderBlock]", blocks)
    norms = [module for child, module in first.named_children() if child.endswith("_norm")]
    parts = [_attention("attention", first.attend)]
    if isinstance(first, PreNormDecoderBlock):
        parts.append(_attention("cross-attention", first.cross))
    parts += [_part("feed-forward", first.feed), Part("norms", parameters_in(*norms))]
    yield Part(name, parameters_in(first), 1 + len(others), tuple(parts))
    yield from _block(first, order, name, tokens)


def _settings(config: Configuration, prefix: str = "") -> Iterator[Setting]:
    """Yield a setting for each field; the fields of nested configurations have dotted names."""
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), prefix + field.name
        if value is None and name in DERIVED:
            value = DERIVED[name](config)
        if isinstance(value, Configuration):
            yield from _settings(value, f"{name}.")
        else:
            yield Setting(name, value, field.metadata["sentence"])


def _attention(name: str, attend: MultiHeadAttention | CrossAttention) -> Part:
    output = parameters_in(attend.output)
    norms = sum(parameters_in(child) for child in attend.children() if isinstance(child, RMSNorm))
    projections = parameters_in(attend) - output - norms
    parts = [Part("query, key, value", projections), Part("output", output)]
    if norms:
        parts.append(Part("query and key norms", norms))
    return Part(name, parameters_in(attend), parts=tuple(parts))


def _block(
    block: PreNormBlock | PreNormDecoderBlock, order: str, within: str, tokens: str = "N"
) -> Iterator[ShapeStep]:
    """Yield the shapes in a block: attention, cross-attention in a decoder, feed-forward."""
    last: nn.Linear = cast(nn.Linear, block.feed.output)
    state: Shape = ("B", tokens, last.out_features)

    def with_residual(part: Iterable[ShapeStep]) -> Iterator[ShapeStep]:
        if order == "pre":
            yield ShapeStep("norm", (state,), within)
        yield from part
        yield ShapeStep("sum with residual", (state,), within)
        if order == "post":
            yield ShapeStep("norm", (state,), within)

    yield from with_residual(_attention_shapes(block.attend, state, state, within))
    if isinstance(block, PreNormDecoderBlock):
        memory: Shape = ("B", "M", block.cross.memory.in_features)
        yield from with_residual(_attention_shapes(block.cross, state, memory, within))
    hidden: Shape = ("B", tokens, last.in_features)
    yield from with_residual([ShapeStep("feed-forward", (state, hidden, state), within)])


def _attention_shapes(
    attend: MultiHeadAttention | CrossAttention, queries: Shape, keys: Shape, within: str
) -> Iterator[ShapeStep]:
    B, N, width = queries
    M, H, d = keys[1], attend.heads, attend.head_width
    G = attend.kv_heads if isinstance(attend, MultiHeadAttention) else H
    name = "cross-" if isinstance(attend, CrossAttention) else ""
    yield ShapeStep(f"{name}query", (queries, (B, N, H, d), (B, H, N, d)), within)
    yield ShapeStep(f"{name}key and value", (keys, (B, M, G, d), (B, G, M, d)), within)
    yield ShapeStep(f"{name}scores and weights", ((B, H, N, M),), within)
    yield ShapeStep(f"{name}context", ((B, H, N, d), (B, N, H, d), (B, N, H * d)), within)
    yield ShapeStep(f"{name}output", ((B, N, width),), within)


FAMILIES: dict[type[nn.Module], tuple[str, Callable[[Any], Iterator[Part | ShapeStep]]]] = {
    GPT: ("GPT", _gpt),
    Bert: ("BERT", _bert),
    Seq2Seq: ("encoder–decoder", _seq2seq),
}
