"""Token ids of keys in models of heedful and transformers: of encoder and decoder, unpadded."""

import pytest
import torch
import transformers
from shown_maps import recorded

import heedful
from heedful.models import Seq2Seq, Seq2SeqConfig

B, N = 2, 7
IDS = torch.randint(3, 20, (B, N), generator=torch.Generator().manual_seed(2))
KEEP = {
    "no": torch.ones(B, N, dtype=torch.bool),
    "right": torch.tensor([[True] * N, [True] * 4 + [False] * 3]),
    "left": torch.tensor([[False] * 2 + [True] * 5, [True] * N]),
}


@pytest.fixture(scope="module")
def pairs():
    """An encoder–decoder of transformers and one of heedful; texts of equal lengths."""
    config = transformers.T5Config(
        d_model=16, d_kv=4, num_heads=2, num_layers=1, d_ff=24, vocab_size=20, pad_token_id=0,
        decoder_start_token_id=1,
    )  # fmt: skip
    t5 = transformers.T5Model._from_config(config, attn_implementation="sdpa").eval()
    return t5, Seq2Seq(Seq2SeqConfig(vocabulary=20, width=16, layers=1, heads=2)).eval()


NAMES = [
    ("input_ids", "decoder_input_ids", "attention_mask", "decoder_attention_mask"),
    ("source", "target", "source_keep", "target_keep"),
]
WRITTEN = (IDS + 5) % 17 + 3


@pytest.mark.parametrize("side", KEEP)
@pytest.mark.parametrize("which", [0, 1])
def test_padding_is_cut_from_the_ids_as_from_the_map(pairs, which, side):
    read, write = KEEP[side], KEEP[side].flip(0)
    inputs = dict(zip(NAMES[which], (IDS, WRITTEN, read, write), strict=True))
    recording = recorded(pairs[which], named=inputs)
    for b, (reads, writes, crosses) in enumerate(recording.sequences):
        assert reads.ids.tolist() == IDS[b, read[b]].tolist()
        assert writes.ids.tolist() == WRITTEN[b, write[b]].tolist()
        assert crosses.ids.tolist() == reads.ids.tolist()
        assert [call.kind for call in (reads, writes, crosses)] == ["self", "causal", "cross"]
        assert crosses.query_ids.tolist() == writes.ids.tolist()
        n, m = len(writes.ids), len(reads.ids)
        assert [x.shape for x in (reads, writes, crosses)] == [(2, m, m), (2, n, n), (2, n, m)]
        assert {x.proof for x in (reads, writes, crosses)} == {"proved"}


def test_vectors_in_place_of_ids_have_no_ids(pairs):
    t5, _ = pairs
    vectors = torch.randn(B, N, 16)
    recording = recorded(t5, named={"input_ids": IDS, "decoder_inputs_embeds": vectors})
    assert torch.equal(recording[0].ids, IDS[0])
    assert recording[1].ids is None
    assert (recording[2].ids.tolist(), recording[2].query_ids) == (IDS[0].tolist(), None)
    recording = recorded(t5, named={"inputs_embeds": vectors, "decoder_input_ids": IDS})
    assert recording[0].ids is None
    assert torch.equal(recording[1].ids, IDS[0])
    assert (recording[2].ids, recording[2].query_ids.tolist()) == (None, IDS[0].tolist())


@pytest.mark.parametrize("name", ["token_type_ids", "position_ids", "labels", "attention_mask"])
def test_integers_with_other_names_are_not_ids(name):
    config = transformers.BertConfig(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=3, intermediate_size=16,
        vocab_size=20, max_position_embeddings=9,
    )  # fmt: skip
    model, marks = transformers.BertForTokenClassification(config).eval(), torch.ones_like(IDS)
    recording = recorded(model, named={"inputs_embeds": torch.randn(B, N, 12), name: marks})
    assert (recording[0].ids, recording[0].shape) == (None, (3, N, N))
    recording = recorded(model, named={name: marks, "input_ids": IDS})
    assert [call.ids.tolist() for [call] in recording.sequences] == IDS.tolist()


SENSES = ["vision_tower", "visual", "image_encoder", "audio_tower", "speech", "preVision"]


@pytest.fixture(scope="module")
def clip():
    """A model of transformers with as many image patches as tokens."""
    part = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    part["num_attention_heads"] = 2
    text = {"vocab_size": 20, "max_position_embeddings": 9, "eos_token_id": 2, "pad_token_id": 0}
    sight = {"image_size": 4, "patch_size": 2}
    config = transformers.CLIPConfig(
        text_config=part | text, vision_config=part | sight, projection_dim=8
    )
    return transformers.CLIPModel._from_config(config, attn_implementation="sdpa").eval()


@pytest.mark.parametrize("sense", SENSES)
def test_a_part_for_images_or_sound_has_no_ids(sense, clip, tmp_path, monkeypatch):
    monkeypatch.setattr(clip, "_modules", {sense: clip.vision_model, **clip._modules})
    ids = IDS[:, :5]
    recording = recorded(clip, named={"input_ids": ids, "pixel_values": torch.randn(B, 3, 4, 4)})
    words = [[f"{token}" for token in text.tolist()] for text in ids]
    recording.tokens = words
    for each in (recording, heedful.load(recording.save(tmp_path / "r"))):
        for b, calls in enumerate(each.sequences):
            saw, read = sorted(calls, key=lambda call: call.name.startswith("text_model"))
            assert saw.name == f"{sense}.encoder.layers.0.self_attn"
            assert saw.shape == read.shape == (2, 5, 5)
            assert (read.ids.tolist(), read.tokens) == (ids[b].tolist(), words[b])
            assert (saw.ids, saw.tokens) == (None, None)


@pytest.mark.parametrize("which", [0, 1])
def test_the_text_is_that_of_the_encoder_even_if_the_decoder_has_the_same_length(pairs, which):
    texts = dict(zip(NAMES[which][:2], (IDS, WRITTEN), strict=True))
    recording = recorded(pairs[which], named=texts)
    recording.tokens = words = [[f"{token}" for token in text.tolist()] for text in IDS]
    for text, sequence in zip(words, recording.sequences, strict=True):
        assert [call.tokens for call in sequence] == [text, None, None]


class Within(torch.nn.Module):
    """Attention by hand inside each text; positions come first only in the embedding."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(20, 8)
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, ids):
        x = self.embed(ids.T).transpose(0, 1)
        query, key, value = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in self.qkv)
        return (query @ key.mT).softmax(-1) @ value


class PositionsFirst(Within):
    """A module with positions first, its default, whose inputs have positions first."""

    def __init__(self):
        super().__init__()
        self.attend = torch.nn.MultiheadAttention(8, 2)

    def forward(self, ids):
        x = self.embed(ids).transpose(0, 1)
        return self.attend(x, x, x)


@pytest.mark.parametrize("build", [Within, PositionsFirst])
def test_ids_label_a_sequence_in_a_module_with_positions_first(build):
    model, ids = build(), torch.randint(20, (N, N))
    recording = recorded(model, ids, tokenizer=lambda ids: [f"t{token}" for token in ids])
    assert recording.missed == {}
    recording.verify(model, ids)
    for (call,), text in zip(recording.sequences, ids, strict=True):
        assert torch.equal(call.ids, text)
        assert call.kind == "self"
        assert call.tokens == [f"t{token}" for token in text.tolist()]
