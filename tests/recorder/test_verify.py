"""`recording.verify`: probing finds the axes, never wrong ones, and leaves no trace."""

from contextlib import suppress
from functools import partial

import pytest
import torch
import transformers
from shown_maps import near, recorded
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.errors import ArgumentError, RunError
from heedful.recording import from_attentions

H, N, D, W, E = 3, 5, 4, 2, 12
transformers.logging.set_verbosity_error()


class Core(nn.Module):
    """A module with inputs that already have an axis of heads."""

    def forward(self, query, key):
        return by_hand(query, key)


def by_hand(query, key):
    return (query @ key.mT / 2).softmax(-1) @ key


def by_kernel(query, key):
    return scaled_dot_product_attention(query, key, key, scale=0.5)


class Attend(nn.Module):
    """Attention of x (B, N, E) whose heads (B, …, H, N, D) are permuted first."""

    def __init__(self, order=lambda heads: heads, way=by_hand, tokens=lambda x: x, shape=(0, N)):
        super().__init__()
        self.q, self.k, self.attend = nn.Linear(E, E), nn.Linear(E, E), way
        self.order, self.tokens, self.shape = order, tokens, shape

    def heads(self, x):
        x = self.tokens(x)
        return [side(x).unflatten(-1, (H, D)).transpose(-3, -2) for side in (self.q, self.k)]

    def forward(self, x):
        return self.attend(*map(self.order, self.heads(x)))

    def inputs(self, texts):
        return [torch.randn(*(size or texts for size in self.shape), E)]

    def maps(self, x):
        """The maps (B, parts, H, N, N) by definition, in float64."""
        query, key = (heads.double() for heads in self.heads(x))
        weights = (query @ key.mT / 2).softmax(-1).float()
        return weights if weights.ndim == 5 else weights[:, None]


def shows(recording, maps, at=0):
    """Check the maps of the parts of each text, in call `at` of the text."""
    assert len(recording.sequences) == len(maps)
    for sequence, of_text in zip(recording.sequences, maps, strict=True):
        for part, weights in zip(sequence[at].parts, of_text, strict=True):
            near(part.weights(), weights)


def swapped(x):
    return x.transpose(1, 2) if x.ndim == 4 else x.transpose(0, 1)


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


class OneKeyHead(Attend):
    """One axis holds the queries of all heads, tokens or heads first; they share a key head."""

    def __init__(self, order=lambda heads: heads):
        super().__init__(order)
        self.k = nn.Linear(E, D)

    def heads(self, x):
        return swapped(self.q(x).unflatten(-1, (H, D))), self.k(x)[:, None]

    def forward(self, x):
        query, key = self.heads(x)
        return self.attend(self.order(query).flatten(1, 2), key[:, 0])


class Cached(Attend):
    """Continues from a cache, whose axis of heads is not an axis of positions."""

    def inputs(self, texts):
        return [*super().inputs(texts), torch.randn(texts, H, 7, D)]

    def heads(self, x):
        query, key = super().heads(x)
        return query, torch.cat([self.cache, key], dim=2)

    def forward(self, x, cache):
        self.cache = cache
        return super().forward(x)

    def maps(self, x, cache):
        self.cache = cache
        return super().maps(x)


class Images(Attend):
    """Attends to the pixels of images (B, 3, h, w)."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Conv2d(3, E, 1), nn.Conv2d(3, E, 1)

    def heads(self, images):
        return [side(images).flatten(2).unflatten(1, (H, D)).mT for side in (self.q, self.k)]


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = Images()

    def inputs(self, texts):
        return [[torch.randn(3, 2, 5 + size) for size in range(texts)]]

    def forward(self, images):
        return [self.attend(image[None]) for image in images]

    def maps(self, images):
        return [self.attend.maps(image[None])[0] for image in images]


WAYS = {"by hand": by_hand, "a kernel": by_kernel, "a core": Core()}
WINDOWED = {"tokens": lambda x: x.unflatten(1, (W, N)), "shape": (0, W * N)}
CASES = {
    **{f"{of}, {by}": partial(Attend, order, way)
       for of, order in ORDERS.items() for by, way in WAYS.items()},
    **{f"{of}, {by}": partial(Attend, order, way, **WINDOWED)
       for of, order in WINDOWS.items() for by, way in WAYS.items()},
    **{f"{of}, positions first": partial(Attend, ORDERS[of], tokens=swapped, shape=(N, 0))
       for of in ("texts, heads", "texts · heads", "heads · texts")},
    **{f"{of}, a cache and {length}": partial(Cached, order, shape=(0, length))
       for of, order in ORDERS.items() for length in (1, N)},
    "one key head, heads · tokens": OneKeyHead,
    "one key head, tokens · heads": partial(OneKeyHead, swapped),
    "a list of images": Listed,
}  # fmt: skip


@pytest.mark.parametrize("texts", [1, H])  # as many as heads
@pytest.mark.parametrize("case", CASES)
def test_verify_finds_the_role_of_each_axis(case, texts):
    model = CASES[case]()
    recording = recorded(model, *(inputs := model.inputs(texts)))
    if texts == 1 and case.endswith("a cache and 1"):  # one token of one text cannot be probed
        return
    assert set(recording.verify(model, inputs)) == {"verified"}
    assert ([call.why for call in recording], recording.missed) == ([""], {})
    shows(recording, model.maps(*inputs))


def test_a_second_stream_that_shares_its_first_keys():
    """ProphetNet: its predicting streams attend to the main stream and to themselves."""
    config = transformers.ProphetNetConfig(
        vocab_size=30, hidden_size=E, num_encoder_layers=1, num_decoder_layers=1, ngram=2,
        num_encoder_attention_heads=H, num_decoder_attention_heads=H, encoder_ffn_dim=16,
        decoder_ffn_dim=16, max_position_embeddings=20, num_buckets=8, relative_max_distance=16,
        pad_token_id=0,
    )  # fmt: skip
    model = transformers.ProphetNetModel(config).eval()
    ids = torch.randint(1, 30, (2, 12), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids[:, :7], "decoder_input_ids": ids[:, 7:]}
    with torch.no_grad(), heedful.record(model) as recording:
        output = model(**inputs, output_attentions=True)
    assert recording.verify(model, inputs) == {"verified": 4}
    # these outputs are scores, not weights
    scores = output.encoder_attentions[0], output.cross_attentions[0]
    read, cross = (score.softmax(-1)[:, None] for score in scores)
    main, ahead = output.decoder_attentions[0][:, None], output.decoder_ngram_attentions[0]
    for at, maps in enumerate((read, main, ahead, cross)):
        shows(recording, maps, at)


def rolled(heads):
    return torch.stack([heads[:, head].roll(head, 1) for head in range(H)], 1)


UNSETTLED = {
    "texts in another order": lambda: Attend(tokens=lambda x: x.flip(0)),
    "each text twice, with other numbers": lambda: Attend(tokens=lambda x: torch.cat([x, x + 1])),
    "batch statistics": lambda: Attend(tokens=lambda x: x - x.mean(0)),
    "means over places": lambda: Attend(tokens=lambda x: x - x.mean(1, keepdim=True)),
    "heads with keys of other places": lambda: Attend(way=lambda q, k: by_hand(q, rolled(k))),
    "heads of other places": lambda: Attend(rolled),
}


@pytest.mark.parametrize("way", UNSETTLED)
def test_an_unsettled_call_is_guessed_and_keeps_its_weights(way):
    model, x = UNSETTLED[way](), torch.randn(3, N, E)
    recording = recorded(model, x)
    before = [call.weights() for [call] in recording.sequences]
    assert recording.verify(model, x) == {"guessed": 1}
    assert "probing did not find its axes" in recording[0].why
    assert all(map(torch.equal, [call.weights() for [call] in recording.sequences], before))


class Restless(Attend):
    """Changes modes, buffers and random states in each pass."""

    def __init__(self):
        super().__init__()
        self.norm, self.fails = nn.BatchNorm1d(H), False
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        noise = torch.rand(E)
        if self.fails and self.count > 5:
            raise TimeoutError
        return self.norm(super().forward(x).flatten(2)), noise


@pytest.mark.parametrize("fails", [False, True])
def test_modes_buffers_and_random_states_are_restored(fails):
    model, x, shares = Restless().eval(), torch.randn(3, N, E), []
    recording = recorded(model, x)
    model.train()
    model.q.eval(), model(x)
    model.fails = fails
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    drawn = torch.get_rng_state()
    with suppress(TimeoutError):
        recording.verify(model, x, progress=shares.append)
        assert not fails
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert torch.is_grad_enabled()
    assert shares == sorted(shares)
    assert (shares[-1] == 1, recording[0].layout == "verified") == (not fails, not fails)


def test_a_failed_verification_raises_one_line(tmp_path):
    model, x, chance = Attend(), torch.randn(2, N, E), torch.Generator()
    draws = Attend(tokens=lambda x: x + torch.randn(E, generator=chance))
    recording = recorded(model, x)
    loaded = heedful.load(recording.save(tmp_path / "r"))
    refused = [
        (recording, model, x + 1, ArgumentError, "has other queries and keys than were recorded"),
        (recording, model, {"x": x, "y": x}, ArgumentError, "the model ends in TypeError"),
        (recording, model, [3], ArgumentError, "inputs with no tensor in them"),
        (recording, 5, x, ArgumentError, "a model of type int; expected the module"),
        (recorded(draws, x), draws, x, ArgumentError, "differ between two passes"),
        (loaded, model, x, RunError, "from a file or from maps"),
        (from_attentions([torch.eye(N).expand(1, 1, N, N)]), model, x, RunError, "from a file"),
    ]
    for candidate, other, inputs, error, words in refused:
        with pytest.raises(error, match=words) as raised:
            candidate.verify(other, inputs)
        assert "expected" in str(raised.value)
        assert "\n" not in str(raised.value)
    assert (recording[0].layout, recording[0].proof) == ("usual", "proved")


def test_a_backward_pass_is_possible_after_verify():
    class Normed(Attend):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(N)

        def forward(self, x):
            return super().forward(self.norm(x))

    model, x = Normed().eval(), torch.randn(3, N, E)
    with heedful.record(model) as recording:
        loss = model(x).sum()
    assert recording.verify(model, x) == {"verified": 1}
    loss.backward()
    assert model.q.weight.grad.abs().sum() > 0
