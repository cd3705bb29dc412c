"""What every opened model does, whoever wrote it: read a text, run a pass, record it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from heedful.errors import RunError
from heedful.loaded.truncation import check_is_text
from heedful.recorder import record
from heedful.recording import Recording
from heedful.recording.progress import Tell
from heedful.text.library_tokenizer import Span


class Pass(NamedTuple):
    """What a model is given for one pass over a text or a pair, a batch of one.

    inputs: tensors by the names of the model's arguments, on its device.
    tokens: the text of each of the N tokens; none where the pass itself names them.
    target: in an encoder–decoder the text of each token that its decoder is given.
    """

    inputs: dict[str, Tensor]
    tokens: list[str]
    target: list[str] | None = None


@dataclass(frozen=True)
class LoadedModel(ABC):
    """A model with its tokenizer: what `heedful.open` returns.

    model: a torch module in evaluation mode, on its device. tokenizer: the model's own, of heedful
    or of transformers. directory: where their files are.
    """

    model: nn.Module
    tokenizer: Any
    directory: Path
    reads_pairs: ClassVar[bool] = False  # whether a second text may be given
    reads_images: ClassVar[bool] = False  # whether `record` takes an image

    @abstractmethod
    def read(self, text: str, second: str | None = None, *, cut: bool = False) -> Pass:
        """What the model is given for a text or a pair, with the names of the tokens.

        Args:
            text: one token or more.
            second: a second text, for a model that reads pairs.
            cut: of a text that is longer than the model's context, read the beginning, and warn
                (`TruncationWarning`).

        Raises:
            TextError: a text that is empty, or longer than the context without `cut`.
            ArgumentError: a second text for a model that reads one.
        """

    @abstractmethod
    def contexts(self, text: str, most: int | None = None) -> list[Pass]:
        """What the model is given for a text of any length: one context after another.

        All are full but the last, which is as long as what is left; each stands in the frame that
        `read` gives a text. None for a text without a token.

        Args:
            text: of any length.
            most: the most tokens of a context, the frame included; default the model's context,
                and where it has no limit all.

        Raises:
            ArgumentError: more than the model's context, or no room for a token.
        """

    @abstractmethod
    def spans(
        self, text: str, second: str | None = None, *, cut: bool = False
    ) -> list[Span | None]:
        """For each token that `read` gives, the characters of the text that it stands for.

        None for one that stands for none, such as [CLS]. Arguments and errors as `read`.

        Raises:
            RunError: a tokenizer that does not report where its tokens stand.
        """

    @abstractmethod
    def pieces(self, ids: Iterable[int]) -> list[str]:
        """One printable label for each token, as `record(model, tokenizer=opened)` names them."""

    def run(self, given: Pass) -> Any:
        """The model's output for what `read` made."""
        return self.model(**given.inputs)

    def record(
        self, text: str, second: str | None = None, *, cut: bool = False, **options: Any
    ) -> Recording:
        """One pass over a text or a pair, recorded, each token with its text.

        An encoder–decoder first writes what it makes of the text; recorded is one pass over both.

        Args:
            text, second, cut: as `read`, with its errors.
            options: `verify` and `progress` of `recorded`, and those of `heedful.record`: `axes`,
                `layers`, `heads`, `values`, `dtype`, `budget`.

        Returns:
            the finished recording, with its `tokens`, and of an encoder–decoder `target_tokens`.

        Raises:
            ArgumentError: an option that does not fit.
            RunError: a model in which no attention is seen.
        """
        check_is_text(text)
        with torch.inference_mode():
            given = self.read(text, second, cut=cut)
        return self.recorded(given, **options)

    def recorded(
        self,
        given: Pass,
        *,
        verify: bool = False,
        progress: Tell = lambda share: None,
        **options: Any,
    ) -> Recording:
        """One pass over what `read` or `contexts` made, recorded; options as `record`.

        Args:
            given: the inputs and the names of their tokens.
            verify: settle what the axes of calls are by probing, as `Recording.verify` does, in
                some more passes.
            progress: is told of the share of these that is done, 0 to 1.
            options: those of `heedful.record`.
        """
        if self.tokenizer is not None:
            options.setdefault("tokenizer", self)
        with torch.inference_mode(), record(self.model, **options) as recording:
            self.run(given)
        if verify:
            recording.verify(self.model, given.inputs, progress=progress)
        if not len(recording):
            raise RunError(
                f"no attention in a {type(self.model).__name__}",
                expected="a model that attends, in a form that a door of the recorder sees",
                remedy="`heedful record` and `heedful heads` have nothing to show of it",
            )
        if given.tokens:
            recording.tokens = [given.tokens]
        if given.target is not None:
            recording.target_tokens = [given.target]
        return recording
