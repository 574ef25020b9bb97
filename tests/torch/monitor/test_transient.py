"""Hooks that run on a model and not on its copies."""

import copy
import io

import pytest
import torch
from torch import nn

from undertow.torch.monitor.transient import TransientHook

pytestmark = pytest.mark.torch


def saved_and_loaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, saved_and_loaded])
def test_a_copy_of_a_model_runs_without_the_hook(duplicate):
    calls = []
    model = nn.Linear(2, 1)
    model.register_forward_hook(TransientHook(lambda name, *args: calls.append((name, len(args))), "own"))
    other = duplicate(model)
    other(torch.zeros(1, 2))
    assert calls == []
    model(torch.zeros(1, 2))
    assert calls == [("own", 3)]
