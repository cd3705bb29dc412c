"""What a model is: its settings, its parameters by part, and the shapes that a batch goes through.

B texts, N tokens (of a target, where there is a source), M tokens of the source. The numbers are
read off the model's own layers.
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

Size: TypeAlias = int | str  # a number, or a letter for what a batch decides
Shape: TypeAlias = tuple[Size, ...]
IDS: Shape = ("B", "N")


class Setting(NamedTuple):
    """One setting: its name, its value, and what it means."""

    name: str
    value: Any
    meaning: str


class Part(NamedTuple):
    """A part of a model, which stands in it so many `times`, and the `parameters` of one.

    `parts` are what it is made of; `note` says what its number does not, such as a shared table.
    """

    name: str
    parameters: int
    times: int = 1
    parts: tuple[Part, ...] = ()
    note: str = ""

    @property
    def total(self) -> int:
        """The parameters of all of them."""
        return self.times * self.parameters


class Passage(NamedTuple):
    """What a batch becomes at one step, shape after shape; `within` names the block it is in."""

    step: str
    shapes: tuple[Shape, ...]
    within: str = ""


class Description(NamedTuple):
    """A model, told: see `describe`.

    `kind` is GPT, BERT or encoder–decoder, or the architecture's own name; `norm_order` is "pre",
    "post", or None where it is not known.
    """

    kind: str
    norm_order: str | None
    settings: tuple[Setting, ...]
    parts: tuple[Part, ...]
    passages: tuple[Passage, ...]

    @property
    def parameters(self) -> int:
        """All of them, a shared one once."""
        return sum(part.total for part in self.parts)


def describe(model: nn.Module) -> Description:
    """The settings, the parameters by part and the shapes of a GPT, a BERT or a Seq2Seq.

    Raises:
        ArgumentError: another model.

    >>> from heedful.models import GPTConfig
    >>> told = describe(GPT(GPTConfig(vocabulary=11, width=12, heads=3, layers=2)))
    >>> [(part.name, part.times, part.parameters) for part in told.parts[:2]]
    [('token table', 1, 132), ('block', 2, 1760)]
    >>> told.passages[3]
    Passage(step='query', shapes=(('B', 'N', 12), ('B', 'N', 3, 4), ('B', 3, 'N', 4)), \
within='block')
    """
    if type(model) not in FAMILIES:
        raise ArgumentError(
            f"a {type(model).__name__}",
            expected="a GPT, a Bert or a Seq2Seq of heedful.models",
            remedy="`heedful describe` lists of any checkpoint what its files hold",
        )
    kind, told = FAMILIES[type(model)]
    items, config = list(told(model)), cast(Any, model.config)
    return Description(
        kind,
        getattr(config, "norm_order", "post"),
        tuple(_settings(config)),
        tuple(item for item in items if isinstance(item, Part)),
        tuple(item for item in items if isinstance(item, Passage)),
    )


def describe_files(directory: Path, kind: str, *, allow_pickle: bool = False) -> Description:
    """What the files of a checkpoint of another architecture say: settings, and sizes by part.

    A part is a module at the top, or a list of blocks; the way of a batch is not known.

    Args:
        directory: in Hugging Face format.
        kind: the architecture's name.
        allow_pickle: read `.bin` files where there are no safetensors.

    Raises:
        RunError: files missing or damaged.
    """
    sizes: dict[str, dict[str, int]] = {}
    for name, tensor in mapped_tensors(directory, allow_pickle).items():
        if tensor.is_floating_point():  # a table of places or of masks is not trained
            part, block = _top_part(name)
            of_blocks = sizes.setdefault(part, {})
            of_blocks[block] = of_blocks.get(block, 0) + tensor.numel()
    parts = [_of_files(name, list(of_blocks.values())) for name, of_blocks in sizes.items()]
    settings = tuple(_flat(read_json(directory / "config.json")))
    return Description(kind, None, settings, tuple(parts), ())


def _top_part(name: str) -> tuple[str, str]:
    """The part of a parameter, and the number of its block, where it is in one.

    >>> _top_part("model.layers.3.mlp.up_proj.weight"), _top_part("lm_head.weight")
    (('model.layers', '3'), ('lm_head', ''))
    """
    steps = name.split(".")
    number = next((i for i, step in enumerate(steps) if step.isdecimal()), None)
    if number:
        return ".".join(steps[:number]), steps[number]
    return ".".join(steps[:2][: max(1, len(steps) - 1)]), ""


def _of_files(name: str, sizes: list[int]) -> Part:
    if len(set(sizes)) == 1:
        return Part(name, sizes[0], len(sizes))
    return Part(name, sum(sizes), note=f"{len(sizes)} of them, of several sizes")


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[Setting]:
    """The settings of a `config.json`, those of a part under its name."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield Setting(prefix + name, value, "")


def parameters_in(*modules: nn.Module, but: Iterable[nn.Module] = ()) -> int:
    """How many parameters modules have together, each once, without those of others."""
    known = {id(p) for module in but for p in module.parameters()}
    sizes = {id(p): p.numel() for module in modules for p in module.parameters()}
    return sum(size for key, size in sizes.items() if key not in known)


def _gpt(model: GPT) -> Iterator[Part | Passage]:
    config = model.config
    state: Shape = ("B", "N", config.width)
    yield _part("token table", model.tokens)
    yield from _embedding(config.width)
    if config.positions == "learned":
        yield Part("position table", model.positions.numel())
    if model.convolution is not None:
        yield _part("short convolution", model.convolution)
        yield Passage("short convolution", (state,))
    yield from _blocks("block", model.blocks, config.norm_order)
    if config.norm_order == "pre":
        yield _part("final norm", model.norm)
        yield Passage("final norm", (state,))
    yield _output(model.head, model.tokens, config.tied)
    yield Passage("logits", (("B", "N", config.vocabulary),))


def _bert(model: Bert) -> Iterator[Part | Passage]:
    width = model.config.width
    yield _part("token table", model.tokens)
    yield Part("position table", model.positions.numel())
    yield _part("segment table", model.segments)
    yield from _embedding(width)
    yield _part("norm of embeddings", model.norm)
    yield Passage("norm", (("B", "N", width),))
    yield from _blocks("block", model.blocks, "post")
    if model.pooler is not None:
        yield _part("pooler", model.pooler)
        yield Passage("pooled", (("B", width),))
    if model.head is not None:
        number = parameters_in(model.head, but=[model.tokens])
        yield Part("masked-word head", number, note="its output layer shares the token table")
        yield Passage("logits", (("B", "N", model.config.vocabulary),))


def _seq2seq(model: Seq2Seq) -> Iterator[Part | Passage]:
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
    yield Passage("memory", (("B", "M", config.width),))
    yield from _embedding(config.width, "target ")
    yield from _blocks("decoder block", model.decoder, config.norm_order)
    if config.norm_order == "pre":
        yield _part("decoder norm", model.decoder_norm)
        yield Passage("decoder norm", (("B", "N", config.width),))
    yield Passage("logits", (("B", "N", config.vocabulary),))
    yield _output(model.head, model.target_tokens, config.tied)


def _part(name: str, module: nn.Module) -> Part:
    return Part(name, parameters_in(module))


def _output(head: nn.Module, table: nn.Module, tied: bool) -> Part:
    note = "shares the token table" if tied else ""
    return Part("output layer", parameters_in(head, but=[table] if tied else []), note=note)


def _embedding(width: int, of: str = "", tokens: str = "N") -> Iterator[Passage]:
    yield Passage(f"{of}ids", (("B", tokens),))
    yield Passage(f"{of}embeddings", (("B", tokens, width),))


def _blocks(
    name: str, blocks: Iterable[nn.Module], order: str, tokens: str = "N"
) -> Iterator[Part | Passage]:
    """Blocks of one shape, as one part that stands several times, and the way through one."""
    first, *others = cast("Iterable[PreNormBlock | PreNormDecoderBlock]", blocks)
    norms = [module for child, module in first.named_children() if child.endswith("_norm")]
    parts = [_attention("attention", first.attend)]
    if isinstance(first, PreNormDecoderBlock):
        parts.append(_attention("cross-attention", first.cross))
    parts += [_part("feed-forward", first.feed), Part("norms", parameters_in(*norms))]
    yield Part(name, parameters_in(first), 1 + len(others), tuple(parts))
    yield from _block(first, order, name, tokens)


def _settings(config: Configuration, prefix: str = "") -> Iterator[Setting]:
    """Each field; those of a configuration in a configuration under its name."""
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), prefix + field.name
        if isinstance(value, Configuration):
            yield from _settings(value, f"{name}.")
        else:
            yield Setting(name, value, field.metadata["sentence"])


def _attention(name: str, attend: MultiHeadAttention | CrossAttention) -> Part:
    output = parameters_in(attend.output)
    rest = sum(parameters_in(child) for child in attend.children() if isinstance(child, RMSNorm))
    into = parameters_in(attend) - output - rest
    parts = [Part("query, key, value", into), Part("output", output)]
    if rest:
        parts.append(Part("query and key norms", rest))
    return Part(name, parameters_in(attend), parts=tuple(parts))


def _block(
    block: PreNormBlock | PreNormDecoderBlock, order: str, within: str, tokens: str = "N"
) -> Iterator[Passage]:
    """The way through one block: attention, in a decoder that to the memory, feed-forward."""
    last: nn.Linear = cast(nn.Linear, block.feed.output)
    state: Shape = ("B", tokens, last.out_features)

    def added(part: Iterable[Passage]) -> Iterator[Passage]:
        if order == "pre":
            yield Passage("norm", (state,), within)
        yield from part
        yield Passage("sum with residual", (state,), within)
        if order == "post":
            yield Passage("norm", (state,), within)

    yield from added(_attending(block.attend, state, state, within))
    if isinstance(block, PreNormDecoderBlock):
        memory: Shape = ("B", "M", block.cross.memory.in_features)
        yield from added(_attending(block.cross, state, memory, within))
    hidden: Shape = ("B", tokens, last.in_features)
    yield from added([Passage("feed-forward", (state, hidden, state), within)])


def _attending(
    attend: MultiHeadAttention | CrossAttention, asking: Shape, asked: Shape, within: str
) -> Iterator[Passage]:
    B, N, width = asking
    M, H, d = asked[1], attend.heads, attend.head_width
    G = attend.kv_heads if isinstance(attend, MultiHeadAttention) else H
    name = "cross-" if isinstance(attend, CrossAttention) else ""
    yield Passage(f"{name}query", (asking, (B, N, H, d), (B, H, N, d)), within)
    yield Passage(f"{name}key and value", (asked, (B, M, G, d), (B, G, M, d)), within)
    yield Passage(f"{name}scores and weights", ((B, H, N, M),), within)
    yield Passage(f"{name}context", ((B, H, N, d), (B, N, H, d), (B, N, H * d)), within)
    yield Passage(f"{name}output", ((B, N, width),), within)


FAMILIES: dict[type[nn.Module], tuple[str, Callable[[Any], Iterator[Part | Passage]]]] = {
    GPT: ("GPT", _gpt),
    Bert: ("BERT", _bert),
    Seq2Seq: ("encoder–decoder", _seq2seq),
}
