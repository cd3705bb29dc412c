"""The training loop: a generator of events, each step a function of the state, seed and step.

It writes metrics and checkpoints; its caller displays them.
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

from heedful.device import choose_matmul_dtype
from heedful.errors import HeedfulError
from heedful.models import GPT, Bert, Seq2Seq
from heedful.processes import Processes
from heedful.train import checkpoint
from heedful.train.batches import BatchIndex, take_turns
from heedful.train.checkpoint import latest, saved_step
from heedful.train.compiled_pass import Loss, compiled
from heedful.train.events import Ended, Event, Noticed, Saved, Step, Validation, Watched
from heedful.train.metrics import Line, Metrics, Progress
from heedful.train.optimizers import make_optimizer, rate_factor, set_rates
from heedful.train.parallel import clip_gradients, full_tensor, model_runner
from heedful.train.run_files import METRICS
from heedful.train.settings import TrainSettings
from heedful.train.tasks import Task
from heedful.train.watch import remove_recordings_after

if TYPE_CHECKING:
    from heedful.train.watch import Watch

# The size of a validation batch, if a training batch is smaller: logits (32 MB in float32), and on
# a CPU tokens, so that their states stay in the caches
VALIDATION_LOGITS, VALIDATION_TOKENS = 1 << 23, 1 << 13


class Training:
    """The training of a run in a directory; `events` trains and yields what happens.

    Args:
        directory: the run directory, for `model.safetensors` (the best weights),
            `state/last.safetensors` and `metrics.jsonl`.
        model: the model, on its device, unless it will be sharded.
        task: what the model is trained on.
        settings: how to train.
        processes: the processes that train together, each on its own sequences of a batch; default
            this one alone. All yield the same events; the first one writes the files.
        device: where to train; default the model's device.

    If `watch` is set, the heads are scored on its text during training. `callbacks` are called with
    each line of `metrics.jsonl`, in the process that writes it.
    """

    def __init__(
        self,
        directory: Path,
        model: GPT | Bert | Seq2Seq,
        task: Task,
        settings: TrainSettings,
        processes: Processes | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.directory, self.model, self.task, self.settings = directory, model, task, settings
        self.processes = processes or Processes()
        self.device = device or next(model.parameters()).device
        self.products = choose_matmul_dtype(settings.precision, self.device)
        self.runner = model_runner(model, self.processes, self.device, settings.shard)
        self.optimizer = make_optimizer(model, settings, self.processes, self.products)
        self.watch: Watch | None = None
        self.callbacks: list[Callable[[Line], None]] = []
        self.parameters = list(model.parameters())
        self._training_loss = compiled(task.loss) if settings.compile else task.loss
        self.progress = Progress()
        self._stopping = self._all_stopping = False

    def restore(self) -> bool:
        """Restore the last checkpoint; return False if there is none."""
        if latest(self.directory) is None:
            return False
        self.progress = checkpoint.load(self.directory, self.model, self.optimizer, self.processes)
        return True

    def stop(self) -> None:
        """Save and end after the current step, in all processes."""
        self._stopping = True
        self._all_stopping = self.processes.is_single

    def events(self) -> Iterator[Event]:
        """Train until the last step, an early stop, or `stop`; yield what happens.

        Hold the lock of `heedful.train.run_directory.owning` meanwhile.
        """
        keep_freed_memory()
        metrics = Metrics(
            self.directory / METRICS,
            self.progress,
            is_writer=self.processes.is_first,
            callbacks=self.callbacks if self.processes.is_first else (),
        )
        try:
            yield from self._events(metrics)
        finally:
            metrics.close()

    def _events(self, metrics: Metrics) -> Iterator[Event]:
        self.model.train()
        if self.processes.is_first:
            remove_recordings_after(self.directory, self.progress.watched)
        saved = self.progress.step
        if metrics.is_truncated:
            words = f"{METRICS} has lost lines up to step {saved:,}; training goes on without them."
            yield Noticed(saved, words)
        if self.settings.compile:
            yield Noticed(saved, "The first step takes long: the training pass is compiled in it.")
        while True:
            yield from self._validate(metrics)
            reason, step = self._end_reason(), self.progress.step
            if reason != "stopped":  # the user is waiting: heads are scored when the run resumes
                yield from self._watch_heads(metrics, last=reason == "early")
            if reason or (step % self.settings.save_every == 0 and step != saved):
                yield self._save()
                saved = step
            if reason:
                yield Ended(step, reason)
                return
            yield self._step(metrics)

    def evaluate(self, data: Any) -> float | None:
        """Return the mean loss over a split, in nats per token, or None if a stop was requested.

        Labels are not smoothed, so that runs can be compared.
        """
        self.model.eval()
        try:
            return self._mean_loss(data)
        finally:
            self.model.train()

    def _mean_loss(self, data: Any) -> float | None:
        """Evaluate in turns; a process without a batch repeats the last, as all run together."""
        total, count = 0.0, 0
        tokens = VALIDATION_LOGITS // self.model.config.vocabulary
        if self.device.type == "cpu":
            tokens = min(tokens, VALIDATION_TOKENS)
        most = max(self.settings.batch, tokens // self.task.context_length)
        for batch, is_new in take_turns(self.task.in_order(data, most), self.processes):
            if self._should_stop():
                return None
            targets = self.task.target_count(batch)
            loss = float(self._loss(self.runner.run_inference, self.task.loss, batch, 0.0))
            total += is_new * loss * targets
            count += is_new * targets
        all_loss, all_targets = self.processes.all_reduce([total, count], self.device)
        return all_loss / all_targets

    def _should_stop(self) -> bool:
        """Whether a stop was requested in any process."""
        if not (self.processes.is_single or self._all_stopping):
            self._all_stopping = self.processes.any(self._stopping, self.device)
        return self._all_stopping

    def _step(self, metrics: Metrics) -> Step:
        settings, step = self.settings, self.progress.step
        began = time.perf_counter()
        set_rates(self.optimizer, step, settings)
        for parameter in self.parameters:
            parameter.grad = None
        parts = [self._backward(part) for part in range(settings.accumulation)]
        loss, tokens = self._sum_over_processes(parts)
        self._check_finite("training loss is", loss)
        if settings.clip:
            clip_gradients(self.parameters, settings.clip, self.processes)
        self.optimizer.step()
        self.progress.step += 1
        rate = settings.learning_rate * rate_factor(step, settings)
        mean = metrics.write_step(step + 1, loss, rate)
        return Step(step + 1, loss, mean, rate, tokens, time.perf_counter() - began)

    def _sum_over_processes(self, parts: list[tuple[float, int]]) -> tuple[float, int]:
        """Sum loss and targets over the processes, and share requests to stop, in one message."""
        loss, targets = (sum(numbers) for numbers in zip(*parts, strict=True))
        if self.processes.is_single:
            return loss, targets
        numbers = [loss, targets, float(self._stopping)]
        loss, targets, stopping = self.processes.all_reduce(numbers, self.device)
        self._all_stopping = self._all_stopping or stopping > 0
        return loss, int(targets)

    def _check_finite(self, subject: str, value: float) -> None:
        """Raise an error if the value is not finite, before such weights are saved."""
        if math.isfinite(value):
            return
        step = saved_step(self.directory)
        raise HeedfulError(
            f"the {subject} {value} after {self.progress.step:,} steps",
            cause="a learning rate that is too high",
            remedy="train again with --overwrite and a lower --learning-rate"
            if step is None
            else f"the checkpoint of step {step:,} was kept: continue from it with --resume and a "
            "lower --learning-rate",
        )

    def _backward(self, part: int) -> tuple[float, int]:
        """Accumulate one batch's gradient; return its part of the loss, and its targets.

        Each process takes its own rows of the batch. torch averages gradients over the processes,
        so the loss is weighted by the share of targets times the number of processes.
        """
        settings, processes, task = self.settings, self.processes, self.task
        key = settings.seed, self.progress.step, part
        index = BatchIndex(key, self.progress.read if settings.order == "shuffled" else None)
        rows = processes.share(settings.batch)
        batch = task.draw(settings.batch, index, rows)
        self.progress.read += settings.batch
        dropout = key if processes.is_first else (*key, processes.rank)
        _seed_dropout(int(np.random.default_rng(dropout).integers(2**63)), self.device)
        with self.runner.accumulating(is_last=part == settings.accumulation - 1):
            training = self.runner.run_training
            loss = self._loss(training, self._training_loss, batch, settings.label_smoothing)
            loss = loss / settings.accumulation
            if not processes.is_single:
                loss = loss * (task.target_share(settings.batch, index, rows) * processes.size)
            loss.backward()
        return loss.item() / processes.size, task.target_count(batch)

    def _loss(self, run: Any, loss: Loss, batch: Any, smoothing: float) -> torch.Tensor:
        batch = type(batch)(*(tensor.to(self.device) for tensor in batch))
        is_bfloat16 = self.products == torch.bfloat16
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=is_bfloat16):
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

    def _watch_heads(self, metrics: Metrics, last: bool) -> Iterator[Watched]:
        step = self.progress.step
        if self.watch is None or step == self.progress.watched:
            return
        if not (last or step in self.watch.steps):
            return
        saves = self.processes.is_first
        watched = self.watch.record_step(self.runner, self.directory, step, saves=saves)
        self.progress.watched = step
        metrics.write(step=step, watched=watched.scores)
        yield watched

    def _end_reason(self) -> str | None:
        if self._all_stopping:
            return "stopped"
        if self.progress.step >= self.settings.steps:
            return "finished"
        early = self.settings.patience and self.progress.waited >= self.settings.patience
        return "early" if early else None

    def _save(self) -> Saved:
        size = float(full_tensor(nn.utils.get_total_norm([p.detach() for p in self.parameters])))
        self._check_finite("norm of the weights is", size)
        checkpoint.save(self.directory, self.model, self.optimizer, self.progress, self.processes)
        if self.progress.best_step < 0:  # without validation, the last weights count as the best
            self._save_weights()
        return Saved(self.progress.step)

    def _save_weights(self) -> None:
        checkpoint.save_weights(self.directory, self.model, self.progress, self.processes)


def _seed_dropout(seed: int, device: torch.device) -> None:
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also prepares every GPU
    else:
        torch.manual_seed(seed)


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for reuse, in this process.

    Each step allocates and frees the same tensors. By default glibc returns large ones to the
    system, which clears their pages again: a step of 12 × 64 tokens then took 1.06 times the
    processor time (median of 14 pairs). Peak memory is the same. Without glibc, do nothing.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD: freed bytes at the heap's end
        libc.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD, the most that glibc allows
