"""`heedful`: the group of commands, and how errors end.

Exit status 0 done, 1 a clear error in one line, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

import heedful
from heedful.cli.usage import in_one_line, no_such_command
from heedful.errors import HeedfulError

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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is called; one that there is not is told of the nearest."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(no_such_command(args[0], list(COMMANDS)), ctx)
        return super().resolve_command(ctx, args)

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
    sys.exit(status)


def _say(words: str, status: int = 1) -> int:
    """Print an error, if there is still somewhere to print it; its exit status."""
    with suppress(OSError):
        print(f"heedful: {words}", file=sys.stderr)
    return status


def run(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status. With --debug, errors keep their traceback."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    debug = "--debug" in arguments[:end]
    options = [argument for argument in arguments[:end] if argument != "--debug"]
    arguments = [*options, *arguments[end:]]
    try:
        status = heedful_command(arguments, prog_name="heedful", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        called = next((word for word in arguments[:1] if word in COMMANDS), "")
        print(in_one_line(error, f"heedful {called}".strip()), file=sys.stderr)
        return error.exit_code
    except click.ClickException as error:
        return _say(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted", 130)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            raise
        return _say(_one_line(error))
    return status if isinstance(status, int) else 0


def _one_line(error: Exception) -> str:
    if isinstance(error, HeedfulError):
        return str(error)
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"unexpected {what}; see where with --debug, and please report it"
