"""`heedful`: the group of commands, with their error messages and exit statuses.

Exit status: 0 success, 1 an error, reported in one line, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import reprlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

import heedful
from heedful.errors import ArgumentError, HeedfulError, printable, valid_unicode
from heedful.processes import LostProcessError, OtherProcessError
from heedful.torchrun import (
    await_termination,
    error_prefix,
    exit_at_once,
    is_distributed,
    is_reporter,
    record_error,
    started,
)

COMMANDS = {
    "demo": "Train a small GPT on the Python reference and show where its heads look.",
    "tokenize": "Show the tokens of a text with their ids.",
    "train": "Train a GPT or a BERT on text files, or an encoder–decoder on pairs.",
    "generate": "Continue a prompt with a trained model.",
    "plot": "Draw the attention maps of a model or a recording.",
    "translate": "Translate a text with an encoder–decoder trained on pairs.",
    "fill": "Predict the word at each [MASK] with a BERT.",
    "embed": "Compare words by their embedding vectors.",
    "export": "Write a model in Hugging Face format, with its tokenizer.",
    "record": "Record a model's attention on a text into a file.",
    "heads": "List all attention heads with their scores and kinds.",
    "ablate": "Take each attention head away, and measure by how much the model gets worse.",
    "describe": "Show a model's settings, parameters and shapes, and draw it.",
    "look": "Explore recordings, or a model's attention on a text, in a browser.",
    "explain": "Show each step of attention on a sentence, with all numbers.",
}
# Commands whose work torchrun's processes divide
SHARED = ("train", "heads --texts", "ablate --texts")


class Commands(click.Group):
    """A group that imports a command only when it runs, so that `--help` needs no torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order in which a new user needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import and return a command; None if there is no such command."""
        if name not in COMMANDS:
            return None
        return getattr(importlib.import_module(f"heedful.cli.{name}"), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `heedful demo`. Every command has --help, with examples. With --debug, "
    "errors show a traceback.",
)
@click.version_option(heedful.__version__, prog_name="heedful")
def heedful_command() -> None:
    """Train small transformers, and look inside the attention of any PyTorch model."""


class _Terminal:
    """Standard output as a terminal shows it: control characters in texts become visible signs."""

    def __init__(self, stream: Any) -> None:
        self.rich_proxied_file = stream  # rich writes here: its control characters are its own

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its status."""
    # OpenMP's threads spin while they wait. If another program needs a core, the spinning makes
    # training several times slower. Spinning less costs a fifth of the speed on an idle machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ["MPLBACKEND"] = "agg"  # the backend of a notebook may be missing in this process
    if isinstance(sys.stdout, io.TextIOWrapper):  # Windows' code pages lack many characters
        sys.stdout.reconfigure(errors="replace")
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if sys.stdout and sys.stdout.isatty():
        sys.stdout = _Terminal(sys.stdout)
    status = run(arguments)
    try:
        sys.stdout.flush()
    except OSError as error:  # otherwise Python prints a message of two lines when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not status and not isinstance(error, BrokenPipeError):
            status = _print_error(f"standard output cannot be written: {error.strerror}")
    if is_distributed():
        exit_at_once(status)
    sys.exit(status)


def _print_error(message: str, status: int = 1) -> int:
    """Print an error, unless standard error is closed; return the exit status."""
    with suppress(OSError):
        print(printable(f"heedful: {error_prefix()}{message}"), file=sys.stderr)
    return status


def _print_once(line: str, status: int) -> int:
    """Print a line in only one of torchrun's processes; return the exit status."""
    if is_reporter():
        with suppress(OSError):
            print(printable(line), file=sys.stderr)
    else:
        await_termination()
    return status


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status. --debug raises errors, except wrong usage."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    debug = "--debug" in arguments[:end]
    options = [argument for argument in arguments[:end] if argument != "--debug"]
    arguments = [*options, *arguments[end:]]
    command = next((word for word in arguments[:1] if word in COMMANDS), "")
    try:
        for argument in arguments:
            valid_unicode(argument)
        if command and not _is_shared(command, options):
            _check_single_process(command)
        status = heedful_command(arguments, prog_name="heedful", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        line = _usage_line(error, f"heedful {command}".strip())
        if is_reporter():
            record_error(error)
        return _print_once(line, error.exit_code)
    except click.ClickException as error:
        return _print_error(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _print_once("heedful: interrupted", 130)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OtherProcessError:
        await_termination()
        return 1
    except Exception as error:
        message = _error_line(error)
        if not isinstance(error, LostProcessError):
            record_error(error)
        if debug:
            raise
        return _print_error(message)
    return status if isinstance(status, int) else 0


def _is_shared(command: str, options: Sequence[str]) -> bool:
    """Return whether several processes may share the work of this command."""
    has_texts = any(option.partition("=")[0] == "--texts" for option in options)
    return command == "train" or (command in ("heads", "ablate") and has_texts)


def _check_single_process(command: str) -> None:
    """Raise an error if torchrun started several processes; only the first process reports it."""
    processes = started()
    if processes.is_single:
        return
    if not processes.is_first:
        raise OtherProcessError(f"heedful {command} is for one process")
    raise ArgumentError(
        f"heedful {command} in {processes.size:,} processes",
        expected="one process",
        cause=f"torchrun started them, and only {', '.join(SHARED)} divide their work",
        remedy="run the command without torchrun, or unset RANK and WORLD_SIZE",
    )


def _usage_line(error: click.UsageError, command: str) -> str:
    """Return click's message about wrong usage as one line, with the command that prints help."""
    path = error.ctx.command_path if error.ctx else command
    path = command if path == "heedful" else path  # errors of the parser name only the group
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{path}: {message}; see {path} --help"


def _error_line(error: Exception) -> str:
    if isinstance(error, HeedfulError):
        return str(error)
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"cannot use {reprlib.repr(str(error.filename))}: {error.strerror}"
    message = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, MemoryError) or re.search("allocate memory|out of memory", message):
        return f"not enough memory ({message}); reduce the model, the batch or the text"
    return f"unexpected {message}; --debug shows where; please report the error"
