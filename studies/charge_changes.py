"""Does the flow of the monitor predict how charges change? A small Llama under AdamW and SGD, charge by charge.

    python -m studies.charge_changes

On an H200 this takes about three minutes, with `--smoke` a few seconds on a CPU. The network learns real text, the
manual of the Python language that every Python carries. The flow, the expected change of a charge per step by noise and
weight decay, is summed over windows of the training and compared with the change of the charge over the same window. On
a machine without scikit-learn, or without all dependencies of undertow, run `--prepare FILE` elsewhere first and give
`--inputs FILE`; `--results FOLDER` writes the results without page and figures.
"""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from studies.adamw import Inputs, arguments
from studies.adamw_networks import Decoder, Generators, Sizes, Task
from studies.adamw_program import Sides
from studies.charge_changes_program import RECORDED, ChargeProgram, Setting
from studies.results import RESULTS, made_by, publish, save
from studies.training import Text, manual

__all__ = ["NAME", "SMALL", "Scale", "changes", "compare", "follow", "settings", "study"]

NAME = "charge-changes"
SIZES = Sizes(width=128, heads=4, layers=4, tokens=64, text_batch=16)


@dataclass(frozen=True)
class Scale:
    """Sizes of the study."""

    sizes: Sizes = SIZES
    seeds: int = 10
    steps: int = 2000
    every: int = 10
    """Steps between records."""
    windows: tuple[int, ...] = (10, 50, 200, 500, 1000)
    """Lengths in steps. The first window of a length starts after as many steps as it has."""
    step_size: float = 2e-3
    weight_decay: float = 0.1
    b2s: tuple[float, ...] = (0.95, 0.999)
    warm_ups: tuple[int, ...] = (0, 200)
    sgd_step_size: float = 0.05
    sgd_weight_decay: float = 1e-3


SMALL = Scale(
    Sizes(width=8, heads=2, layers=1, tokens=6, text_batch=3, sentences=200),
    seeds=3, steps=40, every=5, windows=(5, 10, 20), warm_ups=(0, 10),
)  # fmt: skip


def text_task(sizes: Sizes, seeds: int, device: torch.device) -> Task:
    """Return a Llama for each seed, and windows of the manual."""
    text = manual()
    nets: list[torch.nn.Module] = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        nets.append(Decoder(text.words, sizes, llama=True))
    text = Text(text.words, text.ids.to(device))
    last = len(text.ids) - sizes.tokens - 1
    return Task(nets, lambda starts: text.batch(starts, sizes.tokens), last, sizes.text_batch)


def settings(scale: Scale, *, adaptive: bool) -> list[Setting]:
    """Return the settings of all runs of one optimiser; seeds of a setting follow each other."""
    size, decay = (scale.step_size, scale.weight_decay) if adaptive else (scale.sgd_step_size, scale.sgd_weight_decay)
    return [
        Setting(seed, adaptive, size, decay, b2, warm_up)
        for b2 in (scale.b2s if adaptive else (0.0,))
        for warm_up in scale.warm_ups
        for seed in range(scale.seeds)
    ]


def follow(
    mine: Task, runs: list[Setting], scale: Scale, generators: Generators, device: torch.device
) -> tuple[np.ndarray, np.ndarray]:
    """Train all runs and return the records, (records, recorded, runs, generators), and the losses, (records, runs)."""
    torch.manual_seed(1)
    program = ChargeProgram(mine, runs, Sides(generators, device), device)
    records, losses = [program.record()], []
    for _ in range(scale.steps // scale.every):
        losses.append(program.run(scale.every))
        records.append(program.record())
    return torch.stack(records).cpu().numpy(), torch.stack(losses).cpu().numpy()


def by_symmetry(records: np.ndarray, generators: Generators) -> np.ndarray:
    """Return the sums over the generators of each symmetry, as in the rows of the monitor."""
    return np.stack(
        [records[..., np.equal(generators.symmetry, k)].sum(-1) for k in range(max(generators.symmetry) + 1)], -1
    )


def changes(records: np.ndarray, length: int, scale: Scale) -> dict[str, np.ndarray]:
    """Return changes over windows relative to the size of the charge at their start, (windows, seeds, charges) each."""
    stride = length // scale.every
    starts = np.arange(stride, len(records) - stride, stride)
    of = dict(zip(RECORDED, np.moveaxis(records[starts + stride] - records[starts], 1, 0), strict=True))
    size = records[starts, RECORDED.index("size")]
    result = {name: values / size for name, values in of.items() if name != "size"}
    return result | {"rest": result["charge"] - result["metric"], "start": starts * scale.every}


def compare(of: dict[str, np.ndarray], late: int) -> dict[str, Any]:
    """Return how the flow compares with the change and with its rest without the metric part.

    R^2 is computed for each seed over all windows and charges, then averaged. `late` is the first step of the second
    half of the training.
    """
    second = of["start"] >= late
    facts: dict[str, Any] = {"windows": len(second), "late_windows": int(second.sum())}
    for target in ("charge", "rest"):
        for phase, chosen in (("all", np.ones_like(second)), ("late", second)):
            facts[f"{target}_{phase}"] = _agreement(of["flow"][chosen], of[target][chosen])
            facts[f"present_{target}_{phase}"] = _agreement(of["present_flow"][chosen], of[target][chosen])
    parts = ("flow", "present_flow", "charge", "first_order", "second_order", "decay", "metric")
    rms = lambda values: float(np.sqrt(np.mean(values**2)))
    facts["rms"] = {name: rms(of[name]) for name in parts}
    facts["late_rms"] = {name: rms(of[name][second]) for name in parts}
    return facts


def _agreement(predicted: np.ndarray, measured: np.ndarray) -> dict[str, float]:
    """Return R^2 by seed with its standard error, the slope, and the deviations of the means in standard errors."""
    seeds = measured.shape[1]
    flat = lambda values: np.moveaxis(values, 1, 0).reshape(seeds, -1)
    p, m = flat(predicted), flat(measured)
    r2 = 1 - ((m - p) ** 2).sum(1) / ((m - m.mean(1, keepdims=True)) ** 2).sum(1)
    slope = (m * p).sum(1) / (p**2).sum(1)
    difference = measured - predicted
    mean, error = difference.mean(1), difference.std(1, ddof=1) / seeds**0.5
    z = np.abs(mean / np.maximum(error, 1e-300))
    means = measured.mean(1)
    spread = ((means - means.mean()) ** 2).sum()
    at = lambda values: (float(values.mean()), float(values.std(ddof=1) / seeds**0.5))
    return {
        "r2": at(r2)[0], "r2_error": at(r2)[1], "slope": at(slope)[0], "slope_error": at(slope)[1],
        "r2_of_means": float(1 - (mean**2).sum() / spread),
        "correlation": float(np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(p, m, strict=True)])),
        "median_z": float(np.median(z)), "within_two": float((z < 2).mean()),
        "rms_difference": float(np.sqrt((difference**2).mean())),
    }  # fmt: skip


def _facts(records: np.ndarray, losses: np.ndarray, run: Setting, scale: Scale, generators: Generators) -> dict:
    """Return the results of one setting, from the records and losses of its seeds."""
    whole = by_symmetry(records, generators)
    late = scale.steps // 2
    levels = {"generators": records, "symmetries": whole}
    compared = {
        level: {str(length): compare(changes(values, length, scale), late) for length in scale.windows}
        for level, values in levels.items()
    }
    last = changes(whole, scale.windows[-1], scale)
    exact = np.abs(
        records[-1, 0] - records[1, 0] - (records[-1, 4:] - records[1, 4:]).sum(0)
    ).max() / records[-1, 1].max()  # fmt: skip
    every = max(1, len(losses) // 40)
    return asdict(replace(run, seed=0)) | {
        **compared,
        "exact": float(exact),
        "scatter": {name: last[name][-1] for name in ("flow", "present_flow", "charge", "rest")},
        "loss_steps": (np.arange(len(losses))[::every] + 1) * scale.every,
        "loss": losses[::every].mean(1),
        "last_loss": losses[-max(1, len(losses) // 10) :].mean(0),
    }


def study(scale: Scale, inputs: Inputs, device: torch.device, folder: Path = RESULTS) -> dict[str, Any]:
    """Train all runs, compare, and save the results."""
    begun = time.perf_counter()
    generators = inputs.generators["Llama"]
    mine = text_task(scale.sizes, scale.seeds, device)
    first = [generators.symmetry.index(k) for k in range(max(generators.symmetry) + 1)]
    facts: dict[str, Any] = {
        "scale": asdict(scale) | {"sizes": scale.sizes._asdict()},
        "characters": mine.indices + scale.sizes.tokens + 1,
        "parameters": sum(p.numel() for p in mine.nets[0].parameters()),
        "families": [generators.families[k] for k in first],
        "generators": len(generators.families),
        "settings": [],
    }
    for adaptive in (True, False):
        runs = settings(scale, adaptive=adaptive)
        records, losses = follow(mine, runs, scale, generators, device)
        for start in range(0, len(runs), scale.seeds):
            own = slice(start, start + scale.seeds)
            facts["settings"].append(_facts(records[:, :, own], losses[:, own], runs[start], scale, generators))
        facts["made"] = made_by(device, time.perf_counter() - begun)
        print(f"{len(runs)} runs after {facts['made']['seconds']:.0f} s", flush=True)
        save(NAME, facts, folder)
    return facts


def main() -> None:
    """Run the study, or only draw the figures and write the page."""
    options = arguments(__doc__, "studies.charge_changes").parse_args()
    scale = SMALL if options.smoke else Scale()
    if options.prepare is not None:
        Inputs.make(scale.sizes, ("Llama",)).save(options.prepare)
        return
    if not options.draw:
        inputs = Inputs.make(scale.sizes, ("Llama",)) if options.inputs is None else Inputs.load(options.inputs)
        study(scale, inputs, torch.device(options.device), options.results or RESULTS)
    if options.results is None:
        from studies.charge_changes_page import figures, page

        publish(NAME, page, figures)


if __name__ == "__main__":
    main()
