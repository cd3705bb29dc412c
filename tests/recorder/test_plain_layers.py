"""Plain layers run without the mode; what is recorded is what is seen of each of their operations.

The comparison is with a recording whose layers are followed operation by operation.
"""

import itertools
import pickle
import sys
import threading

import pytest
import torch
from torch import Tensor, nn
from torch._C import _len_torch_dispatch_stack
from torch.nn.modules import module as of_all
from torch.utils._python_dispatch import TorchDispatchMode, is_in_torch_dispatch_mode

import heedful
from heedful.recording import hooks, running
from heedful.recorder.following import layers, storages
from heedful.recorder.following.operations import Operations

B, N, D, H = 4, 7, 12, 3


def feed_forward(*more):
    return nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D), *more)


class Block(nn.Module):
    """Attention by hand and a feed-forward part, each after its norm."""

    def __init__(self, *more):
        super().__init__()
        self.first, self.second = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out, self.feed = nn.Linear(D, 3 * D), nn.Linear(D, D), feed_forward(*more)
        self.eval()

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / 2).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.feed(self.second(x))


class Additive(nn.Module):
    """Bahdanau's scores: a `Sequential` reads what was put to all keys alike."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(D, D), nn.Linear(D, D)
        self.score = nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, 1))

    def forward(self, x):
        scores = self.score(self.q(x)[:, :, None] + self.k(x)[:, None])[..., 0]
        return scores.softmax(-1) @ x


class Pooled(Additive):
    """The same with one query for all keys, which no axis tells of."""

    def forward(self, x):
        scores = self.score(self.q(x[:, :1]) + self.k(x))
        return (scores.softmax(1) * x).sum(1)


class TalkingHeads(Block):
    """A linear layer mixes the scores of the heads, and another one their weights."""

    def __init__(self):
        super().__init__()
        self.scores, self.weights = nn.Linear(H, H), nn.Linear(H, H)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)
        weights = self.scores((q @ k.mT).movedim(1, -1)).softmax(2)
        return (self.weights(weights).movedim(-1, 1) @ v).transpose(1, 2).flatten(2)


class External(nn.Module):
    """Keys and values that two layers have learned."""

    def __init__(self):
        super().__init__()
        self.keys, self.values = nn.Linear(D, 5), nn.Linear(5, D)

    def forward(self, x):
        return self.values(self.keys(x).softmax(-1))


class LearnedQueries(Block):
    """Parameters are projected to queries."""

    def __init__(self):
        super().__init__()
        self.asking = nn.Parameter(torch.randn(5, D))

    def forward(self, x):
        q = self.out(self.asking).unflatten(-1, (H, -1)).transpose(0, 1)
        _, k, v = self.qkv(x).unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)


class Repeated(Block):
    """One text, expanded to several before its layers."""

    def forward(self, x):
        return super().forward(x[:1].expand(3, -1, -1))


class FastWeights(Block):
    """A linear layer that multiplies with its keys, which it was given in the place of a weight."""

    def __init__(self, give):
        super().__init__()
        self.give, self.scores = give, nn.Linear(D, N, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x[0]).chunk(3, -1)
        return self.give(self.scores, k, q).softmax(-1) @ v


def called_with(layer, keys, query):
    return torch.func.functional_call(layer, {"weight": keys}, (query,))


def written(layer, keys, query):
    with torch.no_grad():
        layer.weight.copy_(keys)
    return layer(query)


def in_its_place(layer, keys, query):
    layer.weight.data = keys.detach()
    return layer(query)


def as_an_attribute(layer, keys, query):
    layer.__dict__["weight"] = keys
    return layer(query)


def projected(layer, keys, query):
    """In a `Sequential`, whose last part it is."""
    both = nn.Sequential(nn.Linear(D, D), layer)
    both[0].weight = nn.Parameter(torch.eye(D))
    return called_with(both[1], keys, both[0](query))


class FastLast(Block):
    """The same of the last of two plain layers in one `Sequential`, which is called as a whole."""

    def __init__(self):
        super().__init__()
        self.both = nn.Sequential(nn.Linear(D, D), nn.Linear(D, N, bias=False))

    def forward(self, x):
        q, k, v = self.qkv(x[0]).chunk(3, -1)
        scores = torch.func.functional_call(self.both, {"1.weight": k}, (q,))
        return scores.softmax(-1) @ v


class NormedPool(Additive):
    """A norm after one of the layers; that its rows are the same for all keys is not followed."""

    def __init__(self, norm=nn.LayerNorm):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(D, D), norm(D))

    def forward(self, x):
        scores = self.score(self.q(x[:, :1].expand(-1, x.shape[1], -1)) + self.k(x))
        return (scores.softmax(1) * x).sum(1)


class Normed(Block):
    """Queries, keys and values are normed, head by head or all together, and stand as they may.

    norm: that of the queries; of: what it is given, of queries, keys and values.
    """

    def __init__(self, norm, of):
        super().__init__()
        self.norm, self.of = norm, of

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)
        return self.of(self.norm, q, k, v)


def attend(q, k, v):
    return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)


def of_queries(norm, q, k, v):
    return attend(norm(q), k, v)


def of_one_query(norm, q, k, v):
    """Its copies are normed, which stand in the place of the queries."""
    return attend(norm(q[:, :, :1].expand_as(q)), k, v)


def of_whole_queries(norm, q, k, v):
    return attend(norm(q.contiguous()), norm(k.contiguous()), v)


def of_other_axes(norm, q, k, v):
    return attend(norm(q.mT.contiguous().mT), k, norm(v.permute(2, 1, 0, 3)).permute(2, 1, 0, 3))


def of_one_head(norm, q, k, v):
    """Copies of one query again: it is the norm's weight that tells them apart."""
    q, k, v = q[:, 0], k[:, 0], v[:, 0]
    return (norm(q[:, :1].expand_as(q)) @ k.mT).softmax(-1) @ v


def of_scores(norm, q, k, v):
    return (norm(q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)


def of_weights(norm, q, k, v):
    return (norm((q @ k.mT).softmax(-1)) @ v).transpose(1, 2).flatten(2)


def by_weights(norm, q, k, v):
    """Weights are the weight of the norm: it multiplies values with them, element by element."""
    weights = (q[:, :, 0] * k[:, :, 0]).sum(-1).softmax(-1)[0]
    return torch.func.functional_call(norm, {"weight": weights}, (v.transpose(1, 3).contiguous(),))


NORMS = [
    lambda: Normed(nn.LayerNorm(D // H), of_queries),
    lambda: Normed(nn.LayerNorm(D // H), of_one_query),
    lambda: Normed(nn.RMSNorm(D // H), of_whole_queries),
    lambda: Normed(nn.LayerNorm(D // H, elementwise_affine=False), of_whole_queries),
    lambda: Normed(nn.LayerNorm((N, D // H)), of_whole_queries),
    lambda: Normed(nn.LayerNorm((N, D // H)), of_one_head),
    lambda: Normed(nn.RMSNorm(D // H, elementwise_affine=False), of_other_axes),
    lambda: Normed(nn.LayerNorm(N), of_scores),
    lambda: Normed(nn.RMSNorm(N), of_weights),
    lambda: Normed(nn.LayerNorm(H, bias=False), by_weights),
]


class Narrowed(Block):
    """Under autocast, whose copy of a weight is used by a layer first."""

    def __init__(self):
        super().__init__()
        self.asking = nn.Parameter(torch.randn(5, D))
        self.out.weight = nn.Parameter(torch.randn(D, D).t())

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            _, k, v = self.qkv(self.out(x)).unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)
            q = nn.functional.linear(self.asking, self.out.weight).unflatten(-1, (H, -1))
            return ((q.transpose(0, 1) @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)


class AnotherForward(Block):
    """Attention in the `forward` of a `Sequential`, or of a part of it."""

    def __init__(self, which):
        super().__init__()
        own = self.feed if which is None else self.feed[which]
        own.forward = lambda x: (x @ x.mT).softmax(-1) @ x


MODELS = [
    *(lambda give=give: FastWeights(give) for give in (called_with, written, in_its_place)),
    *(lambda give=give: FastWeights(give) for give in (as_an_attribute, projected)),
    *(FastLast, NormedPool, Narrowed),
    lambda: AnotherForward(None),
    lambda: AnotherForward(1),
    *(Block, Additive, Pooled, TalkingHeads, External, LearnedQueries, Repeated),
    lambda: Block(nn.Dropout(0.3)).train(),
    lambda: Block(nn.LayerNorm(D)),
    lambda: nn.Sequential(feed_forward(), Block(), nn.LayerNorm(D)),
    *NORMS,
    lambda: NormedPool(nn.RMSNorm),
]


def told(model, x):
    """What a recording has of a pass of a model."""
    torch.manual_seed(1)
    with heedful.record(model) as recording:
        model(x)
    calls = [(call.name, call.kind, call.proof, call.why) for call in recording]
    maps = [call.weights() for sequence in recording.sequences for call in sequence]
    return calls, recording.missed, [str(one) for one in recording.certificate()], maps


@pytest.fixture
def followed(monkeypatch):
    """Let all layers be followed operation by operation, from when it is called."""

    def change():
        for room in (layers, running):
            monkeypatch.setattr(room, "parts_of", lambda layer: [])

    return change


@pytest.mark.parametrize("texts", [1, B])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("make", MODELS)
def test_as_operation_by_operation(make, mode, texts, followed):
    torch.manual_seed(0)
    model, x = make(), torch.randn(texts, N, D)
    with mode():
        found = told(model, x)
        followed()
        expected = told(model, x)
    assert found[:3] == expected[:3]
    for one, other in zip(found[3], expected[3], strict=True):
        assert torch.equal(one, other)


def operations(model, x, monkeypatch):
    """The names of the operations that a recorder sees of a pass."""
    names, dispatch = [], Operations.__torch_dispatch__

    def noting(self, function, types, arguments=(), keywords=None):
        names.append(function.name().removeprefix("aten::"))
        return dispatch(self, function, types, arguments, keywords)

    monkeypatch.setattr(Operations, "__torch_dispatch__", noting)
    with torch.no_grad(), heedful.record(model) as recording:
        model(x)
    return names, recording


def test_no_operation_of_a_plain_layer_is_seen(monkeypatch):
    names, recording = operations(Block(), torch.randn(B, N, D), monkeypatch)
    assert not {"addmm", "gelu", "native_layer_norm"} & {*names}
    assert "bmm" in names
    assert len(recording) == 1


def hooked(model):
    model.feed[1].register_forward_hook(lambda layer, given, made: made.flip(0))


def hooked_before(model):
    model.feed[2].register_forward_pre_hook(lambda layer, given: given[0].flip(0))


def with_a_forward(model):
    linear, out = nn.functional.linear, model.out
    out.forward = lambda x: linear(x, out.weight, out.bias).flip(0)


def with_weights_of_a_class(model):
    class Weight(Tensor):
        pass

    model.qkv._parameters["weight"] = model.qkv.weight.detach().as_subclass(Weight)


def with_another_part(model):
    model.feed[1] = nn.Softmax(-1)


# and of how many linear layers the operations are then seen
CHANGES = {
    hooked: 2,
    hooked_before: 2,
    with_a_forward: 1,
    with_weights_of_a_class: 4,
    with_another_part: 2,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_while_it_is_recorded_is_followed(change, monkeypatch):
    class Changed(Block):
        def forward(self, x):
            change(self)
            return super().forward(x)

    names, recording = operations(Changed(), torch.randn(B, N, D), monkeypatch)
    assert names.count("addmm") == CHANGES[change]
    assert len(recording) == 1


def test_a_class_that_was_changed_while_it_is_recorded_is_followed(monkeypatch):
    def another(self, x):
        return nn.functional.linear(x, self.weight, self.bias).flip(0)

    class Changed(Block):
        def forward(self, x):
            with monkeypatch.context() as patched:
                patched.setattr(nn.Linear, "forward", another)
                return super().forward(x)

    names, recording = operations(Changed(), torch.randn(B, N, D), monkeypatch)
    assert names.count("flip") == 4
    assert len(recording) == 1


def test_a_mode_of_the_users_sees_each_operation(monkeypatch):
    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            names.append(function.name().removeprefix("aten::"))
            return function(*arguments, **(keywords or {}))

    class Watched(Block):
        def forward(self, x):
            with Noting():
                return super().forward(x)

    names = []
    seen, recording = operations(Watched(), torch.randn(1, N, D), monkeypatch)
    assert seen == names
    assert names.count("addmm") == 4
    assert [call.proof for call in recording] == ["proved"]


def test_a_layer_that_is_called_by_keyword_is_followed(monkeypatch):
    class ByKeyword(Block):
        def forward(self, x):
            return super().forward(self.feed(input=x))

    names, recording = operations(ByKeyword(), torch.randn(1, N, D), monkeypatch)
    assert names.count("addmm") == 2
    assert [call.proof for call in recording] == ["proved"]


def test_a_part_of_plain_layers_has_one_hook_and_after_a_recording_none():
    model = Block()
    with heedful.record(model):
        hooks = [len(one._forward_hooks) for one in (model.feed, *model.feed, model.out)]
        assert hooks == [1, 0, 0, 0, 1]
        model(torch.randn(1, N, D))
    tables = [table for one in model.modules() for table in hooks_of(one)]
    assert tables
    assert not any(tables)


def hooks_of(module):
    return [table for name, table in vars(module).items() if "hooks" in name and table is not None]


def test_a_function_mode_or_a_hook_for_all_modules_sees_each_operation(monkeypatch):
    x = torch.randn(B, N, D)
    with torch.overrides.BaseTorchFunctionMode():
        assert "addmm" in operations(Block(), x, monkeypatch)[0]
    handle = of_all.register_module_forward_hook(lambda *told: None)
    try:
        assert "addmm" in operations(Block(), x, monkeypatch)[0]
    finally:
        handle.remove()
    assert "addmm" not in operations(Block(), x, monkeypatch)[0]


def test_weights_of_torch_func_are_followed_operation_by_operation(followed):
    model, x = Block(), torch.randn(1, N, D)
    weights = dict(model.named_parameters())

    def loss(weights):
        return torch.func.functional_call(model, weights, (x,)).sum()

    def whys():
        with heedful.record(model) as recording:
            made.append(torch.func.grad(loss)(weights))
        return [call.why for call in recording], recording.missed

    made = [torch.func.grad(loss)(weights)]
    found = whys()
    followed()
    assert found == whys()
    for name in weights:
        assert all(torch.equal(one[name], made[0][name]) for one in made)


class Stops(nn.Module):
    """A plain layer that stops for once, in a model that goes on or not."""

    def __init__(self, error, goes_on, then):
        super().__init__()
        self.block, self.feed, self.then = Block(), feed_forward(), then
        self.error, self.goes_on = error, goes_on

    def forward(self, x):
        error, self.error = self.error, None
        if error is not None:
            self.feed[1]._backward_hooks = Raises(error)
        try:
            x = self.feed(x)
        except BaseException:
            if not self.goes_on:
                raise
        finally:
            self.feed[1]._backward_hooks = {}
        return self.then(self, x)


def with_a_module(model, x):
    return model.block(x)


def with_layers_alone(model, x):
    block = model.block
    q, k, v = block.qkv(x).unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)
    return block.out(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Bare(nn.Module):
    """Attention of one head without any layer."""

    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


def with_no_layer(model, x):
    return model.bare(x)


def test_an_error_of_the_recorders_ends_no_pass(monkeypatch):
    def fails(*told):
        raise ValueError("of our own")

    model, x = Block(), torch.randn(1, N, D)
    for name in ("is_parameter", "made_by"):
        with monkeypatch.context() as patched, heedful.record(model) as recording:
            patched.setattr(storages.Traced, name, fails)
            made = model(x)
        assert torch.equal(made, model(x))
        assert "of our own" in recording.missed["Block"]


@pytest.mark.parametrize("line", range(60))
def test_ctrl_c_between_two_lines_leaves_no_mode(line):
    """Whichever line of ours it comes before."""
    model, x, lines = Block(), torch.randn(1, N, D), iter(range(60))

    def tracing(frame, event, argument):
        if frame.f_code.co_filename != layers.__file__ or frame.f_code.co_name not in OURS:
            return None
        if event == "line" and next(lines, None) == line:
            raise KeyboardInterrupt
        return tracing

    with heedful.record(model) as recording:
        before = sys.gettrace()
        sys.settrace(tracing)
        try:
            model(x)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        model(x)
        model(x)
    assert _len_torch_dispatch_stack() == 0
    assert recording[-1].proof == "proved"


OURS = {"begins", "_take_off", "ended", "resume", "_may_be_off", "is_as_it_was"}


def test_a_model_that_was_saved_while_it_was_recorded_is_recorded_again(monkeypatch):
    """Its hooks, which do nothing any more, may have the numbers that are given next."""
    model, x = Chained([nn.LSTM(D, D, batch_first=True), Block()]), torch.randn(1, N, D)
    with heedful.record(model):
        saved = pickle.dumps(model)
        keys = {key for one in model.modules() for table in hooks_of(one) for key in table}
    assert len(keys) >= 3
    for first in keys:
        again = pickle.loads(saved)
        monkeypatch.setattr(hooks, "_keys", itertools.count(first, -1))
        with heedful.record(again) as recording:
            assert torch.equal(again(x), model(x))
        assert len(recording) == 1


class Chained(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.recurrent, self.block = parts

    def forward(self, x):
        return self.block(self.recurrent(x)[0])


def test_layers_that_are_called_from_outside_begin_a_pass_each():
    """One after the other; none of them is inside the one before."""
    model, x = Block(), torch.randn(1, N, D)
    with heedful.record(model) as recording:
        for layer in (model.feed, model.qkv):
            layer(x)
            layer(x)
        model(x)
    assert [call.pass_index for call in recording] == [3]


class Raises(dict):
    """Raises an error as torch looks whether there are hooks, inside the call of a layer."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def __bool__(self):
        raise self.error


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("then", [with_a_module, with_layers_alone, with_no_layer])
def test_after_an_error_in_a_layer_all_is_followed(then, error, goes_on):
    model, x = Stops(error, goes_on, then), torch.randn(1, N, D)
    model.bare = Bare()
    with heedful.record(model) as recording:
        if goes_on:
            model(x)
        else:
            with pytest.raises(error):
                model(x)
        model(x)
    assert [call.pass_index for call in recording] == ([0, 1] if goes_on else [1])
    assert len({call.why for call in recording}) == 1


def test_after_ctrl_c_in_a_layer_no_mode_is_left():
    model, before = Stops(KeyboardInterrupt, False, with_a_module), is_in_torch_dispatch_mode()
    with pytest.raises(KeyboardInterrupt), heedful.record(model):
        model(torch.randn(1, N, D))
    assert is_in_torch_dispatch_mode() == before


def test_a_layer_that_runs_in_another_thread_meanwhile_is_not_the_one_that_ends():
    """Its end is told from another thread while the same layer runs in this one."""
    model, x = Block(), torch.randn(1, N, D)
    begun, gone_on = threading.Event(), threading.Event()
    with heedful.record(model) as recording:
        told = next(iter(model.qkv._forward_hooks.values())).teller

        def elsewhere():
            begun.wait(10)
            told.ended(model.qkv, x)
            gone_on.set()

        def waits(tensor):
            if told._running is model.qkv:
                begun.set()
                gone_on.wait(10)
            return tensor

        other = threading.Thread(target=elsewhere)
        other.start()
        with torch.autograd.graph.saved_tensors_hooks(waits, lambda tensor: tensor):
            model(x)
        other.join()
    assert gone_on.is_set()
    assert [call.proof for call in recording] == ["proved"]


def test_two_recordings_at_once():
    model, x = Block(), torch.randn(1, N, D)
    with heedful.record(model) as outer, heedful.record(model) as inner:
        model(x)
    with heedful.record(model) as alone:
        model(x)
    for one in (outer, inner):
        assert [call.why for call in one] == [call.why for call in alone] == [""]


def test_a_part_of_plain_layers_that_is_called_by_itself():
    class Apart(Block):
        def forward(self, x):
            return super().forward(self.feed[2](self.feed[0](x).tanh()))

    model = Apart()
    with heedful.record(model) as recording:
        model(torch.randn(1, N, D))
    assert [call.proof for call in recording] == ["proved"]
