"""Preparing and training a run in the terminal; what `train` and `demo` share."""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from heedful.cli.input_texts import notices
from heedful.cli.suggested_commands import beginning, suggestion
from heedful.errors import HeedfulError

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from heedful.models import BertConfig, GPTConfig, Seq2SeqConfig
    from heedful.train import Ended, Plan, Prepared, Training
    from heedful.views.training_curve import Losses

HANGUP = getattr(signal, "SIGHUP", None)  # which Windows does not have
LOOKED_AT = 4096  # tokens in which a text to try is looked for


def prepare(make: Callable[..., Prepared], plan: Plan, console: Console) -> Prepared:
    """Tokenize the plan's text by `begin`, `replace` or `prepare_run`, with a bar in a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    bar = Progress(
        TextColumn("[dim]tokenizing[/]"),
        BarColumn(bar_width=28),
        DownloadColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar, notices():  # files that are left out were named when the run was planned
        task = bar.add_task("", total=None)
        return make(plan, lambda done, total: bar.update(task, completed=done, total=total))


def describe(plan: Plan, prepared: Prepared, training: Training) -> list[tuple[str, str]]:
    """The text, the tokens and the model of a run, before it is trained."""
    from heedful.text import LICENCE, TITLE
    from heedful.train.memory_estimate import in_words, memory
    from heedful.train.metrics import MOST_AVERAGED
    from heedful.views.terminal import count, many

    tokens, config = prepared.tokens, prepared.config
    number = sum(parameter.numel() for parameter in training.parameters)
    needed = memory(config, plan.recipe.train, training.here.size)
    licence = [("", LICENCE)] if plan.title == TITLE else []
    kind = getattr(prepared.tokenizer, "name", prepared.tokenizer.kind)
    return [
        ("text", plan.title),
        *licence,
        (
            "pairs" if plan.recipe.on_pairs else "tokens",
            f"{len(tokens.train):,} to train on, {len(tokens.validation):,} to validate on; "
            f"{kind}, {prepared.tokenizer.size:,} in the vocabulary",
        ),
        (
            "model",
            f"{count(number)} parameters: {_blocks(config)} of {many(config.heads, 'head')}, width "
            f"{config.width}, context {config.context_length:,} tokens",
        ),
        (
            "memory",
            f"about {in_words(needed)}{'' if training.here.is_alone else ' in each process'}",
        ),
        ("device", f"{training.device}, products in {_name(training.products)}"),
        *_processes(training),
        *_watched(plan, training),
        (
            "loss",
            "mean, in nats per token: of training over the latest tenth of the steps, at most "
            f"{MOST_AVERAGED}{_smoothed(plan)}; of validation over its whole split",
        ),
    ]


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _processes(training: Training) -> list[tuple[str, str]]:
    """What each of several processes holds of the model, and what they share."""
    here, batch = training.here, training.settings.batch
    if here.is_alone:
        return []
    cut, copied = "rows of all weights (FSDP2)", "a copy of the model (DDP)"
    holds = cut if training.passes.is_cut else copied
    return [("processes", f"{here.size:,}, each with {holds} and its share of {batch:,} sequences")]


def _watched(plan: Plan, training: Training) -> list[tuple[str, str]]:
    """How often a text is watched, and where its recordings go."""
    from heedful.train.run_files import WATCHED

    watch = training.watch
    if watch is None:
        return []
    cut = f" ({watch.left_out:,} more are left out)" if watch.left_out else ""
    return [
        (
            "watched",
            f"{watch.tokens:,} tokens{cut} at {len(watch.moments):,} steps; recordings in "
            f"{plan.directory / WATCHED}",
        )
    ]


def _smoothed(plan: Plan) -> str:
    """What makes the training loss higher than the other, which is taken without it."""
    share = plan.recipe.train.label_smoothing
    return f", against labels smoothed by {share:g}" if share else ""


def _blocks(config: GPTConfig | BertConfig | Seq2SeqConfig) -> str:
    from heedful.models import Seq2SeqConfig
    from heedful.views.terminal import many

    if isinstance(config, Seq2SeqConfig):
        return f"{config.layers} + {config.decoder_layers or config.layers} blocks"
    return many(config.layers, "block")


def train(plan: Plan, training: Training, console: Console) -> Ended:
    """Train to the end, or until Ctrl-C, drawing what happens; the directory must be owned.

    Where nothing can be printed any more, training is stopped and saved.

    Raises:
        OSError: what could not be printed, once the run is saved.
    """
    from heedful.train import Ended
    from heedful.train.events import Noticed
    from heedful.train.run import events
    from heedful.views.progress import training_view

    steps, start = training.settings.steps, training.progress.step
    ended, lost = Ended(start, "finished"), None
    with _stopping(training), training_view(console, steps, start) as view:
        for event in events(plan, training):
            if isinstance(event, Ended):
                ended = event
            try:
                view.show(event)
                if isinstance(event, Noticed):
                    console.print(event.words, soft_wrap=True, markup=False)
            except OSError as error:
                lost = error
                training.stop()
    if lost:
        raise lost
    return ended


UNHEARD = (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF)  # of an output that has ended


@contextmanager
def saved_if_unheard(directory: Path) -> Iterator[None]:
    """Where nothing can be printed any more, an error that says what of a run is saved.

    Raises:
        HeedfulError: standard output is closed, its disk is full, or its terminal is gone.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, HeedfulError) or error.filename or error.errno not in UNHEARD:
            raise
        from heedful.train.checkpoint import saved_step

        step = saved_step(directory)
        saved = "nothing was trained yet" if step is None else f"saved at step {step:,}"
        raise HeedfulError(
            f"standard output cannot be written ({error.strerror})",
            cause="a reader, such as `head`, that has ended; a full disk, or a closed terminal",
            remedy=f"{saved}: go on with {suggestion('train', '--out', directory, '--resume')}",
        ) from error


def to_try(prepared: Prepared) -> tuple[str, str]:
    """The command that shows what a model has learned, and a text for it that it has not seen.

    The text is from the part kept for validation, empty where that has no word; for a BERT a word
    of it is hidden.
    """
    from heedful.models import BertConfig
    from heedful.text import PairFile
    from heedful.train.tasks import FRAME

    tokenizer, tokens, config = prepared
    if isinstance(tokens, PairFile):
        source, _ = tokens[len(tokens) - 1]
        text = tokenizer.decode(source[:-1])
        return "translate", beginning(text) if text.isprintable() else ""
    kept = tokens.validation if len(tokens.validation) else tokens.train
    text = tokenizer.decode(kept[:LOOKED_AT])
    if not isinstance(config, BertConfig):
        return "generate", _phrase(text, 4, config.context_length)
    words = _phrase(text, 9, config.context_length - FRAME).split()
    whole = [n for n, word in enumerate(words) if len(tokenizer.encode(word)) == 1]
    hidden = whole[len(whole) // 2] if whole else len(words) // 2
    gap = tokenizer.decode([tokenizer.special["mask"]])
    return "fill", " ".join([*words[:hidden], gap, *words[hidden + 1 :]]) if words else ""


def _phrase(text: str, words: int, longest: int) -> str:
    """Up to so many plain words that follow one another, of a sentence's beginning where one is."""
    run = rf"[^\W\d_]+(?: [^\W\d_]+){{0,{words - 1}}}"
    places = (rf"(?:(?<=[.!?] )|(?<=\n)){run}", rf"(?<=\s){run}", run)
    phrases = next(filter(None, (re.findall(place, text) for place in places)), [])
    return beginning(max(phrases, key=lambda phrase: phrase.count(" "), default=""), longest)


def show(console: Console, pairs: list[tuple[str, str]]) -> None:
    """Print facts, with an empty line after them."""
    from heedful.views.terminal import facts

    console.print(facts(pairs))
    console.print()


def show_stopped(step: int, out: Path, console: Console) -> None:
    """Print how a run that was stopped goes on."""
    console.print(f"Stopped and saved at step {step:,}. Go on with:")
    line = f"  {suggestion('train', '--out', out, '--resume')}"
    console.print(line, style="bold", soft_wrap=True, markup=False)


def draw_losses(directory: Path, path: Path) -> Path | None:
    """Write the loss curve of a run; None where it has no metrics to draw."""
    from heedful.files import make_directory
    from heedful.pictures.saving import save
    from heedful.train import read_metrics
    from heedful.train.run_files import METRICS
    from heedful.views.training_curve import loss_curve

    losses = losses_of(read_metrics(directory / METRICS))
    if not losses.steps:
        return None
    make_directory(path.parent)
    return save(loss_curve(*losses), path)


def losses_of(metrics: list[dict[str, Any]]) -> Losses:
    """The losses among the lines of a run's metrics."""
    from heedful.views.training_curve import Losses

    train = [line for line in metrics if "loss" in line]
    checks = [line for line in metrics if "validation_loss" in line]
    return Losses(
        [line["step"] for line in train],
        [line["loss"] for line in train],
        [line["step"] for line in checks],
        [line["validation_loss"] for line in checks],
    )


@contextmanager
def _stopping(training: Training) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) ends training after its step, saved; a second one at once.

    A terminal that is closed does the same, often twice, unless the program was told to outlive it
    (`nohup`).
    """

    def stop(number: int, frame: FrameType | None) -> None:
        training.stop()
        if number != HANGUP:
            signal.signal(number, before[number])

    before: dict[int, Any] = {}
    for asked in (signal.SIGINT, signal.SIGTERM, HANGUP):
        if asked is None or (asked == HANGUP and signal.getsignal(asked) == signal.SIG_IGN):
            continue
        with suppress(ValueError):  # not the main thread, as in tests and notebooks
            before[asked] = signal.signal(asked, stop)
    try:
        yield
    finally:
        for number in before:
            signal.signal(number, before[number])
