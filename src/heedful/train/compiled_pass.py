"""Compilation of a task's loss and its gradient by `torch.compile`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from heedful.errors import HeedfulError

if TYPE_CHECKING:
    import torch

Loss: TypeAlias = "Callable[[Any, Any, float], torch.Tensor]"  # arguments: model, batch, smoothing


def compile_loss(loss: Loss) -> Loss:
    """Compile a task's loss of a GPT into one graph, and its gradient into another.

    The first batch of each shape starts a compilation. With several threads, the last digits of the
    token table's gradient vary from run to run, because the order of summation varies.

    The returned function raises:
        HeedfulError: if torch cannot compile the loss on this machine.
        ArgumentError: if the batch is longer than the context, or, on a CPU, an id is outside the
            vocabulary. Compiled code itself does not check ids.
    """
    import torch
    from torch._dynamo.exc import TorchDynamoException

    from heedful.models.checks import check_ids

    compiled_loss = torch.compile(loss, fullgraph=True, dynamic=False)

    def checked_loss(model: Any, batch: Any, smoothing: float) -> torch.Tensor:
        check_ids(batch.inputs, model.config.vocabulary, model.config.context_length)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings for the author of the model
                return compiled_loss(model, batch, smoothing)
        except TorchDynamoException as error:
            raise HeedfulError(
                f"torch cannot compile the training pass: {str(error).strip().splitlines()[0]}",
                remedy="continue with --resume --no-compile",
            ) from error

    return checked_loss
