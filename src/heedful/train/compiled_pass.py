"""The training pass, compiled by torch: fewer and larger operations, made at its first batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from heedful.errors import HeedfulError

if TYPE_CHECKING:
    import torch

Loss: TypeAlias = "Callable[[Any, Any, float], torch.Tensor]"  # model, batch, label smoothing


def compiled(loss: Loss) -> Loss:
    """A task's loss of a GPT as one compiled graph, and its gradient as another.

    A shape of batches is compiled when it is first met, for itself alone. The gradient of the token
    table is added up by several threads in an order that varies, so its last digits do too.

    Raises:
        HeedfulError: torch cannot compile it here, when it is called.
        ArgumentError: ids without a row of the table, which compiled code would not notice.
    """
    import torch
    from torch._dynamo.exc import TorchDynamoException

    from heedful.models.checks import check_ids

    run = torch.compile(loss, fullgraph=True, dynamic=False)

    def checked(model: Any, batch: Any, smoothing: float) -> torch.Tensor:
        check_ids(batch.inputs, model.config.vocabulary, model.config.context_length)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # advice to who writes the model
                return run(model, batch, smoothing)
        except TorchDynamoException as error:
            raise HeedfulError(
                f"torch cannot compile the training pass: {str(error).strip().splitlines()[0]}",
                remedy="go on with --resume --no-compile",
            ) from error

    return checked
