"""The result of an analysis is a record that cannot be changed, and that JSON can hold."""

import json
import math
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

from tests.analysis.analyses import SIDES, analysis_of, row_of
from undertow.analysis.result import Path
from undertow.symmetry.curvature import Spectrum


def test_equal_rows_are_equal_and_others_are_not():
    assert row_of() == row_of()
    assert row_of() != row_of(charge=2.0)


@pytest.mark.parametrize(("record", "name"), [(row_of(), "charge"), (analysis_of(), "loss")])
def test_a_result_cannot_be_changed(record, name):
    with pytest.raises(FrozenInstanceError):
        setattr(record, name, 3.0)


def test_advice_is_added_to_a_copy():
    analysis = analysis_of(row_of())
    advised = replace(analysis, sentences=("Rest.",))
    assert analysis.sentences == ()
    assert advised.sentences == ("Rest.",)
    assert advised.rows is analysis.rows


def test_json_has_every_number_of_the_result():
    """Every field but the Python objects; spectra, paths and sides with all their values."""
    spectrum = Spectrum((3.0, -1.0), (1.0, 1.0), exact=True)
    path = Path("label noise", (0.0, 1.0), (2.0, 1.0))
    analysis = analysis_of(row_of(charge=math.inf, moved=math.nan), spectrum=spectrum, path=path)
    data = analysis.to_json()
    assert set(data) == {f.name for f in fields(analysis)} - {"symmetries", "forecast"}
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["spectrum"] == {"eigenvalues": [3.0, -1.0], "counts": [1.0, 1.0], "exact": True}
    assert data["path"] == {"noise": "label noise", "slow_time": [0.0, 1.0], "trace": [2.0, 1.0]}
    (row,) = data["rows"]
    assert set(row) == {f.name for f in fields(row_of())}
    assert row["charge"] is None
    assert row["moved"] is None
    assert row["now"]["charges"] == [0.5, -1.0]
    assert row["now"]["noise_plus"] == [1.0, 4.0]


def test_pushes_are_noise_plus_the_weight_decay_of_the_other_side():
    up, down = SIDES.pushes(0.1, 0.2)
    np.testing.assert_allclose(up, [1 + 4 * 1, 4 + 4 * 3])
    np.testing.assert_allclose(down, [1 + 4 * 2, 0 + 4 * 1])
