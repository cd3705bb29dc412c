"""A small GPT as data from which its page computes any text: stages, weights, tokenizer."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from heedful.explain import Explanation, explain_gpt
from heedful.loaded import LoadedGPT, LoadedModel
from heedful.views.explorer.wire import packed
from heedful.views.walk.page_data import BYTES, all_stages, computed_stage_data, walk_data

ENCODINGS = ("bpe", "gpt2", "cl100k_base")  # byte-pair encodings that tokenizer.js implements
MAX_TOKENS = 512  # of a text; a page needs seconds and gigabytes for thousands
STORED = "Other texts cannot be typed: "
HALF = (
    "The page computes with weights in half precision, so the last digits of a number can differ "
    "from those of `heedful explain`."
)


def model_data(opened: LoadedModel, walk: Explanation) -> bytes | str:
    """Return the data of a GPT in the format of `wire.packed`, or why the page cannot compute it.

    `walk` is the explanation of a text by this model.
    """
    if not isinstance(opened, LoadedGPT):
        return f"{STORED}the page computes only GPTs."
    tokenizer, arrays = _tokenizer_data(opened.tokenizer)
    if not tokenizer:
        return f"{STORED}the page lacks this model's tokenizer ({opened.tokenizer.kind})."
    count = sum(parameter.numel() for parameter in opened.model.parameters())
    room = (BYTES - sum(array.nbytes for array in arrays.values())) // 2
    if count > room:
        return f"{STORED}the model has {count:,} parameters, and the page has room for {room:,}."
    model, context = copy.deepcopy(opened.model), min(opened.context_length, MAX_TOKENS)
    for parameter in model.parameters():
        parameter.data = parameter.data.half().to(parameter.dtype)
    samples = [
        explain_gpt(model, opened.batch([0] * length), pieces=opened.pieces, layer=walk.layer)
        for length in (1, context)
    ]
    stages, longer = (all_stages(sample, deep=True) for sample in samples)
    names: dict[tuple, str] = {}

    def reference(value: Any) -> Any:
        """Store a tensor, in half precision if that is exact, and equal tensors once."""
        if not isinstance(value, Tensor):
            return value
        numbers = value.float().cpu().contiguous()
        half = numbers.half()
        key = (numbers.shape, numbers.numpy().tobytes())
        name = names.setdefault(key, f"array {len(names)}")
        arrays[name] = half if torch.equal(half.float(), numbers) else numbers
        return {"array": name}

    entries = []
    for stage, other in zip(stages, longer, strict=True):
        entry = computed_stage_data(stages, stage, other, {context - 1: "N"})
        columns = stage.numbers().mT if stage.rows == "width" else None
        constants = {"bias": stage.bias, "columns": columns, **entry["constants"]}
        entries.append(entry | {"constants": {k: reference(v) for k, v in constants.items()}})
    head = {
        **walk_data(walk, stages),
        "section": walk_data(samples[0], stages)["section"],
        "notes": [*walk.notes, HALF],
        "most": context,
        "pieces": walk.vocabulary,
        "prefix": opened.tokenizer.prefix_ids,
        "tokenizer": tokenizer,
        "stages": entries,
    }
    return packed(head, **arrays)


def _tokenizer_data(tokenizer: Any) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the data of a tokenizer; empty if the page does not implement it."""
    if tokenizer.kind == "characters":
        return {"characters": tokenizer.characters}, {}
    encoding = getattr(tokenizer, "encoding", None)
    if encoding is None or encoding.name not in ENCODINGS:
        return {}, {}
    tokens = sorted(encoding.token_byte_values(), key=encoding.encode_single_token)
    originals = getattr(tokenizer, "originals", range(len(tokens)))
    return {"encoding": encoding.name}, {
        "sizes": torch.tensor([len(token) for token in tokens]),
        "bytes": torch.tensor(list(b"".join(tokens)), dtype=torch.uint8),
        "originals": torch.tensor(originals),
    }
