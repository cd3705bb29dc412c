"""What a model predicts on a text without some of its heads and edges (query–key pairs)."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.interventions import change, intervene
from heedful.loaded import LoadedGPT, LoadedModel, LoadedTransformers
from heedful.models.checks import check_logits
from heedful.views.explorer.wire import packed

LONGEST = 2048  # tokens of a text
SHOWN = 8  # likely next tokens in a response
Part = tuple[Any, ...]  # module, head; of an edge, also query and key


def predictor(loaded: LoadedModel) -> nn.Module | None:
    """Return the module that predicts the next token of a text; None if there is none."""
    if isinstance(loaded, LoadedGPT):
        return loaded.model
    return loaded.writer if isinstance(loaded, LoadedTransformers) else None


def without(loaded: LoadedModel, ids: Tensor | None, removed: list[Part], at: int) -> bytes:
    """Return the loss of each token with and without some parts, and the likely tokens after `at`.

    Losses (N − 1,) begin with the second token's. `chances` (2, n) are the probabilities with and
    without the parts; `following` is the index in them of the token that follows in the text.
    """
    model = predictor(loaded)
    if model is None or ids is None or len(ids) > LONGEST:
        raise ArgumentError(
            f"a {type(loaded.model).__name__} on {'?' if ids is None else f'{len(ids):,}'} tokens",
            expected=f"a model that predicts the next token, and at most {LONGEST:,} tokens",
        )
    text = tuple(ids.tolist())
    plain, losses, _ = _run(model, text, ())
    changed, losses_without, report = _run(model, text, tuple(removed))
    chances = torch.stack([plain[at], changed[at]]).softmax(-1)
    top = chances.amax(0).topk(min(SHOWN, chances.shape[1])).indices
    likely = top[chances[0, top].argsort(descending=True)].tolist()
    following = text[at + 1 : at + 2]
    likely += [token for token in following if token not in likely]
    about = {"pieces": loaded.pieces(likely), "following": [likely.index(t) for t in following]}
    mean = [float(loss.mean()) for loss in (losses, losses_without)]
    return packed(
        {**about, "mean": mean, "report": report},
        chances=chances[:, likely], losses=losses, without=losses_without,
    )  # fmt: skip


@lru_cache(maxsize=2)  # the unchanged run and the latest changed one
@torch.inference_mode()
def _run(model: nn.Module, text: tuple[int, ...], removed: tuple[Part, ...]) -> Any:
    """Return the logits (N, V), the losses (N − 1,), and the report on the changes."""
    changes: dict[str, list[Any]] = {}
    for module, head, *edge in sorted(removed, key=len, reverse=True):
        # edges first: they compute their rows again, also those of a head set to zero
        part = change.block(edge[0], edge[1], heads=head) if edge else change.zero(head)
        changes.setdefault(module, []).append(part)
    ids, report = torch.tensor([text], device=next(model.parameters()).device), "[]"
    if changes:
        with intervene(model, changes) as changed:
            logits = model(ids).logits
        report = changed.report().to_json()
    else:
        logits = model(ids).logits
    logits = check_logits(logits[0]).cpu()
    losses = nn.functional.cross_entropy(logits[:-1], ids[0, 1:].cpu(), reduction="none")
    return logits, losses, json.loads(report)
