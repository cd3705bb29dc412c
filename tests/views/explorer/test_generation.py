"""Generation in the page: exact maps at every length, and the same tokens as `generate`."""

from pathlib import Path

import numpy as np
import pytest
import small_recordings
import torch
from job_errors import RAISED

import heedful
from heedful.errors import ArgumentError, TextError
from heedful.generate import Sampling, generate
from heedful.loaded import LoadedGPT, LoadedSeq2Seq
from heedful.models import GPT, GPTConfig, Seq2Seq, Seq2SeqConfig
from heedful.views.explorer.catalogue import Catalogue
from heedful.views.explorer.generation import UNWATCHED, Generation
from heedful.views.explorer.handlers import Handlers
from heedful.views.explorer.wire import unpacked

LETTERS = small_recordings.LETTERS


class Session:
    """A generation with the handlers of its catalogue."""

    def __init__(self, loaded, prompt="a head "):
        self.catalogue = Catalogue({})
        self.generation = Generation(loaded, self.catalogue, prompt)
        self.handle = Handlers(self.catalogue).handle

    def do(self, action, steps=None, **fields):
        """Run an action and add up to `steps` tokens, default all; return the status."""
        self.generation.do(action, fields)
        remaining = iter(range(steps)) if steps is not None else None
        self.generation.work(lambda: remaining is None or next(remaining, None) is not None)
        return self.status

    @property
    def status(self):
        head, arrays = unpacked(self.generation.status())
        return head | arrays

    @property
    def ids(self):
        return self.generation._text.ids

    def alternatives(self, position):
        head, arrays = unpacked(self.generation.alternatives(position))
        return dict(zip(head["ids"], arrays["chances"].tolist(), strict=True))


def letters(**changes):
    shape = {**small_recordings.SHAPE, "heads": 3, **changes}
    return LoadedGPT(
        small_recordings.sharp(GPT(GPTConfig(**shape)), 12, 0.3), LETTERS, Path("letters")
    )


OPTIONS = {"tokens": 12, "seed": 7, "temperature": 1, "top_k": 9, "top_p": 0.9,
          "repetition_penalty": 1.5}  # fmt: skip


def generated_ids(loaded, prompt, **options):
    """Return the ids that `generate` adds to a prompt."""
    options = {**OPTIONS, **options}
    tokens, seed = options.pop("tokens"), options.pop("seed")
    sampling = Sampling.from_dict(options)
    ids = generate(loaded.model, prompt, tokens=tokens, seed=seed, sampling=sampling,
                     vocabulary=LETTERS.size)  # fmt: skip
    return [int(token) for token in ids]


@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"top_k": 0, "seed": 0}])
def test_tokens_equal_those_of_generate(options):
    """Also after stopping and resuming."""
    loaded = letters()
    for stops in ([], [3], [1, 4]):
        session = Session(loaded)
        prompt = list(session.ids)
        assert prompt == LETTERS.encode("a head ")
        status = session.do("begin", *stops[:1], prompt="a head ", **OPTIONS | options)
        for steps in [*stops[1:], None][: len(stops)]:
            assert status["runs"]
            assert not session.do("stop")["runs"]
            remaining = 12 - (len(session.ids) - 7)
            status = session.do("on", steps, **OPTIONS | options | {"tokens": remaining})
        assert session.ids[7:] == generated_ids(loaded, prompt, **options)
        assert (status["tokens"], status["prompt"], status["why"]) == (19, 7, "")
        assert not status["runs"]


def test_each_length_equals_a_single_pass_and_probabilities_equal_the_models():
    loaded = letters(kv_heads=1)
    session = Session(loaded)
    status = session.do("begin", prompt="a head ", **OPTIONS)
    for size in (7, 11, 19):
        with heedful.record(loaded.model) as recording:
            loaded.model(torch.tensor([session.ids[:size]]))
        for n, call in enumerate(recording):
            call_id = f"{status['recording']}.0.{n}.{size}"
            weights = call.weights(2)
            head, arrays = unpacked(session.handle("tile", {"call": call_id, "place": "2,0,0,0"}))
            masked = torch.full((size, size), torch.nan).triu(1)
            np.testing.assert_allclose(arrays["tile"], weights + masked, atol=1e-6)
            parameters = {"call": call_id, "heads": "2", "at": str(size - 1)}
            _, arrays = unpacked(session.handle("row", parameters))
            np.testing.assert_allclose(arrays["weights"], weights[-1], atol=1e-6)
        parameters = {"call": call_id, "axis": "keys", "start": "0", "stop": "99"}
        head, _ = unpacked(session.handle("tokens", parameters))
        assert head["tokens"] == LETTERS.pieces(session.ids[:size])
    for wrong in ("0", "20"):
        with pytest.raises(ArgumentError, match="1 to 19"):
            session.handle("row", {"call": f"0.0.0.{wrong}", "heads": "2", "at": "0"})

    with torch.inference_mode():
        likely = loaded.model(torch.tensor([session.ids])).logits[0].double().softmax(-1)
    chosen = likely[6:-1].gather(-1, torch.tensor(session.ids[7:])[:, None])[:, 0]
    np.testing.assert_allclose(status["chances"], chosen, atol=1e-6)
    for position in (7, 12, 19):
        row = likely[position - 1]
        best, chosen = row.argsort(descending=True).tolist(), session.ids[position : position + 1]
        expected = [token for token in best if token not in chosen][:10]
        alternatives = session.alternatives(position)
        assert list(alternatives) == expected
        np.testing.assert_allclose([*alternatives.values()], row[expected], atol=1e-6)
    for wrong in (6, 20, None):
        with pytest.raises(ArgumentError, match="7 to 19"):
            session.alternatives(wrong)


def test_a_chosen_token_replaces_the_rest_of_the_text():
    loaded = letters()
    session = Session(loaded)
    session.do("begin", prompt="a head ", **OPTIONS)
    for at in (10, 7, 12, 24):  # the last position is after the text
        old_ids, old = list(session.ids), session.status["recording"]
        token = list(session.alternatives(at))[1]
        status = session.do("choose", at=at, token=token, **OPTIONS)
        assert session.ids[: at + 1] == [*old_ids[:at], token]
        assert session.ids[at + 1 :] == generated_ids(loaded, session.ids[: at + 1])
        assert status["recording"] == old + 1
        for number, ids in ((old, old_ids), (old + 1, session.ids)):
            with heedful.record(loaded.model) as recording:
                loaded.model(torch.tensor([ids]))
            call = session.catalogue.call(number, 0, 1, len(ids))
            torch.testing.assert_close(call.weights(), recording[1].weights(), atol=1e-6, rtol=0)
    assert len(session.catalogue.names) == 5


def test_the_end_token_and_a_full_context_are_reported():
    loaded = letters(context_length=12)
    session = Session(loaded)
    status = session.do("begin", prompt="a head ", **OPTIONS)
    assert status["tokens"] == 12
    assert status["why"] == "the model’s context of 12 tokens is full"
    assert status["full"]
    with pytest.raises(ArgumentError, match="position below 12"):
        session.do("choose", at=12, token=next(iter(session.alternatives(12))), **OPTIONS)
    with pytest.raises(TextError, match="13 tokens"):
        session.do("begin", prompt="thirteen here", **OPTIONS)
    assert session.status["tokens"] == 12  # the previous text remains
    session.do("begin", 2, prompt="b", **OPTIONS)
    session.generation._text.continuation.ends = frozenset(range(LETTERS.size))
    assert session.generation.work()
    assert (session.status["tokens"], session.status["why"]) == (3, "the model ended the text here")


def test_generation_stops_without_requests(monkeypatch):
    """As when the tab is closed."""
    session = Session(letters())
    session.do("begin", 2, prompt="a head ", **OPTIONS)
    last_request, steps = session.generation._last_request, iter(range(99))

    def may_continue():
        if next(steps) == 3:
            monkeypatch.setattr(session.generation, "_last_request", last_request - UNWATCHED - 1)
        return True

    assert session.generation.work(may_continue)
    assert session.status["tokens"] == 12
    assert "no page was open" in session.status["why"]
    assert session.do("on", **OPTIONS)["tokens"] == 24


@pytest.mark.parametrize("error", RAISED, ids=repr)
def test_after_a_failed_token_each_probability_still_belongs_to_its_token(error, monkeypatch):
    def fails(ids):
        raise error

    session, other = Session(letters()), Session(letters())
    expected = other.do("begin", prompt="a head ", **OPTIONS)["chances"].tolist()
    session.do("begin", 3, prompt="a head ", **OPTIONS)
    with monkeypatch.context() as broken:
        broken.setattr(session.generation._text.continuation, "logits", fails)
        session.generation.work()
    assert session.status["why"] == f"{type(error).__name__}: by zero"
    status = session.do("on", **OPTIONS | {"temperature": 0})
    assert len(status["chances"]) == status["tokens"] - status["prompt"] == 15
    assert status["chances"].tolist()[:3] == expected[:3]


def test_an_empty_prompt_and_an_encoder_decoder():
    session = Session(letters(), "")
    assert (session.status["tokens"], session.catalogue.names) == (1, ["empty prompt"])
    config = Seq2SeqConfig(vocabulary=LETTERS.size + 2, context_length=24, width=24, layers=1,
                           heads=2)  # fmt: skip
    loaded = LoadedSeq2Seq(small_recordings.sharp(Seq2Seq(config), 3, 0.3), LETTERS, Path("pairs"))
    session = Session(loaded, "from source")
    status = session.do("begin", prompt="from source", tokens=6, temperature=0)
    assert status["tokens"] <= 7
    calls = session.catalogue.about()[0]["texts"][0]["calls"]
    [cross] = [call for call in calls if call["kind"] == "cross"]
    assert cross["shape"] == [2, status["tokens"], 12]
    call = session.catalogue.call(0, 0, 2, status["tokens"])
    assert (call.key_tokens[-1], call.query_tokens[0]) == ("■", "▶")
    with torch.inference_mode(), heedful.record(loaded.model) as recording:
        loaded.model(
            loaded.source_and_target("from source", target="")[0], torch.tensor([session.ids])
        )
    torch.testing.assert_close(call.weights(), recording[2].weights(), atol=1e-6, rtol=0)


WRONG = [
    ("begin", {"prompt": 3}), ("begin", {"prompt": "a", "tokens": 0}),
    ("begin", {"prompt": "a", "temperature": "hot"}), ("choose", {"at": 2, "token": 1}),
    ("choose", {"at": "7", "token": 1}), ("choose", {"at": 7, "token": 10**6}),
    ("choose", {"at": 7, "token": 6.0}), ("choose", {}), ("on", {"tokens": None}),
]  # fmt: skip


@pytest.mark.parametrize(("action", "fields"), WRONG)
def test_wrong_fields_are_refused_and_change_nothing(action, fields):
    session = Session(letters())
    with pytest.raises((ArgumentError, TextError)):
        session.do(action, **fields)
    with pytest.raises(ArgumentError, match="a JSON object"):
        session.generation.do(action, None)
    assert (session.status["tokens"], session.status["runs"]) == (7, False)
