"""A run directory from a text and a recipe, and a training from a run directory.

DIR/config.json         the model's description
DIR/tokenizer.json      its tokenizer
DIR/model.safetensors   the weights with the lowest validation loss
DIR/metrics.jsonl       a line for each step and each validation
DIR/state/              what continuing needs: recipe.json, tokens.npy, last.safetensors
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from heedful.errors import ArgumentError, RunError
from heedful.files import make_directory, read_json, write_json
from heedful.models import GPT, GPTConfig, write_description
from heedful.models.directory import CHECKPOINTS, read_description
from heedful.text import TokenFile, Tokenizer, TokenizerChoice, load_tokenizer, open_source, prepare
from heedful.text.sources import STANDARD_INPUT
from heedful.train.device import choose_device
from heedful.train.loop import Training, check_length
from heedful.train.settings import Recipe, preset

RECIPE, TOKENS, METRICS = "state/recipe.json", "state/tokens.npy", "metrics.jsonl"
FILES = ("config.json", "tokenizer.json", METRICS, RECIPE, TOKENS, *CHECKPOINTS.values())


class Plan(NamedTuple):
    """What a run was asked to do; the first thing that its directory holds."""

    directory: Path
    sources: tuple[str, ...]
    include: str
    recipe: Recipe

    def write(self) -> None:
        """Write it into the directory, which is made."""
        make_directory(self.directory / "state")
        about = {"sources": self.sources, "include": self.include, **self.recipe.to_dict()}
        write_json(self.directory / RECIPE, about)


class Prepared(NamedTuple):
    """A text that was tokenized for a plan."""

    tokenizer: Tokenizer
    tokens: TokenFile
    config: GPTConfig


def new_plan(directory: Path, names: Sequence[str], include: str, recipe: Recipe) -> Plan:
    """The plan of a new run.

    Raises:
        RunError: the directory already holds a run.
        ArgumentError: a tokenizer or device that does not exist, before any work is done.
    """
    if has_run(directory):
        raise RunError(
            f"{directory} already holds a run",
            expected="a directory without one",
            remedy="continue it with --resume, replace it with --overwrite, or use another --out",
        )
    _choice(recipe)
    choose_device(recipe.train.device)
    return Plan(directory, tuple(absolute(name) for name in names), include, recipe)


def read_plan(directory: Path) -> Plan:
    """The plan of a run that was begun.

    Raises:
        RunError: no run there, or a damaged plan.
    """
    about = read_json(directory / RECIPE)
    try:
        sections = {section: about[section] for section in Recipe._fields}
        recipe = preset("quick").changed(sections)
        return Plan(directory, tuple(about["sources"]), about["include"], recipe)
    except (ArgumentError, KeyError, TypeError) as error:
        raise RunError(
            f"{directory / RECIPE} is not the plan of a run: {error}",
            cause="a damaged file, or one of another version of heedful",
            remedy="train again with --overwrite",
        ) from error


def has_run(directory: Path) -> bool:
    """Whether a run was begun there, and its text tokenized."""
    return (directory / "config.json").exists()


def has_plan(directory: Path) -> bool:
    """Whether there is a run to continue, be it only a plan whose text was never tokenized."""
    return (directory / RECIPE).exists()


def remove_run(directory: Path) -> None:
    """Remove the files that a run writes, and no others."""
    for name in FILES:
        (directory / name).unlink(missing_ok=True)


def prepare_run(plan: Plan, progress: Callable[[int, int | None], None] | None = None) -> Prepared:
    """Tokenize the text of a plan, unless that was done; write what generating needs.

    Raises:
        TextError: the text cannot be read, or is too short for one context.
    """
    directory, recipe = plan.directory, plan.recipe
    if (directory / "config.json").is_file():  # it is written last
        tokens = TokenFile(directory / TOKENS, recipe.text.validation)
        config = read_description(directory)
        return Prepared(load_tokenizer(directory), tokens, config)
    tokenizer, tokens = prepare(
        open_source(plan.sources, plan.include),
        _choice(recipe),
        directory / TOKENS,
        validation=recipe.text.validation,
        progress=progress,
    )
    config = dataclasses.replace(recipe.model, vocabulary=tokenizer.size)
    check_length(tokens.train, tokens.validation, config.context)
    tokenizer.save(directory)
    write_description(directory, config)
    return Prepared(tokenizer, tokens, config)


def open_training(plan: Plan, prepared: Prepared) -> Training:
    """A training that has its model on its device, at step 0."""
    settings = plan.recipe.train
    device = choose_device(settings.device)
    torch.manual_seed(settings.seed)
    model = GPT(prepared.config).to(device)
    tokens = prepared.tokens
    return Training(
        plan.directory, model, tokens.train, tokens.validation, prepared.config.context, settings
    )


def _choice(recipe: Recipe) -> TokenizerChoice:
    text = recipe.text
    return TokenizerChoice(text.tokenizer, text.vocabulary, text.compact)


def absolute(name: str) -> str:
    """A path that still holds when the run is continued from another folder."""
    return name if name == STANDARD_INPUT else str(Path(name).absolute())
