"""The command `heedful explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heedful.cli.input_texts import cut_option, file_option, notices, read_text, second_option
from heedful.cli.options import check_model, json_option, opening_options, refuse
from heedful.cli.output_paths import SUFFIXES, check_file
from heedful.errors import ArgumentError

if TYPE_CHECKING:
    from heedful.explain import Explanation
    from heedful.loaded import LoadedModel

VARIANTS = ("simple", "trainable", "projected", "causal", "multihead", "cross")
MODEL_OPTIONS = ("layer", "second", "target")
EXAMPLE = """\b
Examples:
  heedful explain "Your journey starts with one step"
  heedful explain "Your journey starts with one step" --query journey
  heedful explain "The cat sat on the mat" --variant multihead --heads 2 --dim 8
  heedful explain "a cup of tea" --variant cross --memory "une tasse de thé"
  heedful explain "The import statement" --model runs/first
  heedful explain "The import statement" --model runs/first --layer 1 --head 2
  heedful explain "The import statement" --model runs/first --pictures walk
  heedful explain "The import statement" --model runs/first --html walk.html
  heedful explain --html attention.html
  heedful explain "the 3rd of May 1987" --model runs/dates --target 1987
  heedful explain "A [MASK] of tea." --model google-bert/bert-base-uncased
"""


@click.command(epilog=EXAMPLE)
@click.argument("text", required=False)
@file_option
@cut_option
@click.option("--variant", type=click.Choice(VARIANTS), help="Kind of attention [simple].")
@click.option("--memory", metavar="TEXT", help="With --variant cross: the text to attend to.")
@click.option(
    "--heads", type=click.IntRange(1), metavar="N", help="Number of heads [multihead 2, cross 1]."
)
@click.option(
    "--dim", type=click.IntRange(1), metavar="N",
    help="Width of each token's vector [3, or 4 with --positions; multihead 4, projected 128].",
)  # fmt: skip
@click.option(
    "--head-dim", type=click.IntRange(1), metavar="N",
    help="Width of each query, key and value [dim / heads; for projected, dim / 8].",
)  # fmt: skip
@click.option("--seed", type=int, help="Seed of the random vectors and weights [0].")
@click.option("--positions", is_flag=True, help="Add sinusoidal position vectors.")
@click.option(
    "--model", type=click.Path(path_type=Path),
    help="Explain a trained model, up to its predicted words: a training run, a directory in "
    "Hugging Face format, or a hub name.",
)  # fmt: skip
@click.option(
    "--layer", type=click.IntRange(0), metavar="N",
    help="With --model: block to show in full, counted from 0 [0].",
)  # fmt: skip
@click.option(
    "--head", type=click.IntRange(0), metavar="N", default=0,
    help="Head to show, counted from 0 [0].",
)  # fmt: skip
@click.option(
    "--query", metavar="WORD",
    help="Show only this token's steps, and frame its rows in --pictures; @4 is the fifth token.",
)  # fmt: skip
@second_option
@click.option(
    "--target", metavar="TEXT",
    help="Beginning of the target of an encoder–decoder [the target that the model generates].",
)  # fmt: skip
@click.option(
    "--pictures", type=click.Path(path_type=Path), metavar="DIR",
    help="Also save pictures of the steps in this folder.",
)  # fmt: skip
@click.option(
    "--format", "suffix", type=click.Choice(SUFFIXES), default="png", show_default=True,
    help="File format of --pictures.",
)  # fmt: skip
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the steps as a web page. Readers can type other texts, if the model is small.",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace an existing page or existing pictures.")
@click.option("--step", metavar="NAME", help="Show only this step, in full, such as scores.")
@click.option(
    "--all", "every", is_flag=True, help="With --model: show all steps instead of a summary."
)
@opening_options()
@json_option
def explain(
    text: str | None, file: Path | None, cut: bool, model: Path | None, head: int,
    query: str | None, pictures: Path | None, suffix: str, html: Path | None, overwrite: bool,
    step: str | None, every: bool, as_json: bool, opening: dict[str, Any], **options: Any,
) -> None:  # fmt: skip
    """Show each step of attention on TEXT, with all numbers.

    Each word is a token. Vectors and weights are random numbers from a seed; words of document 002
    (after Raschka) have its vectors. With --model, tokens and numbers are those of a trained model,
    and the steps end with the model's predictions: a GPT and an encoder–decoder predict the next
    token, and a BERT predicts the word at each [MASK].
    """
    passed = {name: value for name, value in options.items() if value not in (None, False)}
    model_options = {name: passed.pop(name) for name in MODEL_OPTIONS if name in passed}
    if html is not None and passed.get("variant") == "cross":
        from heedful.text.example_texts import SECOND

        passed.setdefault("memory", SECOND)
    if model is not None:
        refuse("cannot be combined with --model, which has its own numbers.", **passed)
    else:
        refuse("needs --model.", cut=cut, **model_options, revision=opening["revision"])
    if html is not None:
        refuse("cannot be combined with --html.", query=query, pictures=pictures, json=as_json)
        check_file(html, overwrite)
    if every or as_json or html is not None:
        refuse("cannot be combined with --all, --json or --html, which have all steps.", step=step)
    if text is file is model is None and html is not None:
        from heedful.text.example_texts import SENTENCE

        text = SENTENCE  # of document 002 (after Raschka); readers can type others into the page
    words = read_text(text, file)
    opened = None
    if model is not None:
        opened, explanation = _explain_model(model, words, cut, head, model_options, opening)
    else:
        from heedful.explain import explain as explain_text

        explanation = explain_text(words, head=head, **passed)
    if html is not None:
        _write_page(html, explanation, words, opened, passed)
        return
    positions = [] if query is None else explanation.positions_of(query)
    if positions:
        explanation = explanation.of_token(positions[0])
    paths = [] if pictures is None else _draw(explanation, pictures, suffix, overwrite)
    if as_json:
        from heedful.views.walk.page_data import as_data

        click.echo(json.dumps(as_data(explanation, positions)))
        return
    _show(explanation, model is None, step, every)
    for path in paths:
        click.echo(path)


def _write_page(
    html: Path, explanation: Explanation, words: str, opened: LoadedModel | None,
    variant: dict[str, Any],
) -> None:  # fmt: skip
    """Write a page with the steps of a model or, if `opened` is None, of all variants."""
    from heedful.files import atomic_write
    from heedful.views.walk.one_file import model_walks, page, variant_walks

    if opened is not None:
        data = page(model_walks(explanation, opened), text=words)
    else:
        options = {**variant, "head": explanation.head} if explanation.head else variant
        variants, first = variant_walks(explanation, options)
        memory = {name: text for name, text in variant.items() if name == "memory"}
        data = page(variants, first=first, text=words, **memory)
    with atomic_write(html) as file:
        file.write(data)
    click.echo(f"{html}, {len(data) / 1e6:.1f} MB: opens in any browser, with no network")


def _explain_model(
    directory: Path, text: str, cut: bool, head: int, options: dict[str, Any],
    opening: dict[str, Any],
) -> tuple[LoadedModel, Explanation]:  # fmt: skip
    check_model(directory, opening)
    from heedful.explain import explain_bert, explain_gpt, explain_seq2seq
    from heedful.loaded import LoadedBert, LoadedGPT, LoadedSeq2Seq, TruncationWarning, open_heedful

    opened = open_heedful(directory, **opening)
    second, target = options.get("second"), options.get("target")
    selection: dict[str, Any] = {"layer": options.get("layer", 0), "head": head}
    if target is not None and not isinstance(opened, LoadedSeq2Seq):
        raise click.UsageError(f"--target needs an encoder–decoder; {directory} holds none.")
    with notices(TruncationWarning):
        if isinstance(opened, LoadedSeq2Seq):
            rows = opened.source_and_target(text, second, target=target, cut=cut)
            return opened, explain_seq2seq(opened.model, *rows, pieces=opened.pieces, **selection)
        ids, *more = opened.read(text, second, cut=cut).inputs.values()
    if isinstance(opened, LoadedBert):
        selection |= {"mask": opened.tokenizer.special.get("mask"), "segments": more[0]}
        return opened, explain_bert(opened.model, ids, pieces=opened.pieces, **selection)
    if not isinstance(opened, LoadedGPT):
        raise ArgumentError(
            f"{directory} holds {opened.description}",
            expected="a GPT, a BERT or an encoder–decoder that heedful implements",
        )
    return opened, explain_gpt(opened.model, ids, pieces=opened.pieces, **selection)


def _show(explanation: Explanation, is_variant: bool, step: str | None, every: bool) -> None:
    from rich.text import Text

    from heedful.views.terminal import console
    from heedful.views.walk.summary import Summary
    from heedful.views.walk.terminal_pages import Page
    from heedful.views.walk.token_trace import TokenPage

    screen = console()
    page = Page if explanation.query is None else TokenPage
    page = page if is_variant or step or every else Summary
    page(screen, explanation, step).print_walk()
    if step or explanation.query is not None:
        return
    hint = "More: --step scores shows that step in full, --all every step; --json"
    if is_variant:
        current = explanation.title.partition(":")[0]
        others = ", ".join(variant for variant in VARIANTS if variant != current)
        hint = f"More: --query @{min(1, len(explanation.tokens) - 1)}; --variant {others}"
    screen.print()
    screen.print(Text(hint, "dim"), no_wrap=True, overflow="ellipsis", crop=True)


def _draw(explanation: Explanation, folder: Path, suffix: str, overwrite: bool) -> list[Path]:
    from heedful.cli.plot import warn_of_missing_fonts
    from heedful.views.walk.pictures import draw

    paths = draw(explanation, folder, suffix, query=explanation.query, overwrite=overwrite)
    warn_of_missing_fonts([*explanation.tokens, *explanation.memory])
    return paths
