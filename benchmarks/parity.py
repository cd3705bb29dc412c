"""Numerical agreement of heedful and transformers, on random checkpoints of each model family.

    python benchmarks/parity.py
    python benchmarks/parity.py --tokens 500 --exact-angles

transformers creates a small model of the family. All its parameters are redrawn, norms and biases
included, and the checkpoint is written as one file, in shards, and in bfloat16. Both libraries load
it in float32 and read random ids: a text longer than the sliding window and than the original
context of scaled rotary positions, and a batch padded on the left. At thousands of tokens, the
errors of transformers' float32 rotary angles exceed the tolerance; --exact-angles computes the
angles in float64, as heedful does. The figures, for the logits and for the worst hidden state, are
the largest absolute difference divided by the largest entry. Above 1e-5 the exit status is 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from timing import machine
from torch import Tensor

from heedful.models import Bert, load_model

TOLERANCE = 1e-5
VOCABULARY = 211
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


class Written(NamedTuple):
    """The type of a checkpoint's tensors and the maximum size of its files."""

    dtype: torch.dtype
    shard: str


WAYS = {
    "whole": Written(torch.float32, "1GB"),
    "in shards": Written(torch.float32, "60KB"),
    "bfloat16": Written(torch.bfloat16, "1GB"),
}


def gpt2(layers: int) -> Any:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=48, n_head=6, n_positions=4096, n_layer=layers,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def bert(layers: int) -> Any:
    shape = {name: size for name, size in SHAPE.items() if name != "num_key_value_heads"}
    config = transformers.BertConfig(**shape, num_hidden_layers=layers)
    return transformers.BertForPreTraining(config)


def causal_lm(kind: str, **changes: Any) -> Callable[[int], Any]:
    """Return a function from a number of layers to a causal language model of transformers."""

    def make(layers: int) -> Any:
        config = getattr(transformers, f"{kind}Config")
        return getattr(transformers, f"{kind}ForCausalLM")(
            config(**{**SHAPE, "num_hidden_layers": layers, **changes})
        )

    return make


FAMILIES: dict[str, Callable[[int], Any]] = {
    "GPT-2": gpt2,
    "BERT": bert,
    "Llama 2": causal_lm("Llama", num_key_value_heads=6),
    "Llama 3, scaled": causal_lm("Llama", rope_parameters=LLAMA3),
    "Mistral": causal_lm("Mistral", sliding_window=17),
    "Qwen2": causal_lm("Qwen2", use_sliding_window=True, sliding_window=23, max_window_layers=0),
    "Qwen3": causal_lm("Qwen3", head_dim=16),
    "SmolLM2": causal_lm("Llama", tie_word_embeddings=True, rope_theta=100_000.0),
}


def main() -> int:
    arguments = _arguments()
    torch.manual_seed(arguments.seed)
    transformers.logging.disable_progress_bar()
    print(f"{machine()}; transformers {transformers.__version__}")
    print(f"{'':17}{'written':>10}{'logits':>11}{'hidden states':>16}")
    worst = 0.0
    for family, make in FAMILIES.items():
        for way, written in WAYS.items():
            model = redrawn(make(arguments.layers)).to(written.dtype)
            logits, hidden = differences(model, written.shard, arguments)
            print(f"{family:17}{way:>10}{logits:11.1e}{hidden:16.1e}", flush=True)
            worst = max(worst, logits, hidden)
    print(f"worst {worst:.1e}; tolerance {TOLERANCE:.0e}")
    return int(not worst <= TOLERANCE)


@torch.no_grad()
def redrawn(model: Any) -> Any:
    """Redraw every parameter: weights of norms around 1, all others around 0."""
    for name, parameter in model.named_parameters():
        is_norm = "norm" in name.lower() or "ln_" in name
        parameter.normal_(float(is_norm and name.endswith("weight")), 0.2)
    return model


@torch.inference_mode()
def differences(model: Any, shard: str, arguments: argparse.Namespace) -> tuple[float, float]:
    """Return the largest relative difference of logits and of hidden states over all texts."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, max_shard_size=shard)
        peer = type(model).from_pretrained(folder, dtype=torch.float32).eval()
        ours = load_model(Path(folder), dtype=torch.float32)
    if arguments.exact_angles:
        exact_angles(peer)
    logits, hidden = [], []
    for ids, keep in texts(arguments.tokens):
        output = ours(ids, keep=keep)
        expected = peer(
            ids,
            attention_mask=keep.long(),
            position_ids=_positions(ours, keep),
            output_hidden_states=True,
        )
        expected_logits = expected.get("logits", expected.get("prediction_logits"))
        logits.append(relative(output.logits[keep], expected_logits[keep]))
        pairs = zip(output.hidden_states, expected.hidden_states, strict=True)
        hidden += [relative(state[keep], other[keep]) for state, other in pairs]
    return max(logits), max(hidden)


def texts(tokens: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ids (B, N) and a mask of real tokens: one text, then three texts padded left."""
    for batch in (1, 3):
        ids = torch.randint(1, VOCABULARY, (batch, tokens))
        lengths = torch.tensor([tokens, 5, tokens // 2][:batch])[:, None]
        yield ids, torch.arange(tokens)[None] >= tokens - lengths


def exact_angles(model: Any) -> None:
    """Make a model of transformers compute its rotary angles in float64."""
    rotary = getattr(model.base_model, "rotary_emb", None)
    if rotary is None:
        return
    config = rotary.config
    width = 2 * len(rotary.inv_freq)
    base = torch.tensor(config.rope_parameters["rope_theta"], dtype=torch.float64)
    plain = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    single = base.float() ** (-torch.arange(0, width, 2) / width)
    # apply the model's scaling factors to the exact frequencies
    frequencies = plain * (rotary.inv_freq / single).double()

    def forward(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None].double() * frequencies
        both = torch.cat([angles, angles], -1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)

    rotary.forward = forward


def relative(output: Tensor, expected: Tensor) -> float:
    """Return the largest absolute difference divided by the largest entry."""
    return float((output - expected).abs().max() / expected.abs().max())


def _positions(ours: Any, keep: Tensor) -> Tensor | None:
    """Return positions that count real tokens from 0; for BERT None, which counts padding too."""
    return None if isinstance(ours, Bert) else (keep.cumsum(-1) - 1).clamp(min=0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--exact-angles", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
