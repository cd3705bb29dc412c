"""`recording.verify`: probing finds what each axis is of, settles nothing wrongly, leaves no trace."""

from contextlib import suppress

import pytest
import torch
import transformers
from looked import near
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.errors import ArgumentError, RunError
from heedful.recording import from_attentions

H, N, D, W = 3, 5, 4, 2
E = H * D
transformers.logging.set_verbosity_error()


class Attend(nn.Module):
    """Attention of x (B, N, E), whose heads (B, …, H, N, D) are put in some order first."""

    def __init__(self, order=lambda heads: heads, by_hand=True, tokens=lambda x: x):
        super().__init__()
        self.q, self.k = nn.Linear(E, E), nn.Linear(E, E)
        self.order, self.by_hand, self.tokens = order, by_hand, tokens

    def heads(self, x):
        x = self.tokens(x)
        return [side(x).unflatten(-1, (H, D)).transpose(-3, -2) for side in (self.q, self.k)]

    def forward(self, x):
        query, key = (self.order(heads) for heads in self.heads(x))
        if self.by_hand:
            return (query @ key.mT / 2).softmax(-1) @ key
        return scaled_dot_product_attention(query, key, key, scale=0.5)

    def maps(self, x):
        """(B, parts, H, N, N), by their definition in float64."""
        query, key = (heads.double() for heads in self.heads(x))
        weights = (query @ key.mT / 2).softmax(-1).float()
        return weights if weights.ndim == 5 else weights[:, None]


def recorded(model, *given, **options):
    with heedful.record(model, **options) as recording:
        model(*given)
    return recording


def shows(recording, maps, at=0):
    """The parts of each text have these maps, in call `at` of the text."""
    assert len(recording.sequences) == len(maps)
    for sequence, of_text in zip(recording.sequences, maps, strict=True):
        for part, weights in zip(sequence[at].parts, of_text, strict=True):
            near(part.weights(), weights)


ORDERS = {
    "texts, heads": lambda x: x,
    "texts · heads": lambda x: x.flatten(0, 1),
    "heads · texts": lambda x: x.transpose(0, 1).flatten(0, 1),
    "heads, texts": lambda x: x.transpose(0, 1),
}
WINDOWS = {
    "texts, windows, heads": lambda x: x,
    "texts · windows, heads": lambda x: x.flatten(0, 1),
    "windows · texts, heads": lambda x: x.transpose(0, 1).flatten(0, 1),
    "texts · windows · heads": lambda x: x.flatten(0, 2),
    "heads, texts · windows": lambda x: x.flatten(0, 1).transpose(0, 1),
    "texts · heads, windows": lambda x: x.transpose(1, 2).flatten(0, 1),
}


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("texts", [1, 2, H, 4])
@pytest.mark.parametrize("order", [*ORDERS, *WINDOWS])
def test_axes_in_any_order_are_found(order, texts, by_hand):
    has_windows = order in WINDOWS
    tokens = (lambda x: x.unflatten(1, (W, N))) if has_windows else (lambda x: x)
    model = Attend((ORDERS | WINDOWS)[order], by_hand, tokens)
    x = torch.randn(texts, W * N if has_windows else N, E)
    recording = recorded(model, x)
    assert recording.verify(model, x) == {"verified": 1}
    assert [(call.layout, call.why) for call in recording] == [("verified", "")]
    assert not recording.missed
    shows(recording, model.maps(x))


@pytest.mark.parametrize("texts", [1, 2, N])  # as many as positions: either may be the texts
@pytest.mark.parametrize("order", ["texts, heads", "texts · heads", "heads · texts"])
def test_positions_that_come_first(order, texts):
    class First(Attend):
        def forward(self, x):
            return super().forward(x.transpose(0, 1))

    model, x = First(ORDERS[order]), torch.randn(texts, N, E)
    recording = recorded(model, given := x.transpose(0, 1).contiguous())
    assert recording.verify(model, given) == {"verified": 1}
    shows(recording, model.maps(x))


class OneKeyHead(nn.Module):
    """Queries of all heads stand in one axis, tokens first or heads first, and share a key head."""

    def __init__(self, tokens_first):
        super().__init__()
        self.q, self.k, self.tokens_first = nn.Linear(E, E), nn.Linear(E, D), tokens_first

    def forward(self, x):
        query, key = self.q(x).unflatten(-1, (H, D)), self.k(x)
        query = query if self.tokens_first else query.transpose(1, 2)
        return (query.flatten(1, 2) @ key.mT).softmax(-1) @ key

    def maps(self, x):
        query = self.q(x).double().unflatten(-1, (H, D)).transpose(1, 2)
        return (query @ self.k(x).double().mT[:, None]).softmax(-1).float()[:, None]


@pytest.mark.parametrize("texts", [1, 2, H])
@pytest.mark.parametrize("tokens_first", [True, False])
def test_queries_of_all_heads_that_share_keys(tokens_first, texts):
    model, x = OneKeyHead(tokens_first), torch.randn(texts, N, E)
    recording = recorded(model, x)
    assert recording[0].layout == "guessed"
    assert recording.verify(model, x) == {"verified": 1}
    shows(recording, model.maps(x))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("texts", [1, 3])
def test_a_core_that_is_given_heads_is_probed_where_they_are_made(order, texts):
    class Core(nn.Module):
        def forward(self, query, key):
            return (query @ key.mT / 2).softmax(-1) @ key

    class Outer(Attend):
        def __init__(self, order):
            super().__init__(order)
            self.core = Core()

        def forward(self, x):
            return self.core(*map(self.order, self.heads(x)))

    model, x = Outer(ORDERS[order]), torch.randn(texts, N, E)
    recording = recorded(model, x)
    assert recording.verify(model, x) == {"verified": 1}
    assert recording[0].name == "core"
    shows(recording, model.maps(x))


@pytest.mark.parametrize("length", [1, N])
@pytest.mark.parametrize("order", ORDERS)
def test_a_cache_has_heads_that_are_no_places(order, length):
    class Cached(Attend):
        def heads(self, x):
            query, key = super().heads(x)
            return query, torch.cat([self.cache, key], dim=2)

        def forward(self, x, cache):
            self.cache = cache
            return super().forward(x)

    model, x, cache = Cached(ORDERS[order]), torch.randn(2, length, E), torch.randn(2, H, 7, D)
    recording = recorded(model, x, cache)
    assert recording.verify(model, [x, cache]) == {"verified": 1}
    model.cache = cache
    shows(recording, model.maps(x))


@pytest.mark.parametrize("way", ["in turn", "backwards", "twice"])
def test_a_loop_over_texts_has_a_call_for_each(way, tmp_path):
    class Loops(Attend):
        def forward(self, x):
            rows = {"in turn": range(B), "backwards": range(B)[::-1], "twice": [0, 1, 2] * 2}[way]
            return [super(Loops, self).forward(x[row : row + 1]) for row in rows]

    B = 3
    model, x = Loops(), torch.randn(B, N, E)
    recording = recorded(model, x)
    assert {call.layout for one in recording.sequences for call in one} == {"guessed"}
    count = 6 if way == "twice" else 3
    assert recording.verify(model, x) == {"verified": count}
    for again in (recording, heedful.load(recording.save(tmp_path / "r"))):
        assert [len(sequence) for sequence in again.sequences] == [count // B] * B
        shows(again, model.maps(x), at=-1)


class Pixels(nn.Module):
    """Attends to the pixels of images (B, 3, h, w)."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Conv2d(3, E, 1), nn.Conv2d(3, E, 1)

    def heads(self, images):
        return [side(images).flatten(2).unflatten(1, (H, D)).mT for side in (self.q, self.k)]

    def forward(self, images):
        query, key = self.heads(images)
        return (query @ key.mT).softmax(-1) @ key


class Listed(nn.Module):
    """Images in a list."""

    def __init__(self):
        super().__init__()
        self.attend = Pixels()

    def forward(self, images):
        return [self.attend(image[None]) for image in images]

    def maps(self, images):
        sides = ([side.double() for side in self.attend.heads(image[None])] for image in images)
        return [(query @ key.mT).softmax(-1).float() for query, key in sides]


@pytest.mark.parametrize("texts", [1, 2, 3])
def test_a_list_of_images_is_that_many_texts(texts):
    model, images = Listed(), [torch.randn(3, 2, 5 + size) for size in range(texts)]
    recording = recorded(model, images)
    assert len(recording.sequences) == texts
    assert recording.verify(model, [images]) == {"verified": texts}
    shows(recording, model.maps(images))


def test_a_second_stream_that_shares_its_first_keys():
    """ProphetNet, whose predicting streams see the main one and themselves."""
    config = transformers.ProphetNetConfig(
        vocab_size=30, hidden_size=E, num_encoder_layers=1, num_decoder_layers=1, ngram=2,
        num_encoder_attention_heads=H, num_decoder_attention_heads=H, encoder_ffn_dim=16,
        decoder_ffn_dim=16, max_position_embeddings=20, num_buckets=8, relative_max_distance=16,
        pad_token_id=0,
    )  # fmt: skip
    model = transformers.ProphetNetModel(config).eval()
    ids = torch.randint(1, 30, (2, 12), generator=torch.Generator().manual_seed(1))
    given = {"input_ids": ids[:, :7], "decoder_input_ids": ids[:, 7:]}
    with torch.no_grad(), heedful.record(model) as recording:
        output = model(**given, output_attentions=True)
    assert recording.verify(model, given) == {"verified": 4}
    scores = output.encoder_attentions[0], output.cross_attentions[0]  # it returns no weights
    read, cross = (one.softmax(-1)[:, None] for one in scores)
    main, ahead = output.decoder_attentions[0][:, None], output.decoder_ngram_attentions[0]
    for at, maps in enumerate((read, main, ahead, cross)):
        shows(recording, maps, at)


class Flipped(Attend):
    """Texts in another order than the inputs have them."""

    def forward(self, x):
        return super().forward(x.flip(0))


class Doubled(Attend):
    """Each text twice, the second time with other numbers."""

    def forward(self, x):
        return super().forward(torch.cat([x, x + 1]))


class Mixed(Attend):
    """Batch statistics make each text one of all."""

    def forward(self, x):
        return super().forward(x - x.mean(0))


class Rolled(Attend):
    """Each head has keys of other places."""

    def heads(self, x):
        query, key = super().heads(x)
        return query, torch.stack([key[:, head].roll(head, 1) for head in range(H)], 1)


class Streams(Attend):
    """Two streams of queries ask the same keys."""

    def forward(self, x):
        query, key = self.heads(x)
        query = torch.stack([query, self.heads(x + 1)[0]], 1)
        return (query @ key[:, None].mT).softmax(-1) @ key[:, None]


class Centred(Attend):
    """Each token, less the mean of all places, is one of all places."""

    def heads(self, x):
        return super().heads(x - x.mean(1, keepdim=True))


@pytest.mark.parametrize("kind", [Flipped, Doubled, Mixed, Rolled, Streams, Centred])
def test_what_is_not_settled_says_so_and_keeps_its_weights(kind):
    model, x = kind(), torch.randn(3, N, E)
    recording = recorded(model, x)
    before = [call.weights() for [call] in recording.sequences]
    assert recording.verify(model, x) == {"guessed": 1}
    assert "probing did not settle it" in recording[0].why
    assert all(map(torch.equal, [call.weights() for [call] in recording.sequences], before))


class Restless(Attend):
    """Everything that a pass may change: modes, buffers, and what is drawn."""

    def __init__(self):
        super().__init__()
        self.norm, self.fails = nn.BatchNorm1d(H), False
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("table", torch.eye(2).to_sparse())
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x):
        self.count += 1
        noise = torch.rand(E), torch.rand(E, generator=self.generator)
        if self.fails and self.count > 5:
            raise TimeoutError
        return self.norm(super().forward(x).flatten(2)), noise


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_put_back_as_it_was(fails):
    model, x, shares = Restless().eval(), torch.randn(3, N, E), []
    recording = recorded(model, x)
    model.train()
    model.q.eval()
    model(x)
    model.fails = fails
    state = {name: one.to_dense().clone() for name, one in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    drawn = torch.get_rng_state(), model.generator.get_state()
    with suppress(TimeoutError):
        recording.verify(model, x, progress=shares.append)
        assert not fails
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(state[name], one.to_dense()) for name, one in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert torch.equal(model.generator.get_state(), drawn[1])
    assert torch.is_grad_enabled()
    assert shares == sorted(shares)
    assert (recording[0].layout, shares[-1] == 1) == (
        ("usual", False) if fails else ("verified", True)
    )


class Draws(Attend):
    """Draws by a generator that nobody can put back."""

    def forward(self, x):
        return super().forward(
            x + torch.randn(E, generator=torch.Generator().manual_seed(self.seed()))
        )

    def seed(self):
        self.passes = getattr(self, "passes", 0) + 1
        return self.passes


def test_what_cannot_be_verified_is_one_line(tmp_path):
    model, x = Attend(), torch.randn(2, N, E)
    recording = recorded(model, x)
    loaded = heedful.load(recording.save(tmp_path / "r"))
    refused = [
        (recording, model, x + 1, ArgumentError, "does something else than was recorded"),
        (recording, model, {"x": x, "y": x}, ArgumentError, "the model ends in TypeError"),
        (recording, model, [3], ArgumentError, "inputs with no tensor in them"),
        (recording, 5, x, ArgumentError, "a model of type int; expected the module"),
        (recorded(draws := Draws(), x), draws, x, ArgumentError, "something else"),
        (loaded, model, x, RunError, "from a file or of given maps"),
        (from_attentions([torch.eye(N).expand(1, 1, N, N)]), model, x, RunError, "from a file"),
    ]
    for one, other, given, error, words in refused:
        with pytest.raises(error, match=words) as raised:
            one.verify(other, given)
        assert "expected" in str(raised.value)
        assert "\n" not in str(raised.value)
    assert (recording[0].layout, recording[0].proof) == ("usual", "proved")
