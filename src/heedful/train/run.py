"""Preparation of a run directory from a text or pairs, and construction of its `Training`."""

from __future__ import annotations

import dataclasses
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import nn

from heedful.device import choose_device
from heedful.errors import HeedfulError, RunError
from heedful.files.checksums import checksum_of_file, digits
from heedful.files.run_identity import RUN, TOKENIZER, check_same_run, identity
from heedful.files.run_identity import TOKENS as TOKENS_CRC32
from heedful.models import BertConfig, GPTConfig, Seq2SeqConfig, write_model_config
from heedful.models.directory import FAMILIES, read_model_config
from heedful.processes import Processes
from heedful.text import (
    EXTRA_IDS,
    PairFile,
    TokenFile,
    Tokenizer,
    date_pairs,
    load_tokenizer,
    open_source,
    prepare,
    prepare_pairs,
    read_pairs,
)
from heedful.train.checkpoint import check_run_identity
from heedful.train.events import Ended, Event, Noticed
from heedful.train.loggers import Logs
from heedful.train.loop import Training
from heedful.train.memory_estimate import check_memory
from heedful.train.plan import Plan, check_free, choice_of, has_plan, has_run
from heedful.train.run_directory import FRESH, replace_run
from heedful.train.run_files import TOKENS
from heedful.train.tasks import MaskedWords, NextToken, Translating
from heedful.train.watch import Watch, watched_text

MODELS: dict[type, Callable[[Any], Any]] = dict(FAMILIES.values())
Report = Callable[[int, int | None], None]  # receives bytes read, and total bytes or None


class Prepared(NamedTuple):
    """A plan's tokenizer, its tokenized text or pairs, and the model's configuration."""

    tokenizer: Tokenizer
    tokens: TokenFile | PairFile
    config: GPTConfig | BertConfig | Seq2SeqConfig


def begin(plan: Plan, progress: Report | None = None) -> Prepared:
    """Write the plan of a new run and tokenize its text.

    Raises:
        RunError: the directory already has a run.
        HeedfulError: as in `prepare_run`; the unfinished run is removed.
    """
    check_free(plan.directory)
    plan.write()
    try:
        return prepare_run(plan, progress)
    except HeedfulError:  # the unfinished run cannot be resumed
        shutil.rmtree(plan.directory / "state", ignore_errors=True)
        with suppress(OSError):
            (plan.directory / "tokenizer.json").unlink(missing_ok=True)
            plan.directory.rmdir()
        raise


def replace(plan: Plan, progress: Report | None = None) -> Prepared:
    """Like `begin`, but replace the run in the directory, after the new text is tokenized.

    The caller must hold the lock `lock_run`.
    """
    if not (has_run(plan.directory) or has_plan(plan.directory)):
        return begin(plan, progress)
    begin(plan._replace(directory=plan.directory / FRESH), progress)
    replace_run(plan.directory)
    return prepare_run(plan)


def events(plan: Plan, training: Training) -> Iterator[Event]:
    """Train, send metrics to the recipe's services, and yield events.

    The caller must hold the lock `lock_run`.
    """
    if not (plan.recipe.train.log and training.processes.is_first):
        yield from training.events()
        return
    logs = Logs(plan.directory, plan.recipe, training.progress.step)
    training.callbacks.append(logs)
    try:
        for event in training.events():
            if isinstance(event, Ended):
                logs.end()
            while logs.notices:
                yield Noticed(event.step, logs.notices.pop(0))
            yield event
    finally:
        logs.end()


def prepare_run(plan: Plan, progress: Report | None = None) -> Prepared:
    """Prepare a run: tokenize the plan's text, write the tokens, tokenizer and configuration.

    If the run is prepared already, open its files.

    Raises:
        ArgumentError: the watched text has one token or none, or a BERT's context is too short.
        TextError: the text cannot be read, or is too short for one context.
        RunError: the files of the run are damaged, or belong to another run.
    """
    directory, recipe = plan.directory, plan.recipe
    if has_run(directory):  # preparation is complete, because config.json is written last
        config = read_model_config(directory)
        path, share = directory / TOKENS, recipe.text.validation
        is_pairs, tokenizer = isinstance(config, Seq2SeqConfig), load_tokenizer(directory)
        tokens = PairFile(path, config.end, share) if is_pairs else TokenFile(path, share)
        check_same_run(path, TOKENS_CRC32, tokens.checksum, directory)
        check_run_identity(directory)
        return Prepared(tokenizer, tokens, config)
    prepare_data = _prepare_pairs if recipe.on_pairs else _prepare_text
    prepared = prepare_data(plan, progress)
    task_of(prepared)  # raises an error if the text is too short
    watch, config = recipe.train.watch, prepared.config
    if watch is not None and not isinstance(config, Seq2SeqConfig):
        watched_text(config, prepared.tokenizer, watch)  # raises an error if it is too short
    prepared.tokenizer.save(directory)
    checksums = {
        TOKENIZER: digits(checksum_of_file(directory / "tokenizer.json")),
        TOKENS_CRC32: prepared.tokens.checksum,
    }
    run = identity(recipe.to_dict(), checksums)
    plan.write(run)  # before config.json, which marks the preparation as complete
    write_model_config(directory, prepared.config, **{RUN: run}, **checksums)
    return prepared


def open_prepared(plan: Plan) -> Prepared:
    """Open the run that the first process prepared; raise a `RunError` if it is not found."""
    if not has_run(plan.directory):
        raise RunError(
            f"no run in {plan.directory} on {platform.node()}",
            expected="the directory that the first process wrote",
            cause="the machines do not share this directory",
            remedy="choose an --out that all machines see under the same path",
        )
    return prepare_run(plan)


def _prepare_text(plan: Plan, progress: Report | None) -> Prepared:
    tokenizer, tokens = prepare(
        open_source(plan.sources, plan.include),
        choice_of(plan.recipe),
        plan.directory / TOKENS,
        validation=plan.recipe.text.validation,
        progress=progress,
    )
    changes: dict[str, Any] = {"vocabulary": tokenizer.size}
    if isinstance(plan.recipe.model, BertConfig):
        changes["padding"] = tokenizer.special["pad"]
    config = dataclasses.replace(plan.recipe.model, **changes)
    return Prepared(tokenizer, tokens, config)


def _prepare_pairs(plan: Plan, progress: Report | None) -> Prepared:
    model = plan.recipe.model
    tokenizer, tokens = prepare_pairs(
        read_pairs(plan.sources[0]) if plan.sources else date_pairs(),
        choice_of(plan.recipe),
        plan.directory / TOKENS,
        max_length=model.context_length,
        validation=plan.recipe.text.validation,
    )
    config = dataclasses.replace(model, vocabulary=tokenizer.size + EXTRA_IDS)
    return Prepared(tokenizer, tokens, config)


def task_of(prepared: Prepared) -> NextToken | MaskedWords | Translating:
    """Return the task of a prepared run; raise a `TextError` if its text is too short.

    A BERT's context that leaves no room for a token raises an `ArgumentError`.
    """
    tokenizer, tokens, config = prepared
    if isinstance(tokens, PairFile):
        return Translating(tokens.train, tokens.validation, config.context_length, tokens.begin)
    split = tokens.train, tokens.validation
    if isinstance(config, BertConfig):
        return MaskedWords(*split, config.context_length, tokenizer.special, config.vocabulary)
    return NextToken(*split, config.context_length)


def open_training(plan: Plan, prepared: Prepared, processes: Processes | None = None) -> Training:
    """Return the `Training` of a prepared run at step 0; its `restore` loads a checkpoint.

    Args:
        plan, prepared: the run.
        processes: the processes that train together; default this one alone.

    Raises:
        ArgumentError: the device does not exist or lacks memory, or the watched text is too short.
    """
    settings, config, processes = plan.recipe.train, prepared.config, processes or Processes()
    device = choose_device(settings.device, processes.local)
    check_memory(config, settings, str(device), processes.size)
    torch.manual_seed(settings.seed)
    model = MODELS[type(config)](config)
    if settings.initial == "zero":
        zero_output_projections(model)
    if processes.is_single or not settings.shard:  # FSDP2 moves each shard to its device
        model.to(device)
    training = Training(plan.directory, model, task_of(prepared), settings, processes, device)
    if settings.watch is not None:
        training.watch = Watch(model, prepared.tokenizer, settings)
    return training


@torch.no_grad()
def zero_output_projections(model: nn.Module) -> None:
    """Set the output projections of attention and feed-forward to 0, so that blocks add nothing.

    Sources: Zhang et al. 2019, *Fixup* (arXiv:1901.09321); modded-nanogpt.

    >>> from heedful.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocabulary=11, context_length=8, width=12, heads=2, layers=1))
    >>> zero_output_projections(model)
    >>> states = model(torch.tensor([[1, 2, 3]])).hidden_states
    >>> bool((states[1] == model.norm(states[0])).all())
    True
    """
    for blocks in model.modules():
        if isinstance(blocks, nn.ModuleList):
            for name, parameter in blocks.named_parameters():
                if name.endswith("output.weight"):
                    parameter.zero_()
