import io
import itertools
import re
from functools import partial

import pytest
import torch
from explained_models import walk
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from heedful.errors import ArgumentError
from heedful.explain import VARIANTS, explain
from heedful.models import GPT, GPTConfig
from heedful.views.walk.summary import Summary
from heedful.views.walk.terminal_pages import Page
from heedful.views.walk.token_trace import TokenPage

SENTENCE = "Your journey starts with one step"


def printed(explanation, width=80, query=None, page=None, step=None):
    screen = Console(file=io.StringIO(), width=width, highlight=False)
    if query is not None:
        explanation = explanation.of_token(explanation.positions_of(query)[0])
    page = page or (Page if query is None else TokenPage)
    page(screen, explanation, step).print_walk()
    return screen.file.getvalue()


def explain_variant(variant):
    memory = "für 注意力 👩‍🚀 " * 9 if variant == "cross" else None
    return explain("我 read مرحبا and 👍🏽 internationalisation " * 4, variant, memory=memory)


MODELS = ("gpt", "grouped", "bert", "seq2seq")
PAGES = {name: partial(explain_variant, name) for name in VARIANTS}
PAGES |= {kind: partial(walk, kind, layer=1, head=2) for kind in MODELS}


@pytest.mark.parametrize("width", [40, 200])
@pytest.mark.parametrize("name", PAGES)
def test_every_step_is_printed_and_no_line_is_wider_than_the_terminal(name, width):
    explanation = PAGES[name]()
    for query in (None, "and"):
        text = printed(explanation, width, query)
        assert max(map(cell_len, text.splitlines())) <= width
        assert all(line == line.rstrip() for line in text.splitlines())
        together = " ".join(text.split())
        sections, stages = explanation.sections, explanation.stages
        titles = [section.title for section in sections if len(sections) > 1]
        for words in (*titles, *(stage.name for stage in stages if stage.columns != "id")):
            assert words in together


def test_small_matrices_are_shown_in_full_with_their_tokens():
    text = printed(explain(SENTENCE))
    lines = [line.split() for line in text.splitlines()]
    assert SENTENCE.split() in lines
    assert ["journey", "0.9544", "1.4950", "1.4754", "0.8434", "0.7070", "1.0865"] in lines
    assert ["journey", "0.1385", "0.2379", "0.2333", "0.1240", "0.1082", "0.1581"] in lines
    assert ["journey", "0.4419", "0.6515", "0.5683"] in lines
    assert "journey → Your: 0.55×0.43 + 0.87×0.15 + 0.66×0.89 = 0.9544" in text
    assert "journey → Your: e^0.9544 / (e^0.9544 + e^1.4950 + e^1.4754 + …) = 0.1385" in text
    assert "…" not in text.split("weights")[0]


def test_large_matrices_are_shown_at_their_corners():
    explanation = explain(" ".join(f"w{n}" for n in range(300)), "causal")
    text = printed(explanation)
    scores = text[text.index(" scores ") :].splitlines()
    header = next(line.split() for line in scores if line.split()[:1] == ["w0"])
    assert header == ["w0", "w1", "w2", "w3", "w298", "w299"]
    row = next(line.split() for line in scores if line.split()[:1] == ["w299"])
    expected = explanation.stage("scores").part([299], [0, 1, 2, 3, 298, 299])[0].tolist()
    listed = [float(part) for part in row[1:] if part != "…"]
    assert listed == pytest.approx(expected, abs=5e-5)


def test_a_token_of_a_long_text_shows_the_keys_with_the_largest_weights():
    explanation = explain(" ".join(f"w{n}" for n in range(500)))
    text = printed(explanation, query="w7")
    weights = explanation.stage("weights").part([7], range(500))[0]
    for place in weights.topk(12).indices.tolist():
        assert f"w{place}" in text
    assert "488 others" in text


@settings(max_examples=15)
@given(st.text(min_size=1, max_size=40), st.integers(30, 90), st.booleans())
def test_any_text_makes_a_page(text, width, causal):
    if not text.split() or any("\ud800" <= char <= "\udfff" for char in text):
        return
    page = printed(explain(text, "causal" if causal else "simple"), width)
    assert max(map(cell_len, page.splitlines())) <= width
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", page)


def section(text, name):
    """The lines of one step of a page."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if re.match(rf"\s*\d+ {name}\b", line))
    stop = next(
        (i for i in range(start + 1, len(lines)) if re.match(r"\s*\d+ \w", lines[i])), len(lines)
    )
    return lines[start + 1 : stop]


NUMBER = r"-?(?:\d+\.\d+|inf)"


@pytest.mark.parametrize("variant", ["simple", "trainable", "causal", "multihead"])
def test_the_page_of_a_token_shows_the_numbers_of_the_stages(variant):
    """Every sum, change and weight on the page is parsed and compared."""
    explanation = explain(SENTENCE, variant)
    tokens, place = SENTENCE.split(), 3
    text = printed(explanation, 100, "with")

    def row(name):
        stage = explanation.stage(name)
        return stage.of_head(0, explanation.heads, [place], range(stage.shape[-1]))[0].tolist()

    def lines_of(name):
        cut = (re.match(rf"\s*({'|'.join(tokens)})\s+(.*)", line) for line in section(text, name))
        return {match[1]: match[2] for match in cut if match}

    scores = lines_of("scores")
    for token, score in zip(tokens, row("scores"), strict=True):
        *terms, total = scores[token].replace("=", "+").split("+")
        parts = [term.split("×") for term in terms]
        assert sum(float(a) * float(b) for a, b in parts) == pytest.approx(score, abs=2e-3)
        assert float(total) == pytest.approx(score, abs=5.1e-5)
    before = "scores"
    for name in ("scaled", "masked"):
        if all(stage.name != name for stage in explanation.stages):
            continue
        for token, old, new in zip(tokens, row(before), row(name), strict=True):
            was, now = (float(part) for part in lines_of(name)[token].split("→"))
            assert was == pytest.approx(old, abs=5.1e-5)
            assert now == pytest.approx(new, abs=5.1e-5)
        before = name
    weights = row("weights")
    for token, weight in zip(tokens, weights, strict=True):
        assert float(lines_of("weights")[token].split()[0]) == pytest.approx(weight, abs=5.1e-5)
    values = explanation.stage("embeddings" if variant == "simple" else "value")
    lines = section(text, "context")
    for m, token in enumerate(tokens):
        if not weights[m]:
            assert not any(re.match(rf"\s*{token}\s", line) for line in lines)
            continue
        line = next(line for line in lines if re.match(rf"\s*{token}\s", line))
        weight, *numbers = [float(number) for number in re.findall(NUMBER, line)]
        assert weight == pytest.approx(weights[m], abs=5.1e-5)
        expected = values.of_head(0, explanation.heads, [m], range(values.shape[-1]))[0].tolist()
        assert numbers == pytest.approx(expected, abs=5.1e-5)
    total = next(line for line in lines if line.strip().startswith("= ["))
    assert [float(n) for n in re.findall(NUMBER, total)] == pytest.approx(
        row("context"), abs=5.1e-5
    )


@pytest.mark.parametrize("query", [None, "read"])
def test_the_page_of_a_gpt_ends_with_the_likeliest_next_tokens(query):
    explanation = walk("gpt")
    place = 6 if query is None else 1
    shares = explanation.stage("probabilities").numbers()[place]
    words = section(printed(explanation, query=query), "likeliest tokens after")
    listed = [line.split() for line in words[:10]]
    names = [explanation.vocabulary[n] for n in shares.topk(10).indices]
    assert [name for name, *_ in listed] == names
    assert [float(share) for _, share, *_ in listed] == pytest.approx(
        shares.topk(10).values.tolist(), abs=5.1e-5
    )
    bars = [bar[0].count("█") for _, _, *bar in listed if bar]
    assert bars == sorted(bars, reverse=True)


def test_each_position_of_a_translation_has_a_line():
    explanation = walk("seq2seq")
    lines = section(printed(explanation, 100), "likeliest tokens after each token")
    for answer, line in zip(explanation.answers, lines, strict=False):
        place, token, *likely = line.split()
        assert (int(place), token[:5]) == (answer.position, explanation.tokens[answer.position][:5])
        assert likely[0] == answer.likeliest[0].token
        assert float(likely[1]) == pytest.approx(100 * answer.likeliest[0].probability, abs=0.06)


def test_every_sum_on_one_line_of_a_page_is_right():
    text = printed(walk("gpt", head=3))
    sums = re.findall(r": (-?[\d.]+) ([+/]) \(?(-?[\d.]+)\)? = (-?[\d.]+)$", text, re.M)
    assert len(sums) >= 3
    for first, sign, second, total in sums:
        result = float(first) + float(second) if sign == "+" else float(first) / float(second)
        assert result == pytest.approx(float(total), abs=2e-4)


@pytest.mark.parametrize("query", [None, "and"])
@pytest.mark.parametrize(("kind", "default"), [("gpt", 6), ("bert", 4), ("seq2seq", 6)])
def test_the_written_out_probability_is_that_of_the_selected_token(kind, default, query):
    explanation = walk(kind)
    place = default if query is None else explanation.tokens.index(query)
    logits, shares = (explanation.stage(n).numbers()[place] for n in ("logits", "probabilities"))
    text = printed(explanation, 200, query)
    expected = (explanation.labels("tokens")[place], explanation.vocabulary[shares.argmax()])
    for name, numbers in (("logits", logits), ("probabilities", shares)):
        line = next(line for line in section(text, name) if "→" in line)
        token, likely, total = re.fullmatch(r"\s*(\S+) → (\S+): .* = (\S+)", line).groups()
        assert (token, likely) == expected
        assert float(total) == pytest.approx(float(numbers[shares.argmax()]), abs=6e-5)
    assert f"{explanation.tokens[place]} @{place}" in text


def test_written_out_sums_have_only_the_terms_that_are_not_masked():
    explanation = explain(SENTENCE, "causal")
    for place in range(6):
        text = printed(explanation.of_token(place), 200)
        line = next(line for line in section(text, "context") if "number 0" in line)
        assert line.count("×") == place + 1


def test_repeated_tokens_have_their_positions():
    text = printed(explain("the cat and the dog"), 100)
    lines = [line.split() for line in text.splitlines()]
    assert ["the₀", "cat", "and", "the₃", "dog"] in lines
    assert "cat → the₀: " in text


@pytest.mark.parametrize("query", [None, "read"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_summary_has_the_weights_and_the_likeliest_tokens_of_the_selected_token(kind, query):
    explanation = walk(kind, 5, layer=1, head=2)
    text = printed(explanation, 80, query, Summary)
    assert max(map(cell_len, text.splitlines())) <= 80
    assert len(text.splitlines()) <= (60 if kind != "seq2seq" else 90)
    place = explanation.row if query is None else explanation.tokens.index(query)
    attention = [s for s in explanation.sections if s.kind.endswith("attention")]
    for part in attention:
        if part.side == "encoder":
            continue
        weights = part.stage("weights").of_head(2, 4, [place], range(3))[0].tolist()
        below = text[text.index(part.title) :]
        below = below[below.index("weights = softmax") :].splitlines()[2:]
        seen = [weight for weight in weights if weight]  # masked keys are not listed
        for line, weight in zip(below, seen, strict=False):
            assert float(line.split()[1]) == pytest.approx(weight, abs=5.1e-5)
    likely = explanation.answer(place).likeliest[0]
    assert likely.token[:11] in text[text.index("── Likeliest") :]


def test_a_summary_has_the_change_of_the_selected_token_by_each_part():
    explanation = walk("gpt", 5, layer=1)
    torch.manual_seed(7)
    model = GPT(GPTConfig(vocabulary=19, context_length=400, width=24, heads=4, layers=3)).eval()
    with torch.inference_mode():
        _, states = model(torch.arange(5)[None])
        block, rest = model.blocks[1], {"rotary": (model.cosines[:5], model.sines[:5])}
        middle = states[1] + block.attend(block.attend_norm(states[1]), causal=True, **rest)
        last = model.blocks[2](states[2], causal=True, **rest)
    path = [state[0, 4] for state in (states[0], states[1], middle, states[2], last)]
    expected = [float((b - a).norm() / a.norm()) for a, b in itertools.pairwise(path)]
    text = printed(explanation, page=Summary)
    lines = text[text.index("── Change of") :].splitlines()[1:5]
    assert [float(re.search(r"\d\.\d+", line)[0]) for line in lines] == pytest.approx(
        expected, abs=6e-5
    )


def test_a_step_is_printed_alone():
    explanation = walk("gpt", 5)
    text = printed(explanation, step="normed")
    titles = [line.split()[0] for line in text.splitlines() if re.search(r"\d+ × \d+$", line)]
    assert titles == ["normed", "normed"]  # of attention and of feed-forward
    with pytest.raises(ArgumentError, match=r"'nomed'; expected one of ids, embeddings, normed, "):
        printed(explanation, step="nomed")
