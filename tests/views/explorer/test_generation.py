"""A text that grows while a page looks at it: its maps are exact, its words those of `generate`."""

from pathlib import Path

import every_kind
import numpy as np
import pytest
import torch
from raised import RAISED

import heedful
from heedful.errors import ArgumentError, TextError
from heedful.generate import Sampling, generate
from heedful.loaded import LoadedGPT, LoadedSeq2Seq
from heedful.models import GPT, GPTConfig, Seq2Seq, Seq2SeqConfig
from heedful.views.explorer import generation as of_generation
from heedful.views.explorer.catalogue import Texts
from heedful.views.explorer.generation import Generation
from heedful.views.explorer.handlers import Answers
from heedful.views.explorer.wire import unpacked

LETTERS = every_kind.LETTERS


class Session:
    """A generation as a page has it."""

    def __init__(self, opened, prompt="a head "):
        self.texts = Texts({})
        self.generation = Generation(opened, self.texts, prompt)
        self.answers = Answers(self.texts)

    def do(self, deed, steps=None, **words):
        """A deed, and what comes of it after so many tokens; None: until it stops."""
        self.generation.do(deed, words)
        wanted = iter(range(steps)) if steps is not None else None
        self.generation.work(lambda: wanted is None or next(wanted, None) is not None)
        return self.told

    @property
    def told(self):
        head, arrays = unpacked(self.generation.told())
        return head | arrays

    @property
    def ids(self):
        return self.generation._text.ids

    def rivals(self, at):
        head, arrays = unpacked(self.generation.rivals(at))
        return dict(zip(head["ids"], arrays["chances"].tolist(), strict=True))


def letters(**changes):
    shape = {**every_kind.SHAPE, "heads": 3, **changes}
    return LoadedGPT(every_kind.sharp(GPT(GPTConfig(**shape)), 12, 0.3), LETTERS, Path("letters"))


WISHES = {"tokens": 12, "seed": 7, "temperature": 1, "top_k": 9, "top_p": 0.9,
          "repetition_penalty": 1.5}  # fmt: skip


def plain(opened, prompt, **wishes):
    """What `generate` adds to a prompt of ids."""
    wishes = {**WISHES, **wishes}
    tokens, seed = wishes.pop("tokens"), wishes.pop("seed")
    sampling = Sampling.from_dict(wishes)
    found = generate(opened.model, prompt, tokens=tokens, seed=seed, sampling=sampling,
                     vocabulary=LETTERS.size)  # fmt: skip
    return [int(token) for token in found]


@pytest.mark.parametrize("wishes", [{}, {"temperature": 0}, {"top_k": 0, "seed": 0}])
def test_it_writes_what_generate_writes(wishes):
    """Stopped on the way, and going on, it is the same text."""
    opened = letters()
    for stops in ([], [3], [1, 4]):
        session = Session(opened)
        prompt = list(session.ids)
        assert prompt == LETTERS.encode("a head ")
        told = session.do("begin", *stops[:1], prompt="a head ", **WISHES | wishes)
        for steps in [*stops[1:], None][: len(stops)]:
            assert told["runs"]
            assert not session.do("stop")["runs"]
            left = 12 - (len(session.ids) - 7)
            told = session.do("on", steps, **WISHES | wishes | {"tokens": left})
        assert session.ids[7:] == plain(opened, prompt, **wishes)
        assert (told["runs"], told["tokens"], told["prompt"], told["why"]) == (False, 19, 7, "")


def test_each_length_is_what_one_pass_over_it_gives_and_chances_are_the_models_own():
    opened = letters(kv_heads=1)
    session = Session(opened)
    told = session.do("begin", prompt="a head ", **WISHES)
    for size in (7, 11, 19):
        with heedful.record(opened.model) as recording:
            opened.model(torch.tensor([session.ids[:size]]))
        for n, call in enumerate(recording):
            where = f"{told['recording']}.0.{n}.{size}"
            weights = call.weights(2)
            head, found = unpacked(session.answers.ask("tile", {"call": where, "place": "2,0,0,0"}))
            hidden = torch.full((size, size), torch.nan).triu(1)
            np.testing.assert_allclose(found["tile"], weights + hidden, atol=1e-6)
            words = {"call": where, "heads": "2", "at": str(size - 1)}
            _, found = unpacked(session.answers.ask("row", words))
            np.testing.assert_allclose(found["weights"], weights[-1], atol=1e-6)
        words = {"call": where, "axis": "keys", "start": "0", "stop": "99"}
        head, _ = unpacked(session.answers.ask("tokens", words))
        assert head["tokens"] == LETTERS.pieces(session.ids[:size])
    for wrong in ("0", "20"):
        with pytest.raises(ArgumentError, match="1 to 19"):
            session.answers.ask("row", {"call": f"0.0.0.{wrong}", "heads": "2", "at": "0"})

    with torch.inference_mode():
        likely = opened.model(torch.tensor([session.ids])).logits[0].double().softmax(-1)
    chosen = likely[6:-1].gather(-1, torch.tensor(session.ids[7:])[:, None])[:, 0]
    np.testing.assert_allclose(told["chances"], chosen, atol=1e-6)
    for at in (7, 12, 19):
        best = likely[at - 1].argsort(descending=True).tolist()
        expected = [token for token in best if token not in session.ids[at : at + 1]][:10]
        rivals = session.rivals(at)
        assert list(rivals) == expected
        np.testing.assert_allclose([*rivals.values()], likely[at - 1][expected], atol=1e-6)
    for wrong in (6, 20, None):
        with pytest.raises(ArgumentError, match="7 to 19"):
            session.rivals(wrong)


def test_another_token_cuts_the_text_there_and_what_follows_is_as_if_it_had_stood_there():
    opened = letters()
    session = Session(opened)
    session.do("begin", prompt="a head ", **WISHES)
    for at in (10, 7, 12, 24):  # the last one is after the text
        before, kept = list(session.ids), session.told
        token = list(session.rivals(at))[1]
        told = session.do("choose", at=at, token=token, **WISHES)
        assert session.ids[: at + 1] == [*before[:at], token]
        assert session.ids[at + 1 :] == plain(opened, session.ids[: at + 1])
        assert told["recording"] == kept["recording"] + 1
        for number, ids in ((kept["recording"], before), (told["recording"], session.ids)):
            with heedful.record(opened.model) as recording:
                opened.model(torch.tensor([ids]))
            call = session.texts.call(number, 0, 1, len(ids))
            torch.testing.assert_close(call.weights(), recording[1].weights(), atol=1e-6, rtol=0)
    assert len(session.texts.names) == 5


def test_the_end_and_the_context_are_told():
    opened = letters(context_length=12)
    session = Session(opened)
    told = session.do("begin", prompt="a head ", **WISHES)
    assert told["tokens"] == 12
    assert told["why"] == "the model’s context of 12 tokens is full"
    assert told["full"]
    with pytest.raises(ArgumentError, match="places below 12"):
        session.do("choose", at=12, token=next(iter(session.rivals(12))), **WISHES)
    with pytest.raises(TextError, match="13 tokens"):
        session.do("begin", prompt="thirteen here", **WISHES)
    assert session.told["tokens"] == 12  # what there was is there
    session.do("begin", 2, prompt="b", **WISHES)
    session.generation._continued.ends = frozenset(range(LETTERS.size))
    assert session.generation.work()
    assert (session.told["tokens"], session.told["why"]) == (3, "the model ended the text here")


def test_nobody_who_looks_stops_it(monkeypatch):
    """Also while no question comes between two tokens, as when the tab is closed."""
    session = Session(letters())
    session.do("begin", 2, prompt="a head ", **WISHES)
    asked, steps = session.generation._asked, iter(range(99))

    def going_on():
        if next(steps) == 3:
            monkeypatch.setattr(session.generation, "_asked", asked - of_generation.UNWATCHED - 1)
        return True

    assert session.generation.work(going_on)
    assert session.told["tokens"] == 12
    assert "no page looked" in session.told["why"]
    assert session.do("on", **WISHES)["tokens"] == 24


@pytest.mark.parametrize("error", RAISED, ids=repr)
def test_a_token_that_could_not_be_read_leaves_each_chance_at_its_token(error, monkeypatch):
    def fails(ids):
        raise error

    session, whole = Session(letters()), Session(letters())
    expected = whole.do("begin", prompt="a head ", **WISHES)["chances"].tolist()
    session.do("begin", 3, prompt="a head ", **WISHES)
    with monkeypatch.context() as broken:
        broken.setattr(session.generation._continued, "logits", fails)
        session.generation.work()
    assert session.told["why"] == f"{type(error).__name__}: by zero"
    told = session.do("on", **WISHES | {"temperature": 0})
    assert len(told["chances"]) == told["tokens"] - told["prompt"] == 15
    assert told["chances"].tolist()[:3] == expected[:3]


def test_a_text_of_nothing_and_an_encoder_decoder():
    session = Session(letters(), "")
    assert (session.told["tokens"], session.texts.names) == (1, ["from nothing"])
    config = Seq2SeqConfig(vocabulary=LETTERS.size + 2, context_length=24, width=24, layers=1,
                           heads=2)  # fmt: skip
    opened = LoadedSeq2Seq(every_kind.sharp(Seq2Seq(config), 3, 0.3), LETTERS, Path("pairs"))
    session = Session(opened, "from source")
    told = session.do("begin", prompt="from source", tokens=6, temperature=0)
    assert told["tokens"] <= 7
    calls = session.texts.about()[0]["texts"][0]["calls"]
    [cross] = [call for call in calls if call["kind"] == "cross"]
    assert cross["shape"] == [2, told["tokens"], 12]
    call = session.texts.call(0, 0, 2, told["tokens"])
    assert (call.key_tokens[-1], call.query_tokens[0]) == ("■", "▶")
    with torch.inference_mode(), heedful.record(opened.model) as recording:
        opened.model(opened.rows("from source", target="")[0], torch.tensor([session.ids]))
    torch.testing.assert_close(call.weights(), recording[2].weights(), atol=1e-6, rtol=0)


WRONG = [
    ("begin", {"prompt": 3}), ("begin", {"prompt": "a", "tokens": 0}),
    ("begin", {"prompt": "a", "temperature": "hot"}), ("choose", {"at": 2, "token": 1}),
    ("choose", {"at": "7", "token": 1}), ("choose", {"at": 7, "token": 10**6}),
    ("choose", {"at": 7, "token": 6.0}), ("choose", {}), ("on", {"tokens": None}),
]  # fmt: skip


@pytest.mark.parametrize(("deed", "words"), WRONG)
def test_words_that_do_not_fit_change_nothing(deed, words):
    session = Session(letters())
    with pytest.raises((ArgumentError, TextError)):
        session.do(deed, **words)
    with pytest.raises(ArgumentError, match="an object of words"):
        session.generation.do(deed, None)
    assert (session.told["tokens"], session.told["runs"]) == (7, False)
