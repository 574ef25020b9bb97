"""Label noise on a network that fits digits: does the limiting flow predict SGD? `python -m studies.label_noise`.

A tanh network with two hidden layers fits some digits of scikit-learn exactly. From there the study runs SGD with label
noise at several step sizes and the same slow time steps * step_size^2, and the flow dY = -(c/4) P grad tr H dt with
c = strength^2 at batch size 1. It compares the progress of SGD along the path of the flow, and the sharpness tr H.
"""

import argparse
import platform
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

import undertow as ut
from studies import results
from undertow import _trees as trees
from undertow.figures import style
from undertow.manifold.label import label_return

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "label-noise"
TRACE = "$\\operatorname{tr} H$"


@dataclass(frozen=True)
class Settings:
    """Settings of the study."""

    seeds: int = 10
    """Starts, each with its own images and weights."""
    runs: int = 8
    """Runs of SGD from each start, at each step size."""
    images: int = 64
    """Digits to fit."""
    hidden: tuple[int, int] = (32, 16)
    """Neurons of the two hidden layers."""
    strength: float = 1.0
    """Strength of the label noise; labels are +1 (digits from 5 on) and -1."""
    returns: int = 8
    """Gauss-Newton steps from each saved point of SGD back to the manifold."""
    time: float = 20.0
    """Slow time, steps * step_size^2."""
    num_saves: int = 10
    """Number of saved points."""
    step_sizes: tuple[float, ...] = (0.16, 0.08, 0.04, 0.02, 0.01, 0.005)
    """Each is half of the one before, so that the excess can be extrapolated."""


def predict(params: PyTree, x: Array) -> Array:
    """Return outer . tanh(middle tanh(inner x + bias) + shift)."""
    h = jnp.tanh(params["inner"] @ x + params["bias"])
    return params["outer"] @ jnp.tanh(params["middle"] @ h + params["shift"])


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return all images, centred and of mean square length 1, and their labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = data.data / 16.0 - data.data.mean(axis=0) / 16.0
    return images / np.sqrt(np.mean(np.sum(images**2, axis=1))), np.where(data.target >= 5, 1.0, -1.0)


def begin(settings: Settings, seed: int) -> tuple[ut.Regression, PyTree, np.ndarray]:
    """Return the images to fit, random weights N(0, 1/fan-in) (N(0, 1) in the first layer), and the other images."""
    images, labels = digits()
    order = np.random.default_rng([11, seed]).permutation(len(labels))
    mine, rest = order[: settings.images], order[settings.images :]
    wide, narrow = settings.hidden
    k = jax.random.split(jax.random.key(seed), 3)
    params = {
        "inner": jax.random.normal(k[0], (wide, 64)), "bias": jnp.zeros(wide),
        "middle": jax.random.normal(k[1], (narrow, wide)) / wide**0.5, "shift": jnp.zeros(narrow),
        "outer": jax.random.normal(k[2], (narrow,)) / narrow**0.5,
    }  # fmt: skip
    return ut.Regression(predict, jnp.asarray(images[mine]), jnp.asarray(labels[mine])), params, rest


OBSERVED: dict[str, Any] = {"point": trees.ravel}


@jax.jit
def _traces(inputs: Array, params: PyTree) -> Array:
    """Return tr H = (1/n) |J|^2 at zero loss, for params stacked along the first axis."""

    def one(p: PyTree) -> Array:
        rows = jax.vmap(lambda x: jax.grad(predict)(p, x))(inputs)
        return trees.dot(rows, rows) / len(inputs)

    return jax.vmap(one)(params)


@jax.jit
def _spectrum(inputs: Array, params: PyTree) -> tuple[Array, Array]:
    """Return the curvatures across the manifold, ascending, and the largest curvature of a single sample."""
    rows = jax.vmap(lambda x: trees.ravel(jax.grad(predict)(params, x)))(inputs)
    return jnp.linalg.eigvalsh(rows @ rows.T) / len(inputs), jnp.max(jnp.sum(rows**2, axis=1))


def single(tree: PyTree) -> PyTree:
    """Return the tree in single precision; the noise of SGD is far above its rounding."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)


def right(params: PyTree, rest: np.ndarray) -> Array:
    """Return the share of the other images whose label is predicted with the right sign."""
    images, labels = digits()
    outputs = jax.vmap(lambda x: predict(params, x))(jnp.asarray(images[rest]))
    return jnp.mean(outputs * jnp.asarray(labels[rest]) > 0)


@partial(jax.jit, static_argnames=("returns",))
def _back(problem_data: tuple[Array, Array], points: PyTree, returns: int) -> tuple[PyTree, Array]:
    """Return the points after Gauss-Newton steps x - J^+ r to zero loss, and the loss at them."""
    problem = ut.Regression(predict, *problem_data)

    def one(params: PyTree) -> tuple[PyTree, Array]:
        flat, unravel = jax.flatten_util.ravel_pytree(params)
        flat = jax.lax.fori_loop(0, returns, lambda _, x: label_return(problem, x, unravel), flat)
        return unravel(flat), problem.loss(unravel(flat))

    return jax.lax.map(one, points)


def one_start(settings: Settings, seed: int) -> dict[str, Any]:
    """Return the limiting flow from one start, and SGD from it at every step size."""
    problem, params, rest = begin(settings, seed)
    start = ut.settle(problem, params, tolerance=1e-8).params
    noise = ut.LabelNoise(problem, settings.strength)
    flow = ut.Limit(noise).solve(start, slow_time=settings.time, num_saves=settings.num_saves, observe=OBSERVED)
    path = np.asarray(flow.observed["point"])
    _, unravel = jax.flatten_util.ravel_pytree(start)
    traces = lambda points: np.asarray(_traces(problem.inputs, jax.vmap(unravel)(jnp.asarray(points, float))))
    spectra = [_spectrum(problem.inputs, p) for p in (start, flow.params)]
    facts: dict[str, Any] = {
        "trace": traces(path),
        "curvatures": [[float(values[0]), float(values[-1])] for values, _ in spectra],
        "largest_single": float(spectra[0][1]),
        "right": [float(right(p, rest)) for p in (start, flow.params)],
        "length": float(np.linalg.norm(path[-1] - path[0])),
        "sgd": [],
    }
    small = ut.Regression(predict, *single((problem.inputs, problem.targets)))
    forward = (path[-1] - path[0]) / facts["length"] ** 2
    for index, eta in enumerate(settings.step_sizes):
        steps = round(settings.time / eta**2)
        run = ut.descend(
            ut.LabelNoise(small, settings.strength), single(start), step_size=eta, steps=steps, seeds=settings.runs,
            key=jax.random.fold_in(jax.random.key(100 + seed), index), every=steps // settings.num_saves,
            progress=False, observe=OBSERVED,
        )  # fmt: skip
        finite = ~np.asarray(run.diverged)
        measured: dict[str, Any] = {"steps": steps, "diverged": int((~finite).sum())}
        if finite.any():
            where = np.asarray(run.observed["point"], float)[finite]  # runs, saves, parameters
            stacked = jax.vmap(unravel)(jnp.asarray(where.reshape(-1, where.shape[-1])))
            measured["trace"] = traces(where.reshape(-1, where.shape[-1])).reshape(where.shape[:2]).mean(axis=0)
            ends, loss = _back(problem.data, stacked, settings.returns)
            points = np.asarray(jax.vmap(trees.ravel)(ends)).reshape(where.shape)
            good = (np.asarray(loss) < 1e-12).reshape(where.shape[:2]).all(axis=1)
            measured["returned"] = int(good.sum())
            if good.any():
                points, last = points[good], points[good][:, -1]
                flat = points.reshape(-1, points.shape[-1])
                measured["returned_trace"] = traces(flat).reshape(points.shape[:2]).mean(axis=0)
                measured["progress"] = ((points - path[0]) @ forward).mean(axis=0)
                measured["off"] = float(np.linalg.norm(last.mean(axis=0) - path[-1]) / facts["length"])
                measured["right"] = float(np.mean([right(unravel(jnp.asarray(end)), rest) for end in last]))
        facts["sgd"].append(measured)
    return facts


def without_noise(settings: Settings) -> float:
    """Return the distance that SGD without label noise moves from a point of zero loss, which should be 0."""
    problem, params, _ = begin(settings, 0)
    start = ut.settle(problem, params, tolerance=1e-8).params
    run = ut.descend(
        ut.Minibatch(problem, batch_size=1), start, step_size=settings.step_sizes[-1], steps=10_000,
        key=jax.random.key(0), progress=False,
    )  # fmt: skip
    return float(jnp.linalg.norm(trees.ravel(run.params) - trees.ravel(start)))


def measure(settings: Settings) -> dict[str, Any]:
    """Run all starts."""
    start_time = time.perf_counter()
    facts: dict[str, Any] = {"settings": asdict(settings), "starts": []}
    with jax.enable_x64(True):
        for seed in range(settings.seeds):
            facts["starts"].append(one_start(settings, seed))
            print(f"{time.perf_counter() - start_time:7.1f} s  start {seed}", flush=True)
        facts["moved_without_noise"] = without_noise(settings)
    return facts | {
        "device": f"{platform.machine()} CPU", "jax": jax.__version__, "seconds": time.perf_counter() - start_time,
    }  # fmt: skip


def _column(facts: dict[str, Any], index: int, name: str) -> list[Any]:
    """Return a number (or a path) of every start at one step size, leaving out starts without it."""
    return [start["sgd"][index][name] for start in facts["starts"] if start["sgd"][index].get(name) is not None]


def _ratios(facts: dict[str, Any], index: int) -> list[float]:
    """Return tr H at the end of SGD, projected to the manifold, divided by that of the flow, for each start."""
    pairs = [(s["sgd"][index].get("returned_trace"), s["trace"]) for s in facts["starts"]]
    return [mine[-1] / flow[-1] for mine, flow in pairs if mine is not None]


def _progress(facts: dict[str, Any], index: int) -> list[float]:
    return [path[-1] for path in _column(facts, index, "progress")]


def _path_gap(facts: dict[str, Any], index: int) -> list[float]:
    """Return the largest relative difference of tr H between SGD and the flow over all points, by start."""
    pairs = [(s["sgd"][index].get("returned_trace"), s["trace"]) for s in facts["starts"]]
    return [float(np.max(np.abs(np.array(mine) / np.array(flow) - 1))) for mine, flow in pairs if mine is not None]


def _cell(values: list[float], digits: int = 3) -> str:
    if len(values) < 2:
        return "none"
    mean, half = results.interval(values)
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def extrapolated(values: list[list[float]]) -> tuple[float, float]:
    """Extrapolate to step size 0: twice the value at the smallest step size minus that at its double."""
    return results.interval(list(2 * np.array(values[-1]) - np.array(values[-2])))


def figures(facts: dict[str, Any]) -> "dict[str, Figure]":
    """Return the figure: the sharpness of SGD and of the flow over time, and their ratio by step size."""
    settings, starts = facts["settings"], facts["starts"]
    etas = np.array(settings["step_sizes"])
    figure, (path, ends) = style.new_figure(2)
    clock = np.linspace(0, settings["time"], settings["num_saves"] + 1)
    style.theory(path, clock, np.mean([start["trace"] for start in starts], axis=0), "limiting flow")
    shown = [k for k in range(len(etas)) if len(_ratios(facts, k)) == len(starts)]
    for k, colour, marker in zip(shown[-4:], ("purple", "red", "green", "blue"), "v^so", strict=False):
        columns = np.transpose(_column(facts, k, "returned_trace"))
        mean, half = np.transpose([results.interval(column) for column in columns])
        style.points(path, clock[1:], mean[1:], [half[1:], half[1:]], f"SGD, step {etas[k]:g}", colour, marker)
    path.set(xlabel="slow time, steps x step size²", ylabel="tr H", yscale="log")
    path.legend()
    for name, values, colour, marker in (
        ("tr H divided by that of the flow", [_ratios(facts, k) for k in shown], "blue", "o"),
        ("progress", [_progress(facts, k) for k in shown], "red", "s"),
    ):
        mean, half = np.transpose([results.interval(column) for column in values])
        style.points(ends, etas[shown], mean, [half, half], name, colour, marker)
    ends.axhline(1.0, color=style.COLOURS["grey"], label="limiting flow")
    ends.set(xlabel="step size", ylabel="at the end", xscale="log")
    ends.legend()
    return {NAME: figure}


def _rows(facts: dict[str, Any]) -> list[list[str]]:
    s, starts = facts["settings"], facts["starts"]
    rows = []
    for k, eta in enumerate(s["step_sizes"]):
        lost = sum(start["sgd"][k]["diverged"] for start in starts)
        back = sum(start["sgd"][k].get("returned", 0) for start in starts)
        rows.append([
            f"{eta:g}", f"{starts[0]['sgd'][k]['steps']:,}",
            f"{np.mean([start['largest_single'] for start in starts]) * eta:.2g}", f"{lost}", f"{back}",
            _cell([t[-1] for t in _column(facts, k, "trace")]),
            *(_cell(values) for values in (
                _ratios(facts, k), _path_gap(facts, k), _progress(facts, k), _column(facts, k, "off"),
            )),
        ])  # fmt: skip
    return rows


def page(facts: dict[str, Any]) -> str:
    """Return the page, with all numbers from the results."""
    s, starts = facts["settings"], facts["starts"]
    wide, narrow = s["hidden"]
    before, after = [start["trace"][0] for start in starts], [start["trace"][-1] for start in starts]
    head = [
        "step size", "steps", "step size times the largest curvature of one sample", "diverged", "projected",
        f"{TRACE} of SGD", f"projected {TRACE} divided by that of the flow", "largest difference",
        "progress", "distance",
    ]  # fmt: skip
    ratio = extrapolated([_ratios(facts, k) for k in (-2, -1)])
    progress = extrapolated([_progress(facts, k) for k in (-2, -1)])
    holds = lambda pair: "agrees with" if abs(pair[0] - 1) <= pair[1] else "differs from"
    least, last = s["step_sizes"][-1], len(s["step_sizes"]) - 1
    total = len(starts) * s["runs"]
    small = [float(np.median([start["curvatures"][k][0] for start in starts])) for k in (0, 1)]
    findings = [
        f"The flow predicts that {TRACE} falls from {_cell(before, 2)} to {_cell(after, 2)}, and SGD follows it: at "
        f"step size {least:g} its {TRACE}, projected to the manifold as described below, is "
        f"{_cell(_ratios(facts, last))} times that of the flow at the end; the largest relative difference on the path "
        f"is {_cell(_path_gap(facts, last))}, averaged over the starts.",
        f"Extrapolated to step size 0 from the last two step sizes, {TRACE} is {ratio[0]:.3f} ± {ratio[1]:.3f} times "
        f"that of the flow, which {holds(ratio)} 1, and progress {progress[0]:.3f} ± {progress[1]:.3f}, which "
        f"{holds(progress)} 1.",
        _large(facts),
        "One reason why steps must be small: in a direction across the manifold with curvature $h$ SGD relaxes within "
        f"a slow time of $\\eta/h$. The smallest $h$ changes along the flow from {small[0]:.2g} to {small[1]:.2g} "
        f"(medians over the starts). At step size {least:g} this is a time of {least / small[1]:.2g}; the whole "
        f"run has {s['time']:g}.",
        f"The flow predicts the sharpness better than the position: at step size {least:g} the mean of the {s['runs']} "
        f"runs ends at a distance of {_cell(_column(facts, last, 'off'))} path lengths from the end of the flow.",
        f"Without label noise SGD does not move: the distance after 10,000 steps is "
        f"{facts['moved_without_noise']:.1g}.",
        "Generalisation: of the digits that were not fitted, a share of "
        f"{_cell([start['right'][0] for start in starts])} has the right sign at the start, "
        f"{_cell([start['right'][1] for start in starts])} at the end of the flow and "
        f"{_cell(_column(facts, last, 'right'))} at the end of SGD at step size {least:g}.",
    ]
    parts = [
        "# Label noise on a network that fits digits: SGD and the limiting flow",
        "Written by `python -m studies.label_noise` from `studies/results/label-noise.json`; do not edit by hand. "
        f"{facts['seconds']:.0f} s on one core ({facts['device']}, JAX {facts['jax']}).",
        f"A tanh network 64-{wide}-{narrow}-1 fits {s['images']} of scikit-learn's digits exactly (label +1 for the "
        "digits 5 to 9, -1 for the others; squared loss). From this point of zero loss SGD uses one image per step and "
        f"adds $\\pm {s['strength']:g}$ to its label, until the slow time is {s['time']:g}, which is "
        "$\\eta^2$ times the number of steps with the step size $\\eta$. SGD is compared with the limiting flow "
        "$\\mathrm dY = -\\frac c4 P \\nabla \\operatorname{tr} H\\, \\mathrm d\\tau$, where $P$ projects on the "
        f"tangent space of the manifold of zero loss, {TRACE} is the sharpness, the trace of the Hessian of the loss, "
        "and $c$ is the square of the strength of the noise. `undertow.Limit` solves the flow from the same point. The "
        f"study has {len(starts)} starts, each with its own images and weights, and {s['runs']} runs of SGD from each "
        "at each step size. Numbers are means over the starts with 95 % intervals.",
        "## Findings",
        "\n".join(f"- {finding}" for finding in findings),
        "## Results by step size",
        results.table(head, _rows(facts)),
        f"*Diverged* and *projected* count runs, of {total}. SGD is never exactly on the manifold. It is projected by "
        f"{s['returns']} Gauss-Newton steps $x - J^+ r$, which end where gradient flow would, up to second order in "
        "the distance; gradient flow itself is too slow from some of these points. *Largest difference* is the "
        f"relative difference of {TRACE}, over all saved points. *Progress* is measured along the straight line from "
        "the start to the end of the flow, and is 1 for the flow. *Distance* is that of the mean over runs from the "
        "end of the flow, divided by the length of this line.",
        f"![Sharpness over time and at the end, of SGD and of the limiting flow]({NAME}.svg)",
        "## Limitations",
        "The study has one small smooth network with one output, an exact fit, and batches of one sample, as in the "
        "theory. Real training rarely reaches zero loss and stays there. The largest step sizes are included to show "
        "where the prediction fails; they are not practical.",
    ]
    return "\n\n".join(parts) + "\n"


def _large(facts: dict[str, Any]) -> str:
    """Return a sentence on large steps."""
    etas, starts = facts["settings"]["step_sizes"], facts["starts"]
    runs = facts["settings"]["runs"]
    lost = [eta for k, eta in enumerate(etas) if all(s["sgd"][k]["diverged"] == runs for s in starts)]
    shown = [k for k in range(len(etas)) if len(_ratios(facts, k)) > 1]
    ratios = ", ".join(f"{_cell(_ratios(facts, k), 2)} at {etas[k]:g}" for k in shown)
    diverged = f"At step size {', '.join(f'{e:g}' for e in lost)} every run diverges. " if lost else ""
    return f"{diverged}At large steps SGD stays sharper than the flow; {TRACE} divided by that of the flow: {ratios}."


def main() -> None:
    """Run the study and write results, figure and page; with `--page` only figure and page."""
    parser = argparse.ArgumentParser(prog="python -m studies.label_noise", description=__doc__)
    parser.add_argument(
        "--page", action="store_true", help="only draw the figure and write the page, from the stored results"
    )
    if not parser.parse_args().page:
        results.save(NAME, measure(Settings()))
    results.publish(NAME, page, figures)


if __name__ == "__main__":
    main()
