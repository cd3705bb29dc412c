"""The training loop: a generator of events, each step a function of the state, seed and step.

It writes numbers and checkpoints; who iterates over it draws them.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from heedful.device import choose_products
from heedful.errors import HeedfulError
from heedful.models import GPT, Bert, Seq2Seq
from heedful.processes import Processes
from heedful.train import checkpoint
from heedful.train.batches import Which, in_turns
from heedful.train.checkpoint import latest, saved_step
from heedful.train.compiled_pass import Loss, compiled
from heedful.train.events import Ended, Event, Noticed, Saved, Step, Validation, Watched
from heedful.train.metrics import Line, Metrics, Progress
from heedful.train.optimizers import make_optimizer, set_rates, share_of_rate
from heedful.train.parallel import clip, passes_of, whole
from heedful.train.run_files import METRICS
from heedful.train.settings import TrainSettings
from heedful.train.tasks import Task
from heedful.train.watch import forget_after

if TYPE_CHECKING:
    from heedful.train.watch import Watch

# In one pass of validation, where a training batch has fewer: logits (32 MB), and on a CPU tokens,
# whose states then stay in its caches
VALIDATION_LOGITS, VALIDATION_TOKENS = 1 << 23, 1 << 13


class Training:
    """A run in a directory; `events` trains it and says what happens.

    Args:
        directory: where `model.safetensors` (the best), `state/last.safetensors` and
            `metrics.jsonl` go.
        model: the model, on its device, or one that is to be cut among processes.
        task: what it is trained on.
        settings: how to train.
        here: which process this is, where several train the model together, each with its own
            sequences of a batch. All have the same events; the first one writes.
        device: where to train; where the model is by default.

    `watch` looks at a text meanwhile, if it is set; `callbacks` are called with each line of
    `metrics.jsonl`, in the process that writes it.
    """

    def __init__(
        self,
        directory: Path,
        model: GPT | Bert | Seq2Seq,
        task: Task,
        settings: TrainSettings,
        here: Processes | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.directory, self.model, self.task, self.settings = directory, model, task, settings
        self.here = here or Processes()
        self.device = device or next(model.parameters()).device
        self.products = choose_products(settings.precision, self.device)
        self.passes = passes_of(model, self.here, self.device, settings.shard)
        self.optimizer = make_optimizer(model, settings, self.here, self.products)
        self.watch: Watch | None = None
        self.callbacks: list[Callable[[Line], None]] = []
        self.parameters = list(model.parameters())
        self._training_loss = compiled(task.loss) if settings.compile else task.loss
        self.progress = Progress()
        self._stopping = self._all_stop = False

    def restore(self) -> bool:
        """Go back to the last checkpoint; False where nothing was saved yet."""
        if latest(self.directory) is None:
            return False
        self.progress = checkpoint.restore(self.directory, self.model, self.optimizer, self.here)
        return True

    def stop(self) -> None:
        """Save and end after the step that is under way, and so do the other processes."""
        self._stopping = True
        self._all_stop = self.here.is_alone

    def events(self) -> Iterator[Event]:
        """Train until the last step, an early stop, or `stop`; yield what happens.

        Nobody else may write in the directory meanwhile:
        `heedful.train.run_directory.owning` sees to it.
        """
        keep_freed_memory()
        metrics = Metrics(
            self.directory / METRICS,
            self.progress,
            is_writer=self.here.is_first,
            callbacks=self.callbacks if self.here.is_first else (),
        )
        try:
            yield from self._events(metrics)
        finally:
            metrics.close()

    def _events(self, metrics: Metrics) -> Iterator[Event]:
        self.model.train()
        if self.here.is_first:
            forget_after(self.directory, self.progress.watched)
        saved = self.progress.step
        if metrics.is_cut:
            words = f"{METRICS} has lost lines up to step {saved:,}; training goes on without them."
            yield Noticed(saved, words)
        if self.settings.compile:
            yield Noticed(saved, "The first step takes long: the training pass is compiled in it.")
        while True:
            yield from self._validate(metrics)
            why, step = self._why_end(), self.progress.step
            if why != "stopped":  # who asked for that waits; the run looks when it goes on
                yield from self._look(metrics, last=why == "early")
            if why or (step % self.settings.save_every == 0 and step != saved):
                yield self._save()
                saved = step
            if why:
                yield Ended(step, why)
                return
            yield self._step(metrics)

    def evaluate(self, data: Any) -> float | None:
        """Mean loss over all of a split, in nats per token; None where asked to stop.

        Labels are not smoothed, so that runs can be compared.
        """
        self.model.eval()
        try:
            return self._mean_loss(data)
        finally:
            self.model.train()

    def _mean_loss(self, data: Any) -> float | None:
        """Passes are shared out in turns; who has none left repeats one, as all run together."""
        total, count = 0.0, 0
        tokens = VALIDATION_LOGITS // self.model.config.vocabulary
        if self.device.type == "cpu":
            tokens = min(tokens, VALIDATION_TOKENS)
        most = max(self.settings.batch, tokens // self.task.context_length)
        for batch, is_new in in_turns(self.task.every(data, most), self.here):
            if self._must_stop():
                return None
            targets = self.task.targets(batch)
            loss = float(self._loss(self.passes.looking, self.task.loss, batch, smoothing=0.0))
            total += is_new * loss * targets
            count += is_new * targets
        loss_of_all, targets_of_all = self.here.sums([total, count], self.device)
        return loss_of_all / targets_of_all

    def _must_stop(self) -> bool:
        """Whether any of the processes was asked to stop."""
        if not self.here.is_alone:
            self._all_stop = self._all_stop or self.here.any(self._stopping, self.device)
        return self._all_stop

    def _step(self, metrics: Metrics) -> Step:
        settings, step = self.settings, self.progress.step
        began = time.perf_counter()
        set_rates(self.optimizer, step, settings)
        for parameter in self.parameters:
            parameter.grad = None
        parts = [self._backward(part) for part in range(settings.accumulation)]
        loss, tokens = self._over_all(parts)
        self._check_finite("training loss is", loss)
        if settings.clip:
            clip(self.parameters, settings.clip, self.here)
        self.optimizer.step()
        self.progress.step += 1
        rate = settings.learning_rate * share_of_rate(step, settings)
        mean = metrics.write_step(step + 1, loss, rate)
        return Step(step + 1, loss, mean, rate, tokens, time.perf_counter() - began)

    def _over_all(self, parts: list[tuple[float, int]]) -> tuple[float, int]:
        """The loss and the targets of a step, of all processes; and whether one was asked to stop.

        All in one message: with many processes each of them takes its time.
        """
        loss, targets = (sum(numbers) for numbers in zip(*parts, strict=True))
        if self.here.is_alone:
            return loss, targets
        told = [loss, targets, float(self._stopping)]
        loss, targets, stopping = self.here.sums(told, self.device)
        self._all_stop = self._all_stop or stopping > 0
        return loss, int(targets)

    def _check_finite(self, what: str, value: float) -> None:
        """Refuse what would spoil the weights, before it does and before they are saved."""
        if math.isfinite(value):
            return
        step = saved_step(self.directory)
        raise HeedfulError(
            f"the {what} {value} after {self.progress.step:,} steps",
            cause="a learning rate that is too high",
            remedy="train again with --overwrite and a lower --learning-rate"
            if step is None
            else f"the checkpoint of step {step:,} was kept: continue from it with --resume and a "
            "lower --learning-rate",
        )

    def _backward(self, part: int) -> tuple[float, int]:
        """Add the gradient of one batch of a step; its part of the loss, and its targets.

        Of several processes each takes its rows. The gradient is the mean over the processes, so
        what a batch of it counts for is multiplied by their number.
        """
        settings, here, task = self.settings, self.here, self.task
        key = settings.seed, self.progress.step, part
        which = Which(key, self.progress.read if settings.order == "shuffled" else None)
        rows = here.share(settings.batch)
        batch = task.draw(settings.batch, which, rows)
        self.progress.read += settings.batch
        dropout = key if here.is_first else (*key, here.rank)
        _seed_dropout(int(np.random.default_rng(dropout).integers(2**63)), self.device)
        with self.passes.adding(is_last=part == settings.accumulation - 1):
            training = self.passes.training
            loss = self._loss(training, self._training_loss, batch, settings.label_smoothing)
            loss = loss / settings.accumulation
            if not here.is_alone:
                loss = loss * (task.share(settings.batch, which, rows) * here.size)
            loss.backward()
        return loss.item() / here.size, task.targets(batch)

    def _loss(self, run: Any, loss: Loss, batch: Any, smoothing: float) -> torch.Tensor:
        batch = type(batch)(*(tensor.to(self.device) for tensor in batch))
        is_narrow = self.products == torch.bfloat16
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=is_narrow):
            return run(loss, batch, smoothing)

    def _validate(self, metrics: Metrics) -> Iterator[Event]:
        progress, settings = self.progress, self.settings
        due = progress.step % settings.evaluate_every == 0 or progress.step == settings.steps
        if not due or progress.evaluated == progress.step or not len(self.task.validation):
            return
        loss = self.evaluate(self.task.validation)
        if loss is None:
            return
        self._check_finite("validation loss is", loss)
        best = loss < progress.best
        progress.evaluated = progress.step
        progress.waited = 0 if best else progress.waited + 1
        if best:
            progress.best, progress.best_step = loss, progress.step
            self._save_weights()
        metrics.write(step=progress.step, validation_loss=loss)
        yield Validation(progress.step, loss, best)

    def _look(self, metrics: Metrics, last: bool) -> Iterator[Watched]:
        step = self.progress.step
        if self.watch is None or step == self.progress.watched:
            return
        if not (last or step in self.watch.moments):
            return
        watched = self.watch.look(self.passes, self.directory, step, keeps=self.here.is_first)
        self.progress.watched = step
        metrics.write(step=step, watched=watched.scores)
        yield watched

    def _why_end(self) -> str | None:
        if self._all_stop:
            return "stopped"
        if self.progress.step >= self.settings.steps:
            return "finished"
        early = self.settings.patience and self.progress.waited >= self.settings.patience
        return "early" if early else None

    def _save(self) -> Saved:
        size = float(whole(nn.utils.get_total_norm([p.detach() for p in self.parameters])))
        self._check_finite("norm of the weights is", size)
        checkpoint.save(self.directory, self.model, self.optimizer, self.progress, self.here)
        if self.progress.best_step < 0:  # nothing was validated, so the last is the best known
            self._save_weights()
        return Saved(self.progress.step)

    def _save_weights(self) -> None:
        checkpoint.save_weights(self.directory, self.model, self.progress, self.here)


def _seed_dropout(seed: int, device: torch.device) -> None:
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also prepares every GPU
    else:
        torch.manual_seed(seed)


def keep_freed_memory() -> None:
    """Have glibc return freed memory to the system late, for the whole process.

    Each step takes and frees the same tensors. By default the larger ones go back, and the system
    clears their pages anew: a step of 12 × 64 tokens then took 1.06 of its processor time, the
    median of 14 pairs. The most that is in use at once is the same. With another C library nothing
    happens.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD: freed bytes at the heap's end
        libc.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD, the most that glibc allows
