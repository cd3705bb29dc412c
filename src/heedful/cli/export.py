"""The command `heedful export`."""

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
    "--to", "directory", type=click.Path(path_type=Path, file_okay=False), required=True,
    metavar="DIR", help="Directory to write to; it must not contain a model.",
)  # fmt: skip
@click.option(
    "--tokenizer/--no-tokenizer", "with_tokenizer", default=True,
    help="Write the tokenizer's files too [--tokenizer].",
)  # fmt: skip
@opening_options("checkpoint", "revision", "allow_pickle")
def export(run: Path, directory: Path, with_tokenizer: bool, opening: dict[str, Any]) -> None:
    """Write the model RUN in Hugging Face format, with its tokenizer; the logits stay the same.

    A GPT with rotary positions becomes a Llama, Mistral, Qwen2 or Qwen3, depending on its settings.
    Any other GPT becomes a GPT-2. A BERT stays a BERT. Open the result with heedful or transformers
    (`AutoModelForCausalLM.from_pretrained(DIR)`, `AutoTokenizer.from_pretrained(DIR)`).
    """
    if (directory / "config.json").exists():
        raise SaveError(
            f"{directory} already holds a model",
            expected="a directory without a model",
            remedy="choose another --to",
        )
    source = check_model(run, opening)
    from heedful.loaded import check_tokenizer
    from heedful.models import equivalent_type, export_model, load_model
    from heedful.text import check_exportable, export_tokenizer, load_tokenizer

    allow_pickle, checkpoint = opening["allow_pickle"], opening["checkpoint"]
    model: Any = load_model(source, checkpoint=checkpoint, allow_pickle=allow_pickle)
    equivalent_type(model)  # raises an error if no type is equivalent, before files are written
    if with_tokenizer:
        tokenizer = load_tokenizer(source)
        check_tokenizer(tokenizer, model.config.vocabulary, source)
        check_exportable(tokenizer)
        export_tokenizer(tokenizer, directory, model.config.context_length)
    export_model(model, directory)
    click.echo(directory)
