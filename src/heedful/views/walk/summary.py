"""A summary of the walk of a model in a terminal: text, attention of one token, and prediction."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from heedful.explain import Section, Stage
from heedful.views.number_format import FULL, Labels, formatter
from heedful.views.terminal import fit
from heedful.views.walk.token_trace import TokenPage


class Summary(TokenPage):
    """Prints a summary of a model's walk, for the selected token."""

    most, notes = FULL, 1

    def print_walk(self) -> None:
        """Print tokens, attention of the selected block and head, changes by block, and answers."""
        walk = self.explanation
        self.print_header()
        self._print_head("tokens", "")
        self.print_ids(*(stage for stage in walk.stages if stage.columns == "id"))
        for section in walk.sections:
            if section.kind.endswith("attention") and section.side != "encoder":
                self.begin_section(section)
                self._print_attention()
        self._print_head(f"How much each part changes the vector of {self._label}", "")
        changes = list(self._changes())
        top = max(change for _, change in changes) or 1.0
        rows = [(name, f"{change:.2f}") for name, change in changes]
        self.write("The length of the change, divided by the length of the vector before.", "dim")
        self.print_table(("", "change"), rows, [change / top for _, change in changes])
        self.print_answers(walk.answers)

    def _print_head(self, name: str, shape: str) -> None:
        self.screen.print()
        title = name[0].upper() + name[1:] + (f", {shape}" if shape else "")
        self.write(f"── {title} ──", "bold cyan", margin=0)

    def _print_attention(self) -> None:
        """Print the token's scores and weights, and write out one of each, and its context."""
        section, context = self.section, self.section.stage("context")
        pairs = [section.of_kind(kind) for kind in ("scores", "scaled", "weights")]
        stages = [stage for stage in pairs if stage is not None]
        weights = self._numbers(stages[-1], range(stages[-1].shape[-1]))
        keys = [key for key in self._keys() if weights[key]] or [0]
        best = max(keys, key=lambda key: weights[key])
        label = Labels(self.explanation.labels(stages[-1].columns))
        names = [label(key) for key in keys]
        columns = [self._numbers(stage, keys) for stage in stages]
        cells = [[formatter(numbers)(number) for number in numbers] for numbers in columns]
        rows = zip((fit(name, self._width(names)) for name in names), *cells, strict=True)
        top = weights[best] or 1.0
        self.write(f"The query of {self._label} is compared with the key of each token.", "dim")
        heads = ["key", *(stage.name for stage in stages)]
        self.print_table(heads, [*rows], [weight / top for weight in columns[-1]])
        if omitted := len(weights) - len(keys):
            share = sum(weights) - sum(columns[-1])
            total = f"sum to {share:.4f}" if share else "are 0 (masked)"
            self.write(f"… and {omitted:,} others, whose weights {total}", "dim")
        self.screen.print()
        self.write(f"The largest weight, that of {label(best)}, written out:", "dim")
        for stage in [*stages, context]:
            self.write(stage.formula, "cyan")
            column = 0 if stage is context else best
            self._print(self.worked_example.example(stage, self.room, column))
        self._print(self._matrices(context)[0].lines(self.room, only=[self.explanation.row]))

    def _changes(self) -> Iterator[tuple[str, float]]:
        """Yield each part of the token's residual stream, and its change relative to the length."""
        state: Tensor | None = None
        for section in self.explanation.sections:
            if section.side == "encoder" or section.kind == "words":
                continue
            for name, stage in _states(section):
                after = stage.part([self.explanation.row], range(stage.shape[-1]))[0]
                if state is not None and section.kind != "vectors":
                    yield name, float((after - state).norm() / state.norm().clamp_min(1e-12))
                state = after


def _states(section: Section) -> list[tuple[str, Stage]]:
    """Return the stages of a section that are states of the residual stream, with names."""
    if section.kind == "blocks":
        return [(stage.name, stage) for stage in section.stages]
    name = f"{section.side} block {section.layer} {section.kind}".strip()
    return [(name, section.stages[-1])]
