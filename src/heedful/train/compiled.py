"""The training pass, compiled by torch: fewer and larger operations, made at its first batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.models.checks import check_ids

Loss: TypeAlias = Callable[[Any, Any, float], Tensor]  # of a model, a batch, and label smoothing


def compiled(loss: Loss) -> Loss:
    """A task's loss of a GPT as one compiled graph, and its gradient as another.

    A shape of batches is compiled when it is first met, always for itself alone, so that a run that
    goes on has the same kernels as one that never stopped.

    Raises:
        HeedfulError: torch cannot compile it here, when it is called.
        ArgumentError: ids without a row of the table, which compiled code would not notice.
    """
    from torch._dynamo.exc import TorchDynamoException  # a second, for who compiles only

    run = torch.compile(loss, fullgraph=True, dynamic=False, backend=_inductor)
    met: set[torch.Size] = set()

    def first(*given: Any) -> Tensor:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # advice to who writes the model
                return run(*given)
        except TorchDynamoException as error:
            raise HeedfulError(
                f"torch cannot compile the training pass: {str(error).strip().splitlines()[0]}",
                remedy="go on with --resume --no-compile",
            ) from error

    def checked(model: Any, batch: Any, smoothing: float) -> Tensor:
        check_ids(batch.inputs, model.config.vocabulary, model.config.context_length)
        if batch.inputs.shape in met:
            return run(model, batch, smoothing)
        loss = first(model, batch, smoothing)
        met.add(batch.inputs.shape)
        return loss

    return checked


def _inductor(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """torch's compiler, with the gradient of a table of embeddings left to torch.

    The compiler's own adds to a row from several threads at once, in an order that is another one
    each time.
    """
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.lowering import lowerings, make_fallback, require_contiguous

    gathered = torch.ops.aten.embedding_dense_backward.default
    parts = dict(select_decomp_table())
    parts.pop(gathered)
    if gathered not in lowerings:
        # Said outright: what torch finds out by itself it refuses where CI is set, as on a server
        # that runs tests
        make_fallback(gathered, require_contiguous, override_decomp=True)
    return compile_fx(graph, inputs, decompositions=parts)
