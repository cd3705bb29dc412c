"""The training pass compiled by torch, at the first batch, into fewer and larger operations."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from heedful.errors import HeedfulError

if TYPE_CHECKING:
    import torch

Loss: TypeAlias = "Callable[[Any, Any, float], torch.Tensor]"  # model, batch, label smoothing


def compiled(loss: Loss) -> Loss:
    """Compile a task's loss of a GPT into one graph, and its gradient into another.

    Each batch shape is compiled separately, when it first occurs. Several threads sum the gradient
    of the token table in a varying order, so its last digits vary too.

    Raises:
        HeedfulError: at the first call, torch cannot compile the pass on this machine.
        ArgumentError: at a call, an id outside the vocabulary, which compiled code does not check.
    """
    import torch
    from torch._dynamo.exc import TorchDynamoException

    from heedful.models.checks import check_ids

    run = torch.compile(loss, fullgraph=True, dynamic=False)

    def checked(model: Any, batch: Any, smoothing: float) -> torch.Tensor:
        check_ids(batch.inputs, model.config.vocabulary, model.config.context_length)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # advice for the author of the model
                return run(model, batch, smoothing)
        except TorchDynamoException as error:
            raise HeedfulError(
                f"torch cannot compile the training pass: {str(error).strip().splitlines()[0]}",
                remedy="continue with --resume --no-compile",
            ) from error

    return checked
