"""The training pass, compiled by torch: fewer and larger operations, made at its first batch."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from heedful.errors import ArgumentError, HeedfulError

if TYPE_CHECKING:
    import torch

Loss: TypeAlias = "Callable[[Any, Any, float], torch.Tensor]"  # model, batch, label smoothing


def check_compiler(kind: str) -> None:
    """Refuse to compile for a kind of model whose batches vary, or where there is no compiler.

    Args:
        kind: a key of `heedful.train.settings.CONFIGURATIONS`.

    Raises:
        ArgumentError: no GPT, no C++ compiler, no header of Python's.
    """
    if kind != "GPT":
        raise ArgumentError(
            f"--compile for a model of the kind {kind}",
            expected="a GPT",
            cause="its batches have other shapes at each step, and each would be compiled anew",
            remedy="leave it out",
        )
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    header = Path(sysconfig.get_path("include"), "Python.h")
    lacking = []
    if os.name != "nt" and shutil.which(compiler) is None:  # there torch looks for Microsoft's
        lacking.append(f"the C++ compiler {compiler}")
    if not header.is_file():
        lacking.append(f"{header}, which a package such as python3-dev brings")
    if lacking:
        raise ArgumentError(
            f"--compile without {' and '.join(lacking)}",
            remedy="install it, or train with --no-compile",
        )


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
