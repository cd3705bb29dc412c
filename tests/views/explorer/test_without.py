"""Requests for what a model predicts without heads; `browser` tests the numbers on the page."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from reduced_models import predicted, reduced
from small_models import LETTERS, drawn, opened

from heedful.errors import ArgumentError
from heedful.loaded import LoadedBert, LoadedGPT
from heedful.recorder import record
from heedful.views.explorer import without
from heedful.views.explorer.catalogue import Catalogue
from heedful.views.explorer.handlers import Handlers
from heedful.views.explorer.wire import unpacked

TEXT = "abac dea gab"
IDS = torch.tensor(LETTERS.encode(TEXT))
WRONG = ["", "0", "0.1.2", "0.x", "0.1.2.3.4", "9.0", "0.9", "0.0.99.0", "0.0.0.99", "0.1,"]


def served(loaded, recording):
    """Return a function that asks a server; the first of its two models is a BERT."""
    handlers = Handlers(Catalogue({"of bert": recording, "of loaded": recording}))
    handlers.models = {"bert": opened(LoadedBert), "loaded": loaded}
    assert unpacked(handlers.about())[0]["model"]["predicts"] == [False, True]

    def ask(removed, at=5, call="1.0.0"):
        fields = {"call": call, "removed": removed, "at": str(at)}
        return unpacked(handlers.handle("without", fields))[1]["without"]

    return ask


def test_a_transformers_model_is_recorded_without_its_output_layer():
    config = transformers.GPTNeoXConfig(
        vocab_size=8, hidden_size=12, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=20, max_position_embeddings=16,
    )  # fmt: skip
    writer = drawn(transformers.GPTNeoXForCausalLM(config))
    with torch.no_grad(), record(writer.base_model) as recording:
        writer.base_model(IDS[None])
    loaded = SimpleNamespace(writer=writer, pieces=LETTERS.pieces, reads_pairs=True)
    losses, _ = predicted(reduced(writer, "gpt_neox.layers.1.attention.dense", [1]), IDS)
    np.testing.assert_allclose(served(loaded, recording)("1.1"), losses, atol=2e-5)


def test_what_cannot_be_run_is_refused_in_one_line(monkeypatch):
    loaded = opened(LoadedGPT)
    ask = served(loaded, loaded.record(TEXT))
    cases = [*((removed,) for removed in WRONG), ("0.0", 12), ("0.0", 0, "0.0.0"), ("0.0",)]
    for fields in cases:
        if fields == cases[-1]:
            monkeypatch.setattr(without, "LONGEST", 11)
        with pytest.raises(ArgumentError, match="expected") as error:
            ask(*fields)
        assert "\n" not in str(error.value)
