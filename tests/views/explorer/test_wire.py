"""Numbers on their way to the page come out as they went in."""

import json
import math
import struct

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from heedful.views.explorer.wire import packed, unpacked

TYPES = ["float16", "float32", "int32", "uint8"]
WORDS = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(max_examples=60)
@given(
    head=st.dictionaries(st.text(max_size=9).filter(lambda name: name != "arrays"), WORDS),
    parts=st.lists(
        st.sampled_from(TYPES).flatmap(
            lambda kind: arrays.arrays(
                kind, arrays.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=5)
            )
        ),
        max_size=4,
    ),
)
def test_a_head_and_arrays_come_back(head, parts):
    named = {f"array {i}": torch.from_numpy(np.array(part)) for i, part in enumerate(parts)}
    data = packed(head, **named)
    (length,) = struct.unpack_from("<I", data)
    assert (4 + length) % 8 == 0
    found, came = unpacked(data)
    assert found == json.loads(json.dumps(head))
    assert list(came) == list(named)
    for part, back in zip(parts, came.values(), strict=True):
        assert (back.dtype, back.shape) == (part.dtype, part.shape)
        np.testing.assert_array_equal(back, part)


def test_wider_types_are_narrowed_and_what_is_no_number_has_a_word():
    head = {"log": -math.inf, "most": [math.inf, {"mean": math.nan}]}
    found, came = unpacked(packed(head, a=torch.ones(2, dtype=torch.float64), b=torch.arange(3)))
    assert found == {"log": "-inf", "most": ["inf", {"mean": None}]}
    assert (came["a"].dtype, came["b"].dtype) == (np.float32, np.int32)
