"""`heedful train`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from heedful.cli import training as terminal
from heedful.cli.options import SectionedCommand, given, program, settings_of
from heedful.errors import ArgumentError, RunError
from heedful.models import GPTConfig
from heedful.text import BPETokenizer, CharacterTokenizer
from heedful.train import (
    PRESETS,
    Ended,
    Plan,
    Prepared,
    TextSettings,
    Training,
    TrainSettings,
    absolute,
    begin,
    has_plan,
    new_plan,
    open_training,
    prepare_run,
    preset,
    read_plan,
    read_toml,
    replace,
)
from heedful.views.terminal import console

QUICK = PRESETS["quick"]
EXAMPLE = """\b
Examples:
  heedful train --out runs/first
  heedful train book.txt notes/ --out runs/book --steps 2000 --width 256 --heads 8
  cat *.txt | heedful train - --out runs/all --tokenizer characters
  heedful train --out runs/first --resume --steps 1200
"""


@click.command(cls=SectionedCommand, epilog=EXAMPLE)
@click.argument("files", nargs=-1)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The run's directory.")
@click.option(
    "--preset",
    "preset_name",
    default="quick",
    show_default=True,
    help=f"Where settings start from: {', '.join(PRESETS)}.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="A TOML file with settings under [text], [model] and [train].",
)
@click.option("--include", default="*", show_default=True, help="Which files of a folder.")
@click.option("--resume", is_flag=True, help="Continue from the last checkpoint.")
@click.option("--overwrite", is_flag=True, help="Replace the run that is there.")
@settings_of("Text", QUICK.text)
@settings_of("Model", QUICK.model, leave_out=["vocabulary"])
@settings_of("Training", QUICK.train)
@click.pass_context
def train(
    ctx: click.Context,
    files: tuple[str, ...],
    out: Path,
    preset_name: str,
    config: Path | None,
    include: str,
    resume: bool,
    overwrite: bool,
    **options: Any,
) -> int:
    """Train a GPT on FILES: texts, folders, or - for standard input.

    Without FILES, the text is the Python language reference inside CPython. What stands in
    [brackets] is the default of the preset quick.
    """
    if resume and overwrite:
        raise click.UsageError("--resume continues a run and --overwrite removes it: choose one.")
    start = preset(preset_name)
    changes = _together([read_toml(config) if config else {}, _changes(options)])
    screen = console()
    if resume and has_plan(out):
        asked = {"preset": preset_name, "include": include}
        asked = {name: asked[name] for name in asked if _is_typed(ctx, name)}
        plan = _continued(read_plan(out), changes, files, asked)
        plan.write()
        return run(prepare_run, plan, screen, resume)
    if resume and not files and not out.exists():
        raise RunError(
            f"no directory {out}",
            expected="a run to continue",
            remedy="check the path; without --resume a new run begins there",
        )
    if resume:
        screen.print(f"Nothing was saved in {out} yet: starting from the beginning.")
    recipe = start.changed(changes)
    _refuse_idle(changes.get("text", {}), recipe.text.tokenizer)
    plan = new_plan(out, files, recipe, include=include, preset=preset_name)
    return run(replace if overwrite else begin, plan, screen)


def _is_typed(ctx: click.Context, name: str) -> bool:
    parameter = {"preset": "preset_name"}.get(name, name)
    return ctx.get_parameter_source(parameter) != click.core.ParameterSource.DEFAULT


def run(make: Callable[..., Prepared], plan: Plan, screen: Console, resume: bool = False) -> int:
    """Prepare a plan by `make`, and train it; the exit status."""
    prepared = terminal.prepare(make, plan, screen)
    training = open_training(plan, prepared)
    terminal.show(screen, terminal.describe(plan, prepared, str(training.device)))
    if resume and not training.restore():
        screen.print("No checkpoint was saved yet: starting from step 0.")
    elif training.progress.step >= training.settings.steps > 0:
        screen.print(
            f"All {training.progress.step:,} steps were done; --steps {training.progress.step * 2} "
            "makes the run longer."
        )
    elif resume:
        screen.print(f"Continuing from step {training.progress.step:,}.")
    ended = terminal.train(training, screen)
    _say_end(plan, training, ended, screen)
    return 130 if ended.why == "stopped" else 0


def _changes(options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    sections = {"text": TextSettings, "model": GPTConfig, "train": TrainSettings}
    changes = {name: given(section, options) for name, section in sections.items()}
    changes["model"].pop("vocabulary", None)  # --vocabulary is that of the trained BPE
    return changes


def _refuse_idle(text: dict[str, Any], tokenizer: str) -> None:
    """Refuse settings that the tokenizer would not heed: who sets one expects something of it."""
    own = (BPETokenizer.kind, CharacterTokenizer.kind)
    idle = {"vocabulary": tokenizer != BPETokenizer.kind, "compact": tokenizer in own}
    heeding = {"vocabulary": f"--tokenizer {BPETokenizer.kind}", "compact": "a tiktoken encoding"}
    for name in text:
        if idle.get(name):
            raise ArgumentError(
                f"{name} = {text[name]!r} with the tokenizer {tokenizer}",
                expected=f"it with {heeding[name]} only",
                remedy=f"leave {name} out, or choose another --tokenizer",
            )


def _together(changes: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
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
    asked: dict[str, str],
) -> Plan:
    """The plan of a run that goes on: its training may change, its text and model may not."""
    recipe = plan.recipe.changed(changes)
    different = [
        f"{name} = {asked[name]!r}" for name in asked if asked[name] != getattr(plan, name)
    ]
    for section in ("text", "model"):
        old, new = getattr(plan.recipe, section).to_dict(), getattr(recipe, section).to_dict()
        different += [f"{name} = {new[name]!r}" for name in old if old[name] != new[name]]
    if files and tuple(map(absolute, files)) != plan.sources:
        different.append(f"other files ({', '.join(files)})")
    if different:
        raise ArgumentError(
            f"--resume with {', '.join(different)}",
            expected=f"what the run was begun with: preset {plan.preset or 'quick'}, {plan.title}, "
            "its text and model settings",
            remedy="leave them out, or train a new run in another --out",
        )
    return plan._replace(recipe=recipe)


def _say_end(plan: Plan, training: Training, ended: Ended, screen: Console) -> None:
    out, progress = plan.directory, training.progress
    screen.print()
    if ended.why == "stopped":
        screen.print(f"Stopped and saved at step {ended.step:,}. Go on with:")
        screen.print(f"  {program()} train --out {out} --resume", style="bold", soft_wrap=True)
        return
    if ended.why == "early":
        screen.print(f"Stopped early: no lower validation loss for {progress.waited} validations.")
    if progress.best_step >= 0:
        screen.print(
            f"Best validation loss {progress.best:.3f} nats per token, at step "
            f"{progress.best_step:,} of {ended.step:,}."
        )
    picture = terminal.draw_losses(out, out / "loss.png")
    screen.print(f"Saved in {out}" + (f"; its loss curve is {picture}." if picture else "."))
    screen.print("\nNext:", style="dim")
    screen.print(f'  {program()} generate {out} "Once upon a time"', soft_wrap=True)
    screen.print(f'  {program()} plot {out} "Once upon a time"', soft_wrap=True)
