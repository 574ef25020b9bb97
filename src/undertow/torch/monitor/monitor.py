"""Measure gradient noise along the symmetries of a network while it trains."""

import warnings
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from undertow import _validate as validate
from undertow.torch._copies import trainable, unwrap
from undertow.torch._renamed import Renamed
from undertow.torch.census.census import Census, check_census
from undertow.torch.monitor import output
from undertow.torch.monitor.consistency import NOT_FINITE, compare_gradients
from undertow.torch.monitor.entries import EntryMap
from undertow.torch.monitor.hooks import GradientRecorder
from undertow.torch.monitor.measure import NUMBERS, measure
from undertow.torch.monitor.output import ScalarWriter
from undertow.torch.monitor.reading import COLUMNS, Reading, Row, read_step
from undertow.torch.monitor.requests import Requests
from undertow.torch.monitor.settings import SGD, StepRule, optimizer_rules
from undertow.torch.monitor.statistics import ShapeKey
from undertow.torch.monitor.steps import Plan, plan_step
from undertow.torch.monitor.tensors import to_numpy
from undertow.torch.monitor.verdict import TOLERANCE, Verdict, verdicts

if TYPE_CHECKING:
    import matplotlib.figure

__all__ = ["COLUMNS", "NoiseMonitor", "Reading"]

_RulesOf = Callable[[], dict[str, StepRule]]
"""Returns how each parameter is stepped."""
StepArguments = tuple[tuple, dict[str, object]]
"""The positional and the keyword arguments of the `step()` of an optimiser."""


class NoiseMonitor:
    """Measure the gradient noise of a network in a user's own training loop, at every `every`-th step.

    The loop needs no call: hooks record the inputs of layers and the derivatives of their outputs, and the `step()` of
    the optimiser ends a step. Between measurements there are no hooks. For a batch of N samples with contributions c_n
    to the gradient G = sum_n c_n, whatever the loss divides by, the noise is the covariance of G, estimated without
    bias by N/(N-1) sum_n (c_n - G/N)(c_n - G/N)'. A sample is an index of the batch; for sequences it is the whole
    sequence.

    Layers have the samples along `batch_axis` or the first axis, which may hold positions too (outside of the samples
    with `batch_axis=1`, else inside of them). Axes are identified by their lengths alone. A model that moves the
    samples to another axis, or sends a table that does not depend on the batch through a layer, must not have as many
    entries there as samples, nor a multiple. A table of parameters raises an error.

    **Arguments:**

    - `model`: the network that trains.
    - `census`: the census of this model; its exact symmetries are measured.
    - `every`: steps between measurements; step 0 is measured.
    - `batch_axis`: the axis of activations that counts samples (1 for sequence-first models).
    - `keep`: the largest number of measurements held; the oldest are dropped first.
    - `writer`: a TensorBoard `SummaryWriter` (any object with `add_scalar`), or a folder for one.

    `rows` has one dict per symmetry and measurement. A generator multiplies entry i of the parameters by exp(A_i s).
    eta_i, lambda_i and beta are the step size, weight decay and momentum of its parameter group, and h_i the effective
    step, eta_i for Adam and eta_i (1 - dampening)/(1 - beta) for SGD; h is the largest of a symmetry. W is the metric,
    1 for SGD and sqrt(v)/sqrt(1 - b2^t) + eps for Adam and AdamW.

    - `charge`: C = 1/2 sum_i A_i (h/h_i) W_i theta_i^2, which gradient flow conserves; `noise_plus`, `noise_minus`: the
      sums of |A_i| times the variance of the gradient on both sides; `noise_share`: their sum relative to the squared
      gradient of the step.
    - `flow`: the Noether flow, the expected change of the charge per step by noise and weight decay,
      h sum_i A_i (h_i/2 n_i - lambda_i W_i theta_i^2), with n the variance of the gradient for SGD and v/W for Adam.
    - `change`: the exact change of the charge by this step, the sum of `first_order` (the memory of momentum),
      `second_order` (noise and gradient), `decay` and `metric` (the change of W, 0 for SGD).
    - `distance`, `farthest`: root mean square and largest |amount| to the equilibrium of the optimiser, where the flow
      of every generator is 0, with the other symmetries held fixed.
    - `relaxation`, `slowest`: median and largest relaxation time near that equilibrium, in steps.
    - `infinite`, `dead`: numbers of generators whose equilibrium is at infinity, and of those without noise.
    - `memory`, `eps_share`: for Adam, 1/(1 - b2) in steps, and the share of eps in W. The theory needs a metric that
      changes slowly and a small eps.
    - `optimiser`: whose equilibrium it is, "SGD" or "AdamW". `note`: why numbers are None. Under optimisers without a
      theory (RMSprop, Adafactor, amsgrad, ...) only charge and noise are given.

    `verdicts()` says for each symmetry whether it has reached that equilibrium.
    `last` holds the newest measurement generator by generator. A step that cannot be measured raises an error if it is
    the first one, and a warning later, with no row for that step. Both come from `step()`, never from `backward()`.

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
        writer: ScalarWriter | str | Path | None = None,
    ):
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            raise ValueError(
                f"`NoiseMonitor`: a {type(model).__name__} spreads the samples over replicas, where hooks do not see "
                "them; monitor a model that trains in one process."
            )
        self.every = validate.positive_integer("NoiseMonitor", "every", every)
        keep = validate.positive_integer("NoiseMonitor", "keep", keep)
        if batch_axis not in (0, 1):
            raise ValueError(f"`NoiseMonitor(batch_axis={batch_axis!r})`: samples are counted by axis 0 or 1.")
        self.model = unwrap(model)
        _validate_census(self.model, census)
        self.census = census
        self.steps = 0
        """Number of steps of the optimiser so far."""
        self.last: tuple[Reading, ...] = ()
        """The newest measurement, one reading per symmetry."""
        self.skipped: deque[tuple[int, str]] = deque(maxlen=keep)
        """Steps that could not be measured, each with the reason."""
        self._rows: deque[list[Row]] = deque(maxlen=keep)
        requests = Requests(census)
        self._maps = {False: (requests, EntryMap.of(census, requests))}
        """Requests and entries, by whether a GL is counted by its diagonal generators only."""
        self._diagonal = False
        self._recorder = GradientRecorder(self.model, requests.all(), batch_axis)
        self._uses_our_parameters: weakref.WeakKeyDictionary[torch.optim.Optimizer, bool] = weakref.WeakKeyDictionary()
        self._leader: weakref.ref[torch.optim.Optimizer] | None = None
        """The optimiser that counts the steps."""
        self._steps_without_leader = 0
        self._writer, self._owns_writer = output.open_writer(writer)
        self._recorder.attach()
        weak_self = weakref.ref(self)  # the global registry of optimiser hooks must not keep a monitor alive

        def before_step(
            optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict[str, object]
        ) -> StepArguments | None:
            monitor = weak_self()
            return None if monitor is None else monitor._before_step(optimizer, args, kwargs)

        handle = register_optimizer_step_pre_hook(before_step)
        self._release = weakref.finalize(self, _release, handle, self._recorder)
        self._release.atexit = False

    ways = Renamed("algorithms")

    @property
    def rows(self) -> list[Row]:
        """All measurements, one dict per symmetry and step."""
        return [row for rows in self._rows for row in rows]

    @property
    def algorithms(self) -> dict[ShapeKey, str]:
        """The algorithm for sequences, "gram" or "direct", by the shapes that occurred."""
        return dict(self._recorder.autotuner.choices)

    def close(self) -> None:
        """Remove all hooks. The measurements stay."""
        self._release()
        if self._owns_writer:
            self._writer.close()  # ty: ignore[missing-attribute]

    def __enter__(self) -> "NoiseMonitor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(self, step_size: float, weight_decay: float = 0.0, momentum: float = 0.0) -> None:
        """End a step in a loop without a PyTorch optimiser: call it after the backward pass and before the update."""
        validate.finite_number("NoiseMonitor.step", "step_size", step_size)
        validate.finite_number("NoiseMonitor.step", "weight_decay", weight_decay)
        validate.finite_number("NoiseMonitor.step", "momentum", momentum, below=1.0)
        state = None if momentum else {}
        rule = StepRule(SGD, float(step_size), float(weight_decay), float(momentum), state=state)
        self._end_step(lambda: dict.fromkeys(self._recorder.parameters, rule))

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict[str, object]
    ) -> StepArguments | None:
        if optimizer not in self._uses_our_parameters:
            ours = set(map(id, self._recorder.parameters.values()))
            self._uses_our_parameters[optimizer] = any(
                id(p) in ours for group in optimizer.param_groups for p in group["params"]
            )
        if not self._uses_our_parameters[optimizer] or not self._leads(optimizer):
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure) or not self._recorder.attached:
            self._end_step(self._rules)
            return None
        return (args[0], self._ending_step(closure)), {k: v for k, v in kwargs.items() if k != "closure"}

    def _leads(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether an optimiser counts the steps.

        Where several optimisers share the parameters, the first one counts the steps as long as it makes any.
        """
        leader = None if self._leader is None else self._leader()
        self._steps_without_leader = 0 if leader is optimizer else self._steps_without_leader + 1
        if leader is None or self._steps_without_leader > len(self._uses_our_parameters):
            self._leader, self._steps_without_leader = weakref.ref(optimizer), 0
            return True
        return leader is optimizer

    def _ending_step(self, closure: Callable[..., object]) -> Callable[[], object]:
        """Return a closure that ends the step after its first evaluation."""
        waiting = True

        def evaluate() -> object:
            nonlocal waiting
            value = closure()
            if waiting:
                waiting = False
                self._end_step(self._rules)
            return value

        return evaluate

    def _rules(self) -> dict[str, StepRule]:
        """Return how the optimisers step the parameters."""
        leader = None if self._leader is None else self._leader()
        others = [other for other, ours in self._uses_our_parameters.items() if ours and other is not leader]
        optimizers = others if leader is None else [leader, *others]
        return optimizer_rules(optimizers, self._recorder.parameters)

    def _end_step(self, rules: _RulesOf) -> None:
        step, self.steps = self.steps, self.steps + 1
        try:
            if self._recorder.attached:
                self._measure(step, rules())
        finally:
            if self.steps % self.every == 0:
                self._recorder.attach()
            elif self._recorder.attached:
                self._recorder.detach()

    @property
    def _entries(self) -> EntryMap:
        return self._maps[self._diagonal][1]

    def _choose_requests(self, plan: Plan) -> None:
        """Record what the steps of the optimiser need, from the next measurement on: inner products only for SGD."""
        pairs = zip(self.census, plan.kinds, strict=True)
        diagonal = not any(kind == SGD for symmetry, kind in pairs if symmetry.block > 1)
        if diagonal == self._diagonal:
            return
        if diagonal not in self._maps:
            requests = Requests(self.census, diagonal=diagonal)
            self._maps[diagonal] = requests, EntryMap.of(self.census, requests)
        self._diagonal = diagonal
        self._recorder.record(self._maps[diagonal][0].all())

    def _measure(self, step: int, rules: dict[str, StepRule]) -> None:
        sums, problem = self._recorder.take()
        parameters = {name: self._recorder.parameters[name] for name in self._entries.parameters}
        samples = self._entries.sample_sums(sums.sums, parameters[self._entries.parameters[0]].device)
        comparison = problem or compare_gradients(sums, parameters, self._entries.spreads(samples))
        if isinstance(comparison, str):
            self._skip(step, comparison)
            return
        plan = plan_step(self.census.symmetries, rules)
        measured = measure(self._entries, parameters, plan, sums.sums, samples, comparison)
        (values,) = to_numpy([torch.cat([comparison.numbers, measured.numbers.flatten()])])  # the only transfer
        compared, numbers = np.split(values, [len(comparison.numbers)])
        problem = comparison.problem(compared)
        if problem is not None:
            # a fused optimiser leaves out the steps of a gradient scaler itself
            scaled = any(rule.grad_scale is not None for rule in rules.values())
            self._skip(step, problem, expected=scaled and problem == NOT_FINITE)
            return
        table, missing = numbers.reshape(-1, len(NUMBERS)), sums.not_separable
        self.last = read_step(
            self._entries, plan, measured, table, parameters, step=step, samples=int(compared[0]), not_separable=missing
        )
        rows = [reading.row for reading in self.last]
        self._rows.append(rows)
        self._choose_requests(plan)
        if self._writer is not None:
            output.log_rows(self._writer, rows, step)

    def _skip(self, step: int, problem: str, *, expected: bool = False) -> None:
        """Record that a step was not measured; raise if nothing was measured yet, else warn."""
        if not self._rows and not expected:
            raise RuntimeError(f"`NoiseMonitor` at step {step}: {problem}.")
        self.skipped.append((step, problem))
        if not expected:
            warnings.warn(f"`NoiseMonitor` has no measurement of step {step}: {problem}.", stacklevel=2)

    def to_csv(self, path: str | Path) -> None:
        """Write all rows as a table; unknown numbers are empty."""
        output.write_csv(path, self.rows)

    def verdicts(self, tolerance: float = TOLERANCE) -> list[Verdict]:
        """Return for each symmetry whether it has reached the equilibrium of the optimiser, and if not, how soon.

        `tolerance` is the largest root mean square of the amounts that counts as reached.
        """
        return verdicts(self.rows, tolerance)

    def plot(self) -> "matplotlib.figure.Figure":
        """Return a figure of charges, noise on both sides and distances to equilibrium over the steps."""
        if not self._rows:
            raise ValueError("`NoiseMonitor.plot()`: nothing was measured yet; train a step first.")
        return output.plot_rows(self.census, self._rows)


def _release(handle: torch.utils.hooks.RemovableHandle, recorder: GradientRecorder) -> None:
    handle.remove()
    recorder.detach()


def _validate_census(model: nn.Module, census: Census) -> None:
    if not isinstance(census, Census):
        raise TypeError(
            f"`NoiseMonitor(model, census)`: `census` is a {type(census).__name__}; give `census(model, ...)`."
        )
    if not len(census):
        raise ValueError("`NoiseMonitor`: the census has no exact symmetry, so that there is nothing to measure.")
    check_census("NoiseMonitor", census, trainable(model))
