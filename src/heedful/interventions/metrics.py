"""Metrics of `ablate`: functions of (output, inputs, unchanged_output); larger is worse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.errors import ArgumentError

ROWS = 64  # whose probabilities over all tokens are computed at once
IDS = ("decoder_input_ids", "target", "input_ids", "ids")  # arguments with the predicted tokens


def loss(output: Any, inputs: Mapping, unchanged: Any, *, last: int | None = None) -> Tensor:
    """Return the mean cross-entropy of the next token, in nats; of the `last` tokens only."""
    logits, ids = next_token_logits(output, inputs)
    begin = 1 if last is None else ids.shape[1] - last
    rows, next_ids = logits[:, begin - 1 : -1].flatten(0, 1), ids[:, begin:].flatten()
    parts = zip(rows.split(ROWS), next_ids.split(ROWS), strict=True)
    sums = [F.cross_entropy(part, right, reduction="sum") for part, right in parts]
    return torch.stack(sums).sum() / len(next_ids)


def logit_difference(
    output: Any, inputs: Mapping, unchanged: Any, *, right: int, wrong: int
) -> Tensor:
    """Return the logit of the token `wrong` minus that of `right`, after the last token."""
    logits = next_token_logits(output, inputs)[0][:, -1]
    return (logits[:, wrong] - logits[:, right]).mean()


def kl(output: Any, inputs: Mapping, unchanged: Any) -> Tensor:
    """Return the mean KL divergence from the new next-token distributions to the unchanged."""
    both = (next_token_logits(part, inputs)[0].flatten(0, 1) for part in (output, unchanged))
    new, old = (logits.log_softmax(dim=-1) for logits in both)
    return F.kl_div(new, old, reduction="batchmean", log_target=True)


def predictions(inputs: Mapping) -> float:
    """Return the number of tokens that a model predicts; 1 if the ids are unknown."""
    ids = next((inputs[name] for name in IDS if name in inputs), None)
    return 1.0 if ids is None else float(ids.numel() - len(ids)) or 1.0


def next_token_logits(output: Any, inputs: Mapping) -> tuple[Tensor, Tensor]:
    """Return the logits (B, N, V) in an output, and the ids (B, N) that the model has read."""
    logits = getattr(output, "logits", output)
    ids = next((inputs[name] for name in IDS if name in inputs), None)
    if "labels" in inputs and "decoder_input_ids" not in inputs:
        raise ArgumentError(
            "labels without decoder_input_ids", expected="the ids that the decoder reads"
        )
    if not isinstance(logits, Tensor) or ids is None or logits.shape[:-1] != ids.shape:
        raise no_logits(type(output).__name__)
    return logits.float(), ids


def no_logits(name: str) -> ArgumentError:
    """Return the error for a model that does not predict the next token."""
    return ArgumentError(
        f"{name} without logits of the next token",
        expected="a model that continues texts, for loss, kl and logit-difference",
        remedy="pass a function as metric (on the command line, --metric FILE.py:FUNCTION)",
    )
