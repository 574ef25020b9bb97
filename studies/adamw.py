"""Where does AdamW take a network? Its generators against the noise equilibrium of AdamW, over time.

    python -m studies.adamw

Six networks are trained with all combinations of weight decay, b2, schedule and seed. At regular times the log factor s
that separates every generator from its equilibrium is computed from the parameters and from v of the optimiser. A
control is trained by SGD. On a machine without scikit-learn, or without undertow, run `--prepare FILE` elsewhere first
and give `--inputs FILE`.
"""

import argparse
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from studies.adamw_networks import NETWORKS, Generators, Sizes, Task, census_rows, task
from studies.adamw_program import SCHEDULES, Program, Run, Sides, start
from studies.results import RESULTS, made_by, publish, save
from studies.training import digits

__all__ = ["SMALL", "Inputs", "Scale", "follow", "pretrained", "study"]

SGD = {"step_size": 0.05, "weight_decay": 0.01}
"""Settings of the control."""
SIZES = Sizes()


@dataclass(frozen=True)
class Scale:
    """Sizes of the study."""

    sizes: Sizes = SIZES
    seeds: int = 3
    steps: int = 20_000
    short_steps: int = 100_000
    """Steps of the ReLU network."""
    snapshots: int = 200
    """Times at which the amounts are computed."""
    stored: int = 40
    """Times that are stored."""
    step_size: float = 2e-3
    weight_decays: tuple[float, ...] = (0.01, 0.1, 1.0)
    b2s: tuple[float, ...] = (0.95, 0.99, 0.999)
    base_steps: int = 3000
    """Steps of AdamW for the base network of the adapters."""


SMALL = Scale(
    Sizes(hidden=4, width=8, heads=2, layers=1, tokens=6, batch=4, text_batch=2, rank=2, sentences=200),
    seeds=2, steps=8, short_steps=12, snapshots=4, stored=2, weight_decays=(0.1, 1.0), b2s=(0.99,), base_steps=4,
)  # fmt: skip


@dataclass(frozen=True)
class Inputs:
    """What needs scikit-learn or the census of undertow: the digits, and the generators of each network."""

    images: tuple[Tensor, Tensor]
    generators: dict[str, Generators]

    @staticmethod
    def make(sizes: Sizes, names: tuple[str, ...] = NETWORKS) -> "Inputs":
        """Compute the inputs on the CPU."""
        small, cpu = sizes._replace(sentences=200), torch.device("cpu")
        return Inputs(digits(), {name: census_rows(task(name, small, 1, cpu)) for name in names})

    def save(self, path: Path) -> None:
        """Write the inputs as a file of tensors, lists and numbers."""
        path.parent.mkdir(parents=True, exist_ok=True)
        places = lambda side: torch.as_tensor(side).nonzero()
        rows = {k: [*g[:3], places(g.plus), places(g.minus)] for k, g in self.generators.items()}
        torch.save({"images": self.images, "generators": rows}, path)

    @staticmethod
    def load(path: Path) -> "Inputs":
        """Read inputs that were written by `save`."""
        stored = torch.load(path, weights_only=True)
        generators = {}
        for name, (families, symmetry, keys, *places) in stored["generators"].items():
            sides = np.zeros((2, len(families), sum(length for *_, length in keys)), np.float32)
            for side, at in zip(sides, places, strict=True):
                side[tuple(at.T.numpy())] = 1
            generators[name] = Generators(families, symmetry, keys, *sides)
        return Inputs(stored["images"], generators)


def pretrained(scale: Scale, device: torch.device) -> dict[str, Tensor]:
    """Return a trained Llama for adapters to start from."""
    mine = task("Llama", scale.sizes, 1, device)
    runs = [Run(0, scale.step_size, 0.1, 0.99, "cosine")]
    program = Program(mine, start(mine.nets, runs), runs, scale.base_steps, device)
    program.run(scale.base_steps)
    return {name: p[0].cpu() for name, p in program.views(program.flat).items()}


def settings(scale: Scale) -> list[Run]:
    """Return the settings of all runs, with the control by SGD last."""
    runs = [
        Run(seed, scale.step_size, decay, b2, name)
        for name in SCHEDULES
        for decay in scale.weight_decays
        for b2 in scale.b2s
        for seed in range(scale.seeds)
    ]
    return runs + [Run(seed, **SGD, b2=0.999, adaptive=False) for seed in range(scale.seeds)]


def _rms(values: Tensor, alive: Tensor, of: Tensor | None = None) -> Tensor:
    """Return the root mean square over generators that are alive, (runs,); of those where `of` is True."""
    weight = alive.to(values) if of is None else alive.to(values) * of
    return ((values.square() * weight).sum(1) / weight.sum(1)).sqrt()


class Record:
    """Amounts of all generators over time: root mean squares at each snapshot, and means over the second half."""

    def __init__(self, sides: Sides):
        self.sides = sides
        self.steps: list[int] = []
        self.loss: list[Tensor] = []
        self.eta: list[Tensor] = []
        self.rms: dict[str, list[Tensor]] = {"adamw": [], "lagged": [], "sgd": []}
        self.sums: dict[str, Tensor] = {}
        self.count: Tensor | float = 0.0

    def add(self, program: Program, loss: Tensor) -> None:
        """Record the present state and the mean loss since the last record."""
        amounts = program.amounts(self.sides)
        self.steps.append(int(program.t))
        self.loss.append(loss.cpu())
        self.eta.append(program.eta[:, 0].cpu())
        for name, values in self.rms.items():
            values.append(_rms(getattr(amounts, name), amounts.alive).cpu())
        if 2 * self.steps[-1] > program.steps:
            self.count = self.count + amounts.alive.to(torch.float32)
            for name in ("adamw", "lagged", "sgd", "ratio"):
                self.sums[name] = self.sums.get(name, 0.0) + getattr(amounts, name)

    def means(self) -> dict[str, Tensor]:
        """Return the means over the second half, (runs, generators), and which generators were alive for most of it."""
        count = torch.as_tensor(self.count)
        means = {name: (total / count.clamp_min(1)).cpu() for name, total in self.sums.items()}
        return means | {"alive": (count > 0.5 * count.max()).cpu()}


def follow(
    name: str, scale: Scale, inputs: Inputs, device: torch.device, limit: float | None = None
) -> dict[str, Any]:  # fmt: skip
    """Train one network in all settings and return its results. `limit` in seconds reduces the number of steps."""
    torch.manual_seed(0)
    base = pretrained(scale, device) if name == "LoRA" else None
    mine = task(name, scale.sizes, scale.seeds, device, inputs.images, base)
    runs = settings(scale)
    sides = Sides(inputs.generators[name], device)
    steps = scale.short_steps if name == "ReLU network" else scale.steps
    if limit is not None:
        steps = min(steps, int(limit / _seconds_per_step(mine, runs, device)))
    every = max(1, steps // scale.snapshots)
    steps = every * scale.snapshots
    torch.manual_seed(1)
    begun = time.perf_counter()
    program = Program(mine, start(mine.nets, runs), runs, steps, device)
    record = Record(sides)
    for _ in range(scale.snapshots):
        record.add(program, program.run(every))
    seconds = time.perf_counter() - begun
    print(f"{name}: {steps} steps of {len(runs)} runs in {seconds:.0f} s", flush=True)
    parameters = sum(p.numel() for p in mine.nets[0].parameters() if p.requires_grad)
    return {"steps": steps, "seconds": seconds, "parameters": parameters, "families": sides.families,
            "generators": torch.bincount(sides.family).tolist(), **_facts(record, runs, scale)}  # fmt: skip


def _seconds_per_step(mine: Task, runs: list[Run], device: torch.device, steps: int = 40) -> float:
    program = Program(mine, start(mine.nets, runs), runs, 2 * steps, device)
    program.run(steps)
    begun = time.perf_counter()
    program.run(steps)
    return (time.perf_counter() - begun) / steps


def _facts(record: Record, runs: list[Run], scale: Scale) -> dict[str, Any]:
    """Return the results of one network: by setting over time, by family, and generator by generator for one seed."""
    means, sides = record.means(), record.sides
    chosen = np.unique(np.linspace(0, len(record.steps) - 1, scale.stored + 1).round().astype(int))
    groups: dict[Run, list[int]] = {}
    for place, run in enumerate(runs):
        groups.setdefault(replace(run, seed=0), []).append(place)
    over_time = lambda values, places: torch.stack(values)[chosen][:, places].mean(1).numpy()
    of = [(sides.family == k).cpu() for k in range(len(sides.families))]
    shown = (scale.weight_decays[len(scale.weight_decays) // 2], scale.b2s[-1]), (scale.weight_decays[-1], scale.b2s[0])
    rows = []
    for run, places in groups.items():
        alive = means["alive"][places]
        rms = {key: np.stack([_rms(means[key][places], alive, kind).numpy() for kind in of])
               for key in ("adamw", "lagged", "sgd")}  # fmt: skip
        row = asdict(run) | {
            "loss": over_time(record.loss, places),
            "last_loss": torch.stack(record.loss)[-len(record.loss) // 10 :][:, places].mean(0).numpy(),
            "eta": over_time(record.eta, places),
            "rms_over_time": {key: over_time(values, places) for key, values in record.rms.items()},
            "rms": {key: _rms(means[key][places], alive).numpy() for key in rms},
            "rms_by_family": rms,
            "alive": alive.float().mean().item(),
        }
        if (run.schedule == "constant" and (run.weight_decay, run.b2) in shown) or not run.adaptive:
            first = places[0]
            kept = means["alive"][first]
            row["scatter"] = {
                "family": sides.family.cpu()[kept].tolist(),
                "measured": means["ratio"][first][kept].numpy(),
                "adamw": (means["ratio"] + 2 * means["adamw"])[first][kept].numpy(),
                "sgd": (means["ratio"] + 2 * means["sgd"])[first][kept].numpy(),
            }
        rows.append(row)
    return {"times": np.array(record.steps)[chosen], "settings": rows}


def study(scale: Scale, inputs: Inputs, device: torch.device, *, folder: Path = RESULTS, limit: float | None = None,
          names: tuple[str, ...] = NETWORKS) -> dict[str, Any]:  # fmt: skip
    """Run all networks and save the results after each."""
    begun = time.perf_counter()
    facts: dict[str, Any] = {"scale": asdict(scale) | {"sizes": scale.sizes._asdict()}, "sgd": SGD, "networks": {}}
    for name in names:
        facts["networks"][name] = follow(name, scale, inputs, device, limit)
        facts["made"] = made_by(device, time.perf_counter() - begun)
        save("adamw", facts, folder)
    return facts


def arguments(description: str | None, program: str) -> argparse.ArgumentParser:
    """Return the options that the studies of AdamW share."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("--draw", action="store_true", help="only write the page and figures, from the stored results")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--prepare", type=Path, help="only compute the inputs, and write them to this file")
    parser.add_argument("--inputs", type=Path, help="read the inputs from this file")
    parser.add_argument("--results", type=Path, help="write the results to this folder, without page and figures")
    parser.add_argument("--limit", type=float, help="seconds per network; the number of steps is reduced to fit")
    parser.add_argument("--smoke", action="store_true", help="run with the smallest sizes")
    return parser


def main() -> None:
    """Run the study, or only draw the figures and write the page."""
    options = arguments(__doc__, "studies.adamw").parse_args()
    scale = SMALL if options.smoke else Scale()
    if options.prepare is not None:
        Inputs.make(scale.sizes).save(options.prepare)
        return
    if not options.draw:
        inputs = Inputs.make(scale.sizes) if options.inputs is None else Inputs.load(options.inputs)
        study(scale, inputs, torch.device(options.device), folder=options.results or RESULTS, limit=options.limit)
    if options.results is None:
        from studies.adamw_figures import figures
        from studies.adamw_page import page

        publish("adamw", page, figures)


if __name__ == "__main__":
    main()
