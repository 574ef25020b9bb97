"""Effect of a move to noise equilibrium on training: default and imbalanced starts, SGD and Adam.

    python -m studies.equilibrate

Every start is trained unmoved and moved, with and without warm-up, over a grid of step sizes in factors of 2. The grid
is extended until no best step size is at its edge and the largest one is too large. The study compares the loss at the
best step size of each, and the largest useful step size.
"""

import argparse
import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from studies.results import made_by, publish, save
from studies.training import (
    Adapted,
    Recipe,
    Transformer,
    cross_entropy,
    digits,
    gradients,
    grammar,
    mlp,
    stacked,
    train,
)

if TYPE_CHECKING:
    from undertow.torch import Census

__all__ = ["CASES", "NETWORKS", "OPTIMISERS", "STARTS", "Case", "Line", "Scale", "study"]

NETWORKS = ("ReLU network", "transformer", "adapters")
STARTS = ("default", "imbalanced")
OPTIMISERS = {"SGD": 0.0, "Adam": 1.0}
GRIDS = {"SGD": (-6, 3), "Adam": (-11, -2)}
"""Exponents of 2 of the first grid of step sizes, both ends included."""
MORE = 3
"""Number of exponents that are added at an edge."""
FACTOR = 2.0
"""In imbalanced starts every generator is moved by an amount drawn uniformly from -2 to 2."""


@dataclass(frozen=True)
class Scale:
    """Sizes of the study."""

    seeds: int = 10
    steps: int = 400
    """Steps of the ReLU network."""
    text_steps: int = 200
    """Steps of the transformer and of its adapters."""
    warm_up: float = 0.2
    """Fraction of the steps over which the step size rises, in runs with warm-up."""
    width: int = 256
    text_width: int = 64
    layers: int = 4
    tokens: int = 32
    batch: int = 32
    text_batch: int = 16
    rank: int = 8
    noise_batches: int = 32
    """Minibatches from which the equilibrium is computed."""
    sentences: int = 20_000
    base_steps: int = 600
    """Steps of Adam for the base network of the adapters."""
    adapter_steps: int = 20
    """Steps of SGD at step size 0.5 before the adapters start: at B = 0 there is no finite equilibrium."""
    together: int = 1000
    """Largest number of runs in one program."""
    rounds: int = 8
    """Largest number of extensions of a grid."""


SMALL = Scale(
    seeds=2, steps=6, text_steps=4, width=8, text_width=8, layers=1, tokens=6, batch=8, text_batch=4, rank=2,
    noise_batches=4, sentences=200, base_steps=2, adapter_steps=4, rounds=1,
)  # fmt: skip


class Task(NamedTuple):
    """Networks and their data."""

    nets: list[nn.Module]
    """One network per seed."""
    batch: Callable[[Tensor], tuple[Tensor, Tensor]]
    """Returns the batch of indices (..., samples)."""
    draw: Callable[[tuple[int, ...], torch.Generator], Tensor]
    """Returns indices of random minibatches."""
    steps: int


def task(name: str, scale: Scale, device: torch.device, base: dict[str, Tensor] | None = None) -> Task:
    """Return one of the three tasks."""
    if name == "ReLU network":
        x, y = (part.to(device) for part in digits())
        draw = lambda shape, generator: torch.randint(0, len(x), (*shape, scale.batch), generator=generator)
        nets: list[nn.Module] = []
        for seed in range(scale.seeds):
            torch.manual_seed(seed)
            nets.append(mlp(64, scale.width, scale.width, 10))
        return Task(nets, lambda index: (x[index], y[index]), draw, scale.steps)
    text = grammar(scale.sentences, 0) if base is None else grammar(scale.sentences, 1, tilt=-1.0)
    text = type(text)(text.words, text.ids.to(device))
    nets = []
    for seed in range(scale.seeds):
        torch.manual_seed(seed)
        net = Transformer(text.words, scale.text_width, 4, scale.layers, scale.tokens)
        if base is not None:
            net.load_state_dict(base)
            adapt(net, scale.rank)
        nets.append(net)
    last = len(text.ids) - scale.tokens - 1
    draw = lambda shape, generator: torch.randint(0, last, (*shape, scale.text_batch), generator=generator)
    return Task(nets, lambda index: text.batch(index, scale.tokens), draw, scale.text_steps)


def adapt(net: nn.Module, rank: int) -> None:
    """Freeze a transformer and add adapters to queries, values and the last layer of each block."""
    net.requires_grad_(False)
    for block in net.layers:
        for place in ("query", "value", "down"):
            setattr(block, place, Adapted(getattr(block, place), rank))


def imbalanced(net: nn.Module, census: "Census", seed: int) -> nn.Module:
    """Return a copy with every symmetry moved by random amounts."""
    from undertow.torch.census.axes import move

    other = copy.deepcopy(net)
    params = dict(other.named_parameters())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for symmetry in census:
            drawn = torch.rand(symmetry.size, generator=generator, dtype=torch.float64)
            factor = torch.exp(FACTOR * (2 * drawn - 1))
            transform = factor if symmetry.block == 1 else torch.diag_embed(factor.reshape(-1, symmetry.block))
            tensors = {name: params[name].detach().double() for name in symmetry.parameters}
            for name, value in move(tensors, symmetry, transform).items():
                params[name].copy_(value)
    return other


def _sgd(net: nn.Module, mine: Task, steps: int, seed: int, optimizer: torch.optim.Optimizer) -> None:
    order = mine.draw((steps,), torch.Generator().manual_seed(seed))
    for index in order:
        optimizer.zero_grad()
        cross_entropy(net, mine.batch(index)).backward()
        optimizer.step()


def base_network(scale: Scale) -> dict[str, Tensor]:
    """Return a trained transformer for adapters to start from."""
    mine = task("transformer", scale, torch.device("cpu"))
    net = mine.nets[0]
    _sgd(net, mine, scale.base_steps, 7, torch.optim.Adam(net.parameters(), lr=3e-3))
    return net.state_dict()


def starts(name: str, scale: Scale) -> dict[str, Any]:
    """Return the starts, each unmoved and moved, with the effect of the move; computed on the CPU."""
    from undertow.torch import census, equilibrate

    base = base_network(scale) if name == "adapters" else None
    mine = task(name, scale, torch.device("cpu"), base)
    points: dict[str, list[nn.Module]] = {}
    moves: dict[str, list[dict[str, float]]] = {start: [] for start in STARTS}
    symmetries = None
    for seed, net in enumerate(mine.nets):
        generator = torch.Generator().manual_seed(500 + seed)
        batches = [mine.batch(index) for index in mine.draw((scale.noise_batches,), generator)]
        if symmetries is None:
            symmetries = census(net, batches[0], cross_entropy)
        if base is not None:
            trainable = [p for p in net.parameters() if p.requires_grad]
            _sgd(net, mine, scale.adapter_steps, 900 + seed, torch.optim.SGD(trainable, lr=0.5))
        for start in STARTS:
            here = net if start == "default" else imbalanced(net, symmetries, seed)
            moved = copy.deepcopy(here)
            result = equilibrate(
                moved, batches, cross_entropy, symmetries, step_size=0.1, seed=seed, curvature_batches=0
            )
            points.setdefault(start, []).append(here)
            points.setdefault(f"{start}, moved", []).append(moved)
            moves[start].append(
                {
                    "noise": result.noise[1].value / result.noise[0].value,
                    "curvature": _curvature(moved, batches, seed) / _curvature(here, batches, seed),
                    "change": result.change,
                    "infinite": result.infinite,
                    "imbalance": result.imbalance,
                }
            )
            print(f"{name}, {start}, seed {seed}: noise x {moves[start][-1]['noise']:.3g}", flush=True)
    return {"params": {key: stacked(nets) for key, nets in points.items()}, "moves": moves, "base": base}


def _curvature(net: nn.Module, batches: list[tuple[Tensor, Tensor]], seed: int) -> float:
    """Return the largest eigenvalue of the Hessian of the mean loss over the first four batches."""
    from undertow.torch.equilibrium.curvature import largest_curvature

    mean = lambda net, few: sum(cross_entropy(net, batch) for batch in few) / len(few)
    return largest_curvature(net, [batches[:4]], mean, seed).value


class Case(NamedTuple):
    """A case of the comparison, trained at all step sizes."""

    start: str
    moved: bool
    warm_up: bool

    @property
    def name(self) -> str:
        """Name of the case."""
        return f"{self.start}{', moved' if self.moved else ''}{', warm-up' if self.warm_up else ''}"

    @property
    def point(self) -> str:
        """Name of the starting point."""
        return f"{self.start}, moved" if self.moved else self.start


CASES = [Case(start, moved, warm) for start in STARTS for moved in (False, True) for warm in (False, True)]


def _order(mine: Task, seeds: int) -> Tensor:
    """Return the indices of all minibatches, (steps, seeds, samples), the same for every case and step size."""
    each = [mine.draw((mine.steps,), torch.Generator().manual_seed(2000 + seed)) for seed in range(seeds)]
    return torch.stack(each, dim=1)


def start_losses(mine: Task, point: dict[str, Tensor], scale: Scale, device: torch.device) -> np.ndarray:
    """Return the loss on the last tenth of the minibatches without training, (seeds,)."""
    order = _order(mine, scale.seeds)[-max(1, mine.steps // 10) :].to(device)
    net = copy.deepcopy(mine.nets[0]).to(device)
    params = {name: p.to(device) for name, p in point.items()}
    values = [gradients(net, cross_entropy, params, mine.batch(index))[0] for index in order]
    return torch.stack(values).mean(0).cpu().numpy()


def losses(
    mine: Task, points: dict[str, dict[str, Tensor]], settings: list[tuple[Case, int]], adaptive: float, scale: Scale,
    device: torch.device,
) -> Tensor:  # fmt: skip
    """Return the mean loss over the last tenth of training, (settings, seeds), for all settings at once."""
    seeds = scale.seeds
    order = _order(mine, seeds).to(device)
    params = {
        name: torch.cat([points[case.point][name] for case, _ in settings]).to(device)
        for name in points[CASES[0].point]
    }
    rows = [
        {"step_size": 2.0**k, "adaptive": adaptive, "warm_up": scale.warm_up * mine.steps * case.warm_up}
        for case, k in settings
        for _ in range(seeds)
    ]
    recipe = Recipe.of(rows, device=device)
    net = copy.deepcopy(mine.nets[0]).to(device)
    tenth = max(1, mine.steps // 10)
    total, none = torch.zeros(len(rows), device=device), torch.zeros(len(rows), device=device)

    def gradient(values: dict[str, Tensor], t: Tensor) -> dict[str, Tensor]:
        index = order.index_select(0, t)[0].repeat(len(settings), 1)
        current, slopes = gradients(net, cross_entropy, values, mine.batch(index))
        total.add_(torch.where(t >= mine.steps - tenth, current, none))
        return slopes

    train(params, recipe, gradient, mine.steps)
    return (total / tenth).reshape(len(settings), seeds).cpu()


class Line(NamedTuple):
    """Losses of one case over its grid of step sizes: (steps, seeds), infinite where a run diverged."""

    exponents: list[int]
    losses: np.ndarray
    start: np.ndarray
    """Loss without training, (seeds,)."""

    @property
    def best(self) -> int:
        """Index of the step size with the least mean loss."""
        return int(np.argmin(self.losses.mean(1)))

    @property
    def useful(self) -> np.ndarray:
        """Whether a run reduces the loss at least half as much as the best step size, (steps, seeds)."""
        gain = self.start - self.losses
        return gain >= gain[self.best] / 2

    @property
    def largest(self) -> np.ndarray:
        """For each seed, the largest exponent such that all runs from the best exponent up to it are useful."""
        return self.exponents[self.best] - 1 + self.useful[self.best :].cumprod(0).sum(0)

    def beyond(self) -> list[int]:
        """Return the exponents to add: if the best is at an edge, or if the largest is still useful."""
        low, high = self.exponents[0], self.exponents[-1]
        if not np.isfinite(self.losses.mean(1)).any() or self.best == 0:
            return list(range(low - MORE, low))
        if self.useful[-1].any():
            return list(range(high + 1, high + MORE + 1))
        return []


def lines(
    mine: Task, points: dict[str, dict[str, Tensor]], optimiser: str, scale: Scale, device: torch.device
) -> tuple[dict[Case, Line], int]:
    """Return every case over its extended grid, and the number of extensions."""
    recorded: dict[Case, dict[int, np.ndarray]] = {case: {} for case in CASES}
    low, high = GRIDS[optimiser]
    settings = [(case, k) for case in CASES for k in range(low, high + 1)]
    at_once = max(1, scale.together // scale.seeds)
    start = start_losses(mine, points["default"], scale, device)
    cases: dict[Case, Line] = {}
    for round_ in range(scale.rounds + 1):
        for begin in range(0, len(settings), at_once):
            part = settings[begin : begin + at_once]
            last = losses(mine, points, part, OPTIMISERS[optimiser], scale, device).numpy()
            for (case, k), row in zip(part, last, strict=True):
                recorded[case][k] = np.where(np.isfinite(row), row, np.inf)
        cases = {
            case: Line(sorted(rows), np.stack([rows[k] for k in sorted(rows)]), start)
            for case, rows in recorded.items()
        }
        settings = [(case, k) for case, line in cases.items() for k in line.beyond()]
        if not settings:
            return cases, round_
        print(f"  {optimiser}: {len(settings)} more step sizes", flush=True)
    return cases, scale.rounds + 1


def network(name: str, scale: Scale, device: torch.device, stored: Path | None = None) -> dict[str, Any]:
    """Run one network. `stored` is a folder with starts, or None to compute them."""
    file = None if stored is None else stored / f"{name.replace(' ', '_')}.pt"
    made = starts(name, scale) if file is None else torch.load(file, weights_only=True)
    mine = task(name, scale, device, made["base"])
    facts: dict[str, Any] = {
        "parameters": sum(p[0].numel() for p in made["params"]["default"].values()),
        "steps": mine.steps,
        "moves": made["moves"],
        "optimisers": {},
    }
    for optimiser in OPTIMISERS:
        start_time = time.perf_counter()
        by_case, rounds = lines(mine, made["params"], optimiser, scale, device)
        facts["start"] = by_case[CASES[0]].start
        facts["optimisers"][optimiser] = {
            "rounds": rounds,
            "cases": {
                case.name: {"exponents": line.exponents, "losses": line.losses, "open": bool(line.beyond())}
                for case, line in by_case.items()
            },
        }
        print(f"{name}, {optimiser}: {time.perf_counter() - start_time:.0f} s", flush=True)
    return facts


def study(scale: Scale, device: torch.device, stored: Path | None = None) -> dict[str, Any]:
    """Run all networks."""
    start_time = time.perf_counter()
    networks = {name: network(name, scale, device, stored) for name in NETWORKS}
    return {"made": made_by(device, time.perf_counter() - start_time), "scale": asdict(scale), "networks": networks}


def main() -> None:
    """Run the study, or only draw the figures and write the page."""
    from studies.equilibrate_page import figures, page

    parser = argparse.ArgumentParser(prog="python -m studies.equilibrate", description=__doc__)
    parser.add_argument(
        "--draw", action="store_true", help="only draw the figures and write the page, from the stored results"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--starts", type=Path, help="only compute the starts, on the CPU, and store them in this folder"
    )
    parser.add_argument("--from-starts", type=Path, help="train from the starts in this folder")
    options = parser.parse_args()
    if options.starts is not None:
        options.starts.mkdir(parents=True, exist_ok=True)
        for name in NETWORKS:
            torch.save(starts(name, Scale()), options.starts / f"{name.replace(' ', '_')}.pt")
        return
    if not options.draw:
        save("equilibrate", study(Scale(), torch.device(options.device), options.from_starts))
    publish("equilibrate", page, figures)


if __name__ == "__main__":
    main()
