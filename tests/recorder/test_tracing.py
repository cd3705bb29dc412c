"""A pass that torch traces is not recorded, and its graph does not change."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import heedful
from heedful.recorder.tracing import TRACED


class Attend(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.project, self.attend = nn.Linear(12, 36), attend

    def forward(self, x):
        return self.attend(*self.project(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4))


def by_hand(q, k, v):
    return (q @ k.mT / 2).softmax(-1) @ v


ATTENDING = [by_hand, F.scaled_dot_product_attention, heedful.attention]
X = torch.randn(1, 40, 12)


def exported(model, x):
    return torch.export.export(model, (x,)).graph


def proxied(model, x):
    return make_fx(model)(x).graph


def strictly_exported(model, x):
    """Dynamo also traces the code of hooks, so such a pass cannot be reported."""
    return torch.export.export(model, (x,), strict=True).graph


# dynamo cannot trace the checks of shapes in these tests
STRICT = [(strictly_exported, attend) for attend in ATTENDING[:2]]


@pytest.mark.parametrize(
    ("trace", "attend"), [*itertools.product([exported, proxied], ATTENDING), *STRICT]
)
def test_a_traced_graph_is_the_same_as_without_recording(trace, attend):
    model = Attend(attend)
    with torch.no_grad():
        plain = trace(model, X)
        with heedful.record(model) as recording:
            graph = trace(model, X)
            assert not len(recording)
            model(X)
    assert [node.target for node in graph.nodes] == [node.target for node in plain.nodes]
    assert [call.proof for call in recording] == ["proved"]
    assert recording.missed == ({} if trace is strictly_exported else {"Attend": TRACED})


@pytest.mark.parametrize("attend", ATTENDING)
def test_tensors_without_numbers_are_reported(attend):
    fake, model = FakeTensorMode(allow_non_fake_inputs=True), Attend(attend)
    with torch.no_grad(), heedful.record(model) as recording, fake:
        model(fake.from_tensor(X))
    assert recording.missed == {"Attend": TRACED}
    with torch.no_grad(), heedful.record(model) as recording, FunctionalTensorMode():
        model(FunctionalTensor.to_functional(X))
    assert recording.missed == {"Attend": TRACED}
    with torch.no_grad(), heedful.record(model.to("meta")) as recording:
        model(X.to("meta"))
    assert recording.missed == {"Attend": TRACED}


class Tracing(nn.Module):
    """A model that traces its part before it calls it."""

    def __init__(self, attend):
        super().__init__()
        self.part, self.graph = Attend(attend), None

    def forward(self, x):
        self.graph = make_fx(self.part)(x).graph
        return self.part(x)


@pytest.mark.parametrize("attend", ATTENDING)
def test_a_part_that_is_traced_inside_a_pass_is_reported(attend):
    with torch.no_grad(), heedful.record(model := Tracing(attend)) as recording:
        model(X)
    assert [call.proof for call in recording] == ["proved"]
    assert recording.missed == {"part": TRACED}
    assert not any("clone" in str(node.target) for node in model.graph.nodes)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch's kernel, by torch
@pytest.mark.parametrize("attend", ATTENDING)
def test_a_pass_inside_vmap_is_missed_with_a_reason(attend):
    with torch.no_grad(), heedful.record(model := Attend(attend)) as recording:
        mapped = torch.func.vmap(model)(X[None])
    torch.testing.assert_close(mapped, model(X)[None])
    assert "inside torch.func" in recording.missed["Attend"]
