"""What a run was asked to do: checked and written before any work, read when it goes on.

It knows no torch, so that what does not fit is told at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from heedful.configuration import Configuration
from heedful.errors import ArgumentError, RunError
from heedful.files import make_directory, read_checked_json, write_checked_json
from heedful.files.run_identity import RUN, check_belongs, said
from heedful.models import BertConfig, GPTConfig, Seq2SeqConfig
from heedful.text import (
    BPETokenizer,
    TokenizerChoice,
    WordPieceTokenizer,
    example_dates,
    open_source,
)
from heedful.text.sources import STANDARD_INPUT
from heedful.train.loggers import services_of
from heedful.train.memory_estimate import check_memory
from heedful.train.run_files import RECIPE
from heedful.train.settings import (
    CONFIGURATIONS,
    Recipe,
    TextSettings,
    TrainSettings,
)

WRITTEN = ("sources", "include", "title", "preset")


class Plan(NamedTuple):
    """What a run was asked to do; the first thing that its directory holds.

    `preset` is where its settings started, `title` what its text is called. Without `sources` the
    text is the embedded one: the Python language reference, or for pairs the dates.
    """

    directory: Path
    sources: tuple[str, ...]
    include: str
    title: str
    preset: str
    recipe: Recipe

    def write(self, run: str | None = None) -> None:
        """Write it into the directory, which is made, with what the run's files call the run.

        That is known once its text is tokenized; then its `config.json` says it.
        """
        make_directory(self.directory / "state")
        about = {**self.to_dict(), RUN: run or said(self.directory, RUN)}
        write_checked_json(self.directory / RECIPE, about)

    def to_dict(self) -> dict[str, Any]:
        """What `plan_of` reads: all but where it stands."""
        about = {name: getattr(self, name) for name in WRITTEN}
        return {**about, "kind": self.recipe.kind, **self.recipe.to_dict()}


def new_plan(
    directory: Path,
    names: Sequence[str],
    recipe: Recipe,
    *,
    include: str = "*",
    preset: str = "",
    processes: int = 1,
) -> Plan:
    """The plan of a new run, checked as far as it can be before any work is done.

    Args:
        processes: how many train it together.

    Raises:
        ArgumentError: a tokenizer or device that does not exist, a directory inside the text, a
            service whose package is not installed.
        TextError: a text that is not there.
    """
    choice_of(recipe)
    _check_tokenizer(recipe)
    check_possible(recipe)
    sources = tuple(absolute(name) for name in names)
    title = _title(sources, include, recipe)
    inside = [name for name in sources if Path(name).is_dir() and _is_below(directory, Path(name))]
    if inside:
        raise ArgumentError(
            f"{directory} is inside the text folder {inside[0]}",
            expected="a directory elsewhere",
            cause="the run's own files would be read as text",
            remedy="choose another --out",
        )
    from heedful.device import choose_device  # it brings torch, so it comes last

    device = str(choose_device(recipe.train.device))
    check_memory(_at_least(recipe), recipe.train, device, processes)
    return Plan(directory, sources, include, title, preset, recipe)


def check_possible(recipe: Recipe) -> None:
    """Refuse settings of training that this machine or this kind of model cannot do."""
    services_of(recipe.train.log)
    if recipe.on_pairs and recipe.train.watch is not None:
        raise ArgumentError(
            "a text to watch for an encoder–decoder",
            expected="a GPT or a BERT",
            cause="what it attends to depends on what it writes, which changes as it learns",
            remedy="leave --watch out; `heedful look` shows it once it is trained",
        )
    if recipe.train.compile and recipe.kind != "GPT":
        raise ArgumentError(
            f"--compile for a model of the kind {recipe.kind}",
            expected="a GPT",
            cause="its batches have other shapes at each step, and each would be compiled anew",
            remedy="leave it out",
        )
    if recipe.train.compile and recipe.train.shard:
        raise ArgumentError(
            "compile with shard",
            expected="one of them",
            cause="the weights of a block are gathered before it runs, which is no part of a graph",
            remedy="--no-compile",
        )


def check_shared_out(settings: TrainSettings, processes: int) -> None:
    """Refuse batches that cannot be shared out: each process needs a sequence; `ArgumentError`."""
    if settings.batch < processes:
        raise ArgumentError(
            f"a batch of {settings.batch:,} for {processes:,} processes",
            expected="a sequence for each of them at least",
            cause="a batch is that of all processes together",
            remedy=f"--batch {processes}, or fewer processes",
        )


def _at_least(recipe: Recipe) -> GPTConfig | BertConfig | Seq2SeqConfig:
    """The model's shape before its text is read: with the vocabulary that was asked for, if any."""
    text, model = recipe.text, recipe.model
    learned = text.tokenizer in (BPETokenizer.kind, WordPieceTokenizer.kind)
    rows = text.vocabulary if learned else model.vocabulary
    return dataclasses.replace(model, vocabulary=max(rows, model.vocabulary))


def read_plan(directory: Path) -> Plan:
    """The plan of a run that was begun.

    Raises:
        RunError: no run there, a damaged plan, or that of another run.
    """
    about = read_checked_json(directory / RECIPE)
    try:
        plan, run = plan_of(directory, about), about.get(RUN)
    except (ArgumentError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{directory / RECIPE} is not the plan of a run: {error}",
            cause="a damaged file, or one of another version of heedful",
            remedy="train again with --overwrite",
        ) from error
    if has_run(directory):
        check_belongs(directory / RECIPE, RUN, run, directory)
    return plan


def plan_of(directory: Path, about: Mapping[str, Any]) -> Plan:
    """The plan of a directory by what `Plan.to_dict` said of it."""
    model: type[Configuration] = CONFIGURATIONS[about["kind"]]
    sections: tuple[type[Configuration], ...] = (TextSettings, model, TrainSettings)
    settings: list[Any] = []
    for name, section in zip(Recipe._fields, sections, strict=True):
        lacking = {field.name for field in dataclasses.fields(section)} - about[name].keys()
        if lacking:
            raise ArgumentError(f"[{name}] without {', '.join(sorted(lacking))}")
        settings.append(section.from_dict(about[name]))
    return Plan(
        directory,
        **{name: about[name] for name in WRITTEN} | {"sources": tuple(about["sources"])},
        recipe=Recipe(*settings),
    )


def has_run(directory: Path) -> bool:
    """Whether a run was begun there, and its text tokenized."""
    return (directory / "config.json").exists()


def has_plan(directory: Path) -> bool:
    """Whether there is a run to continue, be it only a plan whose text was never tokenized."""
    return (directory / RECIPE).exists()


def check_free(directory: Path) -> None:
    """Refuse a directory that has a run already; `RunError`."""
    if has_run(directory):
        raise RunError(
            f"{directory} already holds a run",
            expected="a directory without one",
            remedy="continue it with --resume, replace it with --overwrite, or use another --out",
        )


def choice_of(recipe: Recipe) -> TokenizerChoice:
    """Which tokenizer a run's text gets; an `ArgumentError` where there is no such."""
    text = recipe.text
    return TokenizerChoice(text.tokenizer, text.vocabulary, text.compact)


def _title(sources: tuple[str, ...], include: str, recipe: Recipe) -> str:
    """What the text is called; it is looked for, and not yet read."""
    if recipe.on_pairs and not sources:
        return example_dates.TITLE
    if recipe.on_pairs and (len(sources) > 1 or Path(sources[0]).is_dir()):
        raise ArgumentError(f"pairs from {', '.join(sources)}", expected="one TSV file")
    return open_source(sources, include).title


def _check_tokenizer(recipe: Recipe) -> None:
    """Refuse a tokenizer of the other kind of model."""
    is_bert = isinstance(recipe.model, BertConfig)
    if is_bert != (recipe.text.tokenizer == WordPieceTokenizer.kind):
        raise ArgumentError(
            f"the tokenizer {recipe.text.tokenizer} for a model of the kind {recipe.kind}",
            expected=WordPieceTokenizer.kind if is_bert else "another",
            cause="a BERT needs [CLS], [SEP] and [MASK], and what writes a text needs its spaces",
            remedy="leave --tokenizer out, or take a --preset of the other kind",
        )


def _is_below(path: Path, folder: Path) -> bool:
    return folder.resolve() in (path.resolve(), *path.resolve().parents)


def absolute(name: str) -> str:
    """A path that still holds when the run is continued from another folder."""
    return name if name == STANDARD_INPUT else str(Path(name).absolute())
