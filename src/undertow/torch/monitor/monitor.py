"""Measure gradient noise along the symmetries of a network while it trains."""

import functools
import re
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from undertow import _validate as validate
from undertow._calls import checked_call
from undertow.torch._copies import Batch, Loss, trainable, unwrap
from undertow.torch._inputs import check_model
from undertow.torch._renamed import Renamed
from undertow.torch.census.census import Census
from undertow.torch.monitor import output, plots, ranks
from undertow.torch.monitor.background import BackgroundQueue, profiler_runs, runs_in_background
from undertow.torch.monitor.consistency import compare_gradients
from undertow.torch.monitor.curvature_scale import MetricCurvature, fill_regime, metric_curvature, paused
from undertow.torch.monitor.hooks import GradientRecorder
from undertow.torch.monitor.measured_rows import MeasuredRows
from undertow.torch.monitor.noise_scale import NoiseScales
from undertow.torch.monitor.optimizers import OptimizerTracker, StepArguments, call_before_steps, followed_once
from undertow.torch.monitor.output import Writer
from undertow.torch.monitor.reading import COLUMNS, Reading, Row
from undertow.torch.monitor.report import write_report
from undertow.torch.monitor.settings import SGD, StepRule
from undertow.torch.monitor.statistics import ShapeKey
from undertow.torch.monitor.step_result import StepResult, read_result
from undertow.torch.monitor.symmetry_meter import SymmetryMeter, validate_census
from undertow.torch.monitor.verdict import TOLERANCE, Verdict, verdicts

if TYPE_CHECKING:
    import matplotlib.figure
    import xarray

__all__ = ["COLUMNS", "NoiseMonitor", "Reading"]

_RulesOf = Callable[[], dict[str, StepRule]]
"""Returns how each parameter is stepped."""
MOST_UNREAD = 4
"""Measurements that a thread may still have to complete: each holds the numbers of a step."""


class NoiseMonitor:
    """Measure the gradient noise of a network in a user's own training loop, at every `every`-th step.

    The loop needs no call: hooks record the inputs of layers and the derivatives of their outputs, and the `step()` of
    the optimiser ends a step. Between measurements there are no hooks. For a batch of N samples (whole sequences) with
    contributions c_n to the gradient G = sum_n c_n, whatever the loss divides by, the noise is the covariance of G,
    estimated without bias by N/(N-1) sum_n (c_n - G/N)(c_n - G/N)'.

    Layers have the samples along `batch_axis` or the first axis, which may hold positions too. Axes are identified by
    their lengths alone: a model that moves the samples to another axis, or sends a table that does not depend on the
    batch through a layer, must not have as many entries there as samples, nor a multiple.

    **Arguments:**

    - `model`: the network that trains.
    - `census`: the census of this model; its exact symmetries are measured. Without a census only the noise scale is.
    - `every`: steps between measurements; step 0 is measured.
    - `batch_axis`: the axis of activations that counts samples (1 for sequence-first models).
    - `keep`: the largest number of measurements held (at most 100,000 rows); the oldest are dropped first.
    - `writer`: a TensorBoard `SummaryWriter` (any object with `add_scalar`), or a folder for one; or a function of a
      dict of numbers, or any object with `log(dict)` such as a run of wandb.
    - `window`: number of measurements over which the noise scale is averaged.
    - `on_error`: "raise" raises an error if the first measurement is impossible; "warn" only warns, as later
      measurements do.
    - `distributed`: whether to add up the samples of all processes. By default this is done for a model inside
      DistributedDataParallel, and for one that FSDP2 (`fully_shard`) has sharded.

    `noise_scale` has the gradient noise scale B = tr Sigma/|G|^2 in total, by layer and by symmetry, with its standard
    error: see `undertow.torch.monitor.noise_scale`. `rows` has one dict per symmetry and measurement. A generator
    multiplies entry i of the parameters by exp(A_i s). eta_i, lambda_i and beta are the step size, weight decay and
    momentum of its parameter group, and h_i the effective step, eta_i for Adam and eta_i (1 - dampening)/(1 - beta) for
    SGD; h is the largest of a symmetry. W is the metric, 1 for SGD and sqrt(v)/sqrt(1 - b2^t) + eps for Adam and AdamW.

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
    - `memory`, `eps_share`: for Adam, 1/(1 - b2) in steps, and the share of eps in W, which should be small. `regime`:
      (1 - b2)/(eta lambda), None until `measure_curvature` has measured lambda, the curvature in the metric; the theory
      needs a value below about 1.
    - `optimiser`: whose equilibrium it is, "SGD" or "AdamW". `note`: why numbers are None.

    `verdicts()` returns for each symmetry whether it has reached that equilibrium. `last` holds the newest measurement
    generator by generator. A step that cannot be measured raises an error if it is the first one, and later a warning,
    once for each reason, with no row for that step. Both come from `step()`, never from `backward()`.

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

    @checked_call("NoiseMonitor")
    def __init__(
        self,
        model: nn.Module,
        census: Census | None = None,
        every: int = 50,
        *,
        batch_axis: int = 0,
        keep: int = 10_000,
        writer: Writer | str | Path | None = None,
        window: int = 50,
        on_error: Literal["raise", "warn"] = "raise",
        distributed: bool | None = None,
    ):
        check_model("NoiseMonitor", model)
        ranks.validate_wrapper(model)
        count = lambda name, value: validate.positive_integer("NoiseMonitor", name, value)
        self.every, keep, window = count("every", every), count("keep", keep), count("window", window)
        batch_axis = validate.positive_integer("NoiseMonitor", "batch_axis", batch_axis, least=0, most=1)
        validate.one_of("NoiseMonitor", "on_error", on_error, ("raise", "warn"))
        distributed = None if distributed is None else validate.flag("NoiseMonitor", "distributed", distributed)
        wrapped = isinstance(model, nn.parallel.DistributedDataParallel)
        self.model = unwrap(model)
        validate_census(self.model, census)
        self.census = Census((), (), (), (), (), ()) if census is None else census
        sharded = ranks.is_sharded(self.model)
        self._distributed = ranks.runs_distributed() and (wrapped or sharded if distributed is None else distributed)
        self._on_error = on_error
        self.steps = 0
        """Number of steps of the optimiser so far."""
        self._unread: BackgroundQueue[tuple[int, bool], StepResult] = BackgroundQueue(MOST_UNREAD)
        self._skipped: deque[tuple[int, str]] = deque(maxlen=keep)
        self._measured = False
        self._warned: set[str] = set()
        self._meter = SymmetryMeter(self.census)
        self._recorder = GradientRecorder(
            self.model, self._meter.requests, batch_axis, optional=self._meter.optional(self.model)
        )
        scales = NoiseScales(window, {symmetry.name: symmetry.parameters for symmetry in self.census})
        self._rows = MeasuredRows(keep, len(self.census), scales)
        self.curvature: MetricCurvature | None = None
        """The curvature in the metric of Adam, by `measure_curvature`."""
        self._sharded = sharded
        self._parameters = ranks.WholeParameters(self._recorder.parameters) if sharded else self._recorder.parameters
        self._optimizers = OptimizerTracker(self._recorder.parameters)
        self._writer, self._owns_writer = output.open_writer(writer)
        self._recorder.attach()
        self._release = weakref.finalize(self, _release, call_before_steps(self._before_step), self._recorder)
        self._release.atexit = False

    ways = Renamed("algorithms")

    @property
    def rows(self) -> list[Row]:
        """All measurements, one dict per symmetry and step."""
        return [row for rows in self._measurements() for row in rows]

    @property
    def last(self) -> tuple[Reading, ...]:
        """The newest measurement, one reading per symmetry."""
        self._complete()
        return self._rows.last

    @property
    def noise_scale(self) -> NoiseScales:
        """The gradient noise scale in total, by layer and by symmetry."""
        self._complete()
        return self._rows.noise_scale

    @property
    def skipped(self) -> deque[tuple[int, str]]:
        """Steps that could not be measured, each with the reason."""
        self._complete()
        return self._skipped

    def _measurements(self) -> list[list[Row]]:
        self._complete()
        return list(self._rows)

    @property
    def algorithms(self) -> dict[ShapeKey, str]:
        """The algorithm for sequences, "gram" or "direct", by the shapes that occurred."""
        return dict(self._recorder.autotuner.choices)

    def close(self) -> None:
        """Remove all hooks. The measurements stay."""
        self._release()
        self._complete()
        if self._owns_writer:
            self._writer.close()  # ty: ignore[missing-attribute]

    def __str__(self) -> str:
        return str(self.noise_scale)

    def _repr_html_(self) -> str:
        return self.noise_scale._repr_html_()

    def __enter__(self) -> "NoiseMonitor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_pass(self, args: tuple, kwargs: dict[str, object]) -> None:
        """Start a forward pass on these arguments, in a loop that calls parts of the model and not the model itself."""
        if self._recorder.attached:
            self._recorder.start_pass(args, kwargs)

    def end_step(self, optimizer: torch.optim.Optimizer) -> None:
        """End a step of an optimiser whose `step()` began before the monitor existed."""
        self._before_step(optimizer, (optimizer,), {})

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
        if not self._optimizers.counts(optimizer):
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self._end_step(self._optimizers.rules)
            return None
        # also between measurements: hooks attached before the closure would record this step as part of the next one
        ending = followed_once(closure, lambda: self._end_step(self._optimizers.rules))
        return (args[0], ending), {k: v for k, v in kwargs.items() if k != "closure"}

    def _end_step(self, rules: _RulesOf) -> None:
        step, self.steps = self.steps, self.steps + 1
        self._collect(wait=profiler_runs())
        try:
            if self._recorder.attached:
                self._measure(step, rules())
        finally:
            if self.steps % self.every == 0:
                self._recorder.attach()
            elif self._recorder.attached:
                self._recorder.detach()

    def _measure(self, step: int, rules: dict[str, StepRule]) -> None:
        """Measure a step. After the first measurement no error may stop the training."""
        scaled = any(rule.grad_scale is not None for rule in rules.values())
        cause: Exception | None = None
        try:
            result = self._try_to_measure(step, rules, scaled)
        except Exception as error:
            cause, result = error, StepResult(f"{type(error).__name__}: {error}")
        if result is None:
            return
        problem, expected = result.problem, result.expected(scaled=scaled)
        if problem is not None and not self._measured and not expected and self._on_error == "raise":
            raise RuntimeError(f"`NoiseMonitor` at step {step}: {problem}.") from cause
        self._keep(step, result, scaled)

    def _skip(self, step: int, problem: str, *, warn: bool) -> None:
        """Keep the reason why a step has no measurement, with one warning for each kind of reason."""
        self._skipped.append((step, problem))
        kind = re.sub(r"[\d.]+", "", problem)
        if kind not in self._warned and warn:
            self._warned.add(kind)
            warnings.warn(f"`NoiseMonitor` has no measurement of step {step}: {problem}.", stacklevel=2)

    def _collect(self, *, wait: bool) -> None:
        """Keep the results that the thread has completed, or wait for all of them."""
        for (step, scaled), result in self._unread.take(wait=wait):
            if isinstance(result, Exception):
                result = StepResult(f"{type(result).__name__}: {result}")
            self._keep(step, result, scaled)
        if wait:
            self._unread.close()

    def _keep(self, step: int, result: StepResult, scaled: bool) -> None:
        if result.power is None:
            self._skip(step, str(result.problem), warn=not result.expected(scaled=scaled))
            return
        self._measured = True
        self._recorder.uncovered |= result.unmatched
        self._rows.add(step, result, {**self._recorder.uncovered, **result.not_separable}, self.curvature)
        if self._writer is not None:
            self._complete_rows()
            output.log_measurement(self._writer, [r.row for r in self._rows.last], self._rows.noise_scale, step)
        elif self._rows.full:
            self._complete_rows()

    def _complete(self) -> None:
        self._collect(wait=True)
        self._complete_rows()

    def _complete_rows(self) -> None:
        for step, problem in self._rows.complete():
            self._skip(step, problem, warn=True)

    def _try_to_measure(self, step: int, rules: dict[str, StepRule], scaled: bool) -> StepResult | None:
        """Measure a step; return its result, or None if a thread completes it while training goes on."""
        recorder = self._recorder
        sums, problem = recorder.take()
        if self._distributed:
            sums, problem = ranks.sum_over_ranks(sums, problem, recorder.requests, recorder.uncovered)
        if problem is not None:
            return StepResult(problem)
        covered = ranks.Selected(self._parameters, [n for n in recorder.parameters if n not in recorder.uncovered])
        comparison = compare_gradients(sums, covered, recorder.requests, recorder.required)
        if isinstance(comparison, str):
            return StepResult(comparison)
        if self._sharded:
            rules = {name: ranks.whole_state(rule) for name, rule in rules.items()}
        gathered = self._meter.gather(sums, self._parameters, rules, comparison.device)
        if self._meter.choose_requests(gathered):
            recorder.record(self._meter.requests, self._meter.optional(self.model))
        read = functools.partial(read_result, step, comparison, gathered)
        # processes must agree on what they measure next, so that they do not complete steps at different times
        if not (self._measured and runs_in_background(comparison.device)) or self._distributed:
            self._collect(wait=True)
            return read() if self._measured else read().completed()
        self._unread.submit((step, scaled), read)
        return None

    def to_csv(self, path: str | Path) -> None:
        """Write all rows as a table; unknown numbers are empty."""
        output.write_csv(path, self.rows)

    def verdicts(self, tolerance: float = TOLERANCE) -> list[Verdict]:
        """Return for each symmetry whether it is nearer than `tolerance` to its equilibrium, and if not, how soon."""
        return verdicts(self.rows, tolerance)

    def measure_curvature(self, batches: Sequence[Batch], loss: Loss) -> MetricCurvature:
        """Measure the curvature lambda in the metric of Adam, for `regime` of the newest rows and of all later ones.

        `batches` are at least 9 independent batches of `loss(model, batch)`; three of them take two gradients and one
        Hessian-vector product. Call it between two steps of training.
        """
        if self._sharded:
            raise ValueError("`NoiseMonitor.measure_curvature()`: the model is sharded; measure a whole model.")
        with paused(self._recorder):
            rules = self._optimizers.rules(trainable(self.model))
            curvature = metric_curvature(self.model, batches, loss, rules)
        rows = self._measurements()
        self.curvature = curvature
        fill_regime(rows[-1] if rows else [], self.curvature)
        return self.curvature

    def to_xarray(self) -> "xarray.Dataset":
        """Return all rows as arrays over steps and symmetries, and the noise scale over steps and layers."""
        self._check_measured("to_xarray")
        return output.to_xarray(self.census, self._measurements(), self.noise_scale)

    def plot(self) -> "matplotlib.figure.Figure":
        """Return a figure over the steps: noise scale, charges, noise on both sides and distances to equilibrium."""
        self._check_measured("plot")
        return plots.plot_symmetries(self.census, self._measurements(), self.noise_scale)

    def plot_layers(self) -> "matplotlib.figure.Figure":
        """Return a figure with a small panel for each layer: its noise scale over the steps."""
        self._check_measured("plot_layers")
        return plots.plot_layers(self.noise_scale)

    def report(self, path: str | Path) -> Path:
        """Write an HTML page: what was measured, what it means, what one might do, and what not to conclude."""
        self._check_measured("report")
        return write_report(path, self.census, self._measurements(), self.noise_scale, list(self.skipped))

    def _check_measured(self, method: str) -> None:
        if not self._measured:
            raise ValueError(f"`NoiseMonitor.{method}()`: nothing was measured yet; train a step first.")


def _release(handle: torch.utils.hooks.RemovableHandle, recorder: GradientRecorder) -> None:
    handle.remove()
    recorder.close()
