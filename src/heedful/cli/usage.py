"""Wrong usage in one line: what came, what was expected, where to read on."""

from __future__ import annotations

import re
from difflib import get_close_matches

import click

from heedful.configuration import all_of

REFUSED = re.compile(r"(.*) is not (?:a valid|one of|in the range)", re.DOTALL)


def in_one_line(error: click.UsageError, command: str = "heedful") -> str:
    """Any usage error of click as heedful says it.

    Args:
        error: what click found.
        command: what was called, for errors that do not know it.

    >>> plot = click.Command("plot", params=[click.Option(["--heads"])])
    >>> context = click.Context(plot, info_name="heedful plot")
    >>> in_one_line(click.NoSuchOption("--heds", ctx=context))
    'heedful plot: no such option --heds; did you mean --heads? See heedful plot --help'
    """
    path = error.ctx.command_path if error.ctx else command
    path = command if path == "heedful" else path  # a parser's errors know their group alone
    what = " ".join(_said(error).split()).rstrip(".")
    see = " See" if what.endswith("?") else "; see"
    return f"{path}: {what}{see} {path} --help"


def no_such_command(name: str, known: list[str]) -> str:
    """What is said of a command that there is not, with the nearest, or all."""
    near = get_close_matches(name, known, 1)
    return f"no command {name!r}; " + (
        f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
    )


def _said(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption):
        near = _nearest(error.option_name, error.ctx) if error.ctx else None
        return f"no such option {error.option_name}" + (f"; did you mean {near}?" if near else "")
    if isinstance(error, click.MissingParameter):
        return _missing(error)
    if isinstance(error, click.BadParameter) and error.param is not None:
        return _unfit(error.message, error.param)
    if error.message.startswith("Got unexpected extra argument") and error.ctx:
        extra = error.message.partition("(")[2].rpartition(")")[0]
        return (
            f"too many arguments: {extra}; expected {_usage(error.ctx)}; a text of several words "
            "stands in quotes"
        )
    message = re.sub(r"'(-[\w-]+)'", r"\1", error.format_message())
    return message[:1].lower() + message[1:] if message[1:2].islower() else message


def _nearest(name: str, ctx: click.Context) -> str | None:
    """The option that was probably meant: one that begins so, or is spelt most like it."""
    known = [option for parameter in ctx.command.get_params(ctx) for option in parameter.opts]
    options = [option for option in known if option.startswith("--")]
    begun = [option for option in options if option.startswith(name)]
    return next(iter(begun or get_close_matches(name, options, 1)), None)


def _missing(error: click.MissingParameter) -> str:
    if isinstance(error.param, click.Option):
        help = error.param.help or ""
        return f"no {error.param.opts[0]}; it must be given: {help[:1].lower()}{help[1:]}"
    name = error.param.make_metavar(error.ctx) if error.param and error.ctx else "argument"
    return f"no {name}" + (f"; expected {_usage(error.ctx)}" if error.ctx else "")


def _usage(ctx: click.Context) -> str:
    """How the command is called."""
    return " ".join([ctx.command_path, *ctx.command.collect_usage_pieces(ctx)])


def _unfit(message: str, parameter: click.Parameter) -> str:
    """A value of an option that its type refuses."""
    name = (
        parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name
    )
    found = REFUSED.match(message)
    if found is None:
        return f"{name}: {message[:1].lower()}{message[1:]}"
    value, kind = found[1].strip("'"), parameter.type
    if isinstance(kind, click.Choice):
        expected = all_of(value, [str(choice) for choice in kind.choices])
    else:
        whole = isinstance(kind, click.types.IntParamType)
        expected = "a whole number" if whole else "a number"
        ends = [
            f"{word} {end}"
            for word, end in (
                ("at least", getattr(kind, "min", None)),
                ("at most", getattr(kind, "max", None)),
            )
            if end is not None
        ]
        expected = " of ".join([expected, " and ".join(ends)] if ends else [expected])
    return f"{name} {value}; expected {expected}"
