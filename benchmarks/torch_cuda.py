"""The monitor on two networks and four Llamas, and census, equilibrium and undo on four networks, on a GPU.

    python -m benchmarks.torch_cuda

The noise of the monitor has the rounding of the model, so that the monitor is tested in full precision. The others run
with TF32, which is common in training: the proofs must not depend on it. With the argument `cpu` everything runs on the
CPU.
"""

import copy
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from benchmarks import llama_monitor
from benchmarks.harness import in_words, save
from benchmarks.torch_monitor import Trained, against, double, idle, mlp, ratios, transformer, worst

BATCHES = 16


def network(torch: Any, device: str) -> tuple[Any, Callable, Callable]:
    nn = torch.nn
    net = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)
    )
    draw = lambda: torch.randn(64, 64, device=device)
    return net.to(device), draw, lambda model, x: (model(x) - x[:, :8].sin()).square().mean()


def convolutions(torch: Any, device: str) -> tuple[Any, Callable, Callable]:
    nn = torch.nn
    layers = [nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 48, 3), nn.BatchNorm2d(48), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10)).to(device)

    def draw() -> Any:
        return torch.randn(32, 3, 16, 16, device=device), torch.randint(0, 10, (32,), device=device)

    return net, draw, lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])


def attention(torch: Any, device: str) -> tuple[Any, Callable, Callable]:
    nn = torch.nn

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(64, 4, 160, activation="relu", norm_first=True, batch_first=True)
                for _ in range(2)
            )
            self.head = nn.Linear(64, 5)

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    draw = lambda: torch.randn(8, 20, 64, device=device)
    return Encoder().to(device), draw, lambda model, x: (model(x) - x[..., :5].sin()).square().mean()


def llama(torch: Any, device: str) -> tuple[Any, Callable, Callable]:
    from benchmarks.torch_census import llama as build

    def draw() -> Any:
        tokens = torch.randint(0, 9000, (2, 32), device=device)
        return {"input_ids": tokens, "labels": tokens}

    return build().to(device), draw, lambda model, batch: model(**batch).loss


def one(torch: Any, make: Callable, device: str) -> dict[str, Any]:
    from undertow.torch import census, equilibrate

    def timed(work: Callable) -> tuple[Any, float]:
        began = time.perf_counter()
        result = work()
        if device == "cuda":
            torch.cuda.synchronize()
        return result, time.perf_counter() - began

    torch.manual_seed(0)
    model, draw, loss = make(torch, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss(model, draw()).backward()
    optimizer.step()
    optimizer.zero_grad()
    state = lambda: [t.clone() for p in model.parameters() for t in (p.detach(), optimizer.state[p]["momentum_buffer"])]
    before = state()
    symmetries, searched = timed(lambda: census(model, draw(), loss))
    untouched = all(map(torch.equal, before, state()))
    batches = [draw() for _ in range(BATCHES)]
    done, moved = timed(lambda: equilibrate(model, batches, loss, symmetries, step_size=0.1, optimizer=optimizer))
    done.undo()
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "exact": [f"{r.kind} {r.size}/{r.block}" for r in symmetries],
        "approximate": len(symmetries.approximate),
        "unclear": list(symmetries.unclear),
        "worst_proof": max((r.change for r in symmetries), default=0.0),
        "untouched": untouched,
        "seconds_census": searched,
        "seconds_equilibrate": moved,
        "change": done.change,
        "imbalance": done.imbalance,
        "noise": [done.noise[0].value, done.noise[1].value],
        "curvature": [done.curvature[0].value, done.curvature[1].value],
        "restored": all(map(torch.equal, before, state())),
    }


def monitored(torch: Any, make: Callable, device: str) -> dict[str, Any]:
    """Return the error of the monitor relative to per-sample gradients, and its cost at every step."""
    from undertow.torch import census

    net, batch, loss = make(torch)
    net.to(device)
    batch = tuple(x.to(device) for x in batch) if isinstance(batch, tuple) else batch.to(device)
    small = tuple(x[:4] for x in batch) if isinstance(batch, tuple) else batch[:2, :9]
    symmetries = census(net, small, loss)
    build = lambda every: Trained(torch, net, batch, loss, symmetries, every)
    times = ratios({"plain": build(None), "every step": build(1)}, 20, 9)
    return {
        "symmetries": len(symmetries),
        "seconds_plain": statistics.median(times["plain"]),
        "ratio": against(times, "every step"),
        "every_50": idle(build, 50, 9),
        "error_single": worst(torch, net, batch, loss, symmetries),
        "error_double": worst(torch, copy.deepcopy(net).double(), double(batch), loss, symmetries),
    }


def main(device: str = "cuda") -> list[tuple[str, str, str]]:
    import torch

    facts: dict[str, Any] = {"torch": torch.__version__}
    rows = []
    for make in (mlp, transformer):
        result = monitored(torch, make, device)
        facts[f"monitor, {make.__name__}"] = result
        errors = f"{result['error_single']:.0e} in single precision, {result['error_double']:.0e} in double"
        rows += [
            (f"{make.__name__}: monitored at every step", f"{result['ratio']:.2f} x", f"error {errors}"),
            (f"{make.__name__}: monitored at every 50 steps", f"{result['every_50']:+.1%}", ""),
        ]
        print(make.__name__, result, flush=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_float32_matmul_precision("high")
    for make in (network, convolutions, attention, llama):
        result = one(torch, make, device)
        facts[make.__name__] = result
        rows += [
            (
                f"{make.__name__}: census",
                in_words(result["seconds_census"]),
                f"worst proof {result['worst_proof']:.0e}",
            ),
            (
                f"{make.__name__}: equilibrate",
                in_words(result["seconds_equilibrate"]),
                f"outputs {result['change']:.0e}",
            ),
        ]
        print(make.__name__, result, flush=True)
    if device == "cuda":
        facts["kind"] = torch.cuda.get_device_name()
        save("torch_cuda", facts)
        rows += llama_monitor.main()
    return rows


if __name__ == "__main__":
    for row in main(*sys.argv[1:]):
        print("  ".join(row))
