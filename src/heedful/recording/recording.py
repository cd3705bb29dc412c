"""Holds what was recorded: calls in order, for each sequence of the batch without its padding."""

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
from heedful.recording.checks import nothing_recorded, path_of, texts_of, whole
from heedful.recording.image_patches import Patches
from heedful.recording.images import Images, with_images
from heedful.recording.progress import Tell
from heedful.recording.proof import LAYOUTS, proof_of
from heedful.recording.sequence import Sequence, Sequences, call_of, has_part
from heedful.recording.spill import Spill
from heedful.recording.token_labels import Texts, check_texts
from heedful.token_names import Naming


class Recording(Sequence):
    """What `heedful.record` yields; iterated, it is its first sequence."""

    def __init__(
        self, captures: list[Capture] | None = None, *, budget: int | None = None,
        naming: Naming | None = None, texts: Texts | None = None, images: Images | None = None,
    ) -> None:  # fmt: skip
        self._settled = [] if captures is None else captures
        self._pending: list[Any] = []  # what was seen, and is no `Capture` yet
        super().__init__(self._settled, 0, texts or Texts(naming=naming), images)
        self._texts.home = weakref.ref(self)  # by which a call finds what it is of
        self._spill = Spill(budget)
        self._missed: dict[str, str] = {}
        # these two are set by `record`
        self.settling: Callable[[Any], Capture | None] = _not_recorded
        self.probe: Callable[..., None] = _not_recorded

    @property
    def tokens(self) -> list[list[str]] | None:
        """The text of each token of each sequence, without padding; None where it is not known.

        In an encoder–decoder of what it reads. `record(model, tokenizer=…)` and `heedful.open` know
        it; else set it: a list of strings for each sequence.

        Raises:
            ArgumentError: set to another number of sequences or of tokens than were recorded.
        """
        return self._known(False)

    @tokens.setter
    def tokens(self, texts: list[list[str]] | None) -> None:
        self._texts.read = self._checked(texts, False)

    @property
    def target_tokens(self) -> list[list[str]] | None:
        """As `tokens`, of what the decoder of an encoder–decoder reads and writes; else None."""
        return self._known(True)

    @target_tokens.setter
    def target_tokens(self, texts: list[list[str]] | None) -> None:
        self._texts.written = self._checked(texts, True)

    @property
    def images(self) -> list[Tensor] | None:
        """The image of each text of the batch, uint8 (h, w, 3); None where none was set."""
        return self._images.pixels or None

    def set_images(
        self, images: list[Any], *, patches: tuple[int, int] | None = None,
        before: int | Iterable[str] | None = None, processor: Any = None,
    ) -> None:  # fmt: skip
        """Lay images under the calls that attend over them: `call.key_picture`, `query_picture`.

        Args:
            images: one for each text of the batch, as the model saw it: a path, a PIL image, an
                array (h, w, 3), uint8 or 0 to 1, or a tensor (3, h, w). A tensor of other values,
                such as `pixel_values`, is what the model was given.
            patches: rows and columns of the patches; by default what the model's own configuration
                says, else what fits the number of tokens, which the picture then says.
            before: how many tokens stand before the patches, such as a class token, or their names.
            processor: of transformers. It makes of an image what the model saw, cut and resized,
                and says how the values of a tensor were normalised.

        Raises:
            ArgumentError: what is no image, another number of them, or a grid that fits no call.
        """

        def calls_with(images: Images) -> list[Call]:
            return list(Sequence(self._captures, 0, self._texts, images))

        names = before if before is None or isinstance(before, int) else list(before)
        known = self._images
        self._images = with_images(images, known, calls_with, patches, names, processor)
        self._calls.clear()

    def _checked(self, tokens: list[list[str]] | None, writes: bool) -> list[list[str]] | None:
        texts = texts_of(tokens)
        check_texts(texts, self._captures, writes)
        self._calls.clear()
        return texts

    def _known(self, writes: bool) -> list[list[str]] | None:
        texts = self._texts.side(writes)
        if texts is not None:
            return texts
        names = [sequence._text(writes) for sequence in self.sequences]
        return [text or [] for text in names] if any(names) else None

    @property
    def missed(self) -> dict[str, str]:
        """Modules whose attention was not recorded, and why."""
        self._settle()
        return self._missed

    @property
    def _own(self) -> list[Capture]:
        self._settle()
        return self._held

    def add(self, seen: Any) -> None:
        """Keep what a door has seen, of which `settling` makes a call when it is first looked at.

        With a budget it is made at once, since its size counts.
        """
        self._pending.append(seen)
        if self._spill.budget is not None:
            self._settle()

    def _settle(self) -> None:
        """Make calls of all that was seen; what an error such as Ctrl-C leaves is made later."""
        while self._pending:
            capture = self.settling(self._pending[0])
            if capture is not None:
                kept = self._spill.keep(capture)
                self._settled.append(kept)
                if has_part(kept, self._index, self._part):
                    self._held.append(kept)
            del self._pending[0]

    @property
    def _captures(self) -> list[Capture]:
        """All calls."""
        self._settle()
        return self._settled

    def know_patches(self, patches: list[Patches], seen: tuple[int, int] | None) -> None:
        """Keep how the model cuts images, and the height and width of those that it was given."""
        self._images.patches, self._images.seen = patches, seen

    def unsettled(self) -> list[Any]:
        """What was seen, and is no call yet, which is then kept here no longer."""
        pending, self._pending = self._pending, []
        return pending

    def insert(self, capture: Capture) -> None:
        """Add a call that was missed, in the order in which it ran."""
        self._captures.append(capture)
        self._captures.sort(key=lambda kept: kept.index)
        self._missed.pop(capture.name, None)

    def replace(self, capture: Capture, by: Capture) -> None:
        """Put another form of a call in its place."""
        place = next(at for at, kept in enumerate(self._captures) if kept is capture)
        self._captures[place] = by

    def taken(self) -> list[Capture]:
        """What was recorded since this was last asked, which is then kept here no longer."""
        captures = list(self._captures)
        for kept in (self._captures, self._held, self._calls):
            kept.clear()
        return captures

    def miss(self, name: str, error: Exception) -> None:
        """Note that attention of a module was not recorded, and warn once."""
        if name not in self._missed:
            self._missed[name] = reason = _reason(error)
            self.warn(f"attention of {name} was not recorded: {reason}")

    def warn(self, message: str) -> None:
        """Warn of what the user's own line has done, or of what its model did there."""
        with suppress(UserWarning):  # where warnings are errors, the model still goes on
            warnings.warn(message, stacklevel=_users_line())

    def save(self, path: str | Path) -> Path:
        """Write it as one file, which `heedful.load` opens; it appears whole or not at all.

        Raises:
            SaveError: a full disk, a directory that is missing or may not be written, or something
                there that is no recording.
            ArgumentError: what is no path.
        """
        file.save(self._captures, path_of(path), self._texts, self.missed, self._images)
        return path_of(path)

    @property
    def sequences(self) -> list[Sequence]:
        """A `Sequence` of calls for each text of the batch, without its padding.

        Windows and other parts of a text are `sequence.parts` and `call.parts`.
        """
        return Sequences(
            Sequence(self._captures, b, self._texts, self._images) for b in range(self._batch)
        )

    @property
    def _batch(self) -> int:
        return max((capture.own_texts.stop for capture in self._captures), default=0)

    def __repr__(self) -> str:
        calls, texts = len(self), self._batch
        of_texts = f"{texts} sequence{'' if texts == 1 else 's'}"
        return f"<Recording of {calls} call{'' if calls == 1 else 's'}, {of_texts}>"

    def stitched(self, sequence: int = 0) -> list[Call]:
        """A generation as one: for each layer, all tokens × all keys up to each.

        For any cache of transformers (dynamic, sliding, static) and for our own. Of an
        encoder–decoder also the cross-attention, all that was written × the source.

        Raises:
            RunError: no pass of self-attention was recorded.
            ArgumentError: no such sequence.
        """
        if self._batch:
            _ = self.sequences[whole("sequence", sequence, least=0)]
        of_text = Sequence(self._captures, sequence, self._texts, self._images)
        return [of_text._with_texts(call) for call in generation.stitched(self._captures, sequence)]

    def __reduce__(self) -> Any:
        raise RunError("a recording cannot be pickled", remedy="recording.save(path)")

    def verify(
        self, model: nn.Module, inputs: Any, *, progress: Tell = lambda share: None
    ) -> dict[str, int]:
        """Settle the layouts of calls by probing: change some texts and tokens, see what changes.

        Which rows of queries and keys change with a text are its rows; and those that change with a
        token at the inputs of the module that attends are that token's. In evaluation mode, without
        gradients; modes, buffers and random states of the model are put back. A call whose axes
        turn out to be others is arranged anew; what is not settled is "guessed", and says why. A
        sequence of a told call that changes with another text is refuted: its weights raise. Of
        several passes the first is probed. Where the model's kernel gave the log-sum-exp of the
        rows, every row of every pass is compared with it.

        Args:
            model: that was recorded.
            inputs: what it was given: a dictionary of keywords, a list of arguments, or a tensor.
            progress: is told of the share that is done, 0 to 1.

        Returns:
            how many calls have a layout that is now "told", "verified", "usual" and "guessed", and
            how many are refuted.

        Raises:
            ArgumentError: inputs that the model does not take, or with which it does something else
                than was recorded.
            RunError: nothing was recorded.
        """
        if not (self._captures or self.missed):
            raise nothing_recorded()
        self.probe(self, model, inputs, progress)
        for capture in self._captures:
            for text, part in product(capture.own_texts, range(capture.parts)):
                call_of(capture, text, part).compare_rows()
        self._hold(self._captures)  # calls may have turned out to be of another text
        counts = Counter(capture.layout.word for capture in self._captures)
        counts["refuted"] = sum(check.proof == "refuted" for _, check in self.certificate())
        return {word: counts[word] for word in (*LAYOUTS, "refuted") if counts[word]}

    def certificate(self) -> list[tuple[str, Check]]:
        """For each call, how far recomputed rows were from the model's own, and what is proved.

        It is refuted where some sequence of its batch is.
        """
        checks = []
        for capture in self._captures:
            word, why = proof_of(capture.check, next(iter(capture.against.values()), ""))
            layout, guess = capture.layout
            why = "; ".join(filter(None, (why, guess)))
            check = replace(capture.check, proof=word, layout=layout, why=why)
            checks.append((capture.name, check))
        return checks


def _reason(error: Exception) -> str:
    """An error in words; of a kind that nobody here raises on purpose, its name too."""
    words = " ".join(str(error).split())
    is_meant = isinstance(error, HeedfulError) or type(error) in (TypeError, LookupError)
    return words if is_meant and words else f"{words} ({type(error).__name__})".strip()


def _users_line() -> int:
    """The `stacklevel` of the line that a warning is about: the first outside these libraries."""
    frame, level = sys._getframe(1), 1
    libraries = ("heedful", "torch", "transformers", "contextlib")
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in libraries:
        frame, level = frame.f_back, level + 1
    return level


def _not_recorded(*given: Any) -> Any:
    raise RunError(
        "a recording from a file or of given maps, which cannot be verified",
        expected="one that heedful.record has made in this process",
        remedy="record the model again",
    )


def load(path: str | Path) -> Recording:
    """Open a recording that `save` wrote; its tensors are read when somebody asks for them.

    Raises:
        RunError: a file that is missing, damaged, of a newer version, or no recording.
        ArgumentError: what is no path.
    """
    captures, texts, missed, images = file.load(path_of(path))
    recording = Recording(captures, texts=texts, images=images)
    recording.missed.update(missed)
    return recording


def from_attentions(attentions: Iterable[Tensor]) -> Recording:
    """The maps that a model returned, as a recording, so that everything works on them too.

    Args:
        attentions: a map (B, H, N, M) for each layer, such as `output.attentions` of transformers;
            rows sum to one, to less where a sink takes the rest, or to zero where a query sees
            nothing.

    Raises:
        ArgumentError: tensors of another shape, weights below 0, rows that sum to more than one.

    >>> import torch
    >>> recording = from_attentions([torch.eye(3).expand(1, 2, 3, 3)])
    >>> recording[0].diagonal(0)
    tensor([1., 1.])
    """
    if not isinstance(attentions, Iterable):
        raise _no_map(attentions, "of all layers")
    captures = []
    for layer, map_ in enumerate(attentions):
        if not isinstance(map_, Tensor) or map_.ndim != 4:
            raise _no_map(map_, f"of layer {layer}")
        captures.append(capture_of_weights(map_, f"layer {layer}", layer, layer))
    return Recording(captures)


def _no_map(came: Any, of: str) -> ArgumentError:
    shape = f" {tuple(came.shape)}" if isinstance(came, Tensor) else ""
    return ArgumentError(
        f"attentions {of}: {type(came).__name__}{shape}",
        expected="for each layer a tensor (batch, heads, queries, keys)",
        cause="sdpa, which returns no weights, or a model without output_attentions=True",
    )
