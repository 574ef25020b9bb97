"""Figures of the study of where AdamW takes a network, and access to its results."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["elapsed_time", "figures", "find", "setting", "values_of"]

PANELS = {"digits": ("ReLU network", "convolutions", "ViT"), "text": ("Llama", "GPT-2", "LoRA")}
SIDES = {
    "gains": "norm gains / next layer",
    "QK": "queries / keys",
    "OV": "values / outputs",
    "up/down": "MLP up / down",
}
"""The two sides of a symmetry of a Llama."""
ORDER = ("blue", "red", "green", "purple", "grey")


def values_of(entries: Any) -> np.ndarray:
    """Return numbers of a JSON, with NaN where they were not finite."""
    return np.array(entries, dtype=float)


def find(network: dict[str, Any], **wanted: Any) -> dict[str, Any] | None:
    """Return the first setting with these entries."""
    for row in network["settings"]:
        if all(row[key] == value for key, value in wanted.items()):
            return row
    return None


def setting(network: dict[str, Any], decay: float, b2: float, schedule: str = "constant") -> dict[str, Any]:
    """Return the results of one setting of AdamW."""
    row = find(network, adaptive=True, schedule=schedule, weight_decay=decay, b2=b2)
    if row is None:
        raise KeyError(f"no run with weight decay {decay}, b2 {b2} and schedule {schedule}.")
    return row


def elapsed_time(facts: dict[str, Any], row: dict[str, Any]) -> np.ndarray:
    """Return the steps at the stored times in units of 1/(eta lambda), by the sum of the step sizes."""
    times = values_of(facts["times"])
    eta = values_of(row["eta"])
    if row["schedule"] == "constant":
        return times * row["step_size"] * row["weight_decay"]
    mean = np.concatenate([[eta[0]], (eta[1:] + eta[:-1]) / 2])
    return np.cumsum(np.diff(times, prepend=0) * mean) * row["weight_decay"]


def _scatter(networks: dict[str, Any], names: Sequence[str]) -> "Figure":
    from undertow.figures.style import COLOURS, new_figure

    figure, panels = new_figure(len(names), width=4.0, height=3.6)
    for axes, name in zip(panels, names, strict=True):
        facts = networks[name]
        row = next(r for r in facts["settings"] if "scatter" in r and r["adaptive"])
        scatter = {key: values_of(values) for key, values in row["scatter"].items()}
        for place, family in enumerate(facts["families"]):
            mine = scatter["family"] == place
            axes.plot(scatter["adamw"][mine], scatter["measured"][mine], ".", ms=3, color=COLOURS[ORDER[place % 5]],
                      label=family)  # fmt: skip
        if len(scatter["adamw"]):
            ends = [scatter["measured"].min(), scatter["measured"].max()]
            axes.plot(ends, ends, color=COLOURS["grey"], lw=1)
        axes.set_title(f"{name}, λ {row['weight_decay']:g}, b2 {row['b2']:g}")
        axes.set_xlabel("predicted log ratio of norms")
        axes.legend()
    panels[0].set_ylabel("measured")
    return figure


def _ratios(facts: dict[str, Any]) -> "Figure":
    """Draw the measured ratios of a transformer against those that the formulas for AdamW and for SGD predict."""
    from undertow.figures.style import COLOURS, new_figure

    row = next(r for r in facts["settings"] if "scatter" in r and r["adaptive"])
    scatter = {key: values_of(values) for key, values in row["scatter"].items()}
    measured = np.exp(scatter["measured"])
    largest = max(measured.max(), np.exp(scatter["adamw"]).max())
    ends = [float(measured.min() / 1.15), float(1.15 * largest)]  # of both axes of both panels
    figure, panels = new_figure(2, width=4.4, height=4.0)
    for axes, key, title in zip(panels, ("adamw", "sgd"), ("AdamW", "SGD"), strict=True):
        axes.plot(ends, ends, color=COLOURS["grey"], lw=1, label="theory")
        for place, family in enumerate(facts["families"]):
            mine = scatter["family"] == place
            axes.plot(np.exp(scatter[key][mine]), measured[mine], ".", ms=4.5, color=COLOURS[ORDER[place % 5]],
                      label=SIDES.get(family, family))  # fmt: skip
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="predicted ratio of norms")
        axes.set_title(f"theory for {title}")
    panels[0].set_ylabel("measured ratio after training with AdamW")
    panels[0].legend()
    return figure


def _time(networks: dict[str, Any], names: Sequence[str], decays: Sequence[float], b2: float) -> "Figure":
    from undertow.figures.style import COLOURS, new_figure

    figure, panels = new_figure(len(names), width=4.0, height=3.4)
    for axes, name in zip(panels, names, strict=True):
        for decay, colour in zip(decays, ORDER, strict=False):
            row = setting(networks[name], decay, b2)
            elapsed = elapsed_time(networks[name], row)
            for key, style in (("adamw", "-"), ("sgd", ":")):
                label = f"λ {decay:g}" if key == "adamw" else None
                axes.plot(
                    elapsed, values_of(row["rms_over_time"][key]), style, color=COLOURS[colour], label=label, lw=1.3
                )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(name)
        axes.set_xlabel("ηλ times steps")
        axes.legend()
    panels[0].set_ylabel("rms s (dotted: SGD's formula)")
    return figure


def _schedules(networks: dict[str, Any], decay: float, b2: float) -> "Figure":
    from undertow.figures.style import COLOURS, new_figure

    names = [name for name in ("Llama", "ViT", "GPT-2") if name in networks]
    figure, panels = new_figure(len(names), width=4.0, height=3.2)
    for axes, name in zip(panels, names, strict=True):
        row = setting(networks[name], decay, b2, "cosine")
        done = values_of(networks[name]["times"]) / networks[name]["steps"]
        for key, label, colour in (
            ("adamw", "present η", "grey"), ("lagged", "remembered η", "blue"), ("sgd", "SGD's formula", "red"),
        ):  # fmt: skip
            axes.plot(done, values_of(row["rms_over_time"][key]), color=COLOURS[colour], label=label, lw=1.3)
        axes.set_yscale("log")
        axes.set_title(f"{name}, cosine")
        axes.set_xlabel("part of the training")
        axes.legend()
    panels[0].set_ylabel("rms s")
    return figure


def figures(facts: dict[str, Any]) -> "dict[str, Figure]":
    """Return the figures: generators one by one, and the distance over time."""
    scale, networks = facts["scale"], facts["networks"]
    decays, b2s = scale["weight_decays"], scale["b2s"]
    drawn = {"adamw-schedules": _schedules(networks, decays[len(decays) // 2], b2s[len(b2s) // 2])}
    if "Llama" in networks:
        drawn["adamw-ratios"] = _ratios(networks["Llama"])
    for group, names in PANELS.items():
        present = [name for name in names if name in networks]
        drawn[f"adamw-generators-{group}"] = _scatter(networks, present)
        drawn[f"adamw-time-{group}"] = _time(networks, present, decays, b2s[-1])
    return drawn
