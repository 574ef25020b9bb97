"""The records of a sweep survive the way to disk and to a worker."""

import json
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from undertow.execution.sweeps.records import BlockTask, DescriptionRequest, ExperimentReference, Plan

PLAN = Plan((1, 2, 4), True, {"loss": ("größe", "check"), "end": ()}, {"verdicts": ["holds"], "claim": "x"}, "cpu")
REFERENCE = ExperimentReference("file.py:f", "abc", "smoke", in_process=False)
TASK = BlockTask(REFERENCE, (0, 1), 3, {"a": [0.5, 1.5], "word": ["x", "ß"]}, [4, 5], width=3, batched=True)


@pytest.mark.parametrize("plan", [PLAN, Plan((1,), False, {}, {}, "gpu")])
def test_a_plan_is_read_as_it_was_written(plan):
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_fields_that_a_later_version_adds_are_left_out():
    assert Plan.from_json(PLAN.to_json() | {"later": 1}) == PLAN


@pytest.mark.parametrize("name", ["tile", "batched", "dimensions", "attributes", "platform"])
def test_a_plan_without_a_field_is_damaged(name):
    stored = PLAN.to_json()
    del stored[name]
    with pytest.raises(KeyError, match=name):
        Plan.from_json(stored)


@pytest.mark.parametrize("tile", [[0, 2], [-1], [1.5], ["1"], [None]])
def test_a_tile_that_is_no_shape_is_damaged(tile):
    with pytest.raises(ValueError, match="is not a shape"):
        Plan.from_json(PLAN.to_json() | {"tile": tile})


@pytest.mark.parametrize("tile", [3, None])
def test_a_tile_that_is_no_list_is_damaged(tile):
    with pytest.raises(TypeError):
        Plan.from_json(PLAN.to_json() | {"tile": tile})


def test_the_parameters_of_a_run_are_a_row_of_the_columns():
    assert TASK.point(0) == {"a": 0.5, "word": "x"}
    assert TASK.point(1) == {"a": 1.5, "word": "ß"}
    with pytest.raises(IndexError):
        TASK.point(2)


@pytest.mark.parametrize("record", [TASK, DescriptionRequest(REFERENCE, 7, {"a": 0.5})], ids=["task", "request"])
def test_records_travel_to_other_processes(record):
    assert pickle.loads(pickle.dumps(record)) == record


def test_references_are_keys_of_caches():
    """A worker keeps the experiments that it has loaded: equal references are one, another digest is another."""
    same = ExperimentReference("file.py:f", "abc", "smoke", in_process=False)
    assert len({REFERENCE, same, replace(REFERENCE, digest="abd")}) == 2


def test_records_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        TASK.width = 4
