"""Attention over what an LSTM or a GRU has read, as in translation before transformers."""

import pytest
import torch
from looked import B, M, N, looked_at, shows, weighed
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

WORDS, WIDTH = 11, 6
LAYERS = {
    "LSTM": (nn.LSTM, {}),
    "GRU": (nn.GRU, {}),
    "RNN": (nn.RNN, {}),
    "both directions": (nn.LSTM, {"bidirectional": True}),
    "two layers": (nn.GRU, {"num_layers": 2}),
    "positions first": (nn.LSTM, {"batch_first": False}),
    "projected": (nn.LSTM, {"hidden_size": 9, "proj_size": WIDTH}),
}


class Translates(nn.Module):
    """Reads ids by a recurrent layer, and asks by another one, as Luong's attention does."""

    def __init__(self, kind=nn.LSTM, **options):
        super().__init__()
        options = {"hidden_size": WIDTH, "batch_first": True} | options
        self.embed = nn.Embedding(WORDS, 8)
        self.reads, self.writes = kind(8, **options), kind(8, **options)
        width = WIDTH * (2 if options.get("bidirectional") else 1)
        self.asks = nn.Linear(width, width, bias=False)
        self.is_first = options["batch_first"]

    def run(self, layer, ids):
        given = self.embed(ids)
        if self.is_first:
            return layer(given)
        output, state = layer(given.transpose(0, 1))
        return output.transpose(0, 1), state

    def heads(self, source, target):
        read, written = (self.run(*of)[0] for of in ((self.reads, source), (self.writes, target)))
        return self.asks(written), read

    def forward(self, source, target):
        query, key = self.heads(source, target)
        return torch.bmm(torch.bmm(query, key.transpose(1, 2)).softmax(-1), key)


class AsksByItsState(Translates):
    """The query is the last state of the reader's last layer."""

    def heads(self, source, target):
        read, state = self.run(self.reads, source)
        state = state[0] if isinstance(state, tuple) else state
        return self.asks(state[-1]).unsqueeze(1), read


class Packed(Translates):
    """Texts of other lengths, packed as torch has it."""

    def run(self, layer, ids):
        lengths = [ids.shape[1] - 2 * at for at in range(len(ids))]
        given = pack_padded_sequence(self.embed(ids), lengths, batch_first=True)
        output, state = layer(given)
        return pad_packed_sequence(output, batch_first=True)[0], state


def settles(model, texts):
    source, target = (torch.randint(WORDS, (texts, length)) for length in (M, N))
    recording = looked_at(model, source, target)
    expected = weighed(*model.heads(source, target))[:, None]
    shows(recording, expected, proof="proved" if texts == 1 else "assumed")
    recording.verify(model, [source, target])
    shows(recording, expected, proof="proved")


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("texts", [1, B])
@pytest.mark.parametrize("way", LAYERS)
def test_what_a_recurrent_layer_gives_is_followed(way, texts):
    kind, options = LAYERS[way]
    settles(Translates(kind, **options), texts)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("texts", [1, B])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_its_last_states_are_followed(kind, texts, first):
    settles(AsksByItsState(kind, num_layers=2, batch_first=first), texts)


class OneText(Translates):
    """Texts have no axis, and the layer is called by the name of its argument."""

    def run(self, layer, ids):
        return layer(input=self.embed(ids))

    def forward(self, source, target):
        query, key = self.heads(source[0], target[0])
        return (query @ key.mT).softmax(-1) @ key


def test_a_text_without_an_axis_of_texts_is_followed():
    model = OneText(nn.GRU).eval()
    source, target = (torch.randint(WORDS, (1, length)) for length in (M, N))
    recording = looked_at(model, source, target)
    expected = weighed(*model.heads(source[0], target[0]))
    shows(recording, expected[None, None], proof="proved")


@pytest.mark.parametrize("texts", [1, 3])
def test_texts_that_are_packed_are_followed(texts):
    model = Packed(nn.LSTM)
    source = target = torch.randint(WORDS, (texts, M))
    recording = looked_at(model, source, target)
    shows(recording, weighed(*model.heads(source, target))[:, None])
    for [call] in recording.sequences:
        assert "heads" not in call.why
        assert call.proof == ("proved" if texts == 1 else "assumed")


class StepByStep(nn.Module):
    """Asks once for each word that it writes, with the state of a cell, of texts with padding."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        self.reads = nn.GRU(8, WIDTH, batch_first=True)
        self.cell = nn.GRUCell(8 + WIDTH, WIDTH)
        self.asks, self.says = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.__dict__["weights"] = []

    def scores(self, state, read):
        return torch.bmm(self.says(read), self.asks(state)[:, :, None])[..., 0]

    def forward(self, source, lengths, target):
        given = self.embed(source)
        packed = pack_padded_sequence(given, lengths, batch_first=True, enforce_sorted=False)
        read, _ = pad_packed_sequence(self.reads(packed)[0], batch_first=True)
        hidden = torch.arange(read.shape[1]) >= torch.as_tensor(lengths)[:, None]
        state = context = read.new_zeros(len(read), WIDTH)
        for word in target.unbind(1):
            state = self.cell(torch.cat([self.embed(word), context], -1), state)
            weights = self.scores(state, read).masked_fill(hidden, -1e9).softmax(-1)
            self.weights.append(weights.detach())
            context = torch.bmm(weights[:, None], read)[:, 0]
        return context


def test_steps_over_texts_with_their_lengths_in_a_list_are_proved():
    model, lengths = StepByStep().eval(), [5, 7, 3]
    source, target = torch.randint(WORDS, (3, 7)), torch.randint(WORDS, (3, 2))
    recording = looked_at(model, source, lengths, target)
    recording.verify(model, [source, lengths, target])
    for text, calls in enumerate(recording.sequences):
        assert len(calls) == 2
        for step, call in enumerate(calls):
            expected = model.weights[step][text, : lengths[text]]
            assert call.proof == "proved", call.why
            torch.testing.assert_close(call.weights(), expected[None, None])


class OutputAlone(nn.GRU):
    """Reads backwards, and gives no state."""

    def forward(self, x):
        return super().forward(x.flip(1))[0].flip(0)


@pytest.mark.parametrize("changes", ["a class of its own", "a hook"])
def test_layers_that_promise_something_else_are_not_believed(changes):
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            kind = OutputAlone if changes == "a class of its own" else nn.GRU
            self.reads = kind(8, WIDTH, batch_first=True)
            if kind is nn.GRU:
                self.reads.register_forward_hook(lambda module, given, made: made[0].mT)

        def forward(self, x):
            read = self.reads(x)
            return (read @ read.mT).softmax(-1) @ read

    recording = looked_at(Reads(), torch.randn(2, N, 8))
    assert [call.proof for call in recording] == ["assumed"]
