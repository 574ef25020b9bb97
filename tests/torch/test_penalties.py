"""The formulas of the penalties give the same values for tensors and arrays."""

import numpy as np
import pytest
import torch

from undertow.grouped.penalties import irm_penalty, vrex_penalty, worst_case_weights

SHARES = np.array([0.5, 0.2, 0.3])
RISKS = np.array([1.0, 4.0, 2.0])


@pytest.mark.parametrize("function", [vrex_penalty, irm_penalty, lambda r, w: worst_case_weights(r, w, 3.0)])
def test_formulas_take_tensors(function):
    penalty = function(torch.tensor(RISKS), torch.tensor(SHARES))
    assert isinstance(penalty, torch.Tensor)
    np.testing.assert_allclose(penalty.numpy(), function(RISKS, SHARES))
