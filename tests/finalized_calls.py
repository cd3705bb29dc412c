"""Conversion of observed calls, as a door reports them, to stored calls."""

import torch
from torch import nn

from heedful.recorder.axes.pass_inputs import Inputs
from heedful.recorder.finalizing import Finalizer
from heedful.recorder.module_stack import Frame
from heedful.recorder.observed_call import AXES
from heedful.recorder.options import Options
from heedful.recorder.standard_axes import PendingCall
from heedful.recording.evidence import evidence_of, with_sums


def settled(observed, name="attend", heads=None):
    """Return the stored form of an observed call with given axes, one sequence per text."""
    texts = len(observed.query)
    observed.axes = observed.axes or AXES
    evidence = evidence_of(observed.value, observed.output, {observed.query.dtype},
                           why=observed.why, epilogue=observed.epilogue)  # fmt: skip
    if observed.sums is not None:
        evidence = with_sums(evidence, observed.sums, observed.query, observed.output)
    inputs = Inputs(Frame("", nn.Identity(), (torch.zeros(texts, 2, 3),), {}))
    missed = {}
    finalizer, path = Finalizer(Options(heads=heads), missed.__setitem__), (("", 0),)
    call = finalizer(
        PendingCall(observed, evidence, name, 0, 0, path, 0, inputs, set(), set(), False, False)
    )
    assert not missed
    return call
