"""Checks of models, batches and losses of PyTorch: one sentence for each bad input, and what passes."""

import numpy as np
import pytest
import torch

from tests.bad_input.cases import Case, assert_sentence
from tests.torch.bad_input import BATCH, CASES, move, net, sampler, square
from undertow.torch import LabelNoise, NoiseMonitor, census

pytestmark = pytest.mark.torch
BY_ARGUMENT: dict[str, list[Case]] = {}
for case in CASES:
    BY_ARGUMENT.setdefault(case.name.partition(":")[0], []).append(case)


def test_the_table_has_at_least_200_cases():
    assert len(CASES) >= 200


@pytest.mark.parametrize("argument", BY_ARGUMENT)
def test_bad_input_is_explained(argument, as_a_user, subtests):
    for case in BY_ARGUMENT[argument]:
        with subtests.test(case.name):
            assert_sentence(case)


class OwnError(Exception):
    """An exception of a user."""


def fails(model, batch):
    model(batch)
    raise OwnError("my own words")


@pytest.mark.parametrize("function", ["census", "equilibrate"])
def test_an_exception_of_the_user_passes_with_one_line_of_context(function):
    call = {"census": lambda: census(net(), BATCH, fails), "equilibrate": lambda: move(loss=fails)}[function]
    with pytest.raises(OwnError) as caught:
        call()
    assert caught.value.args == ("my own words",)
    assert caught.value.__notes__ == [f"undertow called `loss(model, batch)` of `{function}` here."]


@pytest.mark.parametrize("function", ["census", "equilibrate"])
def test_a_list_of_batches_in_the_place_of_one_is_explained(function, as_a_user):
    call = {"census": lambda: census(net(), [BATCH, BATCH], square), "equilibrate": lambda: move(batches=[[BATCH]] * 4)}
    with pytest.raises(TypeError, match=rf"`{function}\(loss=...\)`: .*; give one batch, not a list of batches"):
        call[function]()


def test_seeded_random_numbers_pass(as_a_user):
    """Dropout, and numbers of the generators that are seeded before every pass, give the same loss twice."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(3, 2))
    loss = lambda model, x: square(model, x) * (1 + 0.1 * float(np.random.rand()))  # noqa: NPY002
    assert len(census(model, BATCH, loss)) == 1


def test_numbers_of_numpy_are_accepted(as_a_user):
    assert len(census(net(), BATCH, square, seed=np.int64(3), count=np.True_)) == 1
    assert move(step_size=np.float32(0.1), weight_decay=torch.tensor(0.1).item(), seed=np.int64(1)).change < 1e-4
    assert len(sampler(batch_size=np.int64(2), seed=np.int64(3), shuffle=np.True_)) == 3
    assert LabelNoise(np.float32(0.5))(torch.zeros(3)).abs().eq(0.5).all()
    with NoiseMonitor(net(), every=np.int64(2)) as monitor:
        assert monitor.every == 2
