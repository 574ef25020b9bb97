"""The optimisers of undertow against those of PyTorch, on the same gradients."""

import jax
import numpy as np
import pytest
import torch

import undertow as ut
from tests.optimisers.sequences import ETA, GRADIENTS, START, moved

PAIRS = {
    "SGD": (ut.SGD(), torch.optim.SGD, {}),
    "momentum": (ut.SGD(0.9, weight_decay=0.1), torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    "Nesterov": (ut.SGD(0.9, nesterov=True), torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "RMSProp": (ut.RMSProp(0.95), torch.optim.RMSprop, {"alpha": 0.95}),
    "Adam": (ut.Adam(), torch.optim.Adam, {}),
    "AdamW": (ut.AdamW(b2=0.95, weight_decay=0.1), torch.optim.AdamW, {"betas": (0.9, 0.95), "weight_decay": 0.1}),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_thousand_steps_as_in_pytorch(name):
    ours, theirs, settings = PAIRS[name]
    params = torch.nn.Parameter(torch.tensor(START))
    optimizer = theirs([params], lr=ETA, **settings)
    for gradient in GRADIENTS:
        params.grad = torch.tensor(gradient)
        optimizer.step()
    with jax.enable_x64(True):
        end, state = moved(ours)
    np.testing.assert_allclose(end, params.detach().numpy(), rtol=1e-12, atol=1e-12)
    if name.startswith("Adam"):
        np.testing.assert_allclose(state["v"], optimizer.state[params]["exp_avg_sq"].numpy(), rtol=1e-12)


def test_a_pytorch_optimiser_is_refused(as_a_user):
    noise = ut.Minibatch(ut.Problem(lambda w, x: w * x, np.ones(2)), 1)
    wrong = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    with pytest.raises(TypeError, match="this is an optimiser of PyTorch; give the one of undertow"):
        ut.descend(noise, 0.0, optimiser=wrong, step_size=0.1, steps=2, key=0)
