"""Preparing and training a run with output in the terminal, for `train` and `demo`."""

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
    from rich.console import Console

    from heedful.train import Ended, Plan, Prepared, Training

HANGUP = getattr(signal, "SIGHUP", None)  # None on Windows
SEARCHED = 4096  # tokens of the validation split from which a sample text is chosen


def prepare(make: Callable[..., Prepared], plan: Plan) -> Prepared:
    """Call `make` (`begin`, `replace` or `prepare_run`) on the plan, with a progress bar."""
    from heedful.views.progress import progress_bar

    def report(size: int, total: int | None) -> None:
        if total:  # the size of standard input is unknown
            set_share(size / total)

    # no warnings: skipped files were reported when the run was planned
    with progress_bar("tokenizing") as set_share, notices():
        return make(plan, report)


def describe(plan: Plan, prepared: Prepared, training: Training) -> list[tuple[str, str]]:
    """Return the names and values that describe a run: text, tokens, model, device and so on."""
    from rich.filesize import decimal

    from heedful.models import Seq2SeqConfig
    from heedful.text import LICENCE, TITLE
    from heedful.train.memory_estimate import memory
    from heedful.train.metrics import MAX_AVERAGED
    from heedful.train.run_files import WATCHED
    from heedful.views.terminal import count, plural

    tokens, config, settings = prepared.tokens, prepared.config, training.settings
    tokenizer, processes, watch = prepared.tokenizer, training.processes, training.watch
    kind = getattr(tokenizer, "name", tokenizer.kind)
    parameters = sum(parameter.numel() for parameter in training.parameters)
    blocks = plural(config.layers, "block")
    if isinstance(config, Seq2SeqConfig):
        blocks = f"{config.layers} + {config.decoder_layers or config.layers} blocks"
    needed = decimal(memory(config, settings, processes.size))
    dtype = str(training.matmul_dtype).removeprefix("torch.")
    smoothing = settings.label_smoothing  # validation has none
    smoothed = f", with labels smoothed by {smoothing:g}" if smoothing else ""
    several, suffix, watched = "", "", ""
    if not processes.is_single:
        part, copy = "rows of all weights (FSDP2)", "a copy of the model (DDP)"
        model, suffix = part if training.runner.is_sharded else copy, " in each process"
        share = f"its share of {settings.batch:,} sequences"
        several = f"{processes.size:,}, each with {model} and {share}"
    if watch is not None:
        omitted = f" ({watch.left_out:,} more are left out)" if watch.left_out else ""
        places = f"{watch.ids.shape[1]:,} tokens{omitted} at {len(watch.steps):,} steps"
        watched = f"{places}; recordings in {plan.directory / WATCHED}"
    values = [
        ("text", plan.title),
        ("", LICENCE if plan.title == TITLE else ""),
        (
            "pairs" if plan.recipe.on_pairs else "tokens",
            f"{len(tokens.train):,} to train on, {len(tokens.validation):,} to validate on; "
            f"{kind}, {tokenizer.size:,} in the vocabulary",
        ),
        (
            "model",
            f"{count(parameters)} parameters: {blocks} of {plural(config.heads, 'head')}, width "
            f"{config.width}, context {config.context_length:,} tokens",
        ),
        ("memory", f"about {needed}{suffix}"),
        ("device", f"{training.device}, matrix products in {dtype}"),
        ("processes", several),
        ("watched", watched),
        (
            "loss",
            "mean in nats per token; training: over the latest tenth of the steps, at most "
            f"{MAX_AVERAGED}{smoothed}; validation: over the whole split",
        ),
    ]
    return [(name, value) for name, value in values if value]


def train(plan: Plan, training: Training, console: Console) -> Ended:
    """Train to the end or until Ctrl-C, and show the progress; the caller holds the run's lock.

    Raises:
        OSError: the output can no longer be written; training then stops, and the run is saved.
    """
    from heedful.train import Ended
    from heedful.train.events import Noticed
    from heedful.train.run import events
    from heedful.views.progress import training_view

    steps, start = training.settings.steps, training.progress.step
    ended, output_error = Ended(start, "finished"), None
    with _stopping(training), training_view(console, steps, start) as view:
        for event in events(plan, training):
            if isinstance(event, Ended):
                ended = event
            try:
                view.show(event)
                if isinstance(event, Noticed):
                    console.print(event.message, soft_wrap=True, markup=False)
            except OSError as error:
                output_error = error
                training.stop()
    if output_error:
        raise output_error
    return ended


LOST_OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF)


@contextmanager
def report_lost_output(directory: Path) -> Iterator[None]:
    """Replace an error of writing the output by an error that names the run's last saved step.

    Raises:
        HeedfulError: standard output is closed, its disk is full, or its terminal has ended.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, HeedfulError) or error.filename or error.errno not in LOST_OUTPUT:
            raise
        from heedful.train.checkpoint import saved_step

        step = saved_step(directory)
        saved = "nothing was trained yet" if step is None else f"saved at step {step:,}"
        raise HeedfulError(
            f"standard output cannot be written ({error.strerror})",
            cause="the reader of a pipe has ended, the disk is full, or the terminal is closed",
            remedy=f"{saved}: continue with {suggestion('train', '--out', directory, '--resume')}",
        ) from error


def suggested_trial(prepared: Prepared) -> tuple[str, str]:
    """Return the name of a command that runs the model, and a text from the validation split.

    The text is empty if the split has no words. For a BERT, one word of the text is masked.
    """
    from heedful.models import BertConfig
    from heedful.text import PairFile
    from heedful.train.tasks import SPECIAL_TOKENS

    tokenizer, tokens, config = prepared
    if isinstance(tokens, PairFile):
        source, _ = tokens[len(tokens) - 1]
        text = tokenizer.decode(source[:-1])
        return "translate", beginning(text) if text.isprintable() else ""
    split = tokens.validation if len(tokens.validation) else tokens.train
    text = tokenizer.decode(split[:SEARCHED])
    if not isinstance(config, BertConfig):
        return "generate", _phrase(text, 4, config.context_length)
    words = _phrase(text, 9, config.context_length - SPECIAL_TOKENS).split()
    single = [n for n, word in enumerate(words) if len(tokenizer.encode(word)) == 1]
    index = single[len(single) // 2] if single else len(words) // 2
    mask = tokenizer.decode([tokenizer.special["mask"]])
    return "fill", " ".join([*words[:index], mask, *words[index + 1 :]]) if words else ""


def _phrase(text: str, words: int, length: int) -> str:
    """Return at most `words` words and `length` characters, from a sentence's start if possible."""
    run = rf"[^\W\d_]+(?: [^\W\d_]+){{0,{words - 1}}}"
    phrases = re.findall(rf"(?:(?<=[.!?] )|(?<=\n)){run}", text) or re.findall(run, text)
    return beginning(max(phrases, key=lambda phrase: phrase.count(" "), default=""), length)


def show_stopped(step: int, out: Path, console: Console) -> None:
    """Print the command that continues a stopped run."""
    console.print(f"Stopped and saved at step {step:,}. Continue with:")
    line = f"  {suggestion('train', '--out', out, '--resume')}"
    console.print(line, style="bold", soft_wrap=True, markup=False)


def draw_losses(directory: Path, path: Path) -> Path | None:
    """Draw the loss curve of a run into a file; return its path, or None without metrics."""
    from heedful.pictures.saving import save
    from heedful.train import read_metrics
    from heedful.train.run_files import METRICS
    from heedful.views.training_curve import Losses, loss_curve

    losses = Losses.of(read_metrics(directory / METRICS))
    if not losses.steps:
        return None
    return save(loss_curve(losses), path)


@contextmanager
def _stopping(training: Training) -> Iterator[None]:
    """Stop training after the current step at the first Ctrl-C or SIGTERM; at once at the second.

    A closed terminal (SIGHUP) stops training after the step too, unless `nohup` ignores the
    signal. Terminals often send SIGHUP twice, so a second one has no effect.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        training.stop()
        if number != HANGUP:
            signal.signal(number, handlers[number])

    handlers: dict[int, Any] = {}  # the caller's handlers, by signal
    for number in (signal.SIGINT, signal.SIGTERM, HANGUP):
        if number is None or (number == HANGUP and signal.getsignal(number) == signal.SIG_IGN):
            continue
        with suppress(ValueError):  # raised outside the main thread, as in some tests and notebooks
            handlers[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handlers:
            signal.signal(number, handlers[number])
