"""The command `heedful train`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heedful.cli import run_training as terminal
from heedful.cli.input_texts import notices, read_text
from heedful.cli.options import (
    SectionedCommand,
    output_directory,
    passed_fields,
    refuse,
    settings_of,
)
from heedful.cli.suggested_commands import suggestion
from heedful.errors import ArgumentError, RunError
from heedful.models.configurations import BertConfig, GPTConfig, Seq2SeqConfig
from heedful.train.presets import PRESETS, preset
from heedful.train.settings import TRAINED, Recipe, TextSettings, TrainSettings, read_toml

if TYPE_CHECKING:
    from rich.console import Console

    from heedful.processes import Processes
    from heedful.train import Ended, Plan, Prepared, Training

QUICK, BERT, PAIRS = PRESETS["quick"], PRESETS["bert"], PRESETS["pairs"]
FIXED = ("optimizer", "initial")  # training settings that --resume cannot change
DATES = "dates"  # the name of the built-in pairs, and of their preset
GPT_FIELDS = set(QUICK.model.to_dict())


def _preset_names(on_pairs: bool) -> str:
    return ", ".join(name for name in PRESETS if PRESETS[name].on_pairs == on_pairs)


def _check_pairs(_ctx: object, _option: object, name: str | None) -> str | None:
    if name is not None and name.startswith("--"):
        raise click.BadParameter(f"expected a file after it, got {name!r}", param_hint="--pairs")
    return name


EXAMPLE = """\b
Examples:
  heedful train --out runs/first
  heedful train book.txt notes/ --out runs/book --steps 2000 --width 256 --heads 8
  cat *.txt | heedful train - --out runs/all --tokenizer characters
  heedful train --out runs/first --resume --steps 1200
  heedful train --preset bert --out runs/words
  heedful train --out runs/seen --watch "the cat sat, and the cat sat"
  heedful train --pairs dates --out runs/dates
  heedful train --pairs phrases.tsv --out runs/phrases --width 256 --heads 8
"""


@click.command(cls=SectionedCommand, epilog=EXAMPLE)
@click.argument("files", nargs=-1)
@click.option(
    "--out", required=True, callback=output_directory, metavar="DIR",
    help="Directory of the training run.",
)  # fmt: skip
@click.option(
    "--pairs", metavar="FILE.tsv", callback=_check_pairs,
    help="Train an encoder–decoder on a file whose lines hold a source, a tab and a target. "
    f"'{DATES}' is a built-in example: written dates to ISO dates.",
)  # fmt: skip
@click.option(
    "--preset", "preset_name", metavar="NAME",
    help=f"Preset with values for all settings: {_preset_names(False)}; with --pairs, "
    f"{_preset_names(True)}. zero-to-hero is the model of document 004 (Zhang, LLM: From Zero to "
    "Hero), with norms before each layer, as in the author's code; --norm-order post places them "
    f"as the document does. [quick; with --pairs, pairs; with --pairs {DATES}, {DATES}]",
)  # fmt: skip
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE",
    help="TOML file with settings under [text], [model] and [train]; options override it.",
)  # fmt: skip
@click.option(
    "--include", metavar="PATTERN", help="In folders, read only files that match PATTERN [*]."
)
@click.option(
    "--watch-file", type=click.Path(path_type=Path), metavar="FILE",
    help="Read the text of --watch from a file.",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Continue from the last checkpoint.")
@click.option("--overwrite", is_flag=True, help="Replace an existing run.")
@settings_of("Text", QUICK.text)
@settings_of("Model", QUICK.model, leave_out=["vocabulary"])
@settings_of("Model of a BERT", BERT.model, leave_out=GPT_FIELDS | set(TRAINED) | {"padding"})
@settings_of("Model of an encoder–decoder", PAIRS.model, leave_out=GPT_FIELDS)
@settings_of("Training", QUICK.train)
def train(
    files: tuple[str, ...], out: Path, pairs: str | None, preset_name: str | None,
    config: Path | None, include: str | None, watch_file: Path | None, resume: bool,
    overwrite: bool, **options: Any,
) -> int:  # fmt: skip
    """Train a GPT or a BERT on text files, or an encoder–decoder on pairs.

    FILES are text files, folders of them, or - for standard input; the default is the Python
    language reference that CPython contains. --preset bert trains a BERT, --pairs an
    encoder–decoder. [Brackets] show the defaults of the preset quick; in the sections on a BERT and
    an encoder–decoder, they show the defaults of the presets bert and pairs.
    """
    if resume and overwrite:
        raise click.UsageError("--resume continues a run and --overwrite removes it: choose one.")
    if pairs is not None and (files or include is not None):
        raise click.UsageError("--pairs names the only file: leave out FILES and --include.")
    if watch_file is not None:
        refuse("cannot be combined with --watch-file.", watch=options["watch"])
    from heedful.text.sources import SkippedFilesWarning
    from heedful.torchrun import started
    from heedful.train.plan import check_batch, check_free, has_plan, new_plan, read_plan
    from heedful.train.run_directory import lock_run

    processes = started()
    if not processes.is_first:
        return join(processes)
    with processes.publishing():
        files = files if pairs in (None, DATES) else (str(pairs),)
        if watch_file is not None or options["watch"] is not None:
            options["watch"] = read_text(options["watch"], watch_file, "text of --watch")
        # merged before they are checked, since some settings are valid only together
        changes = read_toml(config) if config else {}
        for section, settings in _changes(options).items():
            changes[section] = changes.get(section, {}) | settings
        if resume and has_plan(out):
            origin = {"preset": preset_name, "include": include}
            with terminal.report_lost_output(out), lock_run(out):
                plan = _resumed_plan(read_plan(out), changes, files, origin, pairs)
                check_batch(plan.recipe.train, processes.size)
                return run("prepare_run", plan, processes, resume)
        if resume and not files and not out.exists():
            raise RunError(
                f"no directory {out}",
                expected="a run to continue",
                remedy="check the path, or start a new run there without --resume",
            )
        if resume:
            click.echo(f"Nothing was saved in {out} yet: starting from the beginning.")
        preset_name, recipe = _preset(pairs, preset_name)
        recipe = recipe.changed(changes)
        _refuse_unused(changes, recipe)
        check_batch(recipe.train, processes.size)
        if not overwrite:
            check_free(out)
        options = {"include": include or "*", "preset": preset_name, "processes": processes.size}
        with notices(SkippedFilesWarning):
            plan = new_plan(out, files, recipe, **options)
        with terminal.report_lost_output(out), lock_run(out):
            return run("replace" if overwrite else "begin", plan, processes)


def _preset(pairs: str | None, name: str | None) -> tuple[str, Recipe]:
    """Return the preset's name and recipe; raise if only the preset or only the data has pairs."""
    name = name or (DATES if pairs == DATES else "quick" if pairs is None else "pairs")
    recipe = preset(name)
    if recipe.on_pairs != (pairs is not None):
        raise ArgumentError(
            f"preset {name!r} {'with' if pairs else 'without'} --pairs",
            expected=f"one of {_preset_names(pairs is not None)}",
        )
    return name, recipe


def run(prepare_name: str, plan: Plan, processes: Processes, resume: bool = False) -> int:
    """Prepare a plan with a function of `heedful.train.run` and train it; return the exit status.

    The caller holds the run's lock. Of several processes, the first calls `run`, others `join`.
    """
    from heedful.train import run as train_run
    from heedful.views.terminal import console

    prepared = terminal.prepare(getattr(train_run, prepare_name), plan)
    processes.publish((plan.to_dict(), str(plan.directory), resume))
    return _train(plan, lambda: prepared, processes, resume, console())


def join(processes: Processes) -> int:
    """Train the plan that the first process prepared, without output; return the exit status."""
    from rich.console import Console

    from heedful.train.plan import plan_of
    from heedful.train.run import open_prepared

    data, directory, resume = processes.await_published()
    plan = plan_of(Path(directory), data)
    return _train(plan, partial(open_prepared, plan), processes, resume, Console(quiet=True))


def _train(
    plan: Plan, prepare: Callable[[], Prepared], processes: Processes, resume: bool, screen: Console
) -> int:
    from heedful.device import choose_device
    from heedful.train.run import open_training
    from heedful.views.terminal import facts

    settings = plan.recipe.train
    device = choose_device(settings.device, processes.local)
    with processes.process_group(settings.timeout, device):
        prepared = prepare()
        training = open_training(plan, prepared, processes)
        screen.print(facts(terminal.describe(plan, prepared, training)), "")
        if resume and not training.restore():
            screen.print("No checkpoint was saved yet: starting from step 0.")
        elif training.progress.step >= training.settings.steps > 0:
            screen.print(
                f"All {training.progress.step:,} steps are complete; --steps "
                f"{training.progress.step * 2} makes the run longer."
            )
        elif resume:
            screen.print(f"Continuing from step {training.progress.step:,}.")
        if resume and processes.is_first:
            plan.write()  # only after all options have been checked
        ended = terminal.train(plan, training, screen)
        if processes.is_first:
            _print_end(plan, prepared, training, ended, screen)
        processes.barrier()  # torchrun ends all processes when one exits with a nonzero status
    return 130 if ended.why == "stopped" else 0


def _changes(options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    sections = {"text": TextSettings, "train": TrainSettings}
    changes = {name: passed_fields(section, options) for name, section in sections.items()}
    changes["model"] = {
        name: value
        for config in (GPTConfig, BertConfig, Seq2SeqConfig)
        for name, value in passed_fields(config, options).items()
    }
    changes["model"].pop("vocabulary", None)  # --vocabulary belongs to the tokenizer
    return changes


def _resumed_plan(
    plan: Plan,
    changes: dict[str, dict[str, Any]],
    files: tuple[str, ...],
    origin: dict[str, str | None],
    pairs: str | None,
) -> Plan:
    """Return the run's plan with changed training settings; raise for any other change."""
    from heedful.train.plan import absolute, check_supported

    different = [
        f"{name} = {value!r}"
        for name, value in origin.items()
        if value not in (None, getattr(plan, name))
    ]
    for section in Recipe._fields:
        stored, settings = getattr(plan.recipe, section).to_dict(), changes.get(section, {})
        fixed = FIXED if section == "train" else tuple(stored)
        different += [
            f"{name} = {value!r}"
            for name, value in settings.items()
            if name in fixed and value != stored[name]
        ]
    sources = tuple(map(absolute, files))
    has_others = (sources or pairs is not None) and sources != plan.sources
    if has_others or (pairs is not None) > plan.recipe.on_pairs:
        different.append(f"other files ({pairs or ', '.join(files)})")
    if different:
        raise ArgumentError(
            f"--resume with {', '.join(different)}",
            expected=f"the settings of the run: preset {plan.preset or 'quick'}, {plan.title}, "
            "its text and model settings, its optimizer and initial weights",
            remedy="leave them out, or train a new run in another --out",
        )
    recipe = plan.recipe.changed(changes)
    _refuse_unused(changes, recipe)
    check_supported(recipe)
    return plan.continued(recipe)


def _refuse_unused(changes: dict[str, dict[str, Any]], recipe: Recipe) -> None:
    """Raise `ArgumentError` for a text or training setting that has no effect with this recipe."""
    from heedful.text import BPETokenizer, CharacterTokenizer, WordPieceTokenizer

    tokenizer, training = recipe.text.tokenizer, recipe.train
    learned = (BPETokenizer.kind, WordPieceTokenizer.kind)
    is_encoding = tokenizer not in (*learned, CharacterTokenizer.kind)
    muon = (training.optimizer == "muon", "--optimizer muon")
    needs = {  # setting: (has an effect, the option it needs)
        "vocabulary": (tokenizer in learned, "--tokenizer bpe or wordpiece"),
        "compact": (is_encoding, "a tiktoken encoding as --tokenizer"),
        "matrix_rate": muon,
        "matrix_decay": muon,
        "momentum": muon,
        "fall": (training.decay == "trapezoid", "--decay trapezoid"),
        "watch_every": (training.watch is not None, "--watch or --watch-file"),
        "convolution_rate": (
            bool(getattr(recipe.model, "convolution", 0)),
            "--convolution for a GPT",
        ),
    }
    for name, value in (changes.get("text", {}) | changes.get("train", {})).items():
        has_effect, option = needs.get(name, (True, ""))
        if not has_effect:
            raise ArgumentError(
                f"{name} = {value!r}, which has no effect here",
                expected=f"{name} together with {option}",
                remedy=f"leave {name} out, or add {option}",
            )


def _print_end(
    plan: Plan, prepared: Prepared, training: Training, ended: Ended, screen: Console
) -> None:
    out, progress = plan.directory, training.progress
    screen.print()
    if ended.why == "stopped":
        terminal.show_stopped(ended.step, out, screen)
        return
    if ended.why == "early":
        screen.print(f"Stopped early: no lower validation loss for {progress.waited} validations.")
    if progress.best_step >= 0:
        screen.print(
            f"Best validation loss {progress.best:.3f} nats per token, at step "
            f"{progress.best_step:,} of {ended.step:,}."
        )
    picture = terminal.draw_losses(out, out / "loss.png")
    curve = f"; its loss curve is {picture}." if picture else "."
    screen.print(f"Saved in {out}{curve}", soft_wrap=True, markup=False)
    command, text = terminal.suggested_trial(prepared)
    if not text:
        return
    screen.print("\nNext:", style="dim")
    for name in (command, "plot"):
        screen.print(f"  {suggestion(name, out, text=text)}", soft_wrap=True, markup=False)
    for name in ("plot", "look") if training.watch else ():
        screen.print(f"  {suggestion(name, out)}", soft_wrap=True, markup=False)
