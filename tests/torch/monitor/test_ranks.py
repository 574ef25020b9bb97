"""Sums over processes: two processes with half of the samples each measure what one process with all of them does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.torch.monitor.two_ranks import batch, network, optimizer_of, symmetries_of
from tests.torch.oracle import relu, relu_census, square
from undertow.torch import NoiseMonitor
from undertow.torch.monitor import ranks
from undertow.torch.monitor.ranks import Selected, WholeParameters, is_sharded

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parent.parent.parent.parent


class Shard(nn.Parameter):
    """A parameter that has to be gathered, as those of FSDP2."""

    def full_tensor(self):
        return torch.cat([self.detach(), self.detach()])


def run_ranks(kind, folder, optimizer="SGD"):
    """Return what both processes measured."""
    command = [sys.executable, "-m", "tests.torch.monitor.two_ranks"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    processes = [
        subprocess.Popen([*command, str(rank), str(folder / "store"), kind, optimizer], **pipes) for rank in range(2)
    ]
    results = []
    for process in processes:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err[-2000:]
        results.append(json.loads(out.splitlines()[-1]))
    return results


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
@pytest.mark.parametrize("kind", ["DDP", "FSDP2"])
def test_two_processes_measure_what_one_does(kind, name, tmp_path):
    results = run_ranks(kind, tmp_path, name)
    model = network()
    optimizer = optimizer_of(name, model)
    with NoiseMonitor(model, symmetries_of(model), every=1) as monitor:
        for _ in range(2):
            optimizer.zero_grad()
            square(model, batch()).backward()
            optimizer.step()
    total = monitor.noise_scale.total
    for result in results:
        assert "error" not in result, result
        assert result["samples"] == 12
        assert result["noise"] == pytest.approx(total.noise, rel=1e-9)
        assert result["signal"] == pytest.approx(total.signal, rel=1e-9)
        assert len(result["rows"]) == len(monitor.rows) > 0
        for row, alone in zip(result["rows"], monitor.rows, strict=True):
            for column, value in alone.items():
                assert row[column] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), column


@pytest.mark.slow
def test_a_problem_of_one_process_is_that_of_all(tmp_path):
    """Otherwise the others would wait for it indefinitely."""
    for result in run_ranks("not finite", tmp_path):
        assert "the gradient is not finite" in result["error"]


def test_sharded_parameters_are_read_as_whole_ones():
    shard = Shard(torch.ones(2, 3))
    shard.grad = None
    whole = WholeParameters({"a": shard, "b": nn.Parameter(torch.zeros(1))})
    assert whole["a"].shape == (4, 3)
    assert whole["a"].grad is None
    assert whole["a"].requires_grad
    assert [*whole] == ["a", "b"]
    assert len(whole) == 2
    some = Selected(whole, ["b"])
    assert [*some.items()] == [("b", whole["b"])]
    assert len(some) == 1
    model = nn.Linear(2, 2)
    assert not is_sharded(model)
    model.weight = shard
    assert is_sharded(model)


def test_one_process_is_not_distributed():
    assert not ranks.runs_distributed()


def test_fully_sharded_models_of_the_first_kind_are_rejected():
    kind = type("FullyShardedDataParallel", (nn.Module,), {})
    with pytest.raises(ValueError, match=r"use FSDP2 \(`torch.distributed.fsdp.fully_shard`\)"):
        NoiseMonitor(kind(), relu_census())


def test_a_model_inside_a_wrapper_is_measured_without_other_processes(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(relu())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with NoiseMonitor(model, relu_census(), every=1) as monitor:
            square(model, torch.randn(8, 5, dtype=torch.float64)).backward()
            optimizer.step()
    finally:
        torch.distributed.destroy_process_group()
    assert monitor.rows[0]["samples"] == 8
