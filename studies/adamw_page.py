"""The page of the study of where AdamW takes a network: tables, sentences and figures from its results."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from studies.adamw_figures import elapsed_time, find, setting, values_of
from studies.results import number, table

__all__ = ["page"]

NEAR = 0.1
"""A generator whose norms are within about 10 % of the prediction: rms s below this counts as reached."""


def _mean(entries: Any) -> float:
    """Return the mean over seeds that are finite."""
    values = values_of(entries)
    values = values[np.isfinite(values)]
    return float(values.mean()) if values.size else math.nan


def _range(entries: Any) -> str:
    """Return the mean over seeds and their range as text."""
    values = values_of(entries)
    values = values[np.isfinite(values)]
    if not values.size:
        return "none"
    return f"{values.mean():.3f} ({values.min():.3f} to {values.max():.3f})"


def _family_table(networks: dict[str, Any], decay: float, b2: float) -> str:
    rows = []
    for name, facts in networks.items():
        row = setting(facts, decay, b2)
        for place, family in enumerate(facts["families"]):
            rms = {key: row["rms_by_family"][key][place] for key in ("adamw", "sgd")}
            rows.append([name, family, str(facts["generators"][place]), _range(rms["adamw"]), _range(rms["sgd"])])
    return table(["network", "symmetry", "generators", "rms $s$ to AdamW's equilibrium", "to SGD's"], rows)


def _grid_table(networks: dict[str, Any], decays: Sequence[float], b2s: Sequence[float]) -> str:
    head = ["network", *(f"$\\lambda = {decay:g}$, $b_2 = {b2:g}$" for decay in decays for b2 in b2s)]
    cells = lambda facts: [number(_mean(setting(facts, d, b)["rms"]["adamw"]), 2) for d in decays for b in b2s]
    return table(head, [[name, *cells(facts)] for name, facts in networks.items()])


def _reached(facts: dict[str, Any], row: dict[str, Any]) -> float:
    """Return the time after which rms s stays below `NEAR`, in units of 1/(eta lambda); NaN if it does not."""
    above = ~(values_of(row["rms_over_time"]["adamw"]) < NEAR)
    last = int(np.flatnonzero(above)[-1]) if above.any() else -1
    return math.nan if last == len(above) - 1 else float(elapsed_time(facts, row)[last + 1])


def _time_table(networks: dict[str, Any], decays: Sequence[float], b2: float) -> str:
    rows = []
    for name, facts in networks.items():
        for decay in decays:
            row = setting(facts, decay, b2)
            over_time, elapsed = values_of(row["rms_over_time"]["adamw"]), elapsed_time(facts, row)
            at = lambda part, x=over_time: number(x[round(part * (len(x) - 1))], 2)
            rows.append([
                name, f"{decay:g}", f"{facts['steps']:,}", number(elapsed[-1], 3), at(0), at(1 / 20), at(1 / 10),
                at(1 / 2), at(1), number(_reached(facts, row), 2).replace("none", "not reached"),
            ])  # fmt: skip
    head = [
        "network", "$\\lambda$", "steps", "$\\eta\\lambda$ times steps", "rms $s$ at the first record",
        "at 1/20 of the run", "1/10", "1/2", "the end",
        f"time after which it stays below {NEAR}, in $1/(\\eta\\lambda)$ steps",
    ]  # fmt: skip
    return table(head, rows)


def _schedule_table(networks: dict[str, Any], schedules: Sequence[str], decay: float, b2: float) -> str:
    rows = []
    for name, facts in networks.items():
        for schedule in schedules:
            row = setting(facts, decay, b2, schedule)
            mean = {key: number(_mean(row["rms"][key]), 2) for key in ("adamw", "lagged")}
            end = {key: number(values_of(row["rms_over_time"][key])[-1], 2) for key in ("adamw", "lagged")}
            rows.append([name, schedule, mean["adamw"], mean["lagged"], end["adamw"], end["lagged"],
                         number(_mean(row["rms"]["sgd"]), 2)])  # fmt: skip
    head = [
        "network", "schedule", "second half, present $\\eta$", "second half, remembered $\\eta$",
        "end, present $\\eta$", "end, remembered $\\eta$", "second half, SGD's formula",
    ]  # fmt: skip
    return table(head, rows)


def _control_table(networks: dict[str, Any]) -> str:
    rows = []
    for name, facts in networks.items():
        row = find(facts, adaptive=False)
        if row is not None:
            rows.append([name, _range(row["rms"]["sgd"]), _range(row["rms"]["adamw"]), number(_mean(row["last_loss"]))])
    return table(["network", "rms $s$ to SGD's equilibrium", "to AdamW's", "loss"], rows)


def _agreements(networks: dict[str, Any], decays: Sequence[float], b2: float) -> str:
    """Return in how many rows of the table of losses the least loss has the least distance."""
    least = lambda values: int(np.argmin(np.nan_to_num(values, nan=np.inf)))
    rows = [
        [setting(facts, decay, b2, schedule) for decay in decays]
        for facts in networks.values()
        for schedule in ("constant", "cosine")
    ]
    losses = [least([_mean(r["last_loss"]) for r in row]) for row in rows]
    distances = [least([_mean(r["rms"]["adamw"]) for r in row]) for row in rows]
    return f"{sum(np.equal(losses, distances))} of {len(rows)}"


def _loss_table(networks: dict[str, Any], decays: Sequence[float], b2: float) -> str:
    rows = []
    for name, facts in networks.items():
        for schedule in ("constant", "cosine"):
            cells = [setting(facts, decay, b2, schedule) for decay in decays]
            losses = [_mean(row["last_loss"]) for row in cells]
            best = int(np.nanargmin(losses)) if np.isfinite(losses).any() else -1
            texts = [f"**{loss:.3f}**" if k == best else f"{loss:.3f}" for k, loss in enumerate(losses)]
            rows.append([name, schedule, *texts, *(number(_mean(row["rms"]["adamw"]), 2) for row in cells)])
    columns = [f"{name}, $\\lambda = {d:g}$" for name in ("loss", "rms $s$") for d in decays]
    head = ["network", "schedule", *columns]
    return table(head, rows)


def _counts(networks: dict[str, Any]) -> str:
    """Return how often AdamW's equilibrium is reached, by weight decay, as sentences."""
    sentences = []
    for decay in sorted({row["weight_decay"] for facts in networks.values() for row in facts["settings"]
                         if row["adaptive"]}):  # fmt: skip
        cells = [row for facts in networks.values() for row in facts["settings"]
                 if row["adaptive"] and row["schedule"] == "constant" and row["weight_decay"] == decay]  # fmt: skip
        rms = np.array([_mean(row["rms"]["adamw"]) for row in cells])
        sgd = np.array([_mean(row["rms"]["sgd"]) for row in cells])
        sentences.append(
            f"- $\\lambda = {decay:g}$: rms $s$ is below {NEAR} in {int((rms < NEAR).sum())} of {len(rms)} "
            f"combinations of network and $b_2$ (median {np.nanmedian(rms):.3f}, largest {np.nanmax(rms):.3f}). With "
            f"SGD's formula it is below {NEAR} in {int((sgd < NEAR).sum())} (median {np.nanmedian(sgd):.3f}), and "
            f"smaller than with AdamW's in {int((sgd < rms).sum())}."
        )
    return "\n".join(sentences)


def _failures(networks: dict[str, Any]) -> str:
    """Return the combinations at constant step in which the equilibrium is not reached, with the reason if known."""
    rows = []
    for name, facts in networks.items():
        for row in facts["settings"]:
            rms = _mean(row["rms"]["adamw"])
            if not row["adaptive"] or row["schedule"] != "constant" or rms < NEAR:
                continue
            elapsed = float(elapsed_time(facts, row)[-1])
            worst = int(np.nanargmax([_mean(x) for x in row["rms_by_family"]["adamw"]]))
            rows.append([
                name, f"{row['weight_decay']:g}", f"{row['b2']:g}", number(rms, 2), number(elapsed, 2),
                f"{facts['families'][worst]} ({number(_mean(row['rms_by_family']['adamw'][worst]), 2)})",
                f"{row['alive']:.0%}",
            ])  # fmt: skip
    if not rows:
        return "None."
    settings = ["$\\lambda$", "$b_2$", "rms $s$", "$\\eta\\lambda$ times steps"]
    head = ["network", *settings, "worst symmetry", "generators alive"]
    return table(head, rows)


def _conclusions(networks: dict[str, Any], decay: float, b2s: Sequence[float]) -> str:
    """Return the conclusions, with their numbers from the results."""
    cells = [(facts, row) for facts in networks.values() for row in facts["settings"] if row["adaptive"]]
    constant = [(facts, row) for facts, row in cells if row["schedule"] == "constant"]
    reached = [_reached(facts, row) for facts, row in constant if row["weight_decay"] == decay]
    times = [time for time in reached if math.isfinite(time)]
    distance = lambda row: _mean(row["rms"]["adamw"])
    short = [row for facts, row in constant if elapsed_time(facts, row)[-1] < 1]
    full = [row for facts, row in constant if elapsed_time(facts, row)[-1] >= 1]
    far = lambda rows: sum(not distance(row) < NEAR for row in rows)
    end = lambda key, name: [
        values_of(row["rms_over_time"][key])[-1]
        for _, row in cells
        if row["schedule"] == name and row["weight_decay"] == decay and row["b2"] == b2s[len(b2s) // 2]
    ]
    ends = "; ".join(
        f"{name}: {np.nanmedian(end('adamw', name)):.2f} and {np.nanmedian(end('lagged', name)):.2f}"
        for name in ("cosine", "warm-up-stable-decay")
    )
    first, last = min(times, default=math.nan), max(times, default=math.nan)
    return f"""\
- **Time.** At $\\lambda = {decay:g}$ rms $s$ stays below {NEAR} after {number(first, 2)} to {number(last, 2)} times
  $1/(\\eta\\lambda)$ steps, in {len(times)} of {len(reached)} combinations.
- **Unfinished runs.** Of the {len(short)} combinations with fewer than $1/(\\eta\\lambda)$ steps, {far(short)} have an
  rms above {NEAR}; of the {len(full)} with more steps, {far(full)}.
- **Schedules that end at zero.** The network cannot follow the equilibrium of the present step size. It is near the
  equilibrium of the remembered step size, a mean of past step sizes that is defined below. Median rms $s$ at the end,
  by the present and the remembered $\\eta$: {ends}.
- **Distance and loss.** The distance does not predict which weight decay has the least loss (last table)."""


def _first_figure(networks: dict[str, Any]) -> str:
    """Return the figure of the Llama alone, if it was trained, with a blank line after it."""
    if "Llama" not in networks:
        return ""
    return "![Ratios of norms in a Llama: measured, and predicted for AdamW and for SGD](adamw-ratios.svg)\n\n"


def page(facts: dict[str, Any]) -> str:
    """Return the page of the study, from its results."""
    networks, scale, made = facts["networks"], facts["scale"], facts["made"]
    decays, b2s, sizes = scale["weight_decays"], scale["b2s"], scale["sizes"]
    decay, b2 = decays[len(decays) // 2], b2s[-1]
    steps = "; ".join(
        f"{name} {mine['steps']:,} ({mine['parameters']:,} parameters)" for name, mine in networks.items()
    )
    sgd = facts["sgd"]
    return f"""# Where does AdamW take a network?

A [symmetry](../glossary.md#symmetry) changes the weights of a network and not its function; an orbit is the set of all
weights that it reaches. The noise of AdamW moves a network along the orbits of its symmetries to the point with the
least $\\sum \\sqrt v\\, (\\eta/2 + \\lambda \\theta^2)$, with the step size $\\eta$, the weight decay $\\lambda$ and
the mean squared gradient $v$ of each weight $\\theta$ ([theory](../theory/optimisers.md#charges)). For one generator,
which multiplies the weights of its plus side by $e^s$ and those of its minus side by $e^{{-s}}$, the amount $s$ from
the present weights to this point satisfies

```equation
exp(2 s) = (lambda a_minus + eta/2 b_plus)/(lambda a_plus + eta/2 b_minus)
b = sum_i sqrt(v_i),  a = sum_i sqrt(v_i) theta_i^2,  over each side
```

SGD goes to the least $\\sum (\\frac\\eta4 v + \\frac\\lambda2 \\theta^2)$ instead. Do networks that are trained
with AdamW end at AdamW's point? Generated by
`python -m studies.adamw` on {made["device"]} in {made["seconds"]:.0f} s (torch {made["torch"]}, {scale["seeds"]}
seeds). All numbers of this page come from `studies/results/adamw.json`; with `--draw` the command writes the page from
this file. The root mean square (rms) of $s$ is over the generators of a network, each averaged over the second half of
the run (constant step size $\\eta = {scale["step_size"]:g}$), with $v$ from the optimiser. An rms of 0.1 means that the
norm of each side differs from the prediction by about 10 %, and the ratio of the two norms by about 20 %. No
correction for a finite $1 - b_2$ is applied.

{_counts(networks)}
{_conclusions(networks, decay, b2s)}

{_first_figure(networks)}![Predicted and measured log ratios of norms, digits](adamw-generators-digits.svg)

![Predicted and measured log ratios of norms, text](adamw-generators-text.svg)

Every point is one generator of one seed at $\\lambda = {decay:g}$ and $b_2 = {b2:g}$: the logarithm of the norm of its
plus side over that of its minus side, and the same at the predicted equilibrium, both averaged over the second half of
the run.

## By symmetry, at λ = {decay:g} and b2 = {b2:g}

Means over seeds, with the smallest and the largest seed. [PyTorch models](../torch.md#symmetries-of-common-layers)
explains the symmetries; LayerScale is a factor for each channel of a residual branch.

{_family_table(networks, decay, b2)}

## By weight decay and b2

The rms of $s$ to AdamW's equilibrium over all generators, at a constant step size.

{_grid_table(networks, decays, b2s)}

## Time to reach it

Weight decay multiplies the [charge](../glossary.md#symmetry) of a symmetry by $e^{{-2\\eta\\lambda}}$ per step, so that
the relaxation takes about $1/(2\\eta\\lambda)$ steps. The table has rms $s$ at single times, without an average over
time, for $b_2 = {b2:g}$.

{_time_table(networks, decays, b2)}

![rms s over time, digits](adamw-time-digits.svg)

![rms s over time, text](adamw-time-text.svg)

## Schedules

A schedule changes the equilibrium while the charge lags behind. Where $v$ changes slowly, the charge is that of the
equilibrium for a mean of past step sizes with weights $\\exp(-2\\lambda \\sum \\eta)$, where the sum runs from the
past step to the present one. This mean is the "remembered $\\eta$".
Here $\\lambda = {decay:g}$ and $b_2 = {b2s[len(b2s) // 2]:g}$.

![rms s over time under a cosine](adamw-schedules.svg)

{_schedule_table(networks, ("constant", "cosine", "warm-up-stable-decay"), decay, b2s[len(b2s) // 2])}

## Where it fails

Combinations at a constant step size with an rms of $s$ above {NEAR}. Where $\\eta\\lambda$ times the number of steps is
below about 1, the run is unfinished. A neuron that no longer has a gradient is not alive and not counted. The formula
omits the term of first order in $1 - b_2$, which is largest at $b_2 = 0.95$. With $b_2 = 0.999$ and $\\lambda = 1$ the
optimiser averages 1,000 squared gradients, and the memory of the charge is only $1/(2\\eta\\lambda) = 250$ steps.
Whether this causes the failures there was not tested.

{_failures(networks)}

## Control: the same networks trained with SGD

$\\eta = {sgd["step_size"]:g}$, $\\lambda = {sgd["weight_decay"]:g}$, no momentum.

{_control_table(networks)}

## Weight decay: loss and distance

Mean loss over the last tenth of training on noisy data, $b_2 = {b2:g}$, the least in bold. rms $s$ shows whether a
run is long enough for its weight decay. The weight decay with the least loss is the one with the least rms $s$ in
{_agreements(networks, decays, b2)} rows.

{_loss_table(networks, decays, b2)}

## Settings

- Digits: scikit-learn's, 15 % wrong labels, minibatches of {sizes["batch"]}. ReLU network 64-{sizes["hidden"]}-10;
  three convolutions with {sizes["hidden"]} to {2 * sizes["hidden"]} channels; a ViT with LayerScale.
- Text: a probabilistic grammar with 15 % of the words replaced at random, {sizes["text_batch"]} windows of
  {sizes["tokens"]} words per step, with fresh noise at every step. A Llama (RMS norms, RoPE, gated network), a GPT-2
  (layer norms, learned positions, GELU, tied head) and adapters of rank {sizes["rank"]} in such a Llama, trained for
  {scale["base_steps"]:,} steps on another text.
- Transformers have {sizes["layers"]} layers, width {sizes["width"]} and {sizes["heads"]} heads. Steps: {steps}.
- Every network is trained with $\\lambda$ in {", ".join(f"{d:g}" for d in decays)}, $b_2$ in
  {", ".join(f"{b:g}" for b in b2s)}, $b_1 = 0.9$, and three schedules: constant, cosine to zero, and warm-up over 5 %,
  constant, linear decay over the last 20 %. No step size was tuned. A symmetry under all invertible matrices (GL) is
  represented by the scales of their diagonal.
- Not covered: larger networks, other optimisers, the correction for a finite $1 - b_2$.
"""
