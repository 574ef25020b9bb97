"""Do charges follow the predicted Noether flow while a network trains? ReLU network on digits, transformer on text.

    python -m studies.flow

A step of SGD with step size eta and minibatch gradient G changes the charge C = theta'A theta/2 of a symmetry by
eta^2/2 G'A G and nothing else: its term of first order vanishes. So the expected change at theta is
eta^2/2 E[G'A G | theta] = eta^2/2 (Tr A Sigma + g'A g), with Sigma the noise and g the mean gradient. Both parts are
estimated without bias from minibatches drawn afresh at every step, which the training never sees; the measured change
less the predicted one, added up, is then a martingale, and the root of its sum of squares is its standard error.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from studies.results import interval, made_by, number, publish, save, table
from studies.training import Recipe, Transformer, cross_entropy, digits, gradients, grammar, mlp, stacked, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Scale", "figures", "measure", "page"]

RECIPES: dict[str, dict[str, float]] = {
    "SGD": {"step_size": 0.1},
    "SGD, small steps": {"step_size": 0.03},
    "SGD, weight decay": {"step_size": 0.1, "weight_decay": 3e-3},
    "SGD, momentum": {"step_size": 0.01, "momentum": 0.9},
    "Adam": {"step_size": 1e-3, "adaptive": 1.0},
}
"""As PyTorch would be told."""
EXACT = ("SGD", "SGD, small steps", "SGD, weight decay")
"""Where the expected change of a step is known."""
ROUNDING = 1e-10
"""Standard errors below this, relative to the charge, are rounding: neurons that no sample reaches have no noise."""
KINDS = {"GL": "OV", "gain against readers": "norm gains"}
"""Shorter names of some symmetries."""


@dataclass(frozen=True)
class Scale:
    """Sizes of the study."""

    seeds: int = 10
    fresh: int = 3
    """Minibatches drawn at every step for the prediction."""
    windows: int = 30
    """Parts of the training that are told apart."""
    steps: int = 3000
    """Of the ReLU network."""
    text_steps: int = 2000
    """Of the transformer."""
    width: int = 128
    """Of the first hidden layer; the second has half."""
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

    A GL(d) counts by its d scales, the diagonal of its matrix of charges.
    """

    def __init__(self, found: Any, params: dict[str, Tensor]):
        first = next(iter(params.values()))
        self.keys = list(dict.fromkeys((a.parameter, a.axis) for r in found for a in r.axes))
        lengths = [params[name].shape[axis + 1] for name, axis in self.keys]
        places = dict(zip(self.keys, np.cumsum([0, *lengths[:-1]]), strict=True))
        self.kinds = list(dict.fromkeys(KINDS.get(r.kind, r.kind) for r in found))
        self.symmetries = [r.name for r in found]
        rows, single = [], np.zeros((sum(r.size for r in found), sum(lengths)))
        start = 0
        for symmetry in found:
            if symmetry.shifted:
                raise ValueError(f"{symmetry}: charges of shifted parameters are not followed here.")
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
        """one'A two/2 for every charge: (runs, charges); of the parameters with themselves it is the charge."""
        product = {name: one[name] * two[name] for name in {name for name, _ in self.keys}}
        sums = []
        for name, axis in self.keys:
            others = [k for k in range(1, product[name].ndim) if k != axis + 1]
            sums.append(product[name].sum(others) if others else product[name])
        return torch.cat(sums, -1) @ self.matrix.T


class Ledger:
    """What charges did and what was predicted, added up over windows of the training: (windows, runs, charges)."""

    NAMES = ("measured", "change", "flow", "first", "squares")

    def __init__(self, charges: Charges, recipe: Recipe, runs: int, steps: int, windows: int):
        self.charges, self.recipe, self.steps, self.windows = charges, recipe, steps, windows
        shape = (windows, runs, len(charges.matrix))
        self.sums = {name: torch.zeros(shape).to(charges.matrix) for name in self.NAMES}
        self.fresh: dict[str, Tensor] = {}

    def predict(self, params: dict[str, Tensor], fresh: dict[str, Tensor]) -> None:
        """From the gradients (runs, fresh, ...) of minibatches that the step does not use."""
        count = next(iter(fresh.values())).shape[1]
        flat = {name: g.flatten(0, 1) for name, g in fresh.items()}
        squared = self.charges.form(flat, flat).unflatten(0, (-1, count)).sum(1)
        total = {name: g.sum(1) for name, g in fresh.items()}
        mean = (self.charges.form(total, total) - squared) / (count * (count - 1))  # over pairs: without bias
        noise = squared / count - mean
        eta, beta, decay = (x[:, None] for x in (self.recipe.step_size, self.recipe.momentum, self.recipe.weight_decay))
        shrink = -eta * decay * (2 - eta * decay)
        charge = self.charges.form(params, params)
        flow = (eta / (1 - beta)) ** 2 * noise + shrink * charge
        # a mean gradient that changes slowly gives v = g/(1 - beta), and v'A v counts (1 + beta)/(1 - beta) times
        self.flow, self.change = flow, flow + eta**2 * (1 + beta) / (1 - beta) ** 3 * mean

    def record(self, t: Tensor, before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
        """A step."""
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
    """Networks of all seeds, a batch of the indices given, how to draw indices, and the steps."""
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
    """One network under all recipes."""
    from undertow.torch import census

    nets, batch_of, draw, steps = _network(name, scale, device)
    runs = [(recipe, seed) for recipe in RECIPES for seed in range(scale.seeds)]
    generator = torch.Generator().manual_seed(1)
    orders = torch.stack(
        [draw((steps, 1 + scale.fresh), torch.Generator().manual_seed(100 + seed)) for seed in range(scale.seeds)],
        dim=1,
    ).to(device)  # the same batches under every recipe
    net = nets[0].to(device).double()
    found = census(net, batch_of(draw((), generator).to(device)), cross_entropy)
    one = stacked([n.to(device).double() for n in nets])
    params = {name: p.repeat(len(RECIPES), *(1,) * (p.ndim - 1)) for name, p in one.items()}
    recipe = Recipe.of([RECIPES[key] for key, _ in runs], dtype=torch.float64, device=device)
    charges = Charges(found, params)
    ledger = Ledger(charges, recipe, len(runs), steps, scale.windows)
    every = 1 + scale.fresh
    loss_sum = torch.zeros(scale.windows, len(runs), dtype=torch.float64, device=device)

    def gradient(values: dict[str, Tensor], t: Tensor) -> dict[str, Tensor]:
        index = orders.index_select(0, t)[0].repeat(len(RECIPES), 1, 1).flatten(0, 1)
        wide = {k: p[:, None].expand(len(runs), every, *p.shape[1:]).flatten(0, 1) for k, p in values.items()}
        losses, all_of_them = gradients(net, cross_entropy, wide, batch_of(index))
        split = {k: g.unflatten(0, (len(runs), every)) for k, g in all_of_them.items()}
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
    """Of one recipe: sums (windows, seeds, charges)."""
    count, wide = charges.generators, len(charges.symmetries)
    single, symmetry, kind = slice(0, count), slice(count, count + wide), slice(count + wide, None)
    total = {name: value.sum(0) for name, value in sums.items()}
    left = total["measured"] - total["change"]
    error = np.sqrt(total["squares"])
    seeds = len(start)
    heard = (error > ROUNDING * (1 + np.abs(start)))[:, single]
    scores = (left / np.where(error > 0, error, np.inf))[:, single][heard]
    together = left.sum(0) / np.where(error.any(0), np.sqrt(total["squares"].sum(0)), np.inf)
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
        "residual": left[:, kind].mean(0),
        "residual_error": np.sqrt(total["squares"][:, kind].sum(0)) / seeds,
        "z_kinds": together[kind],
        "z_symmetries": together[symmetry],
        "z_generators_rms": float(np.sqrt((scores**2).mean())),
        "z_generators_largest": float(np.abs(scores).max()),
        "silent": int((~heard).sum()),
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
    """Both networks."""
    began = time.perf_counter()
    networks = {name: measure(name, scale, device) for name in ("ReLU network", "transformer")}
    made = made_by(device, time.perf_counter() - began)
    return {"made": made, "scale": asdict(scale), "recipes": RECIPES, "networks": networks}


# the page


def _sum(facts: dict[str, Any], name: str, kind: int, part: int | None = None) -> float:
    """The mean over seeds, of the whole training, of its first tenth (0) or of its second half (1)."""
    values = facts["seeds"][name][kind] if part is None else facts["halves"][name][part][kind]
    return float(np.mean(values))


def _share(facts: dict[str, Any], name: str, kind: int, part: int | None = None) -> str:
    """How much of the measured change a prediction explains."""
    return number(_sum(facts, name, kind, part) / _sum(facts, "measured", kind, part), 2)


def _rows(networks: dict[str, Any], recipe: str) -> list[tuple[str, str, dict[str, Any], int]]:
    """Every kind of symmetry of every network under a recipe."""
    return [
        (network, kind, facts["recipes"][recipe], place)
        for network, facts in networks.items()
        for place, kind in enumerate(facts["kinds"])
    ]


def _exact_table(networks: dict[str, Any]) -> str:
    rows = []
    for recipe in EXACT:
        for network, kind, facts, k in _rows(networks, recipe):
            left = f"{facts['residual'][k]:+.1e} ± {facts['residual_error'][k]:.1e}"
            rows.append([
                recipe, network, kind, number(_sum(facts, "measured", k)), number(_sum(facts, "change", k)), left,
                f"{facts['z_kinds'][k]:+.1f}", _share(facts, "flow", k), _share(facts, "flow", k, 1),
            ])  # fmt: skip
    head = [
        "recipe", "network", "symmetry", "measured", "predicted", "measured − predicted", "in s.e.", "flow alone",
        "flow alone, second half",
    ]  # fmt: skip
    return table(head, rows)


def _single_table(networks: dict[str, Any]) -> str:
    rows = []
    for recipe in EXACT:
        for network, facts in networks.items():
            mine = facts["recipes"][recipe]
            rows.append([
                recipe, network, number(mine["slope_generators"], 4), number(mine["correlation_generators"], 4),
                number(mine["z_generators_rms"], 3), number(mine["z_generators_largest"], 2), str(mine["silent"]),
                number(mine["correlation_flow"], 3),
            ])  # fmt: skip
    head = [
        "recipe", "network", "slope", "correlation", "rms of (measured − predicted)/s.e.", "largest", "without noise",
        "correlation with flow alone",
    ]  # fmt: skip
    return table(head, rows)


def _momentum_table(networks: dict[str, Any]) -> str:
    rows = []
    for network, kind, facts, k in _rows(networks, "SGD, momentum"):
        measured = interval(facts["seeds"]["measured"][k])
        rows.append([
            network, kind, f"{number(measured[0])} ± {number(measured[1], 1)}", _share(facts, "flow", k),
            _share(facts, "flow", k, 0), _share(facts, "flow", k, 1), _share(facts, "change", k),
        ])  # fmt: skip
    head = [
        "network", "symmetry", "measured", "flow, all", "flow, first tenth", "flow, second half",
        "flow and a slow mean gradient, all",
    ]  # fmt: skip
    return table(head, rows)


def _adam_table(networks: dict[str, Any]) -> str:
    rows = []
    for network, kind, facts, k in _rows(networks, "Adam"):
        measured = interval(facts["seeds"]["measured"][k])
        sgd = networks[network]["recipes"]["SGD"]
        first = facts["cumulative"]["first"][k][-1] / facts["cumulative"]["measured"][k][-1]
        rows.append([
            network, kind, number(facts["start"][k]), f"{number(measured[0])} ± {number(measured[1], 1)}",
            number(_sum(facts, "change", k), 1), number(first, 3), number(_sum(sgd, "measured", k)),
        ])  # fmt: skip
    head = [
        "network", "symmetry", "charge at the start", "measured", "SGD's formula", "share of first order",
        "measured under SGD",
    ]  # fmt: skip
    return table(head, rows)


def _range(values: list[float], digits: int = 2) -> str:
    low, high = number(min(values), digits), number(max(values), digits)
    return low if low == high else f"{low} to {high}"


def page(facts: dict[str, Any]) -> str:
    """The page of the study, made from its results."""
    networks, scale, made = facts["networks"], facts["scale"], facts["made"]
    exact = [networks[n]["recipes"][r] for n in networks for r in EXACT]
    worst = max(abs(z) for mine in exact for z in mine["z_kinds"] + mine["z_symmetries"])
    tests = sum(len(mine["z_kinds"]) + len(mine["z_symmetries"]) for mine in exact)
    alone = lambda network, recipe, part=None: [
        _sum(f, "flow", k, part) / _sum(f, "measured", k, part)
        for n, _, f, k in _rows(networks, recipe) if n == network
    ]  # fmt: skip
    slow = [_sum(f, "change", k) / _sum(f, "measured", k) for _, _, f, k in _rows(networks, "SGD, momentum")]
    late = [_sum(f, "flow", k, 1) / _sum(f, "measured", k, 1) for _, _, f, k in _rows(networks, "SGD, momentum")]
    signs = [_sum(f, "flow", k) * _sum(f, "measured", k) > 0 for _, _, f, k in _rows(networks, "SGD")]
    right = sum(signs)
    ratios = [
        _sum(f, "measured", k) / _sum(networks[n]["recipes"]["SGD"], "measured", k)
        for n, _, f, k in _rows(networks, "Adam")
    ]
    adam, against = [abs(x) for x in ratios], sum(x < 0 for x in ratios)
    relu, text = networks["ReLU network"], networks["transformer"]
    recipes = "; ".join(
        name + ": " + ", ".join(f"{k.replace('_', ' ')} {v:g}" for k, v in recipe.items() if k != "adaptive")
        for name, recipe in facts["recipes"].items()
    )
    agree = "agree" if worst < 4 else "do **not** agree"
    return f"""# Do charges follow the Noether flow?

Made by `python -m studies.flow` on {made["device"]} in {made["seconds"]:.0f} s (torch {made["torch"]}, double
precision, {scale["seeds"]} seeds); numbers in `studies/results/flow.json`. All numbers of this page are from
there; `python -m studies.flow --draw` makes the page from the JSON.

- **SGD without momentum: the expected change of a step and the measured one {agree}.** Over {tests} sums of charges
  (symmetries and kinds of them, three recipes, two networks) the largest difference is {worst:.1f} standard errors;
  the bar was 4. Weight decay is covered.
- **The Noether flow, the part that noise drives, is not all of it.** In the ReLU network it explains
  {_range(alone("ReLU network", "SGD"))} of the change, in the transformer only {_range(alone("transformer", "SGD"))},
  and in the second half of the training {_range(alone("transformer", "SGD", 1))}. The rest is the mean gradient, η²/2
  g′Ag, which does not die out within these {text["steps"]:,} steps. A prediction from noise alone gives the sign of
  {right} of {len(signs)} sums under SGD, and the wrong size.
- **Momentum: with η/(1−β) for η the flow is a better guide than under SGD**: it explains {_range(late)} of the change
  in the second half. Adding the mean gradient as if it changed slowly, with its factor (1+β)/(1−β), makes the
  prediction {_range([abs(x) for x in slow])} times too large: over the memory of the momentum mean gradients do not
  add up, most of them cancels.
- **Adam: the theory says nothing, and charges are not even nearly conserved.** They change at first order in the step
  size, by {_range(adam)} times what they do under SGD, {against} of {len(adam)} sums in the other direction.

![Charges over training: measured and predicted](flow-time.svg)

## SGD without momentum

C is the sum over all generators of a kind of symmetry of (|plus|² − |minus|²)/2; a GL(d) counts by its d scales.
Columns: how much C changed over the whole training (mean over seeds), what was predicted, the difference with its
standard error, and how much of the measured change the flow alone explains (with weight decay: flow and decay). Where
generators of both signs cancel in a sum, as for small steps in the ReLU network, that share says little.

{_exact_table(networks)}

"Predicted" adds up η²/2 E[G′AG | θ] step by step, estimated without bias from {scale["fresh"]} minibatches a step
that the training does not see. Measured less predicted is a martingale: its standard error is the root of the sum of
its squared steps. At first order nothing happens: that term is
{number(max(networks[n]["recipes"][r]["first_order"] for n in networks for r in EXACT[:2]), 1)} of the measured change
(rounding).

The same for every generator and seed by itself ({relu["generators"]} in the ReLU network, {text["generators"]} in the
transformer):

{_single_table(networks)}

If the prediction and its standard errors are right the root mean square is 1. Neurons that no sample reaches have no
noise and are left out of it.

![Every generator: measured against predicted](flow-generators.svg)

[`NoiseMonitor`](../monitor.md) reports both: `flow`, the part of the noise, and `change`, what the very step does.
To know where a charge goes, average `change`.

## Momentum

Shares of the measured change; 1 would be all of it. The intervals are 95 %, by Student's t over seeds.

{_momentum_table(networks)}

An identity stands behind it: with v the velocity, C changes by η²/2 (1+β)/(1−β) Σ v′Av. Noise that is white gives
v′Av its part in the flow with η/(1−β). A mean gradient that stays for 1/(1−β) steps would give (1+β)/(1−β) times as
much of its square; the measured charges say that it does not stay.

## Adam

{_adam_table(networks)}

"Share of first order": the part of the change that is linear in the step. Under SGD it is zero by symmetry. Adam
scales every entry for itself, which breaks the symmetry, and `NoiseMonitor` reports no flow there.

## Settings

- ReLU network: 64-{scale["width"]}-{scale["width"] // 2}-10 on scikit-learn's digits, minibatches of {scale["batch"]}
  with replacement, {relu["steps"]:,} steps; {relu["parameters"]:,} parameters.
- Transformer: {scale["layers"]} layers, width {scale["text_width"]}, 4 heads, ReLU, LayerNorm before,
  {text["parameters"]:,} parameters; {scale["text_batch"]} windows of {scale["tokens"]} words a step from a text of
  {scale["sentences"]:,} sentences that a probabilistic grammar made, {text["steps"]:,} steps.
- Recipes, as PyTorch would be told. {recipes}. Momentum has the same η/(1−β) as SGD.
- Every recipe starts from the same networks and sees the same minibatches. No step size was tuned; none was changed
  after results.
- Not covered: off-diagonal charges of GL(d), other architectures, larger networks.
"""


def figures(facts: dict[str, Any]) -> "dict[str, Figure]":
    """Charges over time, and generator by generator."""
    from undertow.figures.style import COLOURS, new_figure, points, theory

    networks = facts["networks"]
    time_figure, panels = new_figure(4, width=3.7, height=3.3)
    shown = [
        ("ReLU network", "SGD"), ("transformer", "SGD"), ("transformer", "SGD, momentum"), ("transformer", "Adam"),
    ]  # fmt: skip
    for axes, (network, recipe) in zip(panels, shown, strict=True):
        mine = networks[network]
        k = mine["kinds"].index("rescaling")
        of = mine["recipes"][recipe]
        steps = mine["steps"] * np.arange(1, facts["scale"]["windows"] + 1) / facts["scale"]["windows"]
        for name, label, colour in (("change", "noise and mean gradient", "red"), ("flow", "noise: the flow", "grey")):
            theory(axes, steps, of["cumulative"][name][k], label, colour)
        points(axes, steps[1::2], of["cumulative"]["measured"][k][1::2], of["spread"][k][1::2], "measured")
        axes.set_title(f"{network}, {recipe}")
        axes.set_xlabel("step")
    panels[0].set_ylabel("change of the charge, all neurons")
    each, pair = new_figure(2, width=4.6, height=3.8)
    for axes, (network, mine) in zip(pair, networks.items(), strict=True):
        scatter = {name: v[:: 1 + len(v) // 400] for name, v in mine["recipes"]["SGD"]["scatter"].items()}
        ends = [min(scatter["change"]), max(scatter["change"])]
        axes.plot(scatter["flow"], scatter["measured"], ".", color=COLOURS["grey"], label="against noise alone", ms=3)
        axes.plot(scatter["change"], scatter["measured"], ".", color=COLOURS["blue"], label="against all", ms=3)
        axes.plot(ends, ends, color=COLOURS["red"], lw=1, label="equal")
        axes.set_title(f"{network}, SGD, one seed")
        axes.set_xlabel("predicted change of a generator's charge")
    pair[0].set_ylabel("measured")
    return {"flow-time": time_figure, "flow-generators": each}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m studies.flow", description=__doc__)
    parser.add_argument("--draw", action="store_true", help="figures and page from the JSON that is there")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    if not given.draw:
        save("flow", study(Scale(), torch.device(given.device)))
    publish("flow", page, figures)


if __name__ == "__main__":
    main()
