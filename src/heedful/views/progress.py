"""Progress of training and other long tasks: live bars in a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from heedful.train import Event, Step, Validation
from heedful.views.terminal import console, duration

SMOOTHED = 50  # steps over which the speed is averaged
MIN_BAR, MAX_BAR = 16, 40  # length of the bar in terminal cells
# Cells of the text beside the bar, without the step numbers; the speed is optional
TEXT = len(" /  training 0.000  validation 0.000  59 min 59 s left")
SPEED = len("  100,000 tokens/s")


class Meter:
    """Running statistics of training: loss, tokens per second and time left."""

    def __init__(self, steps: int, start: int) -> None:
        self.steps, self.step = steps, start
        self._recent: deque[tuple[Step, float]] = deque(maxlen=SMOOTHED)

    def add(self, step: Step) -> None:
        """Add a training step."""
        self._recent.append((step, time.monotonic()))
        self.step = step.step

    @property
    def loss(self) -> str:
        """Mean training loss in nats per token, over the latest steps."""
        return f"{self._recent[-1][0].mean:.3f}" if self._recent else "–"

    @property
    def speed(self) -> str:
        """Tokens per second, without the time between training steps."""
        seconds = sum(step.seconds for step, _ in self._recent)
        tokens = sum(step.tokens for step, _ in self._recent)
        return f"{tokens / seconds:,.0f}" if seconds else "–"

    @property
    def time_left(self) -> str:
        """Estimated time left, from the pace of recent steps with their validations and saves."""
        if len(self._recent) < 2:
            return "…"
        (first, start), (last, now) = self._recent[0], self._recent[-1]
        pace = (now - start) / max(1, last.step - first.step)
        return duration(pace * (self.steps - last.step))


class LiveTraining:
    """A live progress bar with training loss, validation loss, speed and time left."""

    def __init__(self, console: Console, steps: int, start: int) -> None:
        self._meter = Meter(steps, start)
        self._validation = "–"
        self._bar = BarColumn()
        line = TextColumn("{task.fields[line]}")
        self.progress = Progress(self._bar, line, console=console, refresh_per_second=8)
        self._task: TaskID = self.progress.add_task("", total=steps, completed=start, line="")

    def show(self, event: Event) -> None:
        """Update the bar after a step or a validation."""
        if isinstance(event, Step):
            self._meter.add(event)
        elif isinstance(event, Validation):
            self._validation = f"{event.loss:.3f}"
        meter, steps = self._meter, f"{self._meter.steps:,}"
        room = self.progress.console.width - TEXT - 2 * len(steps)
        has_speed = room >= MIN_BAR + SPEED
        self._bar.bar_width = min(max(room - has_speed * SPEED, MIN_BAR // 2), MAX_BAR)
        speed = f"{meter.speed:>7} tokens/s  " if has_speed else ""
        line = (
            f"[bold]{meter.step:>{len(steps)},}[/]/{steps}  training [bold]{meter.loss:>5}[/]  "
            f"validation [bold]{self._validation:>5}[/]  [dim]{speed}{meter.time_left} left[/]"
        )
        self.progress.update(self._task, completed=meter.step, line=line)


class PlainTraining:
    """Progress for pipes and logs: a line per validation, and about ten lines for the steps."""

    def __init__(self, console: Console, steps: int, start: int) -> None:
        self._console, self._meter = console, Meter(steps, start)
        self._every = max(1, (steps - start) // 10)

    def show(self, event: Event) -> None:
        """Print a line after a validation, and after every tenth of the steps."""
        meter = self._meter
        if isinstance(event, Step):
            meter.add(event)
            if event.step % self._every == 0:
                self._console.print(
                    f"step {event.step:,}/{meter.steps:,}  training loss {meter.loss}  "
                    f"{meter.speed} tokens/s  {meter.time_left} left"
                )
        elif isinstance(event, Validation):
            best = "  (best so far)" if event.is_best else ""
            self._console.print(f"step {event.step:,}  validation loss {event.loss:.3f}{best}")


@contextmanager
def training_view(
    console: Console, steps: int, start: int
) -> Iterator[LiveTraining | PlainTraining]:
    """Yield a `LiveTraining` in a terminal, and a `PlainTraining` elsewhere."""
    if not console.is_terminal:
        yield PlainTraining(console, steps, start)
        return
    view = LiveTraining(console, steps, start)
    with view.progress:
        yield view


@contextmanager
def progress_bar(task: str, visible: bool = True) -> Iterator[Callable[[float], None]]:
    """Show a bar for a task; the yielded function sets the completed share, from 0 to 1.

    The bar is drawn on standard error, only in a terminal, and removed at the end. Before the first
    share, it only shows activity. If several processes share a terminal, set `visible` in one only.
    """
    screen = console(stderr=True)
    bar = Progress(
        TextColumn(f"[dim]{task}[/]"),
        BarColumn(bar_width=28),
        TimeElapsedColumn(),
        console=screen,
        transient=True,
        disable=not (visible and screen.is_terminal),
    )
    with bar:
        id = bar.add_task("", total=None)
        yield lambda share: bar.update(id, completed=share, total=1.0)
