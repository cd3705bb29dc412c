"""`Recording`, the recorded calls of a batch; `load` and `from_attentions`, which return one."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from heedful.errors import ArgumentError, HeedfulError, RunError
from heedful.recording import file, generation
from heedful.recording.call import Call
from heedful.recording.capture import Capture, capture_of_weights
from heedful.recording.certificate import Check
from heedful.recording.checks import integer, nothing_recorded, path_of, texts_of
from heedful.recording.image_patches import Patches
from heedful.recording.images import Images, with_images
from heedful.recording.progress import OnProgress
from heedful.recording.proof import LAYOUTS, proof_of
from heedful.recording.sequence import Sequence, Sequences, call_of, has_part
from heedful.recording.spill import Spill
from heedful.recording.token_labels import Texts, check_texts
from heedful.token_names import Labeller


class Recording(Sequence):
    """The result of `heedful.record`; iterating and indexing give the calls on the first text."""

    def __init__(
        self, captures: list[Capture] | None = None, *, budget: int | None = None,
        naming: Labeller | None = None, texts: Texts | None = None, images: Images | None = None,
    ) -> None:  # fmt: skip
        self._finalized = [] if captures is None else captures
        self._pending: list[Any] = []  # observed calls that are not yet a `Capture`
        super().__init__(self._finalized, 0, texts or Texts(naming=naming), images)
        self._texts.recording_ref = weakref.ref(self)  # calls find their recording by this
        self._spill = Spill(budget)
        self._missed: dict[str, str] = {}
        self.finalize: Callable[[Any], Capture | None] = _not_recorded  # set by `record`
        self.probe: Callable[..., None] = _not_recorded  # set by `record`

    @property
    def tokens(self) -> list[list[str]] | None:
        """The text of each token of each sequence, without padding; None if unknown.

        In an encoder–decoder, the sequences are the sources. `record(model, tokenizer=…)` and
        `heedful.open` set the tokens; otherwise set them to a list of strings for each sequence.

        Raises:
            ArgumentError: not lists of strings, or more or fewer sequences or tokens than recorded.
        """
        return self._token_lists(False)

    @tokens.setter
    def tokens(self, texts: list[list[str]] | None) -> None:
        self._texts.source = self._validated(texts, False)

    @property
    def target_tokens(self) -> list[list[str]] | None:
        """The text of each token of each target in an encoder–decoder; None if unknown."""
        return self._token_lists(True)

    @target_tokens.setter
    def target_tokens(self, texts: list[list[str]] | None) -> None:
        self._texts.target = self._validated(texts, True)

    @property
    def images(self) -> list[Tensor] | None:
        """The image of each sequence of the batch, uint8 (h, w, 3); None if none was set."""
        return self._images.pixels or None

    def set_images(
        self, images: list[Any], *, patches: tuple[int, int] | None = None,
        before: int | Iterable[str] | None = None, processor: Any = None,
    ) -> None:  # fmt: skip
        """Set the images that the model read, for `call.key_picture` and `call.query_picture`.

        Args:
            images: an image for each sequence of the batch: a path, a PIL image, an array
                (h, w, 3), uint8 or 0 to 1, or a tensor (3, h, w). A tensor with other values is
                assumed to be normalised, as `pixel_values` are.
            patches: the numbers of rows and columns of patches; default those of the model's
                configuration. If it has none, they are inferred, as the picture's repr reports.
            before: the number of tokens before the patches, such as a class token, or their names.
            processor: an image processor of transformers, which resizes and crops images as for the
                model. For tensors, only its mean and std are used, to undo the normalisation.

        Raises:
            ArgumentError: something that is not an image, a number of images that does not match
                the batch, or a grid that fits no call.
        """

        def calls_with(images: Images) -> list[Call]:
            return list(Sequence(self._captures, 0, self._texts, images))

        names = before if before is None or isinstance(before, int) else list(before)
        self._images = with_images(images, self._images, calls_with, patches, names, processor)
        self._calls.clear()

    def _validated(self, texts: list[list[str]] | None, is_target: bool) -> list[list[str]] | None:
        texts = texts_of(texts)
        check_texts(texts, self._captures, is_target)
        self._calls.clear()
        return texts

    def _token_lists(self, is_target: bool) -> list[list[str]] | None:
        texts = self._texts.side(is_target)
        if texts is not None:
            return texts
        names = [sequence._text(is_target) for sequence in self.sequences]
        return [text or [] for text in names] if any(names) else None

    @property
    def missed(self) -> dict[str, str]:
        """The modules whose attention was not recorded, by name, with the reasons."""
        self._finalize_pending()
        return self._missed

    @property
    def _sequence_captures(self) -> list[Capture]:
        self._finalize_pending()
        return self._matching

    def add(self, observed: Any) -> None:
        """Store an observed call, which `finalize` converts to a `Capture` on first use."""
        self._pending.append(observed)
        if self._spill.budget is not None:  # the budget counts the bytes of each `Capture`
            self._finalize_pending()

    def _finalize_pending(self) -> None:
        """Convert all pending calls; calls not converted before Ctrl-C or an error stay pending."""
        while self._pending:
            capture = self.finalize(self._pending[0])
            if capture is not None:
                stored = self._spill.store(capture)
                self._finalized.append(stored)
                if has_part(stored, self._index, self._part):
                    self._matching.append(stored)
            del self._pending[0]

    @property
    def _captures(self) -> list[Capture]:
        self._finalize_pending()
        return self._finalized

    def set_patches(self, patches: list[Patches], size: tuple[int, int] | None) -> None:
        """Set the patches of the model, and the height and width of the images that it expects."""
        self._images.patches, self._images.input_size = patches, size

    def pop_pending(self) -> list[Any]:
        """Remove and return the observed calls that are not yet a `Capture`."""
        pending, self._pending = self._pending, []
        return pending

    def insert(self, capture: Capture) -> None:
        """Insert a call that was missed, at its position in the order of execution."""
        self._captures.append(capture)
        self._captures.sort(key=lambda call: call.index)
        self._missed.pop(capture.name, None)

    def replace(self, capture: Capture, rearranged: Capture) -> None:
        """Replace a call by the same call with rearranged axes."""
        index = list(map(id, self._captures)).index(id(capture))
        self._captures[index] = rearranged

    def pop_captures(self) -> list[Capture]:
        """Remove and return all calls."""
        captures = list(self._captures)
        for container in (self._captures, self._matching, self._calls):
            container.clear()
        return captures

    def add_missed(self, name: str, error: Exception) -> None:
        """Add a module to `missed`, and warn; further errors of the same module are ignored."""
        if name not in self._missed:
            self._missed[name] = reason = _reason(error)
            self.warn(f"attention of {name} was not recorded: {reason}")

    def warn(self, message: str) -> None:
        """Issue a warning that points to the user's line of code."""
        with suppress(UserWarning):  # if warnings are errors, the model must still run
            warnings.warn(message, stacklevel=_users_line())

    def save(self, path: str | Path) -> Path:
        """Write the recording to a file for `heedful.load`; the write is atomic.

        Raises:
            SaveError: a full disk, a directory that is missing or not writable, or an existing file
                that is not a recording.
            RunError: this recording was loaded from a file that is damaged.
            ArgumentError: something that is not a path.
        """
        file.save(self._captures, path_of(path), self._texts, self.missed, self._images)
        return path_of(path)

    @property
    def sequences(self) -> list[Sequence]:
        """The calls on each text of the batch, without padding.

        If a text has several parts, such as windows, see `sequence.parts` and `call.parts`.
        """
        return Sequences(
            Sequence(self._captures, b, self._texts, self._images) for b in range(self._batch)
        )

    @property
    def _batch(self) -> int:
        return max((capture.text_range.stop for capture in self._captures), default=0)

    def __repr__(self) -> str:
        calls, batch = len(self), self._batch
        sequences = f"{batch} sequence{'' if batch == 1 else 's'}"
        return f"<Recording of {calls} call{'' if calls == 1 else 's'}, {sequences}>"

    def stitched(self, sequence: int = 0) -> list[Call]:
        """Return a generation as one call per layer: all tokens × all earlier keys.

        Works with any cache of transformers (dynamic, sliding, static) and with heedful's. For an
        encoder–decoder, cross-attention is included: all target tokens × the source. `sequence` is
        the index of the text in the batch.

        Raises:
            RunError: no generation was recorded, or its passes cannot be stitched.
            ArgumentError: a text that does not exist.
        """
        if self._batch:
            _ = self.sequences[integer("sequence", sequence, minimum=0)]
        text = Sequence(self._captures, sequence, self._texts, self._images)
        return [text._with_texts(call) for call in generation.stitched(self._captures, sequence)]

    def __reduce__(self) -> Any:
        raise RunError("a recording cannot be pickled", remedy="recording.save(path)")

    def verify(
        self, model: nn.Module, inputs: Any, *, progress: OnProgress = lambda share: None
    ) -> dict[str, int]:
        """Determine the axes of calls by running the model again with changed inputs.

        Rows of queries and keys that change when a text is changed belong to that text. Rows that
        change with a token at the input of the attention module belong to that token.

        The model runs in evaluation mode without gradients; its modes, buffers and random states
        are restored. Only the first of several recorded passes is probed. A call is rearranged if
        its axes differ from those assumed. If the axes remain ambiguous, the layout is "guessed",
        with the reason in `why`. A "told" call is refuted if the rows of one text change with
        another text. All rows with a known log-sum-exp are computed and compared with it.

        Args:
            model: the recorded model.
            inputs: those of the recorded pass: a tensor, a list, or a dictionary of keywords.
            progress: called with the completed share, 0 to 1.

        Returns:
            a dictionary with the number of calls of each layout ("told", "verified", "usual",
            "guessed"), and the number of "refuted" calls; numbers of 0 are omitted.

        Raises:
            ArgumentError: inputs that the model does not accept, or that do not reproduce the
                recorded pass.
            RunError: nothing was recorded, or the recording is from a file or from maps.
        """
        if not (self._captures or self.missed):
            raise nothing_recorded()
        self.probe(self, model, inputs, progress)
        for capture in self._captures:
            for text, part in product(capture.text_range, range(capture.parts)):
                call_of(capture, text, part).compare_rows()
        self._select(self._captures)  # calls may now belong to another text
        counts = Counter(capture.layout.word for capture in self._captures)
        counts["refuted"] = sum(check.proof == "refuted" for _, check in self.certificate())
        return {word: counts[word] for word in (*LAYOUTS, "refuted") if counts[word]}

    def certificate(self) -> list[tuple[str, Check]]:
        """Return each call's name and check, which includes the call's proof, layout and `why`.

        A call is refuted if it is refuted for any text of the batch, or any part of a text.
        """
        checks = []
        for capture in self._captures:
            proof, proof_why = proof_of(capture.check, next(iter(capture.refutations.values()), ""))
            layout, layout_why = capture.layout
            why = "; ".join(filter(None, (proof_why, layout_why)))
            check = replace(capture.check, proof=proof, layout=layout, why=why)
            checks.append((capture.name, check))
        return checks


def _reason(error: Exception) -> str:
    """Return an error's message, and its type if it is not an error of the recorder itself."""
    message = " ".join(str(error).split())
    is_expected = isinstance(error, HeedfulError) or type(error) in (TypeError, LookupError)
    return message if is_expected and message else f"{message} ({type(error).__name__})".strip()


def _users_line() -> int:
    """Return the `stacklevel` of the innermost frame outside heedful and the libraries it uses."""
    frame, level = sys._getframe(1), 1
    libraries = ("heedful", "torch", "transformers", "contextlib")
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in libraries:
        frame, level = frame.f_back, level + 1
    return level


def _not_recorded(*arguments: Any) -> Any:
    raise RunError(
        "a recording from a file or from maps, which cannot be verified",
        expected="a recording by heedful.record in this process",
        remedy="record the model again",
    )


def load(path: str | Path) -> Recording:
    """Open a recording that `Recording.save` wrote; tensors are read from disk when first used.

    Raises:
        RunError: a file that is missing, damaged, of another version, or not a recording.
        ArgumentError: something that is not a path.
    """
    captures, texts, missed, images = file.load(path_of(path))
    recording = Recording(captures, texts=texts, images=images)
    recording.missed.update(missed)
    return recording


def from_attentions(attentions: Iterable[Tensor]) -> Recording:
    """Return a recording of the maps that a model returned.

    Args:
        attentions: a map (B, H, N, M) for each layer, such as `output.attentions` of transformers.
            A row sums to 1, or to less with a learned sink, or to 0 if it is fully masked.

    Raises:
        ArgumentError: not tensors of this shape, negative weights, rows that sum to more than 1.

    >>> import torch
    >>> recording = from_attentions([torch.eye(3).expand(1, 2, 3, 3)])
    >>> recording[0].diagonal(0)
    tensor([1., 1.])
    """
    if not isinstance(attentions, Iterable):
        raise _map_error(attentions, "of all layers")
    captures = []
    for layer, map_ in enumerate(attentions):
        if not isinstance(map_, Tensor) or map_.ndim != 4:
            raise _map_error(map_, f"of layer {layer}")
        captures.append(capture_of_weights(map_, f"layer {layer}", layer, layer))
    return Recording(captures)


def _map_error(value: Any, layers: str) -> ArgumentError:
    shape = f" {tuple(value.shape)}" if isinstance(value, Tensor) else ""
    return ArgumentError(
        f"attentions {layers}: {type(value).__name__}{shape}",
        expected="for each layer a tensor (batch, heads, queries, keys)",
        cause="sdpa, which returns no weights, or a model without output_attentions=True",
    )
