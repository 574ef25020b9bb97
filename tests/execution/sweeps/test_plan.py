"""The plan of a sweep: parameters and outputs are checked before blocks run."""

import pytest

import undertow as ut
from tests.execution.sweeps.functions import empty, empty_alone, shadowed, vector, vector_alone
from undertow.execution.sweeps.spec import SpecError


@pytest.mark.parametrize(
    ("function", "axis", "sentence"),
    [
        (vector, "value_0", "dimension 'value_0' of the output 'value' is also a name of the sweep"),
        (vector_alone, "value_0", "dimension 'value_0' of the output 'value' is also a name of the sweep"),
        (shadowed, "a", "dimension 'value_0' of the output 'value' is also an output"),
        (empty, "a", "returns no outputs"),
        (empty_alone, "a", "returns no outputs"),
    ],
)
def test_outputs_that_the_results_cannot_hold_are_told(tmp_path, function, axis, sentence):
    """Of a function that traces before anything runs; of another after its first block."""
    with pytest.raises(SpecError, match=sentence):
        ut.sweep(function, {axis: [1.0, 2.0]}, out=tmp_path)
    assert not list(tmp_path.glob("*/results.zarr"))
    assert len(list(tmp_path.glob("*/plan.json"))) == function.__name__.endswith("_alone")
