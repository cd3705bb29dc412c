"""Which notebook a kernel works for, as far as a kernel can know it."""

from __future__ import annotations

import importlib.util
import os
import sys

# Guesses, as no notebook says its name to its kernel: VS Code starts kernels with variables of its
# own process, and Colab's kernels have brought its package
VS_CODE = ("VSCODE_PID", "VSCODE_CWD")
COLAB = "google.colab"


def is_notebook() -> bool:
    """Whether this process is a kernel, and not a terminal or a script."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def has_widgets() -> bool:
    """Whether anywidget is installed."""
    return importlib.util.find_spec("anywidget") is not None


def fetches_widgets() -> bool:
    """Whether the notebook may fetch the widgets' front end from elsewhere; a guess, see above."""
    return COLAB in sys.modules or any(name in os.environ for name in VS_CODE)
