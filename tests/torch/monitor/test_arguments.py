"""Models and censuses that a monitor refuses."""

import pytest
from torch import nn

from tests.torch.oracle import relu, relu_census
from undertow.torch.monitor.arguments import validate_census, validate_wrapper

pytestmark = pytest.mark.torch


def test_wrappers_that_hide_samples_or_parameters_are_refused():
    class FullyShardedDataParallel(nn.Module):
        pass

    with pytest.raises(ValueError, match="a DataParallel spreads the samples over replicas"):
        validate_wrapper(nn.DataParallel(relu()))
    with pytest.raises(ValueError, match=r"FullyShardedDataParallel \(FSDP1\) flattens the parameters"):
        validate_wrapper(FullyShardedDataParallel())
    validate_wrapper(relu())


def test_a_census_of_something_else_is_refused():
    validate_census(relu(), None)
    validate_census(relu(), relu_census())
    with pytest.raises(TypeError, match="`census` is a list; give `census"):
        validate_census(relu(), [])
    with pytest.raises(ValueError, match="NoiseMonitor"):
        validate_census(nn.Linear(2, 2), relu_census())
