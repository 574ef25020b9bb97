"""Old public names raise an error with the new name."""

import pytest
import torch

import undertow.torch as bridge
from tests.torch.oracle import relu, relu_census, square
from undertow.torch import NoiseMonitor, analyze, equilibrate
from undertow.torch.equilibrium.result import MovedSymmetry
from undertow.torch.monitor.reading import Reading

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("old", "new"),
    [("Relation", "Symmetry"), ("Equilibrated", "Equilibrium"), ("gamma_of", "lambda"), ("lambda_of", "lambda")],
)
def test_old_names_of_the_module_raise_an_error_with_the_new_name(old, new):
    with pytest.raises(AttributeError, match=new):
        getattr(bridge, old)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bridge.nothing


@pytest.mark.parametrize(
    ("owner", "old", "new"),
    [
        (relu_census, "relations", "Census.symmetries"),
        (relu_census, "silent", "Census.without_gradient"),
        (lambda: MovedSymmetry, "relation", "MovedSymmetry.symmetry"),
        (lambda: Reading, "relation", "Reading.symmetry"),
        (lambda: NoiseMonitor, "ways", "NoiseMonitor.algorithms"),
    ],
)
def test_old_names_of_attributes_raise_an_error_with_the_new_name(owner, old, new):
    with pytest.raises(AttributeError, match=new):
        getattr(owner(), old)
    assert not hasattr(owner(), old)


def test_old_orders_of_arguments_raise_an_error_with_the_new_order(as_a_user):
    model, batches = relu(), [torch.randn(4, 5, dtype=torch.float64) for _ in range(2)]
    with pytest.raises(TypeError, match=r"equilibrate\(model, batches, loss, census"):
        equilibrate(model, relu_census(), batches, square, step_size=0.1)
    with pytest.raises(TypeError, match=r"analyze\(model, batches, loss\)"):
        analyze(model, square, batches)
