"""Axes and symmetries: moves along orbits compose, and gradients transform inversely."""

import numpy as np
import pytest
import torch

from undertow.torch import Axis, Symmetry
from undertow.torch.census.axes import fold, move, unfold

pytestmark = pytest.mark.torch


def scales(shift=0.0):
    """Return a symmetry of four scales: columns of `out` against rows of `into` and the bias."""
    index = np.arange(4)[:, None]
    plus = (Axis("out", 1, index, 4, role="in"),)
    minus = (Axis("into", 0, index, 4), Axis("bias", 0, index, 4, dimensions=1, shift=shift, role="bias"))
    return Symmetry("rescaling", plus, minus, 1, True, 0.0)


def linear_pair():
    """Return GL(2) on two blocks between `out` and `into`."""
    index = np.arange(4)[:, None]
    return Symmetry("GL", (Axis("out", 1, index, 4, role="in"),), (Axis("into", 0, index, 4),), 2, True, 0.0)


def tensors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"out": (3, 4), "into": (4, 5), "bias": (4,)}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def transforms(symmetry, count):
    generator = torch.Generator().manual_seed(1)
    if symmetry.block == 1:
        return [torch.rand(4, generator=generator, dtype=torch.float64) + 0.5 for _ in range(count)]
    eye = torch.eye(2, dtype=torch.float64)
    return [eye + 0.3 * torch.randn(2, 2, 2, generator=generator, dtype=torch.float64) for _ in range(count)]


BOTH = pytest.mark.parametrize("symmetry", [scales(), linear_pair()], ids=["scales", "GL"])


@BOTH
def test_the_product_of_the_two_sides_is_invariant(symmetry):
    values = tensors()
    (transform,) = transforms(symmetry, 1)
    moved = values | move(values, symmetry, transform)
    torch.testing.assert_close(moved["out"] @ moved["into"], values["out"] @ values["into"])
    assert not torch.allclose(moved["out"], values["out"])


@BOTH
def test_moves_compose(symmetry):
    values = tensors()
    one, two = transforms(symmetry, 2)
    twice = move(values | move(values, symmetry, one), symmetry, two)
    at_once = move(values, symmetry, one * two if symmetry.block == 1 else one @ two)
    for name in twice:
        torch.testing.assert_close(twice[name], at_once[name])


@BOTH
def test_a_moved_gradient_is_the_gradient_at_the_moved_point(symmetry):
    """The loss is a function of invariants: its gradient at the moved point is the moved gradient."""

    def gradient(values):
        leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
        loss = (leaves["out"] @ leaves["into"]).square().sum()
        if symmetry.block == 1:
            loss = loss + (leaves["out"] @ leaves["bias"]).square().sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return {
            name: torch.zeros_like(values[name]) if g is None else g for name, g in zip(values, gradients, strict=True)
        }

    values = tensors()
    (transform,) = transforms(symmetry, 1)
    expected = gradient(values | move(values, symmetry, transform))
    moved = move(gradient(values), symmetry, transform, gradient=True)
    for name, value in moved.items():
        torch.testing.assert_close(value, expected[name])


def test_a_shifted_parameter_scales_about_minus_the_shift():
    values, symmetry = tensors(), scales(shift=1.0)
    (transform,) = transforms(symmetry, 1)
    moved = move(values, symmetry, transform)
    torch.testing.assert_close(moved["bias"] + 1, (values["bias"] + 1) / transform)
    gradients = move(values, symmetry, transform, gradient=True)
    torch.testing.assert_close(gradients["bias"], values["bias"] * transform)


@pytest.mark.parametrize(("axis", "index"), [(0, [[0], [1]]), (1, [[3, 0], [1, 2]]), (2, [[1]])])
def test_fold_is_the_inverse_of_unfold(axis, index):
    tensor = torch.randn(2, 4, 3)
    one = Axis("weight", axis, np.array(index), tensor.shape[axis], 3)
    rows = unfold(tensor, one)
    assert rows.shape == (len(index), len(index[0]), tensor.numel() // tensor.shape[axis])
    torch.testing.assert_close(fold(tensor, one, rows), tensor)
    doubled = fold(tensor, one, 2 * rows)
    others = [k for k in range(tensor.shape[axis]) if k not in np.array(index)]
    torch.testing.assert_close(doubled.select(axis, index[0][0]), 2 * tensor.select(axis, index[0][0]))
    assert all(torch.equal(doubled.select(axis, k), tensor.select(axis, k)) for k in others)


def test_counts_and_names_of_symmetries():
    assert (linear_pair().generators, scales().generators) == (2 * 3, 4)
    assert linear_pair().block_sizes(3) == [2, 1]
    assert scales(1.0).name == "rescaling, 4 scales: into[i, :], (1 + bias) against out[:, i]"
    assert linear_pair().name == "GL, 2 x GL(2): into[i, :] against out[:, i]"
    assert scales(1.0).shifted
    assert not scales().shifted
    assert scales().parameters == ("out", "into", "bias")
    assert str(Axis("qkv", 0, np.arange(2, 4)[:, None], 6)) == "qkv[2:4, :]"
    assert str(Axis("qkv", 0, np.array([[0], [4]]), 6)) == "qkv[2 of 0:5, :]"
