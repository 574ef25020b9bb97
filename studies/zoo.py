"""Does the census find every symmetry of known architectures, and no others? `python -m studies.zoo`.

Each architecture is built in a tiny configuration with random weights. `undertow.torch.census` is compared with the
null space of the derivatives of the outputs (`studies.reference`), which knows nothing of layers. Every symmetry of the
census is also moved along by a random finite amount, at other weights and on other data.

`python -m studies.zoo --only Llama LeNet` runs some of the architectures and writes nothing. The reference does not
depend on the census: `--references FOLDER` keeps it in a folder, for further runs.
"""

import argparse
import importlib.util
import pickle
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from studies import results
from studies.reference import (
    EXACT_EPS,
    WITHOUT_EPS,
    Reference,
    Space,
    moves_function,
    reference,
    smallest_space,
)
from studies.zoo_networks import NETWORKS, TIMM, TORCHVISION, library_module
from studies.zoo_transformers import TRANSFORMERS, Example
from undertow.torch import Census, census

NAME = "zoo"
LIBRARIES: dict[str, dict[str, Callable[[], Example]]] = {
    "torch.nn": NETWORKS,
    "transformers": TRANSFORMERS,
    "torchvision": TORCHVISION,
    "timm": TIMM,
}
MOVED_RTOL = 1e-7
"""Relative change of outputs along an orbit, in float64, above which a symmetry is false."""


@dataclass(frozen=True)
class Row:
    """The result of one architecture, in numbers of charges."""

    name: str
    library: str
    parameters: int = 0
    matrices: bool = True
    """Whether symmetric matrices were counted, d (d + 1)/2 for GL(d); otherwise scales, d for GL(d)."""
    found: int = 0
    reference: int = 0
    false: int = 0
    missed: int = 0
    rotated: int = 0
    """Symmetries of the reference that no axis states."""
    unexplained: int = 0
    change: float = 0.0
    """Largest relative change of outputs or loss along the orbits of the census."""
    approximate: tuple[int, int] = (0, 0)
    """Scales that hold up to the eps of norms: found, and in the reference."""
    seconds: float = 0.0
    """CPU time of the census."""
    error: str = ""
    missed_vectors: tuple[str, ...] = ()
    """Some of the missed symmetries: parameter@axis{index: coefficient}."""


class References(NamedTuple):
    """The references of an architecture."""

    exact: Reference
    strict: Reference
    """Scales in training mode, with a large eps in all norms."""
    loose: Reference
    """Scales in training mode, without eps."""


def references(name: str, example: Example, folder: Path | None = None) -> References:
    """Return the references of an architecture; with a folder they are computed once and kept there."""
    path = folder / f"{name}.pickle" if folder else None
    if path and path.exists():
        return References(*pickle.loads(path.read_bytes()))
    exact = reference(*example, space=smallest_space(example.model))
    strict, loose = (
        reference(*example, space=Space(example.model, "diagonal"), eps=eps, evaluation=False)
        for eps in (EXACT_EPS, WITHOUT_EPS)
    )
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(tuple(one.compressed() for one in (exact, strict, loose))))
    return References(exact, strict, loose)


def measure(name: str, library: str, build: Callable[[], Example], seed: int = 0, folder: Path | None = None) -> Row:
    """Return the row of an architecture; a crash of the census is part of it."""
    try:
        if importlib.util.find_spec("torchvision"):  # transformers imports it too
            library_module("torchvision")
        torch.manual_seed(seed)
        example = build()
    except (ImportError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        return Row(name, library, error=f"not built: {_short(error)}")
    count = sum(p.numel() for p in example.model.parameters())
    try:
        known = references(name, example, folder)
    except (RuntimeError, ValueError) as error:
        return Row(name, library, count, error=f"not counted: {_short(error)}")
    exact = known.exact
    row: dict[str, Any] = {
        "parameters": count, "matrices": exact.space.kind != "diagonal", "reference": exact.charges,
        "rotated": exact.rotated,
    }  # fmt: skip
    start = time.process_time()
    try:
        found = census(*example)
    except Exception as error:
        return Row(name, library, **row, missed=exact.charges, error=f"census: {_short(error)}")
    row["seconds"] = time.process_time() - start
    _, row["found"], row["false"], row["missed"] = exact.compare(found)
    row["unexplained"] = len(getattr(found, "unexplained", ()))
    changes = [moves_function(example.model, s, *example[1:], eps=EXACT_EPS) for s in found]
    row["change"] = max((max(change) for change in changes), default=0.0)
    row["missed_vectors"] = tuple(exact.missed(found, 4)) if row["missed"] else ()
    row["approximate"] = approximate(known, found)
    return Row(name, library, **row)


def approximate(known: References, found: Census) -> tuple[int, int]:
    """Return the number of scales that hold up to eps: in the census and in the reference."""
    both = [*found, *found.approximate]
    right = [count.charges - count.compare(both).missed for count in (known.strict, known.loose)]
    return right[1] - right[0], known.loose.charges - known.strict.charges


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]


def study(only: Sequence[str] = (), stored: dict[str, Any] | None = None, folder: Path | None = None) -> dict[str, Any]:
    """Run all architectures or some, except those with a stored row. Without `only` save the results after each."""
    facts = stored or {"rows": [], "seconds": 0.0}
    before, start = facts["seconds"], time.perf_counter()
    known = {row["name"]: row for row in facts["rows"]}
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for library, builders in LIBRARIES.items():
            for name, build in builders.items():
                if only and name not in only:
                    continue
                rows.append(known.get(name) or asdict(measure(name, library, build, folder=folder)))
                spent = before + time.perf_counter() - start
                facts = {"rows": rows, "versions": _versions()} | results.made_by(torch.device("cpu"), spent)
                if name not in known:
                    _report(rows[-1], spent, bool(only))
                    if not only:
                        remaining = [row for row in known.values() if row not in rows]
                        results.save(NAME, facts | {"rows": rows + remaining})
    return facts


def _report(row: dict[str, Any], seconds: float, vectors: bool) -> None:
    print(f"{seconds:7.1f} s  {' '.join(_cells(row))}", flush=True)
    for vector in row["missed_vectors"] if vectors else ():
        print(f"           missed: {vector}", flush=True)


def _versions() -> dict[str, str]:
    from importlib import metadata

    found = {}
    for library in ("transformers", "torchvision", "timm"):
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            found[library] = "not installed"
    return found


def _cells(row: dict[str, Any]) -> list[str]:
    if row["error"]:
        return [row["name"], "", str(row["reference"] or ""), "", str(row["missed"] or ""), "", "", "", row["error"]]
    return [
        row["name"], *(str(row[key]) for key in ("found", "reference", "false", "missed", "unexplained")),
        "{} of {}".format(*row["approximate"]), f"{row['seconds']:.1f}", "" if row["matrices"] else "scales only",
    ]  # fmt: skip


def _moves(rows: list[dict[str, Any]]) -> str:
    """Return a sentence about the changes along orbits."""
    wrong = [row for row in rows if row["change"] > MOVED_RTOL]
    least = max((row["change"] for row in rows if row not in wrong), default=0.0)
    text = f"outputs and loss change by at most {least:.0e} of their size"
    if not wrong:
        return f"{text}."
    names = " and ".join(f"{row['name']} ({row['change']:.2g})" for row in wrong)
    return f"{text}, except on {names}."


def page(facts: dict[str, Any]) -> str:
    """Return the page, with all numbers from the results."""
    rows = facts["rows"]
    ran = [row for row in rows if not row["error"]]
    crashed = [row for row in rows if row["error"].startswith("census")]
    total = lambda key, some=rows: sum(row[key] for row in some)
    judged = [row for row in rows if not row["error"].startswith("not ")]
    perfect = [row for row in ran if not row["missed"] and not row["false"]]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    head = [
        "architecture", "found", "reference", "false", "missed", "unexplained", "up to eps", "seconds", "",
    ]  # fmt: skip
    missed = [
        f"| {row['name']} | `{vector[:160]}{'...' if len(vector) > 160 else ''}` |"
        for row in ran for vector in row["missed_vectors"][:1]
    ]  # fmt: skip
    parts = [
        "# Does the census find every symmetry?",
        "Written by `python -m studies.zoo` from `studies/results/zoo.json`; do not edit by hand. "
        f"{facts['seconds']:.0f} s on one core ({facts['device']}, PyTorch {facts['torch']}, {versions}).",
        "The [census](../torch.md) lists the symmetries of a network. The study compares it with an independent "
        f"reference on {len(rows)} architectures, in tiny configurations with random weights. The numbers of the table "
        "count charges, of which a symmetry has one or more. The reference does not use the types of layers: it puts "
        "an unknown matrix on every axis of every parameter (in 3-D parameters and grouped convolutions also for each "
        "expert or group), and counts the motions along which no output and no loss changes, at many random draws of "
        "the weights and of dropout, in training and in evaluation mode, in float64. It counts symmetric matrices, "
        "$d(d + 1)/2$ for $GL(d)$, as `Symmetry.generators` does; where there are too many unknowns it counts scales "
        "only, $d$ for $GL(d)$. Motions of parameters that have no effect at all, such as a key bias, do not count.",
        f"The census finds {total('found') - total('false'):,} of {total('reference', judged):,} charges. "
        f"{total('false')} of its charges are false. On {len(perfect)} of {len(judged)} architectures it finds all "
        f"symmetries and no others; it fails with an error on {len(crashed)}. Each symmetry was also tested with a "
        "random group element at other random weights and on other data, in both modes, with a large eps in all norms: "
        f"{_moves(ran)}",
        results.table(head, [_cells(row) for row in rows]),
        '"Seconds" is the CPU time of the census, "unexplained" the length of `census.unexplained`. "Up to eps" are '
        "scales that hold up to the eps of norms "
        f"(`census.approximate`), found by the census and by the reference. {total('rotated', judged)} further charges "
        "of the reference belong to no axis and are not in the table: where every norm that reads a residual stream "
        "removes the mean of the stream, but a linear layer reads the stream too, this mean has a scale of its own.",
    ]
    if missed:
        parts += [
            "## Missed symmetries",
            "The table has one missed symmetry per architecture, as `parameter@axis{index: coefficient}`; `[e]i` is "
            "index i for index e of the first axis, `i,j` an entry off the diagonal.",
            "\n".join(["| architecture | missed |", "| --- | --- |", *missed]),
        ]
    parts += [
        "## Libraries",
        "torchvision and timm are not dependencies of undertow. The row of a model that was not built gives the "
        "reason. The models need none of the compiled operators of torchvision. Where these cannot be loaded (there is "
        "no build for a PyTorch without CUDA) the study declares them without an implementation.",
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Run the study and write its page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="run these architectures, write nothing")
    parser.add_argument("--resume", action="store_true", help="run the architectures that have no stored row")
    parser.add_argument("--references", type=Path, metavar="FOLDER", help="keep the references in this folder")
    options = parser.parse_args()
    facts = study(options.only, results.load(NAME) if options.resume else None, options.references)
    if not options.only:
        results.save(NAME, facts)
        results.publish(NAME, page, lambda facts: {})


if __name__ == "__main__":
    main()
