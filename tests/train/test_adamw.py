import subprocess
import sys

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.train.adamw import AdamW


@settings(max_examples=20)
@given(st.integers(0, 99), st.sampled_from([0.0, 0.3]), st.floats(0.0, 0.99), st.floats(0.5, 0.999))
def test_each_step_is_torchs_bit_for_bit(seed, decay, beta1, beta2):
    torch.manual_seed(seed)
    shapes = [(3, 5), (7,), (2, 1, 4)]
    mine = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [torch.nn.Parameter(one.detach().clone()) for one in mine]

    def groups(parameters):
        return [{"params": parameters[:1], "weight_decay": decay}, {"params": parameters[1:]}]

    given = {"lr": 0.03, "betas": (beta1, beta2), "weight_decay": 0.1}
    ours, torchs = (
        AdamW(groups(mine), **given),
        torch.optim.AdamW(groups(theirs), **given, fused=True),
    )
    for step in range(4):
        for one, other in zip(mine, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        if step == 1:
            mine[2].grad = theirs[2].grad = None  # it has no part in this step
        ours.step()
        torchs.step()
        for one, other in zip(mine, theirs, strict=True):
            assert torch.equal(one, other)
    for one, other in zip(mine, theirs, strict=True):
        state, expected = ours.state[one], torchs.state[other]
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[name], expected[name]) for name in state)


STEP = """
import sys, torch
from heedful.models import GPT, GPTConfig, loss
from heedful.train import TrainSettings
from heedful.train.optimizers import make_optimizer, set_rates
model, ids = GPT(GPTConfig(vocabulary=9)), torch.ones(1, 5, dtype=torch.int64)
settings = TrainSettings(optimizer="muon")
optimizer = make_optimizer(model, settings)
set_rates(optimizer, 0, settings)
loss(model(ids).logits, ids).backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
print("torch._dynamo" in sys.modules)
"""


def test_a_step_does_not_bring_torchs_compiler():
    done = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
