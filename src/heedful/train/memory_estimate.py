"""An estimate of the memory for training, from the model's shape and the batch size."""

from __future__ import annotations

from rich.filesize import decimal

from heedful.errors import ArgumentError
from heedful.layers.option_names import GATE_NAMES
from heedful.models import BertConfig, Seq2SeqConfig
from heedful.models.size import Config, blocks, hidden, machine_memory, parameters
from heedful.train.settings import TrainSettings


def memory(config: Config, settings: TrainSettings, processes: int = 1) -> int:
    """Estimate the bytes that training uses in each process; the error is mostly below a third.

    All numbers are float32. Each parameter needs four numbers: the weight, its gradient and two of
    the optimizer. Muon needs two more while it orthogonalises matrices. Each token needs the
    activations that every block stores for the backward pass, and three numbers for each logit (in
    a BERT, only 15 % of the tokens have logits).

    Args:
        config: the architecture of the model.
        settings: the batch size and the optimizer.
        processes: the number of processes that train the model together.

    >>> from heedful.models import GPTConfig
    >>> gpt2 = GPTConfig(vocabulary=50257, width=768, layers=12, heads=12)
    >>> round(memory(gpt2, TrainSettings(batch=12)) / 1e9, 1)
    4.2
    """
    width, all_parameters = config.width, parameters(config)
    states = 4.0 * all_parameters / (processes if settings.shard else 1)
    if settings.optimizer == "muon":
        states += 2 * all_parameters
    stored = 9 * width + (4 if config.activation in GATE_NAMES else 2) * hidden(config)
    if getattr(config, "qk_norm", False):
        stored += 6 * width
    if getattr(config, "attention_dropout", config.dropout):  # scores, weights, dropped weights
        stored += 3 * config.heads * config.context_length
    if isinstance(config, Seq2SeqConfig):  # cross-attention
        stored += 7 * width
    logits = 3 * config.vocabulary * (0.15 if isinstance(config, BertConfig) else 1.0)
    tokens = -(-settings.batch // processes) * config.context_length
    return round(4 * (states + tokens * (blocks(config) * stored + logits)))


def check_memory(config: Config, settings: TrainSettings, device: str, processes: int = 1) -> None:
    """Check that the device has enough memory for a training run.

    Args:
        config: the architecture. Until the text is read, its vocabulary may be a lower bound.
        settings: the batch size and the optimizer.
        device: the name of the device, such as "cpu" or "cuda:0".
        processes: the number of processes that train together.

    Raises:
        ArgumentError: a process needs more than the device's total memory.
    """
    needed, available = memory(config, settings, processes), machine_memory(device)
    if available is not None and needed > available:
        raise ArgumentError(
            f"training needs about {decimal(needed)} of memory, for {parameters(config):,} "
            f"parameters and a batch of {settings.batch:,} × {config.context_length:,} tokens",
            expected=f"at most the {decimal(available)} of "
            f"{'this machine' if device == 'cpu' else device}",
            remedy="try a smaller --width, --layers, --vocabulary, --context-length or --batch",
        )
