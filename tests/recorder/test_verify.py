"""`recording.verify`: each text alone settles whose rows are whose, and what is padding."""

import dataclasses
from collections import UserDict
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from looked import WIDTH, Heads, looked_at
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.errors import ArgumentError, RunError
from heedful.recorder.record import PADDING
from heedful.recording import from_attentions, text_agreement

B, H, N, D = 4, 3, 7, 4
TEXTS = "inferred: which of the 4 sequences is which of the 4 texts, by the order of the axes"
PADDED = f"inferred: {PADDING}"


def heads_of(x):
    return x.unflatten(-1, (H, D)).transpose(-3, -2)


class Attention(nn.Module):
    """Causal, with projections, by torch's kernel or by hand."""

    def __init__(self, by_hand):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(H * D, H * D) for _ in range(4))
        self.by_hand = by_hand

    def forward(self, x, keep=None):
        query, key, value = (heads_of(made(x)) for made in (self.q, self.k, self.v))
        allowed = torch.ones(x.shape[1], x.shape[1]).tril().bool()
        allowed = allowed if keep is None else allowed & keep[:, None, None]
        if self.by_hand:
            scores = (query @ key.mT / D**0.5).masked_fill(~allowed, -torch.inf)
            heads = scores.softmax(-1).nan_to_num() @ value
        else:
            heads = scaled_dot_product_attention(query, key, value, allowed)
        return self.out(heads.transpose(1, 2).flatten(2))


class Model(nn.Module):
    """Two blocks over ids, with places of the tokens where `places`."""

    def __init__(self, by_hand=False, places=True):
        super().__init__()
        self.embed, self.places = nn.Embedding(20, H * D), nn.Embedding(N, H * D)
        self.blocks = nn.ModuleList(Attention(by_hand) for _ in range(2))
        self.has_places = places

    def forward(self, ids, mask=None):
        x = self.embed(ids)
        if self.has_places:
            x = x + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = x + block(x, mask)
        return x


def ids(texts=B, length=N):
    return torch.randint(20, (texts, length), generator=torch.Generator().manual_seed(3))


def recorded(model, *given, **options):
    with heedful.record(model, **options) as recording:
        model(*given)
    return recording


def same(recording, alone):
    """Each sequence of the batch has the maps of its text alone."""
    assert len(recording.sequences) == len(alone)
    for sequence, one in zip(recording.sequences, alone, strict=True):
        for call, other in zip(sequence, one, strict=True):
            torch.testing.assert_close(call.weights(), other.weights(), atol=2e-6, rtol=0)


@pytest.mark.parametrize("options", [{}, {"budget": 0}, {"heads": [2, 0]}, {"layers": [1]}])
@pytest.mark.parametrize("by_hand", [False, True])
def test_texts_in_their_right_order_become_proved(by_hand, options):
    model = Model(by_hand)
    recording = recorded(model, ids(), **options)
    assert [(call.proof, call.why) for call in recording] == [("assumed", TEXTS)] * len(recording)
    assert recording.verify(model, [ids()]) == {"proved": len(recording)}
    assert {call.proof for one in recording.sequences for call in one} == {"proved"}
    assert {call.why for one in recording.sequences for call in one} == {""}
    assert {check.proof for _, check in recording.certificate()} == {"proved"}
    same(recording, [recorded(model, text[None], **options) for text in ids()])


def test_inputs_are_a_tensor_or_as_the_call_had_them():
    model = Model()
    for given in (ids(), [ids()], (ids(), None), {"ids": ids()}):
        assert recorded(model, ids()).verify(model, given) == {"proved": 2}


@dataclasses.dataclass
class Batch:
    """Inputs as some models have them."""

    ids: torch.Tensor
    more: Any = None


class Named(NamedTuple):
    """Inputs as others have them."""

    ids: torch.Tensor
    more: Any = None


class Wrapped(Model):
    """Inputs inside of one argument."""

    def __init__(self, read):
        super().__init__()
        self.read = read

    def forward(self, batch):
        return super().forward(self.read(batch))


@pytest.mark.parametrize(
    ("batch", "read"),
    [
        ({"ids": ids(), "name": "x"}, lambda batch: batch["ids"]),
        ([ids(), 3], lambda batch: batch[0]),
        ((3, {"deep": [ids()]}), lambda batch: batch[1]["deep"][0]),
        (Batch(ids(), "x"), lambda batch: batch.ids),
        (Named(ids(), "x"), lambda batch: batch.ids),
        (UserDict(ids=ids(), name="x"), lambda batch: batch["ids"]),  # as tokenizers give it
        (MappingProxyType({"ids": ids()}), lambda batch: batch["ids"]),
    ],
)
def test_inputs_inside_of_others_are_taken_apart_too(batch, read):
    recording = recorded(model := Wrapped(read), batch)
    assert [call.why for call in recording] == [TEXTS] * 2
    assert recording.verify(model, [batch]) == {"proved": 2}
    model.read = lambda batch: batch
    same(recording, [recorded(model, text[None]) for text in ids()])


class PositionsFirst(Model):
    """Ids (N, texts)."""

    def forward(self, ids):
        return super().forward(ids.mT).transpose(0, 1)


@pytest.mark.parametrize("texts", [2, N])  # as many as positions: either may be the texts
@pytest.mark.parametrize("by_hand", [False, True])
def test_positions_that_come_first_are_settled_too(by_hand, texts):
    model, given = PositionsFirst(by_hand), ids(texts).mT
    recording = recorded(model, given)
    assert recording.verify(model, [given]) == {"proved": 2}
    same(recording, [recorded(model, given[:, b : b + 1]) for b in range(texts)])


class AfterFirst(nn.Module):
    """One more token before all others: as many tokens as texts, that stand in two dimensions."""

    def __init__(self):
        super().__init__()
        self.first, self.project = nn.Parameter(torch.randn(1, 1, D)), nn.Linear(D, 3 * D)

    def forward(self, x):
        x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1)
        q, k, v = self.project(x).unflatten(-1, (3, 1, D)).permute(2, 0, 3, 1, 4)
        return scaled_dot_product_attention(q, k, v)


def test_texts_that_agree_and_settle_nothing_say_why():
    model = AfterFirst()
    recording = recorded(model, x := torch.randn(5, 4, D))
    assert recording.verify(model, x) == {"proved": 1}
    recording = recorded(model, x := torch.randn(4, 4, D))
    for _ in range(2):  # it is said once
        assert recording.verify(model, x) == {"assumed": 1}
        assert recording[0].why.count("as many rows along their first dimension") == 1


class HeadsFirst(nn.Module):
    """Raw heads (H · B, N, D), of whose making nothing can be seen."""

    def __init__(self, by_hand=False, shared=None):
        super().__init__()
        self.by_hand, self.shared, self.table = by_hand, shared, torch.randn(N, D)

    def forward(self, x):
        made = heads_of(x).transpose(0, 1).flatten(0, 1)
        made = torch.tensor(made.numpy().copy())
        if self.shared:
            table = torch.tensor(self.table.expand(len(made), -1, -1).numpy().copy())
            sides = (table, made) if self.shared == "queries" else (made, table)
            return scaled_dot_product_attention(*sides, made)
        if self.by_hand:
            return (made @ made.cos().mT / D**0.5).softmax(-1) @ made
        return scaled_dot_product_attention(made, made.cos(), made)


@pytest.mark.parametrize("texts", [2, 3, 4, 5])
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_guess_that_is_wrong_is_refuted_and_shows_no_weights(by_hand, texts):
    model, x = HeadsFirst(by_hand), torch.randn(texts, N, H * D)
    recording = recorded(model, x)
    assert recording[0].proof == "assumed"
    assert recording.verify(model, x) == {"refuted": 1}
    for [call] in recording.sequences:
        assert call.proof == "refuted"
        assert call.check.passed  # the numbers agree, in whatever order
        with pytest.raises(RunError, match=r"not recorded truthfully.*axes=") as raised:
            call.weights()
        assert "\n" not in str(raised.value)
    recording = recorded(model, x, axes={"*": "(h b) n d"})
    assert recording.verify(model, x) == {"proved": 1}
    for [call], one in zip(recording.sequences, heads_of(x), strict=True):
        expected = (one @ one.cos().mT / D**0.5).softmax(-1)
        torch.testing.assert_close(call.weights(), expected, atol=2e-6, rtol=0)


class Meaned(Model):
    """Takes the mean over the batch off its tokens, so that texts change each other."""

    def __init__(self, by_hand):
        super().__init__(by_hand)
        self.embed.register_forward_hook(lambda module, given, made: made - made.mean(0) / 2)


@pytest.mark.parametrize("by_hand", [False, True])
def test_texts_that_change_each_other_are_not_refuted(by_hand):
    model = Meaned(by_hand)
    recording = recorded(model, ids())
    before = recording[0].weights()
    assert recording.verify(model, ids()) == {"assumed": 2}
    why = "text 0 alone has other queries and keys, and no other text has those of sequence 0"
    said = f"{TEXTS}, which texts alone do not settle: {why}"
    assert [call.why for call in recording] == [said] * 2
    assert torch.equal(recording[0].weights(), before)


class Asked(nn.Module):
    """For each image the words of all texts ask, as in a classifier by names."""

    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(H * D, H, batch_first=True)

    def forward(self, words, images):
        every = words[None].expand(len(images), -1, -1)
        return self.attend(every, images, images, need_weights=False)[0]


def test_what_a_module_told_is_not_refuted_where_texts_alone_ask_less():
    model, given = Asked().eval(), (torch.randn(2, H * D), torch.randn(2, N, H * D))
    recording = recorded(model, *given)
    before = recording[0].weights()
    proofs = recording[0].proof, recording.verify(model, given)
    assert proofs == ("proved", {"proved": 1})
    torch.testing.assert_close(recording[0].weights(), before)


def own(of):
    return of[:, None] == of


class Packed(nn.Module):
    """All texts in one sequence, of which each sees itself alone, as models of images pack them.

    sees: tells from the text of each token which may attend to which.
    """

    def __init__(self, turned=False, sees=own):
        super().__init__()
        self.q, self.k = nn.Linear(H * D, H * D), nn.Linear(H * D, H * D)
        self.turned, self.sees = turned, sees

    def forward(self, x, keep=None):
        keep = torch.ones(x.shape[:2], dtype=torch.bool) if keep is None else keep
        of = torch.arange(len(x))[:, None].expand(keep.shape)[keep]
        x = (x.flip(0) if self.turned else x)[keep]
        query, key = (heads_of(made(x))[None] for made in (self.q, self.k))
        return scaled_dot_product_attention(query, key, key, self.sees(of))


@pytest.mark.parametrize("turned", [False, True])
def test_texts_in_one_sequence_are_settled_in_their_order(turned):
    model, x = Packed(turned), torch.randn(B, N, H * D)
    recording = recorded(model, x)
    assert recording[0].proof == "assumed"
    assert recording.verify(model, x) == {"assumed" if turned else "proved": 1}


LENGTHS = [(4, 7), (7, 4), (4, 7, 7), (7, 7, 4), (5, 1, 6)]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("is_causal", [False, True])
def test_texts_of_unequal_length_in_one_sequence_are_proved(lengths, is_causal):
    model = Packed(sees=lambda of: own(of).tril() if is_causal else own(of))
    x, keep = torch.randn(len(lengths), 7, H * D), torch.ones(len(lengths), 7, dtype=torch.bool)
    for row, length in zip(keep, lengths, strict=True):
        row[length:] = False
    recording = recorded(model, x, keep)
    assert recording.verify(model, [x, keep]) == {"proved": 1}, recording[0].why


def row(of, number):
    return torch.arange(len(of))[:, None] == number


MIXING = {
    "all see all": lambda of: own(of) | ~own(of),
    "all see what was before": lambda of: torch.ones(len(of), len(of), dtype=torch.bool).tril(),
    "none sees itself": lambda of: ~own(of),
    "the last text sees all": lambda of: own(of) | (of == of.max())[:, None],
    "the second text sees all": lambda of: own(of) | (of == 1)[:, None],
    "one row sees all": lambda of: own(of) | row(of, 22),
    "the last row sees all": lambda of: own(of) | row(of, len(of) - 1),
    "all see all a little": lambda of: torch.where(own(of), 0.0, -6.0),
}


@pytest.mark.parametrize("way", MIXING)
def test_texts_that_attend_to_each_other_in_one_sequence_are_not_proved(way):
    model, x = Packed(sees=MIXING[way]), torch.randn(B, 20, H * D)
    recording = recorded(model, x)
    assert recording.verify(model, x) == {"assumed": 1}
    assert recording[0].why.endswith("has all texts, which attend to each other in it")


def test_texts_with_other_weights_in_one_sequence_than_alone_are_not_proved():
    """A bias that grows with the place of a key in the sequence, in another text than the first."""

    def sees(of):
        place = torch.arange(len(of)).float()
        return torch.where(own(of), -((place - 25) ** 2) / 9, -torch.inf)

    model, x = Packed(sees=sees), torch.randn(B, 20, H * D)
    recording = recorded(model, x)
    assert recording.verify(model, x) == {"assumed": 1}
    assert recording[0].why.endswith("which have other weights in it than alone")


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("is_picked", [False, True])
def test_joined_texts_that_ask_one_memory(by_hand, is_picked):
    """Tokens that are joined by their axes are followed, those that are picked are compared."""

    class Asks(Packed):
        def __init__(self):
            super().__init__()
            self.memory = nn.Parameter(torch.randn(9, H * D))

        def forward(self, x):
            x = x[torch.ones(x.shape[:2], dtype=torch.bool)] if is_picked else x.flatten(0, 1)
            query, key = heads_of(self.q(x))[None], heads_of(self.k(self.memory))[None]
            self.own = (query @ key.mT).softmax(-1)
            if by_hand:
                return (query @ key.mT).softmax(-1) @ key
            return scaled_dot_product_attention(query, key, key, scale=1.0)

    model, x = Asks(), torch.randn(B, N, H * D)
    recording = recorded(model, x)
    assert len(recording.sequences) == (1 if is_picked else B)
    rows = torch.cat([one[0].weights() for one in recording.sequences], dim=1)
    torch.testing.assert_close(rows, model.own[0].detach())
    assert recording.verify(model, x) == {"proved": 1}, recording[0].why


@pytest.mark.parametrize("shared", ["queries", "keys"])
def test_a_wrong_guess_is_refuted_where_one_side_is_that_of_all_texts(shared):
    model, x = HeadsFirst(shared=shared), torch.randn(B, N, H * D)
    recording = recorded(model, x)
    assert recording[0].proof == "assumed"
    assert recording.verify(model, x) == {"refuted": 1}


class Pixels(nn.Module):
    """One image (height, width) of numbers, whose pixels attend to each other."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(1, H * D), nn.Linear(1, H * D)

    def forward(self, image):
        query, key = (heads_of(made(image.flatten()[:, None]))[None] for made in (self.q, self.k))
        return scaled_dot_product_attention(query, key, key)


def test_one_image_without_an_axis_for_others_is_one_text():
    assert recorded(Pixels(), torch.randn(5, 6))[0].proof == "proved"


def kept():
    keep = torch.ones(B, N).bool()
    keep[1, 5:] = False
    keep[2, :2] = False
    return keep


@pytest.mark.parametrize("by_hand", [False, True])
def test_padding_is_settled_by_texts_without_it(by_hand):
    model = Model(by_hand, places=False)
    recording = recorded(model, ids(), kept())
    assert recording[0].why == f"{TEXTS}; {PADDED}"
    assert recording.verify(model, {"ids": ids(), "mask": kept()}) == {"proved": 2}
    alone = [recorded(model, text[real][None]) for text, real in zip(ids(), kept(), strict=True)]
    same(recording, alone)


class NeedsAll(Model):
    """A model that takes texts of one length alone."""

    def forward(self, ids, mask):
        if ids.shape[1] != N:
            raise ValueError(f"expected {N} tokens")
        return super().forward(ids, mask)


@pytest.mark.parametrize("model", [NeedsAll(places=False), Model()])  # or places move on
def test_padding_that_a_model_needs_stays_a_guess(model):
    recording = recorded(model, ids(), kept())
    assert recording.verify(model, [ids(), kept()]) == {"assumed": 2}
    said = f"{PADDED}; without it a text alone has other queries and keys"
    assert [call.why for call in recording] == [said] * 2


class Restless(Model):
    """Everything that a pass may change: modes, buffers, and what is drawn."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(H * D), nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros(()))
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, ids):
        self.count += 1
        torch.rand(3)
        torch.rand(3, generator=self.generator)
        made = super().forward(ids)
        return self.drop(self.norm(made.mT))


def test_everything_is_put_back_as_it_was():
    model = Restless().eval()
    recording = recorded(model, ids())
    model.train()
    model.blocks[0].eval()
    model(ids())
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    drawn = torch.get_rng_state(), model.generator.get_state()
    assert recording.verify(model, ids()) == {"proved": 2}
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert torch.equal(model.generator.get_state(), drawn[1])
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())


DENSE = {
    torch.Tensor.to_sparse: torch.Tensor.to_dense,
    torch.Tensor.to_sparse_csr: torch.Tensor.to_dense,
    lambda table: torch.nested.nested_tensor(list(table)): lambda one: one.to_padded_tensor(0.0),
}


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("made", DENSE)
def test_a_buffer_that_is_not_dense_is_put_back_too(made):
    """As openai-whisper's alignment heads, a table of layers × heads."""
    model = Restless().eval()
    model.register_buffer("table", table := made(torch.eye(3)), persistent=False)
    recording = recorded(model, ids())
    model.norm.register_forward_pre_hook(lambda *_: (table.mul_(2), None)[1])
    drawn = model.generator.get_state()
    assert recording.verify(model, ids()) == {"proved": 2}
    assert model.table is table
    assert torch.equal(DENSE[made](table), torch.eye(3))
    assert torch.equal(model.generator.get_state(), drawn)


def test_a_timeout_is_no_answer_of_the_model():
    class Slow(Model):
        passes = 0

        def forward(self, ids):
            self.passes += 1
            if self.passes == 3:
                raise TimeoutError
            return super().forward(ids)

    model = Slow().eval()
    recording = recorded(model, ids())
    with pytest.raises(TimeoutError):
        recording.verify(model, ids())
    assert recording.verify(model, ids()) == {"proved": 2}


def test_what_cannot_be_put_back_leaves_nothing_else_changed():
    class Unwritable(Restless):
        def __init__(self):
            super().__init__()
            with torch.inference_mode():
                self.register_buffer("seen", torch.zeros(2))

        def forward(self, ids):
            with torch.inference_mode():
                self.seen += 1
            return super().forward(ids)

    model = Unwritable().eval()
    recording = recorded(model, ids())
    model.train()
    count, drawn = model.count.clone(), model.generator.get_state()
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        recording.verify(model, ids())
    assert all(module.training for module in model.modules())
    assert torch.equal(model.count, count)
    assert torch.equal(model.generator.get_state(), drawn)


def test_after_an_error_everything_is_put_back_too():
    model = Restless().eval()
    recording = recorded(model, ids())
    model.train()
    count = model.count.clone()
    with pytest.raises(ArgumentError):
        recording.verify(model, ids().float())
    assert model.training
    assert torch.equal(model.count, count)
    assert [call.why for call in recording] == [TEXTS] * 2


def one_line(error, *words):
    said = str(error.value)
    assert all(word in said for word in (*words, "expected")), said
    assert "\n" not in said


class Linear(torch.nn.Module):
    def forward(self, x):
        return x.relu() @ (x.relu().mT @ x)


def test_what_cannot_be_verified_is_one_line(tmp_path):
    model = Model()
    recording = recorded(model, ids())
    loaded = heedful.load(recording.save(tmp_path / "r"))
    for one in (loaded, from_attentions([torch.eye(N).expand(B, 1, N, N)])):
        with pytest.raises(RunError) as error:
            one.verify(model, ids())
        one_line(error, "from a file or of given maps")
    with heedful.record(model) as empty:
        pass
    with pytest.raises(RunError) as error:
        empty.verify(model, ids())
    one_line(error, "nothing was recorded")
    with heedful.record(linear := Linear()) as without:
        linear(torch.randn(2, 5, 4))
    with pytest.raises(RunError) as error:
        without.verify(linear, torch.randn(2, 5, 4))
    one_line(error, "recording.missed")
    for given in ([3], {"ids": "text"}, [], [ids().float()]):
        with pytest.raises(ArgumentError) as error:
            recording.verify(model, given)
        one_line(error)
    assert [call.why for call in recording] == [TEXTS] * 2


def test_what_was_verified_goes_into_a_file(tmp_path):
    model, x = HeadsFirst(), torch.randn(B, N, H * D)
    wrong = recorded(model, x)
    wrong.verify(model, x)
    right = recorded(other := Model(), ids())
    right.verify(other, ids())
    for recording in (wrong, right):
        again = heedful.load(recording.save(tmp_path / "r"))
        for one, two in zip(recording.sequences, again.sequences, strict=True):
            assert [repr(call) for call in one] == [repr(call) for call in two]
    again = heedful.load(wrong.save(tmp_path / "r"))
    with pytest.raises(RunError, match="not recorded truthfully"):
        again.sequences[2][0].weights()


class Draws(nn.Module):
    """Attends to the tokens of each text in an order that it draws."""

    def __init__(self, attend):
        super().__init__()
        self.attend = attend

    def forward(self, x):
        order = torch.stack([torch.randperm(x.shape[1]) for _ in x])
        return self.attend(x[torch.arange(len(x))[:, None], order])


class PadsMuch(Model):
    """Pads texts to the longest, whose length it tells itself, and reads the padding."""

    def forward(self, ids):
        lengths = 2 + ids[:, 0] % 5
        is_real = torch.arange(int(lengths.max())) < lengths[:, None]
        cut = (ids[:, : int(lengths.max())] * is_real).float()
        return super().forward((cut + cut.cumsum(1).flip(1)).long() % 20)


def embedded(texts=B):
    return torch.randn(texts, N, H * D, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("given", [embedded(), ids()], ids=["draws", "pads"])
def test_a_text_in_the_place_of_another_settles_what_texts_alone_do_not(given):
    model = Draws(Attention(by_hand=True)) if given.is_floating_point() else PadsMuch()
    recording = recorded(model, given)
    calls = len(recording)
    assert [call.proof for call in recording] == ["assumed"] * calls
    state = torch.get_rng_state()
    assert recording.verify(model, given) == {"proved": calls}
    assert torch.equal(torch.get_rng_state(), state)


class Twice(Draws):
    """Attends by one module to its tokens as they stand, and then in an order that it draws."""

    def forward(self, x):
        self.attend(x)
        return super().forward(x)


def test_of_a_module_that_runs_twice_only_the_second_call_needs_it():
    model = Twice(Attention(by_hand=True))
    recording = recorded(model, embedded())
    assert [call.proof for call in recording] == ["assumed"] * 2
    assert recording.verify(model, embedded()) == {"proved": 2}


def test_heads_that_were_taken_for_texts_are_not_proved_by_it():
    model = Draws(HeadsFirst())
    recording = recorded(model, embedded())
    assert "proved" not in recording.verify(model, embedded())


class Turned(nn.Module):
    """Changes the order of its texts, or what they are, before it attends to them."""

    def __init__(self, change):
        super().__init__()
        self.change, self.attend = change, Attention(by_hand=False)

    def forward(self, x):
        return self.attend(self.change(x))


def constant_last(x):
    return torch.cat([x[:-1], torch.ones_like(x[-1:])])


def one_window_more(x):
    return torch.cat([x.unflatten(1, (-1, 2)).flatten(0, 1), torch.ones(1, 2, H * D)])


CHANGED = {
    "the last two change places": lambda x: x[[*range(B - 2), B - 1, B - 2]] if len(x) == B else x,
    "the last is of no text": constant_last,
    "a window more than of all texts": one_window_more,
}


@pytest.mark.parametrize("change", CHANGED)
def test_what_changes_with_other_texts_or_with_none_is_not_proved(change):
    model = Draws(Turned(CHANGED[change]))
    given = embedded()[:, : N - N % 2]
    recording = recorded(model, given)
    assert recording.verify(model, given) == {"assumed": 1}
    assert "which texts alone do not settle" in recording[0].why


class PadsToAll(Model):
    """Pads texts to the sum of their lengths, so that few can stand in the place of another."""

    passes = 0

    def forward(self, ids):
        self.passes += 1
        lengths = 1 + ids[:, 0]
        is_real = torch.arange(int(lengths.sum())) < lengths[:, None]
        padded = nn.functional.pad(ids, (0, int(lengths.sum()) - ids.shape[1])) * is_real
        x = self.embed((padded + padded.cumsum(1).flip(1)) % 20)
        return self.blocks[0](x)


@pytest.mark.parametrize("lengths", [[3, 3, 5, 6], [3, 4, 5, 6, 7, 8, 9, 10]])
def test_two_places_without_an_answer_are_no_proof(lengths):
    model, given = PadsToAll(), torch.randint(20, (len(lengths), 3))
    given[:, 0] = torch.tensor(lengths)
    recording = recorded(model, given)
    assert recording.verify(model, given) == {"assumed": 1}
    assert model.passes <= 2 + len(lengths) + 8  # it gives up where nothing can come of it


@pytest.mark.parametrize("bias", [0, 20, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_bias_that_all_texts_share_hides_no_wrong_order(dtype, bias):
    model = Turned(lambda x: x.flip(0)).to(dtype)
    for side in (model.attend.q, model.attend.k):
        side.bias.data = bias * torch.eye(1, H * D, dtype=dtype)[0]
    given = embedded().to(dtype)
    recording = recorded(model, given)
    assert "proved" not in recording.verify(model, given)


class Besides(Turned):
    """Has something beside its texts, and a configuration that it does not know."""

    def __init__(self):
        super().__init__(lambda x: x)

    @property
    def config(self):
        return self.nothing

    def forward(self, x, beside):
        beside.sum() / len(beside)
        return super().forward(x)


BESIDE = {
    "complex": torch.randn(B, 3, dtype=torch.complex64),
    "complex, of other texts": torch.randn(B + 1, 3, dtype=torch.complex64),
    "sizes that fit nothing": torch.randint(1, 5, (B, 3)),
    "sizes of its own": torch.randn(12, 2),
}


@pytest.mark.parametrize("beside", BESIDE)
def test_what_stands_beside_the_texts_is_no_reason_to_fail(beside):
    model, given = Besides(), [embedded(), BESIDE[beside]]
    recording = recorded(model, *given)
    assert recording.verify(model, given) == {"proved": 1}


class NeedsWhole(Besides):
    def forward(self, x, beside, sizes):
        if len(beside) != int(beside[-1]):
            raise ValueError("expected it whole")
        return super().forward(x, beside)


def test_a_table_whose_sizes_fit_by_chance_is_not_obeyed():
    sizes = torch.tensor([[1, 2], [2, 2], [1, 3], [3, 1]])
    length = int(sizes.prod(-1).sum())
    model, given = NeedsWhole(), [embedded(), torch.arange(length) + 1, sizes]
    recording = recorded(model, *given)
    assert recording.verify(model, given) == {"proved": 1}


def test_texts_that_are_alike_settle_nothing_in_each_others_places():
    model, given = Draws(Attention(by_hand=True)), embedded(1).expand(B, -1, -1)
    recording = recorded(model, given)
    assert recording.verify(model, given) == {"assumed": 1}
    given = embedded()
    given[1], given[3] = given[0], given[2]  # told apart by the text after the next
    recording = recorded(model, given)
    assert recording.verify(model, given) == {"proved": 1}


def test_a_text_that_is_all_padding_is_settled():
    keep = torch.ones(B, N).bool()
    keep[1] = False
    model = Model(by_hand=True, places=False)
    recording = recorded(model, ids(), keep)
    assert "refuted" not in recording.verify(model, [ids(), keep])


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("shape", ["positions first", "one text"])
def test_torchs_other_layouts_are_verified(shape):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=False)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    given = {"src": torch.randn(9, 3, 16)}
    given["src_key_padding_mask"] = torch.arange(9) >= torch.tensor([[9], [6], [7]])
    if shape == "one text":
        given = {"src": torch.randn(9, 16)}
    with heedful.record(encoder) as recording:
        encoder(**given)
    assert recording.verify(encoder, given) == {"proved": 2}


def test_only_a_module_is_verified():
    with heedful.record(model := Heads(lambda query, key: (query @ key.mT).softmax(-1) @ key)) as r:
        model(torch.randn(2, N, WIDTH))
    with pytest.raises(ArgumentError, match="a model of type int; expected the module"):
        r.verify(5, torch.randn(2, N, WIDTH))


def test_an_axis_that_happens_to_be_as_long_as_the_batch_is_not_taken_apart():
    """Three texts, and points with three coordinates that are shared by all of them."""

    class Placed(Heads):
        def forward(self, x, points):
            return super().forward(x + points.square().sum(-1, keepdim=True))

    model = Placed(lambda query, key: (query @ key.mT).softmax(-1) @ key)
    given = torch.randn(3, N, WIDTH), torch.randn(N, 3)
    with heedful.record(model) as recording:
        model(*given)
    assert recording.verify(model, given) == {"proved": 1}


class OfTorch(nn.Module):
    """Torch's own layer, of which another kernel runs in training mode, that scales the queries."""

    def __init__(self, turned=False):
        super().__init__()
        # an even number of heads, without which torch has one kernel for both modes
        self.attend, self.turned = nn.MultiheadAttention(H * D, 2, batch_first=True), turned

    def forward(self, x):
        x = x.flip(0) if self.turned else x
        return self.attend(x, x, x)[0]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_what_was_recorded_in_training_mode_is_verified_in_evaluation_mode(training, turned):
    model, x = OfTorch(turned).train(training), torch.randn(B, N, H * D)
    with torch.no_grad():
        recording = recorded(model, x)
        assert recording.verify(model, x) == {"refuted" if turned else "proved": 1}
    assert model.training is training


class Banked(nn.Module):
    """Asks a bank of the model's own, whose last rows no query sees."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, H * D), nn.Linear(WIDTH, H * D)
        self.register_buffer("bank", torch.randn(N + 2, WIDTH))

    def forward(self, x):
        query, key = heads_of(self.q(x)), heads_of(self.k(self.bank))
        hidden = torch.arange(N + 2) >= N
        weights = (query @ key.mT).masked_fill(hidden, -torch.inf).softmax(-1)
        return weights @ key


def test_padding_that_is_in_no_input_is_not_settled():
    """A text without it would be the same text: that it agrees tells nothing."""
    recording = recorded(model := Banked(), x := torch.randn(B, N - 2, WIDTH))
    assert recording.verify(model, x) == {"assumed": 1}
    [call] = recording
    assert call.shape == (H, N - 2, N)
    assert call.why == f"{PADDED}; no input has as many places, so that none could be left out"


class AsksAMemory(nn.Module):
    """Memory (M, texts, WIDTH) has its places first, and x (texts, N, WIDTH) its texts."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, H * D), nn.Linear(WIDTH, H * D)

    def forward(self, memory, x):
        query, key = heads_of(self.q(x)), heads_of(self.k(memory.transpose(0, 1)))
        return (query @ key.mT).softmax(-1) @ key


def test_a_number_of_texts_that_was_guessed_refutes_nothing():
    """Alone, each place of the memory meets all queries: these are other calls."""
    memory, x = torch.randn(N, 1, WIDTH), torch.randn(1, N - 2, WIDTH)
    recording = recorded(model := AsksAMemory(), memory, x)
    recording.verify(model, [memory, x])
    [call] = recording
    assert call.proof != "refuted"
    query, key = heads_of(model.q(x)), heads_of(model.k(memory.transpose(0, 1)))
    expected = (query @ key.mT).softmax(-1)[0]
    torch.testing.assert_close(call.weights(), expected)


class Cropped(Attention):
    """Leaves out some places, the first and the last of which a list tells."""

    def forward(self, x, crop):
        return super().forward(x[:, crop[0] : crop[1]])


@pytest.mark.parametrize("crop", [[1, 5], [0, 2]])
def test_a_list_that_has_as_many_numbers_by_chance_is_left_whole(crop):
    recording = recorded(model := Cropped(by_hand=True), x := torch.randn(2, N, H * D), crop)
    assert recording.verify(model, [x, crop]) == {"proved": 1}
    same(recording, [recorded(model, text[None], crop) for text in x])


class SharedStore(UserDict):
    """A mapping whose copies have the same numbers in them."""

    def __copy__(self):
        made = SharedStore()
        made.data = self.data
        return made


def test_the_inputs_themselves_are_not_taken_apart():
    given = SharedStore(ids=ids())
    recording = recorded(model := Wrapped(lambda batch: batch["ids"]), given)
    assert recording.verify(model, [given]) == {"proved": 2}
    assert torch.equal(given["ids"], ids())


def test_texts_that_a_model_joins_are_not_refuted():
    class Joins(nn.Module):
        def __init__(self):
            super().__init__()
            self.asks, self.says = nn.Linear(WIDTH, H * D), nn.Linear(WIDTH, H * D)

        def forward(self, a, b):
            x = torch.cat([a, b])
            query, key = (
                one(x).unflatten(-1, (H, D)).transpose(1, 2) for one in (self.asks, self.says)
            )
            return (query @ key.mT).softmax(-1) @ key

    model, given = Joins().eval(), list(torch.randn(2, 3, 5, WIDTH))
    recording = looked_at(model, *given)
    assert recording.verify(model, given) == {"assumed": 1}
    assert "the first sequences of all texts stand before their second ones" in recording[0].why
    assert len([call.weights() for [call] in recording.sequences]) == 6


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_one_text_for_which_only_the_weights_are_known(number, is_turned):
    """A row of it is hidden twice; the other text alone is kept by its queries and keys."""
    row = torch.arange(6)[:, None] == 1
    half = row & (torch.arange(6) < 3)

    def attend(query, key):
        if is_turned:
            query, key = query.flip(0), key.flip(0)
        is_large = query.abs().amax(dim=(1, 2, 3), keepdim=True) > 8
        scores = query @ key.mT + (is_large & row) * -1e4
        return scores.masked_fill(is_large & half, -1e4).softmax(-1) @ key

    model = Heads(attend).eval()
    x = torch.randn(2, 6, WIDTH)
    x[number] *= 40
    with torch.no_grad(), heedful.record(model) as recording:
        model(x)
    recording.verify(model, x)
    proofs = [sequence[0].proof for sequence in recording.sequences]
    assert proofs == ["refuted" if is_turned else "unproved"] * 2


def test_joined_texts_of_which_one_alone_is_known_by_its_weights():
    def attend(query, key):
        is_large = torch.tensor(len(query) == 1 and bool(query.abs().max() > 8))
        query, key = (one.transpose(0, 1).flatten(1, 2)[None] for one in (query, key))
        length = query.shape[2]
        row = torch.arange(length)[:, None] == 1
        scores = query @ key.mT + (row & is_large) * -1e4
        half = row & (torch.arange(length) < 3) & is_large
        return scores.masked_fill(half, -1e4).softmax(-1) @ key

    model = Heads(attend).eval()
    x = torch.randn(2, 6, WIDTH)
    x[1] *= 40
    with torch.no_grad(), heedful.record(model) as recording:
        model(x)
    assert recording.verify(model, x) == {"assumed": 1}
    assert recording[0].why.endswith("has all texts, which attend to each other in it")


@pytest.mark.parametrize("is_joined", [False, True])
@pytest.mark.parametrize("width", [D, 1])
def test_texts_that_ask_one_memory_some_of_which_are_known_by_their_weights(width, is_joined):
    """Its map was right, and refuted: as many queries and weights stood in another shape."""

    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = nn.Linear(WIDTH, H * width), nn.Linear(WIDTH, H * width)
            self.memory = nn.Parameter(torch.randn(9, WIDTH))

        def forward(self, x):
            is_large = torch.tensor((len(x) > 1) == is_joined and bool(x.abs().max() > 20))
            x = x[torch.ones(x.shape[:2], dtype=torch.bool)]
            query, key = (
                one(of).unflatten(-1, (H, width)).transpose(0, 1)[None]
                for one, of in ((self.q, x), (self.k, self.memory))
            )
            row = (torch.arange(query.shape[2])[:, None] == 1) & is_large
            half = row & (torch.arange(9) < 4)
            scores = (query @ key.mT + row * -1e4).masked_fill(half, -1e4)
            weights = scores.softmax(-1)
            self.true = weights.detach()
            return weights @ key

    model, x = Asks().eval(), torch.randn(2, 6, WIDTH)
    x[1] *= 20
    with torch.no_grad(), heedful.record(model) as recording:
        model(x)
    true = model.true[0]
    recording.verify(model, x)
    assert recording[0].proof != "refuted", recording[0].why
    shown = torch.cat([sequence[0].weights() for sequence in recording.sequences], dim=1)
    torch.testing.assert_close(shown, true, atol=3e-6, rtol=0)


def test_joined_texts_that_ask_a_memory_as_long_as_the_shortest():
    """Alone the longer one asks more of it; only the weights of all are known."""

    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = nn.Linear(WIDTH, H * D), nn.Linear(WIDTH, H * D)
            self.memory = nn.Parameter(torch.randn(9, WIDTH))

        def forward(self, x, keep):
            memory = self.memory[: int(keep.sum(1).min())]
            query, key = (
                one.unflatten(-1, (H, D)).transpose(0, 1)[None]
                for one in (self.q(x[keep]), self.k(memory))
            )
            places = torch.arange(float(query.shape[2]))[:, None]
            scores = query @ key.mT * (1 + (places % 3 - torch.arange(len(memory))).abs())
            return scores.softmax(-1) @ key

    model, x, keep = Asks().eval(), torch.randn(2, 5, WIDTH), torch.ones(2, 5, dtype=torch.bool)
    keep[0, 3:] = False
    with torch.no_grad(), heedful.record(model) as recording:
        model(x, keep)
    recording.verify(model, [x, keep])
    assert recording[0].proof == "unproved"


def test_a_joined_sequence_of_fewer_tokens_than_its_texts_have_alone():
    """Only the weights of all are known, as a learned table is multiplied with them."""

    def attend(query, key):
        if len(query) > 1:
            query, key = (one[:, :, 1:].transpose(0, 1).flatten(1, 2)[None] for one in (query, key))
        places = torch.arange(float(query.shape[2]))
        scores = query @ key.mT * (1 + (places[:, None] - places).abs())
        return scores.softmax(-1) @ key

    model, x = Heads(attend).eval(), torch.randn(2, 6, WIDTH)
    with torch.no_grad(), heedful.record(model) as recording:
        model(x)
    recording.verify(model, x)
    assert recording[0].proof == "unproved"
    assert "the texts alone are 2 sequences, and not 1" in recording[0].why


def test_numbers_of_two_types_are_as_near_as_the_narrower_one_lets_them_be():
    wide, half = torch.zeros(1), torch.zeros(1, dtype=torch.float16)
    for query, key in ((wide, half), (half, wide)):
        assert text_agreement._near(SimpleNamespace(query=query, key=key)) == 5e-2


class Rounds(nn.Module):
    """Half-precision heads with a float32 factor each; a text alone is rounded otherwise."""

    def __init__(self, is_joined):
        super().__init__()
        self.is_joined, self.made = is_joined, nn.Linear(H * D, H * D).bfloat16()
        self.factor = torch.linspace(0.5, 1.5, H)[:, None, None]

    def forward(self, x):
        alone = 1.004 if self.is_joined else 1.02
        made = self.made(x) * (alone if len(x) == 1 else 1)
        if self.is_joined:  # each text sees itself
            texts = torch.arange(len(x)).repeat_interleave(x.shape[1])
            made = made.flatten(0, 1)[None]
        made = made.unflatten(-1, (H, D)).transpose(1, 2)
        scores = made @ made.cos().mT * self.factor
        if self.is_joined:
            scores = scores.masked_fill(texts != texts[:, None], -torch.inf)
        return scores.softmax(-1) @ made.float()


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_text_alone_may_be_rounded_as_the_narrower_type_of_a_call_is(is_joined):
    model, x = Rounds(is_joined), torch.randn(3, N, H * D).bfloat16() / 8
    recording = recorded(model, x)
    assert recording[0].causes.query.dtype != recording[0].causes.key.dtype
    assert recording.verify(model, x) == {"proved": 1}
    if not is_joined:
        [together], [alone] = recording.taken(), recorded(model, x[1:2]).taken()
        found = [text_agreement.agree(together, text, alone, 0) for text in range(3)]
        assert found == [False, True, False]
