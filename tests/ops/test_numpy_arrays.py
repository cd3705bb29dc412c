import numpy as np
import pytest
import torch

import heedful
from heedful.errors import ArgumentError
from heedful.ops import numpy_arrays

QUERY = np.random.default_rng(7).standard_normal((2, 4, 3, 5))
KEY = np.random.default_rng(8).standard_normal((2, 2, 7, 5))
MASK = np.tri(3, 7, 4, dtype=bool)


def tensors_of(*arrays):
    """Return the tensors that a function receives for query, key and value."""
    tensors = []

    @numpy_arrays.takes_arrays("query", "key", "value")
    def probe(query, key, value):
        tensors.extend([query, key, value])
        return query

    probe(*arrays)
    return tensors


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "form",
    [
        np.ascontiguousarray,
        np.asfortranarray,
        lambda array: np.concatenate([array, array], -1)[..., ::2],
        lambda array: array[:0],
    ],
    ids=["plain", "Fortran's order", "every second", "empty"],
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_no_copy_is_made_where_torch_can_read_the_array(form, dtype):
    query = form(QUERY.astype(dtype))
    (tensor, *_) = tensors_of(query, query, query)
    assert tensor.data_ptr() == query.__array_interface__["data"][0] or query.size == 0
    np.testing.assert_array_equal(tensor, query)


@pytest.mark.parametrize(
    "form",
    [
        lambda array: array[::-1, ..., ::-1],
        lambda array: array.astype(array.dtype.newbyteorder(">")),
        lambda array: array.astype([("number", array.dtype), ("byte", "u1")])["number"],
        lambda array: np.broadcast_to(array[:1], array.shape),
        read_only,
    ],
    ids=["reversed", "big-endian", "a field of records", "broadcast", "read-only"],
)
def test_arrays_that_torch_cannot_read_are_copied(form):
    query, key = form(QUERY), form(KEY)
    expected = heedful.attention(np.ascontiguousarray(query).astype("=f8"), key, key)
    np.testing.assert_array_equal(heedful.attention(query, key, key), expected)
    np.testing.assert_array_equal(tensors_of(query, key, key)[1], key)


def test_arguments_are_not_changed():
    query, key, mask, bias = QUERY.copy(), KEY.copy(), MASK.copy(), np.ones((3, 7))
    heedful.steps(query, key, key, mask=mask, bias=bias, causal=True)
    for array, original in [(query, QUERY), (key, KEY), (mask, MASK), (bias, np.ones((3, 7)))]:
        np.testing.assert_array_equal(array, original)


def test_streaming_attention_gives_arrays(as_a_user):
    mask = heedful.masks.Padding(np.array([True] * 5 + [False] * 2))
    arrays, tensors = (
        heedful.streaming_attention(form(QUERY), form(KEY), form(KEY), mask=mask)
        for form in (np.asarray, torch.from_numpy)
    )
    np.testing.assert_array_equal(arrays.output, tensors.output.numpy())
    assert type(arrays.log_sum_exp) is np.ndarray
    for name, statistic in tensors.statistics.items():
        np.testing.assert_array_equal(arrays.statistics[name], statistic.numpy())


@pytest.mark.parametrize("make", [heedful.masks.Dense, heedful.masks.Padding])
def test_masks_take_boolean_arrays(make, as_a_user):
    table = np.array([[False, True, True], [True, False, True]])[:, ::-1]
    table.flags.writeable = False
    if make is heedful.masks.Dense:
        expected, shape = torch.tensor(table.copy()), (2, 3)
    else:
        expected, shape = torch.tensor(table.copy())[:, None].expand(2, 4, 3), (2, 4, 3)
    assert torch.equal(make(table).crop(shape), expected)


def test_unequal_types_are_promoted_as_in_numpy():
    output = heedful.attention(QUERY.astype("f4"), KEY, KEY)
    assert output.dtype == np.float64
    expected = heedful.attention(QUERY.astype("f4").astype("f8"), KEY, KEY)
    np.testing.assert_array_equal(output, expected)


BAD = {
    "a tensor for key": ({"key": torch.ones(7, 5)}, "key of type Tensor.*all as tensors"),
    "a tensor for mask": ({"mask": torch.ones(3, 7, dtype=torch.bool)}, "mask of type Tensor"),
    "a tensor for query": ({"query": torch.ones(3, 5)}, "query of type Tensor"),
    "a list for query": ({"query": [[1.0]]}, "query of type list.*NumPy array"),
    "integers": ({"query": np.ones((3, 5), int)}, r"query array of type int64.*astype\(np.float32"),
    "an additive mask": ({"mask": np.zeros((3, 7))}, "mask array of type float64.*bias="),
    "a boolean bias": ({"bias": np.ones((3, 7), bool)}, "bias array of type bool"),
    "a shape": ({"mask": np.ones((3, 6), bool)}, "broadcasts"),
    "a masked array": ({"value": np.ma.ones((7, 5))}, "MaskedArray"),
    "a word for mask": ({"mask": "causal"}, "mask of type str.*heedful.masks"),
}


@pytest.mark.parametrize("function", [heedful.attention, heedful.steps])
@pytest.mark.parametrize("case", BAD)
def test_wrong_arguments_raise_one_line(function, case, as_a_user):
    changes, words = BAD[case]
    arguments = {"query": QUERY[0, 0], "key": KEY[0, 0], "value": KEY[0, 0], **changes}
    inputs = [arguments.pop(name) for name in ("query", "key", "value")]
    with pytest.raises(ArgumentError, match=words) as caught:
        function(*inputs, **arguments)
    assert "\n" not in str(caught.value)
