"""Floor 3: configurations and whole models."""

from typing import TYPE_CHECKING

from heedful.lazy_imports import lazily

if TYPE_CHECKING:
    from heedful.models.bert import Bert, BertOutput
    from heedful.models.configurations import BertConfig, GPTConfig, Seq2SeqConfig
    from heedful.models.description import (
        Description,
        Part,
        Passage,
        Setting,
        describe,
        describe_files,
    )
    from heedful.models.directory import load_model, model_shape, write_description
    from heedful.models.gpt import GPT, GPTOutput, loss
    from heedful.models.huggingface.export import equal_of, export_model
    from heedful.models.huggingface.hub import model_directory
    from heedful.models.parameters import parameters_of
    from heedful.models.seq2seq import Seq2Seq, Seq2SeqOutput

__all__ = [
    "Bert",
    "BertConfig",
    "BertOutput",
    "Description",
    "GPT",
    "GPTConfig",
    "GPTOutput",
    "Part",
    "Passage",
    "Seq2Seq",
    "Seq2SeqConfig",
    "Seq2SeqOutput",
    "Setting",
    "describe",
    "describe_files",
    "equal_of",
    "export_model",
    "load_model",
    "loss",
    "model_directory",
    "model_shape",
    "parameters_of",
    "write_description",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "heedful.models.bert": ["Bert", "BertOutput"],
        "heedful.models.configurations": ["BertConfig", "GPTConfig", "Seq2SeqConfig"],
        "heedful.models.description": [
            "Description",
            "Part",
            "Passage",
            "Setting",
            "describe",
            "describe_files",
        ],
        "heedful.models.directory": ["load_model", "model_shape", "write_description"],
        "heedful.models.gpt": ["GPT", "GPTOutput", "loss"],
        "heedful.models.huggingface.export": ["equal_of", "export_model"],
        "heedful.models.huggingface.hub": ["model_directory"],
        "heedful.models.parameters": ["parameters_of"],
        "heedful.models.seq2seq": ["Seq2Seq", "Seq2SeqOutput"],
    },
)
