"""One token followed through the steps, its sums written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console

from heedful.explain import Explanation, Stage
from heedful.views.number_format import WHOLE, Labels, corners, written
from heedful.views.terminal import fit
from heedful.views.walk.terminal_pages import Page, asks, together

LARGEST = 12  # keys that are shown, where there are many


def follow(screen: Console, explanation: Explanation, places: Sequence[int]) -> None:
    """Print every step for one token alone, its sums written out.

    Args:
        screen: where to.
        explanation: of the text.
        places: where the token stands; the first of them is followed.
    """
    page = Followed(screen, explanation, places[0])
    page.top()
    if len(places) > 1:
        others = ", ".join(f"@{place}" for place in places[1:6]) + ("…" if len(places) > 6 else "")
        page.say(
            f"It stands at {len(places)} places. Here the first, @{places[0]}; see also "
            f"--query {others}."
        )
    for section in explanation.sections:
        page.open(section)
        for stages in together(section.stages):
            asking = [stage for stage in stages if asks(stage)]
            answering = [stage for stage in stages if not asks(stage)]
            for stage in asking:
                page.row(stage)
            if len(answering) > 1:
                page.stage(*answering)
            elif answering:
                page.row(*answering)
    answer = explanation.answer(places[0])
    page.answers(() if answer is None else (answer,))


class Followed(Page):
    """A page with the rows of one token alone."""

    def row(self, stage: Stage) -> None:
        """One step for the followed token alone."""
        if self._said_in_short(stage):
            return
        self._title(stage)
        self._print(self._words([stage], self.room))
        self.screen.print()
        if not asks(stage):
            self._print(self._matrices(stage)[0].lines(self.room, high=self._high(stage)))
        elif stage.columns in ("tokens", "memory"):
            self._pairs(stage)
        elif stage.kind == "context":
            self._sum(stage)
        elif stage.factors and stage.shape[-1] <= LARGEST:
            self._products(stage, range(stage.shape[-1]), Labels(()))
        else:
            self._print(self._matrices(stage)[0].lines(self.room, only=[self._place]))
            if example := self._example(stage, self.room):
                self.screen.print()
                self._print(example)

    def _numbers(self, stage: Stage, columns: Sequence[int]) -> list[float]:
        """Some numbers of the followed token."""
        return self._part(stage, [self._place], columns, self.explanation.head)[0]

    def _keys(self) -> list[int]:
        """The keys to show of the followed query: all, or those with the largest weights."""
        stage = self.section.stage("weights")
        count = stage.shape[-1]
        if count <= WHOLE:
            return list(range(count))
        weights = self._numbers(stage, range(count))
        return sorted(sorted(range(count), key=lambda m: -weights[m])[:LARGEST])

    def _pairs(self, stage: Stage) -> None:
        """A line for each key: its dot product, its score, or its weight as a bar."""
        keys = self._keys()
        labels = Labels(self.explanation.labels(stage.columns))
        if stage.factors is not None:
            self._products(stage, keys, labels)
        elif stage.kind == "weights":
            self._bars(self._numbers(stage, keys), Labels([labels(key) for key in keys]))
            self.say("The longest bar is the largest weight.", "dim")
        else:
            self._changes(self.section.before(stage), stage, keys, labels)
        left = stage.shape[-1] - len(keys)
        if left and stage.kind == "weights":
            share = max(0.0, 1 - sum(self._numbers(stage, keys)))
            self.say(f"… and {left:,} others, with {share:.4f} of the weight together", "dim")
        elif left:
            self.say(f"… those with the largest weights; {left:,} others", "dim")

    def _products(self, stage: Stage, columns: Sequence[int], labels: Labels) -> None:
        numbers = self._numbers(stage, columns)
        write, width = written(numbers), self._width([labels(column) for column in columns])
        for column, number in zip(columns, numbers, strict=True):
            total = f" = {write(number)}"
            room = self.room - width - 2 - len(total)
            made = self.written_out.sum_of(stage, self._place, column, room)
            self._labelled(labels(column), width, made, (total, "bold"))

    def _changes(self, before: Stage, stage: Stage, keys: Sequence[int], labels: Labels) -> None:
        """From the numbers of the stage before to those of this one."""
        old, new = self._numbers(before, keys), self._numbers(stage, keys)
        write, width = written([*old, *new]), self._width([labels(key) for key in keys])
        cells = max(len(write(number)) for number in [*old, *new])
        for key, was, now in zip(keys, old, new, strict=True):
            shown = (fit(write(now), cells), "bold" if now > -float("inf") else "dim")
            self._labelled(labels(key), width, f"{fit(write(was), cells)} → ", shown)

    def _sum(self, stage: Stage) -> None:
        """The context as a weighted sum of values."""
        weights, value = self.section.stage("weights"), (stage.factors or (stage, stage))[1]
        keys = self._keys()
        labels = Labels(self.explanation.labels(value.rows))
        shares = self._numbers(weights, keys)
        write, width = written(shares), self._width([labels(key) for key in keys])
        cells = max(len(write(share)) for share in shares)
        columns = corners(value.shape[-1], max(3, (self.room - width - cells - 9) // 9))
        shown = [column for column in columns if column is not None]
        vectors = self._part(value, keys, shown, self.explanation.head)
        total = self._numbers(stage, shown)
        form = written([number for vector in vectors for number in vector])
        wide = max(len(form(n)) for vector in vectors for n in vector)
        wide = max(wide, *(len(written(total)(n)) for n in total))
        for i, (key, share, vector) in enumerate(zip(keys, shares, vectors, strict=True)):
            sign = "+ " if i else "  "
            text = f"{sign}{fit(write(share), cells)} × {_vector(vector, columns, form, wide)}"
            self._labelled(labels(key), width, text, ("", ""))
        if len(keys) < value.shape[-2]:
            self._labelled("…", width, f"+ … {value.shape[-2] - len(keys):,} others", ("", ""))
        text = " " * cells + "   = "
        self._labelled("", width, text, (_vector(total, columns, written(total), wide), "bold"))


def _vector(
    numbers: Sequence[float], columns: Sequence[int | None], form: Callable[[float], str], wide: int
) -> str:
    rest = iter(numbers)
    shown = ["…" if column is None else fit(form(next(rest)), wide) for column in columns]
    return "[" + "  ".join(shown) + "]"
