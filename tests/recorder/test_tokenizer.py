"""`record(model, tokenizer=…)`: each query and key has the label of its token, or none."""

import pytest
import torch
import transformers
from shown_maps import recorded
from torch import nn

import heedful
from heedful.errors import ArgumentError
from heedful.generate import Sampling, generate
from heedful.models import GPT, Bert, BertConfig, GPTConfig, Seq2Seq, Seq2SeqConfig
from heedful.recorder.doors.tape import NO_MAP
from heedful.text import CharacterTokenizer
from heedful.token_names import token_labeller

LETTERS = CharacterTokenizer(" abcdefg")
IDS = torch.tensor([[1, 2, 3, 2, 7, 5], [4, 4, 1, 0, 0, 0]])
KEEP = torch.tensor([[True] * 6, [True] * 3 + [False] * 3])


def gpt(layers=1):
    sizes = {"context_length": 20, "width": 12, "layers": layers, "heads": 3}
    return GPT(GPTConfig(vocabulary=8, **sizes)).eval()


def words_of(ids):
    return [f"<{number}>" for number in ids]


def test_each_sequence_has_its_own_labels_without_padding(tmp_path):
    model = Bert(BertConfig(vocabulary=8, context_length=9, width=12, layers=2, heads=3)).eval()
    for keep, ids in ((KEEP, IDS), (KEEP.flip(1), IDS.flip(1))):
        recording = recorded(model, ids, named={"keep": keep}, tokenizer=LETTERS)
        expected = [LETTERS.pieces(row[real].tolist()) for row, real in zip(ids, keep, strict=True)]
        for each in (recording, heedful.load(recording.save(tmp_path / "r"))):
            assert each.tokens == expected
            assert each.target_tokens is None
            for text, sequence in zip(expected, each.sequences, strict=True):
                for call in sequence:
                    assert call.tokens == call.key_tokens == call.query_tokens == text


def word_level(tokenizers):
    words = {"[UNK]": 0, "the": 1, "cat": 2, "sat": 3, "on": 4, "a": 5, "mat": 6, "Ġx": 7}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=library, unk_token="[UNK]")


class Processor:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer


def test_tokenizers_of_every_kind():
    word_tokenizer = word_level(pytest.importorskip("tokenizers"))
    for tokenizer in (word_tokenizer, Processor(word_tokenizer)):
        naming = token_labeller(tokenizer)
        assert naming([1, 2, 0]) == ["the", "cat", "[UNK]"]
        assert naming([3, 90]) == ["sat", "id 90"]  # an id beyond the vocabulary of the tokenizer
        assert naming.unknown == 0
    assert token_labeller(LETTERS)([1, 0]) == ["a", "·"]
    assert token_labeller(words_of)([4, 2]) == ["<4>", "<2>"]
    for wrong in (3, "gpt2", [], GPT):
        with pytest.raises(ArgumentError, match=r"a tokenizer of type .*; expected a tokenizer of"):
            heedful.record(nn.Linear(2, 2), tokenizer=wrong).__enter__()


@pytest.mark.parametrize(
    "gives", [lambda ids: "abc", lambda ids: ["a"], lambda ids: [1 for _ in ids]]
)
def test_a_function_that_does_not_label_each_id_raises_one_line(gives):
    recording = recorded(gpt(), IDS, tokenizer=gives)
    with pytest.raises(ArgumentError, match=r"a tokenizer that returned .* for \d ids; expected"):
        _ = recording[0].tokens


@pytest.mark.parametrize("cached", [True, False])
def test_labels_of_a_generation_and_of_its_passes(cached):
    model = gpt(layers=2)
    prompt = IDS[0].tolist()
    with heedful.record(model, tokenizer=words_of) as recording:
        greedy = Sampling(temperature=0)
        result = list(generate(model, prompt, tokens=5, sampling=greedy, cache=cached))
    text = words_of([*prompt, *map(int, result[:-1])])
    for call in recording:
        _, n, m = call.shape
        assert call.key_tokens == text[:m]
        assert call.query_tokens == text[m - n : m]
    if cached:
        assert recording.tokens == [text]
        assert [call.tokens for call in recording.stitched()] == [text, text]


def test_one_text_has_no_target():
    recording = recorded(gpt(), IDS[:1])
    with pytest.raises(ArgumentError, match="target_tokens for a model with one text"):
        recording.target_tokens = [words_of(range(6))]
    assert recording.target_tokens is None


def test_two_texts_in_successive_passes_have_their_own_labels():
    model = gpt()
    with heedful.record(model, tokenizer=words_of) as recording:
        model(IDS[:1])
        model(IDS[1:, :3])
    assert [call.tokens for call in recording] == [words_of(IDS[0].tolist()), words_of([4, 4, 1])]


def make_gpt2(**settings):
    config = transformers.GPT2Config(
        vocab_size=12, n_positions=32, n_embd=12, n_layer=2, n_head=3, bos_token_id=1,
        eos_token_id=2, pad_token_id=0, **settings,
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.6)
    return model


def test_beams_that_are_reordered_have_their_own_labels_or_none():
    model = make_gpt2(attn_implementation="eager")
    text_maps = {}
    with heedful.record(model, tokenizer=words_of) as recording:
        model.generate(
            torch.tensor([[5, 6, 7]]), num_beams=3, max_new_tokens=6, do_sample=False,
            num_return_sequences=3,
        )  # fmt: skip
    for sequence in recording.sequences:
        assert sequence[0].key_tokens == words_of([5, 6, 7])
        for call in sequence:
            if call.key_tokens is None:  # the beam has another text now
                continue
            ids = tuple(int(name[1:-1]) for name in call.key_tokens)
            if ids not in text_maps:
                with torch.no_grad():
                    text_maps[ids] = model(torch.tensor([ids]), output_attentions=True).attentions
            own = text_maps[ids][call.layer][0, :, -call.shape[1] :]
            torch.testing.assert_close(call.weights(), own, atol=1e-5, rtol=0)
            assert call.query_tokens == call.key_tokens[-call.shape[1] :]
    assert max(map(len, text_maps)) > 3  # until the first reordering


def test_both_texts_of_an_encoder_decoder_are_saved(tmp_path):
    config = Seq2SeqConfig(vocabulary=10, context_length=9, width=12, layers=1, heads=3)
    model = Seq2Seq(config).eval()
    target = IDS.roll(1, 1)[:, :5]
    recording = recorded(model, IDS, target, named={"source_keep": KEEP}, tokenizer=words_of)
    read = [words_of(row[real].tolist()) for row, real in zip(IDS, KEEP, strict=True)]
    written = [words_of(row.tolist()) for row in target]
    recording.tokens, recording.target_tokens = read, written  # of the right lengths
    for each in (recording, heedful.load(recording.save(tmp_path / "r"))):
        assert (each.tokens, each.target_tokens) == (read, written)
        for b, (reads, writes, crosses) in enumerate(each.sequences):
            assert reads.tokens == read[b]
            assert writes.tokens == written[b]
            assert crosses.tokens is None
            assert (crosses.query_tokens, crosses.key_tokens) == (written[b], read[b])
    for wrong in ([text[1:] for text in written], read):
        with pytest.raises(ArgumentError, match="tokens of sequence 0; expected 5, as many"):
            recording.target_tokens = wrong


class Own(nn.Module):
    """A custom model that reads tokens, and then a few pooled tokens."""

    def __init__(self):
        super().__init__()
        self.embed, self.attend = (
            nn.Embedding(8, 12),
            nn.MultiheadAttention(12, 3, batch_first=True),
        )
        self.pooled = nn.MultiheadAttention(12, 3, batch_first=True)

    def forward(self, idx):
        x = self.embed(idx)
        x = self.attend(x, x, x)[0]
        x = x.unflatten(1, (-1, 2)).mean(2)
        return self.pooled(x, x, x)[0]


def test_a_custom_model_with_pooled_tokens():
    recording = recorded(Own(), IDS, tokenizer=LETTERS)
    for row, (first, pooled) in zip(IDS, recording.sequences, strict=True):
        assert first.tokens == LETTERS.pieces(row.tolist())
        assert (pooled.shape[1:], pooled.tokens, pooled.query_tokens) == ((3, 3), None, None)


def test_a_missing_sequence_raises_one_line():
    recording = recorded(gpt(), IDS)
    assert repr(recording) == "<Recording of 1 call, 2 sequences>"
    assert "6 × 6, text 1 of 2, pass 0" in repr(recording.sequences[1][0])
    assert recording.sequences[-1][0].ids.tolist() == IDS[1].tolist()
    for ask in (lambda: recording.sequences[9], lambda: recording.stitched(9)):
        with pytest.raises(ArgumentError, match="sequence 9; expected 0 to 1: 2 in the batch"):
            ask()


class Changed(nn.Module):
    def forward(self, x):
        return ((x @ x.mT).softmax(-1) * 1.5) @ x


def test_a_warning_about_missed_calls_points_to_the_users_line():
    with (
        pytest.warns(UserWarning, match="attention of Changed was not recorded: weights") as raised,
        heedful.record(model := Changed()) as recording,
    ):
        model(torch.randn(2, 5, 4))
    assert recording.missed == {"Changed": NO_MAP}
    assert {warning.filename for warning in raised} == {__file__}
