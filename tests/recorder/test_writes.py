"""Changes in place that torch does not count, or not for the tensor that is read later.

Only one row is changed, which is none of those that the certificate compares.
"""

import copy
import threading

import pytest
import torch
from torch import nn

import heedful
from heedful.recorder.following import writes

N, ROW, COLUMN = 64, 30, 5
MODES = [torch.no_grad, torch.inference_mode, torch.enable_grad]
FEW = MODES[:2]
LOW = -1e30


class Layer(nn.Module):
    """Attention by hand with an added table; `between` is called with scores, then weights."""

    def __init__(self, between=None, of_weights=False):
        super().__init__()
        self.project, self.between, self.of_weights = nn.Linear(8, 24), between, of_weights
        self.met = []

    def forward(self, x, table=None):
        q, k, v = self.project(x).view(1, N, 3, 2, 4).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / 2 if table is None else q @ k.mT / 2 + table
        if self.between is not None and not self.of_weights:
            self.between(scores)
        weights = scores.softmax(-1)
        if self.between is not None and self.of_weights:
            self.between(weights)
        # by NumPy, of which torch's modes know nothing
        self.met.append(torch.tensor(weights.detach().numpy().copy()))
        return (weights @ v).transpose(1, 2).reshape(1, N, 8)


class Two(nn.Module):
    """Two layers that share a table, which is changed between them."""

    def __init__(self, change, whole=lambda table: table[None, None]):
        super().__init__()
        table = torch.zeros(N, N)
        self.register_buffer("table", table)
        self.register_buffer("whole", whole(table))
        self.change, self.first, self.second = change, Layer(), Layer()

    def forward(self, x):
        made = self.first(x, self.whole)
        self.change(self.table)
        return self.second(made, self.whole)

    @property
    def met(self):
        return [*self.first.met, *self.second.met]


def recorded(model, mode):
    with mode(), heedful.record(model) as recording:
        model(torch.randn(1, N, 8))
    return recording


def shows(recording, met):
    for call, weights in zip(recording, met, strict=True):
        torch.testing.assert_close(call.weights().detach(), weights[0], atol=1e-6, rtol=0)


def apart(table):
    """Another tensor of the same storage, which counts its own changes."""
    return torch.empty(0).set_(table.untyped_storage()).view(1, 1, N, N)


def in_inference(table):
    with torch.inference_mode():
        table.mT[COLUMN, ROW].add_(LOW)


def _hide(table):
    table.data[ROW, COLUMN] = LOW


RAW = torch.library.Library("heedful_tests", "FRAGMENT")
RAW.define("hide_(Tensor(a!) table) -> ()")
RAW.impl("hide_", _hide, "CPU")


UNCOUNTED = {
    "data": lambda table: table.data[ROW, COLUMN].fill_(LOW),
    "foreach": lambda table: torch._foreach_add_([table[ROW, COLUMN]], LOW),
    "inner inference mode": in_inference,
    "a list of outputs": lambda table: torch.unbind_copy(
        torch.full((2, 1), LOW), out=[table[ROW, COLUMN : COLUMN + 1], torch.zeros(1)]
    ),
    "somebody's operation": torch.ops.heedful_tests.hide_,
    "counted": lambda table: table[ROW, COLUMN].fill_(LOW),
}


@pytest.mark.parametrize("mode", FEW)
@pytest.mark.parametrize("whole", [lambda table: table, apart])
@pytest.mark.parametrize("how", UNCOUNTED)
def test_a_table_that_two_layers_share_is_that_of_each(how, whole, mode):
    model = Two(UNCOUNTED[how], whole)
    recording = recorded(model, mode)
    assert model.table[ROW, COLUMN] == LOW
    shows(recording, model.met)
    assert [call.proof for call in recording] == ["proved"] * 2


@pytest.mark.parametrize("mode", FEW)
def test_a_copied_model_whose_buffers_share_a_storage(mode):
    model = copy.deepcopy(Two(UNCOUNTED["counted"]))
    assert model.table.untyped_storage()._cdata == model.whole.untyped_storage()._cdata
    recording = recorded(model, mode)
    shows(recording, model.met)


class Outside(nn.Module):
    """Its layers run outside of inference mode, in a pass inside it, which changes their table."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Layer(), Layer()

    def forward(self, x, table):
        with torch.inference_mode(False):
            x = self.first(x.clone(), table)
        table.mT[COLUMN, ROW].add_(LOW)
        with torch.inference_mode(False):
            return self.second(x, table)


def test_a_table_changed_in_inference_mode_around_layers_that_run_outside_it():
    model, table, x = Outside().requires_grad_(False), torch.zeros(N, N), torch.randn(1, N, 8)
    with torch.inference_mode(), heedful.record(model) as recording:
        model(x, table)
    assert table[ROW, COLUMN] == LOW
    shows(recording, [*model.first.met, *model.second.met])


@torch.library.custom_op("heedful_tests::low_", mutates_args={"x"})
def low_(x: torch.Tensor) -> None:
    """Write into what is given, and return nothing."""
    x[..., ROW, COLUMN] = 0.0


BESIDE = {
    "somebody's operation": low_,
    "a list of outputs": lambda x: torch.unbind_copy(
        torch.zeros(2, *x.shape[:-2]),
        out=[x[..., ROW, COLUMN], torch.zeros(x.shape[:-2])],
    ),
    "foreach": lambda x: torch._foreach_zero_([x[..., ROW, COLUMN]]),
}


@pytest.mark.parametrize("mode", FEW)
@pytest.mark.parametrize("how", BESIDE)
def test_scores_that_an_operation_wrote_into_beside_its_result(how, mode):
    model = Layer(BESIDE[how])
    recording = recorded(model, mode)
    shows(recording, model.met)
    assert recording[0].proof == "unproved"


@pytest.mark.parametrize("mode", FEW)
@pytest.mark.parametrize("how", BESIDE)
def test_weights_that_an_operation_wrote_into_beside_its_result_are_missed(how, mode):
    recording = recorded(Layer(BESIDE[how], of_weights=True), mode)
    assert len(recording) == 0
    assert "Layer" in recording.missed


class Into(nn.Module):
    """The scores of other queries are written into the room that those of the first had."""

    def __init__(self, write):
        super().__init__()
        self.project, self.write, self.met = nn.Linear(8, 24), write, []

    def forward(self, x):
        q, k, v = self.project(x).view(1, N, 3, 2, 4).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / 2
        made = scores.softmax(-1) @ v
        self.met.append(scores.softmax(-1))
        others = torch.cat([q[..., :ROW, :], q[..., ROW:, :] * 2], dim=-2) @ k.mT
        self.met.append(self.write(others, scores).softmax(-1))
        return made, self.met[-1] @ v


INTO = {
    "mul": lambda other, room: torch.mul(other, 0.5, out=room),
    "add": lambda other, room: torch.add(other, torch.zeros(N), out=room),
    "neg": lambda other, room: torch.neg(other, out=room),
}


@pytest.mark.parametrize("mode", FEW)
@pytest.mark.parametrize("how", INTO)
def test_scores_written_into_the_room_of_others_are_not_taken_for_these(how, mode):
    recording = recorded(model := Into(INTO[how]), mode)
    shown = [call.weights() for call in recording]
    for weights in shown:
        assert any(torch.allclose(weights, met[0], atol=1e-6) for met in model.met)
    torch.testing.assert_close(shown[0], model.met[0][0], atol=1e-6, rtol=0)
    assert recording[0].proof == "proved"
    assert all(call.proof == "unproved" for call in [*recording][1:])
    assert len(recording) == 2 or recording.missed


OWN = {
    "mul": lambda scores: torch.mul(scores, 3.0, out=scores),
    "taken from": lambda scores: torch.sub(torch.arange(N) / N, scores, out=scores),
}


@pytest.mark.parametrize("mode", FEW)
@pytest.mark.parametrize("how", OWN)
def test_scores_written_into_their_own_room_are_followed(how, mode):
    recording = recorded(model := Layer(OWN[how]), mode)
    shows(recording, model.met)
    assert recording[0].proof == "proved"


class HeadByHead(nn.Module):
    """Each head's weights are copied, meet their values, and are let go."""

    def __init__(self):
        super().__init__()
        self.project, self.met = nn.Linear(8, 96), []

    def forward(self, x):
        q, k, v = self.project(x).view(1, N, 3, 8, 4).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / 2).sin().softmax(-1)
        self.met = weights[0].detach()
        made = torch.zeros(8, N, 4)
        for head in range(8):
            part = weights[:, head].clone()
            made[head] = (part @ v[:, head])[0]
            del part
        return made


@pytest.mark.parametrize("mode", MODES)
def test_heads_whose_copies_have_one_address_are_all_shown(mode):
    recording = recorded(model := HeadByHead(), mode)
    assert recording.missed == {}
    assert len(recording) == 8
    for call, weights in zip(recording, model.met, strict=True):
        torch.testing.assert_close(call.weights().detach()[0], weights, atol=1e-6, rtol=0)


def test_what_is_counted_is_forgotten_once_the_last_recording_has_ended():
    one, other = torch.zeros(3), torch.zeros(3)
    with writes.counted():
        before, as_it_was = writes.state_of(one), writes.state_of(other)
        with writes.counted():
            writes.note([None, [one]])
        assert writes.state_of(one) != before
        assert writes.state_of(other) == as_it_was
    assert writes.state_of(one) == before
    assert not writes._thread.writes.counts


def test_a_recording_that_ends_in_another_thread_counts_in_its_own():
    counting = writes.counted()
    counting.__enter__()
    thread = threading.Thread(target=counting.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert writes._thread.writes.recordings == 0


def test_tensors_without_a_storage_of_their_own_are_not_counted():
    def noted(row):
        writes.note([row])
        return row

    writes.note([torch.eye(3).to_sparse()])
    torch.vmap(noted)(torch.eye(3))
    assert not any(key is None for key in writes._thread.writes.counts)


def test_a_recording_leaves_no_counts_behind():
    recorded(Two(UNCOUNTED["counted"]), torch.no_grad)
    assert not writes._thread.writes.counts


def freed(tensor):
    tensor.untyped_storage().resize_(0)


def freed_queries(q, k, v):
    q = q.clone()
    scores = q @ k.mT / 2
    freed(q)
    return scores.softmax(-1) @ v


def freed_table(q, k, v):
    table = torch.zeros(N, N)
    scores = q @ k.mT / 2 + table
    freed(table)
    return scores.softmax(-1) @ v


def freed_share(q, k, v):
    raised, one = (q @ k.mT / 2).exp(), torch.ones(1, 2, N, 1)
    total = raised.sum(-1, keepdim=True) + one
    freed(one)
    return raised / total @ v


def freed_weights(q, k, v):
    weights = (q @ k.mT / 2).softmax(-1)
    weighed = weights[..., None] * v[:, :, None]
    freed(weights)
    return weighed.sum(-2)


def changed_weights(q, k, v):
    weights = (q @ k.mT / 2).sin().softmax(-1)
    weighed = weights[..., None] * v[:, :, None]
    weights[:, :, ROW] = weights[:, :, ROW].flip(-1)
    return weighed.sum(-2)


class By(nn.Module):
    """Attention by a function of queries, keys and values."""

    def __init__(self, attend):
        super().__init__()
        self.project, self.attend = nn.Linear(8, 24), attend

    def forward(self, x):
        return self.attend(*self.project(x).view(1, N, 3, 2, 4).permute(2, 0, 3, 1, 4))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "attend", [freed_queries, freed_table, freed_share, freed_weights, changed_weights]
)
def test_what_is_freed_or_changed_before_it_is_read_is_missed(attend, mode):
    """Where the recorder has copies, as in inference mode, it may show the call."""
    model, x = By(attend).requires_grad_(False), torch.randn(1, N, 8)
    with mode():
        plain = model(x)
        with heedful.record(nn.Sequential(model)) as recording:
            assert torch.equal(model(x), plain)
    assert "0" in recording.missed or [call.proof for call in recording] == ["proved"]
    assert mode is torch.inference_mode or not len(recording)


def test_keys_that_a_list_of_copies_wrote_into_a_buffer_are_followed():
    kept = torch.zeros(1, 2, N, 4)

    def attend(q, k, v):
        torch._foreach_copy_([kept], [k])
        return (q @ kept.mT / 2).softmax(-1) @ v

    recording = recorded(By(attend), torch.no_grad)
    assert [call.proof for call in recording] == ["proved"]
    assert recording.missed == {}


def test_a_softmax_into_its_own_scores_is_one_call():
    def attend(q, k, v):
        scores = q @ k.mT / 2
        return torch.softmax(scores, -1, out=scores) @ v

    recording = recorded(By(attend), torch.no_grad)
    assert [call.proof for call in recording] == ["proved"]
    assert recording.missed == {}


def test_weights_that_an_operation_of_lists_went_over_are_told_of():
    def attend(q, k, v):
        weights = (q @ k.mT / 2).softmax(-1)
        torch._foreach_mul_([weights], 0.5)
        return weights @ v

    recording = recorded(By(attend), torch.no_grad)
    assert recording.missed == {
        "By": "weights that were changed after their softmax (_foreach_mul_)"
    }
