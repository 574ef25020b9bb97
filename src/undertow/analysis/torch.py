"""`undertow analyze` for a PyTorch model: the same table and page as for a JAX problem."""

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import nn

from undertow._calls import checked_call
from undertow._validate import finite_number, kind_of, positive_integer, shown
from undertow.analysis.result import Analysis, Row, in_steps
from undertow.analysis.sides import SideMoments, flow_vectors, sides_of
from undertow.estimate import Estimate
from undertow.symmetry import equilibrium as jax_equilibrium
from undertow.symmetry.curvature import DENSE, Spectrum, spectrum_of
from undertow.symmetry.forecast import Forecast
from undertow.torch._copies import Batch, Loss, forward, trainable, unwrap
from undertow.torch._inputs import check_loss, check_model, check_seed
from undertow.torch._isolation import isolated
from undertow.torch.census.census import census
from undertow.torch.equilibrium.amounts import relaxation_times
from undertow.torch.equilibrium.charge_moments import ChargeMoments
from undertow.torch.equilibrium.components import components
from undertow.torch.equilibrium.curvature import FIRST_BATCHES, dense_hessian, trace_of_hessian
from undertow.torch.equilibrium.equilibrate import equilibrate
from undertow.torch.equilibrium.gradients import format_estimate
from undertow.torch.equilibrium.measurement import measure_noise
from undertow.torch.equilibrium.objectives import SGDObjective
from undertow.torch.equilibrium.result import Equilibrium, MovedSymmetry

__all__ = ["analyze", "take_batches"]

MAX_BATCHES = 32
"""Largest number of batches on which the noise is measured."""

NO_LIMIT = "The slow motion after zero loss is predicted for least squares in JAX only (`Limit`)."

Batches = Iterable[Batch] | torch.utils.data.Dataset


def take_batches(batches: Batches, batch_size: int, seed: int) -> list[Batch]:
    """Return at most 32 batches: drawn at random from a `Dataset`, the first ones of a `DataLoader` or a list.

    The batches of an `IterableDataset` are in its own order.
    """
    if isinstance(batches, torch.utils.data.IterableDataset):
        batches = torch.utils.data.DataLoader(batches, batch_size, drop_last=True)
    elif isinstance(batches, torch.utils.data.Dataset):
        if not hasattr(batches, "__len__"):
            raise TypeError(
                f"`analyze(batches={type(batches).__name__}(...))`: the dataset has no `__len__`; add it, or give a "
                "list of batches."
            )
        generator = torch.Generator().manual_seed(seed)
        batches = torch.utils.data.DataLoader(batches, batch_size, shuffle=True, drop_last=True, generator=generator)
    elif isinstance(batches, list | tuple) and len({_axes(batch) for batch in batches}) > 1:
        raise ValueError(
            f"`analyze(batches={shown(batches)})`: the entries of `batches` have different numbers of axes, as inputs "
            "and targets of one batch do; give a list of batches."
        )
    elif not isinstance(batches, Iterable) or isinstance(batches, str | torch.Tensor | dict):
        raise TypeError(
            f"`analyze(batches={shown(batches)})`: `batches` is {kind_of(batches)}; give a `Dataset`, a "
            "`DataLoader` or a list of batches."
        )
    taken = list(itertools.islice(batches, MAX_BATCHES))
    if len(taken) < 2:
        raise ValueError(
            f"`analyze(batches=...)`: `batches` has {len(taken)} batches; at least 2 are needed to measure noise."
        )
    return taken


def _axes(batch: Batch) -> int | None:
    """Return the number of axes of a tensor, None for other batches."""
    return batch.ndim if isinstance(batch, torch.Tensor) else None


@checked_call("analyze", tell="report")
def analyze(
    model: nn.Module,
    batches: Batches,
    loss: Loss,
    *,
    step_size: float = 0.01,
    weight_decay: float = 0.0,
    batch_size: int = 32,
    seed: int = 0,
    report: Callable[[str], object] = lambda stage: None,
) -> Analysis:
    """Return the symmetries of a PyTorch model, the equilibrium of their charges under SGD, and advice.

    The model is not changed; a copy is moved to the equilibrium.

    **Arguments:**

    - `model`, `loss`: the network, and `loss(model, batch)`, which returns a scalar tensor.
    - `batches`: a `Dataset`, or batches as `loss(model, batch)` takes them; at most 32 are used.
    - `step_size`, `weight_decay`: those of `torch.optim.SGD`.
    - `batch_size`: the batch size of training, where `batches` is a `Dataset`.
    - `seed`: seed of the batches drawn from a `Dataset`, of the census and of dropout.
    - `report`: a callback that receives the name of each stage when it starts.

    >>> import torch
    >>> from undertow.torch import analyze
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    >>> loss = lambda model, x: (model(x) - x[:, :3]).square().mean()
    >>> analysis = analyze(net, [torch.randn(8, 5) for _ in range(20)], loss)
    >>> print(analysis.rows[0].name, "|", analysis.rows[0].generators)
    rescaling, 7 scales: 0.weight[i, :], 0.bias against 2.weight[:, i] | 7
    """
    check_model("analyze", model)
    check_loss("analyze", loss)
    finite_number("analyze", "step_size", step_size, positive=True)
    finite_number("analyze", "weight_decay", weight_decay)
    batch_size, seed = positive_integer("analyze", "batch_size", batch_size), check_seed("analyze", seed)
    model = unwrap(model)
    batches = take_batches(batches, batch_size, seed)
    report("searching symmetries")
    symmetries = census(model, batches[0], loss, seed=seed)
    report("computing noise and equilibrium")
    twin = copy.deepcopy(model)
    moved = equilibrate(twin, batches, loss, symmetries, step_size=step_size, weight_decay=weight_decay, seed=seed)
    moments = [_charge_moments(net, batches, loss, moved, step_size, weight_decay, seed) for net in (model, twin)]
    rows = tuple(_row(*parts, step_size, weight_decay) for parts in zip(moved.moved, *moments, strict=True))
    report("measuring sharpness")
    nets = (model, twin) if rows else (model,)
    sharpness = [trace_of_hessian(net, batches, loss, seed) for net in nets]
    spectra = [_spectrum(net, batches, loss, seed) for net in nets]
    value, squared_gradient = _mean_loss(model, batches, loss, seed)
    steps = [step.value for step in moved.largest_step]
    forecast = None
    if rows:
        decay_time = value / max(squared_gradient, 1e-300)
        point = _jax_equilibrium(twin, moved, moments[1])
        forecast = _forecast(point, rows, sharpness, steps, spectra, step_size, decay_time)
    pair = lambda estimate: (float(estimate.value), float(estimate.standard_error))
    return Analysis(
        parameters=sum(p.numel() for p in trainable(model).values()),
        loss=value,
        step_size=float(step_size),
        weight_decay=float(weight_decay),
        rows=rows,
        symmetries=symmetries.symmetries,
        forecast=forecast,
        sharpness=pair(sharpness[0]),
        sharpness_then=pair(sharpness[1]) if rows else None,
        largest_step=steps[0],
        largest_step_then=steps[1] if rows else None,
        spectrum=spectra[0],
        spectrum_then=spectra[1] if rows else None,
        limit=NO_LIMIT,
        sentences=(*_sentences(rows, moved, sharpness, len(batches), float(step_size)), NO_LIMIT),
    )


def _forecast(
    equilibrium: jax_equilibrium.Equilibrium,
    rows: tuple[Row, ...],
    sharpness: list[Estimate],
    steps: list[float],
    spectra: list[Spectrum | None],
    step_size: float,
    decay_time: float,
) -> Forecast:
    """Return the forecast; the charges are fast if all relax before gradient flow reduces the loss (`decay_time`)."""
    slowest = max((row.slowest for row in rows if np.isfinite(row.slowest)), default=np.inf) * step_size
    return Forecast(
        equilibrium=equilibrium,
        relaxation=tuple(row.slowest for row in rows),
        phase="fast" if slowest < decay_time else "slow",
        sharpness=(sharpness[0], sharpness[1]),
        largest_step=(steps[0], steps[1]),
        spectrum=(spectra[0], spectra[1]),
    )


def _spectrum(model: nn.Module, batches: Sequence[Batch], loss: Loss, seed: int) -> Spectrum | None:
    """Return the spectrum of the Hessian of a small model, on the first batches on which lambda_max is measured.

    None for a large model, or without second derivatives.
    """
    if sum(p.numel() for p in trainable(model).values()) > DENSE:
        return None
    hessian = dense_hessian(model, batches[:FIRST_BATCHES], loss, seed)
    return None if hessian is None else spectrum_of(hessian)


def _charge_moments(
    model: nn.Module,
    batches: Sequence[Batch],
    loss: Loss,
    moved: Equilibrium,
    step_size: float,
    weight_decay: float,
    seed: int,
) -> list[ChargeMoments]:
    """Return the moments of each moved symmetry, measured on the batches."""
    symmetries = [one.symmetry for one in moved.moved]
    parts = [part for part in components(symmetries, list(trainable(model))) if part.symmetries]
    if not parts:
        return []
    measured = measure_noise(model, batches, loss, parts, SGDObjective(step_size, weight_decay), seed=seed)
    return [measured.moments[id(symmetry)] for symmetry in symmetries]


def _mean_loss(model: nn.Module, batches: Sequence[Batch], loss: Loss, seed: int) -> tuple[float, float]:
    """Return the mean loss over all batches, and the squared norm of its gradient."""
    params = list(trainable(model).values())
    total = [torch.zeros_like(p) for p in params]
    values = []
    with isolated(model, seed):
        for batch in batches:
            value, _ = forward(model, batch, loss)
            values.append(float(value.detach()))
            for accumulated, gradient in zip(total, torch.autograd.grad(value, params, allow_unused=True), strict=True):
                if gradient is not None:
                    accumulated += gradient
    return float(np.mean(values)), sum(float(t.double().square().sum()) for t in total) / len(batches) ** 2


def _jax_equilibrium(twin: nn.Module, moved: Equilibrium, moments: list[ChargeMoments]) -> jax_equilibrium.Equilibrium:
    """Return the equilibrium as the type of the JAX side; `params` are the trainable parameters by name."""
    without_noise = lambda m: tuple(np.flatnonzero(m.noise_plus + m.noise_minus == 0).tolist())
    return jax_equilibrium.Equilibrium(
        params={name: p.detach().numpy(force=True) for name, p in trainable(twin).items()},
        amount=tuple(one.amount for one in moved.moved),
        charge=tuple((m.weight_plus - m.weight_minus) / 2 for m in moments),
        residual=moved.imbalance,
        excluded=tuple(
            without_noise(m) if one.dead and one.symmetry.block == 1 else ()
            for one, m in zip(moved.moved, moments, strict=True)
        ),
        infinite=tuple(one.infinite for one in moved.moved),
        sweeps=moved.sweeps,
    )


def _row(
    moved: MovedSymmetry, before: ChargeMoments, after: ChargeMoments, step_size: float, weight_decay: float
) -> Row:
    symmetry = moved.symmetry
    norm = lambda x: float(np.sqrt(np.sum(np.square(x))))
    charge = lambda m: norm(m.weight_plus - m.weight_minus) / 2
    total = float(np.abs(before.noise_plus).sum() + np.abs(before.noise_minus).sum())
    times = relaxation_times(after, None, step_size, weight_decay)
    all_infinite = moved.infinite >= symmetry.size
    vectors = flow_vectors(SideMoments(*before[:4]), step_size, weight_decay)
    return Row(
        name=symmetry.name,
        generators=symmetry.generators,
        charge=charge(before),
        charge_at_equilibrium=math.inf if all_infinite else charge(after),
        imbalance=float(np.abs(before.noise_plus - before.noise_minus).sum()) / total if total > 0 else 0.0,
        moved=math.inf if all_infinite else moved.factor,
        relaxation=float(np.median(times)) if times.size and not all_infinite else math.inf,
        slowest=float(times.max()) if times.size and not all_infinite else math.inf,
        error=0.0,
        dead=moved.dead,
        infinite=moved.infinite,
        route="gradients of batches",
        now=sides_of(SideMoments(*before[:4]), vectors),
        then=sides_of(SideMoments(*after[:4]), vectors),
    )


def _sentences(
    rows: tuple[Row, ...], moved: Equilibrium, sharpness: list[Estimate], batches: int, step_size: float
) -> list[str]:
    """Return advice for the user, in sentences."""
    noise, steps, curvature, text = moved.noise, moved.largest_step, moved.curvature, format_estimate
    sentences = []
    if not rows:
        sentences.append(
            "No exact symmetry was found among the trainable parameters: noise moves no conserved charge here. "
            f"The noise power of a batch is {text(noise[0])}, Tr H {text(sharpness[0])}, lambda_max "
            f"{text(curvature[0])} (measured on {batches} batches)."
        )
    for row in rows:
        if row.infinite:
            sentences.append(
                f"{row.name}: {row.infinite} directions have no finite equilibrium (one side is zero or has no noise)."
            )
        if row.dead:
            sentences.append(f"{row.name}: {row.dead} generators have no gradient on these batches and do not move.")
    finite = [row for row in rows if np.isfinite(row.relaxation) and row.moved > 1.05]
    if finite:
        worst = max(finite, key=lambda row: row.moved)
        sentences.append(
            f"The farthest from equilibrium is {worst.name}: a weight changes by up to a factor {worst.moved:.2g}; "
            f"SGD at step size {step_size:g} relaxes in about {in_steps(worst.relaxation)} (the median)."
        )
    if math.isnan(curvature[0].value):
        sentences.append("Curvature and largest steps are not known: the loss cannot be differentiated twice.")
    elif rows:
        change = "falls" if sharpness[1].value < sharpness[0].value else "rises"
        sentences.append(
            f"At equilibrium Tr H {change} from {text(sharpness[0])} to {text(sharpness[1])}, lambda_max goes from "
            f"{text(curvature[0])} to {text(curvature[1])}, the noise power of a batch from {text(noise[0])} to "
            f"{text(noise[1])} (measured on {batches} batches); the largest stable step of gradient descent goes from "
            f"{steps[0].value:.3g} to {steps[1].value:.3g}."
        )
    if rows and noise[1].value < 0.8 * noise[0].value:
        sentences.append(
            "`undertow.torch.equilibrate` moves the model there at once, with the same outputs; it is for SGD, not for "
            "Adam."
        )
    if step_size > steps[0].value:
        sentences.append(
            f"The step size {step_size:g} is above {steps[0].value:.3g}, the largest at which "
            "gradient descent is stable."
        )
    return sentences
