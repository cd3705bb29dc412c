"""The walk that the page of a small GPT computes on any text, with weights in half precision."""

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
import tiktoken
import torch
from explained_models import explained, ids_of, in_half_precision, loaded, walk
from node import returned

from heedful.loaded import LoadedBert
from heedful.models import Bert, BertConfig
from heedful.models.sampling import Sampling
from heedful.text import BPETokenizer, CharacterTokenizer, TiktokenTokenizer, python_reference
from heedful.text.tiktoken_encoding import single_bytes
from heedful.views import walk as walk_views
from heedful.views.walk import model_data as data_module
from heedful.views.walk.model_data import model_data
from heedful.views.walk.one_file import model_walks

PAGE = Path(walk_views.__file__).parent / "page"
MODULES = {"model_walk": PAGE / "model_walk.js", "tokenizer": PAGE / "tokenizer.js",
           "sampling": PAGE / "sampling.js",
           "wire": PAGE.parents[1] / "explorer" / "page" / "wire.js"}  # fmt: skip
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|"
    r"\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
BOOK = python_reference()
TEXT = "Don't panic: the 3.14 naïve cafés\n  cost 10,000 crowns –  我爱 👍🏽!"
MODELS = {
    "quick": {},
    "characters": {"convolution": 3},
    "zero to hero": {"positions": "sinusoidal", "activation": "relu", "norm": "layer",
                     "qk_norm": False, "bias": True, "logit_bias": True, "tied": False},
    "post-norm": {"norm_order": "post", "norm": "layer", "positions": "learned",
                  "activation": "gelu"},
    "gated": {"activation": "swiglu", "kv_heads": 2, "window": 5, "attention_bias": True},
    "gelu": {"activation": "gelu_tanh", "head_width": 8, "feed_bias": True},
    "geglu": {"activation": "geglu", "context_length": 31},
    "reglu": {"activation": "reglu", "kv_heads": 1},
}  # fmt: skip
ALL = """((walk) => ({
  tokens: walk.tokens, cut: walk.cut, answer: walk.steps.at(-1).answer.likeliest,
  stages: walk.stages.map((stage) => {
    const heads = stage.shape.length > 2 ? stage.shape[0] : 1;
    const { name, shape, chain, formula, sentence, columns } = stage;
    const of = (h, f) => f(Math.floor((h * walk.heads) / heads));
    return { name, shape, chain, formula, sentence, columns,
      numbers: Array.from({ length: heads }, (_, h) => of(h, (head) =>
        stage.rows.map((r) => columns.map((c) => stage.at(head, r, c))))),
      bias: columns.map((c) => stage.bias(walk.heads - 1, c)),
      formulas: Array.from({ length: heads }, (_, h) => of(h, (head) =>
        [0, stage.rows.at(-1)].map((r) => [columns[0], columns.at(-1)].map((c) =>
          stage.how(head, r, c))))) };
  }) }))(model_walk.modelWalk(wire.unpacked(bytes), "initial")(inputs))"""


@pytest.fixture(scope="module")
def bpe():
    return BPETokenizer.train([BOOK], 400)


@pytest.mark.parametrize("kind", MODELS)
def test_every_number_of_a_typed_text_equals_the_librarys(kind, bpe, tmp_path):
    layer = {"characters": 0, "gelu": 2}.get(kind, 1)
    opened = loaded(bpe, **MODELS[kind])
    data = model_data(opened, explained(opened, "Another text", layer))
    page = returned(tmp_path, MODULES, ALL, TEXT, data)
    exact = in_half_precision(opened)
    expected = explained(exact, TEXT, layer)
    assert page["tokens"] == list(expected.tokens)
    for entry, stage in zip(page["stages"], expected.stages, strict=False):
        for name in ("name", "formula", "sentence"):
            assert entry[name] == getattr(stage, name)
        assert entry["shape"] == list(stage.shape)
        assert entry["chain"] == [list(shape) for shape in stage.chain]
        rows, columns = range(stage.shape[-2]), entry["columns"]
        numbers = stage.part(rows, columns).double().numpy().reshape(-1, len(rows), len(columns))
        np.testing.assert_allclose(as_floats(entry["numbers"]), numbers, rtol=1e-9, atol=2e-7)
        if stage.bias is not None:
            bias = stage.bias.reshape(-1, stage.shape[-1])[-1]  # of the last head
            np.testing.assert_allclose(entry["bias"], bias[columns])
        check_formulas(entry, stage)
    logits = exact.model(ids_of(exact, TEXT)).logits[0, -1]
    top = logits.softmax(-1).topk(10)
    assert [likely["id"] for likely in page["answer"]] == top.indices.tolist()
    probabilities = [likely["probability"] for likely in page["answer"]]
    np.testing.assert_allclose(probabilities, top.values.detach(), rtol=1e-9)


def as_floats(numbers):
    numbers = np.array(numbers, dtype=object)
    return np.where(numbers == "-Infinity", -np.inf, numbers).astype(float)


def check_formulas(entry, stage):
    """Compare the formulas of the numbers in the corners with the library's."""
    if stage.number_formula is None:
        return
    ends = [0, stage.shape[-2] - 1], [entry["columns"][0], entry["columns"][-1]]
    for head, formulas in enumerate(entry["formulas"]):
        for row, line in zip(ends[0], formulas, strict=True):
            for column, formula in zip(ends[1], line, strict=True):
                expected = stage.number_formula(head, row, column)
                assert formula["text"] == expected.text
                assert formula["numbers"] == pytest.approx(expected.numbers, rel=1e-6, abs=1e-7)
                whole = [n for n, x in enumerate(expected.numbers) if isinstance(x, int)]
                assert formula["whole"] == whole


def texts(count):
    """Texts of words, numbers, spaces of all kinds, and characters of many scripts."""
    draw = random.Random(3)
    words = ["the", " the", "'ll", "'S", "'ſ", "12345", " 7", "\n", "\r\n", "  ", "\x85", "\ufeff",
             "\u3000", "\x1c", "!?", "</s>", "<|endoftext|>", "é", "我", "हिन्दी", "👩‍🚀", "²",
             "\u2028", "ABC"]  # fmt: skip
    for _ in range(count):
        yield "".join(draw.choice([*words, chr(draw.randrange(32, 0x3000))]) for _ in range(12))


def cl100k_like():
    """An encoding with the pattern of cl100k_base, of which the model lacks most tokens."""
    trained = BPETokenizer.train([BOOK], 700)
    ranks = {trained.token_bytes(id): id for id in range(trained.size)}
    encoding = tiktoken.Encoding(
        "cl100k_base", pat_str=CL100K, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 900}
    )
    return TiktokenTokenizer(encoding, np.union1d(np.arange(300, 700, 3), single_bytes(encoding)))


@pytest.mark.parametrize("kind", ["bpe", "cl100k_base", "characters"])
def test_ids_are_the_tokenizers(kind, bpe, tmp_path):
    samples = [TEXT, " ", "x" * 300, BOOK[:3000], *texts(150)]
    tokenizer = {"bpe": lambda: bpe, "cl100k_base": cl100k_like,
                 "characters": lambda: CharacterTokenizer.train(samples)}[kind]()  # fmt: skip
    data = model_data(opened := loaded(tokenizer), explained(opened, TEXT))
    line = "inputs.map(tokenizer.encoder(wire.unpacked(bytes)))"
    for text, encoded in zip(
        samples, returned(tmp_path, MODULES, line, samples, data), strict=True
    ):
        assert encoded == {"ids": tokenizer.encode(text), "unknown": []}, repr(text)


def test_characters_without_an_id_are_left_out(tmp_path):
    opened = loaded(CharacterTokenizer.train("initial text"))
    data = model_data(opened, explained(opened, "text"))
    page = returned(tmp_path, MODULES, ALL, "tea € ßé€", data)
    assert page["tokens"] == list("tea··")
    assert page["cut"] == ["", "Left out, because the training text lacks them: € ß é"]
    page = returned(tmp_path, MODULES, ALL, "ß", data)
    assert page["tokens"] == list("initial")


def test_a_text_ends_at_the_models_context(bpe, tmp_path):
    opened = loaded(bpe, context_length=7)
    data = model_data(opened, explained(opened, "text"))
    page = returned(tmp_path, MODULES, ALL, TEXT, data)
    ids = bpe.encode(TEXT)
    assert page["tokens"] == bpe.pieces(ids[:7])
    assert page["cut"][0] == f"The first 7 tokens are shown, {len(ids) - 7} more are not."


def test_probabilities_are_those_of_sampling(tmp_path):
    logits = 4 * torch.randn(1, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    settings = [(t, k) for t in (0.0, 0.05, 0.6, 1.0, 2.0) for k in (0, 1, 3, 17, 400)]
    inputs = [[logits[0].tolist(), {"temperature": t, "topK": k}, 12] for t, k in settings]
    line = "inputs.map((each) => sampling.likeliestIds(...each))"
    results = returned(tmp_path, MODULES, line, inputs)
    for (temperature, top_k), top in zip(settings, results, strict=True):
        sampling = Sampling(temperature=temperature, top_k=top_k)
        expected = sampling.probabilities(logits, torch.zeros(1, 0, dtype=torch.long))[0]
        assert [likely["id"] for likely in top] == logits[0].topk(12).indices.tolist()
        for likely in top:
            assert likely["probability"] == pytest.approx(float(expected[likely["id"]]), rel=1e-5)


def test_parameters_take_two_bytes_each_and_a_tied_table_is_stored_once(bpe):
    opened = loaded(bpe, tied=True)
    data = model_data(opened, explained(opened, TEXT))
    tied = sum(parameter.numel() for parameter in opened.model.parameters())
    opened = loaded(bpe, tied=False)
    untied = model_data(opened, explained(opened, TEXT))
    table = opened.model.tokens.weight.numel()
    assert len(untied) - len(data) == pytest.approx(2 * table, abs=1000)
    assert sum(parameter.numel() for parameter in opened.model.parameters()) == tied + table


def test_a_page_that_cannot_compute_the_model_states_why(bpe, monkeypatch):
    opened = loaded(bpe)
    explanation = explained(opened, TEXT)
    other = dataclasses.replace(opened, tokenizer=TiktokenTokenizer.full(tiny()))
    bert = LoadedBert(Bert(BertConfig(vocabulary=19, width=24, heads=4, layers=3)), bpe, Path())
    assert "only GPTs" in model_data(bert, walk("bert"))
    assert "tokenizer (tiktoken)" in model_data(other, explanation)
    monkeypatch.setattr(data_module, "BYTES", 10_000)
    reason = model_data(opened, explanation)
    count = sum(parameter.numel() for parameter in opened.model.parameters())
    assert f"{count:,} parameters" in reason
    [page] = model_walks(explanation, opened)
    assert not page.typed
    assert reason.encode() in page.data
    [page] = model_walks(explanation)
    assert not page.typed


def tiny():
    ranks = {bytes([byte]): byte for byte in range(256)}
    return tiktoken.Encoding("tiny", pat_str=r"\w+", mergeable_ranks=ranks, special_tokens={})
