"""What ends a recording or a check from outside, such as Ctrl-C, leaves nothing behind."""

import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from looked import WIDTH, Heads, M, N, weighed
from torch import nn
from torch.nn.modules import module as of_all
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import heedful
from heedful.models import GPT, GPTConfig

HOOKS = [name for name in vars(nn.Module()) if "hooks" in name]
OURS = str(Path(heedful.__file__).parent)
# Of the context itself, which defers Ctrl-C elsewhere, and of many lines that change nothing
PASSED_OVER = ("record.py", "uninterrupted.py")


class Interrupting(TorchDispatchMode):
    """Raises an error in one of the operations of torch that run, as a signal handler may."""

    def __init__(self, error, at):
        super().__init__()
        self.error, self.left = error, at

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.left -= 1
        if self.left == 0:
            raise self.error
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("error", [TimeoutError("too slow"), KeyboardInterrupt()])
def test_an_error_from_outside_leaves_a_call_to_be_checked_again(error):
    model = Heads(lambda query, key: (query @ key.mT).softmax(-1) @ key)
    x, y = torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH)
    with heedful.record(model) as recording:
        model(x, y)
    at, is_interrupted = 0, True
    while is_interrupted:
        at += 1
        with Interrupting(error, at) as interrupting, suppress(type(error)):
            recording.certificate()
        is_interrupted = interrupting.left <= 0
    assert at > 10  # each operation of the check has raised it once
    assert recording[0].proof == "proved"
    torch.testing.assert_close(recording[0].weights(), weighed(*model.heads(x, y))[0])


class CtrlC:
    """Sends SIGINT at one of the lines of heedful that run inside its context."""

    def __init__(self, at):
        self.left = at

    def __enter__(self):
        sys.settrace(self._called)

    def __exit__(self, *told):
        sys.settrace(None)

    def _called(self, frame, event, _):
        path = frame.f_code.co_filename
        return self._ran if path.startswith(OURS) and not path.endswith(PASSED_OVER) else None

    def _ran(self, frame, event, _):
        if event == "line":
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
        return self._ran


def state(model):
    """All that a recording may change of a model, of this thread and of the process."""
    from torch._dynamo.eval_frame import _stance
    from torch.nn.attention.bias import CausalBias
    from transformers.modeling_utils import AttentionInterface

    hooks = [(name, len(getattr(one, name))) for one in model.modules() for name in HOOKS]
    of_process = [len(table) for name, table in vars(of_all).items() if name.endswith("_hooks")]
    swapped = CausalBias.__dict__.get("__new__"), vars(AttentionInterface)["get_interface"]
    return hooks, of_process, _get_current_dispatch_mode_stack(), swapped, _stance.stance


class Encoder(nn.Module):
    """Has what is watched in a way of its own: a fused layer, a recurrent one and plain ones."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(12, 3, 16, batch_first=True)
        self.reads, self.norm = nn.LSTM(12, 12, batch_first=True), nn.LayerNorm(12)

    def forward(self, x):
        return self.layer(self.norm(self.reads(x)[0]))


def of_transformers():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 9, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3}
    return transformers.BertModel(transformers.BertConfig(**sizes, intermediate_size=16)).eval()


MODELS = {
    "a module": lambda: (Encoder().eval(), torch.randn(1, 4, 12)),
    "of heedful": lambda: (
        GPT(GPTConfig(vocabulary=9, context_length=8, width=12, layers=1, heads=3)).eval(),
        torch.tensor([[1, 2, 3]]),
    ),
    "of transformers": lambda: (of_transformers(), torch.tensor([[1, 2, 3]])),
}


@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize("where", ["begins", "ends"])
def test_ctrl_c_while_a_recording_begins_or_ends_leaves_nothing_behind(where, build):
    model, given = MODELS[build]()
    with torch.no_grad(), heedful.record(model) as recording:
        expected = model(given)
    maps = [call.weights() for call in recording]
    before, at, is_interrupted = state(model), 0, True
    while is_interrupted:
        at += 1 if build == "a module" else 5
        context, ctrl_c = heedful.record(model), CtrlC(at)
        with suppress(KeyboardInterrupt):
            if where == "begins":
                with ctrl_c:
                    context.__enter__()
                context.__exit__(None, None, None)
            else:
                context.__enter__()
                with ctrl_c:
                    context.__exit__(None, None, None)
        is_interrupted = ctrl_c.left <= 0
        assert state(model) == before, at
    assert at > 50
    with torch.no_grad(), heedful.record(model) as recording:
        assert torch.equal(model(given)[0], expected[0])
    for call, map_ in zip(recording, maps, strict=True):
        assert torch.equal(call.weights(), map_)
