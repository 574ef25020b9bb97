"""Label noise on a network that fits digits: does the limiting flow say what SGD does? `python -m studies.label_noise`.

A tanh network with two hidden layers fits some digits of scikit-learn exactly. From there SGD with disturbed labels, at
several step sizes and the same slow time steps * step_size^2, beside the flow dY = -(c/4) P grad tr H dt with
c = strength^2 at batch size 1. Compared: how far along the flow's way SGD comes, and the sharpness tr H there.
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


@dataclass(frozen=True)
class Settings:
    """What is run."""

    seeds: int = 10
    """Starts, each with its own images and weights."""
    runs: int = 8
    """Runs of SGD from each start, at each step size."""
    images: int = 64
    """Digits to fit."""
    hidden: tuple[int, int] = (32, 16)
    """Neurons of the two hidden layers."""
    strength: float = 1.0
    """Size of the label noise; labels are +-1 (digits from 5 on, or below)."""
    returns: int = 8
    """Gauss-Newton steps back to the manifold, from where SGD is at every look."""
    time: float = 20.0
    """Slow time, steps * step_size^2."""
    looks: int = 10
    """Looks on the way."""
    step_sizes: tuple[float, ...] = (0.16, 0.08, 0.04, 0.02, 0.01, 0.005)
    """Each a half of the one before, so that the excess can be extrapolated."""


def predict(params: PyTree, x: Array) -> Array:
    """outer . tanh(middle tanh(inner x + bias) + shift)."""
    h = jnp.tanh(params["inner"] @ x + params["bias"])
    return params["outer"] @ jnp.tanh(params["middle"] @ h + params["shift"])


def digits() -> tuple[np.ndarray, np.ndarray]:
    """All images, centred and of mean square length 1, and their labels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = found.data / 16.0 - found.data.mean(axis=0) / 16.0
    return images / np.sqrt(np.mean(np.sum(images**2, axis=1))), np.where(found.target >= 5, 1.0, -1.0)


def begin(settings: Settings, seed: int) -> tuple[ut.Regression, PyTree, np.ndarray]:
    """The images to fit, random weights N(0, 1/fan-in) (the first layer's N(0, 1)), and which images are left."""
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
    """tr H at zero loss, (1/n) |J|^2, of params stacked on a leading axis."""

    def one(p: PyTree) -> Array:
        rows = jax.vmap(lambda x: jax.grad(predict)(p, x))(inputs)
        return trees.dot(rows, rows) / len(inputs)

    return jax.vmap(one)(params)


@jax.jit
def _spectrum(inputs: Array, params: PyTree) -> tuple[Array, Array]:
    """The curvatures across the manifold, ascending, and the largest curvature of a single sample."""
    rows = jax.vmap(lambda x: trees.ravel(jax.grad(predict)(params, x)))(inputs)
    return jnp.linalg.eigvalsh(rows @ rows.T) / len(inputs), jnp.max(jnp.sum(rows**2, axis=1))


def single(tree: PyTree) -> PyTree:
    """The same in single precision: SGD's noise is far above its rounding."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)


def right(params: PyTree, rest: np.ndarray) -> Array:
    """The share of the images that were not fitted whose sign is right."""
    images, labels = digits()
    found = jax.vmap(lambda x: predict(params, x))(jnp.asarray(images[rest]))
    return jnp.mean(found * jnp.asarray(labels[rest]) > 0)


@partial(jax.jit, static_argnames=("returns",))
def _back(problem_data: tuple[Array, Array], points: PyTree, returns: int) -> tuple[PyTree, Array]:
    """Points of zero loss that Gauss-Newton steps x - J^+ r lead to, and the loss that is left there."""
    problem = ut.Regression(predict, *problem_data)

    def one(params: PyTree) -> tuple[PyTree, Array]:
        flat, unravel = jax.flatten_util.ravel_pytree(params)
        flat = jax.lax.fori_loop(0, returns, lambda _, x: label_return(problem, x, unravel), flat)
        return unravel(flat), problem.loss(unravel(flat))

    return jax.lax.map(one, points)


def one_start(settings: Settings, seed: int) -> dict[str, Any]:
    """The limiting flow from one start and SGD beside it at every step size."""
    problem, params, rest = begin(settings, seed)
    start = ut.settle(problem, params, tolerance=1e-8)
    noise = ut.LabelNoise(problem, settings.strength)
    flow = ut.Limit(noise).solve(start, slow_time=settings.time, num_saves=settings.looks, observe=OBSERVED)
    way = np.asarray(flow.observed["point"])
    _, unravel = jax.flatten_util.ravel_pytree(start)
    traces = lambda points: np.asarray(_traces(problem.inputs, jax.vmap(unravel)(jnp.asarray(points, float))))
    spectra = [_spectrum(problem.inputs, p) for p in (start, flow.params)]
    found: dict[str, Any] = {
        "trace": traces(way),
        "curvatures": [[float(values[0]), float(values[-1])] for values, _ in spectra],
        "largest_single": float(spectra[0][1]),
        "right": [float(right(p, rest)) for p in (start, flow.params)],
        "length": float(np.linalg.norm(way[-1] - way[0])),
        "sgd": [],
    }
    small = ut.Regression(predict, *single((problem.inputs, problem.targets)))
    forward = (way[-1] - way[0]) / found["length"] ** 2
    for index, eta in enumerate(settings.step_sizes):
        steps = round(settings.time / eta**2)
        run = ut.descend(
            ut.LabelNoise(small, settings.strength), single(start), step_size=eta, steps=steps, seeds=settings.runs,
            key=jax.random.fold_in(jax.random.key(100 + seed), index), every=steps // settings.looks, progress=False,
            observe=OBSERVED,
        )  # fmt: skip
        alive = ~np.asarray(run.diverged)
        seen: dict[str, Any] = {"steps": steps, "diverged": int((~alive).sum())}
        if alive.any():
            where = np.asarray(run.observed["point"], float)[alive]  # runs, looks, parameters
            stacked = jax.vmap(unravel)(jnp.asarray(where.reshape(-1, where.shape[-1])))
            seen["trace"] = traces(where.reshape(-1, where.shape[-1])).reshape(where.shape[:2]).mean(axis=0)
            ends, left = _back(problem.data, stacked, settings.returns)
            points = np.asarray(jax.vmap(trees.ravel)(ends)).reshape(where.shape)
            good = (np.asarray(left) < 1e-12).reshape(where.shape[:2]).all(axis=1)
            seen["returned"] = int(good.sum())
            if good.any():
                points, last = points[good], points[good][:, -1]
                flat = points.reshape(-1, points.shape[-1])
                seen["returned_trace"] = traces(flat).reshape(points.shape[:2]).mean(axis=0)
                seen["progress"] = ((points - way[0]) @ forward).mean(axis=0)
                seen["off"] = float(np.linalg.norm(last.mean(axis=0) - way[-1]) / found["length"])
                seen["right"] = float(np.mean([right(unravel(jnp.asarray(end)), rest) for end in last]))
        found["sgd"].append(seen)
    return found


def without_noise(settings: Settings) -> float:
    """How far SGD without label noise goes from a point of zero loss, over the way of the flow: nothing should move."""
    problem, params, _ = begin(settings, 0)
    start = ut.settle(problem, params, tolerance=1e-8)
    run = ut.descend(
        ut.Minibatch(problem, batch_size=1), start, step_size=settings.step_sizes[-1], steps=10_000,
        key=jax.random.key(0), progress=False,
    )  # fmt: skip
    return float(jnp.linalg.norm(trees.ravel(run.params) - trees.ravel(start)))


def measure(settings: Settings) -> dict[str, Any]:
    """All starts."""
    began = time.perf_counter()
    found: dict[str, Any] = {"settings": asdict(settings), "starts": []}
    with jax.enable_x64(True):
        for seed in range(settings.seeds):
            found["starts"].append(one_start(settings, seed))
            print(f"{time.perf_counter() - began:7.1f} s  start {seed}", flush=True)
        found["moved_without_noise"] = without_noise(settings)
    return found | {
        "device": f"{platform.machine()} CPU", "jax": jax.__version__, "seconds": time.perf_counter() - began,
    }  # fmt: skip


def _column(found: dict[str, Any], index: int, name: str) -> list[Any]:
    """A number (or a path) of every start at one step size, where it is known."""
    return [start["sgd"][index][name] for start in found["starts"] if start["sgd"][index].get(name) is not None]


def _ratios(found: dict[str, Any], index: int) -> list[float]:
    """tr H at the end of SGD, taken to the manifold, over that at the end of the flow, start by start."""
    pairs = [(s["sgd"][index].get("returned_trace"), s["trace"]) for s in found["starts"]]
    return [mine[-1] / flow[-1] for mine, flow in pairs if mine is not None]


def _progress(found: dict[str, Any], index: int) -> list[float]:
    return [path[-1] for path in _column(found, index, "progress")]


def _path_gap(found: dict[str, Any], index: int) -> list[float]:
    """The largest relative difference of tr H between SGD and the flow over all looks, start by start."""
    pairs = [(s["sgd"][index].get("returned_trace"), s["trace"]) for s in found["starts"]]
    return [float(np.max(np.abs(np.array(mine) / np.array(flow) - 1))) for mine, flow in pairs if mine is not None]


def _cell(values: list[float], digits: int = 3) -> str:
    if len(values) < 2:
        return "none"
    mean, half = results.interval(values)
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def extrapolated(values: list[list[float]]) -> tuple[float, float]:
    """Twice the value at the least step size less that at its double, start by start: an excess of first order is "
    "gone."""
    return results.interval(list(2 * np.array(values[-1]) - np.array(values[-2])))


def figures(found: dict[str, Any]) -> "dict[str, Figure]":
    """The sharpness on the way, beside the flow; and how far SGD is from the flow by step size."""
    settings, starts = found["settings"], found["starts"]
    etas = np.array(settings["step_sizes"])
    figure, (path, ends) = style.new_figure(2)
    clock = np.linspace(0, settings["time"], settings["looks"] + 1)
    style.theory(path, clock, np.mean([start["trace"] for start in starts], axis=0), "limiting flow")
    kept = [k for k in range(len(etas)) if len(_ratios(found, k)) == len(starts)]
    for k, colour, marker in zip(kept[-4:], ("purple", "red", "green", "blue"), "v^so", strict=False):
        columns = np.transpose(_column(found, k, "returned_trace"))
        mean, half = np.transpose([results.interval(column) for column in columns])
        style.points(path, clock[1:], mean[1:], [half[1:], half[1:]], f"SGD, step {etas[k]:g}", colour, marker)
    path.set(xlabel="slow time, steps x step size²", ylabel="tr H", yscale="log")
    path.legend()
    for name, values, colour, marker in (
        ("tr H over the flow's", [_ratios(found, k) for k in kept], "blue", "o"),
        ("progress", [_progress(found, k) for k in kept], "red", "s"),
    ):
        mean, half = np.transpose([results.interval(column) for column in values])
        style.points(ends, etas[kept], mean, [half, half], name, colour, marker)
    ends.axhline(1.0, color=style.COLOURS["grey"], label="limiting flow")
    ends.set(xlabel="step size", ylabel="at the end", xscale="log")
    ends.legend()
    return {NAME: figure}


def _rows(found: dict[str, Any]) -> list[list[str]]:
    s, starts = found["settings"], found["starts"]
    rows = []
    for k, eta in enumerate(s["step_sizes"]):
        lost = sum(start["sgd"][k]["diverged"] for start in starts)
        back = sum(start["sgd"][k].get("returned", 0) for start in starts)
        rows.append([
            f"{eta:g}", f"{starts[0]['sgd'][k]['steps']:,}",
            f"{np.mean([start['largest_single'] for start in starts]) * eta:.2g}", f"{lost}", f"{back}",
            _cell([t[-1] for t in _column(found, k, "trace")]),
            *(_cell(values) for values in (
                _ratios(found, k), _path_gap(found, k), _progress(found, k), _column(found, k, "off"),
            )),
        ])  # fmt: skip
    return rows


def page(found: dict[str, Any]) -> str:
    """The page, every number from the results."""
    s, starts = found["settings"], found["starts"]
    wide, narrow = s["hidden"]
    before, after = [start["trace"][0] for start in starts], [start["trace"][-1] for start in starts]
    head = [
        "step size", "steps", "times the largest sample curvature", "diverged", "taken back", "tr H where SGD is",
        "tr H taken back, over the flow's", "largest gap on the way", "progress", "distance",
    ]  # fmt: skip
    ratio = extrapolated([_ratios(found, k) for k in (-2, -1)])
    progress = extrapolated([_progress(found, k) for k in (-2, -1)])
    holds = lambda pair: "agrees with" if abs(pair[0] - 1) <= pair[1] else "differs from"
    least, last = s["step_sizes"][-1], len(s["step_sizes"]) - 1
    total = len(starts) * s["runs"]
    small = [float(np.median([start["curvatures"][k][0] for start in starts])) for k in (0, 1)]
    findings = [
        f"The flow says that tr H falls from {_cell(before, 2)} to {_cell(after, 2)}, and SGD goes the same way: at "
        f"step size {least:g} its tr H is {_cell(_ratios(found, last))} of the flow's at the end; the largest "
        f"relative gap on the way is {_cell(_path_gap(found, last))}, the mean over the starts.",
        f"Extrapolated to step size 0 from the last two step sizes, tr H is {ratio[0]:.3f} ± {ratio[1]:.3f} of the "
        f"flow's, which {holds(ratio)} 1, and progress {progress[0]:.3f} ± {progress[1]:.3f}, which {holds(progress)} "
        "1.",
        _large(found),
        "One reason why steps must be small: along a direction across the manifold with curvature h SGD relaxes within "
        f"a slow time of step size/h. The smallest h goes along the flow from {small[0]:.2g} to {small[1]:.2g} "
        f"(medians over the starts). At step size {least:g} that makes a time of {least / small[1]:.2g}, and the whole "
        f"run has {s['time']:g}.",
        f"The flow predicts the sharpness better than the place: at step size {least:g} the mean of the {s['runs']} "
        f"runs ends {_cell(_column(found, last, 'off'))} of the way's length from the end of the flow.",
        f"Without label noise nothing moves: SGD from the same point goes {found['moved_without_noise']:.1g} in 10,000 "
        "steps.",
        "What it is worth: of the digits that were not fitted "
        f"{_cell([start['right'][0] for start in starts])} have the right sign at the start, "
        f"{_cell([start['right'][1] for start in starts])} at the end of the flow and "
        f"{_cell(_column(found, last, 'right'))} at the end of SGD at step size {least:g}.",
    ]
    parts = [
        "# Label noise on a network that fits digits: SGD and the limiting flow",
        "Written by `python -m studies.label_noise` from `studies/results/label-noise.json`; do not edit by hand. "
        f"{found['seconds']:.0f} s on one core ({found['device']}, JAX {found['jax']}).",
        f"A tanh network 64-{wide}-{narrow}-1 fits {s['images']} of scikit-learn's digits exactly (label +1 from 5 on, "
        "-1 below; squared loss). From that point of zero loss SGD takes one image at a time and adds "
        f"+-{s['strength']:g} to its label, until the slow time steps x step size² is {s['time']:g}. Beside it the "
        "limiting flow dY = -(c/4) P grad tr H dt, c the square of the noise's size, solved by `undertow.Limit` from "
        f"the same point. {len(starts)} starts, each with its own images and weights, {s['runs']} runs from each at "
        "each step size; means over the starts with 95 % intervals.",
        "## What came out",
        "\n".join(f"- {finding}" for finding in findings),
        "## At every step size",
        results.table(head, _rows(found)),
        f"*Diverged* and *taken back* count runs, of {total}. SGD is never quite on the manifold. It is taken there by "
        f"{s['returns']} Gauss-Newton steps x - J^+ r, which end within second order in the distance of where gradient "
        "flow would; gradient flow itself is too slow to follow from some of these ends. *Largest gap on the way*: of "
        "tr H, relative, over all looks. *Progress*: along the straight line from the flow's start to its end, 1 for "
        "the flow. *Distance*: of the mean over runs from the flow's end, over the length of that line.",
        f"![Sharpness on the way and at the end, SGD beside the limiting flow]({NAME}.svg)",
        "## What this does not say",
        "One small smooth network, one output, a fit to the last digit, batches of one: the setting of the theory. "
        "Real training rarely reaches zero loss and stays there. The largest step sizes are included to show where the "
        "prediction ends, not because anyone would train there.",
    ]
    return "\n\n".join(parts) + "\n"


def _large(found: dict[str, Any]) -> str:
    """What large steps do."""
    etas, starts = found["settings"]["step_sizes"], found["starts"]
    runs = found["settings"]["runs"]
    lost = [eta for k, eta in enumerate(etas) if all(s["sgd"][k]["diverged"] == runs for s in starts)]
    kept = [k for k in range(len(etas)) if len(_ratios(found, k)) > 1]
    ratios = ", ".join(f"{_cell(_ratios(found, k), 2)} at {etas[k]:g}" for k in kept)
    gone = f"At step size {', '.join(f'{e:g}' for e in lost)} every run diverges. " if lost else ""
    return f"{gone}At large steps SGD stays sharper than the flow says; tr H over the flow's: {ratios}."


def main() -> None:
    """Measures, and writes results, figure and page; `--page` only the last two."""
    parser = argparse.ArgumentParser(prog="python -m studies.label_noise", description=__doc__)
    parser.add_argument("--page", action="store_true", help="only draw and write the page, from results that exist")
    if not parser.parse_args().page:
        results.save(NAME, measure(Settings()))
    results.publish(NAME, page, figures)


if __name__ == "__main__":
    main()
