"""Options shared by several commands, and options generated from a configuration's fields."""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from heedful.configuration import MAX_INT64, Configuration, allowed_types, nested_type

MAX_COUNT = 10_000  # largest value of options that count, such as --samples
Decorator = Callable[[Callable], Callable]


class SettingOption(click.Option):
    """An option generated from a configuration's field; --help lists it under `section`."""

    def __init__(self, *names: str, section: str, **rest: Any) -> None:
        super().__init__(names, default=None, **rest)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose --help lists the settings of each configuration under a heading."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options first, then the options of each section."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record and isinstance(parameter, click.Option):
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)


def settings_of(section: str, defaults: Configuration, leave_out: Iterable[str] = ()) -> Decorator:
    """Return a decorator that adds an option for each field of a configuration.

    The option's help is the field's sentence and default. An option that is not passed is None, so
    that a preset or a file can set the field. A field that is a configuration gets no option.
    """
    hints = typing.get_type_hints(type(defaults))

    def add(function: Callable) -> Callable:
        options = [
            _option(section, field, hints[field.name], getattr(defaults, field.name))
            for field in dataclasses.fields(defaults)
            if field.name not in leave_out and nested_type(hints[field.name]) is None
        ]
        parameters = function.__dict__.setdefault("__click_params__", [])
        parameters.extend(reversed(options))  # click stores a function's options in reverse
        return function

    return add


def _option(section: str, field: dataclasses.Field, hint: Any, default: Any) -> SettingOption:
    name = field.name.replace("_", "-")
    kind = next(t for t in allowed_types(hint) if t is not type(None))
    help = field.metadata["sentence"]
    if default is not None:
        help += f" [{str(default).lower() if kind is bool else default}]"
    if kind is bool:
        return SettingOption(f"--{name}/--no-{name}", field.name, section=section, help=help)
    low, high, choices = (field.metadata[key] for key in ("low", "high", "choices"))
    largest = MAX_INT64 if high is None else high
    ranges = {int: click.IntRange(low, largest), float: click.FloatRange(low, high), str: str}
    metavar = "|".join(choices) or {int: "N", float: "X", str: "TEXT"}[kind]
    type_ = click.Choice(choices) if choices else ranges[kind]
    return SettingOption(
        f"--{name}", field.name, section=section, type=type_, help=help, metavar=metavar
    )


def passed_fields(configuration: type[Configuration], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were passed and are fields of the configuration."""
    names = {field.name for field in dataclasses.fields(configuration)}
    return {name: value for name, value in options.items() if name in names and value is not None}


def check_model(path: Path, opening: Mapping[str, Any]) -> Path:
    """Return a model's directory, without importing torch; raise an error if there is no model.

    Args:
        path: a directory, or the name of a model on the hub.
        opening: the values of `opening_options`.
    """
    from heedful.files.run_identity import read_config
    from heedful.models import model_directory

    names = ("revision", "allow_pickle")
    directory = model_directory(path, **{name: opening[name] for name in names if name in opening})
    read_config(directory)
    return directory


def refuse(reason: str, **values: Any) -> None:
    """Raise `UsageError` for the first of these options that was passed.

    The message is the option's name and the reason. `text` is the positional argument.
    """
    for name, value in values.items():
        if value is not None and value is not False and value != ():
            option = "a text" if name == "text" else f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} {reason}")


def output_directory(ctx: click.Context, option: click.Parameter, name: str) -> Path:
    """Return a directory to write to; an empty name is wrong usage."""
    if not name:
        raise click.BadParameter("an empty name; . is the current directory", ctx, option)
    return Path(name)


def number_list(ctx: click.Context, option: click.Parameter, value: str | None) -> list[int] | None:
    """Parse a list of numbers such as 0,2 or 0-3."""
    if value is None:
        return None
    numbers: list[int] = []
    for part in value.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,5})(?:-([0-9]{1,5}))?\s*", part)
        span = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not span:
            raise click.BadParameter(f"{value!r} is not a list such as 0,2 or 0-3.", ctx, option)
        numbers += span
    return numbers


layers_option = click.option(
    "--layers", callback=number_list, metavar="LIST",
    help="Use only these layers, counted from 0, such as 0,3 or 0-2 [all].",
)  # fmt: skip
heads_option = click.option(
    "--heads", callback=number_list, metavar="LIST",
    help="Use only these heads of each layer, counted from 0, such as 1,4 or 0-3 [all].",
)  # fmt: skip


def sequence_option(default: str) -> Decorator:
    """Return the option --sequence; `default` is the default that the help names."""
    sentence = f"Use only this sequence of a recorded batch, counted from 0 [{default}]."
    return click.option("--sequence", type=click.IntRange(0), metavar="N", help=sentence)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
OPENING = {
    "checkpoint": click.option(
        "--checkpoint", type=click.Choice(["best", "last"]), default="best", show_default=True,
        help="Saved weights of a run: those of the lowest validation loss, or the last ones.",
    ),
    "revision": click.option(
        "--revision", metavar="NAME", help="Branch, tag or commit of a model on the hub [main]."
    ),
    "allow_pickle": click.option(
        "--allow-pickle", is_flag=True,
        help="Read .bin files if the model has no safetensors; only tensors are unpickled.",
    ),
    "device": click.option(
        "--device", default="auto", show_default=True,
        help="Device that runs the model: auto, cpu, cuda or mps.",
    ),
}  # fmt: skip


def opening_options(*names: str) -> Decorator:
    """Return a decorator that adds these options for opening a model, by default all of them.

    The command receives their values as `opening`, keyword arguments of `heedful.open`.
    """
    selected = names or tuple(OPENING)

    def add(function: Callable) -> Callable:
        @functools.wraps(function)
        def command(**values: Any) -> Any:
            opening = {name: values.pop(name) for name in selected}
            return function(**values, opening=opening)

        for name in reversed(selected):
            OPENING[name](command)
        return command

    return add
