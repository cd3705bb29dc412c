"""A BERT with its tokenizer: it reads a text or a pair, framed, and fills gaps."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from heedful.models import Bert
from heedful.opened.cutting import check_not_empty, must_cut, room_beside
from heedful.opened.ours import OpenedOurs, Positions
from heedful.opened.protocol import Pass
from heedful.text import FramedTokenizer, Inputs, WordPieceTokenizer
from heedful.text.library import Span


@dataclass(frozen=True)
class OpenedBert(OpenedOurs):
    """A BERT with a tokenizer that frames what it reads."""

    model: Bert
    tokenizer: WordPieceTokenizer | FramedTokenizer
    described = "a BERT, which guesses words from both sides"
    purpose = "fill its gaps with `heedful fill`"
    reads_pairs = True

    @property
    def positions(self) -> Positions:
        """How it knows where a token stands."""
        return Positions("learned", self.model.positions)

    def inputs(self, text: str, second: str | None = None, *, cut: bool = False) -> Inputs:
        """A text or a pair, framed as the model reads it; errors as `Opened.read`.

        A special token stays where it stands: what is cut are the texts within.
        """
        framed = self.tokenizer.inputs(text, second)
        context_length = self.model.config.context_length
        check_not_empty(len(framed.ids) - len(self.tokenizer.inputs("").ids))
        if must_cut(len(framed.ids), context_length, cut):
            return self.tokenizer.inputs(text, second, most=context_length)
        return framed

    def read(self, text: str, second: str | None = None, *, cut: bool = False) -> Pass:
        """The ids and segments of a text or a pair, (1, N) each; errors as `Opened.read`."""
        return self._pass(self.inputs(text, second, cut=cut))

    def contexts(self, text: str, most: int | None = None) -> list[Pass]:
        """As `Opened.contexts`, each framed."""
        frame = len(self.tokenizer.inputs("").ids)
        room = room_beside(frame, self.model.config.context_length, most)
        return [self._pass(inputs) for inputs in self.tokenizer.contexts(text, room)]

    def spans(
        self, text: str, second: str | None = None, *, cut: bool = False
    ) -> list[Span | None]:
        """As `Opened.spans`; the frame has none."""
        N = len(self.inputs(text, second, cut=cut).ids)
        return self.tokenizer.framed_spans(text, second, most=N)

    def _pass(self, inputs: Inputs) -> Pass:
        device = self.model.positions.device
        ids, segments = (torch.tensor([numbers], device=device) for numbers in inputs)
        return Pass((ids,), {"segments": segments}, self.pieces(inputs.ids))
