"""Per-sample gradients as outer products: the same sums and probes as the gradients themselves."""

import pytest
import torch

from undertow.torch.monitor.sample_gradients import Dense, Outer, Scattered, gradient_probe

pytestmark = pytest.mark.torch


def outer(flipped, positions=3):
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    shape = (6, 4) if flipped else (4, 6)
    return Outer(draw(7, positions, 4), draw(7, positions, 6), shape, flipped)


@pytest.mark.parametrize("flipped", [False, True])
def test_gradients_are_sums_of_outer_products(flipped):
    factors = outer(flipped)
    expected = torch.einsum("sto,sti->soi", factors.out, factors.into)
    expected = expected.mT if flipped else expected
    torch.testing.assert_close(factors.formed(), expected)
    torch.testing.assert_close(factors.formed(2, 5), expected[2:5])
    torch.testing.assert_close(factors.total(), expected.sum(0))
    torch.testing.assert_close(torch.cat([chunk.formed() for chunk in factors.chunks(2**17)]), expected)
    dense = Dense(expected)
    torch.testing.assert_close(dense.formed(2, 5), expected[2:5])
    torch.testing.assert_close(dense.total(), expected.sum(0))


@pytest.mark.parametrize("flipped", [False, True])
def test_the_probe_is_that_of_the_whole_gradient(flipped):
    factors = outer(flipped)
    torch.testing.assert_close(factors.probe(), gradient_probe(factors.total(), flipped))
    torch.testing.assert_close(gradient_probe(factors.total(), None), factors.total().flatten())


def test_gradients_of_an_embedding_have_the_rows_of_its_tokens():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 4, (7, 5), generator=generator)  # repeated within and between samples
    out = torch.randn(7, 5, 3, generator=generator, dtype=torch.float64)
    rows = Scattered(tokens, out, (6, 3))
    expected = torch.einsum("stv,std->svd", torch.nn.functional.one_hot(tokens, 6).double(), out)
    torch.testing.assert_close(rows.formed(), expected)
    torch.testing.assert_close(rows.formed(2, 5), expected[2:5])
    torch.testing.assert_close(rows.total(), expected.sum(0))
    by_row, by_column = rows.row_squares()
    torch.testing.assert_close(by_row, expected.square().sum((0, 2)))
    torch.testing.assert_close(by_column, expected.square().sum((0, 1)))
    torch.testing.assert_close(rows.probe(), gradient_probe(rows.total(), True))
    assert rows.samples == Dense(expected).samples == 7
    assert rows.as_outer() is None


def test_chunks_fit_in_memory():
    sizes = [len(chunk.out) for chunk in outer(False).chunks(2**21 // (8 * 3))]
    assert sizes == [3, 3, 1]


@pytest.mark.parametrize("flipped", [False, True])
def test_each_axis_has_its_factor(flipped):
    factors = outer(flipped)
    own, other, inner = factors.factors(0)
    assert (own is factors.into, other is factors.out, inner) == ((True, True, 1) if flipped else (False, False, 1))
    convolution = Outer(factors.out, factors.into, (4, 2, 3))
    assert convolution.factors(1)[2] == 3  # two channels with three entries of the kernel each
