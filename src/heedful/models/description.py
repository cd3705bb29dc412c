"""What a model is: its settings, its parameters by part, and the shapes that a batch goes through.

B texts, N tokens (of a target, where there is a source), M tokens of the source. The numbers are
read off the model's own layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from torch import nn

from heedful.configuration import Configuration
from heedful.errors import ArgumentError
from heedful.files import read_json
from heedful.layers import CrossAttention, MultiHeadAttention, PreNormBlock, PreNormDecoderBlock
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
    if isinstance(model, GPT):
        return _gpt(model)
    if isinstance(model, Bert):
        return _bert(model)
    if isinstance(model, Seq2Seq):
        return _seq2seq(model)
    raise ArgumentError(
        f"a {type(model).__name__}",
        expected="a GPT, a Bert or a Seq2Seq of heedful.models",
        remedy="`heedful describe` tells of any checkpoint what its files say",
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


def parameters_in(*modules: nn.Module | None, but: Iterable[nn.Module] = ()) -> int:
    """How many parameters modules have together, each once, without those of others."""
    known = {id(p) for module in but for p in module.parameters()}
    found = {id(p): p.numel() for module in modules if module for p in module.parameters()}
    return sum(number for one, number in found.items() if one not in known)


def _gpt(model: GPT) -> Description:
    config = model.config
    blocks = cast("list[PreNormBlock]", model.blocks)
    parts = [Part("token table", parameters_in(model.tokens))]
    if config.positions == "learned":
        parts.append(Part("position table", model.positions.numel()))
    if model.convolution is not None:
        parts.append(Part("short convolution", parameters_in(model.convolution)))
    parts.append(_repeated("block", blocks))
    if config.norm_order == "pre":
        parts.append(Part("final norm", parameters_in(model.norm)))
    parts.append(_head(model.head, model.tokens, config.tied))
    passages = [*_embedding(config.width)]
    if model.convolution is not None:
        passages.append(Passage("short convolution", (("B", "N", config.width),)))
    passages += _block(blocks[0], config.norm_order, "block")
    if config.norm_order == "pre":
        passages.append(Passage("final norm", (("B", "N", config.width),)))
    passages.append(Passage("logits", (("B", "N", config.vocabulary),)))
    return Description("GPT", config.norm_order, _settings(config), tuple(parts), tuple(passages))


def _bert(model: Bert) -> Description:
    config, blocks = model.config, cast("list[PreNormBlock]", model.blocks)
    width = config.width
    parts = [
        Part("token table", parameters_in(model.tokens)),
        Part("position table", model.positions.numel()),
        Part("segment table", parameters_in(model.segments)),
        Part("norm of embeddings", parameters_in(model.norm)),
        _repeated("block", blocks),
    ]
    passages = [
        *_embedding(width),
        Passage("norm", (("B", "N", width),)),
        *_block(blocks[0], "post", "block"),
    ]
    if model.pooler is not None:
        parts.append(Part("pooler", parameters_in(model.pooler)))
        passages.append(Passage("pooled", (("B", width),)))
    if model.head is not None:
        note = "its output layer shares the token table"
        head = parameters_in(model.head, but=[model.tokens])
        parts.append(Part("masked-word head", head, note=note))
        passages.append(Passage("logits", (("B", "N", config.vocabulary),)))
    if model.next_sentence is not None:
        parts.append(Part("next-sentence head", parameters_in(model.next_sentence)))
        passages.append(Passage("follows", (("B", 2),)))
    return Description("BERT", "post", _settings(config), tuple(parts), tuple(passages))


def _seq2seq(model: Seq2Seq) -> Description:
    config = model.config
    encoder = cast("list[PreNormBlock]", model.encoder)
    decoder = cast("list[PreNormDecoderBlock]", model.decoder)
    parts = [Part("token table" if config.shared else "source table",
                  parameters_in(model.source_tokens),
                  note="of source and target" if config.shared else "")]  # fmt: skip
    if not config.shared:
        parts.append(Part("target table", parameters_in(model.target_tokens)))
    parts += [_repeated("encoder block", encoder), _repeated("decoder block", decoder)]
    passages = [*_embedding(config.width, "source ", "M")]
    passages += _block(encoder[0], config.norm_order, "encoder block", "M")
    if config.norm_order == "pre":
        parts.insert(-1, Part("encoder norm", parameters_in(model.encoder_norm)))
        parts.append(Part("decoder norm", parameters_in(model.decoder_norm)))
    passages.append(Passage("memory", (("B", "M", config.width),)))
    passages += _embedding(config.width, "target ")
    passages += _block(decoder[0], config.norm_order, "decoder block")
    if config.norm_order == "pre":
        passages.append(Passage("decoder norm", (("B", "N", config.width),)))
    passages.append(Passage("logits", (("B", "N", config.vocabulary),)))
    parts.append(_head(model.head, model.target_tokens, config.tied))
    kind = "encoder–decoder"
    return Description(kind, config.norm_order, _settings(config), tuple(parts), tuple(passages))


def _settings(config: Configuration, prefix: str = "") -> tuple[Setting, ...]:
    """Each field; those of a configuration in a configuration under its name."""
    found: list[Setting] = []
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), prefix + field.name
        if isinstance(value, Configuration):
            found += _settings(value, f"{name}.")
        else:
            found.append(Setting(name, value, field.metadata["sentence"]))
    return tuple(found)


def _head(head: nn.Module, table: nn.Module, tied: bool) -> Part:
    note = "shares the token table" if tied else ""
    return Part("output layer", parameters_in(head, but=[table] if tied else []), note=note)


def _repeated(name: str, blocks: Iterable[PreNormBlock | PreNormDecoderBlock]) -> Part:
    """Blocks of one shape, as one part that stands several times."""
    first, *_ = blocks = list(blocks)
    norms = [module for child, module in first.named_children() if child.endswith("_norm")]
    parts = [
        _attention("attention", first.attend),
        Part("feed-forward", parameters_in(first.feed)),
        Part("norms", parameters_in(*norms)),
    ]
    if isinstance(first, PreNormDecoderBlock):
        parts.insert(1, _attention("cross-attention", first.cross))
    return Part(name, parameters_in(first), len(blocks), tuple(parts))


def _attention(name: str, attend: MultiHeadAttention | CrossAttention) -> Part:
    into = (
        ("query, key, value", [attend.projection])
        if isinstance(attend, MultiHeadAttention)
        else ("query, key, value", [attend.query, attend.memory])
    )
    parts = [Part(into[0], parameters_in(*into[1])), Part("output", parameters_in(attend.output))]
    rest = parameters_in(attend) - sum(part.parameters for part in parts)
    if rest:
        parts.append(Part("query and key norms", rest))
    return Part(name, parameters_in(attend), parts=tuple(parts))


def _embedding(width: int, of: str = "", tokens: str = "N") -> Iterator[Passage]:
    yield Passage(f"{of}ids", (("B", tokens),))
    yield Passage(f"{of}embeddings", (("B", tokens, width),))


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
    chains: list[tuple[str, tuple[Shape, ...]]] = [
        ("query", (asking, (B, N, H, d), (B, H, N, d))),
        ("key and value", (asked, (B, M, G, d), (B, G, M, d))),
        ("scores and weights", ((B, H, N, M),)),
        ("context", ((B, H, N, d), (B, N, H, d), (B, N, H * d))),
        ("output", ((B, N, width),)),
    ]
    for step, shapes in chains:
        yield Passage(name + step, shapes, within)
