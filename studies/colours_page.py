"""The page of the study of coloured digits: figures, tables and sentences from its results."""

from typing import TYPE_CHECKING, Any

import numpy as np

from studies import results
from studies.colours import DESIGNS, FLIPS, MODELS, REVERSED, RULES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def cell(values: list[float]) -> str:
    """Return a mean with half its 95 % interval as text."""
    mean, half = results.interval(values)
    return f"{mean:.3f} ± {half:.3f}"


def difference(one: list[float], other: list[float]) -> tuple[float, float]:
    """Return the mean difference over seeds and half its 95 % interval."""
    return results.interval(list(np.subtract(one, other)))


def verdict(change: tuple[float, float]) -> str:
    """Return whether a difference is better, worse or not significant, by its interval."""
    mean, half = change
    return "no difference" if abs(mean) <= half else "better" if mean > 0 else "worse"


def figures(facts: dict[str, Any]) -> "dict[str, Figure]":
    """Return the figures: accuracy with reversed colour by step size for both kinds of batches, and of all methods."""
    from undertow.figures import style

    drawn = {}
    for design, models in facts["curves"].items():
        figure, panels = style.new_figure(len(models), width=3.1, height=3.0)
        for axes, (model, methods) in zip(panels, models.items(), strict=True):
            for method, colour, marker in (("pooled", "blue", "o"), ("one environment", "red", "s")):
                columns = list(zip(*methods[method], strict=True))
                finite = [k for k, column in enumerate(columns) if None not in column]  # the largest steps diverge
                mean, half = np.transpose([results.interval(columns[k]) for k in finite])
                etas = np.array(facts["grids"][method][0])[finite] * (1.0 if method == "pooled" else 1.08)
                style.points(axes, etas, mean, [half, half], method, colour, marker)
            axes.axhline(0.5, color=style.COLOURS["grey"], lw=1, ls=":", label="random guessing")
            axes.axhline(1 - FLIPS, color=style.COLOURS["green"], lw=1, ls="--", label="upper bound without colour")
            axes.set(xscale="log", xlabel="step size", title=model, ylim=(0, 0.85))
        panels[0].set(ylabel="accuracy, colour reversed")
        panels[0].legend()
        drawn[f"colours-{design}"] = figure
    figure, panels = style.new_figure(len(facts["chosen"]), width=4.6, height=3.2)
    for axes, (design, models) in zip(panels, facts["chosen"].items(), strict=True):
        methods = next(iter(models.values()))
        place = np.arange(len(methods))
        for k, (rule, colour, marker) in enumerate(
            (("validation", "blue", "o"), ("neutral", "green", "s"), ("oracle", "purple", "^"))
        ):
            mean, half = np.transpose([results.interval(methods[m][rule]["reversed"]) for m in methods])
            style.points(axes, place + 0.2 * k - 0.2, mean, [half, half], f"chosen by {rule}", colour, marker)
        axes.axhline(0.5, color=style.COLOURS["grey"], lw=1, ls=":", label="random guessing")
        axes.set_xticks(place, [m.replace(" ", "\n", 1) for m in methods], fontsize=7.5)
        axes.set(title=f"{design} colours, network, default start", ylim=(0, 0.85))
    panels[0].set(ylabel="accuracy, colour reversed")
    panels[1].legend()
    drawn["colours-methods"] = figure
    return drawn


def _differences(facts: dict[str, Any], design: str) -> list[list[str]]:
    rows = []
    for model, methods in facts["chosen"][design].items():
        row = [model]
        for rule in RULES:
            change = difference(methods["one environment"][rule]["reversed"], methods["pooled"][rule]["reversed"])
            row.append(f"{change[0]:+.3f} ± {change[1]:.3f} ({verdict(change)})")
        rows.append(row)
    return rows


def _table(facts: dict[str, Any], design: str, model: str) -> str:
    rows = []
    for method, rules in facts["chosen"][design][model].items():
        rows.append([method, *(cell(rules[rule]["reversed"]) for rule in RULES), cell(rules["validation"]["training"])])
    return results.table(["", *(f"reversed, by {rule}" for rule in RULES), "training mix, by validation"], rows)


def _end(gain: tuple[float, float]) -> str:
    """Return the gain of a setting at an end of the grid over those inside, in bold if it is significant."""
    text = f"{gain[0]:+.4f} ± {gain[1]:.4f}"
    return f"**{text}**" if verdict(gain) == "better" else text


def _gains(rule: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the ends at which the best setting lies, if it is better than all settings inside."""
    return {end: gain for end, gain in rule["ends"].items() if gain[0] > 0}


def ends(facts: dict[str, Any]) -> tuple[int, int]:
    """Return the number of ends of grids with chosen settings, and at how many of them the gain is significant."""
    methods = [method for models in facts["chosen"].values() for model in models.values() for method in model.values()]
    gains = [gain for method in methods for rule in method.values() for gain in _gains(rule).values()]
    return len(gains), sum(verdict(gain) == "better" for gain in gains)


def _settings(facts: dict[str, Any]) -> str:
    rows, every = [], facts["settings"]["every"]
    for design, models in facts["chosen"].items():
        for model, methods in models.items():
            for method, rules in methods.items():
                row = [design, model, method]
                for rule in ("validation", "neutral", "oracle"):
                    here = rules[rule]
                    strength = "" if len(facts["grids"][method][1]) == 1 else f", strength {here['strength']:g}"
                    steps = every * here["evaluation"]
                    ends = [f"{end}, {_end(gain)}" for end, gain in _gains(here).items()]
                    at = f"step {here['step_size']:g}{strength}, {steps} steps" if steps else "not trained"
                    row.append(at + (f" ({'; '.join(ends)})" if ends else ""))
                rows.append(row)
    return results.table(["colours", "model", "method", "by validation", "by neutral", "by oracle"], rows)


def _findings(facts: dict[str, Any]) -> str:
    """Return the findings as sentences made from the numbers."""
    lines = ["## Findings", ""]
    for design, models in facts["chosen"].items():
        pair = lambda model, rule, of=models: difference(
            of[model]["one environment"][rule]["reversed"], of[model]["pooled"][rule]["reversed"]
        )
        changes = {(model, rule): pair(model, rule) for model in models for rule in RULES}
        verdicts = [verdict(change) for change in changes.values()]
        better = [f"{m} by {r} ({c[0]:+.3f} ± {c[1]:.3f})" for (m, r), c in changes.items() if verdict(c) == "better"]
        lines.append(
            f"- *{design}*: compared with pooled batches, batches of one environment make no difference in "
            f"{verdicts.count('no difference')} of {len(verdicts)} comparisons (models times rules), are better in "
            f"{verdicts.count('better')} and worse in {verdicts.count('worse')}"
            + (f": {'; '.join(better)}." if better else ".")
        )
        for rule in ("validation", "neutral"):
            best = max(
                ((m, k) for m, methods in models.items() for k in methods if k != "without colour"),
                key=lambda pair, of=models, rule=rule: np.mean(of[pair[0]][pair[1]][rule]["reversed"]),
            )
            lines.append(
                f"- *{design}*, chosen by {rule}: the highest accuracy with the colour reversed is "
                f"{cell(models[best[0]][best[1]][rule]['reversed'])} ({best[1]}, {best[0]}); without the colour "
                f"{cell(models[best[0]]['without colour'][rule]['reversed'])}."
            )
        networks = [m for m in models if m != "diagonal"]
        highest = max(
            np.mean(models[m][k]["oracle"]["reversed"]) for m in networks for k in models[m] if k != "without colour"
        )
        lines.append(
            f"- *{design}*, chosen by oracle: no method brings a network above {highest:.3f} with the colour reversed."
        )
    lines += [
        "",
        "A difference is called *better* or *worse* if its 95 % interval excludes zero, and *no difference* otherwise: "
        "some of these intervals are wide. A 95 % interval excludes the true value by chance once in twenty. A single "
        "*better* among so many comparisons is therefore weak evidence; the same sign in all of them is stronger "
        "evidence.",
        "",
        "The theory of batches of one environment explains why steady colours are not filtered out: as long as the "
        "correlation of the colour with the residual has the same sign in all environments, the weight of the colour "
        "grows in every one of them, at any step size. The weight can fall only if the correlation changes its sign "
        "strongly, the steps are large, and the start is small. This is so for the turning colours, and most clearly "
        "in the diagonal model, which is that of the theory. For turning colours pooled training hardly uses the "
        "colour either, so that the possible gain is small.",
        "",
        "For steady colours, validation in the training environments selects models that use the colour, whatever the "
        "method: a model of the digit alone is less accurate there. In the diagonal model the selection causes this "
        "and not the method: IRM and V-REx chosen by the oracle are better than random guessing. In the networks no "
        "method is clearly better than random guessing, by any rule. IRM and V-REx in the network do not reproduce the "
        "published results for coloured MNIST. A likely reason is that coloured MNIST has fifty times as many training "
        "images, which a network cannot memorise as fast.",
    ]
    return "\n".join(lines)


def page(facts: dict[str, Any]) -> str:
    """Return the page, with all numbers from the results."""
    s, chosen = facts["settings"], facts["chosen"]
    listed = lambda values: ", ".join(f"{value:g}" for value in values)
    grid = listed(facts["grids"]["pooled"][0])
    strengths = "; ".join(f"{m} {listed(v)}" for m, (_, v) in facts["grids"].items() if len(v) > 1)
    agreement = " and ".join(f"*{d}* {a[0]:g}/{a[1]:g}" for d, a in DESIGNS.items())
    default = next(iter(MODELS))
    at_ends, beyond = ends(facts)
    parts = [
        "# Coloured digits: batches of one environment and other invariant methods",
        "Written by `python -m studies.colours` from `studies/results/colours.json`; do not edit by hand. "
        f"{facts['count']:,} runs ({facts['diverged']:,} diverged) in {facts['seconds']:.0f} s on {facts['device']}.",
        "Scikit-learn's digits, 8 x 8 pixels; the label is 1 if a digit is 5 or more and -1 otherwise, and "
        f"{FLIPS:.0%} of the labels are flipped. One more feature, the colour ($\\pm 1$), agrees with the flipped "
        f"label with a probability that differs between the two training environments: {agreement}. In the test "
        f"environment, called *reversed*, it agrees with probability {REVERSED:g}. A model of the digit alone has an "
        f"accuracy of at most {1 - FLIPS:g} in every environment. A model of the colour alone has an accuracy of "
        f"{REVERSED:g} in the reversed environment, and random guessing one of 0.5.",
        f"Models: a ReLU network with {s['hidden']} hidden neurons from a default start, and from weights a tenth and "
        "a hundredth of it; and the model of the theory (*diagonal*), $x \\cdot (u^2 - v^2)$ from $u = v = 0.001$. "
        f"Plain SGD on the logistic loss, {s['steps']} steps. *Pooled* and *one environment* take the same number of "
        f"batches of {s['batch']} from `EnvironmentBatchSampler` and its pooled counterpart; *without colour* is "
        "pooled with the colour left out. Invariant risk minimisation (IRM), variance risk extrapolation (V-REx) and "
        "group distributionally robust optimisation (GroupDRO) need the risks of the environments and take all "
        f"{2 * s['train']:,} training images at every step, as *pooled, all data* does; the penalty of IRM and V-REx "
        f"acts after {s['annealed']} steps. There are {s['seeds']} seeds, each with its own split, flips, colours, "
        "start and batches; the tables show means with 95 % intervals.",
        "## Rules for the choice of a model\n\n"
        + "\n".join(f"- *{rule}*: {meaning}." for rule, meaning in RULES.items()),
        "A rule chooses the step size, the strength of the penalty and the number of steps (models are evaluated at "
        f"the start and every {s['every']} steps), from the step sizes {grid} (with a penalty from "
        f"{facts['grids']['IRM'][0][0]:g} on) and the "
        f"strengths: {strengths}. Validation has {s['validation']} images for each environment.",
        _findings(facts),
    ]
    for design in chosen:
        parts += [
            f"## {design.capitalize()} colours: {DESIGNS[design][0]:g}/{DESIGNS[design][1]:g}",
            "Accuracy with the colour reversed, one environment minus pooled, paired by seed:",
            results.table(["model", *(f"by {rule}" for rule in RULES)], _differences(facts, design)),
            f"![Accuracy with reversed colour by step size, {design} colours](colours-{design}.svg)",
            "At each step size every seed stops where its validation accuracy is best.",
        ]
        for model in chosen[design]:
            parts += [f"### {model}", _table(facts, design, model)]
    parts += [
        "## All methods at the default start",
        f"![Accuracy with reversed colour of all methods, {default}](colours-methods.svg)",
        "## Chosen settings",
        "The table shows the setting that is best on average over the seeds. If it lies at an end of the grid, "
        "brackets show its gain over the best setting inside, paired by seed, with a 95 % interval; in bold if the "
        f"gain is significant. This is the case for {beyond} of {at_ends} ends (of all rules): "
        + (
            "with these seeds wider grids would not change the results. "
            if not beyond
            else "there the grid is too short. "
        )
        + "The least strength gives nearly the same as *pooled, all data*. With the largest strength of V-REx only the "
        "penalty matters, and with that of GroupDRO the loss is the larger risk up to "
        f"{np.log(2) / facts['grids']['GroupDRO'][1][-1]:.1g}. Under validation, many small steps are equivalent to "
        "fewer larger ones. *Not trained* is the start: for the oracle, random guessing is more accurate than a model "
        "that uses the colour.",
        _settings(facts),
    ]
    return "\n\n".join(parts) + "\n"
