"""Calls that a recording keeps, of what a door would have seen."""

import torch
from torch import nn

from heedful.recorder.arranging import Seen
from heedful.recorder.axes.pass_inputs import Inputs
from heedful.recorder.finalizing import Settling
from heedful.recorder.module_stack import Frame
from heedful.recorder.observed_call import AXES
from heedful.recorder.options import Options
from heedful.recording.evidence import evidence_of, with_sums


def settled(seen, name="attend", heads=None):
    """The call of an observed one with told axes, each sequence a text of its own."""
    texts = len(seen.query)
    seen.axes = seen.axes or AXES
    evidence = evidence_of(
        seen.value, seen.output, {seen.query.dtype}, why=seen.why, finish=seen.finish
    )
    if seen.sums is not None:
        evidence = with_sums(evidence, seen.sums, seen.query, seen.output)
    inputs = Inputs(Frame("", nn.Identity(), (torch.zeros(texts, 2, 3),), {}))
    missed = {}
    settling = Settling(Options(heads=heads), missed.__setitem__)
    where = (("", 0),)
    call = settling(Seen(seen, evidence, name, 0, 0, where, 0, inputs, set(), set(), False, False))
    assert not missed
    return call
