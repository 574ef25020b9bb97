"""Noise scales of the monitor on the way to the target losses of the study of critical batch sizes."""

import copy
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from studies.adamw_networks import Task
from studies.critical_batch import CASES, Case, Scale, build
from studies.results import made_by
from undertow.torch import NoiseMonitor
from undertow.torch.monitor.curvature_scale import curvature_noise_scale
from undertow.torch.monitor.noise_scale import NoiseScale

__all__ = ["add_noise_scales", "average", "noise_along", "pooled"]


def average(scales: np.ndarray, batch_size: int) -> float:
    """Return the noise scale that the model of steps = S (1 + B/batch) gives for a run whose scale changes.

    A step with the noise scale b makes the progress 1/(1 + b/batch), so that steps at equal distances have these
    weights. A scale of infinity is a step without progress.
    """
    progress = 1 / (1 + scales / batch_size)
    return float(batch_size * (1 - progress).sum() / progress.sum()) if progress.any() else math.inf


def pooled(noise: np.ndarray, signal: np.ndarray, batch_size: int) -> dict[str, Any]:
    """Return noise scales from the powers of noise and signal at several times, (seeds, times), pooled over the seeds.

    The errors of the average and of the last one are by the jackknife over the seeds, in the logarithm.
    """

    def numbers(chosen: np.ndarray) -> tuple[np.ndarray, float]:
        power = signal[chosen].sum(0)
        scales = np.where(
            power > 0, batch_size * noise[chosen].sum(0).clip(0) / np.where(power > 0, power, 1.0), np.inf
        )
        return scales, average(scales, batch_size)

    seeds = len(noise)
    scales, mean = numbers(np.arange(seeds))
    left_out = [numbers(np.delete(np.arange(seeds), k)) for k in range(seeds)] if seeds > 2 else []
    error = lambda values: float(np.std(np.log(values)) * (seeds - 1) ** 0.5) if np.isfinite(values).all() else math.nan
    return {
        "scales": scales, "average": mean, "end": float(scales[-1]),
        "average_log_error": error([m for _, m in left_out]) if left_out else math.nan,
        "end_log_error": error([s[-1] for s, _ in left_out]) if left_out else math.nan,
    }  # fmt: skip


def _batches(mine: Task, samples: int, device: torch.device) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: mine.batch(torch.randint(0, mine.indices, (samples,), device=device))


def noise_along(case: Case, net: nn.Module, mine: Task, step_size: float, steps: int, scale: Scale) -> dict[str, Any]:
    """Train a network at the reference batch size and return its noise scales in segments of the run.

    The curvature-weighted scale is that of copies of the network in the middle of equal parts of the run.
    """
    device = next(net.parameters()).device
    draw = _batches(mine, case.reference, device)
    kind = torch.optim.AdamW if case.adaptive else torch.optim.SGD
    options = {"betas": (0.9, scale.b2), "weight_decay": scale.weight_decay} if case.adaptive else {}
    optimizer = kind([p for p in net.parameters() if p.requires_grad], lr=step_size, **options)
    every = max(1, steps // scale.measurements)
    measured = set(((np.arange(scale.curvature_points) + 0.5) * steps / scale.curvature_points).astype(int).tolist())
    copies = []
    per_segment = max(1, steps // every // scale.segments)
    segments: list[tuple[float, float]] = []
    with NoiseMonitor(net, every=every, window=per_segment) as monitor:
        for step in range(steps):
            if step in measured:
                copies.append(copy.deepcopy(net))
            optimizer.zero_grad()
            mine.loss(net, draw()).backward()
            optimizer.step()
            if step % every == 0 and (step // every + 1) % per_segment == 0:
                segments.append(_powers(monitor.noise_scale.total))
        uncovered = sorted(monitor.noise_scale.uncovered)
    curvature = []
    for kept in copies:
        batches = [draw() for _ in range(scale.curvature_batches)]
        curvature.append(_powers(curvature_noise_scale(kept, batches, mine.loss, batch_size=case.reference)))
    return {"simple": segments[: scale.segments], "curvature": curvature, "uncovered": uncovered}


def _powers(scale: NoiseScale) -> tuple[float, float]:
    return scale.noise, scale.signal


def add_noise_scales(
    facts: dict[str, Any], scale: Scale, images: tuple[Tensor, Tensor], device: torch.device,
    cases: tuple[Case, ...] = CASES,
) -> dict[str, Any]:  # fmt: skip
    """Return the results with the noise scales of each task, measured with the tuned step size until the target."""
    begun = time.perf_counter()
    for case in cases:
        own = facts["tasks"].get(case.name)
        if own is None or case.reference not in own["batches"]:
            continue
        place = own["batches"].index(case.reference)
        if own["steps"][place] is None:
            continue
        torch.manual_seed(11)
        mine = build(case, scale, images, device)
        steps = max(scale.segments, round(own["steps"][place]))
        nets = [net.to(device) for net in mine.nets[: scale.noise_seeds]]
        runs = [noise_along(case, net, mine, own["step_size"][place], steps, scale) for net in nets]
        for kind in ("simple", "curvature"):
            powers = np.array([run[kind] for run in runs])
            own[kind] = pooled(powers[..., 0], powers[..., 1], case.reference)
        own["uncovered"] = runs[0]["uncovered"]
        print(f"{case.name}: simple {own['simple']['average']:.3g}, curvature {own['curvature']['average']:.3g}",
              flush=True)  # fmt: skip
    facts["noise_made"] = made_by(device, time.perf_counter() - begun)
    return facts
