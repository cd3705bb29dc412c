"""The plan of a run: checked and written before any work, read when the run is resumed.

This module does not import torch, so that errors are reported at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from heedful.configuration import Configuration
from heedful.errors import ArgumentError, RunError
from heedful.files import make_directory, read_checked_json, write_checked_json
from heedful.files.run_identity import RUN, check_same_run, config_entry
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

STORED_FIELDS = ("sources", "include", "title", "preset")


class Plan(NamedTuple):
    """What a run trains on, and how; the first file that is written to its directory.

    `preset` is the preset that the settings started from, `title` the name of the text. Without
    `sources` the text is the embedded one: the Python language reference, or the dates for pairs.
    """

    directory: Path
    sources: tuple[str, ...]
    include: str
    title: str
    preset: str
    recipe: Recipe

    def write(self, run: str | None = None) -> None:
        """Write the plan to its directory, which is created, with the identity `run` of the run.

        The identity exists once the text is tokenized; by default it is read from `config.json`.
        """
        make_directory(self.directory / "state")
        about = {**self.to_dict(), RUN: run or config_entry(self.directory, RUN)}
        write_checked_json(self.directory / RECIPE, about)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but the directory, as `plan_of` reads them."""
        about = {name: getattr(self, name) for name in STORED_FIELDS}
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
    """Return the plan of a new run, checked as far as possible before any work.

    Args:
        processes: the number of processes that train together.

    Raises:
        ArgumentError: the tokenizer or device does not exist, the directory is inside the text
            folder, or the package of a service is not installed.
        TextError: the text does not exist.
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
    from heedful.device import choose_device  # imports torch, so it comes last

    device = str(choose_device(recipe.train.device))
    check_memory(_at_least(recipe), recipe.train, device, processes)
    return Plan(directory, sources, include, title, preset, recipe)


def check_possible(recipe: Recipe) -> None:
    """Raise an `ArgumentError` if this machine or kind of model does not support the settings."""
    services_of(recipe.train.log)
    if recipe.on_pairs and recipe.train.watch is not None:
        raise ArgumentError(
            "a text to watch for an encoder–decoder",
            expected="a GPT or a BERT",
            cause="its attention depends on the target that it writes, which changes as it learns",
            remedy="leave --watch out; `heedful look` shows its attention after training",
        )
    if recipe.train.compile and recipe.kind != "GPT":
        raise ArgumentError(
            f"--compile for a model of the kind {recipe.kind}",
            expected="a GPT",
            cause="batch shapes vary from step to step, and each would be compiled separately",
            remedy="leave it out",
        )
    if recipe.train.compile and recipe.train.shard:
        raise ArgumentError(
            "compile with shard",
            expected="one of them",
            cause="gathering the weights of a block before it runs cannot be part of a graph",
            remedy="--no-compile",
        )


def check_shared_out(settings: TrainSettings, processes: int) -> None:
    """Raise an `ArgumentError` if a batch has fewer sequences than there are processes."""
    if settings.batch < processes:
        raise ArgumentError(
            f"a batch of {settings.batch:,} for {processes:,} processes",
            expected="at least one sequence for each process",
            cause="a batch is divided among all processes",
            remedy=f"--batch {processes}, or fewer processes",
        )


def _at_least(recipe: Recipe) -> GPTConfig | BertConfig | Seq2SeqConfig:
    """Return the model's shape before its text is read, with the requested vocabulary, if any."""
    text, model = recipe.text, recipe.model
    learned = text.tokenizer in (BPETokenizer.kind, WordPieceTokenizer.kind)
    rows = text.vocabulary if learned else model.vocabulary
    return dataclasses.replace(model, vocabulary=max(rows, model.vocabulary))


def read_plan(directory: Path) -> Plan:
    """Read the plan of an existing run.

    Raises:
        RunError: there is no run, or its plan is damaged or another run's.
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
        check_same_run(directory / RECIPE, RUN, run, directory)
    return plan


def plan_of(directory: Path, about: Mapping[str, Any]) -> Plan:
    """Return the plan of a directory from the result of `Plan.to_dict`."""
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
        **{name: about[name] for name in STORED_FIELDS} | {"sources": tuple(about["sources"])},
        recipe=Recipe(*settings),
    )


def has_run(directory: Path) -> bool:
    """Whether the directory has a run whose text is tokenized."""
    return (directory / "config.json").exists()


def has_plan(directory: Path) -> bool:
    """Whether the directory has a run to resume, even if its text was never tokenized."""
    return (directory / RECIPE).exists()


def check_free(directory: Path) -> None:
    """Raise a `RunError` if the directory already has a run."""
    if has_run(directory):
        raise RunError(
            f"{directory} already holds a run",
            expected="a directory without one",
            remedy="continue it with --resume, replace it with --overwrite, or use another --out",
        )


def choice_of(recipe: Recipe) -> TokenizerChoice:
    """Return the tokenizer choice of a run; raise an `ArgumentError` if it is unknown."""
    text = recipe.text
    return TokenizerChoice(text.tokenizer, text.vocabulary, text.compact)


def _title(sources: tuple[str, ...], include: str, recipe: Recipe) -> str:
    """Return the name of the text; raise an error if the text does not exist."""
    if recipe.on_pairs and not sources:
        return example_dates.TITLE
    if recipe.on_pairs and (len(sources) > 1 or Path(sources[0]).is_dir()):
        raise ArgumentError(f"pairs from {', '.join(sources)}", expected="one TSV file")
    return open_source(sources, include).title


def _check_tokenizer(recipe: Recipe) -> None:
    """Raise an `ArgumentError` if the tokenizer does not fit the kind of model."""
    is_bert = isinstance(recipe.model, BertConfig)
    if is_bert != (recipe.text.tokenizer == WordPieceTokenizer.kind):
        raise ArgumentError(
            f"the tokenizer {recipe.text.tokenizer} for a model of the kind {recipe.kind}",
            expected=WordPieceTokenizer.kind if is_bert else "another",
            cause="a BERT needs [CLS], [SEP] and [MASK]; a model that writes text needs its spaces",
            remedy="leave --tokenizer out, or choose a --preset of the other kind",
        )


def _is_below(path: Path, folder: Path) -> bool:
    return folder.resolve() in (path.resolve(), *path.resolve().parents)


def absolute(name: str) -> str:
    """Return the absolute path, so that the run can be resumed from another folder."""
    return name if name == STANDARD_INPUT else str(Path(name).absolute())
