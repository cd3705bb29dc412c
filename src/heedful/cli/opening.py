"""Opening a run directory: its model on a device, and its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, cast

import torch

from heedful.errors import TextError
from heedful.models import GPT, load_model
from heedful.text import Tokenizer, load_tokenizer
from heedful.train import choose_device


class Run(NamedTuple):
    """A trained model with its tokenizer."""

    model: GPT
    tokenizer: Tokenizer

    def ids(self, text: str) -> torch.Tensor:
        """The ids of a text as a batch of one, (1, N), on the model's device."""
        ids = self.tokenizer.encode(text)
        if not ids:
            raise TextError("an empty text", expected="at least one token")
        return torch.tensor([ids], device=next(self.model.parameters()).device)


def open_run(directory: Path, checkpoint: str = "best", device: str = "auto") -> Run:
    """The model and tokenizer of a run directory."""
    model = load_model(directory, checkpoint=checkpoint).to(choose_device(device))
    return Run(cast(GPT, model), load_tokenizer(directory))
