"""Layers that multiply a function of their input by a vector, and layers that only look like it."""

import contextlib

import pytest
import torch
from torch import nn

from undertow.torch.monitor.gains import GainLayers
from undertow.torch.monitor.replay import replayed_gradients

pytestmark = pytest.mark.torch
SAMPLES = 6


class Norm(nn.Module):
    """A norm whose output is a function of its weight and of the normalised input."""

    def __init__(self, form, start=1.0):
        super().__init__()
        self.weight, self.form = nn.Parameter(torch.full((5,), start, dtype=torch.float64)), form

    def forward(self, x):
        return self.form(self.weight, x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


class OverTheBatch(Norm):
    def forward(self, x):
        return self.weight * (x - x.mean(0, keepdim=True))


def both(module, shape=(SAMPLES, 4, 5)):
    """Return the gradients by one call on the batch (None for another form) and by one call for each sample."""
    torch.manual_seed(0)
    x, back = torch.randn(2, *shape, dtype=torch.float64)
    call = module, (x,), {}, [back], SAMPLES, 0, ["weight"]
    found = GainLayers().gradients(*call, contextlib.nullcontext())
    return found and found["weight"].gradients, replayed_gradients(*call, contextlib.nullcontext())["weight"].gradients


@pytest.mark.parametrize("shape", [(SAMPLES, 4, 5), (SAMPLES, 5), (SAMPLES, 2, 3, 5)])
@pytest.mark.parametrize(("form", "start"), [(lambda w, n: w * n, 1.0), (lambda w, n: (1 + w) * n, 0.0)])
def test_a_gain_gives_the_gradients_of_single_samples(form, start, shape):
    found, exact = both(Norm(form, start), shape)
    torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("start", [1.0, 0.3])
@pytest.mark.parametrize(
    "form",
    [
        lambda w, n: w**2 / 2 * n,  # at w = 1 its gradient is that of w * n
        lambda w, n: w * n + w.sum(),
        lambda w, n: w * n + w.flip(0) * n,
        lambda w, n: (2 + w) * n,
        lambda w, n: w * n * torch.rand(()),
        lambda w, n: torch.tanh(w) * n,
    ],
)
def test_other_forms_are_not_taken_for_a_gain(form, start):
    assert both(Norm(form, start))[0] is None


def test_a_layer_that_mixes_samples_is_not_taken_for_a_gain():
    assert both(OverTheBatch(None))[0] is None


def test_a_layer_with_other_parameters_or_buffers_is_not_taken_for_a_gain():
    shifted, remembering = Norm(lambda w, n: w * n), Norm(lambda w, n: w * n)
    shifted.bias = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    remembering.register_buffer("seen", torch.zeros(5))
    assert both(shifted)[0] is None
    assert both(remembering)[0] is None


def test_the_weight_and_the_hooks_of_the_layer_stay_as_they_are():
    module, calls = Norm(lambda w, n: w * n), []
    module.register_forward_hook(lambda *_: calls.append(1))
    weight = module.weight
    torch.manual_seed(0)
    x, back = torch.randn(2, SAMPLES, 5, dtype=torch.float64)
    GainLayers().gradients(module, (x,), {}, [back], SAMPLES, 0, ["weight"], contextlib.nullcontext())
    assert module.weight is weight
    assert weight.requires_grad
    assert calls == []


class RootMeanSquare(Norm):
    """A norm with numbers of its own, one of which is the eps of the root-mean-square norm, or none is."""

    def __init__(self, form, power=2.0, **numbers):
        super().__init__(form)
        self.power = power
        vars(self).update(numbers)

    def forward(self, x):
        return self.form(self.weight, x * (x.abs().pow(self.power).mean(-1, keepdim=True) + 1e-3).pow(-1 / self.power))


@pytest.mark.parametrize(
    ("module", "eps"),
    [
        (RootMeanSquare(lambda w, n: w * n, momentum=0.1, epsilon=1e-3), 1e-3),
        (RootMeanSquare(lambda w, n: (1 + w) * n, epsilon=1e-3, other=1e-6), 1e-3),
        (RootMeanSquare(lambda w, n: w * n, epsilon=1.01e-3), None),
        (RootMeanSquare(lambda w, n: w * n), None),
        (RootMeanSquare(lambda w, n: w * n, power=3.0, epsilon=1e-3), None),
        (Norm(lambda w, n: w * n), None),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_norm_of_pytorch_takes_the_place_of_the_same_norm_only(module, eps, dtype):
    torch.manual_seed(0)
    x, back = torch.randn(2, SAMPLES, 4, 5, dtype=torch.float64).to(dtype)
    layers, call = GainLayers(), (module, (x,), {}, [back], SAMPLES, 0, ["weight"])
    found = layers.gradients(*call, contextlib.nullcontext())
    assert layers._known[module].eps == eps
    exact = replayed_gradients(*call, contextlib.nullcontext())["weight"].gradients
    rounding = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.03}[dtype]
    torch.testing.assert_close(found["weight"].gradients.double(), exact.double(), rtol=rounding, atol=5 * rounding)
