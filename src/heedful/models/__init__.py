"""Floor 3: configurations and whole models."""

from heedful.models.bert import Bert, BertConfig, BertOutput
from heedful.models.directory import load_model, write_description
from heedful.models.gpt import GPT, GPTConfig, GPTOutput, loss, parameters
from heedful.models.huggingface.export import equal_of, export_model
from heedful.models.huggingface.hub import model_directory
from heedful.models.named_parameters import load_parameters, parameters_of
from heedful.models.seq2seq import Seq2Seq, Seq2SeqConfig, Seq2SeqOutput

__all__ = [
    "Bert",
    "BertConfig",
    "BertOutput",
    "GPT",
    "GPTConfig",
    "GPTOutput",
    "Seq2Seq",
    "Seq2SeqConfig",
    "Seq2SeqOutput",
    "equal_of",
    "export_model",
    "load_model",
    "load_parameters",
    "loss",
    "model_directory",
    "parameters",
    "parameters_of",
    "write_description",
]
