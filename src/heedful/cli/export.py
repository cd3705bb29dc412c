"""`heedful export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from heedful.cli.options import check_model, opening_options
from heedful.errors import SaveError

EXAMPLE = """\b
Examples:
  heedful export runs/first --to runs/first-hf
  heedful export runs/first --to runs/first-hf --checkpoint last --no-tokenizer
"""


@click.command(epilog=EXAMPLE)
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "directory",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory to write, which holds no model yet.",
)
@click.option("--tokenizer/--no-tokenizer", "with_tokenizer", default=True, help="Write it too.")
@opening_options("checkpoint", "revision", "allow_pickle")
def export(
    run: Path,
    directory: Path,
    with_tokenizer: bool,
    opening: dict[str, Any],
) -> None:
    """Write the model RUN for transformers: the same logits, tokenizer included.

    It becomes a Llama, Mistral, Qwen2 or Qwen3 (rotary positions), a GPT-2 or a BERT, as its
    settings ask. It opens here again.
    `AutoModelForCausalLM.from_pretrained(DIR)` and `AutoTokenizer.from_pretrained(DIR)` open it.
    """
    if (directory / "config.json").exists():
        raise SaveError(
            f"{directory} already holds a model",
            expected="a directory without one",
            remedy="choose another --to",
        )
    source = check_model(run, opening)
    from heedful.loaded import check_tokenizer
    from heedful.models import equal_of, export_model, load_model
    from heedful.text import check_exportable, export_tokenizer, load_tokenizer

    allow_pickle, checkpoint = opening["allow_pickle"], opening["checkpoint"]
    model: Any = load_model(source, checkpoint=checkpoint, allow_pickle=allow_pickle)
    equal_of(model)  # whatever cannot be is refused before anything is written
    if with_tokenizer:
        tokenizer = load_tokenizer(source)
        check_tokenizer(tokenizer, model.config.vocabulary, source)
        check_exportable(tokenizer)
        export_tokenizer(tokenizer, directory, model.config.context_length)
    export_model(model, directory)
    click.echo(directory)
