"""What a BERT is trained on: words of a text that are hidden, guessed from both sides.

Source: Devlin et al. 2018 (arXiv:1810.04805), section 3.1, task 1. Their task 2, whether a text
follows another, is left out, as in Liu et al. 2019 (arXiv:1907.11692).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.models import Bert, loss
from heedful.train.batches import ALL, Which, starts
from heedful.train.tasks import check_length

ASKED = 0.15  # the share of a text's tokens that are asked for
MASKED, SWAPPED = 0.8, 0.1  # of these become [MASK], and another word; the others stay
# The share of batches whose texts are shorter than the context. The paper's tenth is enough for
# its million steps; whoever trains for a thousand, and then asks about a sentence, needs more.
SHORT = 0.5
FRAME = 2  # [CLS] and [SEP]


class Gaps(NamedTuple):
    """Framed texts (B, N) with some tokens hidden.

    `places` (B, N) is True where a token is asked for, `words` (K,) are those tokens, in order.
    """

    ids: Tensor
    places: Tensor
    words: Tensor


class MaskedWords:
    """The hidden tokens of a text.

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
        random = which.random()
        is_short = random.random() < SHORT
        length = int(random.integers(1, self.length + 1)) if is_short else self.length
        least = length if which.first is None else self.length  # a pass is cut in one way
        firsts = starts(which, batch, len(self.train), least, random)
        texts = np.asarray(self.train)[firsts[rows][:, None] + np.arange(length)]
        return self._with_gaps(texts, random.random((batch, 3, length))[rows])

    def share(self, batch: int, which: Which, rows: slice) -> float:
        """As many gaps in each text."""
        return len(range(batch)[rows]) / batch

    def every(self, data: np.ndarray, batch: int) -> Iterator[Gaps]:
        """Parts that do not overlap, the last shorter; the same gaps always, in any batches."""
        random = np.random.default_rng(0)
        for start in range(0, len(data), batch * self.length):
            part = data[start : start + batch * self.length]
            whole = len(part) // self.length * self.length
            if whole:
                texts = part[:whole].reshape(-1, self.length)
                yield self._with_gaps(texts, random.random((len(texts), 3, self.length)))
            if whole < len(part):
                yield self._with_gaps(part[None, whole:], random.random((1, 3, len(part) - whole)))

    def asked(self, batch: Gaps) -> Tensor:
        """The tokens behind the gaps."""
        return batch.words

    def targets(self, batch: Gaps) -> int:
        """How many they are."""
        return len(batch.words)

    def loss(self, model: nn.Module, batch: Gaps, smoothing: float) -> Tensor:
        """Of the tokens that are asked for, given all the others."""
        bert = cast(Bert, model)
        states = bert.hidden_states(batch.ids)
        # the head is made for the gaps alone: it is as wide as the vocabulary
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
