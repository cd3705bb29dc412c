"""A summary of a model's walk in a terminal: the attention of one token, and its prediction."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from heedful.views.number_format import Labels
from heedful.views.walk.token_trace import TokenPage


class Summary(TokenPage):
    """Prints a summary of a model's walk, for the selected token."""

    most, notes, most_keys, largest = 12, 1, 10, 5

    def print_walk(self) -> None:
        """Print tokens, attention of the selected block and head, changes by block, and answers."""
        walk = self.explanation
        self.print_header()
        for section in walk.sections:
            if section.stages[0].columns == "id":
                self.begin_section(section)
                self.print_ids(section.stages[0])
            elif section.kind.endswith("attention") and section.side != "encoder":
                self.begin_section(section)
                for kind in ("scores", "scaled", "weights", "context"):
                    stage = section.stage(kind)
                    self.write(stage.formula, "cyan")
                    if kind in ("scaled", "weights"):
                        self._print(self._example(stage, self.room, self._keys()[0]))
                    if kind != "scaled":
                        self.print_numbers(stage)
        names, changes = zip(*self._changes(), strict=True)
        token = Labels(walk.labels("tokens"))(walk.row)
        self._print_head(f"change of {token} by each part, relative to its length", "")
        self.print_bars(changes, Labels(names))
        self.print_answers(walk.answers)

    def _print_head(self, name: str, shape: str) -> None:
        self.screen.print()
        title = name[0].upper() + name[1:] + (f", {shape}" if shape else "")
        self.write(f"── {title} ──", "bold cyan", margin=0)

    def _keys(self) -> list[int]:
        """Return the keys to show, without masked ones: the summary does not show the mask."""
        keys = super()._keys()
        weights = self._numbers(self.section.stage("weights"), keys)
        return [key for key, weight in zip(keys, weights, strict=True) if weight] or keys[:1]

    def _changes(self) -> Iterator[tuple[str, float]]:
        """Yield each part of the residual stream, and the relative change of the token's vector."""
        walk = self.explanation
        states = [
            (section, stage, stage.part([walk.row], range(stage.shape[-1]))[0])
            for section in walk.sections
            if section.side != "encoder" and section.kind != "words"
            for stage in (section.stages if section.kind == "blocks" else section.stages[-1:])
        ]
        for (_, _, before), (section, stage, after) in itertools.pairwise(states):
            part = f"block {section.layer} {section.kind}"
            if section.kind != "vectors":
                name = stage.name if section.kind == "blocks" else part
                yield name, float((after - before).norm() / before.norm().clamp_min(1e-12))
