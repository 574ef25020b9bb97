"""Write the speed section of the README from the measured results (part of `make bench`)."""

import json
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, in_words

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- speed: written by make bench -->\n", "<!-- end of speed -->\n"


def read(name: str) -> dict[str, Any]:
    """Return the stored results of a benchmark."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def section() -> str:
    """Return the text of the section."""
    times = read("linear_model")["seconds_per_trajectory_step"]
    many = times["undertow, 64 seeds"]
    labels = {
        "undertow, 64 seeds": "undertow, 64 seeds",
        "undertow, one trajectory": "undertow, one trajectory",
        "numba": "numba, gradient written by hand, one thread",
        "numpy": "NumPy loop",
        "torch": "PyTorch autograd loop",
    }
    rows = [f"| {label} | {in_words(times[name])} | {times[name] / many:.2g} |" for name, label in labels.items()]
    factor = read("factorisation")["ratios"]["torch / 16 seeds"]
    memory = read("memory")
    growth = memory["MiB_after"] - memory["MiB_up_to_a_tenth"]
    taps = read("symmetry")["ratios"]
    gpu = read("accelerator_gpu")
    rate = f"{gpu['trajectory_steps_per_second']['65536']:.1e}".replace("e+0", "e")
    return "\n".join(
        [
            "| | time per trajectory and step | relative to undertow, 64 seeds |",
            "|---|---|---|",
            *(row.replace("e+03 |", "e3 |") for row in rows),
            "",
            f"Matrix factorisation (30 x 40 x 30, batches of 10, 16 seeds): {factor:.0f} times faster per step than "
            "PyTorch.",
            "The noise of every neuron of a 784-512-10 network at batch 1,024 costs "
            f"{taps['taps / gradient']:.2f} times a plain gradient, {taps['vmap(grad) / taps']:.0f} times less than",
            "per-sample gradients.",
            f"The memory of a run of 1e7 steps grows by {growth:.0f} MiB after its first tenth. On one {gpu['kind']},",
            f"65,536 seeds run at {rate} steps per second, summed over seeds (`python -m benchmarks accelerator`).",
            "",
        ]
    )


def main() -> None:
    """Replace the section in the README."""
    text = README.read_text()
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    README.write_text(head + BEGIN + section() + END + tail)


if __name__ == "__main__":
    main()
