"""Whether `torch.compile` can work on this machine: found out before any work, without torch."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from heedful.errors import ArgumentError


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
