"""An input of one row is one text, unless another input has more: then it may be of all of them."""

import pytest
import torch
from torch import nn

import heedful

WIDTH, MEMORY = 8, 7


class Asking(nn.Module):
    """Queries, and a memory of texts whose order is changed inside."""

    def __init__(self, way="whole", heads=1):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.way, self.heads, self.maps = way, heads, []

    def attend(self, x, memory):
        query, key, value = self.q(x), self.k(memory), self.v(memory)
        if self.heads > 1:
            parts = (one.unflatten(-1, (self.heads, -1)) for one in (query, key, value))
            query, key, value = (one.transpose(-2, -3) for one in parts)
        weights = (query @ key.mT / 3).softmax(-1)
        self.maps.append(weights.detach())
        return weights @ value

    def forward(self, queries, memory):
        if self.way == "as it is":
            return self.attend(queries, memory)
        if self.way == "one after the other":
            return [self.attend(queries, one[None]) for one in memory.flip(0)]
        if self.way == "positions first":
            return self.attend(queries.transpose(0, 1), memory.transpose(0, 1).flip(0))
        return self.attend(queries, memory.flip(0))


class Named(Asking):
    """The same of ids that are looked up."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, WIDTH)

    def forward(self, ids, memory):
        return super().forward(self.embed(ids), memory)


def recorded(model, *given):
    with torch.no_grad(), heedful.record(model) as recording:
        model(*given)
    return recording


def proofs(recording):
    return {call.proof for sequence in recording.sequences for call in sequence}


def none_is_wrong(recording, true):
    """No call is proved that shows another map than its text has by definition."""
    for sequence, map_ in zip(recording.sequences, true, strict=True):
        for call in sequence:
            if call.proof == "proved":
                torch.testing.assert_close(call.weights(), map_, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("queries", [1, 3, 5, MEMORY])
@pytest.mark.parametrize("way", ["whole", "positions first", "without an axis", "ids"])
def test_queries_for_all_texts_do_not_tell_that_there_is_one(way, queries):
    model = Named() if way == "ids" else Asking("whole" if way == "without an axis" else way)
    x = torch.randint(9, (1, queries)) if way == "ids" else torch.randn(1, queries, WIDTH)
    x, memory = x[0] if way == "without an axis" else x, torch.randn(3, MEMORY, WIDTH)
    if way == "positions first":
        x, memory = x.transpose(0, 1), memory.transpose(0, 1)
    recording = recorded(model, x, memory)
    true = model.maps[0].flip(0)[:, None]
    assert proofs(recording) == {"assumed"}
    assert "which of the 3 texts" in recording[0].why
    recording.verify(model, [x, memory])
    none_is_wrong(recording, true)
    assert "proved" not in proofs(recording)


@pytest.mark.parametrize("queries", [1, 3, 5])
def test_queries_for_all_texts_are_settled_where_the_order_is_right(queries):
    model = Asking("as it is")
    given = [torch.randn(1, queries, WIDTH), torch.randn(3, MEMORY, WIDTH)]
    recording = recorded(model, *given)
    assert proofs(recording) == {"assumed"}
    true = model.maps[0][:, None]
    assert recording.verify(model, given) == {"proved": 1}
    none_is_wrong(recording, true)


@pytest.mark.parametrize("queries", [1, 5])
def test_one_call_for_each_text_is_not_proved_to_be_of_the_first(queries):
    model = Asking("one after the other")
    recording = recorded(model, torch.randn(1, queries, WIDTH), torch.randn(3, MEMORY, WIDTH))
    assert proofs(recording) == {"assumed"}
    assert "the number of texts is 3" in recording[0].why


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("bank_first", [False, True])
def test_one_bank_for_all_texts_is_no_text(bank_first, heads):
    class Bank(Asking):
        def forward(self, *given):
            bank, x = given if bank_first else reversed(given)
            return self.attend(x, bank)

    model, bank, x = Bank(heads=heads), torch.randn(1, MEMORY, WIDTH), torch.randn(3, 1, WIDTH)
    given = [bank, x] if bank_first else [x, bank]
    recording = recorded(model, *given)
    assert recording.missed == {}
    assert proofs(recording) == {"assumed"}
    assert "3" in recording[0].why
    true = model.maps[0].reshape(3, heads, 1, MEMORY)
    if heads == 1:  # it is one product: the texts ask one after the other
        true = true.transpose(0, 2)[0][None]
    found = torch.stack([call.weights() for [call] in recording.sequences])
    torch.testing.assert_close(found, true.view_as(found), atol=2e-6, rtol=1e-5)
    assert recording.verify(model, given) == {"proved": 1}


class One(Asking):
    """One text attends to itself, with something beside it that tells nothing of texts."""

    def forward(self, x, *beside):
        return self.attend(x, x)


@pytest.mark.parametrize(
    "beside",
    [
        [],
        [torch.ones(5, 5).tril().bool()],
        [torch.ones(4, 5, 5).bool()],
        [torch.arange(5)[None]],
        [torch.randn(5, WIDTH)],
        [torch.randn(4, 6, 6)],
        [torch.randn(3, 3, 16, 16)],
        [torch.randn(3, MEMORY, WIDTH)],
    ],
)
@pytest.mark.parametrize("positions_first", [False, True])
def test_one_text_that_attends_to_itself_stays_proved(positions_first, beside):
    class First(One):
        def forward(self, x, *beside):
            return super().forward(x.transpose(0, 1))

    model = First() if positions_first else One()
    x = torch.randn(5, 1, WIDTH) if positions_first else torch.randn(1, 5, WIDTH)
    recording = recorded(model, x, *beside)
    assert [(call.proof, call.why) for call in recording] == [("proved", "")]
    none_is_wrong(recording, [model.maps[0]])


@pytest.mark.parametrize("source", [5, 7])
def test_one_text_that_reads_another_stays_proved(source):
    model = Asking("as it is")
    recording = recorded(model, torch.randn(1, 5, WIDTH), torch.randn(1, source, WIDTH))
    assert proofs(recording) == {"proved"}
    model = Named()
    recording = recorded(model, torch.randint(9, (1, 5)), torch.randn(1, source, WIDTH))
    assert proofs(recording) == {"proved"}


def test_learned_queries_of_one_image_stay_proved():
    class Learned(Asking):
        def __init__(self):
            super().__init__()
            self.patch, self.asked = nn.Conv2d(3, WIDTH, 4, 4), nn.Parameter(torch.randn(5, WIDTH))

        def forward(self, image):
            return self.attend(self.asked[None], self.patch(image).flatten(2).mT)

    recording = recorded(Learned(), torch.randn(1, 3, 16, 16))
    assert list(recording._captures[0].inferred) in ([], ["heads"])


def test_parts_of_one_text_that_hold_another_input_are_not_proved():
    """Tokens of one row and something of each text put together attend as so many sequences."""

    class Together(Asking):
        def forward(self, x, each):
            return self.attend(x + each.flip(0), x + each.flip(0))

    recording = recorded(Together(), torch.randn(1, 5, WIDTH), torch.randn(3, 1, WIDTH))
    assert len(recording.sequences) == 3
    assert proofs(recording) == {"assumed"}


@pytest.mark.parametrize("queries", [1, 3, 5])
def test_one_text_that_is_all_of_the_inputs_settles_nothing(queries):
    """Told to be one, the texts of a memory are compared with nothing but themselves."""
    model = Named()
    given = [torch.randint(9, (1, queries)), torch.randn(3, MEMORY, WIDTH)]
    recording = recorded(model, *given)
    for capture in recording._captures:
        capture.texts = 1
    recording.verify(model, given)
    none_is_wrong(recording, model.maps[0].flip(0)[:, None])
    assert "proved" not in proofs(recording)


def test_queries_that_attend_to_each_other_first_are_one_text_and_then_of_all():
    class Twice(Asking):
        def forward(self, x, memory):
            return self.attend(self.attend(x, x), memory)

    model, given = Twice(), [torch.randn(1, 5, WIDTH), torch.randn(3, MEMORY, WIDTH)]
    recording = recorded(model, *given)
    assert [call.proof for call in recording] == ["proved", "assumed"]
    true = model.maps[1]
    assert recording.verify(model, given) == {"proved": 2}
    for sequence, map_ in zip(recording.sequences, true, strict=True):
        torch.testing.assert_close(sequence[-1].weights()[0], map_, atol=2e-6, rtol=1e-5)
