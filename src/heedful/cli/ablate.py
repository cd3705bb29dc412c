"""The command `heedful ablate`."""

from __future__ import annotations

import csv
import functools
import glob
import hashlib
import json
import math
import os
import runpy
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heedful.cli import survey
from heedful.cli.input_texts import file_option, note, notices, read_text
from heedful.cli.options import check_model, json_option, opening_options, refuse
from heedful.cli.output_paths import check_folder
from heedful.errors import ArgumentError, TextError
from heedful.files import check_free, write_json

if TYPE_CHECKING:
    from heedful.interventions.ablation import Ablation, Context, Effect
    from heedful.loaded import LoadedModel, ModelInputs
    from heedful.processes import Processes
    from heedful.recording import HeadTotals, Recording

METRICS = ("loss", "logit-difference", "kl")
TITLES = {"delta": "Δ", "error": "±", "first_order": "Δ₁", "query": "query", "key": "key"}
COLUMNS = ("clean", "corrupted", "label")
EXAMPLE = """\b
Examples:
  heedful ablate runs/first "the cat sat, and the cat sat" --count 10
  heedful ablate runs/first --texts books --include '*.txt' --kind mean --out heads.json
  heedful ablate runs/first --texts books --groups early=0.*,1.* --groups edge=3.2@-1:0-4
  heedful ablate gpt2 --pairs names.csv --kind resample --metric logit-difference
  heedful ablate gpt2 --file chapter.txt --first-order
  heedful ablate sentence-bert --texts notes --metric similarity.py:distance
  torchrun --standalone --nproc-per-node 4 -m heedful ablate gpt2 --texts books --out heads.json

Δ is the change of the metric when a head is taken away, a mean over all contexts; positive: the
model gets worse. ± is its standard error over texts. A text longer than the model's context is
split into contexts. Layers and heads are counted from 0, as in `heads`.

\b
Metrics (Δ is the increase; of the logit difference, the drop):
  loss: mean cross-entropy of the next token; with --pairs, of the tokens of the label after clean
  logit-difference: logit of a token minus that of another, after the last token: --tokens RIGHT
      WRONG, or the label RIGHT/WRONG of each pair
  kl: KL divergence of the unchanged from the new distributions of the next token
  FILE.py:FUNCTION: a function of (output, inputs, unchanged_output) that returns a number, larger
      is worse; the file is run

\b
Kinds: what a head gives instead of its output, before the output projection:
  zero; mean: its mean over all tokens of all texts; resample: its output in another context of as
  many tokens, drawn by --seed, or in the corrupted text of a pair

--groups: heads 5.1 or 2.*, or edges of a head LAYER.HEAD@QUERIES:KEYS, hidden from the softmax;
positions are numbers from 0 (-1 is the last), ranges such as 0-4, or *. All are taken away
together, and the sum of the Δ of the heads is shown beside the Δ of the group.

--first-order: all heads from one backward pass: the derivative of the metric, times the change of
the output of the head (attribution patching, arXiv:2310.10348), printed as Δ₁. 24 heads are also
taken away, and the rank correlation with these is printed. With resample, also the query and the
key of each head alone, with attention computed again (AtP*, arXiv:2403.00745).

--pairs: a CSV file with the columns clean, corrupted, label. A label begins with its space.

--out: results, also unfinished ones: the same command continues after an interruption.
"""


@dataclass
class Texts:
    """Contexts by their numbers, and the scores of all heads in them."""

    heads: HeadTotals
    contexts: dict[tuple[int, ...], Context]

    @property
    def missed(self) -> dict[str, str]:
        """The modules whose attention was not recorded."""
        return self.heads.missed

    def add(self, read: tuple[Context, Recording], number: tuple[int, ...], *more: Any) -> None:
        """Add a context with its recording; the first number is that of the text."""
        context, recording = read
        self.heads.add(recording, number, *more)
        self.contexts[number] = context._replace(text=number[0])

    def merge(self, other: Texts) -> None:
        """Add other contexts."""
        self.heads.merge(other.heads)
        self.contexts |= other.contexts

    def on(self, device: str) -> list[Context]:
        """Return the contexts in order, with tensors on a device that may require gradients."""
        return [
            c._replace(inputs={n: tensor.clone().to(device) for n, tensor in c.inputs.items()})
            for _, c in sorted(self.contexts.items())
        ]


@click.command(epilog=EXAMPLE)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("text", required=False)
@file_option
@survey.texts_option
@click.option(
    "--pairs", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE.csv",
    help="Read texts from a CSV file with the header clean,corrupted,label.",
)  # fmt: skip
@survey.include_option
@survey.context_option
@click.option("--metric", default="loss", metavar="NAME", show_default=True,
              help="loss, logit-difference, kl or FILE.py:FUNCTION.")  # fmt: skip
@click.option("--tokens", nargs=2, metavar="RIGHT WRONG", help="Tokens of logit-difference.")
@click.option("--kind", type=click.Choice(["zero", "mean", "resample"]), default="zero",
              show_default=True, help="What a head gives instead of its output.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Seed of the draws of resample.")
@click.option("--groups", multiple=True, metavar="NAME=HEADS",
              help="Also take heads or edges away together, such as a=5.1,2.*; repeatable.")  # fmt: skip
@click.option("--first-order", is_flag=True, help="Estimate all heads by one backward pass.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Show the first N heads [all].")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.json",
              help="Write the results, and a picture beside them.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace an existing FILE.json.")
@opening_options()
@json_option
def ablate(
    model: Path, text: str | None, file: Path | None, texts: tuple[Path, ...], pairs: Path | None,
    include: str | None, context_length: int | None, metric: str, tokens: tuple[str, str] | None,
    kind: str, seed: int, groups: tuple[str, ...], first_order: bool, count: int | None,
    out: Path | None, overwrite: bool, opening: dict[str, Any], as_json: bool,
) -> int:  # fmt: skip
    """Take each attention head away, and measure by how much the model gets worse.

    MODEL is a training run, a directory in Hugging Face format, or a hub name. It reads TEXT, a
    --file, all --texts, or --pairs.
    """
    if sum(bool(source) for source in (text, file, pairs, texts)) != 1:
        raise click.UsageError("give TEXT, or one of --file, --texts and --pairs")
    if not texts:
        refuse("needs --texts.", include=include)
    if tokens is None and metric == "logit-difference" and pairs is None:
        raise click.UsageError("--metric logit-difference needs --tokens RIGHT WRONG, or --pairs.")
    named = {name: heads.split(",") for name, _, heads in (spec.partition("=") for spec in groups)}
    if not all(name and all(heads) for name, heads in named.items()):
        raise click.UsageError(f"--groups {' '.join(groups)}: a group is NAME=HEADS, such as a=5.1")
    words = None if texts or pairs else read_text(text, file)
    from heedful.torchrun import started

    processes = started()
    selection = survey.TextSelection(texts, include, context_length)
    if processes.is_first:  # only one process reports missing files
        with processes.publishing():
            if texts:
                selection.check()
            if out is not None:
                check_free(out, overwrite)
                check_folder(out)
            check_model(model, opening)
    from heedful.device import choose_device
    from heedful.interventions.ablation import Ablation
    from heedful.loaded import Survey, open_model

    device = str(choose_device(opening["device"], processes.local))
    opened = open_model(model, **opening | {"device": device})
    opened = replace(opened, model=getattr(opened, "writer", None) or opened.model)
    function = _function(metric)
    if tokens is not None:
        right, wrong = (_new_ids(opened, "", token, 1)[0] for token in tokens)
        function = functools.partial(function, right=right, wrong=wrong)
    compute = functools.partial(_read, opened)
    if texts:
        read = selection.survey(opened, processes, _no_texts, compute=compute)
    else:
        read = Survey(_no_texts())
        rows = (
            ((inputs, {}) for inputs in opened.contexts(words or "", context_length))
            if pairs is None
            else _pairs(pairs, opened, function, metric, kind)
        )
        for number, (inputs, options) in enumerate(rows):
            read.found.add(compute(inputs, **options), (number if pairs else 0, number))
            read.texts, read.contexts = number + 1 if pairs else 1, number + 1
            read.tokens += len(inputs.tokens)
    survey.summary_line(read)  # raises an error if there is no text
    contexts = read.found.on(device)
    with notices():
        ablation = Ablation(opened.model, contexts, function, kind, named, first_order, seed)
        if len(ablation.contexts) < len(contexts) and processes.is_first:
            left_out = len(contexts) - len(ablation.contexts)
            note(f"left out: {left_out:,} contexts; no other has as many tokens")
        with processes.process_group(86_400.0):
            effects = _effects(ablation, out, processes, [str(model), metric, tokens, kind, seed])
    if not processes.is_first:
        return 0
    data = {"model": str(model), "metric": metric, "kind": kind, "texts": read.texts}
    data |= {"tokens": read.tokens} | ablation.result(effects)
    data["left_out"] = [text._asdict() for text in read.left_out]
    if out is not None:
        write_json(out, data)
        _draw(data, out.with_suffix(".png"))
        for part in _parts(out):
            part.unlink()
    if as_json:
        click.echo(json.dumps(data))
    else:
        _print(data, read.found.heads, count)
    return int(bool(read.left_out))


def _no_texts() -> Texts:
    from heedful.recording import HeadTotals

    return Texts(HeadTotals(), {})


def _read(opened: LoadedModel, inputs: ModelInputs, **options: Any) -> tuple[Context, Recording]:
    """Return the context of inputs, and their recording."""
    from heedful.interventions.ablation import Context

    tensors = {name: tensor.cpu() for name, tensor in inputs.inputs.items()}
    return Context(tensors, **options), opened.record_inputs(inputs)


def _function(metric: str) -> Any:
    """Return a metric by its name, or a function of a Python file."""
    from heedful.interventions import metrics

    if metric in METRICS:
        return getattr(metrics, metric.replace("-", "_"))
    path, _, name = metric.rpartition(":")
    function = runpy.run_path(path).get(name) if Path(path).is_file() else None
    if not callable(function):
        raise ArgumentError(
            f"--metric {metric}", expected=f"{', '.join(METRICS)}, or FILE.py:FUNCTION of a file"
        )
    return function


def _new_ids(opened: LoadedModel, text: str, word: str, count: int = 0) -> list[int]:
    """Return the ids of a word after a text; `count` is how many are expected, 0 for any number."""
    from heedful.interventions.metrics import IDS

    def ids(text: str) -> list[int]:
        inputs = opened.read(text).inputs
        row = next(inputs[name][0].tolist() for name in IDS if name in inputs)
        return [id for id, span in zip(row, opened.spans(text), strict=True) if span is not None]

    before = ids(text) if text else []
    after = ids(text + word)
    new = after[len(before) :]
    if after[: len(before)] != before or not new or len(new) not in (count or len(new),):
        raise TextError(
            f"{word!r}, {len(new)} tokens" + f" after {text[-20:]!r}" * bool(text),
            expected="one token" if count else "one or more tokens",
            cause="a word without the space before it, or a rare word",
        )
    return new


def _pairs(
    path: Path, opened: LoadedModel, function: Any, metric: str, kind: str
) -> Iterator[tuple[ModelInputs, dict[str, Any]]]:
    """Yield the inputs of each row of a CSV file, with the fields `other` and `metric`."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        if not {*COLUMNS} <= {*(rows.fieldnames or ())}:
            raise TextError(
                f"{path} with the columns {rows.fieldnames}", expected=",".join(COLUMNS)
            )
        for row in rows:
            clean, corrupted, label = (row[name] or "" for name in COLUMNS)
            options: dict[str, Any] = {}
            if metric == "loss":
                last = len(_new_ids(opened, clean, label))
                options["metric"] = functools.partial(function, last=last)
                clean, corrupted = clean + label, corrupted + label
            elif metric == "logit-difference" and not isinstance(function, functools.partial):
                right, wrong = (
                    _new_ids(opened, clean, word, 1)[0] for word in label.partition("/")[::2]
                )
                options["metric"] = functools.partial(function, right=right, wrong=wrong)
            inputs = opened.read(clean)
            if kind == "resample":
                other = opened.read(corrupted)
                if len(other.tokens) != len(inputs.tokens):
                    raise TextError(
                        f"{len(inputs.tokens)} tokens of clean and {len(other.tokens)} of corrupted "
                        f"in line {rows.line_num} of {path}",
                        expected="as many",
                    )
                options["other"] = other.inputs
            yield inputs, options


def _parts(out: Path) -> list[Path]:
    """Return the files of unfinished results of all processes."""
    return sorted(out.parent.glob(f"{glob.escape(out.name)}.*.part"))


def _effects(
    ablation: Ablation, out: Path | None, processes: Processes, identity: list[Any]
) -> list[Effect]:
    """Compute the effects in this process's share of the contexts; return those of all processes.

    Each effect is appended to a file beside `out`, which the same command reads to continue.
    """
    from heedful.interventions.ablation import Effect
    from heedful.views.progress import progress_bar

    inputs = [[tensor.tolist() for tensor in c.inputs.values()] for c in ablation.contexts]
    identity = [*identity, [*ablation.items], ablation.first_order, inputs]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    effects = []
    for part in [] if out is None else _parts(out):
        for line in part.read_text().split("\n"):
            with suppress(ValueError):  # the last line of a process that was killed
                command, *fields = json.loads(line)
                if command != key:
                    raise ArgumentError(
                        f"{part}, unfinished results of another command",
                        expected="the same command, to continue",
                        remedy="remove the file, or pass another --out",
                    )
                effects.append(Effect(*fields))
    processes.barrier()  # all have read the files
    numbers = range(processes.rank, len(ablation.contexts), processes.size)
    total = len(numbers) * len(ablation.items)
    path = os.devnull if out is None else f"{out}.{processes.rank}.part"
    with progress_bar("taking heads away", processes.is_first) as report, open(path, "a") as file:
        for number in numbers:
            done = {effect.item for effect in effects if effect.context == number}
            for effect in ablation.effects(number, done):
                file.write(f"\n{json.dumps([key, *effect])}")
                file.flush()
                effects.append(effect)
                report(min(1.0, len(effects) / total))
    return [effect for part in processes.all_gather(effects) for effect in part]


def _effect(head: dict[str, Any]) -> float:
    """Return the first-order estimate of Δ of a head, or else its Δ."""
    return head["delta"] if head["first_order"] is None else head["first_order"]


def _draw(data: dict[str, Any], path: Path) -> None:
    """Draw Δ of all heads: a row for each module, a column for each head."""
    import numpy as np

    from heedful.pictures import head_grid, saving
    from heedful.pictures.attention_map import around_zero
    from heedful.pictures.page_layout import Block, Line

    rows: dict[str, dict[int, float]] = {}
    for head in data["heads"]:
        rows.setdefault(head["module"], {})[head["head"]] = _effect(head)
    layers = {head["module"]: str(head["layer"]) for head in data["heads"]}
    names = [*(layers if len({*layers.values()}) < len(layers) else layers.values())]
    columns = range(1 + max(head for row in rows.values() for head in row))
    table = [[row.get(head, np.nan) for head in columns] for row in rows.values()]
    values = np.ma.masked_invalid(table)
    block = Block([Line("", [values])], [""], names, [*map(str, columns)], ("layer", "head"))
    title = f"{data['metric']} without each head ({data['kind']})"
    scale = around_zero([values], f"Δ {data['metric']}")
    saving.save(head_grid.draw([block], scale=scale, title=title), path)


def _print(data: dict[str, Any], totals: HeadTotals, count: int | None) -> None:
    """Print heads sorted by Δ with their scores, groups, and what the numbers mean."""
    from heedful.views.head_tables import MISSING, Row, scores_table
    from heedful.views.terminal import console, plural, table

    heads = sorted(data["heads"], key=_effect, reverse=True)
    largest = max(abs(_effect(head)) for head in heads) or 1.0
    digits = min(9, max(0, 2 - math.floor(math.log10(largest))))

    def cells(rows: list[dict[str, Any]], name: str) -> list[str]:
        numbers = (row.get(name) for row in rows)
        return [MISSING if n is None else f"{n:.{digits}f}" for n in numbers]

    screen = console()
    scored = {(head.name, head.head): Row(0, head) for head in totals.heads()}
    columns = {title: cells(heads, name) for name, title in TITLES.items()}
    columns = {title: column for title, column in columns.items() if {*column} != {MISSING}}
    rows = [scored[head["module"], head["head"]] for head in heads]
    screen.print(scores_table(rows, count, None, screen.width, columns)[0])
    if data["groups"]:
        groups = {"group": [group["name"] for group in data["groups"]]}
        groups |= {t: cells(data["groups"], t) for t in ("delta", "error", "sum")}
        titles = ["group", "Δ", "±", "sum of its heads"]
        screen.print(table(titles, zip(*groups.values(), strict=True), range(1, 4)))
    name, plain = data["metric"], data["plain"]
    of = "drop" if name == "logit-difference" else "increase"
    proofs = ", ".join(f"{number:,} {word}" for word, number in data["proofs"].items())
    lines = [
        f"Δ: {of} of {name}, {plain:.{digits}f}, without the head ({data['kind']}); positive: the "
        "model gets worse",
        f"over {plural(data['texts'], 'text')}, {plural(data['tokens'], 'token')} in "
        f"{plural(data['contexts'], 'context')}; ± is the standard error over texts",
        f"changed outputs: {proofs}",
    ]
    if data["correlation"] is not None:
        lines.append(f"Δ₁: first-order estimate; rank correlation with Δ {data['correlation']:.2f}")
    screen.print("\n" + "\n".join(lines), style="dim", highlight=False)
