"""The command `heedful ablate`."""

from __future__ import annotations

import csv
import functools
import glob
import hashlib
import io
import json
import math
import os
import runpy
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heedful.cli import survey
from heedful.cli.input_texts import file_option, note, notices, read_text
from heedful.cli.options import json_option, opening_options, refuse
from heedful.cli.output_paths import check_file, check_picture
from heedful.errors import ArgumentError, HeedfulError, TextError
from heedful.files import write_json

if TYPE_CHECKING:
    from heedful.interventions.ablation import Ablation, Effect
    from heedful.loaded import LoadedModel, ModelInputs
    from heedful.processes import Processes

DIFFERENCE = "logit-difference"
METRICS = ("loss", "kl", DIFFERENCE)
COLUMNS = ("clean", "corrupted", "label")
EXAMPLE = """\b
Examples:
  heedful ablate runs/first "the cat sat, and the cat sat" --count 10
  heedful ablate runs/first --texts books --kind mean --out heads.json
  heedful ablate runs/first --file chapter.txt --groups early=0.*,1.* --groups edge=3.2@-1:0-4
  heedful ablate openai-community/gpt2 --pairs names.csv --metric logit-difference --kind resample
  heedful ablate intfloat/e5-small --texts notes --metric similarity.py:distance
  torchrun --standalone --nproc-per-node 4 -m heedful ablate runs/first --texts books --out a.json

Δ is the mean change of the metric without the head: positive if the model gets worse. ± is its
standard error over texts. The how-to page "Find the heads that matter" has the definitions.

\b
--metric  loss: cross-entropy of the next token; with --pairs, of the label after the clean text
          logit-difference: of --tokens, or of the label RIGHT/WRONG of a pair; Δ is the drop
          kl: divergence of the next-token distributions from those of the unchanged model
          FILE.py:FUNCTION: a function of (output, inputs, unchanged_output); larger is worse
--kind    zero; mean, over all texts; resample, the output in another context of as many tokens, or
          in the corrupted text of a pair
--groups  heads 5.1 or 2.*; edges 5.1@QUERIES:KEYS, by positions such as 3, -1, 0-4 or *
--first-order  Δ₁: gradient times change of output; with resample also of query and key alone
--out     repeat an interrupted command to continue it
"""


@click.command(epilog=EXAMPLE)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("text", required=False)
@file_option
@survey.texts_option
@survey.include_option
@survey.context_option
@click.option("--pairs", type=click.Path(path_type=Path), metavar="FILE.csv",
              help="Read texts from the columns clean, corrupted, label.")  # fmt: skip
@click.option("--metric", default="loss", metavar="METRIC", help="What gets worse [loss].")
@click.option("--tokens", nargs=2, metavar="RIGHT WRONG", help="Tokens of logit-difference.")
@click.option("--kind", type=click.Choice(["zero", "mean", "resample"]), default="zero",
              help="What a head gives instead of its output [zero].")  # fmt: skip
@click.option("--seed", default=0, help="Seed of the contexts that resample draws [0].")
@click.option("--groups", multiple=True, metavar="NAME=LIST",
              help="Heads or edges to take away together; repeatable.")  # fmt: skip
@click.option("--first-order", is_flag=True, help="Estimate all heads by one backward pass.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Show only N heads [all].")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.json",
              help="Write the results, and a picture FILE.png.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@opening_options()
@json_option
def ablate(
    model: Path, text: str | None, file: Path | None, texts: tuple[Path, ...], include: str | None,
    context_length: int | None, pairs: Path | None, metric: str, tokens: tuple[str, str] | None,
    kind: str, seed: int, groups: tuple[str, ...], first_order: bool, count: int | None,
    out: Path | None, overwrite: bool, opening: dict[str, Any], as_json: bool,
) -> int:  # fmt: skip
    """Take each attention head away, and measure by how much the model gets worse.

    MODEL is a training run, a directory in Hugging Face format, or a hub name. It reads TEXT, a
    --file, all --texts, or --pairs.
    """
    if sum(map(bool, (text, file, texts, pairs))) != 1:
        raise click.UsageError("give TEXT, or one of --file, --texts and --pairs.")
    if not texts:
        refuse("needs --texts.", include=include)
    refuse("has no effect on --pairs.", context_length=pairs and context_length)
    if bool(tokens or (pairs and metric == DIFFERENCE)) != (metric == DIFFERENCE):
        raise click.UsageError(f"--metric {DIFFERENCE} and --tokens (or --pairs) go together.")
    named = {group.partition("=")[0]: group.partition("=")[2].split(",") for group in groups}
    if len(named) < len(groups) or "" in named:
        raise click.UsageError("--groups NAME=LIST needs a different NAME for each group.")
    words = None if texts or pairs else read_text(text, file)
    from heedful.torchrun import started

    processes = started()
    selection = survey.TextSelection(texts, include, context_length)

    def check() -> None:
        selection.check()
        if out is not None and out.suffix != ".json":
            raise ArgumentError(f"--out {out}", expected="a file that ends in .json")
        if out is not None:
            check_file(out, overwrite)
            check_picture(out.with_suffix(".png"), overwrite)

    opened = survey.open_shared(model, opening, processes, check)
    from heedful.interventions.ablation import Ablation, Context
    from heedful.loaded import Survey
    from heedful.recording import HeadTotals

    opened = replace(opened, model=getattr(opened, "writer", None) or opened.model)
    function = _function(metric, opened, tokens)
    rows: list[tuple[ModelInputs, dict[str, Any]]]
    if texts:
        read = selection.survey(opened, processes, keeps_inputs=True)
        survey.summary_line(read)  # raises an error if no text could be read
        rows = [(inputs, {"text": number[0]}) for number, inputs in sorted(read.inputs.items())]
    else:
        parts = [] if pairs else opened.contexts(words or "", context_length)
        rows = [*_pairs(pairs, opened, function, kind)] if pairs else [(part, {}) for part in parts]
        tokens_read = sum(len(inputs.tokens) for inputs, _ in rows)
        read = Survey(HeadTotals(), len(rows) if pairs else 1, len(rows), tokens_read)
        for number, (inputs, _) in enumerate(rows):
            read.found.add(opened.record_inputs(inputs), (number,))
    device = next(opened.model.parameters()).device
    contexts = [  # copies, because tensors of inference mode do not work with gradients
        Context({name: t.clone().to(device) for name, t in inputs.inputs.items()}, **fields)
        for inputs, fields in rows
        if pairs or len(inputs.tokens) > 1
    ]
    ablation = Ablation(opened.model, contexts, function, kind, named, first_order, seed)
    if len(ablation.contexts) < len(contexts) and processes.is_first:
        note(f"left out: {len(contexts) - len(ablation.contexts):,} of {len(contexts):,} contexts, "
             "of a length that no other has")  # fmt: skip
    with notices(), processes.process_group(86_400.0):
        command = [str(model), metric, tokens, kind, seed, pairs and read_text(None, pairs)]
        command += [str(opening["checkpoint"]), str(opening["revision"])]
        effects = _effects(ablation, out, processes, command)
    if not processes.is_first:
        return 0
    from heedful.pictures import saving
    from heedful.views import ablation_report
    from heedful.views.terminal import console

    data: dict[str, Any] = {"model": str(model), "metric": metric, "kind": kind}
    data |= survey.as_data(read) | ablation.result(effects)
    data["plain"] *= -1 if metric == DIFFERENCE else 1
    if out is not None:
        write_json(out, data)
        saving.save(ablation_report.draw(data), out.with_suffix(".png"))
        for part in _unfinished(out):
            part.unlink()
    if as_json:
        click.echo(json.dumps(data))
    else:
        ablation_report.show(console(), data, read.found, count)
    return int(bool(read.left_out))


def _function(metric: str, opened: LoadedModel, tokens: tuple[str, str] | None) -> Any:
    """Return a metric by its name, or a function of a Python file."""
    from heedful.interventions import metrics

    path, _, name = metric.rpartition(":")
    function = getattr(metrics, metric.replace("-", "_")) if metric in METRICS else None
    if Path(path).is_file():
        function = runpy.run_path(path).get(name)
    if not callable(function):
        expected = f"{', '.join(METRICS)}, or FILE.py:FUNCTION"
        raise ArgumentError(f"--metric {metric}", expected=expected)
    if tokens:
        right, wrong = (_ids_after(opened, "", token, 1)[0] for token in tokens)
        function = functools.partial(function, right=right, wrong=wrong)
    return function


def _ids_after(opened: LoadedModel, text: str, word: str, count: int | None = None) -> list[int]:
    """Return the ids that a word adds to a text; raise an error if they are not `count`."""
    from heedful.interventions.metrics import IDS

    def ids(text: str) -> list[int]:
        inputs = opened.read(text).inputs
        row = next(inputs[name][0].tolist() for name in IDS if name in inputs)
        return [id for id, span in zip(row, opened.spans(text), strict=True) if span is not None]

    before, after = ids(text) if text else [], ids(text + word)
    added = after[len(before) :]
    if after[: len(before)] != before or len(added) != (count or len(added)) or not added:
        raise TextError(
            f"{word!r}, {len(added)} tokens after {text[-20:]!r}",
            expected="one token" if count else "a text that begins with a new token",
            remedy="begin it with a space, or choose a shorter word",
        )
    return added


def _pairs(
    path: Path, opened: LoadedModel, function: Any, kind: str
) -> Iterator[tuple[ModelInputs, dict[str, Any]]]:
    """Yield the inputs of each row of a CSV file, with other fields of its `Context`."""
    rows = csv.DictReader(io.StringIO(read_text(None, path), newline=""))
    if not {*COLUMNS} <= {*(rows.fieldnames or ())}:
        columns = ", ".join(rows.fieldnames or ())
        raise TextError(f"{path} with the columns {columns}", expected=", ".join(COLUMNS))
    for number, row in enumerate(rows):
        try:
            inputs, fields = _pair([row[name] or "" for name in COLUMNS], opened, function, kind)
        except HeedfulError as error:
            raise TextError(f"{path}, line {rows.line_num}: {error}") from error
        yield inputs, fields | {"text": number}


def _pair(
    row: list[str], opened: LoadedModel, function: Any, kind: str
) -> tuple[ModelInputs, dict[str, Any]]:
    """Return the inputs of a pair, with other fields of its `Context`."""
    from heedful.interventions.metrics import logit_difference, loss

    clean, corrupted, label = row
    metric, words = function, label.split("/")
    if not clean or (function is logit_difference and len(words) != 2):
        expected = "a clean text, and RIGHT/WRONG as label for logit-difference"
        raise TextError(f"{clean!r} with the label {label!r}", expected=expected)
    if function is loss:
        metric = functools.partial(loss, last=len(_ids_after(opened, clean, label)))
        clean, corrupted = clean + label, corrupted + label
    elif function is logit_difference:
        right, wrong = (_ids_after(opened, clean, word, 1)[0] for word in words)
        metric = functools.partial(function, right=right, wrong=wrong)
    inputs = opened.read(clean)
    other = opened.read(corrupted) if kind == "resample" else inputs
    if len(other.tokens) != len(inputs.tokens):
        raise TextError(
            f"{len(inputs.tokens)} clean tokens and {len(other.tokens)} corrupted ones",
            expected="as many, for resample",
        )
    return inputs, {"other": other.inputs, "metric": metric}


def _unfinished(out: Path) -> list[Path]:
    """Return the files to which processes have written effects."""
    return sorted(out.parent.glob(f"{glob.escape(out.name)}.*.part"))


def _effects(
    ablation: Ablation, out: Path | None, processes: Processes, command: list[Any]
) -> list[Effect]:
    """Compute the effects in this process's contexts, and return those of all processes.

    Each effect is appended to a file beside `out`, from which the same command continues.
    """
    from heedful.views.progress import progress_bar

    inputs = [[tensor.tolist() for tensor in c.inputs.values()] for c in ablation.contexts]
    command = [*command, [*ablation.items.items()], ablation.first_order, inputs]
    key = hashlib.sha256(json.dumps(command).encode()).hexdigest()[:16]
    effects: list[Effect] = []
    for part in [] if out is None else _unfinished(out):
        for line in part.read_text("utf-8").split("\n"):
            fields: list[Any] = [key]
            with suppress(ValueError):  # a line that was cut when the process was killed
                fields = json.loads(line)
            if fields[0] != key:
                raise _other_results(part)
            effects += [(*fields[1:],)] if fields[1:] else []
    stored: dict[int, dict[str, float]] = {}
    for context, item, value, _ in effects:
        stored.setdefault(context, {})[item] = value
    processes.barrier()  # all have read the files
    numbers = range(processes.rank, len(ablation.contexts), processes.size)
    path = os.devnull if out is None else f"{out}.{processes.rank}.part"
    with progress_bar("running", processes.is_first) as report, open(path, "a") as file:
        for i, number in enumerate(numbers):
            done = stored.get(number, {})
            for j, effect in enumerate(ablation.effects(number, done)):
                _, item, value, _ = effect
                is_same = math.isclose(value, done.get(item, value), rel_tol=1e-4, abs_tol=1e-6)
                if item == "plain" and not is_same:
                    raise _other_results(path)
                effects.append(effect)
                file.write(f"\n{json.dumps([key, *effect])}")
                file.flush()
                report((i + min(1.0, (len(done) + j) / len(ablation.items))) / len(numbers))
    return [effect for part in processes.all_gather(effects) for effect in part]


def _other_results(path: Any) -> ArgumentError:
    return ArgumentError(
        f"{path}, results of another command, model or metric",
        expected="the command that was interrupted",
        remedy="remove the file, or choose another --out",
    )
