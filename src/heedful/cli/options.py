"""Options that commands share, and options made from the fields of a configuration."""

from __future__ import annotations

import dataclasses
import functools
import os
import shlex
import shutil
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from heedful.configuration import Configuration, allowed_types, expected_of, part_of
from heedful.errors import ArgumentError

RECORDING = ".safetensors"  # what the name of a recording ends in
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


def check_model(path: Path, opening: Mapping[str, Any]) -> None:
    """Refuse a model that is not there, before torch is imported, which takes seconds.

    `opening` are the values of `opening_options`.
    """
    from heedful.files.belonging import read_config
    from heedful.models import model_directory

    read_config(model_directory(path, **fetching(opening)))


def fetching(opening: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options by which a model is opened that say how its files are fetched."""
    return {name: opening[name] for name in ("revision", "allow_pickle") if name in opening}


def program() -> str:
    """How the user can call the command again: by name, path, or the Python that runs it."""
    if shutil.which("heedful"):
        return "heedful"
    if os.path.basename(sys.argv[0]) == "heedful":
        return shlex.quote(os.path.relpath(sys.argv[0]))
    return f"{shlex.quote(sys.executable)} -m heedful"


def refuse(given: Mapping[str, Any], why: str) -> None:
    """Refuse the first option that was given, of some by their names.

    Raises:
        UsageError: its name, and why.
    """
    for name, value in given.items():
        if value is not None and value is not False and value != ():
            raise click.UsageError(f"{name} {why}")


def read_text(text: str | None, file: Path | None, what: str = "text") -> str:
    """A text given as an argument, or with --file (`-` is standard input)."""
    from heedful.text import FileSource

    if (text is None) == (file is None):
        raise click.UsageError(f"give the {what} as an argument or with --file, one of the two")
    if file is not None and file.is_dir():
        raise ArgumentError(f"the folder {file}", expected="a file, or - for standard input")
    if file is not None:
        return "".join(FileSource((str(file),)).pieces())
    if not text:
        raise ArgumentError(f"an empty {what}", expected="at least one character")
    return str(text)


def _not_empty(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """A second text as it is; an empty one is refused as the first is."""
    if text is not None and not text.strip():
        raise ArgumentError("an empty second text", expected="at least one character")
    return text


def runs(text: str) -> list[range] | None:
    """The runs of numbers in a list such as 0,2-4; None where it is no such list.

    >>> runs("0,2-4"), runs("4-2")
    ([range(0, 1), range(2, 5)], None)
    """
    found = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            return None
        found.append(range(int(first), int(last) + 1))
    return found


class Directory(click.Path):
    """A directory to write in; an empty name, which would mean the present one, is refused."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The path."""
        if value == "":
            self.fail("an empty name; expected a directory, . for the present one", param, ctx)
        return super().convert(value, param, ctx)


class Numbers(click.ParamType):
    """Whole numbers and runs of them, with commas between."""

    name = "numbers"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """As --help shows it."""
        return "LIST"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[int]:
        """The numbers."""
        found = runs(str(value))
        if found is None or any(len(run) > MOST for run in found):
            self.fail(f"{value!r} is no list such as 0,2 or 0-3.", param, ctx)
        return [number for run in found for number in run]


file_option = click.option(
    "--file",
    type=click.Path(path_type=Path),
    help="Read the text from a file; - is standard input.",
)
second_option = click.option(
    "--second",
    metavar="TEXT",
    callback=_not_empty,
    help="A second text: a BERT reads the two as a pair.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
checkpoint_option = click.option(
    "--checkpoint",
    type=click.Choice(["best", "last"]),
    default="best",
    show_default=True,
    help="The weights with the lowest validation loss, or the last ones.",
)
revision_option = click.option(
    "--revision", metavar="NAME", help="Of a model on the hub: the branch, tag or commit."
)
pickle_option = click.option(
    "--allow-pickle",
    is_flag=True,
    help="Read weights from .bin files where there are no safetensors; tensors only.",
)
device_option = click.option(
    "--device", default="auto", show_default=True, help="Where to compute: auto, cpu, cuda, mps."
)
OPENING = {
    "checkpoint": checkpoint_option,
    "revision": revision_option,
    "allow_pickle": pickle_option,
    "device": device_option,
}


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


verify_option = click.option(
    "--verify",
    is_flag=True,
    help="Settle what the axes of each call are by probing, in some more passes.",
)


def check_model_verified(verify: bool) -> None:
    """Refuse --verify of a recording.

    Raises:
        UsageError: it was given.
    """
    if verify:
        raise click.UsageError(
            "--verify runs a model again: give one, and a text, or leave it out."
        )


def is_recording(path: Path) -> bool:
    """Whether a recording is meant: by any file, and by a name that ends so where there is none."""
    return path.is_file() or (path.suffix == RECORDING and not path.is_dir())


def check_place(path: Path, overwrite: bool) -> None:
    """Refuse, before anything is computed, a place where no file can be written.

    Raises:
        SaveError: a file that is there, a folder, or none around it.
    """
    from heedful.errors import SaveError
    from heedful.files import check_free

    if path.is_dir():
        raise SaveError(f"{path} is a folder", expected="the name of a file, such as page.html")
    check_free(path, overwrite)
    if not path.parent.is_dir():
        raise SaveError(
            f"no folder {path.parent}", expected="one that is there", remedy="make it first"
        )


def check_no_text(source: Path, has_text: bool, command: str) -> None:
    """Refuse a text beside a recording, which has its own.

    Raises:
        UsageError: it was given.
    """
    if has_text:
        raise click.UsageError(
            f"{source} is read as a recording, which has its text already: give no other, nor "
            f"--cut. A text in a file: heedful {command} MODEL --file {source}"
        )
