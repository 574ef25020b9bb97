"""Do the scaling maps of a quantisation tool preserve the function? `python -m studies.scaling_maps`.

SmoothQuant and AWQ divide a norm or a linear layer by one scale per channel and multiply the layers that read it. The
tool llm-compressor keeps the lists of these layers by hand, for each architecture. The study takes a tiny model with
random weights of each architecture, the list that the tool selects for it, and checks every entry. It needs the files
of llm-compressor and compressed-tensors (not their dependencies) and loguru on the path; no weight is quantised.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from studies import results
from studies.scaling_maps_models import ARCHITECTURES, batch_of, build, language_loss
from studies.scaling_maps_page import WRITTEN, page
from undertow.torch import ScalingCheck, ScalingEntry, census, check_scaling_map
from undertow.torch.census.scaling.layers import LayerMatch
from undertow.torch.census.scaling.verdict import PROOF

NAME = "scaling-maps"
TOOL = "llmcompressor"
PARTS = (".modifiers", ".modifiers.utils", ".modifiers.transform", ".modifiers.transform.utils",
            ".modifiers.transform.awq", ".modifiers.transform.smoothquant")  # fmt: skip

MATCHING = "compressed_tensors"
"""The package with the function by which the tool groups layers."""

Lists = dict[str, Callable[[nn.Module], Sequence[ScalingEntry]]]


def _register(package: str, parts: Sequence[str]) -> None:
    """Register a package and parts of it without running their `__init__`, which imports all its dependencies."""
    for name in (package, *(package + part for part in parts)):
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"`studies.scaling_maps` needs {name}: `pip install --no-deps {package}`.")
        if name not in sys.modules:
            sys.modules[name] = importlib.util.module_from_spec(spec)


def tool_lists() -> Lists:
    """Return for each algorithm a function that selects the tool's list for a model."""
    _register(TOOL, PARTS)
    importlib.import_module("loguru").logger.disable(TOOL)
    of = lambda kind: importlib.import_module(f"{TOOL}.modifiers.transform.{kind}.dynamic_mappings")
    smooth, awq = of("smoothquant"), of("awq")
    return {
        "SmoothQuant": lambda model: [
            ScalingEntry(entry.smooth_layers, tuple(entry.balance_layers))
            for entry in smooth.get_layer_mappings_from_model(model)
        ],
        "AWQ": lambda model: [
            ScalingEntry(entry.smooth_layer, tuple(entry.balance_layers))
            for entry in awq.get_layer_mappings_from_model(model)
        ],
    }


def tool_matching() -> Callable[[nn.Module, ScalingEntry], set[LayerMatch] | None]:
    """Return a function that groups the layers of an entry as the tool does; None where the tool raises an error."""
    _register(MATCHING, (".utils",))
    groups_of = importlib.import_module(f"{MATCHING}.utils.match").match_modules_set

    def grouped(model: nn.Module, entry: ScalingEntry) -> set[LayerMatch] | None:
        names = {id(module): name for name, module in model.named_modules()}
        matches = set()
        try:
            for sources, *readers in groups_of(model, (entry.source, *entry.readers)):
                if len(sources) > 1:  # AWQ and SmoothQuant raise an error then
                    return None
                below = sorted(names[id(module)] for selected in readers for module in selected)
                matches.add(LayerMatch(names[id(sources[0])], tuple(below)))
        except ValueError:
            return None
        return matches

    return grouped


def matching_of(check: ScalingCheck, grouped: set[LayerMatch] | None) -> str:
    """Return whether the tool groups the layers as the check did: "same", "different" or "error"."""
    own = {LayerMatch(layer.source, tuple(sorted(layer.readers))) for layer in check}
    return "error" if grouped is None else "same" if grouped == own else "different"


def listed(algorithm: str, name: str) -> bool:
    """Return whether the tool has a list for an architecture, and does not use its default."""
    place = f"{TOOL}.modifiers.transform.{'awq' if algorithm == 'AWQ' else 'smoothquant'}"
    module = sys.modules[f"{place}.dynamic_mappings"]
    registries = [value for key, value in vars(module).items() if key.endswith("_REGISTRY")]
    return any(name in registry for registry in registries)


def facts_of(check: ScalingCheck) -> dict[str, Any]:
    """Return what the page shows of a check. Layers that the batch does not use are counted and left out."""
    layers = [layer for layer in check if layer.verdict != "unproved"]
    wrong = [layer for layer in layers if layer.verdict == "changes"]
    largest = lambda kind: max((getattr(layer, kind) for layer in layers), default=None)
    return {
        "source": check.entry.source, "readers": list(check.entry.readers), "layers": len(layers), "wrong": len(wrong),
        "undecided": len(check) - len(layers), "change": largest("change"), "own": largest("own_change"),
        "missing": list(check.missing), "extra": list(check.extra), "instead": list(check.instead),
        "unmatched": list(check.unmatched), "by_census": sum(layer.reason.startswith(PROOF) for layer in layers),
    }  # fmt: skip


def study(
    names: Sequence[str],
    lists: Lists,
    matching: Callable[[nn.Module, ScalingEntry], set[LayerMatch] | None],
    seed: int = 0,
) -> dict[str, Any]:
    """Return the checks of every entry, by architecture and algorithm, and those of the map that undertow writes."""
    found: dict[str, Any] = {}
    for name in names:
        start = time.perf_counter()
        model, batch = build(name, seed), batch_of(name, seed)
        symmetries = census(model, batch, language_loss, seed=seed)
        own = symmetries.scaling_map()
        selected = {algorithm: select(model) for algorithm, select in lists.items() if listed(algorithm, name)}
        facts = {}
        for algorithm, entries in {**selected, WRITTEN: own}.items():
            report = check_scaling_map(symmetries, entries, model=model, batch=batch, loss=language_loss, seed=seed)
            facts[algorithm] = [
                facts_of(check) | {"matching": matching_of(check, matching(model, check.entry))} for check in report
            ]
        found[name] = facts
        print(f"{name}: {len(symmetries)} symmetries, {time.perf_counter() - start:.1f} s", flush=True)
    return found


def main() -> None:
    """Check all lists, store the results and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(ARCHITECTURES), help="architectures to check")
    parser.add_argument("--page", action="store_true", help="write the page from the stored results")
    options = parser.parse_args()
    if not options.page:
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = study(options.only, tool_lists(), tool_matching())
        made = results.made_by(torch.device("cpu"), time.perf_counter() - start)
        made |= {
            package: importlib.metadata.version(package)
            for package in ("llmcompressor", "compressed-tensors", "transformers")
        }
        results.save(NAME, {"made": made, "architectures": found})
    results.publish(NAME, page, lambda facts: {})


if __name__ == "__main__":
    main()
