"""Word vectors, compared with document 001's numbers and with SciPy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cosine as distance

from heedful.errors import ArgumentError
from heedful.text.example_texts import FAMILY
from heedful.text.similarity import analogy, cosine, nearest, principal_plane
from heedful.text.word_vectors import WordVectors


@given(st.integers(1, 9), st.integers(2, 8), st.integers(1, 12), st.integers(0, 999), st.booleans())
def test_the_nearest_are_those_of_scipy(V, d, count, seed, excludes_first):
    torch.manual_seed(seed)
    table, vector = torch.randn(V, d), torch.randn(d)
    table[seed % V] = 0.0  # has no direction
    excluded = [0] if excludes_first else []
    closest = nearest(table, vector, count, excluded)
    candidates = [row for row in range(V) if row != seed % V and row not in excluded]
    expected = {row: 1 - distance(table[row].double(), vector.double()) for row in candidates}
    order = sorted(candidates, key=lambda row: -expected[row])[:count]
    np.testing.assert_allclose(closest.similarities, [expected[row] for row in order], atol=1e-5)
    assert len(set(closest.rows.tolist())) == len(order)


def test_equal_rows_are_in_the_order_of_the_table():
    table = torch.ones(40, 3)
    assert nearest(table, table[0], 7, [2]).rows.tolist() == [0, 1, 3, 4, 5, 6, 7]


def test_lists_and_unequal_widths_are_refused():
    for call in (cosine, lambda a, b: analogy(a, b, b), lambda a, b: nearest(a, b)):
        with pytest.raises(ArgumentError, match="of type list"):
            call([1.0, 2.0], [2.0, 1.0])
        with pytest.raises(ArgumentError, match="2 and 3 numbers"):
            call(torch.ones(2), torch.ones(3))


def test_zeros_have_no_direction():
    zeros = torch.zeros(3)
    with pytest.raises(ArgumentError, match="a vector of zeros"):
        cosine(zeros, torch.ones(3))
    with pytest.raises(ArgumentError, match="a vector of zeros"):
        nearest(torch.ones(2, 3), zeros)


@pytest.mark.parametrize(("n", "d"), [(1, 3), (2, 1), (5, 4), (9, 2), (4, 9)])
def test_principal_variances_equal_numpys_covariance(n, d):
    vectors = torch.randn(n, d)
    plane = principal_plane(vectors)
    variances = np.linalg.eigvalsh(np.atleast_2d(np.cov(vectors.T.double(), bias=True)))[::-1]
    variances = np.pad(variances, (0, 2))[:2] if n > 1 else np.zeros(2)
    np.testing.assert_allclose(plane.coordinates.var(dim=0, correction=0), variances, atol=1e-6)
    total = float(vectors.double().var(dim=0, correction=0).sum())
    np.testing.assert_allclose(plane.shares * total, variances, atol=1e-6)


def test_document_001_in_numpy():
    """NumPy arrays give NumPy arrays of the same dtype, equal to NumPy's results."""
    words = WordVectors(list(FAMILY), list(FAMILY.values()))
    mom, dad, king, queen = (words[word] for word in ("mom", "dad", "king", "queen"))
    for a, b, printed in ((mom, dad, 0.88), (mom, king, 0.52)):
        value = cosine(a, b)
        assert type(value) is np.float64
        np.testing.assert_allclose(value, a @ b / np.linalg.norm(a) / np.linalg.norm(b), rtol=1e-14)
        assert round(float(value), 2) == printed
    np.testing.assert_allclose(analogy(king, queen, dad), mom, rtol=1e-14)
    closest = nearest(words.table, analogy(king, queen, dad), count=2, leave_out=[1])
    assert type(closest.rows) is type(closest.similarities) is np.ndarray
    assert [words.words[row] for row in closest.rows] == ["mom", "dad"]
    assert principal_plane(words.table).coordinates.dtype == np.float64
    tensors = [torch.tensor(FAMILY[word]) for word in ("king", "queen", "dad", "mom")]
    torch.testing.assert_close(analogy(*tensors[:3]), tensors[3])
    with pytest.raises(ArgumentError, match=r"b array of type int64.*astype"):
        cosine(mom, np.array([1, 2, 3]))
