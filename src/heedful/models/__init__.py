"""The models GPT, BERT and encoder–decoder, with their configurations and checkpoints."""

from typing import TYPE_CHECKING

from heedful.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from heedful.models.bert import Bert, BertOutput
    from heedful.models.configurations import BertConfig, GPTConfig, Seq2SeqConfig
    from heedful.models.description import (
        Description,
        Part,
        Setting,
        ShapeStep,
        describe,
        describe_files,
    )
    from heedful.models.directory import load_model, meta_model, write_model_config
    from heedful.models.gpt import GPT, GPTOutput, loss
    from heedful.models.huggingface.export import equivalent_type, export_model
    from heedful.models.huggingface.hub import model_directory
    from heedful.models.parameters import parameters_of
    from heedful.models.seq2seq import Seq2Seq, Seq2SeqOutput

__all__ = [
    "Bert", "BertConfig", "BertOutput", "Description", "GPT", "GPTConfig", "GPTOutput", "Part",
    "ShapeStep", "Seq2Seq", "Seq2SeqConfig", "Seq2SeqOutput", "Setting", "describe",
    "describe_files", "equivalent_type", "export_model", "load_model", "loss",
    "model_directory", "meta_model", "parameters_of", "write_model_config",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__)
