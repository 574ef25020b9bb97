"""Coloured digits: do batches of one environment make a network ignore the colour? `python -m studies.colours`.

The label is whether a digit of scikit-learn is 5 or more, and a quarter of the labels are flipped. A colour, one more
feature, agrees with the flipped label with a probability that differs between the environments. The study compares
batches of one environment with pooled batches, IRM, V-REx and GroupDRO. It has three parts that can run on different
machines: data and batches (`--prepare`; needs scikit-learn and PyTorch), training (`--train`; needs JAX, best on a
GPU), and results, figures and page (`--runs`).
"""

import argparse
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from studies import results
from undertow._device import device
from undertow.grouped.penalties import irm_penalty, smooth_max, vrex_penalty

NAME = "colours"

DESIGNS = {"steady": (0.9, 0.8), "turning": (0.9, 0.2)}
"""Probability that the colour agrees with the label, in the two training environments."""
REVERSED = 0.1
FLIPS = 0.25
MODELS = {"network, default start": 1.0, "network, start/10": 0.1, "network, start/100": 0.01, "diagonal": 1e-3}
"""Scale of the start of each model: a factor on the weights, or u = v = scale in w = u^2 - v^2."""


@dataclass(frozen=True)
class Settings:
    """Settings of the study."""

    seeds: int = 10
    """Data sets, each with its own split, flips, colours, start and batches."""
    steps: int = 2000
    """Updates of a run."""
    every: int = 100
    """Steps between two evaluations. The number of steps is chosen among them; the first evaluation is the start."""
    batch: int = 100
    """Samples per step, for the methods that take batches."""
    hidden: int = 64
    """Neurons of the network."""
    train: int = 500
    """Training images of each environment."""
    validation: int = 150
    """Validation images of each environment."""
    annealed: int = 200
    """Steps before the penalty of IRM and V-REx acts, as in the papers on them."""


SMALLEST = (0.0003, 0.001)
"""Step sizes for the methods without a penalty only; the others coincide with them as their penalty vanishes."""
STEP_SIZES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
PENALTIES = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6)
SHARPNESS = (0.1, 1.0, 10.0, 100.0, 1e3)
GRIDS = {
    "without colour": (SMALLEST + STEP_SIZES, (0.0,)),
    "pooled": (SMALLEST + STEP_SIZES, (0.0,)),
    "one environment": (SMALLEST + STEP_SIZES, (0.0,)),
    "pooled, all data": (SMALLEST + STEP_SIZES, (0.0,)),
    "IRM": (STEP_SIZES, PENALTIES),
    "V-REx": (STEP_SIZES, PENALTIES),
    "GroupDRO": (STEP_SIZES, SHARPNESS),
}
"""The methods, with their step sizes and the strengths of their penalty; 0 where there is none."""
BATCHED = ("without colour", "pooled", "one environment")

# data and batches


def prepare(settings: Settings) -> dict[str, np.ndarray]:
    """Return the data sets of every seed and design, and their batches from undertow's samplers."""
    from sklearn.datasets import load_digits

    from undertow.torch import EnvironmentBatchSampler

    digits = load_digits()
    images, large = digits.data / 16.0, np.where(digits.target >= 5, 1, -1)
    columns: dict[str, list] = {}
    for seed in range(settings.seeds):
        generator = np.random.default_rng([7, seed])
        order = generator.permutation(len(large))
        x, clean = images[order], large[order]
        y = np.where(generator.random(len(clean)) < FLIPS, -clean, clean)
        n, held = 2 * settings.train, 2 * settings.validation
        x = x - x[:n].mean(axis=0)
        # the first half of a part is environment 0, the second environment 1
        environment = np.concatenate([np.repeat([0, 1], settings.train), np.repeat([0, 1], settings.validation)])
        uniform = generator.random(n + held)
        parts = {
            "x": x[:n], "y": y[:n], "x_validation": x[n : n + held], "y_validation": y[n : n + held],
            "x_test": x[n + held :], "clean_test": clean[n + held :],
        }  # fmt: skip
        for design, agreement in DESIGNS.items():
            agrees = uniform < np.array(agreement)[environment]
            colour = np.where(agrees, y[: n + held], -y[: n + held])
            parts[f"colour_{design}"], parts[f"colour_validation_{design}"] = colour[:n], colour[n:]
        one = EnvironmentBatchSampler(environment[:n], settings.batch, drop_last=True, seed=seed)
        for name, sampler in (("one environment", one), ("pooled", one.pooled())):
            epochs = -(-settings.steps // len(sampler))
            batches = [batch for epoch in range(epochs) for batch in sampler.batches(epoch)]
            parts[f"batches_{name}"] = np.array(batches[: settings.steps])
        for key, value in parts.items():
            columns.setdefault(key, []).append(value)
    small = lambda a: a.astype(np.float32 if a.dtype.kind == "f" else np.int16)
    return {key: small(np.stack(values)) for key, values in columns.items()}


# training


def start(model: str, key: jax.Array, inputs: int, hidden: int) -> dict[str, jax.Array]:
    """Return random weights of variance 2/fan-in (network) or ones (diagonal), before the scale of the start."""
    if model == "diagonal":
        return {"u": jnp.ones(inputs), "v": jnp.ones(inputs)}
    k = jax.random.split(key)
    return {
        "inner": jax.random.normal(k[0], (inputs, hidden)) * (2 / inputs) ** 0.5, "bias": jnp.zeros(hidden),
        "outer": jax.random.normal(k[1], (hidden,)) * (2 / hidden) ** 0.5, "constant": jnp.zeros(()),
    }  # fmt: skip


def logits(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Return the output of the network, or x . (u^2 - v^2), for every row of x."""
    if "u" in params:
        return x @ (params["u"] ** 2 - params["v"] ** 2)
    return jax.nn.relu(x @ params["inner"] + params["bias"][None]) @ params["outer"] + params["constant"]


def objective(
    method: str, params: dict[str, jax.Array], x: jax.Array, y: jax.Array, strength: jax.Array, on: jax.Array
) -> jax.Array:
    """Return the objective: the mean loss, or that of the two halves (environments) with a penalty."""
    f = logits(params, x)
    losses = jax.nn.softplus(-y * f)
    if method in (*BATCHED, "pooled, all data"):
        return losses.mean()
    risks, weights = losses.reshape(2, -1).mean(axis=1), jnp.full(2, 0.5)
    if method == "GroupDRO":
        return smooth_max(risks, weights, strength)
    if method == "IRM":
        slopes = (-y * f * jax.nn.sigmoid(-y * f)).reshape(2, -1).mean(axis=1)
        penalty = irm_penalty(slopes, weights)
    else:
        penalty = vrex_penalty(risks, weights)
    now = strength * on
    return (risks.mean() + now * penalty) / jnp.maximum(
        now, 1.0
    )  # divided, so that a large penalty does not give a large step


def accuracies(params: dict[str, jax.Array], data: dict[str, jax.Array]) -> jax.Array:
    """Return validation accuracies by environment, and test accuracies for agreeing and other colours, in two halves.

    On the test images the average over flips and colours is exact: both colours are used. A diverged run has zeros.
    """
    paint = lambda x, c: jnp.concatenate([x, data["tint"] * c[:, None]], axis=1)
    f = logits(params, paint(data["x_validation"], data["colour_validation"]))
    right = (f * data["y_validation"] > 0).reshape(2, -1).mean(axis=1)
    clean = data["clean_test"]
    as_label, as_other = (logits(params, paint(data["x_test"], s * clean)) * clean > 0 for s in (1.0, -1.0))
    agrees = (1 - FLIPS) * as_label + FLIPS * ~as_other
    differs = (1 - FLIPS) * as_other + FLIPS * ~as_label
    half = len(clean) // 2
    test = [part.mean() for part in (agrees[:half], differs[:half], agrees[half:], differs[half:])]
    fine = jnp.isfinite(f).all()
    return jnp.where(fine, jnp.stack([*right, *test]), 0.0)


@partial(jax.jit, static_argnames=("method", "model", "settings", "side_by_side"))
def train(
    method: str,
    model: str,
    settings: Settings,
    side_by_side: bool,
    data: dict[str, jax.Array],
    batches: jax.Array,
    key: jax.Array,
    scale: jax.Array,
    step_size: jax.Array,
    strength: jax.Array,
) -> jax.Array:
    """Return the accuracies of all runs of one method: (seeds, runs, evaluations, 6).

    `scale`, `step_size` and `strength` have one entry per run. `side_by_side` runs all at once, which is fast on an
    accelerator; otherwise they run one after the other, which uses the cache of a CPU.
    """
    inputs = data["x"].shape[-1] + 1
    each = lambda f, *of: jax.vmap(f)(*of) if side_by_side else jax.lax.map(lambda one: f(*one), of)

    evaluations = settings.steps // settings.every
    on = (jnp.arange(settings.steps) >= settings.annealed).astype(jnp.float32).reshape(evaluations, -1)

    def one_seed(data: dict[str, jax.Array], batches: jax.Array, key: jax.Array) -> jax.Array:
        begin = start(model, key, inputs, settings.hidden)
        painted = jnp.concatenate([data["x"], data["tint"] * data["colour"][:, None]], axis=1)
        drawn = (batches.reshape(evaluations, settings.every, -1) if method in BATCHED else None, on)

        def one_run(scale: jax.Array, eta: jax.Array, strength: jax.Array) -> jax.Array:
            def step(params: Any, drawn: tuple) -> tuple[Any, None]:
                batch, on = drawn
                x, y = (painted, data["y"]) if batch is None else (painted[batch], data["y"][batch])
                slope = jax.grad(partial(objective, method))(params, x, y, strength, on)
                return jax.tree.map(lambda p, g: p - eta * g, params, slope), None

            def evaluate(params: Any, drawn: Any) -> tuple[Any, jax.Array]:
                params, _ = jax.lax.scan(step, params, drawn)
                return params, accuracies(params, data)

            params = jax.tree.map(lambda p: scale * p, begin)
            later = jax.lax.scan(evaluate, params, drawn)[1]
            return jnp.concatenate([accuracies(params, data)[None], later])

        return each(one_run, scale, step_size, strength)

    return each(one_seed, data, batches, key)


def run_all(
    settings: Settings, prepared: dict[str, np.ndarray], grids: dict[str, tuple[tuple, tuple]] = GRIDS
) -> dict[str, np.ndarray]:
    """Return accuracies by "design/model/method": (seeds, step sizes, strengths, evaluations, 6), and the run time."""
    start_time = time.perf_counter()
    arrays = {k: jnp.asarray(v, jnp.float32) for k, v in prepared.items() if not k.startswith("batches")}
    keys = jax.vmap(jax.random.key)(jnp.arange(settings.seeds))
    plain = {k: v for k, v in arrays.items() if not k.startswith("colour")}
    networks = [name for name in MODELS if name != "diagonal"]
    side_by_side = device().platform != "cpu"
    accuracies_by_run: dict[str, np.ndarray] = {}
    for method, (step_sizes, strengths) in grids.items():
        kind = "one environment" if method == "one environment" else "pooled"
        batches = jnp.asarray(prepared[f"batches_{kind}"], jnp.int32)
        tint = jnp.full(settings.seeds, float(method != "without colour"))
        for model, names in (("network", networks), ("diagonal", ["diagonal"])):
            grid = [(MODELS[name], eta, s) for name in names for eta in step_sizes for s in strengths]
            columns = [jnp.asarray(column, jnp.float32) for column in zip(*grid, strict=True)]
            for design in DESIGNS:
                data = plain | {
                    "tint": tint, "colour": arrays[f"colour_{design}"],
                    "colour_validation": arrays[f"colour_validation_{design}"],
                }  # fmt: skip
                accuracy = np.asarray(train(method, model, settings, side_by_side, data, batches, keys, *columns))
                accuracy = accuracy.reshape(
                    settings.seeds, len(names), len(step_sizes), len(strengths), *accuracy.shape[2:]
                )
                for k, name in enumerate(names):
                    accuracies_by_run[f"{design}/{name}/{method}"] = accuracy[:, k].astype(np.float16)
                print(f"{time.perf_counter() - start_time:7.1f} s  {method}, {model}, {design}", flush=True)
    accuracies_by_run["seconds"] = np.array(time.perf_counter() - start_time)
    accuracies_by_run["device"] = np.array(device().device_kind)
    return accuracies_by_run


# results

RULES = {
    "validation": "the best mean validation accuracy of the two training environments, for each seed separately",
    "worst": "the best validation accuracy in the worse of the two training environments, for each seed separately",
    "neutral": "the best mean accuracy over seeds where the colour carries no information (agreement 0.5), on one "
    "half of the test images; the accuracies shown are those on the other half. Users cannot apply this rule",
    "oracle": "the same as *neutral*, with the accuracy in the reversed environment itself",
}
ORACLES = {"neutral": 0.5, "oracle": REVERSED}


def in_environment(accuracy: np.ndarray, agreement: float, half: int) -> np.ndarray:
    """Return the test accuracy for a given agreement of colour and label, on one half of the test images."""
    return agreement * accuracy[..., 2 + 2 * half] + (1 - agreement) * accuracy[..., 3 + 2 * half]


def scores(accuracy: np.ndarray, rule: str) -> np.ndarray:
    """Return the score that a rule maximises, for every seed and setting."""
    if rule in ORACLES:
        return in_environment(accuracy, ORACLES[rule], 0)
    return accuracy[..., :2].mean(axis=-1) if rule == "validation" else accuracy[..., :2].min(axis=-1)


def choose(score: np.ndarray, rule: str) -> np.ndarray:
    """Return the chosen (step size, strength, evaluation) of every seed, by `RULES`: (seeds, 3)."""
    if rule in ORACLES:  # one choice for all seeds
        score = np.broadcast_to(score.mean(axis=0)[None], score.shape)
    best = score.reshape(len(score), -1).argmax(axis=1)
    return np.stack(np.unravel_index(best, score.shape[1:]), axis=1)


def at_the_ends(score: np.ndarray) -> dict[str, tuple[float, float]]:
    """Return the ends of the grid at which the best setting lies, and its gain over the best setting inside.

    The gain is the mean over seeds with half its 95 % interval. The start, at 0 steps, does not count as an end.
    """
    mean, gains = score.mean(axis=0), {}
    best = np.unravel_index(mean.argmax(), mean.shape)
    for axis, (name, at, size) in enumerate(zip(("step size", "strength", "steps"), best, mean.shape, strict=True)):
        if size < 3 or at not in (0, size - 1) or (name == "steps" and at == 0):
            continue
        inner = np.arange(0 if name == "steps" else 1, size - 1)
        inside = np.take(score, inner, axis=axis + 1)
        second = np.unravel_index(inside.mean(axis=0).argmax(), inside.shape[1:])
        gain = results.interval(list(score[(slice(None), *best)] - inside[(slice(None), *second)]))
        gains[f"{'least' if at == 0 else 'largest'} {name}"] = gain
    return gains


def evaluate_rule(
    accuracy: np.ndarray, rule: str, agreement: tuple[float, float], strengths: tuple, etas: tuple
) -> dict[str, Any]:
    """Return accuracies at the choices of a rule, the best setting on average, and its ends of the grid."""
    score = scores(accuracy, rule)
    at = choose(score, rule)
    taken = accuracy[np.arange(len(accuracy)), at[:, 0], at[:, 1], at[:, 2]]
    mean = score.mean(axis=0)
    middle = np.unravel_index(mean.argmax(), mean.shape)
    return {
        "reversed": in_environment(taken, REVERSED, 1), "training": in_environment(taken, float(np.mean(agreement)), 1),
        "neutral": in_environment(taken, 0.5, 1), "step_size": etas[middle[0]], "strength": strengths[middle[1]],
        "evaluation": int(middle[2]), "ends": at_the_ends(score),
    }  # fmt: skip


def summarise(
    settings: Settings, runs: dict[str, np.ndarray], grids: dict[str, tuple[tuple, tuple]] = GRIDS
) -> dict[str, Any]:
    """Return the numbers for the page."""
    summary: dict[str, Any] = {"settings": asdict(settings), "grids": grids, "chosen": {}, "curves": {}, "count": 0}
    summary |= {"device": str(runs["device"]), "seconds": float(runs["seconds"]), "diverged": 0}
    for design, agreement in DESIGNS.items():
        for model in MODELS:
            for method, (etas, strengths) in grids.items():
                accuracy = runs[f"{design}/{model}/{method}"].astype(float)
                summary["count"] += int(np.prod(accuracy.shape[:3]))
                summary["diverged"] += int((accuracy[..., -1, :2] == 0).all(axis=-1).sum())
                place = summary["chosen"].setdefault(design, {}).setdefault(model, {})
                place[method] = {rule: evaluate_rule(accuracy, rule, agreement, strengths, etas) for rule in RULES}
                if (
                    len(strengths) == 1
                ):  # at every step size, the evaluation with the best validation accuracy of that seed
                    evaluations = accuracy[..., 0, :, :2].mean(axis=-1).argmax(axis=-1)
                    taken = np.take_along_axis(accuracy[:, :, 0], evaluations[:, :, None, None], axis=2)[:, :, 0]
                    curve = np.where(taken.any(axis=-1), in_environment(taken, REVERSED, 1), np.nan)
                    summary["curves"].setdefault(design, {}).setdefault(model, {})[method] = curve
    return summary


def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)


def main() -> None:
    """Run the requested parts, by default all."""
    parser = argparse.ArgumentParser(prog="python -m studies.colours", description=__doc__)
    parser.add_argument("--prepare", type=Path, help="only write data and batches to this file (.npz)")
    parser.add_argument("--train", type=Path, help="only train, on the data of this file; needs --runs")
    parser.add_argument("--runs", type=Path, help="file of the runs (.npz), written with --train and read without it")
    options = parser.parse_args()
    settings = Settings()
    if options.prepare:
        np.savez_compressed(options.prepare, **prepare(settings))  # ty: ignore
    elif options.train:
        np.savez_compressed(options.runs, **run_all(settings, _load(options.train)))  # ty: ignore
    else:
        from studies.colours_page import figures, page

        runs = _load(options.runs) if options.runs else run_all(settings, prepare(settings))
        results.save(NAME, summarise(settings, runs))
        results.publish(NAME, page, figures)


if __name__ == "__main__":
    main()
