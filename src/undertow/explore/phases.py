"""The phase diagram of HeteroSGD: one environment per step filters out a signal that differs between environments."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from undertow.dynamics.descend import descend
from undertow.estimate import standard_error
from undertow.explore.instrument import Instrument, Observables, Settings, Slider
from undertow.explore.picture import Axis, Panel, Picture, Row, Series, runs_and_mean
from undertow.papers.heterogeneity import phase_diagram
from undertow.sensing.decomposition import auxiliary
from undertow.sensing.growth import lyapunov, transition_spread
from undertow.sensing.laws import two_point
from undertow.sensing.matrix_sensing import MatrixSensing

__all__ = ["PHASES", "PhasesResult", "compute", "draw"]

DIMENSION, MEASUREMENTS, SAVES, MAP_SEEDS = 4, 1_000_000, 50, 4
STEP_SIZES = (0.01, 0.014, 0.02, 0.028, 0.04, 0.056, 0.08, 0.09)
SPREADS = (0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5)


@dataclass(frozen=True)
class PhasesResult:
    """The share of runs on the map that filter out the spurious signal, and the runs at the chosen point."""

    point: tuple[float, float]
    """Step size and spread of the chosen point."""
    share: np.ndarray
    """Shares (spreads, step sizes)."""
    boundary: np.ndarray
    """The predicted spread at `curve_sizes`."""
    curve_sizes: np.ndarray
    step: np.ndarray
    true: np.ndarray
    """The true signal of the runs (runs, times)."""
    spurious: np.ndarray
    """The spurious signal of the runs (runs, times)."""
    true_theory: np.ndarray
    spurious_theory: np.ndarray
    """The typical size, alpha^2 exp(2 Lambda t), up to the size of the signal."""
    diverged: int


@functools.cache
def _sensing() -> MatrixSensing:
    return MatrixSensing(DIMENSION, MEASUREMENTS, two_point(1.0, 1.0), dtype=jnp.float32)


@functools.cache
def _observables() -> Observables:
    return {"signals": _sensing().measure}


@jax.jit
def _filtered(step_size: Array, spread: Array, alpha: Array, steps: Array) -> Float[Array, " points"]:
    """Return for each point whether one run filtered the spurious signal out; a diverged run did not."""
    one = lambda key, eta, m: phase_diagram.run(
        key, step_size=eta, spread=m, alpha=alpha, steps=steps, d=DIMENSION, m=MEASUREMENTS
    )["filtered"]
    keys = jax.random.split(jax.random.key(0), step_size.size)
    return jnp.nan_to_num(jax.vmap(one)(keys, step_size, spread))


@functools.lru_cache(maxsize=64)
def _map(alpha: float, steps: int) -> np.ndarray:
    """Return the shares of the map, which does not depend on the chosen point."""
    spread, size, _ = np.meshgrid(SPREADS, STEP_SIZES, np.arange(MAP_SEEDS), indexing="ij")
    flags = _filtered(jnp.asarray(size.ravel()), jnp.asarray(spread.ravel()), jnp.asarray(alpha), jnp.asarray(steps))
    return np.asarray(flags).reshape(spread.shape).mean(axis=2)


def compute(settings: Settings) -> PhasesResult:
    """Run HeteroSGD at the chosen point, and on the map."""
    eta, spread, alpha = (float(settings[name]) for name in ("step_size", "spread", "alpha"))
    steps = int(settings["steps"])
    sensing = MatrixSensing(DIMENSION, MEASUREMENTS, two_point(1.0, spread), dtype=jnp.float32)
    run = descend(
        sensing, sensing.start(alpha), step_size=eta, steps=steps, every=steps // SAVES, seeds=int(settings["seeds"]),
        key=0, observe=_observables(), progress=False,
    )  # fmt: skip
    growth = lyapunov(two_point(1.0, spread), eta)
    sizes = np.geomspace(STEP_SIZES[0] / 1.2, STEP_SIZES[-1] * 1.2, 40)
    signals = {name: np.maximum(run.observed["signals"][name][~run.diverged], 1e-12) for name in ("true", "spurious")}
    return PhasesResult(
        point=(eta, spread), share=_map(alpha, steps),
        boundary=np.array([transition_spread(1.0, float(x), steps=steps, alpha=alpha) for x in sizes]),
        curve_sizes=sizes, step=run.step, true=signals["true"], spurious=signals["spurious"],
        true_theory=auxiliary(eta, steps=steps, alpha=alpha).growth[run.step] ** 2,
        spurious_theory=np.minimum(alpha**2 * np.exp(2 * growth * run.step), 1.0), diverged=int(run.diverged.sum()),
    )  # fmt: skip


def draw(result: PhasesResult) -> Picture:
    """Draw the map with the chosen point, and the signals of the runs there."""
    sizes, spreads = np.array(STEP_SIZES), np.array(SPREADS)
    diagram = Panel(
        "Runs without the spurious signal; click to choose a point",
        Axis("step size η", log=True, low=0.0085, high=0.1),
        Axis("heterogeneity M", low=0.0, high=9.0),
        (
            Series("cells", "share of runs of HeteroSGD", "blue", sizes, result.share, rows=spreads),
            Series("line", "predicted: α exp(TΛ) = 1", "red", result.curve_sizes, np.clip(result.boundary, 0, 9)),
            Series("target", "chosen point", "purple", np.array([result.point[0]]), np.array([result.point[1]])),
        ),
        pick=("step_size", "spread"),
    )
    typical = Series("cloud", "spurious signal, single runs", "purple", result.step, result.spurious[:24])
    runs = Panel(
        "Runs at the chosen point",
        Axis("step"),
        Axis("size of the signal", log=True, low=1e-9, high=30.0),
        (
            *runs_and_mean("true signal", result.step, result.true),
            Series("line", "recursion (theory)", "red", result.step, result.true_theory),
            typical,
            Series("dots", "its median", "purple", result.step, np.median(result.spurious, axis=0)),
            Series("dashed", "α² exp(2Λt) (theory)", "green", result.step, result.spurious_theory),
        ),
    )
    last = result.true[:, -1]
    error = float(standard_error(last)) if len(last) > 1 else None
    rows = (
        Row("true signal at the end", float(result.true_theory[-1]), float(last.mean()), error),
        Row("spurious signal at the end: α² exp(2ΛT), and the median", float(result.spurious_theory[-1]),
            float(np.median(result.spurious[:, -1]))),
    )  # fmt: skip
    lost = (f"{result.diverged} runs diverged and are left out.",) if result.diverged else ()
    return Picture((diagram, runs), rows, lost)


CODE = """\
import jax, jax.numpy as jnp, numpy as np, undertow as ut
from undertow.sensing.decomposition import auxiliary
from undertow.sensing.laws import two_point

jax.config.update("jax_enable_x64", True)
law = two_point(1.0, $spread)
sensing = ut.MatrixSensing(4, 1_000_000, law, dtype=jnp.float32)
run = ut.descend(sensing, sensing.start($alpha), step_size=$step_size, steps=$steps, seeds=$seeds, key=0,
                 observe={"signals": sensing.measure})
finite = {name: x[~run.diverged, -1] for name, x in run.observed["signals"].items()}
theory = float(auxiliary($step_size, steps=$steps, alpha=$alpha).growth[-1] ** 2)
simulation = float(finite["true"].mean())
print(f"true signal at the end: recursion {theory:.4g}, mean of the runs {simulation:.4g}")
growth, median = ut.lyapunov(law, $step_size), np.median(finite["spurious"])
print(f"spurious signal: Lyapunov exponent {growth:.3g} per step, median at the end {median:.3g}")
"""

PHASES = Instrument(
    name="phase-diagram",
    title="Heterogeneity filters out a signal",
    summary="Every step uses one environment. One signal is the same in all of them; the other is 1 + M or 1 − M. "
    "Above the predicted boundary the second one typically shrinks, although its mean is as large as that of the "
    "first. The finite number of measurements leaves a small remainder of it.",
    theory="theory/heterogeneity",
    sliders=(
        Slider("step_size", "step size η", STEP_SIZES, 0.056, STEP_SIZES[1::2]),
        Slider("spread", "heterogeneity M", SPREADS, 6.5, SPREADS[::2]),
        Slider("steps", "steps T", (100, 200, 400), 200),
        Slider("alpha", "size of the start α", (0.0001, 0.001, 0.01), 0.001),
        Slider("seeds", "number of runs", (4, 8, 16, 32, 64), 16, small_programs=(4, 8, 32, 64)),
    ),
    compute=compute,
    draw=draw,
    code=CODE,
)
