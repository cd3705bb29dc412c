"""The base class of all loaded models: it reads a text, runs the model and records attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError, RunError
from heedful.recorder import record
from heedful.recording import Recording
from heedful.recording.progress import OnProgress
from heedful.text.library_tokenizer import Span


class ModelInputs(NamedTuple):
    """The inputs of one pass over a text or a pair, as a batch of one sequence.

    inputs: the model's arguments by name, tensors on the model's device.
    tokens: labels of the N tokens; empty if the recorder is to find the labels.
    target: labels of the tokens that the decoder of an encoder–decoder reads.
    """

    inputs: dict[str, Tensor]
    tokens: list[str]
    target: list[str] | None = None


@dataclass(frozen=True)
class LoadedModel(ABC):
    """A model with its tokenizer, as returned by `heedful.open`.

    model: a torch module in evaluation mode. tokenizer: the model's tokenizer, a class of heedful
    or of transformers. directory: the directory of the files of model and tokenizer.
    """

    model: nn.Module
    tokenizer: Any
    directory: Path
    reads_pairs: ClassVar[bool] = False  # whether `read` accepts a second text
    reads_images: ClassVar[bool] = False  # whether `record` accepts an image

    @abstractmethod
    def read(self, text: str, second: str | None = None, *, cut: bool = False) -> ModelInputs:
        """Return the model's inputs for a text or a pair, with labels of the tokens.

        Args:
            text: a text of one token or more.
            second: a second text, for a model that reads pairs.
            cut: truncate a text that exceeds the model's context, with a `TruncationWarning`;
                False raises an error.

        Raises:
            TextError: the text is empty, or longer than the context and `cut` is False.
            ArgumentError: a second text for a model that reads one text only.
        """

    @abstractmethod
    def contexts(self, text: str, max_tokens: int | None = None) -> list[ModelInputs]:
        """Split a text of any length into contexts, and return the model's inputs for each.

        All contexts but the last are full. Each has the special tokens that `read` adds. A text
        without tokens has no contexts.

        Args:
            text: a text of any length.
            max_tokens: the maximum number of tokens in a context, including special tokens;
                default the model's context, or all tokens if that is unlimited.

        Raises:
            ArgumentError: `max_tokens` exceeds the model's context, or leaves no room for a token.
        """

    @abstractmethod
    def spans(
        self, text: str, second: str | None = None, *, cut: bool = False
    ) -> list[Span | None]:
        """Return the span of characters of each token that `read` returns.

        A token without characters, such as [CLS], has None. Arguments are those of `read`.

        Raises:
            RunError: the tokenizer does not report the positions of its tokens.
            TextError, ArgumentError: as in `read`.
        """

    @abstractmethod
    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return a printable label for each id; `record(model, tokenizer=opened)` calls this."""

    def run(self, model_inputs: ModelInputs) -> Any:
        """Return the model's output for the result of `read`."""
        return self.model(**model_inputs.inputs)

    def record(
        self, text: str, second: str | None = None, *, cut: bool = False, **options: Any
    ) -> Recording:
        """Record one pass over a text or a pair.

        An encoder–decoder first generates a target; the recorded pass then reads text and target.

        Args:
            text, second, cut: as in `read`, with its errors.
            options: `verify` and `progress` of `record_inputs`, and options of `heedful.record`:
                `axes`, `layers`, `heads`, `values`, `dtype`, `budget`.

        Returns:
            the finished recording, with `tokens`, and `target_tokens` for an encoder–decoder.

        Raises:
            ArgumentError: the text is not a string, an option is invalid, or as in `read`.
            TextError: as in `read`.
            RunError: no attention was recorded.
        """
        if not isinstance(text, str):
            raise ArgumentError(
                f"a text that is {'None' if text is None else f'a {type(text).__name__}'}",
                expected="one string",
                remedy="record several texts separately, or run `opened.model` on a batch inside "
                "`heedful.record`",
            )
        with torch.inference_mode():
            model_inputs = self.read(text, second, cut=cut)
        return self.record_inputs(model_inputs, **options)

    def record_inputs(
        self,
        model_inputs: ModelInputs,
        *,
        verify: bool = False,
        progress: OnProgress = lambda share: None,
        **options: Any,
    ) -> Recording:
        """Record one pass over inputs from `read` or `contexts`.

        Args:
            model_inputs: the inputs and the labels of their tokens.
            verify: determine the axes of calls by `Recording.verify`, which runs more passes.
            progress: called with the completed share of these passes, 0 to 1.
            options: options of `heedful.record`.

        Raises:
            RunError: no attention was recorded.
        """
        if self.tokenizer is not None:
            options.setdefault("tokenizer", self)
        with torch.inference_mode(), record(self.model, **options) as recording:
            self.run(model_inputs)
        if verify:
            recording.verify(self.model, model_inputs.inputs, progress=progress)
        if not len(recording):
            raise RunError(
                f"no attention in a {type(self.model).__name__}",
                expected="a model whose attention the recorder can intercept",
                remedy="use another model; heedful cannot show this one",
            )
        if model_inputs.tokens:
            recording.tokens = [model_inputs.tokens]
        if model_inputs.target is not None:
            recording.target_tokens = [model_inputs.target]
        return recording
