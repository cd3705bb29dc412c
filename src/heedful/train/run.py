"""A run directory from a text, or pairs, and a recipe, and a training from a run directory.

DIR/config.json         the model's description
DIR/tokenizer.json      its tokenizer
DIR/model.safetensors   the weights with the lowest validation loss
DIR/metrics.jsonl       a line for each step and each validation
DIR/state/              what continuing needs: recipe.json, tokens.npy, last.safetensors
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from heedful.device import choose_device
from heedful.errors import ArgumentError, HeedfulError, RunError
from heedful.files import alone, make_directory, read_json, saving, write_json
from heedful.models import (
    GPT,
    Bert,
    BertConfig,
    GPTConfig,
    Seq2Seq,
    Seq2SeqConfig,
    write_description,
)
from heedful.models.directory import CHECKPOINTS, read_description
from heedful.text import (
    MARKS,
    PairFile,
    TokenFile,
    Tokenizer,
    TokenizerChoice,
    WordPieceTokenizer,
    date_pairs,
    dates,
    load_tokenizer,
    open_source,
    prepare,
    prepare_pairs,
    read_pairs,
)
from heedful.text.sources import STANDARD_INPUT
from heedful.train.loop import Training
from heedful.train.masked_words import MaskedWords
from heedful.train.settings import PRESETS, Recipe
from heedful.train.tasks import NextToken, Translating

RECIPE, TOKENS, METRICS = "state/recipe.json", "state/tokens.npy", "metrics.jsonl"
MODELS: dict[type, Callable[[Any], Any]] = {
    GPTConfig: GPT,
    BertConfig: Bert,
    Seq2SeqConfig: Seq2Seq,
}
# The parts of a BERT, and whether masked words train them; the others would stay as drawn
TRAINED = {"pooler": False, "masked_words": True, "next_sentence": False}
Report = Callable[[int, int | None], None]  # bytes done, and bytes in all where known
FILES = ("config.json", "tokenizer.json", METRICS, RECIPE, TOKENS, *CHECKPOINTS.values())


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

    def write(self) -> None:
        """Write it into the directory, which is made."""
        make_directory(self.directory / "state")
        about = {name: getattr(self, name) for name in ("sources", "include", "title", "preset")}
        about["kind"] = self.recipe.kind
        write_json(self.directory / RECIPE, {**about, **self.recipe.to_dict()})


class Prepared(NamedTuple):
    """A text, or pairs, that were tokenized for a plan."""

    tokenizer: Tokenizer
    tokens: TokenFile | PairFile
    config: GPTConfig | BertConfig | Seq2SeqConfig


def new_plan(
    directory: Path, names: Sequence[str], recipe: Recipe, *, include: str = "*", preset: str = ""
) -> Plan:
    """The plan of a new run, checked as far as it can be before any work is done.

    Raises:
        ArgumentError: a tokenizer or device that does not exist, or a directory inside the text.
        TextError: a text that is not there.
    """
    _choice(recipe)
    _check_trained(recipe)
    choose_device(recipe.train.device)
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
    return Plan(directory, sources, include, title, preset, recipe)


def read_plan(directory: Path) -> Plan:
    """The plan of a run that was begun.

    Raises:
        RunError: no run there, or a damaged plan.
    """
    about = read_json(directory / RECIPE)
    try:
        kind = about.get("kind", "encoder–decoder" if about.get("on_pairs") else "GPT")
        start = next(recipe for recipe in PRESETS.values() if recipe.kind == kind)
        recipe = start.changed({name: about[name] for name in Recipe._fields})
        include, title, preset = (about[name] for name in ("include", "title", "preset"))
        return Plan(directory, tuple(about["sources"]), include, title, preset, recipe)
    except (ArgumentError, KeyError, StopIteration, TypeError) as error:
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


def begin(plan: Plan, progress: Report | None = None) -> Prepared:
    """Write the plan of a new run and tokenize its text.

    Raises:
        RunError: the directory already holds a run.
        TextError: the text cannot be read, or is too short for one context.
    """
    if has_run(plan.directory):
        raise RunError(
            f"{plan.directory} already holds a run",
            expected="a directory without one",
            remedy="continue it with --resume, replace it with --overwrite, or use another --out",
        )
    made = [folder for folder in (plan.directory, *plan.directory.parents) if not folder.exists()]
    plan.write()
    try:
        return prepare_run(plan, progress)
    except HeedfulError:  # there is nothing to continue: leave no skeleton of a run
        shutil.rmtree(plan.directory / "state", ignore_errors=True)
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


def replace(plan: Plan, progress: Report | None = None) -> Prepared:
    """As `begin`, in place of a run that is there: it goes only when the new text is tokenized."""
    fresh = plan._replace(directory=plan.directory / "state" / "fresh")
    try:
        begin(fresh, progress)
        with alone(plan.directory / "state"), saving(plan.directory):
            for name in FILES:
                (plan.directory / name).unlink(missing_ok=True)
            for name in FILES:
                if (fresh.directory / name).exists():
                    os.replace(fresh.directory / name, plan.directory / name)
    finally:
        shutil.rmtree(fresh.directory, ignore_errors=True)
    return prepare_run(plan)


def prepare_run(plan: Plan, progress: Report | None = None) -> Prepared:
    """Tokenize the text of a plan, unless that was done; write what generating needs.

    Raises:
        TextError: the text cannot be read, or is too short for one context.
    """
    directory, recipe = plan.directory, plan.recipe
    if has_run(directory):  # its config.json is written last
        config = read_description(directory)
        return Prepared(load_tokenizer(directory), _opened(plan, config), config)
    make = _prepare_pairs if recipe.on_pairs else _prepare_text
    prepared = make(plan, progress)
    task_of(prepared)  # refuses what is too short
    prepared.tokenizer.save(directory)
    write_description(directory, prepared.config)
    return prepared


def _opened(plan: Plan, config: Any) -> TokenFile | PairFile:
    path, validation = plan.directory / TOKENS, plan.recipe.text.validation
    if isinstance(config, Seq2SeqConfig):
        return PairFile(path, config.end, validation)
    return TokenFile(path, validation)


def _prepare_text(plan: Plan, progress: Report | None) -> Prepared:
    tokenizer, tokens = prepare(
        open_source(plan.sources, plan.include),
        _choice(plan.recipe),
        plan.directory / TOKENS,
        validation=plan.recipe.text.validation,
        progress=progress,
    )
    changes: dict[str, Any] = {"vocabulary": tokenizer.size}
    if isinstance(plan.recipe.model, BertConfig):
        changes["padding"] = tokenizer.special["pad"]
    return Prepared(tokenizer, tokens, dataclasses.replace(plan.recipe.model, **changes))


def _prepare_pairs(plan: Plan, progress: Report | None) -> Prepared:
    model = plan.recipe.model
    tokenizer, tokens = prepare_pairs(
        read_pairs(plan.sources[0]) if plan.sources else date_pairs(),
        _choice(plan.recipe),
        plan.directory / TOKENS,
        longest=model.context_length,
        validation=plan.recipe.text.validation,
    )
    return Prepared(
        tokenizer, tokens, dataclasses.replace(model, vocabulary=tokenizer.size + MARKS)
    )


def task_of(prepared: Prepared) -> NextToken | MaskedWords | Translating:
    """What a model of this configuration is trained on.

    Raises:
        ArgumentError: a BERT's context without room for a word.
        TextError: a text too short for one context, no pair to train on.
    """
    tokenizer, tokens, config = prepared
    if isinstance(tokens, PairFile):
        return Translating(tokens.train, tokens.validation, config.context_length, tokens.begin)
    split = tokens.train, tokens.validation
    if isinstance(config, BertConfig):
        return MaskedWords(*split, config.context_length, tokenizer.special, config.vocabulary)
    return NextToken(*split, config.context_length)


def open_training(plan: Plan, prepared: Prepared) -> Training:
    """A training that has its model on its device, at step 0."""
    settings, config = plan.recipe.train, prepared.config
    device = choose_device(settings.device)
    torch.manual_seed(settings.seed)
    model = MODELS[type(config)](config)
    return Training(plan.directory, model.to(device), task_of(prepared), settings)


def _title(sources: tuple[str, ...], include: str, recipe: Recipe) -> str:
    """What the text is called; it is looked for, and not yet read."""
    if recipe.on_pairs and not sources:
        return dates.TITLE
    if recipe.on_pairs and (len(sources) > 1 or Path(sources[0]).is_dir()):
        raise ArgumentError(f"pairs from {', '.join(sources)}", expected="one TSV file")
    return open_source(sources, include).title


def _check_trained(recipe: Recipe) -> None:
    """Refuse a tokenizer of the other kind of model, and parts of a BERT that are not trained."""
    is_bert = isinstance(recipe.model, BertConfig)
    if is_bert != (recipe.text.tokenizer == WordPieceTokenizer.kind):
        raise ArgumentError(
            f"the tokenizer {recipe.text.tokenizer} for a model of the kind {recipe.kind}",
            expected=WordPieceTokenizer.kind if is_bert else "another",
            cause="a BERT needs [CLS], [SEP] and [MASK], and what writes a text needs its spaces",
            remedy="leave --tokenizer out, or take a --preset of the other kind",
        )
    for name, trained in TRAINED.items():
        if is_bert and getattr(recipe.model, name) != trained:
            raise ArgumentError(
                f"{name} = {not trained} for a BERT that is trained",
                expected=f"{trained}",
                cause="masked words are all that it is trained on",
            )


def _is_below(path: Path, folder: Path) -> bool:
    return folder.resolve() in (path.resolve(), *path.resolve().parents)


def _choice(recipe: Recipe) -> TokenizerChoice:
    text = recipe.text
    return TokenizerChoice(text.tokenizer, text.vocabulary, text.compact)


def absolute(name: str) -> str:
    """A path that still holds when the run is continued from another folder."""
    return name if name == STANDARD_INPUT else str(Path(name).absolute())
