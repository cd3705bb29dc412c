"""Head scores of a perfect example and of a counterexample of each kind of head."""

import pytest
import torch
from head_scores_by_definition import means

import heedful
from heedful.head_kinds import MEANS, SCORES
from heedful.ops import statistics
from heedful.recording import from_attentions
from heedful.recording.head_scores import evidence
from heedful.recording.heads import heads_of

# Five tokens that occur twice, and other tokens
IDS = torch.tensor([5, 6, 7, 8, 9, 3, 5, 6, 7, 8, 9, 4, 5, 6, 2, 1, 0, 11, 12, 13])
N = len(IDS)


def one_hot(choose):
    """Return a causal map in which query n attends only to `choose(n)`."""
    map_ = torch.zeros(N, N)
    for n in range(N):
        map_[n, choose(n)] = 1.0
    return map_


def earlier(n, offset):
    """Return the position of the last earlier occurrence of token n, plus `offset`; n if none."""
    positions = [m for m in range(n) if IDS[m] == IDS[n]]
    return (positions[-1] + offset) if positions else n


HEADS = {
    "previous": one_hot(lambda n: max(0, n - 1)),
    "sink": one_hot(lambda n: 0),
    "self": one_hot(lambda n: n),
    "local": torch.tril(torch.triu(torch.ones(N, N), -4)) / torch.tril(
        torch.triu(torch.ones(N, N), -4)).sum(1, keepdim=True),
    "broad": torch.tril(torch.ones(N, N)) / torch.arange(1, N + 1)[:, None],
    "induction": one_hot(lambda n: earlier(n, 1)),
    "duplicate": one_hot(lambda n: earlier(n, 0)),
}  # fmt: skip
COUNTEREXAMPLES = {
    "previous": HEADS["self"],
    "sink": one_hot(lambda n: min(n, 1)),
    "self": HEADS["sink"],
    "local": HEADS["sink"],
    "broad": HEADS["self"],
    "induction": HEADS["self"],
    "duplicate": HEADS["self"],
}


def call_of(map_):
    recording = from_attentions([map_[None, None]])
    call = recording[0]
    call.ids, call.kind = IDS, "causal"
    call.causes = call.causes._replace(mask=heedful.masks.Causal())
    return call


@pytest.mark.parametrize("kind", SCORES)
def test_a_perfect_head_scores_1_and_a_counterexample_0(kind):
    assert float(means(call_of(HEADS[kind]))[kind]) == pytest.approx(1, abs=1e-5)
    assert float(means(call_of(COUNTEREXAMPLES[kind]))[kind]) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("kind", SCORES)
def test_a_perfect_head_is_of_its_kind(kind):
    [head] = heads_of([call_of(HEADS[kind])])
    assert head.kind == kind


def test_without_token_ids_two_scores_are_omitted():
    recording = from_attentions([torch.eye(9).expand(1, 2, 9, 9)])
    scores = means(recording[0])
    assert set(scores) == {*SCORES, *MEANS} - {"induction", "duplicate"}
    assert [head.kind for head in recording.heads()] == ["self", "self"]


def test_entropy_and_distance_equal_those_of_the_summary():
    call = from_attentions([torch.rand(1, 3, 7, 7).softmax(-1)])[0]
    scores, summary = means(call), call.summary()
    for name in MEANS:
        torch.testing.assert_close(scores[name], summary[name])


def test_scores_take_one_pass_that_reports_progress(monkeypatch):
    passes, shares = [], []
    blocks = statistics.blocks
    monkeypatch.setattr(statistics, "blocks", lambda *a, **k: passes.append(1) or blocks(*a, **k))
    evidence(call_of(HEADS["broad"]), progress=shares.append)
    assert len(passes) == 2  # the second pass is over one head with uniform attention
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
