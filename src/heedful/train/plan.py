"""The plan of a run: text and settings, checked before any work, read when the run is resumed.

torch is imported only after all other checks, so that their errors are reported without delay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from heedful.configuration import Configuration
from heedful.errors import ArgumentError, RunError
from heedful.files import make_directory, read_checked_json, write_checked_json
from heedful.files.run_identity import CONTINUATION, RECIPE, RUN, check_same_run, config_entry
from heedful.models import BertConfig
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
from heedful.train.settings import CONFIGURATIONS, Recipe, TextSettings, TrainSettings

STORED_FIELDS = ("sources", "include", "title", "preset", CONTINUATION)


class Plan(NamedTuple):
    """The text and the settings of a run, stored in `state/recipe.json`.

    `sources` are files and folders; `include` is a pattern for the files in folders. Without
    `sources`, a built-in text is used: the Python language reference, or, for an encoder–decoder,
    pairs of dates. `title` names the text, `preset` the preset from which the settings started.
    `continuation` is an entry for `files/run_identity.py`.
    """

    directory: Path
    sources: tuple[str, ...]
    include: str
    title: str
    preset: str
    recipe: Recipe
    continuation: list[Any] | None = None

    def continued(self, recipe: Recipe) -> Plan:
        """Return the plan for continuing the run with these settings."""
        from heedful.train.checkpoint import new_continuation  # imports torch

        if recipe == self.recipe:
            return self
        entry = new_continuation(self.directory, recipe.to_dict())
        return self._replace(recipe=recipe, continuation=entry)

    def write(self, run: str | None = None) -> None:
        """Create the directory and write the plan to it.

        `run` is the run's identity, by default the one in `config.json`. That file exists once
        the text is tokenized; before that, a plan has no identity.
        """
        make_directory(self.directory / "state")
        content = {**self.to_dict(), RUN: run or config_entry(self.directory, RUN)}
        write_checked_json(self.directory / RECIPE, content)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but the directory, as input for `plan_of`."""
        fields = {name: getattr(self, name) for name in STORED_FIELDS}
        return {**fields, "kind": self.recipe.kind, **self.recipe.to_dict()}


def new_plan(
    directory: Path,
    names: Sequence[str],
    recipe: Recipe,
    *,
    include: str = "*",
    preset: str = "",
    processes: int = 1,
) -> Plan:
    """Return the plan of a new run, after all checks that are possible before the text is read.

    Args:
        directory: the run directory.
        names: files and folders of the text; empty for the built-in text.
        recipe: the settings.
        include: a pattern for the files of folders, such as `*.txt`.
        preset: the name of the preset from which `recipe` started.
        processes: the number of processes that train together.

    Raises:
        ArgumentError: the tokenizer or device does not exist, settings do not fit each other, the
            directory is inside the text folder, the package of a service is not installed, or the
            device has too little memory.
        TextError: the text does not exist.
    """
    choice_of(recipe)
    is_bert = isinstance(recipe.model, BertConfig)
    if is_bert != (recipe.text.tokenizer == WordPieceTokenizer.kind):
        raise ArgumentError(
            f"the tokenizer {recipe.text.tokenizer} for a model of the kind {recipe.kind}",
            expected=WordPieceTokenizer.kind if is_bert else "another tokenizer",
            cause="a BERT needs [CLS] and [MASK]; WordPiece drops spaces, which other models need",
            remedy="omit --tokenizer, or choose a --preset of another kind of model",
        )
    check_supported(recipe)
    sources = tuple(absolute(name) for name in names)
    title = _title(sources, include, recipe)
    folders = (Path(name).resolve() for name in sources if Path(name).is_dir())
    inside = [folder for folder in folders if directory.resolve().is_relative_to(folder)]
    if inside:
        raise ArgumentError(
            f"{directory} is inside the text folder {inside[0]}",
            expected="a directory elsewhere",
            cause="the files of the run would be read as text",
            remedy="choose another --out",
        )
    from heedful.device import choose_device  # imports torch, therefore after the other checks

    device, text, model = str(choose_device(recipe.train.device)), recipe.text, recipe.model
    is_learned = text.tokenizer in (BPETokenizer.kind, WordPieceTokenizer.kind)
    rows = max(text.vocabulary if is_learned else 0, model.vocabulary)  # the text may need more
    smallest = dataclasses.replace(model, vocabulary=rows)
    check_memory(smallest, recipe.train, device, processes)
    return Plan(directory, sources, include, title, preset, recipe)


def check_supported(recipe: Recipe) -> None:
    """Raise an `ArgumentError` if settings do not fit the kind of model or each other.

    An unknown logging service, or one whose package is not installed, raises one too.
    """
    services_of(recipe.train.log)
    if recipe.on_pairs and recipe.train.watch is not None:
        raise ArgumentError(
            "a watched text for an encoder–decoder",
            expected="a GPT or a BERT",
            cause="its attention depends on the target that it generates, which training changes",
            remedy="omit --watch; `heedful look` shows its attention after training",
        )
    if recipe.train.compile and recipe.kind != "GPT":
        raise ArgumentError(
            f"--compile for a model of the kind {recipe.kind}",
            expected="a GPT",
            cause="batch shapes vary from step to step, and each would be compiled separately",
            remedy="omit --compile",
        )
    if recipe.train.compile and recipe.train.shard:
        raise ArgumentError(
            "--compile with --shard",
            expected="one of them",
            cause="a sharded model gathers weights between blocks, outside any compiled graph",
            remedy="--no-compile",
        )


def check_batch(settings: TrainSettings, processes: int) -> None:
    """Raise an `ArgumentError` if a batch has fewer sequences than there are processes."""
    if settings.batch < processes:
        raise ArgumentError(
            f"a batch of {settings.batch:,} for {processes:,} processes",
            expected="at least one sequence for each process",
            cause="a batch is divided among all processes",
            remedy=f"--batch {processes}, or fewer processes",
        )


def read_plan(directory: Path) -> Plan:
    """Read the plan of an existing run.

    Raises:
        RunError: there is no run, or its plan is damaged or belongs to another run.
    """
    content = read_checked_json(directory / RECIPE)
    try:
        plan, run = plan_of(directory, content), content.get(RUN)
    except (ArgumentError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{directory / RECIPE} is not the plan of a run: {error}",
            cause="a damaged file, or one of another version of heedful",
            remedy="train again with --overwrite",
        ) from error
    if has_run(directory):
        check_same_run(directory / RECIPE, RUN, run, directory)
    return plan


def plan_of(directory: Path, content: Mapping[str, Any]) -> Plan:
    """Return the plan of a directory from the result of `Plan.to_dict`."""
    model: type[Configuration] = CONFIGURATIONS[content["kind"]]
    sections: tuple[type[Configuration], ...] = (TextSettings, model, TrainSettings)
    parts = zip(Recipe._fields, sections, strict=True)
    settings: list[Any] = [section.from_dict(content[name]) for name, section in parts]
    fields = {name: {CONTINUATION: None, **content}[name] for name in STORED_FIELDS}
    fields["sources"] = tuple(content["sources"])
    return Plan(directory, **fields, recipe=Recipe(*settings))


def has_run(directory: Path) -> bool:
    """Whether the directory has a run with a tokenized text."""
    return (directory / "config.json").exists()


def has_plan(directory: Path) -> bool:
    """Whether the directory has a run to resume, with or without a tokenized text."""
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
    """Return the recipe's tokenizer choice; raise an `ArgumentError` for an unknown tokenizer."""
    text = recipe.text
    return TokenizerChoice(text.tokenizer, text.vocabulary, text.compact)


def _title(sources: tuple[str, ...], include: str, recipe: Recipe) -> str:
    """Return the text's name; raise an error if it does not exist, or pairs are not in one file."""
    if recipe.on_pairs and not sources:
        return example_dates.TITLE
    if recipe.on_pairs and (len(sources) > 1 or Path(sources[0]).is_dir()):
        raise ArgumentError(f"pairs from {', '.join(sources)}", expected="one TSV file")
    return open_source(sources, include).title


def absolute(name: str) -> str:
    """Return the absolute path of a text, so that the run can be resumed from another folder."""
    return name if name == STANDARD_INPUT else str(Path(name).absolute())
