"""What a model is trained on: text to continue, or pairs to turn one side into the other.

The third, a text's hidden words, is in `masked_words`. A task draws batches, each a function of a
key, reads a whole split, and knows the loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from heedful.errors import TextError
from heedful.models import loss
from heedful.text import Pairs
from heedful.train.batches import ALL, Which, draw, every_window, shuffled


class Task(Protocol):
    """What the training loop asks of a task; a batch is a NamedTuple of tensors, on the CPU.

    `train` and `validation` are its data, split.
    """

    train: Any
    validation: Any
    context_length: int

    def draw(self, batch: int, which: Which, rows: slice = ALL) -> Any:
        """A batch of `batch` sequences of the training split, which it is; or rows of it, in the
        order they have there.
        """

    def share(self, batch: int, which: Which, rows: slice) -> float:
        """What share of the targets of that batch is in those rows."""

    def every(self, data: Any, batch: int) -> Iterator[Any]:
        """All of some data, in order, in batches."""

    def asked(self, batch: Any) -> Tensor:
        """The ids of the tokens that a batch asks for, (T,); its loss is the mean over them."""

    def targets(self, batch: Any) -> int:
        """How many they are."""

    def loss(self, model: nn.Module, batch: Any, smoothing: float) -> Tensor:
        """Mean cross-entropy, in nats per token, of the batch's targets."""


class Windows(NamedTuple):
    """Parts of a text, and the same one token later, (B, N) each."""

    inputs: Tensor
    targets: Tensor


class NextToken:
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
        """Windows of the text."""
        return Windows(*draw(self.train, self.context_length, batch, which, rows))

    def share(self, batch: int, which: Which, rows: slice) -> float:
        """As many targets in each window."""
        return len(range(batch)[rows]) / batch

    def every(self, data: np.ndarray, batch: int) -> Iterator[Windows]:
        """Windows that do not overlap, so the first tokens of each have little to go by."""
        return (Windows(*ids) for ids in every_window(data, self.context_length, batch))

    def asked(self, batch: Windows) -> Tensor:
        """All of a window's tokens."""
        return batch.targets.flatten()

    def targets(self, batch: Windows) -> int:
        """How many they are."""
        return batch.targets.numel()

    def loss(self, model: nn.Module, batch: Windows, smoothing: float) -> Tensor:
        """Of each token after those before it."""
        return loss(model(batch.inputs).logits, batch.targets, smoothing)


class PaddedPairs(NamedTuple):
    """Sources (B, M), targets so far and the same one token later (B, N); keep is False at padding.

    `source_keep` is (B, M); `target_keep`, of both targets, (B, N).
    """

    source: Tensor
    inputs: Tensor
    targets: Tensor
    source_keep: Tensor
    target_keep: Tensor


class Translating:
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
        self.train, self.validation, self.context_length, self.begin = (
            train,
            validation,
            context_length,
            begin,
        )

    def draw(self, batch: int, which: Which, rows: slice = ALL) -> PaddedPairs:
        """Some of the pairs."""
        return self._padded([self.train[i] for i in self._chosen(batch, which)[rows]])

    def share(self, batch: int, which: Which, rows: slice) -> float:
        """By the lengths of the targets."""
        lengths = [len(self.train[i][1]) for i in self._chosen(batch, which)]
        return sum(lengths[rows]) / sum(lengths)

    def _chosen(self, batch: int, which: Which) -> list[int]:
        if which.first is None:
            return which.random().integers(0, len(self.train), batch).tolist()
        return [pair for _, pair in shuffled(which, batch, len(self.train))]

    def every(self, data: Pairs, batch: int) -> Iterator[PaddedPairs]:
        """All pairs in order."""
        for start in range(0, len(data), batch):
            stop = min(start + batch, len(data))
            yield self._padded([data[i] for i in range(start, stop)])

    def asked(self, batch: PaddedPairs) -> Tensor:
        """All tokens of the targets, their ends with them."""
        return batch.targets[batch.target_keep]

    def targets(self, batch: PaddedPairs) -> int:
        """How many they are."""
        return int(batch.target_keep.sum())

    def loss(self, model: nn.Module, batch: PaddedPairs, smoothing: float) -> Tensor:
        """Of each token of a target after the source and those before it; not of padding."""
        output = model(
            batch.source,
            batch.inputs,
            source_keep=batch.source_keep,
            target_keep=batch.target_keep,
        )
        keep = batch.target_keep
        return loss(output.logits[keep], batch.targets[keep], smoothing)

    def _padded(self, pairs: list[tuple[np.ndarray, np.ndarray]]) -> PaddedPairs:
        source, source_keep = padded([source for source, _ in pairs])
        targets, target_keep = padded([target for _, target in pairs])
        inputs = targets.roll(1, dims=1)
        inputs[:, 0] = self.begin
        return PaddedPairs(source, inputs, targets, source_keep, target_keep)


def unigram_entropy(task: Task, tokens: int = 1 << 18) -> float:
    """The entropy of a task's targets, in nats per token, over about so many of them.

    It is the loss of a model that gives each token its share of the text, whatever stands before
    it. A model that was better than that and is no more has lost what it had learned.
    """
    batch = task.draw(max(1, tokens // task.context_length), Which((0,)))
    counts = np.bincount(task.asked(batch).numpy(), minlength=1)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


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
