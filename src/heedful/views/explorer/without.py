"""What a model predicts on a text without some of its heads and edges (query–key pairs)."""

from __future__ import annotations

from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.interventions import change, intervene
from heedful.loaded import LoadedGPT, LoadedModel
from heedful.models.checks import check_logits
from heedful.views.explorer.wire import packed

LONGEST, SHOWN = 2048, 8  # limits: tokens of a text, and likely next tokens in a response


def predictor(loaded: LoadedModel | None) -> nn.Module | None:
    """Return the module that predicts the next token of a text; None if there is none."""
    return loaded.model if isinstance(loaded, LoadedGPT) else getattr(loaded, "writer", None)


def without(loaded: LoadedModel | None, ids: Tensor | None, removed: list[Any], at: int) -> bytes:
    """Return the loss of each token with and without some parts, and the likely tokens after `at`.

    A part is (module, head) or an edge (module, head, query, key). Losses (N − 1,) begin with the
    second token's. `chances` (2, n) are probabilities with and without the parts; `following` is
    the index in them of the token that follows in the text.
    """
    model = predictor(loaded)
    if loaded is None or model is None or ids is None or len(ids) > LONGEST:
        expected = f"a model that predicts the next of at most {LONGEST:,} tokens with known ids"
        raise ArgumentError(
            f"a text of {0 if ids is None else len(ids):,} tokens", expected=expected
        )
    text = tuple(ids.tolist())
    logits, losses, _ = _run(model, text, ())
    other_logits, other_losses, report = _run(model, text, tuple(removed))
    chances = torch.stack([logits[at], other_logits[at]]).softmax(-1)
    likely = chances.amax(0).topk(min(SHOWN, chances.shape[1])).indices.tolist()
    following = text[at + 1 : at + 2]
    likely += [token for token in following if token not in likely]
    about = {"pieces": loaded.pieces(likely), "following": [likely.index(t) for t in following]}
    arrays = {"chances": chances[:, likely], "losses": losses, "without": other_losses}
    return packed({**about, "report": report}, **arrays)


@lru_cache(maxsize=2)  # the unchanged run and the latest changed one
@torch.inference_mode()
def _run(model: nn.Module, text: tuple[int, ...], removed: tuple) -> Any:
    """Return the logits (N, V), the losses (N − 1,), and the report on the changes."""
    changes: dict[str, list[Any]] = {}
    for module, head, *edge in removed:
        part = change.block(edge[0], edge[1], heads=head) if edge else change.zero(head)
        changes.setdefault(module, []).append(part)
    ids = torch.tensor([text], device=next(model.parameters()).device)
    with intervene(model, changes) if changes else nullcontext() as changed:
        logits = check_logits(model(ids).logits[0]).cpu()
    losses = nn.functional.cross_entropy(logits[:-1], ids[0, 1:].cpu(), reduction="none")
    report = changed.report() if changed else []
    return logits, losses, [{**vars(line), "proof": line.proof} for line in report]
