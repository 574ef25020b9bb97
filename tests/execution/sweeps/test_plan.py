"""The plan of a sweep: parameters and outputs are checked before blocks run."""

from pathlib import Path

import pytest

import undertow as ut
from tests.execution.sweeps.functions import empty, empty_alone, shadowed, vector, vector_alone
from undertow.execution.pool import Outcome, WorkerDiedError
from undertow.execution.sweeps import plan as plans
from undertow.execution.sweeps.blocks import Tiling
from undertow.execution.sweeps.plan import Job, dimensions_of, make_plan, task_of
from undertow.execution.sweeps.records import Description, Plan
from undertow.execution.sweeps.spec import SpecError, as_spec
from undertow.execution.workers import InProcess, WorkersUnreachableError

AXES = {"a": [1, 2.5, 3], "n": [5, 6]}


def job_of(axes=AXES, parameters=None, seeds=4, seed=0, **description) -> Job:
    """Return a sweep whose experiment has this description; a worker would compute it."""
    fields = {
        "kinds": {"a": "float", "n": "int", "word": "str"}, "needed": ("a",), "platform": "gpu", "device": "a fast one",
        "memory": 2**30, "batched": True, "run_bytes": 2**10,
    }  # fmt: skip
    made = Description(**fields | description)
    spec = as_spec("own.py:f", axes, parameters, seeds, seed)
    return Job(spec, "own.py:f", "digest", Path("unused"), lambda request: made, lambda task: None)


def planned(job: Job) -> tuple[Plan, str]:
    """Return the plan and its summary."""
    sentences: list[str] = []
    plan = make_plan(job, InProcess(), sentences.append)
    (sentence,) = sentences
    return plan, sentence


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


def test_static_parameters_do_not_share_a_block():
    plan, sentence = planned(job_of())
    assert plan == Plan((3, 1, 4), True, {}, {}, "gpu")
    assert sentence == (
        "3 x 2 points (a, n) of 4 seeds: 24 runs in 2 blocks, each one program of 12 runs; about 12 KiB of memory per "
        "block; 1 at a time in this process (a fast one)."
    )


def test_a_sweep_of_one_run_is_planned():
    plan, sentence = planned(job_of({"a": [1.0]}, seeds=1))
    assert plan.tile == (1, 1)
    assert sentence.startswith("1 points (a) of 1 seed: 1 runs in 1 block, each one program of 1 runs;")


def test_points_that_run_one_by_one_share_blocks_whatever_their_parameters_are():
    plan, sentence = planned(
        job_of({"n": list(range(50))}, {"a": 1.0}, seeds=100, batched=False, why="it reads a file")
    )
    assert plan.tile == (1, 5)  # 5,000 runs in 1,000 blocks
    assert "run one by one: it reads a file;" in sentence


def test_an_axis_is_static_if_one_of_its_parameters_is():
    plan, _ = planned(job_of({"pair": {"zip": {"a": [1.0, 2.0], "n": [1, 2]}}}))
    assert plan.tile == (1, 4)


def test_the_runs_of_a_claim_are_blocks_of_their_own():
    described = {"batched": False, "dimensions": {"measured": ("check",)}, "attributes": {"claim": "x"}}
    plan, _ = planned(job_of(seeds=4000, **described))
    assert plan.tile == (1, 1, 1)
    assert plan.dimensions == {"measured": ("check",)}
    assert plan.attributes == {"claim": "x"}


@pytest.mark.parametrize(
    ("axes", "more", "message"),
    [
        ({"a": [1.0], "n": [1, 2, 2.5]}, {}, "n = 2.5: n is a whole number"),
        ({"a": [1.0], "word": ["x", 1]}, {}, "word = 1: word is text"),
        ({"a": [1.0], "b": [1]}, {}, "no parameter 'b'"),
        ({"n": [1]}, {}, "the parameter a has no value and no default"),
        ({"a": [1.0]}, {"ranks": {"a": 0}}, "returns 'a', which is a name of the sweep"),
        ({"a": [1.0]}, {"ranks": {"v": 1, "v_0": 0}}, "dimension 'v_0' of the output 'v' is also an output"),
        ({"a": [1.0]}, {"dimensions": {"v": ("a",)}}, "dimension 'a' of the output 'v' is also a name of the sweep"),
    ],
)
def test_every_value_and_every_output_is_checked_before_a_block_runs(axes, more, message):
    with pytest.raises(SpecError, match=message):
        planned(job_of(axes, **more))


def test_an_error_while_the_experiment_is_described_is_raised():
    job = job_of()
    job.describe = lambda request: 1 / 0
    with pytest.raises(ZeroDivisionError):
        planned(job)


def test_an_experiment_that_kills_its_worker_is_named(monkeypatch):
    died = lambda workers, work, tasks: iter([Outcome(task, error=WorkerDiedError("it died")) for task in tasks])
    monkeypatch.setattr(plans, "run_tasks", died)
    with pytest.raises(
        WorkersUnreachableError, match=r"own.py:f: the worker died while it described the experiment \(it died"
    ):
        planned(job_of())


def test_the_worker_is_asked_about_the_first_point():
    job, requests = job_of(parameters={"word": "x"}, seed=9), []
    describe = job.describe
    job.describe = lambda request: (requests.append(request), describe(request))[1]
    planned(job)
    (request,) = requests
    assert request.first == {"a": 1, "n": 5, "word": "x"}
    assert request.seed == 9
    assert (request.reference.experiment, request.reference.digest) == ("own.py:f", "digest")
    assert (request.reference.scale, request.reference.in_process) == ("smoke", True)


def test_dimensions_are_named_by_the_experiment_or_numbered():
    assert dimensions_of("v", 2, {}) == ("v_0", "v_1")
    assert dimensions_of("v", 0, {}) == ()
    assert dimensions_of("v", 1, {"v": ("check",), "w": ("x",)}) == ("check",)


def test_a_task_has_a_row_per_run_of_its_block():
    """The last block of a grid of 3 x 2 points with 3 seeds, in tiles of 2 x 1 x 2."""
    job = job_of({"a": [1.0, 2.0, 3.0], "pair": {"zip": {"n": [5, 6], "word": ["x", "ß"]}}}, {"fixed": 7}, 3, seed=9)
    tiling = Tiling(job.spec.shape, (2, 1, 2))
    plan = Plan(tiling.tile, True, {}, {}, "cpu")
    first = task_of(job, plan, tiling, (0, 0, 0), InProcess())
    assert [first.point(k) for k in range(4)] == [
        {"fixed": 7, "a": a, "n": 5, "word": "x"} for a in (1.0, 1.0, 2.0, 2.0)
    ]
    assert first.seeds == [0, 1, 0, 1]
    last = task_of(job, plan, tiling, (1, 1, 1), InProcess())
    assert last.point(0) == {"fixed": 7, "a": 3.0, "n": 6, "word": "ß"}
    assert (last.seeds, last.width, last.root, last.block, last.batched) == ([2], 4, 9, (1, 1, 1), True)


def test_the_tasks_of_all_blocks_are_all_runs_once():
    job = job_of(seeds=5)
    tiling = Tiling(job.spec.shape, (2, 1, 3))
    plan = Plan(tiling.tile, True, {}, {}, "cpu")
    tasks = [task_of(job, plan, tiling, block, InProcess()) for block in tiling.blocks()]
    runs = [(*task.point(k).values(), seed) for task in tasks for k, seed in enumerate(task.seeds)]
    assert sorted(runs) == [(a, n, seed) for a in AXES["a"] for n in AXES["n"] for seed in range(5)]
