"""Options that commands share, and options made from the fields of a configuration."""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from heedful.configuration import Configuration, allowed_types, expected_of, part_of

MOST = 10_000  # more layers, heads or continuations than anybody has
Decorator = Callable[[Callable], Callable]


class SettingOption(click.Option):
    """An option made from a field of a configuration, listed under its section in --help.

    A value that the field refuses is wrong usage, said before anything else is looked at.
    """

    def __init__(self, *names: str, field: dataclasses.Field, section: str, **rest: Any) -> None:
        super().__init__([*names, field.name], default=None, **rest)
        self.field, self.section = field, section

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """The value, of the option's type and in its field's range."""
        cast = super().type_cast_value(ctx, value)
        expected = None if cast is None else expected_of(self.field, cast)
        if expected:
            sentence = self.field.metadata["sentence"]
            raise click.UsageError(f"{self.opts[0]} {value}; expected {expected}; {sentence}", ctx)
        return cast


class SectionedCommand(click.Command):
    """A command whose --help lists the settings of each configuration under a heading."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's own options first, then each section's."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record and isinstance(parameter, click.Option):
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)


def settings_of(section: str, defaults: Configuration, leave_out: Iterable[str] = ()) -> Decorator:
    """An option for each field of a configuration, with its sentence and default as help.

    An option that is not given is None, so that a preset or a file can say otherwise. A part that
    is a configuration itself has none.
    """
    hints = typing.get_type_hints(type(defaults))

    def add(function: Callable) -> Callable:
        options = [
            _option(section, field, hints[field.name], getattr(defaults, field.name))
            for field in dataclasses.fields(defaults)
            if field.name not in leave_out and part_of(hints[field.name]) is None
        ]
        known = function.__dict__.setdefault("__click_params__", [])
        known.extend(reversed(options))  # click keeps the options of a function in reverse
        return function

    return add


def _option(section: str, field: dataclasses.Field, hint: Any, default: Any) -> SettingOption:
    name = field.name.replace("_", "-")
    kind = next(t for t in allowed_types(hint) if t is not type(None))
    help = field.metadata["sentence"]
    if default is not None:
        help += f" [{str(default).lower() if kind is bool else default}]"
    if kind is bool:
        return SettingOption(f"--{name}/--no-{name}", field=field, section=section, help=help)
    choices = field.metadata["choices"]
    metavar = "|".join(choices) or {int: "N", float: "X", str: "NAME"}[kind]
    type_ = click.Choice(choices) if choices else kind
    return SettingOption(
        f"--{name}", field=field, section=section, type=type_, help=help, metavar=metavar
    )


def given(configuration: type[Configuration], options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, of those that are fields of a configuration."""
    names = {field.name for field in dataclasses.fields(configuration)}
    return {name: value for name, value in options.items() if name in names and value is not None}


def check_model(path: Path, opening: Mapping[str, Any]) -> Path:
    """The directory of a model; one that is not there is refused before torch is imported.

    `opening` are the values of `opening_options`.
    """
    from heedful.files.run_identity import read_config
    from heedful.models import model_directory

    names = ("revision", "allow_pickle")
    directory = model_directory(path, **{name: opening[name] for name in names if name in opening})
    read_config(directory)
    return directory


def refuse(why: str, **given: Any) -> None:
    """Refuse the first option that was given; `text` is the argument of that name.

    Raises:
        UsageError: its name, and why.
    """
    for name, value in given.items():
        if value is not None and value is not False and value != ():
            option = "a text" if name == "text" else f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} {why}")


def directory(ctx: click.Context, option: click.Parameter, name: str) -> Path:
    """A directory to write in; an empty name, which would mean the present one, is refused."""
    if not name:
        raise click.BadParameter("an empty name; . is the present directory", ctx, option)
    return Path(name)


def numbers(ctx: click.Context, option: click.Parameter, value: str | None) -> list[int] | None:
    """Whole numbers and runs of them, with commas between."""
    if value is None:
        return None
    chosen: list[int] = []
    for part in value.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,5})(?:-([0-9]{1,5}))?\s*", part)
        run = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not run:
            raise click.BadParameter(f"{value!r} is no list such as 0,2 or 0-3.", ctx, option)
        chosen += run
    return chosen


layers_option = click.option(
    "--layers", callback=numbers, metavar="LIST", help="Only these layers, from 0: 0,3 or 0-2."
)
heads_option = click.option(
    "--heads", callback=numbers, metavar="LIST", help="Only these heads, from 0: 1,4 or 0-3."
)
sequence_option = click.option(
    "--sequence",
    type=click.IntRange(0),
    help="Of a batch, only this text, from 0 [of heads all; of plot 0].",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
OPENING = {
    "checkpoint": click.option(
        "--checkpoint",
        type=click.Choice(["best", "last"]),
        default="best",
        show_default=True,
        help="The weights with the lowest validation loss, or the last ones.",
    ),
    "revision": click.option(
        "--revision", metavar="NAME", help="Of a model on the hub: the branch, tag or commit."
    ),
    "allow_pickle": click.option(
        "--allow-pickle",
        is_flag=True,
        help="Read weights from .bin files where there are no safetensors; tensors only.",
    ),
    "device": click.option(
        "--device", default="auto", show_default=True,
        help="Where to compute: auto, cpu, cuda, mps.",
    ),
}  # fmt: skip


def opening_options(*names: str) -> Decorator:
    """The options by which a model is opened, all or some; the command gets them as `opening`.

    These are the keywords of `heedful.open`.
    """
    chosen = names or tuple(OPENING)

    def add(function: Callable) -> Callable:
        @functools.wraps(function)
        def command(**given: Any) -> Any:
            opening = {name: given.pop(name) for name in chosen}
            return function(**given, opening=opening)

        for name in reversed(chosen):
            OPENING[name](command)
        return command

    return add
