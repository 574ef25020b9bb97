"""The page of the study of charges under the Noether flow: tables, sentences and figures from its results."""

from typing import TYPE_CHECKING, Any

import numpy as np

from studies.flow import EXACT
from studies.results import interval, number, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["figures", "page"]


def _sum(facts: dict[str, Any], name: str, kind: int, part: int | None = None) -> float:
    """Return the mean over seeds of the whole training, of its first tenth (0) or of its second half (1)."""
    values = facts["seeds"][name][kind] if part is None else facts["halves"][name][part][kind]
    return float(np.mean(values))


def _share(facts: dict[str, Any], name: str, kind: int, part: int | None = None) -> str:
    """Return the share of the measured change that a prediction explains."""
    return number(_sum(facts, name, kind, part) / _sum(facts, "measured", kind, part), 2)


def _rows(networks: dict[str, Any], recipe: str) -> list[tuple[str, str, dict[str, Any], int]]:
    """Return every kind of symmetry of every network under a recipe."""
    return [
        (network, kind, facts["recipes"][recipe], place)
        for network, facts in networks.items()
        for place, kind in enumerate(facts["kinds"])
    ]


def _exact_table(networks: dict[str, Any]) -> str:
    rows = []
    for recipe in EXACT:
        for network, kind, facts, k in _rows(networks, recipe):
            residual = f"{facts['residual'][k]:+.1e} ± {facts['residual_error'][k]:.1e}"
            rows.append([
                recipe, network, kind, number(_sum(facts, "measured", k)), number(_sum(facts, "change", k)), residual,
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
                number(mine["z_generators_rms"], 3), number(mine["z_generators_largest"], 2),
                str(mine["without_noise"]), number(mine["correlation_flow"], 3),
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
    """Return the page of the study, from its results."""
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

A [charge](../glossary.md#symmetry) is a quadratic function of the weights that belongs to a symmetry of the network.
Gradient flow conserves charges; the noise of SGD and weight decay change them, at a rate called the Noether flow. The
study compares the measured changes of charges with the predicted ones while two networks train. Below, $G$ is the
gradient of a minibatch, $g$ is its mean, and $A$ is the generator of the symmetry.

Generated by `python -m studies.flow` on {made["device"]} in {made["seconds"]:.0f} s (torch {made["torch"]}, double
precision, {scale["seeds"]} seeds). All numbers of this page come from `studies/results/flow.json`;
`python -m studies.flow --draw` writes the page from this file.

- **SGD without momentum: the expected and the measured change per step {agree}.** Over {tests} sums of charges
  (over a symmetry or over a kind of symmetries, for three recipes and two networks) the largest difference is
  {worst:.1f} standard errors; the criterion was 4. Weight decay is included.
- **The Noether flow, here the part caused by noise, is only a part of the change.** In the ReLU network it explains
  {_range(alone("ReLU network", "SGD"))} of the change, in the transformer only {_range(alone("transformer", "SGD"))},
  and in the second half of the training {_range(alone("transformer", "SGD", 1))}. The rest is the effect
  of the mean gradient, $\\frac{{\\eta^2}}{{2}} g^\\top A g$ per step, which does not vanish within these
  {text["steps"]:,} steps. A prediction from noise alone has the right sign for {right} of {len(signs)} sums under SGD,
  and the wrong size.
- **Momentum: with $\\eta/(1-\\beta)$ in place of $\\eta$ the flow explains more of the change than without momentum**,
  {_range(late)} of it in the second half. Adding the mean gradient as if it changed slowly, with its factor
  $(1+\\beta)/(1-\\beta)$, makes the prediction {_range([abs(x) for x in slow])} times too large: mean gradients mostly
  cancel over the memory of the momentum.
- **Adam: this theory does not apply, and the charges of SGD are far from conserved.** They change at first order in the
  step size, by {_range(adam)} times the change under SGD, {against} of {len(adam)} sums in the opposite direction.

![Charges over training: measured and predicted](flow-time.svg)

## SGD without momentum

$C$ is the sum of $\\frac12 (|\\theta_+|^2 - |\\theta_-|^2)$ over all generators of a kind of symmetry, with the weights
$\\theta_\\pm$ of the plus and the minus side. A symmetry under all invertible $d \\times d$ matrices, $GL(d)$, is
represented by $d$ scales. Columns: the change of $C$ over the whole training (mean over seeds), the predicted change,
the difference with its standard error (s.e.), and the share of the measured change that the flow alone explains; with
weight decay the flow includes the decay. Where generators of both signs cancel in a sum, as for small steps in the ReLU
network, this share is not informative.

{_exact_table(networks)}

"Predicted" is the sum of $\\frac{{\\eta^2}}{{2}} \\mathbb E[G^\\top A G \\mid \\theta]$ over all steps, estimated
without bias from {scale["fresh"]} minibatches per step that the training does not use. Measured minus predicted is a
martingale: its standard error is the root of the sum of its squared steps. The term of first order vanishes: it is
{number(max(networks[n]["recipes"][r]["first_order"] for n in networks for r in EXACT[:2]), 1)} of the measured change
(rounding).

The same comparison for every single generator and seed ({relu["generators"]} generators in the ReLU network,
{text["generators"]} in the transformer):

{_single_table(networks)}

If the prediction and its standard errors are right, the root mean square (rms) is 1. Neurons that no sample activates
have no noise; the column "without noise" counts their pairs of generator and seed, which are left out of the rms and of
the largest value.

![Every generator: measured against predicted](flow-generators.svg)

[`NoiseMonitor`](../monitor.md) reports both: `flow`, the part caused by noise and weight decay, and `change`, the
change by the actual step. To predict a charge, average `change`.

## Momentum

The table has shares of the measured change; 1 is all of it. The intervals are 95 %, by Student's t over seeds.

{_momentum_table(networks)}

The reason is an identity: with the velocity $v$, $C$ changes by
$\\frac{{\\eta^2}}{{2}} \\frac{{1+\\beta}}{{1-\\beta}} \\sum v^\\top A v$. White noise contributes to $v^\\top A v$ the
flow with $\\eta/(1-\\beta)$. A mean gradient that is constant for $1/(1-\\beta)$ steps would contribute
$(1+\\beta)/(1-\\beta)$ times as much of its square; the measured charges show that it is not constant.

## Adam

{_adam_table(networks)}

"Share of first order" is the part of the change that is linear in the step. Under SGD it is zero by symmetry. Adam
rescales every entry separately, so that it does not conserve this charge; `NoiseMonitor` reports the charge in Adam's
metric.

## Settings

- ReLU network: 64-{scale["width"]}-{scale["width"] // 2}-10 on scikit-learn's digits, minibatches of {scale["batch"]}
  with replacement, {relu["steps"]:,} steps; {relu["parameters"]:,} parameters.
- Transformer: {scale["layers"]} layers, width {scale["text_width"]}, 4 heads, ReLU, pre-norm,
  {text["parameters"]:,} parameters; {scale["text_batch"]} windows of {scale["tokens"]} words per step from a text of
  {scale["sentences"]:,} sentences generated by a probabilistic grammar, {text["steps"]:,} steps.
- Recipes, with settings as in PyTorch. {recipes}. Momentum has the same $\\eta/(1-\\beta)$ as SGD.
- Every recipe starts from the same networks and uses the same minibatches. No step size was tuned or changed after the
  results were known.
- Not covered: off-diagonal charges of $GL(d)$, other architectures, larger networks.
"""


def figures(facts: dict[str, Any]) -> "dict[str, Figure]":
    """Return the figures: charges over time, and the changes of single generators."""
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
    panels[0].legend()
    each, pair = new_figure(2, width=4.6, height=3.8)
    for axes, (network, mine) in zip(pair, networks.items(), strict=True):
        scatter = {name: v[:: 1 + len(v) // 400] for name, v in mine["recipes"]["SGD"]["scatter"].items()}
        ends = [min(scatter["change"]), max(scatter["change"])]
        axes.plot(scatter["flow"], scatter["measured"], ".", color=COLOURS["grey"], label="against noise alone", ms=3)
        axes.plot(scatter["change"], scatter["measured"], ".", color=COLOURS["blue"], label="against all", ms=3)
        axes.plot(ends, ends, color=COLOURS["red"], lw=1, label="equal")
        axes.set_title(f"{network}, SGD, one seed")
        axes.set_xlabel("predicted change of a generator's charge")
    pair[0].set_ylabel("measured change of the charge")
    pair[0].legend(markerscale=3)
    return {"flow-time": time_figure, "flow-generators": each}
