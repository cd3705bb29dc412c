"""`heedful explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heedful.cli.input_texts import cut_option, file_option, notices, read_text, second_option
from heedful.cli.options import check_model, json_option, opening_options, refuse
from heedful.cli.output_paths import check_page
from heedful.errors import ArgumentError

if TYPE_CHECKING:  # what brings torch is imported when the work begins
    from heedful.explain import Explanation

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
@click.option("--variant", type=click.Choice(VARIANTS), help="The kind of attention [simple].")
@click.option("--memory", metavar="TEXT", help="The second text, which cross-attention looks at.")
@click.option("--heads", type=click.IntRange(1), help="Of multihead [2] and cross [1].")
@click.option(
    "--dim",
    type=click.IntRange(1),
    help="Width of a token's vector [3; multihead 4, projected 128].",
)
@click.option(
    "--head-dim", type=click.IntRange(1), help="Width of a query [dim / heads; projected dim / 8]."
)
@click.option("--seed", type=int, help="For other vectors and weights [0].")
@click.option("--positions", is_flag=True, help="Add sines and cosines of each token's place.")
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="Show a trained model's numbers, to the words that it thinks likely: a run, a directory "
    "in Hugging Face format, or a hub name.",
)
@click.option("--layer", type=click.IntRange(0), help="The model's block to open, from 0 [0].")
@click.option("--head", type=click.IntRange(0), default=0, help="Which to show, from 0 [0].")
@click.option("--query", metavar="WORD", help="Follow this token alone; @4 is the one at place 4.")
@second_option
@click.option(
    "--target",
    metavar="TEXT",
    help="Of an encoder–decoder: what is written so far [what the model itself writes].",
)
@click.option(
    "--pictures",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Draw the steps into this folder too.",
)
@click.option(
    "--format",
    "suffix",
    type=click.Choice(["png", "svg", "pdf"]),
    default="png",
    show_default=True,
    help="Of the pictures.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the steps as a page for a browser; without --model it computes any sentence.",
)
@click.option(
    "--overwrite", is_flag=True, help="Replace the file, or pictures, that are there already."
)
@opening_options()
@json_option
def explain(
    text: str | None,
    file: Path | None,
    cut: bool,
    model: Path | None,
    head: int,
    query: str | None,
    pictures: Path | None,
    suffix: str,
    html: Path | None,
    overwrite: bool,
    as_json: bool,
    opening: dict[str, Any],
    **options: Any,
) -> None:
    """Show every step of attention on TEXT, with its numbers.

    Words are the tokens, and their vectors and weights are drawn from a seed; with --model, tokens
    and numbers are those of a trained model, and the steps go on to the words that it thinks
    likely: the next one of a GPT, those at [MASK] of a BERT, the next letter of a translation.
    """
    given = {name: value for name, value in options.items() if value not in (None, False)}
    of_model = {name: given.pop(name) for name in MODEL_OPTIONS if name in given}
    if html is not None and given.get("variant") == "cross":
        from heedful.text.example_texts import SECOND

        given.setdefault("memory", SECOND)
    _check_usage(model, cut, given, {**of_model, **opening})
    if html is not None:
        refuse("does not go with --html.", query=query, pictures=pictures, json=as_json)
        check_page(html, overwrite)
    if text is file is model is None and html is not None:
        from heedful.text.example_texts import SENTENCE

        text = SENTENCE  # of document 002 (after Raschka); the page computes what is typed into it
    words = read_text(text, file)
    if model is not None:
        explanation = _of_model(model, words, cut, head, of_model, opening)
    else:
        from heedful.explain import explain as explain_text

        explanation = explain_text(words, head=head, **given)
    if html is not None:
        _write_page(html, explanation, words, given if model is None else None)
        return
    places = None if query is None else explanation.places(query)
    drawn = [] if pictures is None else _draw(explanation, pictures, suffix, overwrite)
    if as_json:
        from heedful.views.walk.page_data import as_data

        click.echo(json.dumps(as_data(explanation, places), ensure_ascii=False))
        return
    _show(explanation, places, model is None)
    for path in drawn:
        click.echo(path)


def _check_usage(
    model: Path | None, cut: bool, given: dict[str, Any], of_model: dict[str, Any]
) -> None:
    if model is not None:
        refuse("is for the variants: --model has its own numbers.", **given)
        return
    names = (*MODEL_OPTIONS, "revision")
    refuse("is for --model.", cut=cut, **{name: of_model.get(name) for name in names})


def _write_page(
    html: Path, explanation: Explanation, words: str, variant: dict[str, Any] | None
) -> None:
    """A model's walk; of a variant, given by its options, all of them for any sentence."""
    from heedful.files import replacing
    from heedful.views.walk.one_file import of_explanation, of_variants, page

    if variant is None:
        data = page(of_explanation(explanation))
    else:
        options = {**variant, "head": explanation.head} if explanation.head else variant
        offered, first = of_variants(explanation, options)
        memory = {name: text for name, text in variant.items() if name == "memory"}
        data = page(offered, first=first, text=words, **memory)
    with replacing(html) as file:
        file.write(data)
    click.echo(f"{html}, {len(data) / 1e6:.1f} MB: opens in any browser, with no network")


def _of_model(
    directory: Path, text: str, cut: bool, head: int, options: dict[str, Any],
    opening: dict[str, Any],
) -> Explanation:  # fmt: skip
    check_model(directory, opening)
    from heedful.explain import explain_bert, explain_gpt, explain_seq2seq
    from heedful.loaded import LoadedBert, LoadedGPT, LoadedSeq2Seq, TruncationWarning, open_ours

    opened = open_ours(directory, **opening)
    second, target = options.get("second"), options.get("target")
    where: dict[str, Any] = {"layer": options.get("layer", 0), "head": head}
    if target is not None and not isinstance(opened, LoadedSeq2Seq):
        raise click.UsageError(f"--target is for an encoder–decoder; {directory} holds none.")
    with notices(TruncationWarning):
        if isinstance(opened, LoadedSeq2Seq):
            rows = opened.rows(text, second, target=target, cut=cut)
            return explain_seq2seq(opened.model, *rows, pieces=opened.pieces, **where)
        ids, *more = opened.read(text, second, cut=cut).inputs.values()
    if isinstance(opened, LoadedBert):
        where |= {"mask": opened.tokenizer.special.get("mask"), "segments": more[0]}
        return explain_bert(opened.model, ids, pieces=opened.pieces, **where)
    if not isinstance(opened, LoadedGPT):
        raise ArgumentError(
            f"{directory} holds a {type(opened.model).__name__}",
            expected="a GPT, a BERT or an encoder–decoder of ours",
        )
    return explain_gpt(opened.model, ids, pieces=opened.pieces, **where)


def _show(explanation: Explanation, places: list[int] | None, is_variant: bool) -> None:
    from rich.text import Text

    from heedful.views.terminal import console
    from heedful.views.walk.terminal_pages import show
    from heedful.views.walk.token_trace import follow

    screen = console()
    if places is not None:
        follow(screen, explanation, places)
        return
    show(screen, explanation)
    screen.print()
    screen.print(
        Text(_next(explanation, is_variant), "dim"), no_wrap=True, overflow="ellipsis", crop=True
    )


def _next(explanation: Explanation, is_variant: bool) -> str:
    """What else one can look at, in one line."""
    place = min(1, len(explanation.tokens) - 1)
    if is_variant:
        shown = explanation.title.partition(":")[0]
        others = ", ".join(variant for variant in VARIANTS if variant != shown)
        return f"Go on: --query @{place}; --variant {others}"
    deeper = f", --layer {explanation.layers - 1}" if explanation.layers > 1 else ""
    return f"Go on: --query @{place} follows a token{deeper}, --pictures DIR, --json"


def _draw(explanation: Explanation, folder: Path, suffix: str, overwrite: bool) -> list[Path]:
    from heedful.cli.plot import tell_of_fonts
    from heedful.views.walk.pictures import draw

    paths = draw(explanation, folder, suffix, overwrite=overwrite)
    tell_of_fonts([*explanation.tokens, *explanation.memory])
    return paths
