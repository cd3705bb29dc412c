"""Models that call attention for one text after the other: each call is shown as its own text's."""

import copy

import pytest
import torch
from looked import WIDTH, Heads, looked_at, weighed
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.cli.heads import heads_of
from heedful.cli.segments import shares_of
from heedful.errors import ArgumentError, RunError
from heedful.files import load_tensors, save_tensors
from heedful.models import GPT, GPTConfig
from heedful.recorder.record import PADDING
from heedful.recording.head_totals import HeadTotals
from heedful.recording.patches import Patches
from heedful.views.explorer.text import texts_of
from heedful.views.notebook.opening import opened_on

B, N = 3, 7


def attended(query, key):
    return (query @ key.mT).softmax(-1) @ key


class Loops(Heads):
    """Attends to parts of a batch one after the other: `parts` gives the places of each."""

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


def recorded(model, *given, **options):
    with heedful.record(model, **options) as recording:
        model(*given)
    return recording


def maps_of(model, x):
    """The weights of each text by their definition."""
    return [weighed(*model.heads(text[None]))[0] for text in x]


def near(one, other):
    torch.testing.assert_close(one, other, atol=2e-6, rtol=1e-5)


def is_of_its_text(recording, maps, calls=1):
    """Each sequence has the calls of its text, and no others."""
    assert len(recording.sequences) == len(maps)
    for b, (sequence, map_) in enumerate(zip(recording.sequences, maps, strict=True)):
        assert [call.proof for call in sequence] == ["proved"] * calls, sequence[0].why
        for call in sequence:
            assert (call.sequence, call.batch, call.why) == (b, len(maps), "")
            assert f"sequence {b} of {len(maps)}" in repr(call)
            near(call.weights(), map_)


@pytest.mark.parametrize("options", [{}, {"budget": 0}, {"heads": [2, 0]}])
@pytest.mark.parametrize(
    ("parts", "texts"), [(one_by_one, 3), (backwards, 3), (by_twos, 4), (by_twos, 5)]
)
def test_each_text_has_its_own_calls_once_verified(parts, texts, options):
    model, x = Loops(parts), torch.randn(texts, N, WIDTH)
    recording = looked_at(model, x, **options)
    count = len(parts(texts))
    assert [call.proof for call in recording] == ["assumed"] * count
    heads = options.get("heads", [0, 1, 2])
    maps = [map_[heads] for map_ in maps_of(model, x)]
    for _ in range(2):
        assert recording.verify(model, x) == {"proved": count}
        is_of_its_text(recording, maps)
        assert len(recording) == 1
        assert len(recording.certificate()) == count
        near(recording[0].weights(), maps[0])
        assert repr(recording) == f"<Recording of 1 call, {texts} sequences>"


def test_a_call_that_was_taken_before_is_not_proved_as_another_texts():
    model, x = Loops(one_by_one), torch.randn(B, N, WIDTH)
    recording = recorded(model, x)
    first, second, _ = recording
    recording.verify(model, x)
    assert (first.proof, second.proof, second.sequence) == ("proved", "assumed", 0)


class Twice(Loops):
    """Calls one module twice for each text: all texts and then all again, or text by text."""

    def __init__(self, again):
        super().__init__(one_by_one)
        self.again, self.attend = again, Heads(attended)

    def heads(self, x, more=0):
        return self.attend.heads(x + more)

    def forward(self, x):
        order = [(b, more) for b in range(len(x)) for more in (0, 1)]
        order = order if self.again == "text by text" else sorted(order, key=lambda one: one[1])
        return torch.stack([self.attend(x[b : b + 1] + more) for b, more in order])


@pytest.mark.parametrize("again", ["text by text", "all again"])
def test_a_module_that_is_called_twice_for_each_text(again):
    model, x = Twice(again), torch.randn(B, N, WIDTH)
    recording = recorded(model, x)
    assert recording.verify(model, x) == {"proved": 2 * B}
    maps = [[weighed(*model.heads(text[None], more))[0] for more in (0, 1)] for text in x]
    assert len(recording.sequences) == B
    for sequence, both in zip(recording.sequences, maps, strict=True):
        for call, map_ in zip(sequence, both, strict=True):
            near(call.weights(), map_)


class OnceAndApart(Loops):
    """Calls one module for all texts, and then for each."""

    def forward(self, x):
        return super().forward(x), Heads.forward(self, x + 1)


def test_a_module_that_is_called_for_all_texts_and_then_for_each():
    model, x = OnceAndApart(one_by_one), torch.randn(B, N, WIDTH)
    recording = recorded(model, x)
    assert recording.verify(model, x) == {"proved": B + 1}
    for sequence, *maps in zip(
        recording.sequences, maps_of(model, x), maps_of(model, x + 1), strict=True
    ):
        for call, map_ in zip(sequence, maps, strict=True):
            near(call.weights(), map_)


class Cut(Loops):
    """Attends to the tokens of each text, of which there are other numbers."""

    def forward(self, x, lengths):
        cut = zip(x, lengths.tolist(), strict=True)
        return [Heads.forward(self, text[None, :length]) for text, length in cut]


def test_texts_of_unequal_lengths():
    model, x, lengths = Cut(one_by_one), torch.randn(B, N, WIDTH), torch.tensor([5, 7, 2])
    recording = recorded(model, x, lengths)
    assert recording.verify(model, [x, lengths]) == {"proved": B}
    cut = zip(x, lengths.tolist(), strict=True)
    is_of_its_text(recording, [maps_of(model, text[None, :length])[0] for text, length in cut])


class Windows(Loops):
    """Attends inside windows of each text, which are the batch of its call."""

    def forward(self, x, sizes=None):
        sizes = [2] * len(x) if sizes is None else sizes.tolist()
        parts = zip(x, sizes, strict=True)
        return [
            Heads.forward(self, text[: 3 * size].unflatten(0, (size, 3))) for text, size in parts
        ]


def test_windows_are_sequences_those_of_the_first_text_first():
    model, x = Windows(one_by_one), torch.randn(B, 6, WIDTH)
    recording = recorded(model, x)
    assert recording.verify(model, x) == {"proved": B}
    is_of_its_text(recording, maps_of(model, x.reshape(2 * B, 3, WIDTH)))
    recording.tokens = tokens = [[f"{b}.{n}" for n in range(3)] for b in range(2 * B)]
    assert [sequence[0].tokens for sequence in recording.sequences] == tokens


def test_windows_of_several_texts_in_a_call():
    class ByTwos(Windows):
        def forward(self, x):
            windows = [part.unflatten(1, (2, 3)).flatten(0, 1) for part in x.split(2)]
            return [Heads.forward(self, one) for one in windows]

    model, x = ByTwos(by_twos), torch.randn(4, 6, WIDTH)
    recording = recorded(model, x)
    assert recording.verify(model, x) == {"proved": 2}
    is_of_its_text(recording, maps_of(model, x.reshape(8, 3, WIDTH)))


def biased(query, key):
    return (query @ key.mT + key.mean(-1)[..., None, :].sin()).softmax(-1) @ key


def test_what_is_added_to_scores_is_that_of_the_text():
    model, x = Loops(by_twos, biased), torch.randn(4, N, WIDTH)
    recording = recorded(model, x)
    assert recording.verify(model, x) == {"proved": 2}
    assert recording[0].causes.bias is not None
    query, key = (one.double() for one in model.heads(x))
    raised = (query @ key.mT + key.mean(-1)[..., None, :].sin()).exp()
    is_of_its_text(recording, (raised / raised.sum(-1, keepdim=True)).float().detach())


def test_of_unequal_numbers_of_windows_only_the_first_texts_have_numbers_of_their_own():
    model, x, sizes = Windows(one_by_one), torch.randn(B, 9, WIDTH), torch.tensor([2, 3, 1])
    recording = recorded(model, x, sizes)
    assert recording.verify(model, [x, sizes]) == {"proved": 1, "assumed": 2}
    assert [call.proof for call in recording] == ["proved", "assumed", "assumed"]
    assert "unequal numbers of sequences" in recording[1].why
    near(recording[1].weights(), maps_of(model, x[1].unflatten(0, (3, 3)))[0])


class Common(Loops):
    """Attends to the same words beside all texts but the last, which nothing of theirs tells."""

    def __init__(self):
        super().__init__(one_by_one)
        self.words = nn.Parameter(torch.randn(1, N, WIDTH))

    def forward(self, x):
        return [Heads.forward(self, self.words) for _ in range(max(1, len(x) - 1))]


def test_what_has_nothing_of_its_text_is_not_given_to_one():
    model, x = Common(), torch.randn(B, N, WIDTH)
    recording = recorded(model, x)
    assert recording.verify(model, x) == {"assumed": B - 1}
    assert len(recording.sequences) == 1
    assert "a text alone makes other calls of this module" in recording[1].why


def test_texts_that_are_alike_stand_in_their_order():
    model, x = Loops(one_by_one), torch.randn(1, N, WIDTH).expand(B, -1, -1)
    recording = recorded(model, x)
    assert recording.verify(model, x) == {"proved": B}
    is_of_its_text(recording, maps_of(model, x))


class Changed(Loops):
    """Changes a text where it runs beside others: it is that of no text alone."""

    def __init__(self, which):
        super().__init__(one_by_one)
        self.which = which

    def forward(self, x):
        changed = x + torch.arange(len(x))[:, None, None].eq(self.which) * (len(x) > 1)
        return super().forward(changed)


def gap():
    """A recording of three texts of which the second has no call that is known to be its own."""
    model, x = Changed(1), torch.randn(B, N, WIDTH)
    recording = recorded(model, x)
    assert recording.verify(model, x) == {"proved": 2, "assumed": 1}
    return recording, model, x


def test_a_text_without_a_call_of_its_own_leaves_the_others_theirs():
    recording, model, x = gap()
    assert [len(sequence) for sequence in recording.sequences] == [2, 0, 1]
    assert [call.proof for call in recording] == ["proved", "assumed"]
    assert "which texts alone do not settle" in recording[1].why
    near(recording.sequences[2][0].weights(), maps_of(model, x)[2])
    with pytest.raises(RunError, match="nothing was recorded"):
        recording.sequences[1].summary()
    assert {at for at, _ in heads_of(recording)} == {0, 2}
    assert list(shares_of(recording, {"all": slice(0, N)}, None)) == [0, 2]
    assert [text.label for text in texts_of(recording)] == ["text 1", "text 3"]
    recording.tokens = [[f"{b}.{n}" for n in range(N)] for b in range(B)]
    assert recording.sequences[2][0].tokens == [f"2.{n}" for n in range(N)]


def test_where_no_text_is_known_calls_stay_in_the_first_as_assumed():
    model, x = Loops(one_by_one), torch.randn(B, N, WIDTH)
    recording = recorded(model, x)
    assert len(recording.sequences) == 1
    assert {call.proof for call in recording} == {"assumed"}
    assert {(call.sequence, call.batch) for call in recording} == {(0, 1)}


def test_a_file_has_the_text_of_each_call(tmp_path):
    model, x = Loops(one_by_one), torch.randn(B, N, WIDTH)
    recording = recorded(model, x, values=True)
    recording.save(tmp_path / "before")
    assert load_tensors(tmp_path / "before")[1]["version"] == 4
    recording.verify(model, x)
    again = heedful.load(recording.save(tmp_path / "after"))
    assert load_tensors(tmp_path / "after")[1]["version"] == 6
    is_of_its_text(again, maps_of(model, x))
    for one, other in zip(recording.sequences, again.sequences, strict=True):
        torch.testing.assert_close(one[0].value_norm(), other[0].value_norm())
    assert heedful.load(tmp_path / "before").sequences[0][1].proof == "assumed"


@pytest.mark.parametrize(
    "standing", [3, None, [1], [1, 3, 5], [-1, 3], [3, 3], [1, 1], ["1", 3], [0.5, 3], [True, 3]]
)
def test_a_file_with_a_wrong_text_is_refused(tmp_path, standing):
    model, x = Loops(one_by_one), torch.randn(B, N, WIDTH)
    recording = recorded(model, x)
    recording.verify(model, x)
    tensors, about = load_tensors(recording.save(tmp_path / "r"))
    about["calls"][1]["standing"] = standing
    save_tensors(tmp_path / "r", {name: one.clone() for name, one in tensors.items()}, about)
    with pytest.raises(RunError, match="record again") as error:
        heedful.load(tmp_path / "r")
    assert "\n" not in str(error.value)


class Words(Loops):
    """A text model: ids of tokens, of which each text is attended to by itself."""

    def __init__(self, does=attended):
        super().__init__(one_by_one, does)
        self.embed = nn.Embedding(9, WIDTH)

    def forward(self, input_ids):
        return super().forward(self.embed(input_ids))


def test_tokens_are_those_of_the_text():
    model, ids = Words(), torch.arange(B * N).view(B, N) % 9
    recording = recorded(model, ids, tokenizer=lambda several: [f"w{one}" for one in several])
    assert {call.tokens and len(call.tokens) for call in recording} == {None}
    recording.verify(model, ids)
    words = [[f"w{one}" for one in text] for text in ids.tolist()]
    assert [sequence[0].tokens for sequence in recording.sequences] == words
    assert [sequence[0].query_tokens for sequence in recording.sequences] == words
    assert recording.tokens == words
    assert [sequence[0].query_ids.tolist() for sequence in recording.sequences] == ids.tolist()
    other = [[word.upper() for word in text] for text in words]
    recording.tokens = other
    assert [sequence[0].tokens for sequence in recording.sequences] == other
    for wrong in (other[:2], [other[0], other[1][1:], other[2]]):
        with pytest.raises(ArgumentError, match="as many as were recorded"):
            recording.tokens = wrong


class Padded(Words):
    """Hides the words 0 that stand before a text, and nothing tells that these are padding."""

    def forward(self, input_ids):
        return [self.of_one(ids[None]) for ids in input_ids]

    def of_one(self, ids):
        query, key = self.heads(self.embed(ids))
        seen = (ids != 0)[:, None, None] & torch.ones(ids.shape[1], ids.shape[1]).tril().bool()
        scores = (query @ key.mT).masked_fill(~seen, -torch.inf)
        return scores.softmax(-1).nan_to_num() @ key


def test_padding_of_each_text_is_settled_too():
    model, ids = Padded(), 1 + torch.arange(B * N).view(B, N) % 8
    ids[0, :2], ids[2, :3] = 0, 0
    recording = recorded(model, ids)
    assert recording.verify(model, ids) == {"proved": B}
    assert [sequence[0].shape[1:] for sequence in recording.sequences] == [(5, 5), (7, 7), (4, 4)]
    for text, [call] in zip(ids, recording.sequences, strict=True):
        query, key = model.heads(model.embed(text[text != 0])[None])
        expected = (query @ key.mT).exp().tril()[0]
        near(call.weights(), (expected / expected.sum(-1, keepdim=True)).detach())


class Told(Loops):
    """Hides the padding of each text, of which the inputs tell."""

    hides = True

    def __init__(self, is_causal=False):
        super().__init__(one_by_one)
        self.is_causal = is_causal

    def forward(self, x, attention_mask):
        return [self.of_one(*one) for one in zip(x[:, None], attention_mask[:, None], strict=True)]

    def of_one(self, x, keep):
        query, key = self.heads(x)
        seen = torch.ones(x.shape[1], x.shape[1]).bool()
        seen = seen & keep.bool()[:, None, None] if self.hides else seen
        if self.is_causal:  # padding that sees nothing would be NaN
            seen = seen.tril() | ~keep.bool()[:, None, :, None]
        return scaled_dot_product_attention(query, key, key, seen, scale=1.0)


def kept():
    keep = torch.ones(B, N).long()
    keep[0, 5:] = 0
    keep[2, :3] = keep[2, 6:] = 0
    return keep


@pytest.mark.parametrize("is_causal", [False, True])
def test_padding_of_which_the_inputs_tell_is_left_out(is_causal, tmp_path):
    model, x, keep = Told(is_causal), torch.randn(B, N, WIDTH), kept()
    recording = recorded(model, x, keep)
    assert [call.shape for call in recording] == [(3, N, N)] * B
    before = list(recording)
    assert recording.verify(model, [x, keep]) == {"proved": B}
    assert [call.proof for call in before] == ["assumed", "assumed", "assumed"]
    expected = []
    for text, real in zip(x, keep.bool(), strict=True):
        [query], [key] = model.heads(text[None, real])
        raised = (query.double() @ key.double().mT).exp()
        raised = raised.tril() if is_causal else raised
        expected.append((raised / raised.sum(-1, keepdim=True)).float().detach())
    again = heedful.load(recording.save(tmp_path / "r"))
    for one in (recording, again):
        is_of_its_text(one, expected)
        assert {s[0].kind for s in one.sequences} == {"causal" if is_causal else "self"}


class OtherAlone(Told):
    """Does something else with its masks where a text is alone."""

    def __init__(self, changes):
        super().__init__()
        self.changes = changes

    def forward(self, x, attention_mask):
        is_alone = len(x) == 1
        if self.changes == "needs all tokens" and x.shape[1] != N:
            raise ValueError(f"expected {N} tokens")
        self.hides = self.changes != "hides padding alone" or is_alone
        looks_ahead = self.changes == "needs all tokens" or is_alone
        self.is_causal = not looks_ahead or self.changes == "hides padding alone"
        return super().forward(x, attention_mask)


def test_padding_that_a_call_sees_is_not_left_out():
    model, x, keep = OtherAlone("hides padding alone"), torch.randn(B, N, WIDTH), kept()
    recording = recorded(model, x, keep)
    # that after the words of the first text is hidden from them, as no word looks ahead
    assert recording.verify(model, [x, keep]) == {"proved": 2, "assumed": 1}
    assert [call.shape for call in recording] == [(3, 5, 5), (3, N, N)]
    query, key = model.heads(x)
    raised = (query @ key.mT).exp().tril()
    expected = (raised / raised.sum(-1, keepdim=True)).detach()
    for call, map_ in zip(recording, expected[[0, 2]], strict=True):
        near(call.weights()[:, 3:5], map_[:, 3:5, : call.shape[2]])  # of words in both


def test_the_mask_of_a_text_alone_is_not_taken_for_that_of_its_call():
    model, x, keep = OtherAlone("looks ahead alone"), torch.randn(B, N, WIDTH), kept()
    keep[2] = 1
    recording = recorded(model, x, keep)
    recording.verify(model, [x, keep])
    call = recording[0]
    assert (call.proof, call.shape) == ("assumed", (3, N, N))
    [query], [key] = model.heads(x[:1])
    expected = ((query @ key.mT).exp().tril() * keep[0])[:, :5]  # those of its words
    near(call.weights()[:, :5], (expected / expected.sum(-1, keepdim=True)).detach())


def test_padding_of_a_text_that_a_model_needs_stays_a_guess():
    model, x, keep = OtherAlone("needs all tokens"), torch.randn(B, N, WIDTH), kept()
    recording = recorded(model, x, keep)
    assert recording.verify(model, [x, keep]) == {"proved": 1, "assumed": 2}
    whys = [call.why for [call] in recording.sequences]
    said = f"inferred: {PADDING}; without it a text alone has other queries and keys"
    assert whys == [said, "", said]


def test_what_its_own_check_refutes_stays_where_it_is():
    model, x = Loops(one_by_one), torch.randn(B, N, WIDTH)
    recording = recorded(model, x)
    recording._captures[1].checked.outputs[0].add_(1)
    assert recording.verify(model, x) == {"proved": 2, "refuted": 1}
    assert [call.proof for call in recording] == ["proved", "refuted"]
    assert "of sequence 0" in recording[1].why


def causal(query, key):
    scores = (query @ key.mT).masked_fill(torch.ones(N, N).triu(1).bool(), -torch.inf)
    return scores.softmax(-1) @ key


def test_a_text_as_one_has_the_calls_of_that_text():
    model, ids = Words(causal), torch.arange(B * N).view(B, N) % 9
    recording = recorded(model, ids)
    assert recording.verify(model, ids) == {"proved": B}
    for b, sequence in enumerate(recording.sequences):
        [whole] = recording.stitched(b)
        near(whole.weights(), sequence[0].weights())


class Shifted(nn.Module):
    """Two modules that take the texts in other parts, but mask the two texts of a part alike."""

    def __init__(self):
        super().__init__()
        self.seen = torch.ones(2, 1, N, N).tril().bool()
        self.seen[1] &= torch.ones(N, N).triu(-2).bool()
        self.one, self.other = (Heads(self.masked) for _ in range(2))

    def masked(self, query, key):
        seen = self.seen if len(query) == 2 else self.seen[:1]
        return scaled_dot_product_attention(query, key, key, seen, scale=1.0)

    def forward(self, x):
        sizes = ([1, 2], [2, 1]) if len(x) == B else ([1], [1])
        parts = zip((self.one, self.other), map(x.split, sizes), strict=True)
        return [module(part) for module, several in parts for part in several]


def test_texts_as_one_have_the_masks_of_their_own_places():
    model, x = Shifted(), torch.randn(B, N, WIDTH)
    recording = recorded(model, x)
    assert recording.verify(model, x) == {"proved": 4}
    for sequence, whole in zip(recording.sequences, map(recording.stitched, range(B)), strict=True):
        for call, one in zip(sequence, whole, strict=True):
            near(one.weights(), call.weights())


class Images(nn.Module):
    """Images of unequal sizes in one tensor, with a table of rows and columns beside it."""

    def __init__(self, turned=False):
        super().__init__()
        self.attend, self.turned = Heads(attended), turned

    def forward(self, patches, grid):
        patches = torch.tensor(patches.tolist())  # of which it is not followed where they come from
        images = patches.split(grid.prod(-1).tolist())
        return [self.attend(image[None]) for image in (images[::-1] if self.turned else images)]


@pytest.mark.parametrize("turned", [False, True])
def test_images_in_one_tensor_have_their_own_calls_in_whatever_order_they_run(turned):
    model, grid = Images(turned), torch.tensor([[1, 2, 3], [1, 4, 2]])
    given = {"patches": torch.randn(14, WIDTH), "grid": grid}
    with heedful.record(model) as recording:
        model(**given)
    assert recording.verify(model, given) == {"proved": 2}
    images = given["patches"].split([6, 8])
    is_of_its_text(recording, [weighed(*model.attend.heads(one[None]))[0] for one in images])
    pictures = [torch.rand(8, 12, 3), torch.rand(16, 8, 3)]
    recording.know_patches([Patches("attend", 4, 4, ())], None)
    recording.set_images([one.numpy() for one in pictures])
    for [call], one, cells in zip(recording.sequences, pictures, ((2, 3), (4, 2)), strict=True):
        picture = call.key_picture
        assert (picture.rows, picture.columns) == cells
        near(picture.pixels / 255, (one * 255).round() / 255)


def test_a_row_that_is_not_the_models_refutes_the_call_of_its_text_alone(tmp_path):
    model = Loops(one_by_one, lambda query, key: scaled_dot_product_attention(query, key, key))
    x = torch.randn(B, 40, WIDTH)
    recording = recorded(model, x)
    assert recording.verify(model, x) == {"proved": B}
    recording._captures[2].query[0, 1, 20] *= 1.5  # between the rows that its check compares
    bad = recording.sequences[2]
    with pytest.raises(RunError, match="row 20 of head 1"):
        bad[0].summary()
    again = heedful.load(recording.save(tmp_path / "r"))
    for one in (recording, again):
        assert [sequence[0].proof for sequence in one.sequences] == ["proved", "proved", "refuted"]
        assert [check.proof for _, check in one.certificate()] == ["proved", "proved", "refuted"]


def test_what_is_gathered_over_texts_counts_each_once():
    model, x = Loops(one_by_one), torch.randn(B, N, WIDTH)
    recording = recorded(model, x)
    recording.verify(model, x)
    together = HeadTotals()
    together.add(recording, (0,))
    assert len(together.heads()) == 3
    assert {head.queries["self"] for head in together.heads()} == {B * (N - 1)}


def test_a_page_opens_on_the_call_of_its_text():
    model, x = Loops(one_by_one), torch.randn(B, N, WIDTH)
    recording = recorded(model, x)
    recording.verify(model, x)
    second = recording.sequences[1]
    for shown in (second, second[0]):
        texts, address = opened_on(shown)
        assert address == "call=0.1.0"
        near(texts.call(0, 1, 0).weights(), maps_of(model, x)[1])
    alone = copy.copy(second)
    alone._texts = copy.copy(second._texts)
    alone._texts.home = lambda: None
    texts, address = opened_on(alone)
    near(texts.call(0, *map(int, address.split(".")[1:])).weights(), maps_of(model, x)[1])


@pytest.mark.parametrize("loops", [False, True])
def test_a_table_of_queries_and_keys_is_no_padding_of_as_many_texts(loops):
    """Row b of it is taken with text b, and looks like its padding."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.asks, self.says = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def attend(self, x, mask):
            scores = (self.asks(x) @ self.says(x).mT).masked_fill(~mask, -torch.inf)
            return scores.softmax(-1) @ x

        def forward(self, mask, x):
            if not loops:
                return self.attend(x, mask)
            return torch.cat([self.attend(x[b : b + 1], mask) for b in range(len(x))])

    model, x = Masked().eval(), torch.randn(3, 3, WIDTH)
    mask = torch.ones(3, 3).tril().bool()
    with torch.no_grad(), heedful.record(model) as recording:
        model(mask, x)
    recording.verify(model, [mask, x])
    expected = (model.asks(x) @ model.says(x).mT).masked_fill(~mask, -torch.inf).softmax(-1)
    calls = [call for sequence in recording.sequences for call in sequence]
    assert [call.shape for call in calls] == [(1, 3, 3)] * 3
    proved = [call for call in calls if call.proof == "proved"]
    assert loops or proved == calls
    for call in proved:
        torch.testing.assert_close(call.weights()[0], expected[call.sequence].detach())


class InParts(nn.Module):
    """Gives a model that reads ids several texts at a time, as wrappers of large batches do."""

    def __init__(self, size):
        super().__init__()
        torch.manual_seed(0)
        config = GPTConfig(vocabulary=60, context_length=16, width=12, layers=1, heads=3)
        self.model, self.size = GPT(config).eval(), size

    def forward(self, ids):
        return torch.cat([self.model(part).logits for part in ids.split(self.size)])


@pytest.mark.parametrize(("texts", "size"), [(4, 2), (4, 1), (6, 3), (6, 4), (5, 2), (4, 4)])
def test_texts_that_a_wrapper_gives_in_parts_keep_their_own_names(texts, size, tmp_path):
    model, ids = InParts(size).eval(), torch.arange(8 * texts).view(texts, 8) % 60
    with torch.no_grad():
        recording = recorded(model, ids, tokenizer=lambda ids: [f"t{one}" for one in ids])
    recording.verify(model, ids)
    for now in (recording, heedful.load(recording.save(tmp_path / "kept"))):
        assert len(now.sequences) == len(ids)
        for [call], text in zip(now.sequences, ids, strict=True):
            with torch.no_grad():
                [alone] = recorded(model.model, text[None])
            near(call.weights(), alone.weights())
            assert call.proof == "proved"
            assert torch.equal(call.ids, text)
            assert call.tokens == [f"t{one}" for one in text.tolist()]
