"""A problem of one's own from a file: the loss and the size of the params under SGD, beside the averaged flow."""

import functools
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from undertow import _trees as trees
from undertow.analysis.target import JaxTarget, load
from undertow.dynamics.average import average
from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.execution.registry import UserFileError
from undertow.explore.instrument import Instrument, Observables, SettingError, Settings, Slider
from undertow.explore.picture import Axis, Panel, Picture, Row, Series, runs_and_mean
from undertow.noise.base import AbstractNoise
from undertow.noise.label import LabelNoise
from undertow.noise.minibatch import Minibatch
from undertow.optimisers.sgd import SGD
from undertow.problem import AbstractSampled, Population, Regression

__all__ = ["EXAMPLE", "OwnResult", "draw", "own_problem"]

SAVES = 30
EXAMPLE = """\
import jax.numpy as jnp
import undertow as ut

# two layers of one unit: the product u v fits 16 points with the slope 1
x = jnp.linspace(-1.0, 1.0, 16)
problem = ut.Regression(lambda p, x: p["u"] * p["v"] * x, x, x)
params = {"u": jnp.array(2.0), "v": jnp.array(0.2)}
"""
"""The file of the instrument where the user gives none."""


@dataclass(frozen=True)
class OwnResult:
    """The loss and |params|^2 of the runs, beside the averaged flow."""

    step: np.ndarray
    loss: np.ndarray
    """The loss of the runs that stayed finite (runs, times)."""
    size: np.ndarray
    """|params|^2 of the runs."""
    loss_flow: np.ndarray | None
    """The mean loss by the averaged flow; None where there is no prediction."""
    size_flow: np.ndarray | None
    diverged: int
    notes: tuple[str, ...]


def _squared_norm(params: PyTree) -> Float[Array, ""]:
    return trees.dot(params, params)


class _Compute:
    """The function `compute` for one target."""

    def __init__(self, target: JaxTarget):
        self.target = target
        problem = target.noise.problem if isinstance(target.noise, AbstractNoise) else target.noise
        if not isinstance(problem, AbstractSampled | Population):
            raise UserFileError(f"The problem is a {type(problem).__name__}; give a `Problem` or a `Regression`.")
        self.problem = problem
        self.observe: Observables = {"size": _squared_norm}
        if not isinstance(problem, Population):
            self.observe["loss"] = problem.loss

    def noise(self, settings: Settings) -> AbstractNoise:
        if isinstance(self.target.noise, AbstractNoise):
            return self.target.noise
        batch, strength = int(settings["batch_size"]), float(settings.get("noise", 0.0))
        if isinstance(self.problem, Regression):
            return LabelNoise(self.problem, strength, batch_size=batch)
        return Minibatch(self.problem, batch)

    def __call__(self, settings: Settings) -> OwnResult:
        noise, eta = self.noise(settings), float(settings["step_size"])
        every = int(settings["steps"]) // SAVES
        optimiser = SGD(weight_decay=float(settings["decay"]))
        run = descend(
            noise, self.target.params, step_size=eta, steps=every * SAVES, every=every, optimiser=optimiser,
            seeds=int(settings["seeds"]), key=0, observe=self.observe, progress=False,
        )  # fmt: skip
        if run.diverged.all():
            raise SettingError("All runs diverged: choose a smaller step size.")
        finite = {name: values[~run.diverged] for name, values in run.observed.items()}
        flow, note = self._flow(noise, eta, every, optimiser)
        notes = (f"{int(run.diverged.sum())} runs diverged and are left out.",) if run.diverged.any() else ()
        missing = np.full_like(finite["size"], np.nan)
        return OwnResult(
            run.step, finite.get("loss", missing), finite["size"], flow.get("mean_loss"), flow.get("mean_size"),
            int(run.diverged.sum()), notes + note,
        )  # fmt: skip

    def _flow(
        self, noise: AbstractNoise, eta: float, every: int, optimiser: SGD
    ) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        """Return the prediction, or none and the reason."""
        observe: Observables = {"size": _squared_norm}
        try:
            flow = average(
                noise, self.target.params, step_size=eta, time=eta * every * SAVES, observe=observe, num_saves=SAVES,
                estimate_error=False, optimiser=optimiser,
            )  # fmt: skip
        except (ValueError, TypeError) as error:
            return {}, (f"No prediction: {error}",)
        if flow.diverged:
            return {}, ("No prediction: the averaged flow cannot be solved at this setting.",)
        small = flow.regime is None or flow.regime.valid is not False
        return flow.observed, () if small else ("The small parameters of the theory are not small at this setting.",)


def draw(result: OwnResult) -> Picture:
    """Draw the loss and |params|^2."""

    def panel(title: str, label: str, runs: np.ndarray, flow: np.ndarray | None) -> Panel:
        series = list(runs_and_mean("SGD", result.step, runs))
        if flow is not None:
            series.append(Series("line", "averaged flow (theory)", "red", result.step, flow))
        return Panel(title, Axis("step"), Axis(label), tuple(series))

    def row(label: str, runs: np.ndarray, flow: np.ndarray | None) -> Row:
        last = runs[:, -1]
        error = float(standard_error(last)) if len(last) > 1 else None
        return Row(label, None if flow is None else float(flow[-1]), float(last.mean()), error)

    panels = [panel("Size of the parameters", "|params|²", result.size, result.size_flow)]
    rows = [row("|params|² at the end", result.size, result.size_flow)]
    if np.isfinite(result.loss).any():
        panels.insert(0, panel("Loss", "loss on all samples", result.loss, result.loss_flow))
        rows.insert(0, row("loss at the end", result.loss, result.loss_flow))
    return Picture(tuple(panels), tuple(rows), result.notes)


NOISES = {
    "regression": "ut.LabelNoise(noise, $noise, batch_size=$batch_size)",
    "problem": "ut.Minibatch(noise, $batch_size)",
    "noise": "noise",
}
CODE = """\
import jax
jax.config.update("jax_enable_x64", True)
{source}
noise = {noise}
steps, optimiser = 30 * ($steps // 30), ut.SGD(weight_decay=$decay)
size = lambda p: sum((leaf**2).sum() for leaf in jax.tree.leaves(p))
run = ut.descend(noise, params, step_size=$step_size, steps=steps, optimiser=optimiser, seeds=$seeds, key=0,
                 observe={{"size": size}})
flow = ut.average(noise, params, step_size=$step_size, time=$step_size * steps, observe={{"size": size}}, num_saves=30,
                  estimate_error=False, optimiser=optimiser)
theory, simulation = float(flow.observed["mean_size"][-1]), float(run.observed["size"][~run.diverged, -1].mean())
print(f"|params|^2 at the end: averaged flow {{theory:.4g}}, mean of SGD {{simulation:.4g}}")
"""


@functools.cache
def own_problem(file: str | None = None, params: str = "params") -> Instrument[OwnResult]:
    """Return the instrument of FILE.py:OBJECT, with what `undertow analyze` accepts; None is an example.

    >>> from undertow.explore.own import own_problem
    >>> print([slider.name for slider in own_problem().sliders])
    ['step_size', 'noise', 'batch_size', 'decay', 'steps', 'seeds']
    """
    target = _example() if file is None else load(file, params)
    if not isinstance(target, JaxTarget):
        raise UserFileError(f"{file} is a PyTorch model; the explorer runs JAX problems.")
    compute = _Compute(target)
    kind = "noise" if isinstance(target.noise, AbstractNoise) else "problem"
    sliders = [
        Slider(
            "step_size",
            "step size η",
            (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
            0.1,
            (0.03, 0.1, 0.3),
            small_programs=(3.0,),
        ),  # the end of runs that diverge
        Slider("decay", "weight decay λ", (0.0, 0.001, 0.003, 0.01, 0.03, 0.1), 0.001, (0.001, 0.1), (0.0,)),
        Slider("steps", "steps", (300, 1000, 3000, 10000), 3000),
        Slider("seeds", "number of runs", (2, 4, 8, 16, 32, 64), 16, small_programs=(2, 4, 8, 32, 64)),
    ]
    if kind == "problem":
        most = getattr(compute.problem, "size", 16)
        sizes = tuple(size for size in (1, 4, 16) if size <= most)
        sliders.insert(1, Slider("batch_size", "batch size", sizes, 1, sizes, sizes[1:]))
    if kind == "problem" and isinstance(compute.problem, Regression):
        kind = "regression"
        values = (0.0, 0.1, 0.2, 0.5, 1.0)
        sliders.insert(1, Slider("noise", "label noise δ", values, 0.5, (0.0, 0.5, 1.0)))
    source = EXAMPLE + "noise = problem" if file is None else _source(file, params)
    shown = "an example: u·v·x fits 16 points" if file is None else f"{file}"
    return Instrument(
        name="own-problem",
        title="A problem of your own",
        summary=f"The problem is {shown}. SGD with the noise of the sliders, beside the averaged flow, which "
        "predicts its mean at this step size. “undertow explore --file my.py:problem” loads yours: a problem or a "
        "noise, with its params in the variable params.",
        theory="howto/own-loss",
        sliders=tuple(sliders),
        compute=compute,
        draw=draw,
        code=CODE.format(source=source.replace("$", "$$"), noise=NOISES[kind]),
    )


def _example() -> JaxTarget:
    """Return the problem of `EXAMPLE`."""
    x = jnp.linspace(-1.0, 1.0, 16)
    problem = Regression(lambda p, x: p["u"] * p["v"] * x, x, x)
    return JaxTarget(problem, {"u": jnp.array(2.0), "v": jnp.array(0.2)})


def _source(file: str, params: str) -> str:
    """Return code that loads the target of a file."""
    return (
        "import undertow as ut\nfrom undertow.analysis.target import load\n\n"
        f"target = load({file!r}, {params!r})\nnoise, params = target.noise, target.params"
    )
