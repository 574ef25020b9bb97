"""Page and figures of the study of critical batch sizes."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from studies.results import number, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["figures", "page"]

FACTOR = 2.0
"""A prediction within this factor of the measured value is counted."""
LARGE_FACTOR = 10.0
"""A prediction that is off by more than this is of no use."""


def _finite(value: float | None) -> float:
    return math.nan if value is None else value


def _value(value: float | None, log_error: float | None) -> str:
    """Return a number with its standard error, from that of its logarithm."""
    value, log_error = _finite(value), _finite(log_error)
    if not math.isfinite(value):
        return "infinite"
    return number(value, 3) if math.isnan(log_error) else f"{number(value, 3)} ± {number(value * log_error, 2)}"


def _predicted(task: dict[str, Any], kind: str, key: str) -> float:
    """Return a predicted critical batch size; NaN where it was not measured."""
    value = task.get(kind, {}).get(key, math.nan)
    return math.inf if value is None else value


def _known(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tasks with a fit and a noise scale."""
    return {name: task for name, task in facts["tasks"].items() if "critical_batch" in task and "simple" in task}


def _result_table(facts: dict[str, Any]) -> str:
    rows = []
    for name, task in facts["tasks"].items():
        if "critical_batch" not in task:
            rows.append([name, "not known: the target was reached at fewer than 3 batch sizes", *[""] * 6])
            continue
        outside = not task["batches"][0] / 2 <= task["critical_batch"] <= 2 * task["batches"][-1]
        cells = [_value(task["critical_batch"], task["critical_batch_log_error"])]
        cells[0] += " (outside the batch sizes: not resolved)" if outside else ""
        for kind, key in (("simple", "average"), ("simple", "end"), ("curvature", "average")):
            own = task.get(kind, {})
            cells.append(_value(own.get(key), own.get(f"{key}_log_error")) if own else "not measured")
        ratios = [
            _ratio(_predicted(task, kind, "average") / task["critical_batch"]) for kind in ("simple", "curvature")
        ]
        rows.append([name, *cells, *ratios, f"{task['rms']:.0%}"])
    head = [
        "task", "measured B", "noise scale, average", "noise scale at the target", "curvature-weighted, average",
        "average/measured", "curvature/measured", "rms deviation of the fit",
    ]  # fmt: skip
    return table(head, rows)


def _curve_table(facts: dict[str, Any]) -> str:
    rows = []
    for name, task in facts["tasks"].items():
        for batch, steps, size in zip(task["batches"], task["steps"], task["step_size"], strict=True):
            model = math.nan
            if "critical_batch" in task:
                model = task["least_steps"] * (1 + task["critical_batch"] / batch)
            shown = "not reached" if steps is None else number(steps, 3)
            rows.append([name, str(batch), shown, number(model, 3), number(size, 2),
                         "yes" if batch in task["edge"] and steps is not None else ""])  # fmt: skip
    return table(["task", "batch", "steps to the target", "fit", "best step size", "at the edge of the grid"], rows)


def _task_table(facts: dict[str, Any]) -> str:
    rows = []
    for name, task in facts["tasks"].items():
        uncovered = ", ".join(f"`{parameter}`" for parameter in task.get("uncovered", [])) or "none"
        rows.append([name, number(task["target"], 3), f"{task['batches'][0]} to {task['batches'][-1]}",
                     _value(task.get("least_steps"), task.get("least_steps_log_error")), str(task["reference"]),
                     uncovered])  # fmt: skip
    head = ["task", "target loss", "batch sizes", "S", "batch of the noise scale", "parameters not in the noise scale"]
    return table(head, rows)


def _ratio(value: float) -> str:
    return "infinity" if math.isinf(value) else number(value, 3)


def _range(values: list[float]) -> str:
    return f"{_ratio(min(values))} to {_ratio(max(values))}" if len(values) > 1 else _ratio(values[0])


def _summary(facts: dict[str, Any]) -> str:
    known = _known(facts)
    sentences = []
    for kind, label in (("simple", "The noise scale"), ("curvature", "The curvature-weighted noise scale")):
        ratios = [_predicted(task, kind, "average") / task["critical_batch"] for task in known.values()]
        near = sum(1 / FACTOR <= ratio <= FACTOR for ratio in ratios)
        sentences.append(f"{label}, averaged over the run, is {_range(ratios)} times the measured critical batch size "
                         f"and within a factor of {FACTOR:g} in {near} of {len(ratios)} tasks.")  # fmt: skip
    by_kind = []
    for adaptive, label in ((False, "SGD"), (True, "AdamW")):
        own = [_predicted(t, "simple", "average") / t["critical_batch"] for t in known.values()
               if t["adaptive"] == adaptive]  # fmt: skip
        if own:
            by_kind.append(f"{_range(own)} under {label}")
    least, most = (f([t["critical_batch"] for t in known.values()]) for f in (min, max))
    sentences.append(f"The ratio of the noise scale to the measured value is {' and '.join(by_kind)}. The measured "
                     f"critical batch sizes lie between {number(least, 3)} and {number(most, 3)} samples.")  # fmt: skip
    return " ".join(sentences)


def _advice(facts: dict[str, Any]) -> str:
    """Return what the worst ratio of the noise scale to the measured value means for a user."""
    ratios = [_predicted(task, "simple", "average") / task["critical_batch"] for task in _known(facts).values()]
    worst = max(max(ratio, 1 / ratio) for ratio in ratios)
    if worst > LARGE_FACTOR:
        return (
            "So do not choose a batch size by `critical_batch` of the monitor alone: it was off by a factor of up to "
            f"{_ratio(worst)}."
        )
    return (
        "So use `critical_batch` of the monitor for the order of magnitude of a useful batch size (it was off by a "
        f"factor of up to {_ratio(worst)}), and not for a choice between neighbouring powers of two."
    )


def _lora(facts: dict[str, Any]) -> str:
    """Return the description of the task with adapters, if it was run."""
    if not any(task["network"] == "LoRA" for task in facts["tasks"].values()):
        return ""
    rank = facts["scale"]["sizes"]["rank"]
    return (
        f"- LoRA: adapters of rank {rank} on a Llama that was trained on sentences of a small grammar, for sentences "
        "with other word frequencies.\n"
    )


def page(facts: dict[str, Any]) -> str:
    """Return the page."""
    scale, made = facts["scale"], facts["made"]
    noise = facts.get("noise_made", made)
    return f"""# Is the noise scale the critical batch size?

Training with the batch size $b$ takes about $S\\, (1 + B/b)$ steps, where $S$ is the least possible number of steps and
$B$ is the critical batch size: larger batches save few steps. The
[noise scale](../howto/watching-noise.md#the-number-to-look-at) $\\operatorname{{tr}} \\Sigma/|G|^2$ is a prediction of
$B$ that `NoiseMonitor` measures during training; $\\Sigma$ is the covariance of the gradient of one sample, and $G$ is
the mean of the gradient. The curvature-weighted noise scale, in which the Hessian $H$ weights both, is a second
prediction. The study compares both with measured values of $B$.

{_summary(facts)} {_advice(facts)}

![Steps to the target over the batch size, with the fit and the prediction of the noise scale](critical-batch.svg)

Points are measured, the line is the fit of $S\\, (1 + B/b)$, and the dotted line has the noise scale, averaged over the
run, in place of $B$.

{_result_table(facts)}

± is one standard error: for the measured $B$ by a bootstrap over seeds, in which the step size is tuned again, and for
noise scales by the jackknife over {scale["noise_seeds"]} seeds. A sample of text is a sequence of
{scale["sizes"]["tokens"]} tokens. The standard errors do not contain the error of the model itself: the
last column is the rms deviation of the measured steps from the fit.

## How it was measured

`python -m studies.critical_batch` (curves: {made["device"]}, {made["seconds"]:.0f} s, PyTorch {made["torch"]}; noise
scales: {noise["device"]}, {noise["seconds"]:.0f} s). For every batch size, {scale["grid"]} step sizes in ratios of 1.5
and {scale["seeds"]} seeds (start and batches) are trained with a constant step size until the loss on
{scale["evaluation"]} fixed samples reaches the target. The loss is evaluated at steps with the ratio
{scale["spacing"]:g} and interpolated in between. The steps of a batch size are the geometric mean over seeds at the
step size where it is least. $S$ and $B$ in the model $\\text{{steps}} = S\\, (1 + B/b)$
([McCandlish et al., 2018](https://arxiv.org/abs/1812.06162)) are fitted by least squares of the logarithms. SGD has no
momentum; AdamW has $b_1 = 0.9$, $b_2 = {scale["b2"]:g}$ and weight decay {scale["weight_decay"]:g}.

The noise scale $\\operatorname{{tr}} \\Sigma/|G|^2$ is that of [`NoiseMonitor`](../howto/watching-noise.md) in a
run at one batch size with its best step size, from the start to the target, in {scale["segments"]} segments. The
average weights each step by the progress $1/(1 + B/b)$ that the model predicts for it. "At the target" is the last
segment. The curvature-weighted scale $\\operatorname{{tr}}(H\\Sigma)/(G^\\top H G)$ is `curvature_noise_scale` at
{scale["curvature_points"]} times of the same run, from {scale["curvature_batches"]} batches each. It is infinite where
the estimate of $G^\\top H G$ is not positive.

{_task_table(facts)}

- Digits: the 1,797 images of scikit-learn, with 15 % wrong labels; a ReLU network with {scale["sizes"]["hidden"]}
  hidden units, and three convolutions.
- Text: the manual of the Python language, one token per character; a Llama with {scale["sizes"]["layers"]} layers of
  width {scale["sizes"]["width"]}. Its embedding, the parameter `words`, is not in the noise scale. The manual is that
  of the installed Python: {made["python"]} for the curves and {noise["python"]} for the noise scales.
- Regression: a ReLU network learns another one from fresh samples with label noise.
{_lora(facts)}
## All curves

{_curve_table(facts)}

## What not to conclude

- The networks are small and the targets early. Critical batch sizes grow during training: the measured
  values belong to these targets.
- A schedule of the step size, or momentum in SGD, changes both the steps and the best step sizes. Neither was measured.
"""


def figures(facts: dict[str, Any]) -> "dict[str, Figure]":
    """Return the steps over the batch size of every task."""
    from undertow.figures.style import COLOURS, new_figure

    tasks = {name: task for name, task in facts["tasks"].items() if "critical_batch" in task}
    figure, panels = new_figure(max(1, len(tasks)), width=3.0, height=3.2)
    for axes, (name, task) in zip(panels, tasks.items(), strict=False):
        batches = np.array(task["batches"], float)
        steps = np.array([_finite(s) for s in task["steps"]], float)
        fine = np.geomspace(batches[0], batches[-1], 100)
        curve = lambda critical, own=task, x=fine: own["least_steps"] * (1 + critical / x)
        axes.plot(batches, steps, "o", ms=4, color=COLOURS["blue"], label="measured")
        axes.plot(fine, curve(task["critical_batch"]), color=COLOURS["blue"], lw=1.2, label="fit")
        predicted = _predicted(task, "simple", "average")
        if math.isfinite(predicted):
            axes.plot(fine, curve(predicted), ":", color=COLOURS["red"], lw=1.5, label="noise scale")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(name.replace(", ", "\n", 1))
        axes.set_xlabel("batch size")
    panels[0].set_ylabel("steps to the target")
    panels[0].legend()
    return {"critical-batch": figure}
