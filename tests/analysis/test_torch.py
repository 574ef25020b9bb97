"""`undertow analyze` on a torch model: the same table and page, and numbers that agree with JAX's."""

import json
import subprocess
import sys

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import undertow as ut
from tests.cli.calls import call
from tests.torch.zoo import KNOWN, adapter, language, tokens
from undertow.analysis.jax import analyze as analyze_problem
from undertow.analysis.target import load
from undertow.analysis.torch import take_batches
from undertow.execution.registry import UserFileError
from undertow.torch import analyze

pytestmark = pytest.mark.torch

FILE = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1))
x = torch.randn(200, 3)
data = torch.utils.data.TensorDataset(x, torch.sin(x[:, :1]))
loss = lambda net, batch: (net(batch[0]) - batch[1]).square().mean()
task = (model, loss, data)
other_order = (model, data, loss)
without_loss = (model, x, x)
def make():
    return task
"""


def test_either_package_can_be_imported_first():
    for first, second in (("undertow.analysis.torch", "undertow.torch"), ("undertow.torch", "undertow.analysis.torch")):
        code = f"import {first}, {second}, undertow; print(undertow.torch.analyze is undertow.analysis.torch.analyze)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "True"


def test_a_file_of_ones_own(file, tmp_path, capsys):
    settings = ("--out", tmp_path / "out", "--step-size", 0.02, "--batch-size", 4)
    status, shown, _ = call(capsys, "analyze", f"{file}:task", *settings)
    assert status == 0
    shown = shown.replace("\n", " ")
    assert "25 parameters" not in shown
    assert "31 parameters" in shown
    assert "largest stable step of gradient descent goes from" in shown
    assert "At equilibrium Tr H" in shown
    assert "lambda_max" in shown
    page = (tmp_path / "out" / "analysis.html").read_text()
    assert "rescaling, 6 scales: 0.weight[i, :], 0.bias against 2.weight[:, i]" in page
    assert "gradients of batches" in page
    assert "At equilibrium Tr H" in page
    refuse_another_function(file, tmp_path / "out" / "equilibrium.npz")


def refuse_another_function(file, saved):
    """The params at equilibrium, loaded into the model of the file: other weights, the same outputs."""
    space: dict = {}
    exec(file.read_text(), space)
    model, x = space["model"], space["x"]
    before, first = model(x), model[0].weight.detach().clone()
    with np.load(saved) as file_of_arrays:
        arrays = dict(file_of_arrays)
    assert set(arrays) == set(dict(model.named_parameters()))
    model.load_state_dict({name: torch.from_numpy(arrays[name]) for name in arrays}, strict=False)
    assert not torch.allclose(first, model[0].weight, rtol=1e-2)
    torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-5)


def test_a_model_alone_is_refused(file, tmp_path, capsys):
    status, _, complaint = call(capsys, "analyze", f"{file}:model", "--out", tmp_path / "out")
    assert status != 0
    assert "(model, batches, loss)" in complaint.replace("\n", " ")


def test_data_and_loss_of_a_file_may_be_in_either_order(file):
    orders = [load(f"{file}:{name}", "params") for name in ("task", "other_order")]
    assert all(callable(target.loss) and hasattr(target.data, "tensors") for target in orders)
    with pytest.raises(UserFileError, match=r"is \(Sequential, Tensor, Tensor\); let the object be \(model, batch"):
        load(f"{file}:without_loss", "params")


def test_the_same_row_as_for_jax():
    """One sample a batch; JAX's covariance of N known samples is (N - 1)/N of torch's estimate."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    x = torch.randn(30, 4, dtype=torch.float64)
    y = torch.sin(x[:, :2])
    loss = lambda model, batch: (model(batch[0]) - batch[1]).square().sum()
    one = analyze(net, [(x[k : k + 1], y[k : k + 1]) for k in range(30)], loss, step_size=0.01)
    with jax.enable_x64(True):
        params = {name.replace(".", "_"): jnp.asarray(p.detach().numpy()) for name, p in net.named_parameters()}

        def sample_loss(p, sample):
            hidden = jax.nn.relu(p["0_weight"] @ sample[0] + p["0_bias"])
            return jnp.sum((p["2_weight"] @ hidden + p["2_bias"] - sample[1]) ** 2)

        task = ut.Problem(sample_loss, (jnp.asarray(x.numpy()), jnp.asarray(y.numpy())))
        two = analyze_problem(task, params, step_size=0.01, batch_size=1)
    (ours,), (theirs,) = one.rows, two.rows
    assert ours.generators == theirs.generators == 8
    for name in ("charge", "charge_at_equilibrium", "imbalance", "moved"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-4)
    assert ours.relaxation == pytest.approx(theirs.relaxation * 29 / 30, rel=1e-4)
    assert ours.slowest == pytest.approx(theirs.slowest * 29 / 30, rel=1e-4)
    assert one.loss == pytest.approx(two.loss, rel=1e-9)
    assert one.forecast.phase == two.forecast.phase
    assert one.forecast.equilibrium.charge[0].shape == two.forecast.equilibrium.charge[0].shape
    with jax.enable_x64(True):
        flat, unravel = jax.flatten_util.ravel_pytree(params)
        spread = lambda flat, sample: sample_loss(unravel(flat), sample)
        each = np.asarray(jax.vmap(jax.hessian(spread), in_axes=(None, 0))(flat, task.data))
    # Lanczos iteration, on the first eight batches of one sample: v'Hv for the eigenvectors v of both halves
    vectors = [np.linalg.eigh(each[first:8:2].mean(0))[1][:, -1] for first in range(2)]
    expected = np.mean([v @ each[:8].mean(0) @ v for v in vectors])
    assert one.largest_step == pytest.approx(2 / expected, rel=1e-2)
    traces = np.trace(each, axis1=1, axis2=2)
    for value, error in (one.sharpness, two.sharpness):
        assert abs(value - traces.mean()) <= 4 * error + 1e-9
    for spectrum, samples in ((one.spectrum, each[:8]), (two.spectrum, each)):
        np.testing.assert_allclose(spectrum.eigenvalues, np.linalg.eigvalsh(samples.mean(0))[::-1], atol=1e-9)
    factors = {"noise_plus": 29 / 30, "noise_minus": 29 / 30, "weight_plus": 1, "weight_minus": 1}
    for point in ("now", "then"):
        for name, factor in factors.items():
            sides = [np.array(getattr(getattr(row, point), name)) for row in (ours, theirs)]
            np.testing.assert_allclose(sides[0] * factor, sides[1], rtol=1e-3, atol=1e-6)
    assert json.loads(json.dumps(one.to_json(), allow_nan=False)).keys() == two.to_json().keys()
    # random signs have the variance 2 sum of H_jk^2 off the diagonal
    off = 2 * (np.square(each).sum((1, 2)) - np.square(np.diagonal(each, axis1=1, axis2=2)).sum(1))
    assert one.sharpness[1] == pytest.approx(((traces.var() + off.mean()) / 30) ** 0.5, rel=0.5)


def test_a_fresh_adapter_never_balances():
    torch.manual_seed(0)
    found = analyze(adapter(), [tokens(2, 9) for _ in range(3)], language)
    assert all(row.infinite == 3 and row.relaxation == float("inf") for row in found.rows)
    assert any("no finite equilibrium" in sentence for sentence in found.sentences)


def test_the_old_name_of_the_report_says_the_new_one():
    with pytest.raises(TypeError, match="called `report` now"):
        analyze(nn.Linear(1, 1), [torch.zeros(1, 1)] * 2, lambda model, x: model(x).sum(), tell=print)


def test_a_model_without_symmetries():
    torch.manual_seed(0)
    stages = []
    batches = [torch.randn(6, 5) for _ in range(4)]
    found = analyze(KNOWN["tanh"].build(), batches, KNOWN["tanh"].loss, report=stages.append)
    assert stages == ["searching symmetries", "computing noise and equilibrium", "measuring sharpness"]
    assert found.rows == ()
    assert "No exact symmetry" in found.sentences[0]


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(torch.arange(20.0))


class Endless(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return torch.zeros(2)


def test_data_of_all_kinds_become_batches(as_a_user):
    assert [len(batch) for batch in take_batches(Stream(), 8, 0)] == [8, 8]
    drawn = take_batches(torch.utils.data.TensorDataset(torch.arange(20.0)), 4, 0)
    assert [len(batch) for (batch,) in drawn] == [4] * 5
    assert sorted(torch.cat([batch for (batch,) in drawn]).tolist()) == list(range(20))
    with pytest.raises(TypeError, match=r"Endless.*the dataset has no `__len__`"):
        take_batches(Endless(), 4, 0)
    with pytest.raises(ValueError, match=r"analyze\(batches=.*different numbers of axes, as inputs and targets of one"):
        take_batches((torch.zeros(8, 3), torch.zeros(8)), 4, 0)
    with pytest.raises(TypeError, match="`batches` is an int"):
        take_batches(3, 4, 0)
