"""Page and figures of the study of predicted against measured changes of charges."""

from typing import TYPE_CHECKING, Any

import numpy as np

from studies.results import number, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["figures", "page"]

ORDER = ("blue", "red", "green", "purple", "grey")


def _name(row: dict[str, Any]) -> str:
    """Return the name of a setting."""
    optimiser = f"AdamW, b2 {row['b2']:g}" if row["adaptive"] else "SGD, momentum 0.9"
    return f"{optimiser}, {'warm-up' if row['warm_up'] else 'constant'}"


def _label(row: dict[str, Any]) -> str:
    """Return the name of a setting with its mathematics typeset."""
    return _name(row).replace(f"b2 {row['b2']:g}", f"$b_2 = {row['b2']:g}$") if row["adaptive"] else _name(row)


def _with_error(of: dict[str, float], key: str) -> str:
    return f"{of[key]:.3f} ± {of[f'{key}_error']:.3f}"


def _longest(facts: dict[str, Any]) -> str:
    return str(facts["scale"]["windows"][-1])


# tables


def _window_table(facts: dict[str, Any], key: str) -> str:
    windows = [str(length) for length in facts["scale"]["windows"]]
    rows = [
        [_label(row), *(_with_error(row["symmetries"][length][key], "r2") for length in windows)]
        for row in facts["settings"]
    ]
    return table(["setting", *(f"{length} steps" for length in windows)], rows)


def _error_table(facts: dict[str, Any]) -> str:
    length, rows = _longest(facts), []
    for row in facts["settings"]:
        for target, label in (("charge", "whole change"), ("rest", "without the metric part")):
            if target == "rest" and not row["adaptive"]:
                continue
            cells = []
            for level in ("symmetries", "generators"):
                of = row[level][length][f"{target}_late"]
                cells += [f"{of['median_z']:.1f}", f"{of['within_two']:.0%}"]
            of = row["symmetries"][length][f"{target}_late"]
            rows.append([_label(row), label, _with_error(of, "slope"), f"{of['r2_of_means']:.3f}", *cells])
    head = [
        "setting", "compared with", "slope", "$R^2$ of the means over seeds", "median deviation of a symmetry",
        "symmetries within 2", "median deviation of a generator", "generators within 2",
    ]  # fmt: skip
    return table(head, rows)


def _part_table(facts: dict[str, Any]) -> str:
    length = _longest(facts)
    parts = ("charge", "flow", "present_flow", "first_order", "second_order", "decay", "metric")
    rows = [
        [_label(row), *(number(row["symmetries"][length]["late_rms"][part], 2) for part in parts)]
        for row in facts["settings"]
    ]
    head = [
        "setting", "change", "`flow`", "with present gradients", "`first_order`", "`second_order`", "`decay`",
        "`metric`",
    ]  # fmt: skip
    return table(head, rows)


def _present_table(facts: dict[str, Any]) -> str:
    length, rows = _longest(facts), []
    for row in facts["settings"]:
        of = row["symmetries"][length]
        cells = [_with_error(of[key], name) for key in ("rest_late", "present_rest_late") for name in ("r2", "slope")]
        rows.append([_label(row), *cells])
    head = ["setting", "$R^2$, `flow`", "slope, `flow`", "$R^2$, present gradients", "slope, present gradients"]
    return table(head, rows)


# sentences


def _range(facts: dict[str, Any], key: str, statistic: str = "r2", **wanted: Any) -> str:
    """Return the range of a statistic of the longest window over the settings with these entries."""
    values = [
        row["symmetries"][_longest(facts)][key][statistic]
        for row in facts["settings"]
        if all(row[name] == value for name, value in wanted.items())
    ]
    low, high = min(values), max(values)
    return f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"


def _share(facts: dict[str, Any]) -> str:
    """Return the range of the metric part relative to the flow, rms over the longest window."""
    shares = []
    for row in facts["settings"]:
        if row["adaptive"]:
            rms = row["symmetries"][_longest(facts)]["late_rms"]
            shares.append(rms["metric"] / rms["flow"])
    return f"{min(shares):.1f} to {max(shares):.1f}"


def _explains(facts: dict[str, Any], key: str, **wanted: Any) -> str:
    """Return in words how much the flow explains, with the range of R² over the settings with these entries."""
    least = min(
        row["symmetries"][_longest(facts)][key]["r2"]
        for row in facts["settings"]
        if all(row[name] == value for name, value in wanted.items())
    )
    words = "explains" if least > 0.9 else "explains a part of" if least > 0.5 else "does not explain"
    change = "the rest of the change" if key.startswith("rest") else "the change"
    return f"{words} {change} ($R^2$ {_range(facts, key, **wanted)})"


def _summary(facts: dict[str, Any]) -> str:
    scale, length = facts["scale"], _longest(facts)
    slow, fast = max(scale["b2s"]), min(scale["b2s"])
    return (
        f"The study measures how much charges change over the last {length} of {scale['steps']:,} steps of a small "
        "Llama, and how much of this change the `flow` of the monitor predicts. Under SGD the flow "
        f"{_explains(facts, 'charge_late', adaptive=False)}. Under AdamW the flow "
        f"{_explains(facts, 'charge_late', adaptive=True)}, and the change is "
        f"{_range(facts, 'charge_late', 'slope', adaptive=True)} times the predicted one (the slope of measured over "
        "predicted). AdamW's charges contain $\\sqrt v$. The `metric` part of their change, the change of $\\sqrt v$ "
        f"while the network learns, is {_share(facts)} times as large as the flow, which leaves this part out. The "
        f"flow {_explains(facts, 'rest_late', b2=fast)} for $b_2 = {fast:g}$ and "
        f"{_explains(facts, 'rest_late', b2=slow)} for $b_2 = {slow:g}$, where $v$ lags behind the gradient; with the "
        f"squared gradient of the step in place of $v$, $R^2$ is {_range(facts, 'present_rest_late', b2=slow)} there. "
        "So, under AdamW, `flow` is the effect of noise and weight decay on a charge; the exact parts of the change "
        "are `first_order`, `second_order`, `decay` and `metric`. Do not extrapolate a charge with `flow` while the "
        "size of the gradient changes. The monitor's `distance` to the equilibrium is computed from the present "
        "weights and $v$, and not from `flow` ([where AdamW takes a network](adamw.md))."
    )


def page(facts: dict[str, Any]) -> str:
    """Return the page."""
    scale, sizes, made, length = facts["scale"], facts["scale"]["sizes"], facts["made"], _longest(facts)
    slow = max(scale["b2s"])
    losses = [(_label(row), np.array(row["last_loss"], float)) for row in facts["settings"]]
    reached = "; ".join(f"{name} {values.mean():.2f}" for name, values in losses)
    warm_up, exact = max(scale["warm_ups"]), max(row["exact"] for row in facts["settings"])
    return f"""# Does the flow predict how charges change?

A [charge](../glossary.md#symmetry) is a quadratic function of the weights that belongs to a symmetry of a network.
Gradient flow conserves charges; noise and weight decay change them. The column `flow` of the [monitor](../monitor.md)
is the predicted change per step.

{_summary(facts)}

![Predicted against measured changes of all symmetries, for each setting](charge-changes-scatter.svg)

One point per symmetry and seed: the change over the last {length} steps relative to the size of the charge. Blue is the
whole change, red the change without the metric part.

## Set-up

`python -m studies.charge_changes` ({made["device"]}, {made["seconds"]:.0f} s, PyTorch {made["torch"]}). A Llama with
{sizes["layers"]} layers of width {sizes["width"]} and {sizes["heads"]} heads ({facts["parameters"]:,} parameters)
learns the manual of the Python language by characters ({facts["characters"]:,} of them; {sizes["text_batch"]} windows
of {sizes["tokens"]} per step), {scale["seeds"]} seeds per setting, each with its own start and batches. AdamW has the
step size {scale["step_size"]:g}, weight decay {scale["weight_decay"]:g} and $b_1 = 0.9$; SGD has the step size
{scale["sgd_step_size"]:g}, weight decay {scale["sgd_weight_decay"]:g} and momentum 0.9. Warm-up is linear over
{warm_up} steps. Mean loss over the last tenth: {reached}.

The network has {len(facts["families"])} symmetries with {facts["generators"]:,} diagonal generators. The charge of a
generator is $C = \\frac12 \\sum_i A_i W_i \\theta_i^2$, with $W = \\sqrt v + \\epsilon$ for AdamW and 1 for SGD. At
each step the study computes the numbers that [`NoiseMonitor`](../howto/watching-noise.md) has in its rows:

- `flow`: the predicted change per step by noise and weight decay,
  $h \\sum_i A_i (\\frac h2 n_i - \\lambda W_i \\theta_i^2)$, with $n = v/W$ for AdamW and the variance of the gradient
  for SGD, and $h = \\eta$ for AdamW and $\\eta/(1 - \\text{{momentum}})$ for SGD.
- `first_order`, `second_order`, `decay`, `metric`: the exact parts of the change, by the memory of momentum, the
  squared step, weight decay, and the change of $W$.

All are summed over a window and divided by $\\frac12 \\sum_i |A_i| W_i \\theta_i^2$ at its start. Windows of one
length do not overlap, and the first window starts after as many steps as its length. The parts add up to the change of
the charge to {exact:.0e} of the largest size (single precision). A symmetry is the sum over its generators, as in a
row of the monitor. Symmetries of attention's values and outputs, under all invertible matrices (GL), are represented by
their scales, with AdamW's own charge. In the monitor their rows have no `flow` under AdamW, because AdamW conserves no
charge of the generators that mix entries.

## R² over the length of the window

$R^2 = 1 - \\sum (\\text{{measured}} - \\text{{predicted}})^2 / \\sum (\\text{{measured}} - \\text{{mean}})^2$, over
all windows and symmetries of one seed, with the mean and the standard error over the seeds. $R^2$ is negative where
the prediction is worse than a constant.

Whole change, all windows:

{_window_table(facts, "charge_all")}

Without the metric part, all windows:

{_window_table(facts, "rest_all")}

Without the metric part, windows in the second half of the training:

{_window_table(facts, "rest_late")}

![R² over the length of the window](charge-changes-windows.svg)

## In standard errors

The mean over seeds of measured − predicted, divided by its standard error, over the last {length} steps. If the
prediction were exact, about {_expected(scale["seeds"]):.0%} would be within 2 (Student's t). The standard errors are
small, so that a systematic deviation of a few percent is many standard errors; the slope of measured over predicted is
the size of the deviation.

{_error_table(facts)}

## Which part dominates

Root mean square over symmetries, relative to the size of the charge, over the last {length} steps:

{_part_table(facts)}

## What is missing in the flow

The flow uses $v$ as the mean square of the gradient. With $b_2 = {slow:g}$, $v$ is an average over
{1 / (1 - slow):,.0f} steps and lags behind a gradient whose size changes. With $g^2$ of the step itself in place of $v$
(and $W$ before the step), the noise term is that of the present gradient. Changes without the metric part, last
{length} steps:

{_present_table(facts)}

For SGD the same column uses the whole squared gradient in place of its variance, so that it includes the mean gradient.

## What not to conclude

- One network and one text, {scale["steps"]:,} steps: the beginning of training, where the size of the gradient changes.
  Later parts of long runs were not measured.
- $R^2$ combines symmetries of several kinds. A symmetry whose charge hardly changes adds little to it.
- The shares of the parts hold for these step sizes and this weight decay.
"""


def _expected(seeds: int) -> float:
    """Return the probability of |t| < 2 with one degree of freedom less than seeds."""
    from scipy.special import stdtr

    return float(1 - 2 * stdtr(seeds - 1, -2.0))


# figures


def _scatter(axes: "Axes", row: dict[str, Any]) -> None:
    from undertow.figures.style import COLOURS

    scatter = {name: np.array(values, float) for name, values in row["scatter"].items()}
    shown = (("charge", "blue", "whole change"), ("rest", "red", "without metric")) if row["adaptive"] else (
        ("charge", "blue", "whole change"),)  # fmt: skip
    for name, colour, label in shown:
        axes.plot(scatter["flow"].ravel(), scatter[name].ravel(), ".", ms=3, color=COLOURS[colour], label=label)
    ends = [scatter["flow"].min(), scatter["flow"].max()]
    axes.plot(ends, ends, color=COLOURS["grey"], lw=1)
    axes.set_title(_name(row))
    axes.set_xlabel("predicted by the flow")
    axes.legend()


def figures(facts: dict[str, Any]) -> "dict[str, Figure]":
    """Return predicted against measured changes, and R² over the length of the window."""
    from undertow.figures.style import COLOURS, new_figure

    shown = [row for row in facts["settings"] if not row["warm_up"]]
    scatter, panels = new_figure(len(shown), width=4.0, height=3.5)
    for axes, row in zip(panels, shown, strict=True):
        _scatter(axes, row)
    panels[0].set_ylabel("measured, relative to the size")
    lengths = facts["scale"]["windows"]
    windows, panels = new_figure(3, width=4.0, height=3.3)
    for axes, key, title in (
        (panels[0], "charge_late", "whole change"), (panels[1], "rest_late", "without the metric part"),
        (panels[2], "present_rest_late", "with present gradients"),
    ):  # fmt: skip
        kinds = list(dict.fromkeys((row["adaptive"], row["b2"]) for row in facts["settings"]))
        for row in facts["settings"]:
            colour = ORDER[kinds.index((row["adaptive"], row["b2"])) % len(ORDER)]
            of = [row["symmetries"][str(length)][key] for length in lengths]
            axes.errorbar(
                lengths, [max(x["r2"], -1.0) for x in of], [x["r2_error"] for x in of], color=COLOURS[colour],
                ls=":" if row["warm_up"] else "-", marker=".", lw=1.3, label=_name(row),
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_ylim(-1.05, 1.05)
        axes.set_title(title)
        axes.set_xlabel("steps of the window")
    panels[0].set_ylabel("R², second half (below −1: at −1)")
    panels[1].legend(loc="lower left", fontsize=7)
    return {"charge-changes-scatter": scatter, "charge-changes-windows": windows}
