"""Is the gradient noise scale the critical batch size? Steps to a loss over batch sizes, on six tasks.

    python -m studies.critical_batch

On an H200 this takes about five minutes, with `--smoke` half a minute on a CPU. For every batch size the step size is
tuned on a grid, and the steps to a target loss are counted. The fit of steps = S (1 + B/batch) gives the critical batch
size B, which is compared with the noise scales that the monitor measures on the way. On a machine without scikit-learn,
or without all dependencies of undertow, run `--prepare FILE` elsewhere first, then `--inputs FILE --results FOLDER`,
and `--noise --results FOLDER` where undertow is installed: it adds the noise scales to the results.
"""

import gc
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from studies.adamw import Inputs, arguments, pretrained
from studies.adamw import Scale as Networks
from studies.adamw_networks import Sizes, Task, task
from studies.adamw_program import Program, Run, start
from studies.charge_changes import text_task
from studies.results import RESULTS, load, made_by, publish, save
from studies.training import mlp

__all__ = [
    "CASES",
    "NAME",
    "SMALL",
    "SMALL_CASES",
    "Case",
    "Scale",
    "build",
    "curve",
    "first_crossing",
    "fit",
    "fit_with_error",
    "study",
]

NAME = "critical-batch"
SIZES = Sizes()
GRID_FACTOR = 1.5
"""Ratio of neighbouring step sizes of a grid."""
SLACK = 1.3
"""A program stops when it has run this many times longer than the first step size that reached the target needed."""


@dataclass(frozen=True)
class Case:
    """One task: a network with its data, the optimiser, and the loss to reach."""

    name: str
    network: str
    adaptive: bool
    """AdamW; otherwise SGD without momentum."""
    target: float
    step_size: float
    """Smallest step size of the grid."""
    batches: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 128, 256)

    @property
    def reference(self) -> int:
        """The batch size at which the noise scale is measured."""
        return self.batches[-3] if len(self.batches) > 2 else self.batches[-1]


CASES = (
    Case("digits, ReLU network, SGD", "ReLU network", False, 0.8, 0.005),
    Case("digits, convolutions, AdamW", "convolutions", True, 0.75, 2e-4),
    Case("text, Llama, AdamW", "text", True, 2.0, 1.5e-4),
    Case("text, Llama, SGD", "text", False, 2.45, 0.003),
    Case("regression with label noise, SGD", "regression", False, 0.1, 0.004),
    Case("LoRA of a Llama, AdamW", "LoRA", True, 2.38, 2e-4),
)
"""The targets are where the loss of a large batch falls more slowly than at first, but still falls."""


@dataclass(frozen=True)
class Scale:
    """Sizes of the study."""

    sizes: Sizes = SIZES
    seeds: int = 6
    grid: int = 16
    """Number of step sizes."""
    most_steps: int = 30_000
    evaluation: int = 512
    """Samples of the evaluation set."""
    first: int = 10
    """Step of the first evaluation."""
    spacing: float = 1.04
    """Ratio of the steps of evaluations."""
    seconds: float = 50.0
    """Largest time per task; batch sizes that are not finished by then are left out."""
    resamples: int = 200
    """Bootstrap samples."""
    noise_seeds: int = 3
    measurements: int = 60
    """Measurements of the noise scale per run."""
    segments: int = 10
    """Parts of a run with one noise scale each."""
    curvature_batches: int = 60
    curvature_points: int = 4
    base_steps: int = 3000
    weight_decay: float = 0.01
    b2: float = 0.95


SMALL = Scale(
    Sizes(hidden=4, width=8, heads=2, layers=1, tokens=6, batch=4, text_batch=2, rank=2, sentences=200),
    seeds=2, grid=3, most_steps=40, evaluation=16, seconds=5.0, resamples=5, noise_seeds=1, measurements=10, segments=2,
    curvature_batches=9, curvature_points=1, base_steps=4,
)  # fmt: skip


EASY = {"ReLU network": (2.35, 0.1), "convolutions": (2.32, 0.01), "text": (4.2, 0.1), "regression": (0.6, 0.05),
        "LoRA": (3.47, 0.1)}  # fmt: skip
SMALL_CASES = tuple(
    replace(case, target=EASY[case.network][0], step_size=EASY[case.network][1], batches=(2, 4, 8)) for case in CASES
)
"""Targets that the networks of `SMALL` reach in a few steps."""


# tasks


def regression(seeds: int, device: torch.device, width: int = 32, inputs: int = 20, deviation: float = 0.3) -> Task:
    """Return fresh samples of a teacher with label noise; the inputs have deviations 1, 2^-1/2, 3^-1/2, ..."""
    torch.manual_seed(7)
    teacher = mlp(inputs, 16, 1)
    for p in teacher.parameters():
        p.detach().normal_(std=0.5)
    teacher = teacher.to(device).requires_grad_(False)
    scale = torch.arange(1, inputs + 1, device=device) ** -0.5

    def batch(index: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.randn(*index.shape, inputs, device=device) * scale
        return x, teacher(x) + deviation * torch.randn(*index.shape, 1, device=device)

    nets: list[torch.nn.Module] = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        nets.append(mlp(inputs, width, 1))
    return Task(nets, batch, 2**30, 1, lambda model, batch: (model(batch[0]) - batch[1]).square().mean() / 2)


def build(case: Case, scale: Scale, images: tuple[Tensor, Tensor], device: torch.device) -> Task:
    """Return the networks of all seeds and the data of a task."""
    if case.network == "regression":
        return regression(scale.seeds, device)
    if case.network == "text":
        return text_task(scale.sizes, scale.seeds, device)
    base = pretrained(Networks(scale.sizes, base_steps=scale.base_steps), device) if case.network == "LoRA" else None
    return task(case.network, scale.sizes, scale.seeds, device, images, base)


# steps to a loss


def first_crossing(steps: np.ndarray, losses: np.ndarray, target: float) -> np.ndarray:
    """Return when each loss first reaches the target, by interpolation in log(step); infinity where it does not.

    `losses` are (evaluations, ...), with infinity for runs that have diverged.
    """
    below = losses <= target
    at = below.argmax(0)
    before = np.take_along_axis(losses, np.maximum(at - 1, 0)[None], 0)[0]
    after = np.take_along_axis(losses, at[None], 0)[0]
    known = np.isfinite(before) & (before > target) & below.any(0)
    above, fall = np.where(known, before, target) - target, np.where(known, before, 1.0) - np.where(known, after, 0.0)
    part = np.where(known, above / fall, 1.0)
    low, high = np.log(steps[np.maximum(at - 1, 0)]), np.log(steps[at])
    return np.where(below.any(0), np.exp(low + part * (high - low)), np.inf)


def _losses(program: Program, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss of every run on one batch, infinity for runs that have diverged."""
    one = lambda params: program.mine.loss(lambda *inputs: functional_call(program.net, params, inputs), batch)
    with torch.no_grad():
        return vmap(one)(program.views(program.flat)).nan_to_num(torch.inf)


def curve(case: Case, mine: Task, scale: Scale, batch_size: int, seconds: float, device: torch.device) -> np.ndarray:
    """Return the steps to the target for each step size of the grid and each seed, infinity where it is not reached."""
    grid = case.step_size * GRID_FACTOR ** np.arange(scale.grid)
    decay = scale.weight_decay if case.adaptive else 0.0
    runs = [Run(seed, float(eta), decay, scale.b2, adaptive=case.adaptive)
            for eta in grid for seed in range(scale.seeds)]  # fmt: skip
    begun = time.perf_counter()
    torch.manual_seed(5)
    held_out = mine.batch(torch.randint(0, mine.indices, (scale.evaluation,), device=device))
    program = Program(
        mine._replace(samples=batch_size), start(mine.nets, runs), runs, int(SLACK * scale.most_steps), device
    )
    points = np.unique(np.ceil(scale.first * scale.spacing ** np.arange(1000)).astype(int))
    done, losses, steps = 0, [], []
    most = scale.most_steps
    for point in points[points <= scale.most_steps]:
        if point > most or time.perf_counter() - begun > seconds:
            break
        program.run(int(point) - done)
        done = int(point)
        steps.append(done)
        losses.append(_losses(program, held_out).cpu().numpy().reshape(scale.grid, scale.seeds))
        if most == scale.most_steps and (np.min(losses, 0) <= case.target).all(1).any():
            most = min(most, int(SLACK * done))
    return first_crossing(np.array(steps), np.array(losses), case.target)


# fit


def best_steps(steps: np.ndarray) -> tuple[float, int]:
    """Return the geometric mean over seeds of the steps with the best step size, and its place on the grid."""
    means = np.log(steps).mean(1)
    place = int(np.argmin(means))
    return float(np.exp(means[place])), place


def fit(batches: np.ndarray, steps: np.ndarray) -> tuple[float, float, float]:
    """Return S and B of steps = S (1 + B/batch) by least squares of the logarithms, and the rms of the residuals."""
    candidates = np.geomspace(batches.min() / 100, batches.max() * 100, 4001)
    shape = np.log1p(candidates[:, None] / batches)
    level = (np.log(steps) - shape).mean(1, keepdims=True)
    rms = np.sqrt(((np.log(steps) - shape - level) ** 2).mean(1))
    best = int(np.argmin(rms))
    return float(np.exp(level[best, 0])), float(candidates[best]), float(rms[best])


def fit_with_error(batches: np.ndarray, steps: list[np.ndarray], resamples: int) -> dict[str, Any]:
    """Return the fit with standard errors over bootstrap samples of the seeds, with the step size tuned anew in each.

    `steps` has for each batch size the steps by step size and seed.
    """
    rng = np.random.default_rng(0)
    tuned = [best_steps(s) for s in steps]
    kept = np.array([np.isfinite(value) for value, _ in tuned])
    if kept.sum() < 3:
        return {"steps": [value for value, _ in tuned], "place": [place for _, place in tuned], "kept": int(kept.sum())}
    own = [s for s, good in zip(steps, kept, strict=True) if good]
    of = lambda seeds: fit(batches[kept], np.array([best_steps(s[:, seeds])[0] for s in own]))
    seeds = steps[0].shape[1]
    drawn = np.log([of(rng.integers(0, seeds, seeds))[:2] for _ in range(resamples)])
    least, critical, rms = of(np.arange(seeds))
    error = drawn.std(0, ddof=1)
    return {
        "steps": [value for value, _ in tuned], "place": [place for _, place in tuned], "kept": int(kept.sum()),
        "least_steps": least, "critical_batch": critical, "rms": rms,
        "least_steps_log_error": float(error[0]), "critical_batch_log_error": float(error[1]),
    }  # fmt: skip


# study


def follow(case: Case, scale: Scale, images: tuple[Tensor, Tensor], device: torch.device) -> dict[str, Any]:
    """Return the curve and the fit of one task; large batches come first, because they take the least time."""
    begun = time.perf_counter()
    mine = build(case, scale, images, device)
    steps: dict[int, np.ndarray] = {}
    for batch_size in reversed(case.batches):
        left = scale.seconds - (time.perf_counter() - begun)
        if left <= 0:
            break
        steps[batch_size] = curve(case, mine, scale, batch_size, left, device)
    batches = np.array(sorted(steps))
    facts = fit_with_error(batches, [steps[int(b)] for b in batches], scale.resamples)
    grid = case.step_size * GRID_FACTOR ** np.arange(scale.grid)
    facts |= {"step_size": [float(grid[k]) for k in facts["place"]], "batches": batches,
              "edge": [int(b) for b, k in zip(batches, facts["place"], strict=True) if k in (0, scale.grid - 1)],
              "steps_by_run": [steps[int(b)] for b in batches]}  # fmt: skip
    facts["seconds"] = time.perf_counter() - begun
    print(f"{case.name}, {facts['seconds']:.0f} s: B {facts.get('critical_batch', np.nan):.3g}, steps "
          f"{np.round(facts['steps'])}, best places on the grid {facts['place']}", flush=True)  # fmt: skip
    return facts


def study(
    scale: Scale, inputs: Inputs, device: torch.device, folder: Path = RESULTS, cases: tuple[Case, ...] = CASES
) -> dict[str, Any]:  # fmt: skip
    """Measure the curves of all tasks and save the results after each."""
    begun = time.perf_counter()
    facts: dict[str, Any] = {"scale": asdict(scale) | {"sizes": scale.sizes._asdict()}, "tasks": {}}
    for case in cases:
        own = asdict(case) | {"reference": case.reference}
        facts["tasks"][case.name] = own | follow(case, scale, inputs.images, device)
        gc.collect()  # graphs of CUDA hold their memory until they are collected
        if device.type == "cuda":
            torch.cuda.empty_cache()
        facts["made"] = made_by(device, time.perf_counter() - begun)
        save(NAME, facts, folder)
    return facts


def main() -> None:
    """Run the study, or only draw the figures and write the page."""
    parser = arguments(__doc__, "studies.critical_batch")
    parser.add_argument("--noise", action="store_true", help="only add the noise scales to the stored results")
    options = parser.parse_args()
    (scale, cases), device = (SMALL, SMALL_CASES) if options.smoke else (Scale(), CASES), torch.device(options.device)
    folder = options.results or RESULTS
    if options.prepare is not None:
        Inputs.make(scale.sizes, ()).save(options.prepare)
        return
    if not options.draw:
        inputs = Inputs.make(scale.sizes, ()) if options.inputs is None else Inputs.load(options.inputs)
        if not options.noise:
            study(scale, inputs, device, folder, cases)
        if options.noise or options.results is None:
            from studies.critical_batch_noise import add_noise_scales

            save(NAME, add_noise_scales(load(NAME, folder), scale, inputs.images, device, cases), folder)
    if options.results is None:
        from studies.critical_batch_page import figures, page

        publish(NAME, page, figures)


if __name__ == "__main__":
    main()
