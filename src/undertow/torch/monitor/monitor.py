"""Watching gradient noise along the symmetries of a network while it trains."""

import csv
import inspect
import itertools
import math
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from undertow import _validate as validate
from undertow.torch._copies import trainable, unwrap
from undertow.torch._decay import gamma_of
from undertow.torch._threads import one_thread
from undertow.torch.census.axes import Axis, Relation
from undertow.torch.census.census import Census, refuse_foreign
from undertow.torch.equilibrium.distance import how_far, relaxation
from undertow.torch.equilibrium.solve import CLEAR, Amount, Sides
from undertow.torch.monitor.hooks import Heard, Listener
from undertow.torch.monitor.signals import Request, answered, fetched, full, probe_of

__all__ = ["COLUMNS", "NoiseMonitor", "Reading"]

AGREES = {torch.float64: 1e-6, torch.float32: 2e-3}
"""How far the gradient in `.grad` may be from the one that was heard; half precision rounds by a percent."""
HALF = 5e-2
SINGLE = torch.finfo(torch.float32).eps
CANCELLED = 1e-5
"""Of the samples' gradients: a sum below this is rounding."""
NOT_FINITE = "the gradient is not finite"
OTHERWISE = (
    "the parameter is used outside its module, or `.grad` held something before the backward pass (call "
    "`zero_grad()`), or was changed, or a layer that had to be run again draws random numbers (dropout)"
)

COLUMNS = (
    "step", "symmetry", "kind", "generators", "samples", "step_size", "charge", "noise_plus", "noise_minus", "flow",
    "change", "distance", "farthest", "relaxation", "slowest", "infinite", "dead", "note",
)  # fmt: skip
"""Of a row: one symmetry at one step."""
SHOWN = ("charge", "noise_plus", "noise_minus", "flow", "change", "distance", "farthest", "relaxation", "slowest")


class _Settings(NamedTuple):
    """How a parameter is stepped."""

    step_size: float
    gamma: float
    momentum: float = 0.0
    dampening: float = 0.0

    @property
    def effective_step(self) -> float:
        """eta (1 - dampening)/(1 - beta): the displacement that one gradient causes in all steps together.

        Nesterov's momentum has the same sum, 1 + beta/(1 - beta).
        """
        return self.step_size * (1 - self.dampening) / (1 - self.momentum) if self.momentum else self.step_size


@dataclass(frozen=True)
class Reading:
    """One symmetry at one step, generator by generator: arrays (generators,), or (blocks, block, block) of a GL."""

    relation: Relation
    charge: np.ndarray
    """C = (plus plus' - minus minus')/2."""
    noise_plus: np.ndarray
    """The covariance of the step's gradient on the side `plus`."""
    noise_minus: np.ndarray
    gradient: np.ndarray
    """G'A G of the step's gradient G."""
    amount: np.ndarray
    """The log of the factor to the symmetry's own equilibrium; 0 where that is at infinity, NaN where the theory does
    not cover the optimiser (the row's `note` says why)."""
    row: dict[str, Any]
    """The same in numbers for the whole symmetry."""


class NoiseMonitor:
    """Hears the noise of a network in your own training loop, at every `every`-th step, and costs nothing between.

    It needs no call in the loop: hooks read what layers receive and what comes back to them, and the optimiser's
    `step()` ends a step. For a batch of N samples with contributions c_n to the gradient G = sum_n c_n, whatever the
    loss divides by, the noise is the covariance of G, estimated without bias by N/(N-1) sum_n (c_n - G/N)(c_n - G/N)'.
    A sample is an index of the batch: of sequences, the whole sequence. Layers see it along `batch_axis` or the first
    axis, which may hold positions too (outside of the samples with `batch_axis=1`, inside of them else). Axes are told
    by their sizes alone: a model that moves samples elsewhere, or sends a table that is not of the batch through a
    layer, must not have as many entries there as samples, nor a multiple. A table of parameters is an error.

    **Arguments:**

    - `census`: of this model; its exact symmetries are watched.
    - `every`: steps between measurements; step 0 is measured.
    - `batch_axis`: the axis of activations that counts samples (1 for sequence-first models).
    - `keep`: at most so many measurements are held; the oldest go first.
    - `writer`: a TensorBoard `SummaryWriter` (anything with `add_scalar`), or a folder for one.

    `rows` has a dict a symmetry and measurement:

    - `charge` C, the sum over generators of (|plus|^2 - |minus|^2)/2; `noise_plus`, `noise_minus`, Tr Sigma of both
      sides.
    - `flow`: the Noether flow, what noise and weight decay add to the charge per step, h (-4 gamma C + h/2 (noise_plus
      - noise_minus)). With momentum beta the effective step is h = eta (1 - dampening)/(1 - beta), for heavy-ball
      and for Nesterov momentum.
    - `change`: what this very step does to it, -4 eta gamma (1 - eta gamma) C + eta^2/2 G'AG; exact for SGD without
      momentum, None with it.
    - `distance`, `farthest`: root mean square and largest |log factor| to the equilibrium, where the flow of every
      generator is 0, other symmetries held.
    - `relaxation`, `slowest`: median and largest relaxation time near that equilibrium, in steps.
    - `infinite`, `dead`: generators whose equilibrium is at infinity, and those without noise.
    - `note`: why numbers are None. The theory is that of `torch.optim.SGD`: under any other optimiser (Adam, AdamW,
      RMSprop, ...), or where the parameters of a symmetry have different settings, only `charge`, `noise_plus` and
      `noise_minus` are given.

    `last` holds the newest measurement generator by generator. What cannot be heard is an error at the first
    measurement and a warning later, with no row for that step; both come from `step()`, never from `backward()`.

    >>> import torch
    >>> from undertow.torch import NoiseMonitor, census
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    >>> loss = lambda model, x: (model(x) - x[:, :3]).square().mean()
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> with NoiseMonitor(net, census(net, torch.randn(6, 5), loss), every=2) as monitor:
    ...     for _ in range(5):
    ...         optimizer.zero_grad()
    ...         loss(net, torch.randn(16, 5)).backward()
    ...         optimizer.step()
    >>> print([row["step"] for row in monitor.rows], monitor.rows[0]["kind"], monitor.rows[0]["noise_plus"] > 0)
    [0, 2, 4] rescaling True
    """

    def __init__(
        self,
        model: nn.Module,
        census: Census,
        every: int = 50,
        *,
        batch_axis: int = 0,
        keep: int = 10_000,
        writer: Any = None,
    ):
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            raise ValueError(
                f"`NoiseMonitor`: a {type(model).__name__} spreads the samples over replicas, where they are not "
                "heard; watch a model that trains in one process."
            )
        self.every = validate.positive_integer("NoiseMonitor", "every", every)
        keep = validate.positive_integer("NoiseMonitor", "keep", keep)
        if batch_axis not in (0, 1):
            raise ValueError(f"`NoiseMonitor(batch_axis={batch_axis!r})`: samples are counted by axis 0 or 1.")
        self.model = unwrap(model)
        _refuse_census(self.model, census)
        self.census = census
        self.steps = 0
        """Steps of the optimiser so far."""
        self.last: tuple[Reading, ...] = ()
        self.skipped: deque[tuple[int, str]] = deque(maxlen=keep)
        """Steps that were to be measured and were not, and why."""
        self._rows: deque[list[dict[str, Any]]] = deque(maxlen=keep)
        self._requests = _requests(census)
        self._listener = Listener(self.model, list(self._requests.values()), batch_axis)
        self._optimizers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._leader: Any = None
        self._alone = 0
        """Steps of other optimisers since the last one of the leader."""
        self._writer, self._owns_writer = _writer(writer)
        self._listener.arm()
        me = weakref.ref(self)  # the registry of all optimisers must not keep a monitor alive

        def before(*given: Any) -> Any:
            monitor = me()
            return None if monitor is None else monitor._before_step(*given)

        handle = register_optimizer_step_pre_hook(before)
        self._release = weakref.finalize(self, _release, handle, self._listener)
        self._release.atexit = False

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every measurement, one dict a symmetry."""
        return [row for rows in self._rows for row in rows]

    @property
    def ways(self) -> dict[Any, str]:
        """How sequences go, "gram" or "direct", for each shape that was seen."""
        return dict(self._listener.ways)

    def close(self) -> None:
        """Takes all hooks off. What was measured stays."""
        self._release()
        if self._owns_writer:
            self._writer.close()

    def __enter__(self) -> "NoiseMonitor":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def step(self, step_size: float, weight_decay: float = 0.0, momentum: float = 0.0) -> None:
        """Ends a step by hand, for loops without a torch optimiser: after the backward pass, before the update."""
        validate.finite_number("NoiseMonitor.step", "step_size", step_size)
        validate.finite_number("NoiseMonitor.step", "weight_decay", weight_decay)
        validate.finite_number("NoiseMonitor.step", "momentum", momentum, below=1.0)
        settings = _Settings(float(step_size), gamma_of(float(weight_decay)), float(momentum))
        self._end_step(lambda name: settings)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> Any:
        if optimizer not in self._optimizers:
            ours = set(map(id, self._listener.parameters.values()))
            self._optimizers[optimizer] = any(
                id(p) in ours for group in optimizer.param_groups for p in group["params"]
            )
        if not self._optimizers[optimizer]:
            return None
        # where parameters are shared out among optimisers the first one counts the steps, while it makes any
        self._alone = 0 if self._leader is not None and self._leader() is optimizer else self._alone + 1
        if self._leader is None or self._leader() is None or self._alone > len(self._optimizers):
            self._leader, self._alone = weakref.ref(optimizer), 0
        if self._leader() is not optimizer:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None or not self._listener.armed:
            self._end_step(self._settings)
            return None
        return (args[0], self._after(closure)), {k: v for k, v in kwargs.items() if k != "closure"}

    def _after(self, closure: Callable) -> Callable:
        """A closure that ends the step after its first backward pass."""
        waiting = True

        def evaluated() -> Any:
            nonlocal waiting
            value = closure()
            if waiting:
                waiting = False
                self._end_step(self._settings)
            return value

        return evaluated

    def _settings(self, name: str) -> _Settings | str:
        """How the optimiser steps a parameter, or why the theory does not say."""
        parameter = self._listener.parameters[name]
        leader = self._leader()
        holders = [leader, *(other for other, ours in self._optimizers.items() if ours and other is not leader)]
        for optimizer in holders:
            for group in optimizer.param_groups:
                if any(p is parameter for p in group["params"]):
                    if not _is_sgd(optimizer):
                        return f"no flow or equilibrium is known for {type(optimizer).__name__}: the theory is for SGD"
                    # `maximize` only changes the sign of the gradient, and noise enters squared
                    return _Settings(
                        float(group["lr"]),
                        gamma_of(float(group["weight_decay"])),
                        float(group["momentum"]),
                        float(group["dampening"]) if group["momentum"] else 0.0,
                    )
        return f"no step size known of {name}"

    def _end_step(self, settings: Callable[[str], _Settings | str]) -> None:
        step, self.steps = self.steps, self.steps + 1
        try:
            if self._listener.armed:
                self._measure(step, settings)
        finally:
            if self.steps % self.every == 0:
                self._listener.arm()
            elif self._listener.armed:
                self._listener.disarm()

    def _measure(self, step: int, settings: Callable[[str], _Settings | str]) -> None:
        heard, trouble = self._listener.take()
        scale, trouble = (1.0, trouble) if trouble else self._accounted(heard)
        if trouble:
            if not self._rows:
                raise RuntimeError(f"`NoiseMonitor` at step {step}: {trouble}.")
            self.skipped.append((step, trouble))
            warnings.warn(f"`NoiseMonitor` has no measurement of step {step}: {trouble}.", stacklevel=2)
            return
        with torch.no_grad():
            moments = self._moments(heard)
        with one_thread():
            self.last = tuple(
                self._reading(relation, moments, heard.samples, scale, step, settings) for relation in self.census
            )
        rows = [reading.row for reading in self.last]
        self._rows.append(rows)
        for row in rows if self._writer is not None else ():
            for name in SHOWN:
                if row[name] is not None:
                    self._writer.add_scalar(f"{row['symmetry']}/{name}", row[name], step)

    def _accounted(self, heard: Heard) -> tuple[float, str | None]:
        """Whether what was heard makes up the gradient that is there, and the factor between them.

        A factor common to all parameters is gradient scaling, or clipping.
        """
        if heard.samples == 0 and heard.overflowed:
            return 1.0, NOT_FINITE
        if heard.samples == 0:
            return 1.0, (
                "the hooks saw no backward pass since the last step: is it this model that trains? Compile a model "
                "before it is watched, and use non-reentrant activation checkpoints"
            )
        if heard.samples < 2:
            return 1.0, "one sample says nothing of noise: use batches of at least 2"
        pictures: dict[str, tuple[Tensor, Tensor]] = {}
        for name, parameter in self._listener.parameters.items():
            if not parameter.requires_grad:
                return 1.0, f"{name} does not train any more: take a new census"
            grad = parameter.grad
            if grad is None and name not in heard.probes:
                continue  # not used in this step
            if grad is None or grad.is_sparse:
                return 1.0, f"the gradient of {name} is not in its `.grad` as a dense tensor: use `loss.backward()`"
            grad = full(grad)
            ours = heard.probes.get(name)
            flipped = heard.flipped.get(name)
            theirs = probe_of(grad, flipped)
            pictures[name] = torch.zeros_like(theirs) if ours is None else ours.to(theirs), theirs
        traces = [
            [_trace(heard.sums[r]) for r in self._listener.requests[name] if r in heard.sums] for name in pictures
        ]
        products = [(a * b).sum() for a, b in pictures.values()]
        squares = [a.square().sum() for a, _ in pictures.values()]
        numbers = iter(map(float, fetched([*products, *squares, *itertools.chain(*traces)])))
        along, size = (sum(itertools.islice(numbers, len(pictures))) for _ in range(2))
        if not math.isfinite(along) or not math.isfinite(size):
            return 1.0, NOT_FINITE
        spreads = {
            name: sum(itertools.islice(numbers, len(parts))) for name, parts in zip(pictures, traces, strict=True)
        }
        cancelled = size <= CANCELLED**2 * sum(spreads.values())  # at a minimum nothing is left to compare
        scale = 1.0 if cancelled else along / size
        if not 0 < scale < 1 + HALF:
            return 1.0, f"the gradients in `.grad` are {scale:.3g} times what the hooks heard: {OTHERWISE}"
        norms = fetched([x.norm() for ours, theirs in pictures.values() for x in (theirs, scale * ours - theirs)])
        for name, norm, error in zip(pictures, norms[::2], norms[1::2], strict=True):
            dtype = self._listener.parameters[name].dtype
            limit = HALF if name in heard.half else AGREES.get(dtype, HALF)
            if error > limit * (norm + scale * spreads[name] ** 0.5):
                return 1.0, f"the gradient of {name} is not the one that the hooks heard: {OTHERWISE}"
        return (1.0 if abs(scale - 1) < 1e-3 else scale), None

    def _moments(self, heard: Heard) -> dict[tuple, np.ndarray]:
        """What readings are made of, each once: sums over samples, and the same of the gradient and of the weights."""
        wanted: dict[tuple, Tensor] = {}
        for relation in self.census:
            for axis in relation.axes:
                request = self._requests[_key(axis, relation)]
                parameter = self._listener.parameters[axis.parameter]
                if request in heard.sums and ("noise", request) not in wanted:
                    assert parameter.grad is not None
                    wanted["noise", request] = heard.sums[request]
                    wanted["gradient", request] = _answer(parameter.grad.detach(), request)
                if ("weight", request, axis.shift) not in wanted:
                    value = parameter.detach()
                    wanted["weight", request, axis.shift] = _answer(
                        value + axis.shift if axis.shift else value, request
                    )
        return dict(zip(wanted, fetched(list(wanted.values())), strict=True))

    def _reading(
        self, relation: Relation, moments: dict[tuple, np.ndarray], count: int, scale: float, step: int,
        settings: Callable[[str], _Settings | str],
    ) -> Reading:  # fmt: skip
        block = relation.block
        nothing = np.zeros(relation.size if block == 1 else (relation.size // block, block, block))

        def side(axes: tuple[Axis, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            noise, gradient, weight = nothing, nothing, nothing
            for axis in axes:
                request = self._requests[_key(axis, relation)]
                along = lambda x, axis=axis: x[axis.index].sum(1) if block == 1 else x
                weight = weight + along(moments["weight", request, axis.shift])
                if ("noise", request) in moments:
                    second, whole = along(moments["noise", request]) * scale**2, along(moments["gradient", request])
                    found = (second - whole / count) * count / (count - 1)
                    noise = noise + (np.maximum(found, 0) if block == 1 else (found + found.swapaxes(1, 2)) / 2)
                    gradient = gradient + whole
            return noise, gradient, weight

        (noise_plus, gradient_plus, plus), (noise_minus, gradient_minus, minus) = map(
            side, (relation.plus, relation.minus)
        )
        found = Sides(noise_plus, noise_minus, plus, minus)
        charge, gradient = (plus - minus) / 2, gradient_plus - gradient_minus
        known, note = _common([settings(name) for name in relation.parameters])
        if known is not None and relation.shifted and known.gamma > 0:
            known, note = None, "weight decay pulls the parameter, the layer uses 1 + it"
        if known is not None and known.effective_step <= 0 < known.gamma:
            known, note = None, "the step size is 0: the balance of noise and weight decay is not defined"
        eta, gamma, beta, _ = known if known is not None else (1.0, 0.0, 0.0, 0.0)
        long = known.effective_step if known is not None else 1.0
        still = long <= 0
        rounding = max(torch.finfo(self._listener.parameters[name].dtype).eps for name in relation.parameters)
        clear = max(CLEAR, 8 * block * min(rounding, SINGLE))  # half precision is summed in single
        if known is None:
            far, logs, frame = Amount(np.full_like(nothing, np.nan), 0, 0), np.zeros(0), None
        else:  # without weight decay the step size does not matter: a first step of 0 has a distance too
            far, logs, frame = how_far(relation, found, 1.0 if still else long, gamma, clear)
        total = lambda x: float(x.sum() if block == 1 else np.einsum("bii->", x))
        flow = long * (-4 * gamma * total(charge) + long / 2 * (total(noise_plus) - total(noise_minus)))
        change = -4 * eta * gamma * (1 - eta * gamma) * total(charge) + eta**2 / 2 * total(gradient)
        times = np.zeros(0) if known is None or still else relaxation(found, logs, frame, long, gamma)
        row = {
            "step": step,
            "symmetry": relation.name,
            "kind": relation.kind,
            "generators": relation.generators,
            "samples": count,
            "step_size": None if known is None else eta,
            "charge": total(charge),
            "noise_plus": total(noise_plus),
            "noise_minus": total(noise_minus),
            "flow": None if known is None else flow,
            "change": None if known is None or beta else change,
            "distance": None if known is None else float(np.sqrt(np.mean(logs**2))),
            "farthest": None if known is None else float(np.abs(logs).max(initial=0.0)),
            "relaxation": float(np.median(times)) if times.size else None,
            "slowest": float(times.max()) if times.size else None,
            "infinite": None if known is None else far.infinite,
            "dead": None if known is None else far.dead,
            "note": note,
        }
        return Reading(relation, charge, noise_plus, noise_minus, gradient, far.amount, row)

    def to_csv(self, path: str | Path) -> None:
        """All rows as a table; what is not known is empty."""
        with open(path, "w", newline="") as file:
            table = csv.DictWriter(file, COLUMNS)
            table.writeheader()
            table.writerows(self.rows)

    def plot(self) -> Any:
        """Charges, the noise on both sides and the distance to equilibrium over the steps, as a matplotlib figure."""
        from undertow.figures import style

        if not self._rows:
            raise ValueError("`NoiseMonitor.plot()`: nothing was measured yet; train a step first.")
        steps = [rows[0]["step"] for rows in self._rows]
        colours = list(style.COLOURS.values())
        with style.applied():
            figure, (charges, noises, distances) = style.new_figure(3, width=4.4)
            for place, relation in enumerate(self.census):
                of = lambda name, place=place: np.array([rows[place][name] for rows in self._rows], float)
                colour = colours[place % len(colours)]
                label = f"{relation.kind}, {relation.size}" if place < len(colours) else None
                charges.plot(steps, of("charge"), color=colour, label=label)
                noises.plot(steps, of("noise_plus"), color=colour, label="plus" if place == 0 else None)
                noises.plot(steps, of("noise_minus"), color=colour, ls="--", label="minus" if place == 0 else None)
                distances.plot(steps, of("distance"), color=colour)
            noises.set_yscale("log")
            titles = ("charge", "noise power", "log distance to equilibrium")
            for axes, title in zip((charges, noises, distances), titles, strict=True):
                axes.set_title(title)
                axes.set_xlabel("step")
            charges.legend()
            noises.legend()
        return figure


def _release(handle: Any, listener: Listener) -> None:
    handle.remove()
    listener.disarm()


def _is_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the steps are those of `torch.optim.SGD`: a subclass with a `step` of its own may do anything."""
    plain = lambda kind: inspect.unwrap(kind.step)  # torch wraps the method when the first optimiser is made
    return isinstance(optimizer, torch.optim.SGD) and plain(type(optimizer)) is plain(torch.optim.SGD)


def _answer(whole: Tensor, request: Request) -> Tensor:
    """What is requested of samples, of one tensor."""
    return answered(full(whole).reshape(1, *(whole.shape or (1,))), request)


def _trace(sums: Tensor) -> Tensor:
    return sums.sum() if sums.ndim == 1 else torch.einsum("bii->", sums)


def _common(settings: list[_Settings | str]) -> tuple[_Settings | None, str]:
    """The settings that all parameters of a symmetry share; else None and why."""
    for found in settings:
        if isinstance(found, str):
            return None, found
    if len(set(settings)) > 1:
        return None, "its parameters have different step sizes, momenta or weight decays"
    return settings[0], ""  # ty: ignore[invalid-return-type]


def _key(axis: Axis, relation: Relation) -> tuple:
    index = axis.index.tobytes() if relation.block > 1 else b""
    return axis.parameter, axis.axis, relation.block, index


def _requests(census: Census) -> dict[tuple, Request]:
    """What to ask of the signals: each moment once, whatever number of symmetries share it."""
    found: dict[tuple, Request] = {}
    for relation in census:
        for axis in relation.axes:
            index = axis.index.reshape(-1, relation.block, axis.index.shape[1]) if relation.block > 1 else None
            found.setdefault(_key(axis, relation), Request(axis.parameter, axis.axis, index))
    return found


def _refuse_census(model: nn.Module, census: Census) -> None:
    if not isinstance(census, Census):
        raise TypeError(f"`NoiseMonitor(model, census)`: got a {type(census).__name__}; give `census(model, ...)`.")
    if not len(census):
        raise ValueError("`NoiseMonitor`: the census found no exact symmetry, so that there is nothing to watch.")
    refuse_foreign("NoiseMonitor", census, trainable(model))


def _writer(writer: Any) -> tuple[Any, bool]:
    """Where numbers are logged, and whether it is ours to close."""
    if not isinstance(writer, str | Path):
        if writer is not None and not hasattr(writer, "add_scalar"):
            raise TypeError(
                f"`NoiseMonitor(writer=...)`: a {type(writer).__name__} has no `add_scalar`; give a SummaryWriter."
            )
        return writer, False
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            f"`NoiseMonitor(writer={str(writer)!r})` needs TensorBoard: install it with `pip install tensorboard`."
        ) from error
    return SummaryWriter(str(writer)), True
