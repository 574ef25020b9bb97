"""The result of an analysis is a record that cannot be changed."""

from dataclasses import FrozenInstanceError, replace

import pytest

from tests.analysis.analyses import analysis_of, row_of


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
