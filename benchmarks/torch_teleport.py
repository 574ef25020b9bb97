"""Effect of a move to noise equilibrium on tiny models: six seeds, default and imbalanced starts.

    python -m benchmarks.torch_teleport

Four quantities are measured: the ratio after/before of the noise power; the ratio of the largest stable step (two over
the largest eigenvalue of the Hessian on four batches); the ratio of the largest step size, in powers of 4, at which 50
steps of SGD end below 1.5 times the first loss; and the difference that the move makes to the loss after 100 steps at
one small step size.
"""

import copy
import statistics
import warnings
from collections.abc import Callable
from typing import Any

from benchmarks.harness import save

SEEDS, STEPS, BATCHES = 6, 100, 16
CURVATURE_BATCHES = 4
LADDER = [4.0**k for k in range(6)]
"""Multiples of the small step size that are tried."""


def network(torch: Any) -> tuple[Any, Callable, Callable, float]:
    nn = torch.nn
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

    def draw() -> Any:
        x = torch.randn(16, 8)
        return x, torch.sin(x[:, :4]) + 0.1 * torch.randn(16, 4)

    return net, draw, lambda model, batch: (model(batch[0]) - batch[1]).square().mean(), 0.05


def llama(torch: Any) -> tuple[Any, Callable, Callable, float]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip

    def draw() -> Any:
        first, step = torch.randint(0, 64, (8, 1)), torch.randint(1, 4, (8, 1))
        ids = (first + step * torch.arange(12)) % 64
        return {"input_ids": ids, "labels": ids}

    return LlamaForCausalLM(config), draw, lambda model, batch: model(**batch).loss, 0.1


def lora(torch: Any) -> tuple[Any, Callable, Callable, float]:
    import peft

    base, draw, loss, _ = llama(torch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # not zero, because at B = 0 there is no finite equilibrium
                parameter.normal_(std=0.02)
    return model, draw, loss, 0.1


def imbalanced(torch: Any, model: Any, symmetries: Any, seed: int) -> Any:
    """Return a copy with every symmetry moved by factors of up to exp(2)."""
    from undertow.torch._copies import trainable
    from undertow.torch.census.axes import move

    other = copy.deepcopy(model)
    params = trainable(other)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for symmetry in symmetries:
            factor = torch.exp(4 * torch.rand(symmetry.size, generator=generator, dtype=torch.float64) - 2)
            transform = factor
            if symmetry.block > 1:
                transform = torch.diag_embed(factor.reshape(-1, symmetry.block))
            tensors = {name: params[name].detach().double() for name in symmetry.parameters}
            for name, value in move(tensors, symmetry, transform).items():
                params[name].copy_(value)
    return other


def trained(torch: Any, model: Any, loss: Callable, draws: list, step_size: float) -> float:
    """Train on all batches in turn and return the mean loss over the last ten."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=step_size)
    values = []
    for batch in draws:
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        values.append(float(value.detach()))
    return statistics.fmean(values[-10:])


def largest_trainable(torch: Any, model: Any, loss: Callable, draws: list, step_size: float) -> float:
    """Return the largest step size of the ladder up to which all runs succeed, or the smallest step size.

    A run succeeds if it ends below 1.5 times the first loss. Slow runs succeed, because the first steps of an adapter
    are slow.
    """
    with torch.no_grad():
        first = float(loss(model, draws[0]))
    good = step_size
    for factor in LADDER:
        last = trained(torch, copy.deepcopy(model), loss, draws, factor * step_size)
        if not last < 1.5 * first:
            break
        good = factor * step_size
    return good


def largest_stable(model: Any, batches: list, loss: Callable) -> float:
    """Return two over the largest eigenvalue of the Hessian of the mean loss over some batches."""
    from undertow.torch.equilibrium.curvature import largest_curvature

    mean = lambda model, batches: sum(loss(model, batch) for batch in batches) / len(batches)
    return 2 / largest_curvature(model, [batches], mean, 0).value


def one(torch: Any, make: Callable, start: str, seed: int) -> dict[str, float]:
    from undertow.torch import census, equilibrate

    torch.manual_seed(seed)
    model, draw, loss, step_size = make(torch)
    symmetries = census(model, draw(), loss, seed=seed)
    if start == "imbalanced":
        model = imbalanced(torch, model, symmetries, seed)
    moved = copy.deepcopy(model)
    batches = [draw() for _ in range(BATCHES)]
    done = equilibrate(moved, batches, loss, symmetries, step_size=step_size, curvature_batches=0)
    draws = [draw() for _ in range(STEPS)]
    steps = [largest_stable(net, batches[:CURVATURE_BATCHES], loss) for net in (model, moved)]
    after, before = (largest_trainable(torch, net, loss, draws[:50], step_size) for net in (moved, model))
    return {
        "noise": done.noise[1].value / done.noise[0].value,
        "step": steps[1] / steps[0],
        "survived": after / before,
        "loss": trained(torch, moved, loss, draws, step_size) - trained(torch, model, loss, draws, step_size),
    }


def main() -> list[tuple[str, str, str]]:
    import torch

    torch.set_num_threads(1)
    rows, facts = [], {}
    for make in (network, llama, lora):
        for start in ("default", "imbalanced"):
            runs = [one(torch, make, start, seed) for seed in range(SEEDS)]
            facts[f"{make.__name__}, {start}"] = runs
            spread = {key: [run[key] for run in runs] for key in runs[0]}
            summary = ", ".join(
                f"{key} {statistics.fmean(v):.3g} ± {statistics.stdev(v) / SEEDS**0.5:.1g}" for key, v in spread.items()
            )
            rows.append((f"teleport of {make.__name__}, {start} start", summary, ""))
            print(rows[-1], flush=True)
    save("torch_teleport", facts)
    return rows


if __name__ == "__main__":
    main()
