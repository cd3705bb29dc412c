"""Forward pass of BERT in heedful and in transformers with sdpa, on equal weights and texts.

    python benchmarks/bert.py

The shape is BERT base's, at 512 tokens. "encoder" is the bare model with its pooler. "masked words"
has the masked-word head, which computes 30,522 logits per token. "padded" has texts of unequal
length. The outputs are compared before the timing. The ratio is the time of transformers divided by
heedful's: above 1, heedful is faster. The target is a ratio of at least 1 at batch 1.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import transformers
from timing import Turns, machine
from torch import Tensor

from heedful.models import Bert, load_model

TARGET = 1.0
KINDS: dict[str, Any] = {
    "encoder": transformers.BertModel,
    "masked words": transformers.BertForMaskedLM,
}


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(f"{machine()}; transformers {transformers.__version__} with sdpa")
    print(f"{'':14}{'batch':>6}{'':>9}{'heedful':>9}{'transf.':>10}{'ratio':>8}{'max diff':>10}")
    for name, kind in KINDS.items():
        peer, ours = models(kind, arguments.layers)
        for batch in arguments.batches:
            for padded in (False, True) if batch > 1 else (False,):
                row(name, ours, peer, batch, padded, arguments)


def models(kind: Any, layers: int) -> tuple[Any, Bert]:
    """Load both models from one checkpoint; the memory layout of weights affects the speed."""
    config = transformers.BertConfig(num_hidden_layers=layers)
    with tempfile.TemporaryDirectory() as folder:
        kind(config).save_pretrained(folder)
        peer = kind.from_pretrained(folder, attn_implementation="sdpa").eval()
        ours = load_model(folder)
    assert isinstance(ours, Bert)
    return peer, ours


def row(
    name: str, ours: Bert, peer: Any, batch: int, padded: bool, arguments: argparse.Namespace
) -> None:
    run_ours, run_peer = ways(ours, peer, batch, padded, arguments.tokens)
    difference = float((run_ours() - run_peer()).abs().max())
    if difference > 1e-4:
        raise SystemExit(f"{name}: the outputs differ by {difference}")
    turns = Turns({"ours": run_ours, "peer": run_peer}, arguments.rounds)
    ratio = turns.ratio("peer", to="ours")
    verdict = f"  at least {TARGET}: {'yes' if ratio >= TARGET else 'NO'}" if batch == 1 else ""
    kind = "padded" if padded else "whole"
    print(f"{name:14}{batch:6}{kind:>9}{turns.median('ours'):9.3f}", end="")
    print(f"{turns.median('peer'):10.3f}{ratio:8.2f}{difference:10.0e}{verdict}", flush=True)


def ways(
    ours: Bert, peer: Any, batch: int, padded: bool, tokens: int
) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """Return a function per model that returns its output for the real tokens of the same texts."""
    ids = torch.randint(1, ours.config.vocabulary, (batch, tokens))
    keep = mask = None
    if padded:
        keep = torch.arange(tokens)[None] < torch.linspace(tokens // 4, tokens, batch)[:, None]
        mask = keep.long()
    real = slice(None) if keep is None else keep

    @torch.inference_mode()
    def run_ours() -> Tensor:
        output = ours(ids, keep=keep)
        return (output.hidden_states[-1] if output.logits is None else output.logits)[real]

    @torch.inference_mode()
    def run_peer() -> Tensor:
        output = peer(ids, attention_mask=mask)
        return (output.last_hidden_state if ours.head is None else output.logits)[real]

    return run_ours, run_peer


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
