"""A GPT with its tokenizer: it reads one text, and continues it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.models import GPT
from heedful.opened.cutting import check_not_empty, must_cut, room_beside
from heedful.opened.ours import OpenedOurs, Positions, refuse_second
from heedful.opened.protocol import Pass
from heedful.text import Tokenizer
from heedful.text.library import Span, in_contexts


@dataclass(frozen=True)
class OpenedGPT(OpenedOurs):
    """A GPT of `heedful train`, a GPT-2 or one of Llama's family, with its tokenizer."""

    model: GPT
    tokenizer: Tokenizer
    described = "a GPT of `heedful train`, a GPT-2 or a Llama, which continue texts"
    purpose = "continue a text with `heedful generate`"
    hides = True

    @property
    def endings(self) -> tuple[str, ...]:
        """The text of the token that ends a document, where the tokenizer has one."""
        end = self.tokenizer.special.get("eos")
        return () if end is None else (self.tokenizer.decode([end]),)

    @property
    def positions(self) -> Positions:
        """How it knows where a token stands."""
        kind = self.model.config.positions
        return Positions(kind, self.model.cosines if kind == "rotary" else self.model.positions)

    def ids(self, text: str) -> Tensor:
        """The ids of a text of any length as a batch of one, (1, N), on the model's device.

        They begin with those that the tokenizer puts before a text, such as that of <s>.

        Raises:
            TextError: an empty text.
        """
        ids = self.tokenizer.encode(text)
        check_not_empty(len(ids))
        ids = [*self.tokenizer.first, *ids]
        return torch.tensor([ids], device=next(self.model.parameters()).device)

    def read(self, text: str, second: str | None = None, *, cut: bool = False) -> Pass:
        """The ids of a text, (1, N); errors as `Opened.read`."""
        refuse_second(second, "a GPT")
        ids, context_length = self.ids(text), self.model.config.context_length
        if must_cut(ids.shape[1], context_length, cut):
            ids = ids[:, :context_length]
        return Pass((ids,), {}, self.pieces(ids[0].tolist()))

    def contexts(self, text: str, most: int | None = None) -> list[Pass]:
        """As `Opened.contexts`; each begins with what the tokenizer puts before a text."""
        first, device = self.tokenizer.first, next(self.model.parameters()).device
        room = room_beside(len(first), self.model.config.context_length, most)
        parts = [[*first, *part] for part in in_contexts(self.tokenizer.encode(text), room)]
        return [Pass((torch.tensor([ids], device=device),), {}, self.pieces(ids)) for ids in parts]

    def spans(
        self, text: str, second: str | None = None, *, cut: bool = False
    ) -> list[Span | None]:
        """As `Opened.spans`; what stands before a text has none."""
        N = self.read(text, second, cut=cut).arguments[0].shape[1]
        own = [Span(0, *span) for span in self.tokenizer.spans(text)]
        return [*[None] * len(self.tokenizer.first), *own][:N]
