"""The command `heedful generate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heedful.cli.input_texts import file_option, read_text
from heedful.cli.options import (
    MAX_COUNT,
    SectionedCommand,
    check_model,
    json_option,
    opening_options,
    passed_fields,
    refuse,
    settings_of,
)
from heedful.configuration import MAX_INT64
from heedful.errors import TextError
from heedful.models.sampling import Sampling

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.loaded import LoadedGPT

PIECE = 16  # terminal columns of a token in the table of probabilities
EXAMPLE = """\b
Examples:
  heedful generate runs/first "The import statement"
  heedful generate runs/first "The import statement" --greedy --tokens 40
  heedful generate runs/first "The import" --samples 3 --seed 7 --stop "."
  heedful generate runs/first "The import statement" --probabilities 5
  heedful generate runs/first "The import statement binds a name" --loss
  heedful generate openai-community/gpt2 "The import statement" --tokens 40
"""


@click.command(cls=SectionedCommand, epilog=EXAMPLE)
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("prompt", required=False)
@file_option
@click.option(
    "--tokens", type=click.IntRange(0), metavar="N", default=200, show_default=True,
    help="Maximum number of tokens to generate.",
)  # fmt: skip
@click.option("--greedy", is_flag=True, help="Choose the most probable token: temperature 0.")
@click.option(
    "--stop", multiple=True, metavar="TEXT", help="Stop before this text; repeatable [none]."
)
@click.option(
    "--samples", type=click.IntRange(1, MAX_COUNT), metavar="N", default=1, show_default=True,
    help="Number of continuations.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(0, MAX_INT64), metavar="N",
    help="Seed of the random choices [a random seed].",
)  # fmt: skip
@click.option(
    "--probabilities", type=click.IntRange(1), metavar="K",
    help="Instead of generating, show the K most probable next tokens at each position of PROMPT.",
)  # fmt: skip
@click.option(
    "--loss", is_flag=True,
    help="Instead of generating, show the loss of PROMPT: for each token of PROMPT the next token, "
    "its probability p and −log p, and the mean of −log p.",
)  # fmt: skip
@opening_options()
@json_option
@settings_of("Sampling", Sampling())
def generate(
    run: Path, prompt: str | None, file: Path | None, tokens: int, greedy: bool,
    stop: tuple[str, ...], samples: int, seed: int | None, probabilities: int | None, loss: bool,
    opening: dict[str, Any], as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Continue PROMPT with the model RUN.

    RUN is a training run of `heedful train`, or the directory (in Hugging Face format) or hub name
    of a GPT-2, Llama, Mistral, Qwen2 or Qwen3.

    If PROMPT is empty (""), generation starts after the token that begins a document, or after a
    line break if the tokenizer has no such token.
    """
    is_empty = prompt == "" and file is None
    text = "" if is_empty else read_text(prompt, file, "prompt")
    changes = passed_fields(Sampling, options)
    if greedy:
        if changes.get("temperature"):
            raise click.UsageError("--greedy means --temperature 0; pass only one of the two.")
        changes["temperature"] = 0.0
    if loss:
        refuse("and --loss are two tables; pass only one of the two.", probabilities=probabilities)
    if loss or probabilities:
        refuse("has no effect on --probabilities and --loss, which are the model's own.", **changes)
    check_model(run, opening)
    from heedful.generate import TextStream, beginning
    from heedful.generate import generate as continuations
    from heedful.loaded import LoadedGPT, open_as

    opened = open_as(LoadedGPT, run, **opening)
    ids = beginning(opened.tokenizer) if is_empty else opened.ids(text)[0].tolist()
    if loss:
        _show_loss(opened, ids, as_json)
        return
    if probabilities:
        _show_probabilities(opened, ids, probabilities, as_json)
        return
    streams = [TextStream(opened.tokenizer, stop, opened.ends) for _ in range(samples)]
    steps = continuations(
        opened.model,
        ids,
        tokens=tokens,
        sampling=Sampling(**changes),
        samples=samples,
        seed=seed,
        vocabulary=opened.tokenizer.size,
    )
    is_live = samples == 1 and not as_json
    if is_live:
        click.echo(text, nl=False)
    texts = [""] * samples

    def add(sample: int, piece: str) -> None:
        texts[sample] += piece
        if is_live:
            click.echo(piece, nl=False)

    for tokens_of_step in steps:
        for i, (stream, token) in enumerate(zip(streams, tokens_of_step.tolist(), strict=True)):
            add(i, stream.push(token))
        if all(stream.stopped for stream in streams):
            break
    for i, stream in enumerate(streams):
        add(i, stream.close())
    if as_json:
        click.echo(json.dumps({"prompt": text, "samples": texts}))
    elif is_live:
        click.echo()
    else:
        from heedful.views.terminal import console

        screen = console()
        for i, sample in enumerate(texts):
            screen.rule(f"sample {i + 1} of {samples}", align="left", style="dim")
            click.echo(text + sample)


def _show_probabilities(opened: LoadedGPT, ids: list[int], count: int, as_json: bool) -> None:
    """Print the `count` most probable next tokens at each position, as in document 004 (Zhang)."""
    from heedful.views.terminal import console, fit, flow, table

    probabilities = _log_probabilities(opened, ids).exp()[:, : opened.tokenizer.size]
    top = probabilities.topk(min(count, probabilities.shape[-1]))
    positions: list[dict[str, Any]] = []
    for n, piece in enumerate(opened.pieces(ids)):
        tokens = top.indices[n].tolist()
        columns = zip(opened.pieces(tokens), tokens, top.values[n].tolist(), strict=True)
        likely = [dict(zip(("piece", "id", "probability"), row, strict=True)) for row in columns]
        positions.append({"position": n, "piece": piece, "next": likely})
    if as_json:
        click.echo(json.dumps(positions))
        return
    screen = console()
    longest = min(PIECE, max(len("token"), *(len(row["piece"]) for row in positions)))
    room = screen.width - len("position") - longest - 4
    rows = [
        (
            str(row["position"]),
            fit(row["piece"], longest, left=True),
            flow((f"“{n['piece']}” {100 * n['probability']:.1f} %" for n in row["next"]), room),
        )
        for row in positions
    ]
    screen.print(table(["position", "token", "likeliest next tokens"], rows, numbers=[0]))


def _log_probabilities(opened: LoadedGPT, ids: list[int]) -> Tensor:
    """Return the log-probabilities of the next token at each position, (N, V)."""
    import torch

    from heedful.models.checks import check_logits

    batch = torch.tensor([ids], device=next(opened.model.parameters()).device)
    with torch.inference_mode():
        return check_logits(opened.model(batch).logits[0]).float().log_softmax(-1)


def _show_loss(opened: LoadedGPT, ids: list[int], as_json: bool) -> None:
    """Print −log p of each next token of a text, and the mean: the loss of training."""
    import math

    from heedful.views.terminal import console, fit, table

    if len(ids) < 2:
        raise TextError("a text of 1 token", expected="2 or more, since the loss is of next tokens")
    rows = _log_probabilities(opened, ids[:-1]).cpu()
    losses = [-float(row[token]) for row, token in zip(rows, ids[1:], strict=True)]
    mean, pieces = sum(losses) / len(losses), opened.pieces(ids)
    pairs = list(zip(pieces[:-1], pieces[1:], ids[1:], losses, strict=True))
    if as_json:
        names = ("piece", "next", "id", "loss")
        tokens = [dict(zip(names, pair, strict=True)) for pair in pairs]
        click.echo(json.dumps({"loss": mean, "perplexity": math.exp(mean), "tokens": tokens}))
        return
    width = min(PIECE, max(len("next token"), *map(len, pieces)))
    lines = [
        (str(n), *(fit(piece, width, left=True) for piece in pair[:2]),
         f"{100 * math.exp(-pair[3]):.1f} %", f"{pair[3]:.3f}")
        for n, pair in enumerate(pairs)
    ]  # fmt: skip
    columns = ["position", "token", "next token", "probability", "−log p"]
    console().print(table(columns, lines, numbers=[0, 3, 4]))
    click.echo(f"\nloss, the mean of −log p: {mean:.3f} nats (perplexity {math.exp(mean):.1f})")
