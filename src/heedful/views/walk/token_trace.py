"""The walk of a single token in a terminal, with its sums written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from heedful.explain import Stage
from heedful.views.number_format import FULL, Labels, corners, formatter, sum_of
from heedful.views.terminal import fit
from heedful.views.walk.terminal_pages import Page, has_query_rows

LARGEST = 12  # keys shown of a long text


class TokenPage(Page):
    """Prints the steps of an explanation for its selected token."""

    most_keys, largest = FULL, LARGEST  # keys shown: all, or those with the largest weights

    def print_stages(self, *stages: Stage) -> None:
        """Print the token's row of each stage, or keys and values side by side."""
        rest = [stage for stage in stages if not has_query_rows(stage)]
        for stage in stages:
            if has_query_rows(stage) or len(rest) < 2:
                self.print_row(stage)
        if len(rest) > 1:
            super().print_stages(*rest)

    def print_row(self, stage: Stage) -> None:
        """Print one step of the token."""
        if self._print_brief(stage):
            return
        self._print_title(stage)
        self._print(self._words([stage], self.room))
        self.screen.print()
        self.print_numbers(stage)

    def print_numbers(self, stage: Stage) -> None:
        """Print the numbers of the token's row."""
        if not has_query_rows(stage):
            self._print(self._matrices(stage)[0].lines(self.room, limit=self._row_limit(stage)))
        elif stage.columns in ("tokens", "memory"):
            self._print_keys(stage)
        elif stage.kind == "context":
            self._print_sum(stage)
        elif stage.factors and stage.shape[-1] <= LARGEST:
            self._print_products(stage, range(stage.shape[-1]), Labels(()))
        else:
            self._print(self._matrices(stage)[0].lines(self.room, only=[self.explanation.row]))
            if example := self._example(stage, self.room):
                self.screen.print()
                self._print(example)

    def _numbers(self, stage: Stage, columns: Sequence[int]) -> list[float]:
        """Return numbers of the token's row."""
        return self._part(stage, [self.explanation.row], columns, self.explanation.head)[0]

    def _keys(self) -> list[int]:
        """Return the keys to show: all, or those with the largest weights."""
        stage = self.section.stage("weights")
        count = stage.shape[-1]
        if count <= self.most_keys:
            return list(range(count))
        weights = self._numbers(stage, range(count))
        return sorted(sorted(range(count), key=lambda m: -weights[m])[: self.largest])

    def _print_keys(self, stage: Stage) -> None:
        """Print a line per key: a dot product, a changed score, or a weight with a bar."""
        keys = self._keys()
        labels = Labels(self.explanation.labels(stage.columns))
        if stage.factors is not None:
            self._print_products(stage, keys, labels)
        elif stage.kind == "weights":
            self.print_bars(self._numbers(stage, keys), Labels([labels(key) for key in keys]))
        else:
            old, new = (self._numbers(s, keys) for s in (stage.sources[0], stage))
            write, width = formatter([*old, *new]), self._width([labels(key) for key in keys])
            cells = max(len(write(number)) for number in [*old, *new])
            for key, was, now in zip(keys, old, new, strict=True):
                last = (fit(write(now), cells), "bold" if now > -float("inf") else "dim")
                self._print_item(labels(key), width, f"{fit(write(was), cells)} → ", last)
        omitted = stage.shape[-1] - len(keys)
        if omitted:
            weights = self._numbers(self.section.stage("weights"), keys)
            share = max(0.0, 1 - sum(weights))
            self.write(f"… and {omitted:,} others, whose weights sum to {share:.4f}", "dim")

    def _print_products(self, stage: Stage, columns: Sequence[int], labels: Labels) -> None:
        numbers = self._numbers(stage, columns)
        write, width = formatter(numbers), self._width([labels(column) for column in columns])
        for column, number in zip(columns, numbers, strict=True):
            total = f" = {write(number)}"
            room = self.room - width - 2 - len(total)
            terms = sum_of(self.explanation, stage, self.explanation.row, column, room)
            self._print_item(labels(column), width, terms, (total, "bold"))

    def _print_sum(self, stage: Stage) -> None:
        """Print the context as a weighted sum of values."""
        weights, value = self.section.stage("weights"), (stage.factors or (stage, stage))[1]
        shares = self._numbers(weights, range(weights.shape[-1]))
        keys = [key for key in self._keys() if shares[key]] or [0]
        omitted = sum(share != 0 for share in shares) - len(keys)
        labels, shares = Labels(self.explanation.labels(value.rows)), [shares[k] for k in keys]
        write, width = formatter(shares), self._width([labels(key) for key in keys])
        cells = max(len(write(share)) for share in shares)
        columns = corners(value.shape[-1], max(3, (self.room - width - cells - 9) // 9))
        indices = [column for column in columns if column is not None]
        vectors = self._part(value, keys, indices, self.explanation.head)
        total = self._numbers(stage, indices)
        form = formatter([number for vector in vectors for number in vector])
        wide = max(len(form(n)) for vector in vectors for n in vector)
        wide = max(wide, *(len(formatter(total)(n)) for n in total))
        for i, (key, share, vector) in enumerate(zip(keys, shares, vectors, strict=True)):
            sign = "+ " if i else "  "
            text = f"{sign}{fit(write(share), cells)} × {_vector(vector, columns, form, wide)}"
            self._print_item(labels(key), width, text, ("", ""))
        if omitted > 0:
            self._print_item("…", width, f"+ … {omitted:,} others", ("", ""))
        text = " " * cells + "   = "
        self._print_item("", width, text, (_vector(total, columns, formatter(total), wide), "bold"))


def _vector(
    numbers: Sequence[float], columns: Sequence[int | None], form: Callable[[float], str], wide: int
) -> str:
    remaining = iter(numbers)
    parts = ["…" if column is None else fit(form(next(remaining)), wide) for column in columns]
    return "[" + "  ".join(parts) + "]"
