"""What a model is trained on: text to continue, its hidden words, or pairs of texts.

A task draws batches, each a function of a key, reads a whole split, and knows the loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError, TextError
from heedful.models import Bert, loss
from heedful.text import Pairs
from heedful.train.batches import ALL, Which, parts, shuffled, starts

# Of BERT (Devlin et al. 2018), whose share of gaps these are
ASKED = 0.15  # the share of a text's tokens that are asked for
MASKED, SWAPPED = 0.8, 0.1  # of these become [MASK], and another word; the others stay
# The share of batches whose texts are shorter than the context. The paper's tenth is enough for
# its million steps; whoever trains for a thousand, and then asks about a sentence, needs more.
SHORT = 0.5
FRAME = 2  # [CLS] and [SEP]


class Task(ABC):
    """What a model is trained on; a batch is a NamedTuple of tensors, on the CPU.

    `train` and `validation` are its data, split; `context_length` is N.
    """

    train: Any
    validation: Any
    context_length: int

    @abstractmethod
    def draw(self, batch: int, which: Which, rows: slice = ALL) -> Any:
        """A batch of `batch` sequences of the training split, or rows of it, in their order."""

    def share(self, batch: int, which: Which, rows: slice) -> float:
        """The share of the targets of that batch in those rows."""
        return len(range(batch)[rows]) / batch

    @abstractmethod
    def every(self, data: Any, batch: int) -> Iterator[Any]:
        """All of some data, in order, in batches."""

    @abstractmethod
    def targets(self, batch: Any) -> int:
        """How many ids a batch asks for; its loss is the mean over them."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, smoothing: float) -> Tensor:
        """Mean cross-entropy of the batch's targets, in nats per token."""


class Windows(NamedTuple):
    """Parts of a text, and the same one token later, (B, N) each."""

    inputs: Tensor
    targets: Tensor


class NextToken(Task):
    """The next token of a text.

    Args:
        train, validation: ids (T,), memory maps.
        context_length: N, tokens of a window.

    Raises:
        TextError: fewer tokens than one window.
    """

    def __init__(self, train: np.ndarray, validation: np.ndarray, context_length: int) -> None:
        check_length(train, validation, context_length)
        self.train, self.validation, self.context_length = train, validation, context_length

    def draw(self, batch: int, which: Which, rows: slice = ALL) -> Windows:
        """Windows of the text, (B, N), or some of their rows."""
        N, random = self.context_length, np.random.default_rng(which.key)
        firsts = starts(which, batch, len(self.train) - 1, N, random)[rows]
        return _windows(np.asarray(self.train)[firsts[:, None] + np.arange(N + 1)])

    def every(self, data: np.ndarray, batch: int) -> Iterator[Windows]:
        """Windows that do not overlap, so the first tokens of each have little to go by."""
        sides = (parts(side, self.context_length, batch) for side in (data[:-1], data[1:]))
        for inputs, targets in zip(*sides, strict=True):
            yield _windows(np.column_stack([inputs, targets[:, -1]]))

    def targets(self, batch: Windows) -> int:
        """All of a window's tokens."""
        return batch.targets.numel()

    def loss(self, model: nn.Module, batch: Windows, smoothing: float) -> Tensor:
        """Of each token after those before it."""
        return loss(model(batch.inputs).logits, batch.targets, smoothing)


def _windows(ids: np.ndarray) -> Windows:
    """All of each row (B, N + 1) but its last token, and all but its first."""
    rows = torch.from_numpy(ids.astype(np.int64))
    return Windows(rows[:, :-1], rows[:, 1:])


class Gaps(NamedTuple):
    """Framed texts (B, N) with some tokens hidden.

    `places` (B, N) is True where a token is asked for, `words` (K,) are those tokens, in order.
    """

    ids: Tensor
    places: Tensor
    words: Tensor


class MaskedWords(Task):
    """The hidden tokens of a text, guessed from both sides.

    Source: Devlin et al. 2018 (arXiv:1810.04805), section 3.1, task 1. Their task 2, whether a text
    follows another, is left out, as in Liu et al. 2019 (arXiv:1907.11692).

    Args:
        train, validation: ids (T,), memory maps.
        context_length: N, tokens of a part of the text with its frame.
        special: the ids of `cls`, `sep` and `mask`, and others that are no words.
        vocabulary: V, the tokens that there are.

    Raises:
        ArgumentError: a context without room for a token in its frame.
        TextError: fewer tokens than one context.
    """

    def __init__(
        self,
        train: np.ndarray,
        validation: np.ndarray,
        context_length: int,
        special: Mapping[str, int],
        vocabulary: int,
    ) -> None:
        if context_length <= FRAME:
            raise ArgumentError(
                f"a context of {context_length:,}",
                expected=f"more than {FRAME}",
                cause="[CLS] and [SEP] stand around each part of a text",
            )
        check_length(train, validation, context_length)
        self.train, self.validation, self.context_length = train, validation, context_length
        self.special, self.length = special, context_length - FRAME
        self.words = np.setdiff1d(np.arange(vocabulary), list(special.values()))

    def draw(self, batch: int, which: Which, rows: slice = ALL) -> Gaps:
        """Parts of the text, with random gaps; as long as each other, mostly the longest."""
        random = np.random.default_rng(which.key)
        is_short = random.random() < SHORT
        length = int(random.integers(1, self.length + 1)) if is_short else self.length
        least = length if which.first is None else self.length  # a pass is cut in one way
        firsts = starts(which, batch, len(self.train), least, random)
        texts = np.asarray(self.train)[firsts[rows][:, None] + np.arange(length)]
        return self._with_gaps(texts, random.random((batch, 3, length))[rows])

    def every(self, data: np.ndarray, batch: int) -> Iterator[Gaps]:
        """Parts that do not overlap, the last shorter; the same gaps always, in any batches."""
        random = np.random.default_rng(0)
        for texts in parts(data, self.length, batch):
            yield self._with_gaps(texts, random.random((len(texts), 3, texts.shape[1])))

    def targets(self, batch: Gaps) -> int:
        """The tokens behind the gaps."""
        return len(batch.words)

    def loss(self, model: nn.Module, batch: Gaps, smoothing: float) -> Tensor:
        """Of the tokens that are asked for, given all the others."""
        bert = cast(Bert, model)
        states = bert.hidden_states(batch.ids)
        # the head is computed for the gaps alone: it is as wide as the vocabulary
        logits = bert.head(states[-1][batch.places])  # type: ignore[misc]
        return loss(logits, batch.words, smoothing)

    def _with_gaps(self, texts: np.ndarray, drawn: np.ndarray) -> Gaps:
        """The same number of gaps in each text (B, n), one at least; framed, (B, n + 2).

        What is drawn for a text stands together, (B, 3, n), so that its gaps are the same in any
        batch.
        """
        size = texts.shape[1]
        asked = max(1, round(ASKED * size))
        order, fate, other = drawn.swapaxes(0, 1)
        places = order.argsort(1) < asked
        others = self.words[(other * len(self.words)).astype(np.int64)]
        shown = np.full((len(texts), size + FRAME), self.special["sep"])
        shown[:, 0] = self.special["cls"]
        shown[:, 1:-1] = np.select(
            [~places, fate < MASKED, fate < MASKED + SWAPPED],
            [texts, self.special["mask"], others],
            texts,
        )
        return Gaps(
            torch.from_numpy(shown),
            torch.from_numpy(np.pad(places, ((0, 0), (1, 1)))),
            torch.from_numpy(texts[places].astype(np.int64)),
        )


class PaddedPairs(NamedTuple):
    """Sources (B, M), targets so far and the same one token later (B, N); keep is False at padding.

    `source_keep` is (B, M); `target_keep`, of both targets, (B, N).
    """

    source: Tensor
    inputs: Tensor
    targets: Tensor
    source_keep: Tensor
    target_keep: Tensor


class Translating(Task):
    """Each target, token after token, from its source.

    Args:
        train, validation: pairs of ids, each side closed by the end.
        context_length: the most tokens of a side.
        begin: the id from which a target starts.

    Raises:
        TextError: no pair to train on.
    """

    def __init__(self, train: Pairs, validation: Pairs, context_length: int, begin: int) -> None:
        if not len(train):
            raise TextError(
                "no pair to train on",
                expected="at least one",
                cause="a file that is too short",
                remedy="give more pairs, or --validation 0",
            )
        self.train, self.validation = train, validation
        self.context_length, self.begin = context_length, begin

    def draw(self, batch: int, which: Which, rows: slice = ALL) -> PaddedPairs:
        """Some of the pairs."""
        return self._padded([self.train[i] for i in self._chosen(batch, which)[rows]])

    def share(self, batch: int, which: Which, rows: slice) -> float:
        """By the lengths of the targets."""
        lengths = [len(self.train[i][1]) for i in self._chosen(batch, which)]
        return sum(lengths[rows]) / sum(lengths)

    def _chosen(self, batch: int, which: Which) -> list[int]:
        if which.first is None:
            return np.random.default_rng(which.key).integers(0, len(self.train), batch).tolist()
        return [pair for _, pair in shuffled(which, batch, len(self.train))]

    def every(self, data: Pairs, batch: int) -> Iterator[PaddedPairs]:
        """All pairs in order."""
        for start in range(0, len(data), batch):
            stop = min(start + batch, len(data))
            yield self._padded([data[i] for i in range(start, stop)])

    def targets(self, batch: PaddedPairs) -> int:
        """All tokens of the targets, their ends with them."""
        return int(batch.target_keep.sum())

    def loss(self, model: nn.Module, batch: PaddedPairs, smoothing: float) -> Tensor:
        """Of each token of a target after the source and those before it; not of padding."""
        keep = batch.target_keep
        output = model(batch.source, batch.inputs, source_keep=batch.source_keep, target_keep=keep)
        return loss(output.logits[keep], batch.targets[keep], smoothing)

    def _padded(self, pairs: list[tuple[np.ndarray, np.ndarray]]) -> PaddedPairs:
        source, source_keep = padded([source for source, _ in pairs])
        targets, target_keep = padded([target for _, target in pairs])
        inputs = targets.roll(1, dims=1)
        inputs[:, 0] = self.begin
        return PaddedPairs(source, inputs, targets, source_keep, target_keep)


def padded(rows: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Ids of unequal lengths as one tensor (B, N), and where they are real (B, N).

    >>> padded([np.array([5, 6]), np.array([7])])
    (tensor([[5, 6],
            [7, 0]]), tensor([[ True,  True],
            [ True, False]]))
    """
    lengths = torch.tensor([len(row) for row in rows])
    keep = torch.arange(int(lengths.max())) < lengths[:, None]
    ids = torch.zeros(keep.shape, dtype=torch.int64)
    ids[keep] = torch.from_numpy(np.concatenate(rows).astype(np.int64))
    return ids, keep


def check_length(train: np.ndarray, validation: np.ndarray, context_length: int) -> None:
    """Refuse a text that has not one window to train on, or one pair to validate on."""
    if len(train) <= context_length:
        raise TextError(
            f"{len(train):,} tokens to train on",
            expected=f"more than one context of {context_length:,}",
            cause="a text that is too short",
            remedy="give more text"
            + (f", or --context-length {len(train) // 4}" if len(train) >= 4 else ""),
        )
    if len(validation) == 1:
        raise TextError(
            "1 token to validate on",
            expected="none, or at least 2",
            remedy="give more text, or --validation 0",
        )
