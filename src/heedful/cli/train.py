"""`heedful train`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heedful.cli import run_training as terminal
from heedful.cli.input_texts import notices, read_text
from heedful.cli.options import SectionedCommand, directory, given, refuse, settings_of
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
KEPT = ("optimizer", "initial")  # settings of training that a run keeps when it goes on
DATES = "dates"  # the embedded pairs, and the preset for them
OF_GPT = set(QUICK.model.to_dict())


def _names(on_pairs: bool) -> str:
    return ", ".join(name for name in PRESETS if PRESETS[name].on_pairs == on_pairs)


EXAMPLE = """\b
Examples:
  heedful train --out runs/first
  heedful train book.txt notes/ --out runs/book --steps 2000 --width 256 --heads 8
  cat *.txt | heedful train - --out runs/all --tokenizer characters
  heedful train --out runs/first --resume --steps 1200
  heedful train book.txt --preset bert --out runs/words
  heedful train book.txt --out runs/seen --watch "the cat sat, and the cat sat"
  heedful train --pairs dates --out runs/dates
  heedful train --pairs phrases.tsv --out runs/phrases --width 256 --heads 8
"""


@click.command(cls=SectionedCommand, epilog=EXAMPLE)
@click.argument("files", nargs=-1)
@click.option("--out", required=True, callback=directory, help="The run's directory.")
@click.option(
    "--pairs",
    metavar="FILE.tsv",
    help="Train an encoder–decoder on pairs: on each line a source, a tab, its target. "
    f"'{DATES}' is an embedded example: written dates to ISO.",
)
@click.option(
    "--preset",
    "preset_name",
    metavar="NAME",
    help=f"Where settings start from: {_names(False)}; with --pairs, {_names(True)}. "
    "zero-to-hero is the model of document 004 (Zhang, LLM: From Zero to Hero), with its norms as "
    "in the author's code; the document puts them after each sum: --norm-order post. [the first "
    "of them; for the embedded dates their own]",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="A TOML file with settings under [text], [model] and [train].",
)
@click.option("--include", help="Which files of a folder. [*]")
@click.option(
    "--watch-file", type=click.Path(path_type=Path), help="Read the text of --watch from a file."
)
@click.option("--resume", is_flag=True, help="Continue from the last checkpoint.")
@click.option("--overwrite", is_flag=True, help="Replace the run that is there.")
@settings_of("Text", QUICK.text)
@settings_of("Model", QUICK.model, leave_out=["vocabulary"])
@settings_of("Model, of a BERT", BERT.model, leave_out=OF_GPT | set(TRAINED) | {"padding"})
@settings_of("Model, with --pairs", PAIRS.model, leave_out=OF_GPT)
@settings_of("Training", QUICK.train)
def train(
    files: tuple[str, ...],
    out: Path,
    pairs: str | None,
    preset_name: str | None,
    config: Path | None,
    include: str | None,
    watch_file: Path | None,
    resume: bool,
    overwrite: bool,
    **options: Any,
) -> int:
    """Train a GPT on FILES: texts, folders, or - for standard input. Or, with --preset bert, a
    BERT on their hidden words; or, with --pairs, an encoder–decoder.

    Without FILES, the text is the Python language reference inside CPython. What stands in
    [brackets] is the default of the preset quick.
    """
    if resume and overwrite:
        raise click.UsageError("--resume continues a run and --overwrite removes it: choose one.")
    if pairs is not None and (files or include is not None):
        raise click.UsageError("--pairs names the only file: leave out FILES and --include.")
    if watch_file is not None:
        refuse("does not go with --watch-file, which is the text.", watch=options["watch"])
    from heedful.text.sources import LeftOutWarning
    from heedful.torchrun import started
    from heedful.train.plan import check_free, check_shared_out, has_plan, new_plan, read_plan
    from heedful.train.run_directory import owning

    here = started()
    if not here.is_first:
        return join(here)
    with here.announcing():
        files = files if pairs in (None, DATES) else (str(pairs),)
        if watch_file is not None or options["watch"] is not None:
            options["watch"] = read_text(options["watch"], watch_file, "text of --watch")
        changes = _together(read_toml(config) if config else {}, _changes(options))
        if resume and has_plan(out):
            named = {"preset": preset_name, "include": include}
            with terminal.saved_if_unheard(out), owning(out):
                plan = _continued(read_plan(out), changes, files, named, pairs)
                check_shared_out(plan.recipe.train, here.size)
                return run("prepare_run", plan, here, resume)
        if resume and not files and not out.exists():
            raise RunError(
                f"no directory {out}",
                expected="a run to continue",
                remedy="check the path; without --resume a new run begins there",
            )
        if resume:
            click.echo(f"Nothing was saved in {out} yet: starting from the beginning.")
        preset_name, start = _start(pairs, preset_name)
        recipe = start.changed(changes)
        _refuse_idle(changes, recipe)
        check_shared_out(recipe.train, here.size)
        if not overwrite:
            check_free(out)
        about: dict[str, Any] = {"preset": preset_name, "processes": here.size}
        with notices(LeftOutWarning):
            plan = new_plan(out, files, recipe, include=include or "*", **about)
        with terminal.saved_if_unheard(out), owning(out):
            return run("replace" if overwrite else "begin", plan, here)


def _start(pairs: str | None, name: str | None) -> tuple[str, Recipe]:
    """The preset that settings start from, one for what is trained on."""
    name = name or (DATES if pairs == DATES else "quick" if pairs is None else "pairs")
    start = preset(name)
    if start.on_pairs != (pairs is not None):
        raise ArgumentError(
            f"preset {name!r} {'with' if pairs else 'without'} --pairs",
            expected=f"one of {_names(pairs is not None)}",
        )
    return name, start


def run(make: str, plan: Plan, here: Processes, resume: bool = False) -> int:
    """Prepare a plan by a function of `heedful.train.run`, and train it; the exit status.

    Its directory must be owned. Of several processes the first one does this, and the others
    `join` it.
    """
    from heedful.train import run as preparing
    from heedful.views.terminal import console

    screen = console()
    prepared = terminal.prepare(getattr(preparing, make), plan, screen)
    here.announce((plan.to_dict(), str(plan.directory), resume))
    return _train(plan, lambda: prepared, here, resume, screen)


def join(here: Processes) -> int:
    """Train what the first process prepared; the exit status. It prints nothing."""
    from rich.console import Console

    from heedful.train.plan import plan_of
    from heedful.train.run import prepared_by_another

    about, directory, resume = here.announced()
    plan = plan_of(Path(directory), about)
    return _train(plan, partial(prepared_by_another, plan), here, resume, Console(quiet=True))


def _train(
    plan: Plan, prepare: Callable[[], Prepared], here: Processes, resume: bool, screen: Console
) -> int:
    from heedful.device import choose_device
    from heedful.train.run import open_training

    settings = plan.recipe.train
    device = choose_device(settings.device, here.local)
    with here.together(settings.timeout, device):
        prepared = prepare()
        training = open_training(plan, prepared, here)
        terminal.show(screen, terminal.describe(plan, prepared, training))
        if resume and not training.restore():
            screen.print("No checkpoint was saved yet: starting from step 0.")
        elif training.progress.step >= training.settings.steps > 0:
            screen.print(
                f"All {training.progress.step:,} steps were done; --steps "
                f"{training.progress.step * 2} makes the run longer."
            )
        elif resume:
            screen.print(f"Continuing from step {training.progress.step:,}.")
        if resume and here.is_first:
            plan.write()  # now that nothing of what was asked for is refused any more
        ended = terminal.train(plan, training, screen)
        if here.is_first:
            _say_end(plan, prepared, training, ended, screen)
        here.wait()  # where one ends with a status other than 0, torchrun ends the others at once
    return 130 if ended.why == "stopped" else 0


def _changes(options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    sections = {"text": TextSettings, "train": TrainSettings}
    changes = {name: given(section, options) for name, section in sections.items()}
    changes["model"] = {
        name: value
        for config in (GPTConfig, BertConfig, Seq2SeqConfig)
        for name, value in given(config, options).items()
    }
    changes["model"].pop("vocabulary", None)  # --vocabulary is that of the trained BPE
    return changes


def _together(*changes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """All changes at once, later ones over earlier: half of them may not make a model."""
    together: dict[str, dict[str, Any]] = {}
    for change in changes:
        for section, settings in change.items():
            together.setdefault(section, {}).update(settings)
    return together


def _continued(
    plan: Plan,
    changes: dict[str, dict[str, Any]],
    files: tuple[str, ...],
    named: dict[str, str | None],
    pairs: str | None,
) -> Plan:
    """The plan of a run that goes on: its training may change, its text and model may not."""
    from heedful.train.plan import absolute, check_possible

    different = [
        f"{name} = {value!r}"
        for name, value in named.items()
        if value not in (None, getattr(plan, name))
    ]
    for section in Recipe._fields:
        begun, settings = getattr(plan.recipe, section), changes.get(section, {})
        kept = KEPT if section == "train" else tuple(begun.to_dict())
        different += [
            f"{name} = {value!r}"
            for name, value in settings.items()
            if name in kept and value != begun.to_dict()[name]
        ]
    sources = tuple(map(absolute, files))
    has_others = (sources or pairs is not None) and sources != plan.sources
    if has_others or (pairs is not None) > plan.recipe.on_pairs:
        different.append(f"other files ({pairs or ', '.join(files)})")
    if different:
        raise ArgumentError(
            f"--resume with {', '.join(different)}",
            expected=f"what the run was begun with: preset {plan.preset or 'quick'}, {plan.title}, "
            "its text and model settings, its optimizer and first weights",
            remedy="leave them out, or train a new run in another --out",
        )
    recipe = plan.recipe.changed(changes)
    _refuse_idle(changes, recipe)
    check_possible(recipe)
    return plan._replace(recipe=recipe)


def _refuse_idle(changes: dict[str, dict[str, Any]], recipe: Recipe) -> None:
    """Refuse settings of the text and of training that others leave without effect."""
    from heedful.text import BPETokenizer, CharacterTokenizer, WordPieceTokenizer

    tokenizer, training = recipe.text.tokenizer, recipe.train
    learned = (BPETokenizer.kind, WordPieceTokenizer.kind)
    is_encoding = tokenizer not in (*learned, CharacterTokenizer.kind)
    muon = (training.optimizer == "muon", "--optimizer muon")
    needs = {  # whether a setting has an effect, and what it needs
        "vocabulary": (tokenizer in learned, "--tokenizer bpe or wordpiece"),
        "compact": (is_encoding, "--tokenizer and a tiktoken encoding"),
        "matrix_rate": muon,
        "matrix_decay": muon,
        "momentum": muon,
        "fall": (training.decay == "trapezoid", "--decay trapezoid"),
        "watch_every": (training.watch is not None, "--watch or --watch-file"),
        "convolution_rate": (
            bool(getattr(recipe.model, "convolution", 0)),
            "--convolution, of a GPT",
        ),
    }
    for name, value in (changes.get("text", {}) | changes.get("train", {})).items():
        has_effect, needed = needs.get(name, (True, ""))
        if not has_effect:
            raise ArgumentError(
                f"{name} = {value!r}, which has no effect here",
                expected=f"it with {needed}",
                remedy=f"leave {name} out, or add that",
            )


def _say_end(
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
    command, text = terminal.to_try(prepared)
    if not text:  # nothing of the text can be typed
        return
    screen.print("\nNext:", style="dim")
    for name in (command, "plot"):
        screen.print(f"  {suggestion(name, out, text=text)}", soft_wrap=True, markup=False)
    for name in ("plot", "look") if training.watch else ():
        screen.print(f"  {suggestion(name, out)}", soft_wrap=True, markup=False)
