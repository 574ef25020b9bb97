"""Numbers that pages quote from stored benchmarks are those of the files, rounded as on the page."""

import json
import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def stored(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def one_digit(value: float) -> str:
    """Return a small number with one digit, such as 5e-14 and 9e-7."""
    return re.sub(r"e-0", "e-", f"{value:.0e}")


def power_of_ten(value: float, digits: int = 1) -> str:
    """Return a number with some digits in LaTeX."""
    factor, exponent = f"{value:.{digits - 1}e}".split("e")
    return rf"${factor} \times 10^{{{int(exponent)}}}$"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def with_error(values: list[float]) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.fmean(values):.2g} ± {error:.1g}"


def test_the_cost_of_the_monitor_on_a_cpu():
    """Run `python -m benchmarks torch_monitor` for new numbers."""
    facts, text = stored("torch_monitor"), page("monitor.md")
    both = [facts["mlp"], facts["transformer"]]
    mlp, transformer = both
    smooth = facts["smooth transformer"]
    rows = {
        "step without a monitor": [milliseconds(one["plain"]) for one in both],
        "measured at every step": [f"{one['ratio']:.2f} times that" for one in both],
        "measured at every 50 steps": [f"+{percent(one['every_50'], 1)}" for one in both],
        "largest error against per-sample gradients, both in double precision": [
            one_digit(one["error"]) for one in both
        ],
        "largest error against per-sample gradients, both in single precision": [
            one_digit(one["error_single"]) for one in both
        ],
        "single precision against per-sample gradients in double precision": [
            one_digit(mlp["single_against_double"]),
            f"{one_digit(transformer['single_against_double'])}; with GELU for ReLU "
            f"{one_digit(smooth['single_against_double'])}",
        ],
    }
    for label, cells in rows.items():
        assert f"| {label} | {' | '.join(cells)} |\n" in text
    times = f"{mlp['vmap'] / mlp['extra']:.0f} times the additional time of the monitor"
    assert f"| per-sample gradients by `vmap(grad)` | {times} | |\n" in text
    assert f"| symmetries | 512 scales | {transformer['symmetries']}, with GL(64) for every head |\n" in text


def test_the_cost_of_the_monitor_on_a_gpu():
    """Run `python -m benchmarks llama_monitor` on a machine with a GPU for new numbers."""
    facts, text = stored("llama_monitor_gpu"), page("monitor.md")
    models = {name: one for name, one in facts.items() if isinstance(one, dict)}
    assert len(re.findall(r"^\| [\w.]+, (?:SGD|AdamW) \|", text, flags=re.MULTILINE)) == len(models)
    for name, one in models.items():
        cells = [
            name, milliseconds(one["plain_seconds"]), milliseconds(one["measured_seconds"]),
            f"{one['steps']:.2f} ± {one['standard_error']:.2f}", percent(one["every_50"], 1), percent(one["memory"]),
        ]  # fmt: skip
        assert f"| {' | '.join(cells)} |\n" in text
        assert one["waits"] == one["plain_waits"] == 1


def test_the_cost_of_the_monitor_for_short_steps_on_a_gpu():
    """Run `python -m benchmarks.torch_cuda` on a machine with a GPU for new numbers."""
    facts, text = stored("torch_cuda"), " ".join(page("monitor.md").split())
    small = [facts["monitor, mlp"], facts["monitor, transformer"]]
    steps = " and ".join(f"{1000 * one['seconds_plain']:.1f} ms" for one in small)
    added = " and ".join(percent(one["every_50"], 1) for one in small)
    assert f"have steps of {steps}, during" in text
    assert f"at every 50 steps adds {added} (" in text


TELEPORTS = {"network": "ReLU network 8-32-32-4", "llama": "Llama, 2 layers", "lora": "LoRA on it, B not 0"}


@pytest.mark.parametrize("start", ["default", "imbalanced"])
@pytest.mark.parametrize("model", list(TELEPORTS))
def test_the_effects_of_the_move(model, start):
    """Run `python -m benchmarks torch_teleport` for new numbers."""
    runs = stored("torch_teleport")[f"{model}, {start}"]
    assert len(runs) == 6
    noise, step, survived, loss = ([run[key] for run in runs] for key in ("noise", "step", "survived", "loss"))
    trainable = with_error(survived)
    if model == "lora":
        assert set(survived) == {1.0}
        trainable = "none diverged"
    difference = f"{statistics.fmean(loss):+.3f} ± {statistics.stdev(loss) / len(loss) ** 0.5:.3f}"
    cells = [TELEPORTS[model], start, with_error(noise), with_error(step), trainable, difference]
    assert f"| {' | '.join(cells)} |\n" in page("torch.md")


def test_the_times_of_the_tutorials():
    """Run `python -m benchmarks tutorials` for new numbers."""
    rows = re.findall(
        r"^\| \[.*\]\(([\w-]+)\.md\) \| .* \| (\d+) s \| .* \|$", page("tutorials/index.md"), re.MULTILINE
    )
    facts = stored("tutorials")
    assert facts["cores"] == 2
    assert {name: int(seconds) for name, seconds in rows} == {
        name: round(seconds) for name, seconds in facts["processor_seconds"].items()
    }


def test_the_comparisons_with_libraries():
    """Run `python -m benchmarks libraries` for new numbers."""
    facts, text = stored("libraries"), page("design.md").replace("\n  ", " ")
    flow = facts["limiting_flow"]
    own, alone = flow["tolerance 1e-06, with retractions"], flow["tolerance 1e-06, diffrax alone"]
    minima, near = facts["isolated_minima"], facts["points_near_a_manifold"]
    bfgs, newton = minima["optimistix BFGS"], minima["optimistix Newton"]
    null, hashes, entries = facts["null_spaces"], facts["hashes"], facts["reference_entries"]
    lanczos, traces = facts["lanczos"], facts["traces"]
    ms = lambda seconds, digits=1: f"{1000 * seconds:.{digits}f} ms"
    large = {name: lanczos[f"seconds, Hessian of D = 20,000, {name}"] for name in ("own", "hessenberg")}
    differences = [value for name, value in lanczos.items() if name.startswith("relative difference")]
    probes = {name: [traces[f"{unit} of 64 probes at D = 20,000, {name}"] for unit in ("MiB", "seconds")]
              for name in ("own", "matfree")}  # fmt: skip
    for sentence in (
        f"at a distance of {power_of_ten(alone['distance to the manifold'], 2)} from the manifold, with a relative "
        f"error of {power_of_ten(alone['relative error'], 2)}",
        f"the distance is {power_of_ten(own['distance to the manifold'], 2)} and the error "
        f"{power_of_ten(own['relative error'], 2)}, in {own['seconds'] / alone['seconds']:.1f} times the time "
        f"({ms(own['seconds'])} and {ms(alone['seconds'])})",
        f"From {minima['own']['starts']} random starts on a two-layer network with a broken symmetry it reaches "
        f"{minima['own']['minima']} minima.",
        f"reaches {newton['minima']} minima and {newton['saddles']} saddles, and does not converge from "
        f"{newton['not converged']} starts",
        f"reaches {bfgs['minima']} minima in {bfgs['seconds'] / minima['own']['seconds']:.1f} times the time "
        f"({ms(bfgs['seconds'])} and {ms(minima['own']['seconds'], 2)})",
        f"{power_of_ten(bfgs['relative gradient, median'])} instead of "
        f"{power_of_ten(minima['own']['relative gradient, median'])}",
        f"at most {percent(near['motion along the manifold, own, largest'], 1)} of that distance",
        f"moves up to {percent(near['motion along the manifold, optimistix Newton, largest'])} of it",
        f"the {null['entries that are not zero, own']} entries that are not zero, and that of "
        f"`scipy.linalg.null_space` has {null['entries that are not zero, SciPy']}",
        f"A set of strings and tuples has {hashes['hashes of one set of words in 8 processes, joblib']} different "
        "values of `joblib.hash` in 8 processes",
        f"{entries['entries without a signature, griffe']} of the {entries['entries']} entries have no signature. "
        f"With the extension {entries['entries without a signature, with the extension']} have none",
        f"({entries['typeset subscripts and superscripts']} subscripts and superscripts)",
        f"the {entries['rows in tables of fields']} documented fields",
        f"returns {lanczos['largest eigenvalue of 2 I, eigh_partial']:.0f} as the largest eigenvalue of $2I$",
        f"takes {large['hessenberg'] / large['own']:.1f} times the time",
        f"({ms(large['hessenberg'])} and {ms(large['own'])} for 40 steps)",
        f"The eigenvalues agree to {power_of_ten(max(differences))}",
        f"need {probes['matfree'][0]:.0f} MiB of temporary memory and {ms(probes['matfree'][1])}",
        f"they need {probes['own'][0]:.1f} MiB and {ms(probes['own'][1])}",
    ):
        assert sentence in text
