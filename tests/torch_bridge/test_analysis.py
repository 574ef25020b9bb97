"""`undertow analyze` on a torch model: the same table and page, and numbers that agree with JAX's."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn
from zoo import KNOWN, adapter, language, tokens

import undertow as ut
from undertow import cli
from undertow.analysis import analyze as analyze_problem
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
def make():
    return task
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def run(*arguments):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["analyze", *map(str, arguments)])
    return stopped.value.code


def test_a_file_of_ones_own(file, tmp_path, capsys):
    assert run(f"{file}:task", "--out", tmp_path / "out", "--step-size", 0.02, "--batch-size", 4) == 0
    shown = capsys.readouterr().out.replace("\n", " ")
    assert "25 parameters" not in shown
    assert "31 parameters" in shown
    assert "largest stable step from" in shown
    page = (tmp_path / "out" / "analysis.html").read_text()
    assert "rescaling, 6 scales: 0.weight[i, :], 0.bias against 2.weight[:, i]" in page
    assert "gradients of batches" in page


def test_a_model_alone_is_refused(file, tmp_path, capsys):
    assert run(f"{file}:model", "--out", tmp_path / "out") != 0
    assert "(model, loss, data)" in capsys.readouterr().err.replace("\n", " ")


def test_the_same_row_as_for_jax():
    """One sample a batch; JAX's covariance of N known samples is (N - 1)/N of torch's estimate."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    x = torch.randn(30, 4, dtype=torch.float64)
    y = torch.sin(x[:, :2])
    loss = lambda model, batch: (model(batch[0]) - batch[1]).square().sum()
    one = analyze(net, loss, [(x[k : k + 1], y[k : k + 1]) for k in range(30)], step_size=0.01)
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


def test_a_fresh_adapter_never_balances():
    torch.manual_seed(0)
    found = analyze(adapter(), language, [tokens(2, 9) for _ in range(3)])
    assert all(row.infinite == 3 and row.relaxation == float("inf") for row in found.rows)
    assert any("no finite equilibrium" in sentence for sentence in found.sentences)


def test_a_model_without_symmetries():
    torch.manual_seed(0)
    found = analyze(KNOWN["tanh"].build(), KNOWN["tanh"].loss, [torch.randn(6, 5) for _ in range(4)])
    assert found.rows == ()
    assert "No exact symmetry" in found.sentences[0]


def test_without_torch_the_bridge_says_what_to_install():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import undertow; undertow.Problem\n"
        "try:\n    import undertow.torch\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'undertow[torch]'" in done.stdout
