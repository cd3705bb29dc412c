"""Training tasks: next-token prediction, masked words, and translation of pairs.

A task draws training batches, reads a split in order, and computes the loss. A batch is a
NamedTuple of tensors on the CPU; `train` and `validation` are the splits of the data, and
`context_length` is N.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError, TextError
from heedful.models import Bert, loss
from heedful.text import Pairs
from heedful.train.batches import ALL, BatchIndex, ordered_rows, shuffled_pieces, window_starts

# Masking as in BERT (Devlin et al. 2018)
TARGET_SHARE = 0.15  # share of a text's tokens to predict
MASKED, REPLACED = 0.8, 0.1  # shares of the targets replaced by [MASK], and by a random word
# Share of batches with texts shorter than the context. BERT's code uses 0.1 for a million
# steps; a run of a few thousand steps needs a larger share to learn words in short sentences.
SHORT_SHARE = 0.5
SPECIAL_TOKENS = 2  # special tokens around a text: [CLS] and [SEP]


class Windows(NamedTuple):
    """Windows of a text, and the next token of each position: (B, N) each."""

    inputs: Tensor
    targets: Tensor


class TextTask:
    """Base class of tasks on a text; all rows of a batch have equally many targets.

    Args:
        train, validation: ids (T,), such as memory maps.
        context_length: N, the length of a window.

    Raises:
        TextError: the training split has no more tokens than one context, or the validation split
            has a single token.
    """

    def __init__(self, train: np.ndarray, validation: np.ndarray, context_length: int) -> None:
        if len(train) <= context_length:
            shorter = f", or --context-length {len(train) // 4}" if len(train) >= 4 else ""
            raise TextError(
                f"{len(train):,} tokens to train on",
                expected=f"more than one context of {context_length:,}",
                cause="the text is too short",
                remedy=f"give more text{shorter}",
            )
        if len(validation) == 1:
            raise TextError(
                "1 token to validate on",
                expected="none, or at least 2",
                remedy="give more text, or --validation 0",
            )
        self.train, self.validation, self.context_length = train, validation, context_length

    def target_share(self, batch: int, index: BatchIndex, rows: slice) -> float:
        """Return the share of the batch's targets that are in the given rows."""
        return len(range(batch)[rows]) / batch


class NextToken(TextTask):
    """Prediction of the next token of a text; arguments and errors as in `TextTask`."""

    def draw(self, batch: int, index: BatchIndex, rows: slice = ALL) -> Windows:
        """Draw windows of the text, (B, N)."""
        N, random = self.context_length, np.random.default_rng(index.key)
        firsts = window_starts(index, batch, len(self.train) - 1, N, random)[rows]
        return _windows(np.asarray(self.train)[firsts[:, None] + np.arange(N + 1)])

    def in_order(self, data: np.ndarray, batch: int) -> Iterator[Windows]:
        """Yield windows without overlap; the first tokens of a window have little context."""
        sides = (ordered_rows(side, self.context_length, batch) for side in (data[:-1], data[1:]))
        for inputs, targets in zip(*sides, strict=True):
            yield _windows(np.column_stack([inputs, targets[:, -1]]))

    def target_count(self, batch: Windows) -> int:
        """Count all positions: each has a target."""
        return batch.targets.numel()

    def loss(self, model: nn.Module, batch: Windows, smoothing: float) -> Tensor:
        """Return the mean loss of all tokens; each is predicted from the tokens before it."""
        return loss(model(batch.inputs).logits, batch.targets, smoothing)


def _windows(ids: np.ndarray) -> Windows:
    """Split rows (B, N + 1) into inputs (B, N) and targets (B, N), which are one token later."""
    rows = torch.from_numpy(ids.astype(np.int64))
    return Windows(rows[:, :-1], rows[:, 1:])


class MaskedTexts(NamedTuple):
    """Texts with special tokens and masks, (B, N), and the tokens to predict.

    `is_target` (B, N) is True at the tokens to predict; `targets` (K,) are their ids, in order.
    """

    ids: Tensor
    is_target: Tensor
    targets: Tensor


class MaskedWords(TextTask):
    """Prediction of masked tokens from the tokens on both sides.

    Source: Devlin et al. 2018 (arXiv:1810.04805), section 3.1, task 1. Their task 2, next-sentence
    prediction, is omitted, as in Liu et al. 2019 (arXiv:1907.11692).

    Args:
        train, validation: ids (T,), such as memory maps.
        context_length: N, the maximum length of a piece of the text with its special tokens.
        special: special tokens by name: `cls`, `sep`, `mask` and any others. They are never the
            random word that replaces a target.
        vocabulary: V, the number of tokens.

    Raises:
        ArgumentError: the context leaves no room for a token between the special tokens.
        TextError: as in `TextTask`.
    """

    def __init__(
        self,
        train: np.ndarray,
        validation: np.ndarray,
        context_length: int,
        special: Mapping[str, int],
        vocabulary: int,
    ) -> None:
        if context_length <= SPECIAL_TOKENS:
            raise ArgumentError(
                f"a context of {context_length:,}",
                expected=f"more than {SPECIAL_TOKENS} tokens",
                cause="[CLS] and [SEP] are put around each piece of a text",
            )
        super().__init__(train, validation, context_length)
        self.special, self.length = special, context_length - SPECIAL_TOKENS
        self.words = np.setdiff1d(np.arange(vocabulary), list(special.values()))

    def draw(self, batch: int, index: BatchIndex, rows: slice = ALL) -> MaskedTexts:
        """Draw pieces of the text with random masks; all pieces of a batch have equal length."""
        random = np.random.default_rng(index.key)
        is_short = random.random() < SHORT_SHARE
        length = int(random.integers(1, self.length + 1)) if is_short else self.length
        # an epoch consists of pieces of fixed length; a short batch reads only their beginnings
        piece_length = length if index.first is None else self.length
        firsts = window_starts(index, batch, len(self.train), piece_length, random)
        texts = np.asarray(self.train)[firsts[rows][:, None] + np.arange(length)]
        return self._masked(texts, random.random((batch, 3, length))[rows])

    def in_order(self, data: np.ndarray, batch: int) -> Iterator[MaskedTexts]:
        """Yield pieces without overlap; the masks are the same for every batch size."""
        random = np.random.default_rng(0)
        for texts in ordered_rows(data, self.length, batch):
            yield self._masked(texts, random.random((len(texts), 3, texts.shape[1])))

    def target_count(self, batch: MaskedTexts) -> int:
        """Count the tokens to predict."""
        return len(batch.targets)

    def loss(self, model: nn.Module, batch: MaskedTexts, smoothing: float) -> Tensor:
        """Return the mean loss of the target tokens, predicted from the masked text."""
        bert = cast(Bert, model)
        states = bert.hidden_states(batch.ids)
        # only at the targets, because a row of logits is as wide as the vocabulary
        logits = bert.head(states[-1][batch.is_target])  # type: ignore[misc]
        return loss(logits, batch.targets, smoothing)

    def _masked(self, texts: np.ndarray, random: np.ndarray) -> MaskedTexts:
        """Mask tokens in each text (B, n), and add special tokens: the result is (B, n + 2).

        Each text has the same number of targets, at least one. `random` (B, 3, n) has uniform
        random numbers, drawn for one text after another. So `in_order` masks a text in the same way
        for every batch size.
        """
        size = texts.shape[1]
        count = max(1, round(TARGET_SHARE * size))
        target_draws, mask_draws, word_draws = random.swapaxes(0, 1)
        is_target = target_draws.argsort(1) < count
        random_words = self.words[(word_draws * len(self.words)).astype(np.int64)]
        ids = np.full((len(texts), size + SPECIAL_TOKENS), self.special["sep"])
        ids[:, 0] = self.special["cls"]
        ids[:, 1:-1] = np.select(
            [~is_target, mask_draws < MASKED, mask_draws < MASKED + REPLACED],
            [texts, self.special["mask"], random_words],
            texts,
        )
        return MaskedTexts(
            torch.from_numpy(ids),
            torch.from_numpy(np.pad(is_target, ((0, 0), (1, 1)))),
            torch.from_numpy(texts[is_target].astype(np.int64)),
        )


class PaddedPairs(NamedTuple):
    """Sources (B, M), and the decoder's inputs and targets (B, N), padded to equal lengths.

    `source_keep` (B, M) and `target_keep` (B, N) are False at padding.
    """

    source: Tensor
    inputs: Tensor
    targets: Tensor
    source_keep: Tensor
    target_keep: Tensor


class Translating:
    """Prediction of each target, token by token, from its source.

    Args:
        train, validation: pairs (source, target) of ids; source and target end with the end token.
        context_length: the maximum length of a source or a target.
        begin: the id of the begin token, which the decoder reads before a target.

    Raises:
        TextError: the training split has no pair.
    """

    def __init__(self, train: Pairs, validation: Pairs, context_length: int, begin: int) -> None:
        if not len(train):
            raise TextError(
                "no pair to train on",
                expected="at least one",
                cause="the file is too short",
                remedy="give more pairs, or --validation 0",
            )
        self.train, self.validation = train, validation
        self.context_length, self.begin = context_length, begin

    def draw(self, batch: int, index: BatchIndex, rows: slice = ALL) -> PaddedPairs:
        """Draw pairs of the training split."""
        return self._padded([self.train[i] for i in self._pairs(batch, index)[rows]])

    def target_share(self, batch: int, index: BatchIndex, rows: slice) -> float:
        """Return the share of the batch's target tokens that are in the given rows."""
        lengths = [len(self.train[i][1]) for i in self._pairs(batch, index)]
        return sum(lengths[rows]) / sum(lengths)

    def _pairs(self, batch: int, index: BatchIndex) -> list[int]:
        if index.first is None:
            return np.random.default_rng(index.key).integers(0, len(self.train), batch).tolist()
        return [pair for _, pair in shuffled_pieces(index, batch, len(self.train))]

    def in_order(self, data: Pairs, batch: int) -> Iterator[PaddedPairs]:
        """Yield all pairs in order."""
        for start in range(0, len(data), batch):
            yield self._padded([data[i] for i in range(len(data))[start : start + batch]])

    def target_count(self, batch: PaddedPairs) -> int:
        """Count the tokens of the targets, including end tokens."""
        return int(batch.target_keep.sum())

    def loss(self, model: nn.Module, batch: PaddedPairs, smoothing: float) -> Tensor:
        """Return the mean loss of targets, each predicted from source and previous tokens."""
        keep = batch.target_keep
        output = model(batch.source, batch.inputs, source_keep=batch.source_keep, target_keep=keep)
        return loss(output.logits[keep], batch.targets[keep], smoothing)

    def _padded(self, pairs: list[tuple[np.ndarray, np.ndarray]]) -> PaddedPairs:
        source, source_keep = padded([source for source, _ in pairs])
        targets, target_keep = padded([target for _, target in pairs])
        inputs = targets.roll(1, dims=1)
        inputs[:, 0] = self.begin
        return PaddedPairs(source, inputs, targets, source_keep, target_keep)


Task: TypeAlias = NextToken | MaskedWords | Translating


def padded(rows: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Pad rows of ids to equal length, (B, N); also return a mask (B, N), True at real tokens.

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
