"""Noise scales of the monitor on the way to the target losses of the study of critical batch sizes."""

import copy
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

__all__ = ["add_noise_scales", "average", "noise_along"]


def average(scales: np.ndarray, batch_size: int) -> float:
    """Return the noise scale that the model of steps = S (1 + B/batch) gives for a run whose scale changes.

    A step with the noise scale b makes the progress 1/(1 + b/batch), so that steps at equal distances have these
    weights. A scale of infinity is a step without progress.
    """
    progress = 1 / (1 + scales / batch_size)
    return float(batch_size * (1 - progress).sum() / progress.sum())


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
    segments: list[float] = []
    with NoiseMonitor(net, every=every, window=per_segment) as monitor:
        for step in range(steps):
            if step in measured:
                copies.append(copy.deepcopy(net))
            optimizer.zero_grad()
            mine.loss(net, draw()).backward()
            optimizer.step()
            if step % every == 0 and (step // every + 1) % per_segment == 0:
                segments.append(monitor.noise_scale.total.value)
        uncovered = sorted(monitor.noise_scale.uncovered)
    curvature = []
    for kept in copies:
        batches = [draw() for _ in range(scale.curvature_batches)]
        curvature.append(curvature_noise_scale(kept, batches, mine.loss, batch_size=case.reference).value)
    return {
        "segments": segments, "average": average(np.array(segments), case.reference), "end": segments[-1],
        "curvature": curvature, "curvature_average": average(np.array(curvature), case.reference),
        "uncovered": uncovered,
    }  # fmt: skip


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
        own["noise"] = [noise_along(case, net, mine, own["step_size"][place], steps, scale) for net in nets]
        print(f"{case.name}: noise scale {[round(n['average'], 1) for n in own['noise']]}", flush=True)
    facts["noise_made"] = made_by(device, time.perf_counter() - begun)
    return facts
