"""Models that attend to one text after another: each call belongs to its own text."""

import pytest
import torch
from shown_maps import WIDTH, Heads, looked_at, near, recorded, shows, weighed
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.errors import ArgumentError, RunError
from heedful.models import GPT, GPTConfig
from heedful.recording.head_totals import HeadTotals
from heedful.views.notebook.kernel_side import texts_and_view

B, N = 3, 7


def attended(query, key):
    return (query @ key.mT).softmax(-1) @ key


class Loops(Heads):
    """Attends to parts of a batch in turn: `parts` yields the indices of each."""

    def __init__(self, parts, does=attended):
        super().__init__(does)
        self.parts = parts

    def forward(self, x):
        return torch.cat([super(Loops, self).forward(x[at]) for at in self.parts(len(x))])


def one_by_one(count):
    return [[at] for at in range(count)]


def backwards(count):
    return one_by_one(count)[::-1]


def by_twos(count):
    return torch.arange(count).split(2)


ORDER = "its text, one of 3, is guessed from the order of the calls"


def maps_of(model, x):
    """The weights of each text by definition."""
    return [weighed(*model.heads(text[None]))[0] for text in x]


def is_of_its_text(recording, maps, calls=1):
    """Check that each sequence has exactly the calls of its text."""
    assert len(recording.sequences) == len(maps)
    for b, (sequence, map_) in enumerate(zip(recording.sequences, maps, strict=True)):
        assert [call.proof for call in sequence] == ["proved"] * calls, sequence[0].why
        for call in sequence:
            assert (call.sequence, call.batch, call.why) == (b, len(maps), "")
            assert f"text {b} of {len(maps)}" in repr(call)
            near(call.weights(), map_)


@pytest.mark.parametrize("options", [{}, {"budget": 0}, {"heads": [2, 0]}])
@pytest.mark.parametrize("parts", [one_by_one, backwards])
def test_each_text_has_its_own_calls_once_verified(parts, options):
    model, x = Loops(parts), torch.randn(B, N, WIDTH)
    recording = looked_at(model, x, **options)
    assert [[call.why for call in sequence] for sequence in recording.sequences] == [[ORDER]] * B
    assert recording[0].layout == "guessed"
    heads = options.get("heads", [0, 1, 2])
    maps = [map_[heads] for map_ in maps_of(model, x)]
    for _ in range(2):
        assert recording.verify(model, x) == {"verified": B}
        is_of_its_text(recording, maps)
        assert len(recording) == 1
        assert len(recording.certificate()) == B
        near(recording[0].weights(), maps[0])
        assert repr(recording) == f"<Recording of 1 call, {B} sequences>"


def test_several_texts_in_a_call_are_refused_unless_axes_are_told():
    model, x = Loops(by_twos), torch.randn(4, N, WIDTH)
    recording = looked_at(model, x, missed={"Loops": "for 4 texts; expected texts before heads"})
    assert "axes=" in recording.missed["Loops"]
    recording = looked_at(model, x, axes={"Loops": "b h n d"})
    shows(recording, maps_of(model, x), proof="proved", layout="guessed")


class Twice(Loops):
    """Calls one module twice for each text: in two loops over all texts, or in one."""

    def __init__(self, again):
        super().__init__(one_by_one)
        self.again, self.attend = again, Heads(attended)

    def heads(self, x, more=0):
        return self.attend.heads(x + more)

    def forward(self, x):
        order = [(b, more) for b in range(len(x)) for more in (0, 1)]
        order = order if self.again == "text by text" else sorted(order, key=lambda pair: pair[1])
        return torch.stack([self.attend(x[b : b + 1] + more) for b, more in order])


@pytest.mark.parametrize("again", ["text by text", "all again"])
def test_a_module_that_is_called_twice_for_each_text(again):
    model, x = Twice(again), torch.randn(B, N, WIDTH)
    recording = recorded(model, x)
    assert recording.verify(model, x) == {"verified": 2 * B}
    maps = [[weighed(*model.heads(text[None], more))[0] for more in (0, 1)] for text in x]
    assert len(recording.sequences) == B
    for sequence, both in zip(recording.sequences, maps, strict=True):
        for call, map_ in zip(sequence, both, strict=True):
            near(call.weights(), map_)


class Cut(Loops):
    """Attends to the tokens of each text; texts have unequal lengths."""

    def forward(self, x, lengths):
        cut = zip(x, lengths.tolist(), strict=True)
        return [Heads.forward(self, text[None, :length]) for text, length in cut]


def test_texts_of_unequal_lengths():
    model, x, lengths = Cut(one_by_one), torch.randn(B, N, WIDTH), torch.tensor([5, 7, 2])
    recording = recorded(model, x, lengths)
    assert recording.verify(model, [x, lengths]) == {"verified": B}
    cut = zip(x, lengths.tolist(), strict=True)
    is_of_its_text(recording, [maps_of(model, text[None, :length])[0] for text, length in cut])


class Windows(Loops):
    """Attends inside windows of each text; the windows are the batch of its call."""

    def forward(self, x, sizes=None):
        sizes = [2] * len(x) if sizes is None else sizes.tolist()
        parts = zip(x, sizes, strict=True)
        return [
            Heads.forward(self, text[: 3 * size].unflatten(0, (size, 3))) for text, size in parts
        ]


@pytest.mark.parametrize("sizes", [(2, 2, 2), (2, 3, 1)])
def test_windows_of_a_text_are_its_parts_once_verified(sizes):
    model, x, sizes = Windows(one_by_one), torch.randn(B, 9, WIDTH), torch.tensor(sizes)
    recording = recorded(model, x, sizes)
    assert recording.verify(model, [x, sizes]) == {"verified": B}
    assert recording.missed == {}
    for text, size, [call] in zip(x, sizes, recording.sequences, strict=True):
        assert len(call.parts) == size
        for window, part in zip(text[: 3 * size].split(3), call.parts, strict=True):
            near(part.weights(), maps_of(model, window[None])[0])


class Common(Loops):
    """Attends to a constant text in place of each text except the last."""

    def __init__(self):
        super().__init__(one_by_one)
        self.words = nn.Parameter(torch.randn(1, N, WIDTH))

    def forward(self, x):
        return [Heads.forward(self, self.words) for _ in range(max(1, len(x) - 1))]


def test_calls_that_do_not_depend_on_a_text_stay_guessed():
    model, x = Common(), torch.randn(B, N, WIDTH)
    recording = recorded(model, x)
    assert recording.verify(model, x) == {"guessed": B - 1}
    assert "neither its queries nor its keys change with a text" in recording[0].why


def test_a_file_has_the_text_of_each_call(tmp_path):
    model, x = Loops(backwards), torch.randn(B, N, WIDTH)
    recording = recorded(model, x, values=True)
    recording.save(tmp_path / "before")
    recording.verify(model, x)
    again = heedful.load(recording.save(tmp_path / "after"))
    is_of_its_text(again, maps_of(model, x))
    for text, other in zip(recording.sequences, again.sequences, strict=True):
        torch.testing.assert_close(text[0].value_norm(), other[0].value_norm())
    assert heedful.load(tmp_path / "before").sequences[1][0].why == ORDER


class Words(Loops):
    """A text model with token ids, which attends to each text separately."""

    def __init__(self, does=attended):
        super().__init__(one_by_one, does)
        self.embed = nn.Embedding(9, WIDTH)

    def forward(self, input_ids):
        return super().forward(self.embed(input_ids))


def test_tokens_are_those_of_the_text():
    model, ids = Words(), torch.arange(B * N).view(B, N) % 9
    recording = recorded(model, ids, tokenizer=lambda several: [f"w{token}" for token in several])
    assert {call.tokens and len(call.tokens) for call in recording} == {None}
    recording.verify(model, ids)
    words = [[f"w{token}" for token in text] for text in ids.tolist()]
    assert [sequence[0].tokens for sequence in recording.sequences] == words
    assert [sequence[0].query_tokens for sequence in recording.sequences] == words
    assert recording.tokens == words
    assert [sequence[0].ids.tolist() for sequence in recording.sequences] == ids.tolist()
    other = [[word.upper() for word in text] for text in words]
    recording.tokens = other
    assert [sequence[0].tokens for sequence in recording.sequences] == other
    for wrong in (other[:2], [other[0], other[1][1:], other[2]]):
        with pytest.raises(ArgumentError, match="as many as were recorded"):
            recording.tokens = wrong


class Hides(Loops):
    """Masks the padding of each text, which its inputs describe."""

    def forward(self, x, attention_mask):
        pairs = zip(x.split(1), attention_mask.bool().split(1), strict=True)
        return [self.of_one(text, keep[:, None, None]) for text, keep in pairs]

    def of_one(self, x, keep):
        query, key = self.heads(x)
        return scaled_dot_product_attention(query, key, key, keep, scale=1.0)


def test_padding_of_one_text_is_not_that_of_another():
    model, x, keep = Hides(one_by_one), torch.randn(B, N, WIDTH), torch.ones(B, N).long()
    keep[0, 5:] = keep[2, :3] = 0
    recording = recorded(model, x, keep)
    recording.verify(model, [x, keep])
    query, key = (side.double() for side in model.heads(x))
    expected = (query @ key.mT).masked_fill(keep[:, None, None] == 0, -torch.inf).softmax(-1)
    is_of_its_text(recording, expected.float().detach())


def test_a_wrong_row_refutes_only_the_call_of_its_text(tmp_path):
    model = Loops(one_by_one, lambda query, key: scaled_dot_product_attention(query, key, key))
    x = torch.randn(B, 40, WIDTH)
    recording = recorded(model, x)
    assert recording.verify(model, x) == {"verified": B}
    recording._captures[2].query[0, 1, 20] *= 1.5  # not one of the rows that the check compares
    bad = recording.sequences[2]
    with pytest.raises(RunError, match="row 20 of head 1"):
        bad[0].summary()
    again = heedful.load(recording.save(tmp_path / "r"))
    for each in (recording, again):
        assert [sequence[0].proof for sequence in each.sequences] == ["proved", "proved", "refuted"]
        assert [check.proof for _, check in each.certificate()] == ["proved", "proved", "refuted"]


def test_means_over_texts_count_each_text_once():
    model, x = Loops(one_by_one), torch.randn(B, N, WIDTH)
    recording = recorded(model, x)
    recording.verify(model, x)
    together = HeadTotals()
    together.add(recording, (0,))
    assert len(together.heads()) == 3
    assert {head.queries["self"] for head in together.heads()} == {B * N}


def test_a_page_opens_on_the_call_of_its_text():
    model, x = Loops(one_by_one), torch.randn(B, N, WIDTH)
    recording = recorded(model, x)
    recording.verify(model, x)
    second = recording.sequences[1]
    for source in (second, second[0]):
        texts, address = texts_and_view(source)
        assert address == "call=0.1.0"
        near(texts.call(0, 1, 0).weights(), maps_of(model, x)[1])


class InParts(nn.Module):
    """Passes several texts at a time to a model that reads ids, as wrappers of large batches do."""

    def __init__(self, size):
        super().__init__()
        torch.manual_seed(0)
        config = GPTConfig(vocabulary=60, context_length=16, width=12, layers=1, heads=3)
        self.model, self.size = GPT(config).eval(), size

    def forward(self, ids):
        return torch.cat([self.model(part).logits for part in ids.split(self.size)])


@pytest.mark.parametrize(("texts", "size"), [(4, 2), (4, 1), (6, 4), (4, 4)])
def test_texts_that_a_wrapper_passes_in_parts_keep_their_labels(texts, size, tmp_path):
    model, ids = InParts(size).eval(), torch.arange(8 * texts).view(texts, 8) % 60
    with torch.no_grad():
        recording = recorded(model, ids, tokenizer=lambda ids: [f"t{token}" for token in ids])
    recording.verify(model, ids)
    for now in (recording, heedful.load(recording.save(tmp_path / "kept"))):
        assert len(now.sequences) == len(ids)
        for [call], text in zip(now.sequences, ids, strict=True):
            with torch.no_grad():
                [alone] = recorded(model.model, text[None])
            near(call.weights(), alone.weights())
            assert call.proof == "proved"
            assert torch.equal(call.ids, text)
            assert call.tokens == [f"t{token}" for token in text.tolist()]
