"""One of two processes that train together on the CPU, and what the monitor measured, as JSON.

    python -m tests.torch.monitor.two_ranks RANK STORE KIND OPTIMIZER

KIND is DDP, FSDP2, or "not finite" (a loss that is not finite on rank 1 alone), OPTIMIZER SGD or AdamW.
"""

import json
import sys
import warnings

import torch
from torch import distributed, nn

from tests.torch.oracle import relu, square
from undertow.torch import NoiseMonitor, census


def batch():
    torch.manual_seed(1)
    return torch.randn(12, 5, dtype=torch.float64)


def network():
    return nn.Sequential(relu(), nn.LayerNorm(3).double())


def symmetries_of(model):
    return census(model, batch()[:4], square)


def wrapped(kind, model):
    if kind != "FSDP2":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def optimizer_of(name, model):
    return getattr(torch.optim, name)(model.parameters(), lr=0.1 if name == "SGD" else 1e-3)


def main(rank, store, kind, optimizer):
    """Train two steps on half of the samples."""
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = network()
    symmetries = symmetries_of(model)
    model = wrapped(kind, model)
    optimizer = optimizer_of(optimizer, model)
    x = batch()[6 * rank : 6 * rank + 6]
    result = {}
    try:
        with NoiseMonitor(model, symmetries, every=1) as monitor, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(2):
                optimizer.zero_grad()
                (square(model, x) * (float("nan") if kind == "not finite" and rank else 1.0)).backward()
                optimizer.step()
        total = monitor.noise_scale.total
        result = {"rows": monitor.rows, "noise": total.noise, "signal": total.signal, "samples": total.batch_size}
    except RuntimeError as error:
        result = {"error": str(error)}
    print(json.dumps(result))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
