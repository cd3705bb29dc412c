"""An encoder–decoder with its tokenizer: it reads a source, and writes the target itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.errors import ArgumentError, TextError
from heedful.models import Seq2Seq
from heedful.models.search import translate
from heedful.opened.cutting import check_not_empty, must_cut, room_beside
from heedful.opened.ours import OpenedOurs, Positions, Reading, refuse_second, without_gradients
from heedful.opened.protocol import Pass
from heedful.text import Tokenizer
from heedful.text.library import Span, in_contexts
from heedful.text.vectors import WordVectors

BEGIN, END = "▶", "■"  # how the begin of a target, and the end of a source or target, are shown


@dataclass(frozen=True)
class OpenedSeq2Seq(OpenedOurs):
    """An encoder–decoder, made by `heedful train --pairs`, with its tokenizer."""

    model: Seq2Seq
    tokenizer: Tokenizer
    described = "an encoder–decoder, made by `heedful train --pairs`"
    purpose = "give it a source with `heedful translate`"

    @property
    def layers(self) -> int:
        """Its layers of cross-attention."""
        return len(self.model.decoder)

    @property
    def positions(self) -> Positions:
        """How it knows where a token stands."""
        return Positions("sinusoidal", self.model.positions)

    def source(self, text: str, *, cut: bool = False) -> list[int]:
        """The ids of a source, without its end, which takes a place too; errors as `Opened.read`.

        White space around it is left out, as it was of the pairs that the model learned.
        """
        ids, context_length = self.tokenizer.encode(text.strip()), self.model.config.context_length
        check_not_empty(len(ids))
        return ids[: context_length - 1] if must_cut(len(ids), context_length, cut, ends=1) else ids

    def read(self, text: str, second: str | None = None, *, cut: bool = False) -> Pass:
        """A source (1, M) and the target that the model finds for it, as it reads it, (1, N)."""
        refuse_second(second, "an encoder–decoder")
        return self._pass(self.source(text, cut=cut))

    def contexts(self, text: str, most: int | None = None) -> list[Pass]:
        """As `Opened.contexts`: each a source, with the target that the model finds for it."""
        room = room_beside(1, self.model.config.context_length, most)
        ids = self.tokenizer.encode(text.strip())
        return [self._pass(list(source)) for source in in_contexts(ids, room)]

    def spans(
        self, text: str, second: str | None = None, *, cut: bool = False
    ) -> list[Span | None]:
        """As `Opened.spans`, of the source; its end has none."""
        refuse_second(second, "an encoder–decoder")
        before = len(text) - len(text.lstrip())
        pairs = self.tokenizer.spans(text.strip())[: len(self.source(text, cut=cut))]
        return [*(Span(0, before + start, before + end) for start, end in pairs), None]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """One printable label for each token; those that begin and end have a sign."""
        marks = {self.model.config.begin: BEGIN, self.model.config.end: END}
        return [marks.get(token) or self.tokenizer.pieces([token])[0] for token in ids]

    def target_tokens(self, given: Pass) -> list[str]:
        """The target as the model reads it, from its begin on."""
        return self.pieces(given.arguments[1][0].tolist())

    def rows(
        self, text: str, second: str | None = None, *, target: str | None = None, cut: bool = False
    ) -> tuple[Tensor, Tensor]:
        """A source (1, M) and what is written of its target so far (1, N), as the model reads them.

        Args:
            text: the source.
            second: refused, as by `read`.
            target: what is written so far, which may be nothing; default what the model itself
                writes.
            cut: as `read`.

        Raises:
            TextError: as `read`, or a target as long as the context.
        """
        refuse_second(second, "an encoder–decoder")
        source, room = self.source(text, cut=cut), self.model.config.context_length - 1
        if target is None:
            return self._rows(source, self._target(source))
        written = self.tokenizer.encode(target)
        if len(written) > room:
            raise TextError(
                f"a target of {len(written):,} tokens",
                expected=f"at most {room:,}: the model's context, and a begin",
            )
        return self._rows(source, written)

    def steps(self, text: str, second: str | None = None, *, cut: bool = False) -> Reading:
        """How the tokens of a text's translation look at it, each while it is written.

        Each layer's are made when they are asked for, (1, H, N, M).
        """
        refuse_second(second, "an encoder–decoder")
        source = self.source(text, cut=cut)
        target = self._target(source)
        rows = self._rows(source, target)
        written = [*self.pieces(target), END][: rows[1].shape[1]]
        return Reading(
            written, [*self.pieces(source), END], without_gradients(self.model.cross_steps(*rows))
        )

    def vectors(self) -> WordVectors:
        """Refused: sources and targets may have a table each.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(
            f"{self.directory} holds a {type(self.model).__name__}",
            expected="a GPT or a BERT, which has one table of tokens",
        )

    def _pass(self, source: list[int]) -> Pass:
        rows = self._rows(source, self._target(source))
        return Pass(rows, {}, self.pieces(rows[0][0].tolist()))

    def _target(self, source: list[int]) -> list[int]:
        """The likeliest target, without its begin and end."""
        return translate(self.model, [source])[0][0].ids

    def _rows(self, source: list[int], target: list[int]) -> tuple[Tensor, Tensor]:
        """Both as the model reads them while it writes: a source's end, a target's begin."""
        config, device = self.model.config, self.model.positions.device
        begun = [config.begin, *target][: config.context_length]
        source_row, target_row = (
            torch.tensor([row], device=device) for row in ([*source, config.end], begun)
        )
        return source_row, target_row
