"""A text that a model continues, of which the page is told by how many tokens it has."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from heedful.opened.protocol import Opened
from heedful.recording import Recording
from heedful.recording.growing import Growing
from heedful.views.explorer.continued import Continued
from heedful.views.explorer.text import Text


@dataclass
class GrowingText:
    """A text as far as it is written, with its calls at any length that it has had.

    name: of its prompt, which is `said` in full. opened: the model, which names the tokens.
    continued: what goes on with the text. prompt: how many tokens it began with. likely: for each
    token after the prompt, and for the next one, the likeliest with their probabilities, before
    temperature and what else chooses. chances: of the tokens after the prompt. logits: (1, V), of
    the next. number: of the recording.
    """

    name: str
    said: str
    opened: Opened
    continued: Continued
    prompt: int
    growing: Growing = field(default_factory=Growing)
    ids: list[int] = field(default_factory=list)
    likely: list[tuple[list[int], list[float]]] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    logits: Tensor = field(
        default_factory=lambda: torch.empty(1, 0, dtype=torch.float32, device="cpu")
    )
    number: int = 0
    pieces: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """How many there are by now."""
        return self.growing.tokens

    @property
    def missed(self) -> dict[str, str]:
        """Modules whose attention was not understood, and why."""
        return self.growing.missed

    def is_begun_with(self, prompt: str) -> bool:
        """Whether it is this prompt and nothing else."""
        return self.said == prompt and len(self.ids) == self.prompt

    def recording(self, tokens: int) -> Recording:
        """The first tokens as a recording of one pass."""
        self.pieces += self.opened.pieces(self.ids[len(self.pieces) :])
        recording = self.growing.recording(tokens)
        self.continued.name(recording, self.pieces[:tokens])
        return recording

    def at(self, tokens: int) -> Text:
        """The calls on the first tokens.

        Raises:
            ArgumentError: more than there are, or none.
        """
        recording = self.recording(tokens)
        return Text("the text", list(recording), prompt=self.prompt, sides=recording.sides)
