"""Is it worth starting at the noise equilibrium of AdamW? Default, imbalanced and small starts, moved and unmoved.

    python -m studies.adamw_starts

The rules are those of `studies.equilibrate`: every start is trained unmoved and moved, with and without warm-up, over a
grid of step sizes in factors of 2. The grid is extended until no best step size is at its edge and the largest one is
too large. A moved start is at the equilibrium for its own step size and weight decay.
"""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from studies.adamw import Inputs, arguments, pretrained
from studies.adamw import Scale as Networks
from studies.adamw_networks import Sizes, Task, task
from studies.adamw_program import Program, Run, Sides, start
from studies.equilibrate import FACTOR, Case, Line
from studies.results import RESULTS, made_by, publish, save

__all__ = ["CASES", "NAMES", "SMALL", "STARTS", "Scale", "network", "study"]

NAMES = ("ReLU network", "Llama", "LoRA")
STARTS = ("default", "imbalanced", "small")
CASES = [Case(start, moved, warm) for start in STARTS for moved in (False, True) for warm in (False, True)]
WIDE = Networks(Sizes(hidden=64))


@dataclass(frozen=True)
class Scale:
    """Sizes of the study."""

    networks: Networks = WIDE
    seeds: int = 10
    steps: int = 2000
    short_steps: int = 4000
    """Steps of the ReLU network."""
    grid: tuple[int, int] = (-11, -4)
    """Exponents of 2 of the first grid of step sizes, both ends included."""
    weight_decay: float = 0.1
    b2: float = 0.99
    warm_up: float = 0.1
    """Fraction of the steps over which the step size rises, in runs with warm-up."""
    shrink: float = 0.16
    """Factor of all matrices in small starts."""
    noise_batches: int = 32
    """Minibatches from which the equilibrium is computed."""
    adapter_steps: int = 20
    """Steps of AdamW before the adapters start: at B = 0 there is no finite equilibrium."""
    parts: int = 20
    """Parts of the training whose mean loss is stored."""
    together: int = 1000
    """Largest number of runs in one program."""
    rounds: int = 3
    """Largest number of extensions of a grid."""


SMALL = Scale(
    Networks(Sizes(hidden=4, width=8, heads=2, layers=1, tokens=6, batch=4, text_batch=2, rank=2, sentences=200),
             base_steps=4),
    seeds=2, steps=4, short_steps=4, grid=(-9, -8), noise_batches=4, adapter_steps=2, parts=2, rounds=0,
)  # fmt: skip


def points(name: str, mine: Task, scale: Scale, sides: Sides, device: torch.device) -> dict[str, Tensor]:
    """Return the unmoved starts as rows of all parameters, (seeds, parameters)."""
    runs = [Run(seed, 1e-3, 0.0, scale.b2) for seed in range(scale.seeds)]
    steps = scale.adapter_steps if name == "LoRA" else 0
    program = Program(mine, start(mine.nets, runs), runs, max(1, steps), device)
    if steps:
        program.run(steps)
    default = program.views(program.flat)
    generator = torch.Generator().manual_seed(4)
    drawn = torch.rand(scale.seeds, len(sides.plus), generator=generator).to(device)
    small = {key: p * (scale.shrink if p.ndim > 2 else 1) for key, p in default.items()}
    flat = lambda params: torch.cat([p.flatten(1) for p in params.values()], 1).clone()
    moved = sides.move(default, FACTOR * (2 * drawn - 1))
    return {"default": flat(default), "imbalanced": flat(moved), "small": flat(small)}


def losses(
    mine: Task, starts: dict[str, Tensor], settings: list[tuple[Case, int]], steps: int, scale: Scale, sides: Sides,
    device: torch.device,
) -> tuple[np.ndarray, float]:  # fmt: skip
    """Return the mean loss in each part of the training, (settings, seeds, parts), and the change by the moves."""
    runs = [
        Run(seed, 2.0**k, scale.weight_decay, scale.b2, "cosine", warm_up=scale.warm_up * case.warm_up)
        for case, k in settings
        for seed in range(scale.seeds)
    ]
    program = Program(mine, start(mine.nets, runs), runs, steps, device)
    program.flat.copy_(torch.cat([starts[case.start] for case, _ in settings]))
    moved = torch.tensor([case.moved for case, _ in settings for _ in range(scale.seeds)], device=device)
    loss = lambda: (torch.manual_seed(8), program.gradient())[1][0]
    before = loss()
    torch.manual_seed(9)
    program.flat.copy_(torch.where(moved[:, None], program.moved(sides, scale.noise_batches), program.flat))
    change = float(((loss() - before) / before).abs().max())
    torch.manual_seed(10)
    every = max(1, steps // scale.parts)
    record = torch.stack([program.run(every) for _ in range(scale.parts)], 1)
    return record.unflatten(0, (len(settings), scale.seeds)).cpu().numpy(), change


def network(name: str, scale: Scale, inputs: Inputs, device: torch.device) -> dict[str, Any]:
    """Run one network over the extended grids of all cases."""
    torch.manual_seed(0)
    base = pretrained(scale.networks, device) if name == "LoRA" else None
    mine = task(name, scale.networks.sizes, scale.seeds, device, inputs.images, base)
    sides = Sides(inputs.generators[name], device)
    steps = scale.short_steps if name == "ReLU network" else scale.steps
    starts = points(name, mine, scale, sides, device)
    recorded: dict[Case, dict[int, np.ndarray]] = {case: {} for case in CASES}
    settings = [(case, k) for case in CASES for k in range(scale.grid[0], scale.grid[1] + 1)]
    tenth, at_once, changes = max(1, scale.parts // 10), max(1, scale.together // scale.seeds), []
    begun, lines, rounds = time.perf_counter(), {}, 0
    first = start_losses(mine, starts, scale, device)
    while settings and rounds <= scale.rounds:
        for place in range(0, len(settings), at_once):
            part = settings[place : place + at_once]
            values, change = losses(mine, starts, part, steps, scale, sides, device)
            changes.append(change)
            for (case, k), row in zip(part, np.where(np.isfinite(values), values, np.inf), strict=True):
                recorded[case][k] = row
        lines = {
            case: Line(sorted(rows), np.stack([rows[k][:, -tenth:].mean(1) for k in sorted(rows)]), first[case.start])
            for case, rows in recorded.items()
        }
        settings = [(case, k) for case, line in lines.items() for k in line.beyond()]
        rounds += 1
    print(f"{name}: {steps} steps, {rounds} rounds in {time.perf_counter() - begun:.0f} s", flush=True)
    return {
        "steps": steps, "rounds": rounds, "change": max(changes), "start": first,
        "parameters": starts["default"].shape[1],
        "cases": {
            case.name: {
                "exponents": line.exponents, "losses": line.losses, "open": bool(line.beyond()),
                "over_time": recorded[case][line.exponents[line.best]],
                "over_time_same": recorded[case].get(_best(lines, case), np.zeros(0)),
            }
            for case, line in lines.items()
        },
    }  # fmt: skip


def _best(lines: dict[Case, Line], case: Case) -> int:
    """Return the exponent that is best without the move."""
    unmoved = lines[case._replace(moved=False)]
    return unmoved.exponents[unmoved.best]


def start_losses(mine: Task, starts: dict[str, Tensor], scale: Scale, device: torch.device) -> dict[str, np.ndarray]:
    """Return the loss of each start without training, (seeds,)."""
    runs = [Run(seed, 1e-3, 0.0, scale.b2) for seed in range(scale.seeds)]
    values = {}
    for name, flat in starts.items():
        program = Program(mine, start(mine.nets, runs), runs, 1, device)
        program.flat.copy_(flat)
        values[name] = torch.stack([program.gradient()[0] for _ in range(scale.noise_batches)]).mean(0).cpu().numpy()
    return values


def study(scale: Scale, inputs: Inputs, device: torch.device, *, folder: Path = RESULTS) -> dict[str, Any]:
    """Run all networks and save the results after each."""
    begun = time.perf_counter()
    sizes = {"networks": asdict(scale.networks) | {"sizes": scale.networks.sizes._asdict()}}
    facts: dict[str, Any] = {"scale": asdict(scale) | sizes, "networks": {}}
    for name in NAMES:
        facts["networks"][name] = network(name, scale, inputs, device)
        facts["made"] = made_by(device, time.perf_counter() - begun)
        save("adamw-starts", facts, folder)
    return facts


def main() -> None:
    """Run the study, or only draw the figures and write the page."""
    options = arguments(__doc__, "studies.adamw_starts").parse_args()
    scale = SMALL if options.smoke else Scale()
    if options.prepare is not None:
        Inputs.make(scale.networks.sizes, NAMES).save(options.prepare)
        return
    if not options.draw:
        sizes = scale.networks.sizes
        inputs = Inputs.make(sizes, NAMES) if options.inputs is None else Inputs.load(options.inputs)
        study(scale, inputs, torch.device(options.device), folder=options.results or RESULTS)
    if options.results is None:
        from studies.adamw_starts_page import figures, page

        publish("adamw-starts", page, figures)


if __name__ == "__main__":
    main()
