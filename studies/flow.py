"""Do charges follow the predicted Noether flow while a network trains? ReLU network on digits, transformer on text.

    python -m studies.flow

A step of SGD with step size eta and minibatch gradient G changes the charge C = theta'A theta/2 of a symmetry by
eta^2/2 G'A G, because the term of first order vanishes. So the expected change at theta is
eta^2/2 E[G'A G | theta] = eta^2/2 (Tr A Sigma + g'A g), with Sigma the noise and g the mean gradient. Both parts are
estimated without bias from new minibatches at every step, which the training does not use. The cumulative sum of
measured minus predicted changes is then a martingale, and the root of its sum of squares is its standard error.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from studies.results import made_by, publish, save
from studies.training import Recipe, Transformer, cross_entropy, digits, gradients, grammar, mlp, stacked, train

if TYPE_CHECKING:
    from undertow.torch import Census

__all__ = ["EXACT", "Charges", "Ledger", "Scale", "measure", "study"]

RECIPES: dict[str, dict[str, float]] = {
    "SGD": {"step_size": 0.1},
    "SGD, small steps": {"step_size": 0.03},
    "SGD, weight decay": {"step_size": 0.1, "weight_decay": 3e-3},
    "SGD, momentum": {"step_size": 0.01, "momentum": 0.9},
    "Adam": {"step_size": 1e-3, "adaptive": 1.0},
}
"""Settings as in `torch.optim`."""
EXACT = ("SGD", "SGD, small steps", "SGD, weight decay")
"""Recipes for which the expected change of a step is known."""
ROUNDING = 1e-10
"""Standard errors below this, relative to the charge, are rounding: neurons that no sample activates have no noise."""
KINDS = {"GL": "OV", "gain against readers": "norm gains"}
"""Shorter names of some symmetries."""


@dataclass(frozen=True)
class Scale:
    """Sizes of the study."""

    seeds: int = 10
    fresh: int = 3
    """Minibatches drawn at every step for the prediction."""
    windows: int = 30
    """Parts of the training that are recorded separately."""
    steps: int = 3000
    """Steps of the ReLU network."""
    text_steps: int = 2000
    """Steps of the transformer."""
    width: int = 128
    """Width of the first hidden layer; the second has half."""
    text_width: int = 32
    layers: int = 3
    tokens: int = 32
    batch: int = 32
    text_batch: int = 16
    sentences: int = 20_000


SMALL = Scale(
    seeds=2, fresh=2, windows=2, steps=6, text_steps=4, width=8, text_width=8, layers=1, tokens=6, batch=8,
    text_batch=4, sentences=200,
)  # fmt: skip


class Charges:
    """All scale charges of a census as one quadratic form, with sums over symmetries and over their kinds.

    A GL(d) is represented by its d scales, the diagonal of its matrix of charges.
    """

    def __init__(self, census: "Census", params: dict[str, Tensor]):
        first = next(iter(params.values()))
        self.keys = list(dict.fromkeys((a.parameter, a.axis) for r in census for a in r.axes))
        lengths = [params[name].shape[axis + 1] for name, axis in self.keys]
        places = dict(zip(self.keys, np.cumsum([0, *lengths[:-1]]), strict=True))
        self.kinds = list(dict.fromkeys(KINDS.get(r.kind, r.kind) for r in census))
        self.symmetries = [r.name for r in census]
        rows, single = [], np.zeros((sum(r.size for r in census), sum(lengths)))
        start = 0
        for symmetry in census:
            if symmetry.shifted:
                raise ValueError(f"{symmetry}: charges of shifted parameters are not supported.")
            for sign, side in ((0.5, symmetry.plus), (-0.5, symmetry.minus)):
                for axis in side:
                    columns = places[axis.parameter, axis.axis] + axis.index
                    np.add.at(single, (start + np.arange(symmetry.size)[:, None], columns), sign)
            rows.append((KINDS.get(symmetry.kind, symmetry.kind), single[start : start + symmetry.size].sum(0)))
            start += symmetry.size
        self.generators = start
        kinds = [sum(row for kind, row in rows if kind == name) for name in self.kinds]
        self.matrix = torch.as_tensor(np.stack([*single, *(row for _, row in rows), *kinds])).to(first)

    def form(self, one: dict[str, Tensor], two: dict[str, Tensor]) -> Tensor:
        """Return one'A two/2 for every charge: (runs, charges). It is the charge if both are the parameters."""
        product = {name: one[name] * two[name] for name in {name for name, _ in self.keys}}
        sums = []
        for name, axis in self.keys:
            others = [k for k in range(1, product[name].ndim) if k != axis + 1]
            sums.append(product[name].sum(others) if others else product[name])
        return torch.cat(sums, -1) @ self.matrix.T


class Ledger:
    """Measured and predicted changes of charges, summed over windows of the training: (windows, runs, charges)."""

    NAMES = ("measured", "change", "flow", "first", "squares")

    def __init__(self, charges: Charges, recipe: Recipe, runs: int, steps: int, windows: int):
        self.charges, self.recipe, self.steps, self.windows = charges, recipe, steps, windows
        shape = (windows, runs, len(charges.matrix))
        self.sums = {name: torch.zeros(shape).to(charges.matrix) for name in self.NAMES}
        self.fresh: dict[str, Tensor] = {}

    def predict(self, params: dict[str, Tensor], fresh: dict[str, Tensor]) -> None:
        """Predict the change from the gradients (runs, fresh, ...) of minibatches that the step does not use."""
        count = next(iter(fresh.values())).shape[1]
        flat = {name: g.flatten(0, 1) for name, g in fresh.items()}
        squared = self.charges.form(flat, flat).unflatten(0, (-1, count)).sum(1)
        total = {name: g.sum(1) for name, g in fresh.items()}
        mean = (self.charges.form(total, total) - squared) / (
            count * (count - 1)
        )  # unbiased: over pairs of different minibatches
        noise = squared / count - mean
        eta, beta, decay = (x[:, None] for x in (self.recipe.step_size, self.recipe.momentum, self.recipe.weight_decay))
        shrink = -eta * decay * (2 - eta * decay)
        charge = self.charges.form(params, params)
        flow = (eta / (1 - beta)) ** 2 * noise + shrink * charge
        # a mean gradient that changes slowly gives v = g/(1 - beta), and v'A v counts (1 + beta)/(1 - beta) times
        self.flow, self.change = flow, flow + eta**2 * (1 + beta) / (1 - beta) ** 3 * mean

    def record(self, t: Tensor, before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
        """Add the measured change of a step and its prediction."""
        step = {name: after[name] - before[name] for name in before}
        first = 2 * self.charges.form(before, step)
        measured = first + self.charges.form(step, step)
        row = {
            "measured": measured, "change": self.change, "flow": self.flow, "first": first,
            "squares": (measured - self.change).square(),
        }  # fmt: skip
        for name, value in row.items():
            self.sums[name].index_add_(0, t * self.windows // self.steps, value[None])


def _network(name: str, scale: Scale, device: torch.device) -> tuple[list[nn.Module], Callable, Callable, int]:
    """Return the networks of all seeds, functions that make a batch of indices and draw indices, and the steps."""
    nets: list[nn.Module] = []
    for seed in range(scale.seeds):
        torch.manual_seed(seed)
        if name == "ReLU network":
            nets.append(mlp(64, scale.width, scale.width // 2, 10))
        else:
            nets.append(Transformer(31, scale.text_width, 4, scale.layers, scale.tokens))
    if name == "ReLU network":
        x, y = (part.to(device) for part in digits())
        inputs = x.double()
        draw = lambda shape, generator: torch.randint(0, len(x), (*shape, scale.batch), generator=generator)
        return nets, lambda index: (inputs[index], y[index]), draw, scale.steps
    text = grammar(scale.sentences, 0)
    longest = len(text.ids) - scale.tokens - 1
    text = type(text)(text.words, text.ids.to(device))
    draw = lambda shape, generator: torch.randint(0, longest, (*shape, scale.text_batch), generator=generator)
    return nets, lambda index: text.batch(index, scale.tokens), draw, scale.text_steps


def measure(name: str, scale: Scale, device: torch.device) -> dict[str, Any]:
    """Train one network under all recipes and return its results."""
    from undertow.torch import census

    nets, batch_of, draw, steps = _network(name, scale, device)
    runs = [(recipe, seed) for recipe in RECIPES for seed in range(scale.seeds)]
    generator = torch.Generator().manual_seed(1)
    orders = torch.stack(
        [draw((steps, 1 + scale.fresh), torch.Generator().manual_seed(100 + seed)) for seed in range(scale.seeds)],
        dim=1,
    ).to(device)  # the same batches under every recipe
    net = nets[0].to(device).double()
    symmetries = census(net, batch_of(draw((), generator).to(device)), cross_entropy)
    one = stacked([n.to(device).double() for n in nets])
    params = {name: p.repeat(len(RECIPES), *(1,) * (p.ndim - 1)) for name, p in one.items()}
    recipe = Recipe.of([RECIPES[key] for key, _ in runs], dtype=torch.float64, device=device)
    charges = Charges(symmetries, params)
    ledger = Ledger(charges, recipe, len(runs), steps, scale.windows)
    every = 1 + scale.fresh
    loss_sum = torch.zeros(scale.windows, len(runs), dtype=torch.float64, device=device)

    def gradient(values: dict[str, Tensor], t: Tensor) -> dict[str, Tensor]:
        index = orders.index_select(0, t)[0].repeat(len(RECIPES), 1, 1).flatten(0, 1)
        wide = {k: p[:, None].expand(len(runs), every, *p.shape[1:]).flatten(0, 1) for k, p in values.items()}
        losses, flat = gradients(net, cross_entropy, wide, batch_of(index))
        split = {k: g.unflatten(0, (len(runs), every)) for k, g in flat.items()}
        ledger.predict(values, {k: g[:, 1:] for k, g in split.items()})
        loss_sum.index_add_(0, t * scale.windows // steps, losses.reshape(len(runs), every).mean(1)[None])
        return {k: g[:, 0] for k, g in split.items()}

    start = charges.form(params, params).cpu()
    train(params, recipe, gradient, steps, ledger.record)
    sums = {key: value.cpu().numpy() for key, value in ledger.sums.items()}
    return {
        "steps": steps,
        "parameters": sum(p.numel() for p in net.parameters()),
        "symmetries": charges.symmetries,
        "kinds": charges.kinds,
        "generators": charges.generators,
        "recipes": {
            key: _facts(charges, {k: v[:, [r == key for r, _ in runs]] for k, v in sums.items()},
                        start[[r == key for r, _ in runs]].numpy(),
                        (loss_sum.cpu().numpy() * scale.windows / steps)[:, [r == key for r, _ in runs]])
            for key in RECIPES
        },
    }  # fmt: skip


def _facts(charges: Charges, sums: dict[str, np.ndarray], start: np.ndarray, losses: np.ndarray) -> dict[str, Any]:
    """Return the results of one recipe from its sums (windows, seeds, charges)."""
    count, wide = charges.generators, len(charges.symmetries)
    single, symmetry, kind = slice(0, count), slice(count, count + wide), slice(count + wide, None)
    total = {name: value.sum(0) for name, value in sums.items()}
    residual = total["measured"] - total["change"]
    error = np.sqrt(total["squares"])
    seeds = len(start)
    noisy = (error > ROUNDING * (1 + np.abs(start)))[:, single]
    scores = (residual / np.where(error > 0, error, np.inf))[:, single][noisy]
    together = residual.sum(0) / np.where(error.any(0), np.sqrt(total["squares"].sum(0)), np.inf)
    flat = lambda name: total[name][:, single].reshape(-1)
    slope = float(flat("measured") @ flat("change") / (flat("change") @ flat("change")))
    size = np.abs(total["measured"][:, kind]).mean()
    tenth = max(1, len(losses) // 10)
    return {
        "loss": losses.mean(1),
        "start": start[:, kind].mean(0),
        "cumulative": {
            name: np.cumsum(sums[name][..., kind], 0).mean(1).T for name in ("measured", "change", "flow", "first")
        },
        "spread": (np.cumsum(sums["measured"][..., kind], 0).std(1, ddof=1) / seeds**0.5).T,
        "residual": residual[:, kind].mean(0),
        "residual_error": np.sqrt(total["squares"][:, kind].sum(0)) / seeds,
        "z_kinds": together[kind],
        "z_symmetries": together[symmetry],
        "z_generators_rms": float(np.sqrt((scores**2).mean())),
        "z_generators_largest": float(np.abs(scores).max()),
        "without_noise": int((~noisy).sum()),
        "slope_generators": slope,
        "correlation_generators": float(np.corrcoef(flat("measured"), flat("change"))[0, 1]),
        "correlation_flow": float(np.corrcoef(flat("measured"), flat("flow"))[0, 1]),
        "first_order": float(np.abs(total["first"][:, kind]).mean() / size) if size else 0.0,
        "seeds": {name: total[name][:, kind].T for name in ("measured", "change", "flow")},
        "halves": {
            name: [value[..., kind].sum(0).T for value in (sums[name][:tenth], sums[name][len(losses) // 2 :])]
            for name in ("measured", "change", "flow")
        },
        "scatter": {name: total[name][0, single] for name in ("measured", "change", "flow")},
    }  # fmt: skip


def study(scale: Scale, device: torch.device) -> dict[str, Any]:
    """Run both networks."""
    start = time.perf_counter()
    networks = {name: measure(name, scale, device) for name in ("ReLU network", "transformer")}
    made = made_by(device, time.perf_counter() - start)
    return {"made": made, "scale": asdict(scale), "recipes": RECIPES, "networks": networks}


def main() -> None:
    """Run the study, or only draw the figures and write the page."""
    from studies.flow_page import figures, page

    parser = argparse.ArgumentParser(prog="python -m studies.flow", description=__doc__)
    parser.add_argument(
        "--draw", action="store_true", help="only draw the figures and write the page, from the stored results"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if not options.draw:
        save("flow", study(Scale(), torch.device(options.device)))
    publish("flow", page, figures)


if __name__ == "__main__":
    main()
