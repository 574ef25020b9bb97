"""The traces that the limiting flows of SGD and Adam with label noise reduce, and the sparse vectors that they find."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np
import xarray
from jaxtyping import Array, Float, Key

from undertow.figures import style
from undertow.papers.optimisers.models.sparse_flow import FlowPath, Name, SparseData, draw_data, sparse_flow
from undertow.verification import statistics
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Above, Below, Check

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPTIMISERS: tuple[Name, Name] = ("SGD", "Adam")
LENGTHS = {"SGD": (12.0, 60), "Adam": (8.0, 200)}
"""Slow time of each flow, and its number of steps."""
RECOVERED = 0.1
"""The relative error below which a vector counts as recovered."""
FEW = (8, 10, 12)
"""The numbers of equations at which the flows are compared."""

TRACES_BEFORE = {"sparse": (0.06, -0.13), "dense": (0.12, 0.04)}
"""The mean logarithms of the ratios of tr H and of tr diag(H)^½ on 128 other data sets; the theory has signs only."""
GAIN_BEFORE = 0.2
"""The gain in recovered data sets on 128 other data sets for each n of `FEW`."""


@dataclass(frozen=True)
class Traces:
    """The limiting flows on z.(u² - v²) = y with Gaussian z from u = v = 1, for sparse and for dense solutions."""

    sets: int
    """Number of data sets of each kind."""
    unknowns: int = 40
    """Number of entries of u and of v."""
    equations: int = 10
    """Number of equations."""
    nonzero: int = 3
    """Number of nonzero entries ±1 of the sparse solutions; the dense ones have entries ±1 only."""


@dataclass(frozen=True)
class Recovery:
    """The limiting flows on n equations z.(u² - v²) = z.w* with Gaussian z, for a sparse vector w*, from u = v = 1."""

    sets: int
    """Number of data sets for each n."""
    most: int = 12
    """The largest number n of equations; the least is 8, and they rise by 2."""
    unknowns: int = 60
    """Number of entries of w*."""
    nonzero: int = 3
    """Number of nonzero entries ±1 of w*."""


def _flows(data: SparseData) -> dict[Name, FlowPath]:
    return {name: sparse_flow(name, data, *LENGTHS[name]) for name in OPTIMISERS}


def _rise(path: Float[np.ndarray, "sets times"]) -> float:
    """Return the largest rise in one step of a flow over the whole fall, the largest over data sets."""
    return float(np.max(np.diff(path, axis=1).max(axis=1) / (path[:, 0] - path[:, -1])))


def _measure_traces(parameters: Traces, key: Key[Array, ""]) -> Measurement:
    p = parameters
    checks, rises, columns = [], {"SGD": [], "Adam": []}, {"trace": [], "root_trace": []}
    kinds = {"sparse": p.nonzero, "dense": p.unknowns}
    for index, (kind, nonzero) in enumerate(kinds.items()):
        own = jax.random.fold_in(key, index)
        flows = _flows(draw_data(own, p.sets, d=p.unknowns, n=p.equations, sparsity=nonzero))
        rises["SGD"].append(_rise(np.asarray(flows["SGD"].trace)))
        rises["Adam"].append(_rise(np.asarray(flows["Adam"].root_trace)))
        trace = np.log(flows["Adam"].trace[:, -1] / flows["SGD"].trace[:, -1])
        root = np.log(flows["Adam"].root_trace[:, -1] / flows["SGD"].root_trace[:, -1])
        what = f"{kind}: mean log of {{}} after Adam / after SGD"
        sides = (Above(0.0), Below(0.0) if kind == "sparse" else Above(0.0))
        rows = zip(("tr H", "tr diag(H)^½"), (trace, root), TRACES_BEFORE[kind], sides, strict=True)
        for quantity, logarithms, before, side in rows:
            mean, error = statistics.mean(logarithms)
            checks.append(Check(what.format(quantity), mean, before, error, side, alternative=0.0))
        columns["trace"].append(np.exp(trace))
        columns["root_trace"].append(np.exp(root))
    # the steps of Adam freeze the metric, which has an error of first order in their length
    for name, quantity in (("SGD", "tr H"), ("Adam", "tr diag(H)^½")):
        what = f"{quantity} along the flow of {name}: largest rise in a step / whole fall"
        checks.append(Check(what, max(rises[name]), 0.0, 0.0, Below(0.01)))
    data = xarray.Dataset(
        {name: (("kind", "set"), np.array(values)) for name, values in columns.items()}, coords={"kind": list(kinds)}
    )
    return Measurement(tuple(checks), data, p.sets)


def _draw_traces(measurement: Measurement, parameters: Traces) -> "Figure":
    figure, panels = style.new_figure(2)
    for axes, kind in zip(panels, measurement.data.kind.values, strict=True):
        case = measurement.data.sel(kind=kind)
        style.points(axes, case.trace, case.root_trace, None, "data sets", "blue")
        for line in (axes.axhline, axes.axvline):
            line(1.0, color=style.COLOURS["grey"], lw=0.8)
        axes.set(xlabel="tr H after Adam / after SGD", ylabel="tr diag(H)^½ after Adam / after SGD")
        axes.set_title(f"{kind} solution")
    panels[0].legend()
    return figure


def _measure_recovery(parameters: Recovery, key: Key[Array, ""]) -> Measurement:
    p = parameters
    counts = list(range(FEW[0], p.most + 1, 2))
    recovered = np.empty((len(OPTIMISERS), len(counts), p.sets), bool)
    for column, n in enumerate(counts):
        data = draw_data(jax.random.fold_in(key, n), p.sets, d=p.unknowns, n=n, sparsity=p.nonzero)
        for row, flow in enumerate(_flows(data).values()):
            recovered[row, column] = np.asarray(flow.error) < RECOVERED
    few = recovered[:, : len(FEW)].reshape(len(OPTIMISERS), -1).astype(float)
    gain, error = statistics.mean(few[1] - few[0])
    what = f"share of data sets recovered by Adam less that by SGD, n = {', '.join(str(n) for n in FEW)}"
    check = Check(what, gain, GAIN_BEFORE, error, Above(0.0), alternative=0.0, samples=few.shape[1])
    data = xarray.Dataset(
        {"recovered": (("optimiser", "equations", "set"), recovered)},
        coords={"optimiser": list(OPTIMISERS), "equations": counts},
    )
    return Measurement((check,), data, p.sets)


def _draw_recovery(measurement: Measurement, parameters: Recovery) -> "Figure":
    figure, (axes,) = style.new_figure(1)
    for name, colour, marker in (("SGD", "blue", "o"), ("Adam", "red", "s")):
        flags = measurement.data.recovered.sel(optimiser=name)
        shares = [statistics.share(row) for row in flags.values]
        values, errors = (list(column) for column in zip(*shares, strict=True))
        style.points(axes, flags.equations, values, errors, name, colour, marker=marker)
    axes.set(xlabel="equations n", ylabel="share recovered", ylim=(-0.05, 1.05))
    axes.legend()
    return figure


CLAIMS = (
    Claim(
        id="two-traces",
        paper="optimisers",
        place="Li, Wen and Lyu, arXiv 2511.02773: implicit regulariser of Adam",
        statement="With label noise tr H falls along the limiting flow of SGD, and tr diag(H)^½ along that of Adam. "
        "SGD ends with the smaller tr H. Adam ends with the smaller tr diag(H)^½ where the equations have a sparse "
        "solution. Where the solution is dense, SGD ends with the smaller value of both: Adam does not reach the least "
        "tr diag(H)^½, which is not convex in w.",
        equation="SGD: dθ/dτ = -(c/4) P ∇tr H,  Adam: dθ/dτ = -(√c/2) P_S S ∇tr diag(H)^½",
        alternative="The flows of SGD and of Adam end with the same traces.",
        rests_on=("adam-limit-metric", "label-noise-quarter"),
        controls=True,
        scales={"smoke": Traces(192), "default": Traces(512), "full": Traces(2048)},
        measure=_measure_traces,
        draw=_draw_traces,
    ),
    Claim(
        id="adam-sparse-recovery",
        paper="optimisers",
        place="Li, Wen and Lyu, arXiv 2511.02773: sparse recovery",
        statement="With label noise the limiting flow of Adam finds a vector with 3 nonzero entries of 60 from fewer "
        "Gaussian equations than that of SGD: from 8 to 12 equations it recovers more data sets.",
        equation="tr diag(H)^½ ∝ ∑_j r_j |w_j|^½ for Adam,  tr H ∝ ∑_j r_j² |w_j| for SGD, at u_j v_j = 0",
        alternative="Adam recovers no more data sets than SGD.",
        rests_on=("two-traces",),
        scales={"smoke": Recovery(96), "default": Recovery(128, most=20), "full": Recovery(512, most=24)},
        measure=_measure_recovery,
        draw=_draw_recovery,
        long=True,
    ),
)
