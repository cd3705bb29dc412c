"""`heedful`: the group of commands, and how errors end.

Exit status 0 done, 1 a clear error in one line, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

import heedful
from heedful.errors import ArgumentError, HeedfulError
from heedful.processes import EndedElsewhereError, LostError
from heedful.torchrun import (
    has_others,
    leave,
    leave_it_to_another,
    record,
    speaker,
    speaks,
    started,
)

COMMANDS = {
    "demo": "Train a small GPT on the Python reference, and see where it looks.",
    "tokenize": "Show the pieces and ids of a text.",
    "train": "Train a GPT or a BERT on your own text, or an encoder–decoder on pairs.",
    "generate": "Continue a prompt with a trained model.",
    "plot": "Draw where a trained model's heads look.",
    "translate": "Turn a text into another with a model trained on pairs.",
    "fill": "Guess the words behind each [MASK] with a BERT.",
    "embed": "How alike words are, by their vectors.",
    "export": "Write a model for transformers, tokenizer included.",
    "record": "Keep what a model attends to on a text, in one file.",
    "heads": "List every head with its scores and its kind.",
    "describe": "Show what a model is made of, and draw it.",
    "look": "Look at recordings, or at a model's attention on a text, in a browser.",
    "explain": "Show every step of attention on a sentence, with its numbers.",
}
SHARED = ("train", "heads --texts")  # whose work is shared out among the processes of torchrun


class Commands(click.Group):
    """A group whose commands are imported when they are called: `--help` needs no torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which a new user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of a name."""
        if name not in COMMANDS:
            return None
        return getattr(importlib.import_module(f"heedful.cli.{name}"), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The one-line table of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `heedful demo`. Each command has --help, with an example; with --debug, an "
    "error shows its traceback.",
)
@click.version_option(heedful.__version__, prog_name="heedful")
def heedful_command() -> None:
    """Attention from first principles: train with it, and see what a model attends to."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command, and end the process as the house rules say."""
    # OpenMP's threads spin while they wait. Where another program wants a core, as on most
    # machines, that makes training several times slower; spinning less costs a fifth elsewhere.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    status = run(arguments)
    try:
        sys.stdout.flush()
    except OSError as error:  # or Python would say so at its end, in two lines
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not status and not isinstance(error, BrokenPipeError):
            status = _say(f"standard output cannot be written: {error.strerror}")
    if has_others():
        leave(status)
    sys.exit(status)


def _say(words: str, status: int = 1) -> int:
    """Print an error, if there is still somewhere to print it; its exit status."""
    with suppress(OSError):
        print(f"heedful: {speaker()}{words}", file=sys.stderr)
    return status


def _say_first(line: str, status: int) -> int:
    """Print what all processes of torchrun would print alike, once; its exit status."""
    if speaks():
        with suppress(OSError):
            print(line, file=sys.stderr)
    else:
        leave_it_to_another()
    return status


def run(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status. With --debug, errors keep their traceback."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    debug = "--debug" in arguments[:end]
    options = [argument for argument in arguments[:end] if argument != "--debug"]
    arguments = [*options, *arguments[end:]]
    called = next((word for word in arguments[:1] if word in COMMANDS), "")
    try:
        if called and not _is_shared(called, options):
            _check_alone(called)
        status = heedful_command(arguments, prog_name="heedful", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        line = _usage_line(error, f"heedful {called}".strip())
        if speaks():
            record(error)
        return _say_first(line, error.exit_code)
    except click.ClickException as error:
        return _say(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _say_first("heedful: interrupted", 130)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except EndedElsewhereError:
        leave_it_to_another()
        return 1
    except Exception as error:
        words = _one_line(error)
        if not isinstance(error, LostError):
            record(error)
        if debug:
            raise
        return _say(words)
    return status if isinstance(status, int) else 0


def _is_shared(called: str, options: Sequence[str]) -> bool:
    """Whether several processes share the work of this command; its help is for one too."""
    of_texts = any(option.partition("=")[0] == "--texts" for option in options)
    return called == "train" or (called == "heads" and of_texts)


def _check_alone(called: str) -> None:
    """Refuse, in several processes, what each of them would do by itself; the first one says so."""
    here = started()
    if here.is_alone:
        return
    if not here.is_first:
        raise EndedElsewhereError(f"heedful {called} is for one process")
    raise ArgumentError(
        f"heedful {called} in {here.size:,} processes",
        expected="one",
        cause=f"torchrun started it, and only {' and '.join(SHARED)} share their work",
        remedy="call it without torchrun, or unset RANK and WORLD_SIZE",
    )


def _usage_line(error: click.UsageError, command: str) -> str:
    """Wrong usage in one line, as click words it, and where to read on."""
    path = error.ctx.command_path if error.ctx else command
    path = command if path == "heedful" else path  # a parser's errors know their group alone
    words = " ".join(error.format_message().split()).rstrip(".")
    return f"{path}: {words}; see {path} --help"


def _one_line(error: Exception) -> str:
    if isinstance(error, HeedfulError):
        return str(error)
    what = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, MemoryError) or re.search("allocate memory|out of memory", what):
        return f"not enough memory ({what}); ask for less at once: fewer, smaller or shorter"
    return f"unexpected {what}; see where with --debug, and please report it"
