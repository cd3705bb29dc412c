"""The command `heedful demo`: train a small GPT, then print samples and attention maps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from heedful.cli import run_training as terminal
from heedful.cli.options import output_directory
from heedful.cli.suggested_commands import suggestion
from heedful.errors import RunError

if TYPE_CHECKING:
    from rich.console import Console

    from heedful.loaded import LoadedGPT
    from heedful.recording import Recording

PROMPTS = ("The import statement", "A class definition")
SENTENCE = "The import statement binds a name in the local namespace"
EXAMPLE = """\b
Examples:
  heedful demo
  heedful demo --keep
"""


@click.command(epilog=EXAMPLE)
@click.option(
    "--out", callback=output_directory, metavar="DIR", default="runs/demo", show_default=True,
    help="Directory of the training run; an earlier demo in it is replaced.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Show the model of an earlier demo; do not train.")
@click.option(
    "--steps", type=click.IntRange(1, 10**12), metavar="N",
    help="Number of training steps [that of the preset quick].",
)  # fmt: skip
def demo(out: Path, keep: bool, steps: int | None) -> int:
    """Train a small GPT on the Python language reference and show where its heads look.

    After training, the demo prints two samples and the attention maps of two heads, and writes
    pictures and a page with all heads into the directory of the run.
    """
    if keep:
        from heedful.files import check_no_links
        from heedful.train import has_run
        from heedful.train.run_files import PICTURES

        if not has_run(out):
            raise RunError(f"no run in {out}", remedy="run `heedful demo` without --keep")
        check_no_links([out / PICTURES])
    from rich.text import Text

    from heedful.loaded import LoadedGPT, open_as
    from heedful.views.terminal import console, duration

    screen, start = console(), time.monotonic()
    screen.print()
    screen.print(
        Text("heedful demo", style="bold"), Text("· a GPT trained from scratch", style="dim")
    )
    screen.print()
    if not keep:
        status = _train(out, steps, screen)
        if status:
            return status
    opened = open_as(LoadedGPT, out)
    _section(screen, "What the GPT writes", "two samples, at temperature 0.7")
    for seed, prompt in enumerate(PROMPTS):
        _sample(opened, prompt, seed, screen)
    _section(
        screen, "Where its heads look", "rows are queries, columns keys; 0 is darkest, 1 brightest"
    )
    recording = opened.record(SENTENCE)
    _heads(recording, screen)
    pictures = _pictures(opened, recording, out)
    _section(screen, "Pictures", "")
    for picture in pictures:
        screen.print(f"  {picture}", soft_wrap=True, markup=False)
    _section(screen, "All its heads on one page", "opens in any browser, with no network")
    from heedful.views.explorer import one_file
    from heedful.views.explorer.catalogue import Catalogue

    path, page = out / "explorer.html", Catalogue({out.name: recording})
    size, _ = one_file.write(path, page, f"{out.name} · heedful")
    screen.print(f"  {path}, {size / 1e6:.1f} MB", soft_wrap=True, markup=False)
    _section(screen, "Next", "")
    for line in (
        suggestion("generate", out, "--samples", "3", text="A list comprehension"),
        suggestion("generate", out, "--probabilities", "5", text="The import statement"),
        suggestion(
            "plot", out, "--layers", "0,1", "--out", "names.png", text="for name in namespace"
        ),
        suggestion("look", out, text="for name in namespace"),
        suggestion("train", "YOUR_TEXT.txt", "--out", "runs/mine"),
    ):
        screen.print(f"  {line}", soft_wrap=True, markup=False)
    screen.print(f"\n{duration(time.monotonic() - start)} in all.", style="dim")
    return 0


def _train(out: Path, steps: int | None, screen: Console) -> int:
    from heedful.text import TITLE
    from heedful.train import PRESETS, has_run, new_plan, open_training, read_plan, replace
    from heedful.train.run_directory import lock_run
    from heedful.views.terminal import facts

    recipe = PRESETS["quick"]
    if steps:
        recipe = recipe.changed({"train": {"steps": steps}})
    plan = new_plan(out, (), recipe, preset="quick")
    with terminal.report_lost_output(out), lock_run(out):
        if has_run(out) and read_plan(out).title != TITLE:
            raise RunError(
                f"{out} holds a run on another text",
                expected="no run in this directory, or the run of an earlier demo",
                remedy="choose another --out",
            )
        prepared = terminal.prepare(replace, plan)
        training = open_training(plan, prepared)
        screen.print(facts(terminal.describe(plan, prepared, training)), "")
        ended = terminal.train(plan, training, screen)
    if ended.why == "stopped":
        terminal.show_stopped(ended.step, out, screen)
        return 130
    return 0


def _section(screen: Console, title: str, hint: str) -> None:
    from rich.text import Text

    screen.print()
    screen.print(Text(title, style="bold"), *([Text(f"· {hint}", style="dim")] if hint else []))
    screen.print()


def _sample(opened: LoadedGPT, prompt: str, seed: int, screen: Console) -> None:
    from rich.text import Text

    from heedful.generate import Sampling, TextStream, generate

    screen.print(Text(f"  {prompt}", style="bold"), end="")
    stream = TextStream(opened.tokenizer, stop=["\n\n\n"])
    ids = opened.tokenizer.encode(prompt)
    sampling = Sampling(temperature=0.7, top_k=40)
    pieces = generate(opened.model, ids, tokens=90, sampling=sampling, seed=seed)
    for token in pieces:
        screen.print(Text(stream.push(int(token)).replace("\n", "\n  ")), end="", soft_wrap=True)
        if stream.stopped:
            break
    screen.print(Text(stream.close()), Text("…\n", style="dim"))


def strongest_heads(recording: Recording) -> list[tuple[int, int, str, float]]:
    """Return layer, head, attended tokens in words, and mean weight on those tokens, of two heads.

    The first has most weight on the token before: its score `previous`. The second has most weight
    on all tokens before that, except the first of the text, which is often an attention sink.
    """
    import torch

    maps = torch.stack([call.weights() for call in recording])  # (layers, H, N, N)
    previous = maps.diagonal(-1, -2, -1).mean(-1)
    further = maps.tril(-2)[..., 2:, 1:].sum(-1).mean(-1)
    heads = []
    for target, shares in (("the token before", previous), ("tokens further back", further)):
        layer, head = divmod(int(shares.argmax()), shares.shape[1])
        heads.append((layer, head, target, float(shares[layer, head])))
    return heads


def _heads(recording: Recording, screen: Console) -> None:
    from heedful.views.terminal import heatmap, side_by_side

    heads = strongest_heads(recording)
    coloured, tokens = screen.color_system is not None, recording[0].tokens or []
    maps = [
        heatmap(recording[layer].weights(head=head).numpy(), tokens, coloured)
        for layer, head, *_ in heads
    ]
    titles = [f"layer {layer}, head {head}" for layer, head, *_ in heads]
    screen.print(side_by_side(maps, titles))
    screen.print()
    for title, (*_, target, share) in zip(titles, heads, strict=True):
        screen.print(f"  {title} puts {100 * share:.0f} % of its weight on {target}")


def _pictures(opened: LoadedGPT, recording: Recording, out: Path) -> list[Path]:
    from heedful.cli.plot import draw_attention, positions_figure
    from heedful.pictures.saving import save

    folder = out / "pictures"
    paths = draw_attention(recording, folder)
    paths.append(save(positions_figure(opened.positions), folder / "positions.png"))
    curve = terminal.draw_losses(out, folder / "loss.png")
    return [*paths, curve] if curve else paths
