"""The page of the study of scaling maps: counts, sentences and tables from its results."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from studies.results import number, table

__all__ = ["WRITTEN", "page"]

WRITTEN = "undertow"
"""Key of the checks of the map that undertow writes."""
MISSING = {
    "the router of a mixture of experts": (".gate.", ".router."),
    "the shared expert or its gate": ("shared_expert",),
    "the indexer of a sparse attention": (".indexer.",),
}
"""Parts of the names of readers that lists leave out, by what the reader is."""


def _entries(facts: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Return every entry of the tool with its architecture and algorithm."""
    for name, lists in facts["architectures"].items():
        for algorithm, entries in lists.items():
            if algorithm != WRITTEN:
                yield from ((name, algorithm, entry) for entry in entries)


def _percent(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1%}".replace("%", " %") if value >= 1e-3 else f"{value:.0e}"


def _code(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _short(names: list[str]) -> str:
    """Return names without the path that leads to a block of the network."""
    return _code([name.rpartition("layers.*.")[2] for name in names])


def _finding(entry: dict[str, Any]) -> str:
    parts = []
    if entry["instead"]:
        parts.append(f"the readers read {_short(entry['instead'])}")
    if entry["missing"]:
        parts.append(f"missing: {_short(entry['missing'])}")
    if entry["extra"]:
        parts.append(f"too many: {_short(entry['extra'])}")
    if entry["unmatched"]:
        parts.append(f"without a weight: {_code(entry['unmatched'])}")
    return "; ".join(parts)


def _defect(entry: dict[str, Any]) -> str:
    """Return the reason why an entry changes the function, the same text for the same kind of reason."""
    left_out = [
        reader
        for reader, words in MISSING.items()
        if any(word in f"{name}." for word in words for name in entry["missing"])
    ]
    reasons = [f"the list leaves out {' and '.join(left_out)}"] if left_out else []
    if entry["instead"]:
        reasons.append("the readers read a norm other than the one that is named")
    if entry["extra"]:
        reasons.append("the list scales layers that do not read the source")
    return ", and ".join(reasons)


def _wrong_table(facts: dict[str, Any]) -> str:
    rows = [
        [
            name, algorithm, f"`{entry['source']}`", f"{entry['wrong']} of {entry['layers']}", entry["matching"],
            _percent(entry["change"]), _percent(entry["own"]), _finding(entry),
        ]
        for name, algorithm, entry in _entries(facts)
        if entry["wrong"]
    ]  # fmt: skip
    head = [
        "architecture", "list", "source", "layers", "tool's matching", "change, random weights",
        "change, initialisation", "finding",
    ]  # fmt: skip
    return table(head, rows)


def _count_table(facts: dict[str, Any]) -> str:
    rows = []
    for name, lists in facts["architectures"].items():
        cells = []
        for algorithm in ("SmoothQuant", "AWQ"):
            entries = lists.get(algorithm)
            right = [e for e in entries or [] if e["layers"] and not e["wrong"] and not e["unmatched"]]
            cells.append("no list" if entries is None else f"{len(right)} of {len(entries)}")
        rows.append([name, *cells, str(len(lists[WRITTEN]))])
    head = ["architecture", "SmoothQuant, right entries", "AWQ, right entries", "entries of undertow's map"]
    return table(head, rows)


def _largest(entries: list[dict[str, Any]]) -> str:
    return f"{max(max(entry['change'], entry['own']) for entry in entries):.0e}"


def _findings(facts: dict[str, Any]) -> list[str]:
    entries = list(_entries(facts))
    lists = {(name, algorithm) for name, algorithm, _ in entries}
    wrong = [entry for _, _, entry in entries if entry["wrong"]]
    wrong_lists = {(name, algorithm) for name, algorithm, entry in entries if entry["wrong"]}
    right = [entry for _, _, entry in entries if entry["layers"] and not entry["wrong"]]
    written = [entry for of_model in facts["architectures"].values() for entry in of_model[WRITTEN]]
    empty = [f"{name}, {a}, {_code(entry['unmatched'])}" for name, a, entry in entries if entry["unmatched"]]
    span = lambda kind: " to ".join(_percent(f(entry[kind] for entry in wrong)) for f in (min, max))
    matching = lambda kind: sum(entry["matching"] == kind for _, _, entry in entries)
    defects = Counter(map(_defect, wrong)).most_common()
    no_layers = sum(not entry["layers"] for _, _, entry in entries)
    return [
        f"- {len(wrong_lists)} of {len(lists)} lists have an entry that changes the function. {len(wrong)} of "
        f"{len(entries)} entries change it, by {span('change')} at random weights and by {span('own')} at the default "
        "initialisation. Routers that are zero at initialisation have no effect there.",
        f"- The tool's own function for matching selects the same layers in {matching('same')} of the {len(entries)} "
        f"entries and other layers in {matching('different')}. In {matching('error')} it raises an error on these "
        f"models. Of the {len(wrong)} entries that change the function, it selects the same layers in "
        f"{sum(entry['matching'] == 'same' for entry in wrong)}.",
        f"- The {len(wrong)} entries, each counted once, by the reason: "
        f"{'; '.join(f'{defect} ({count})' for defect, count in defects)}.",
        f"- Patterns that select no layer with a weight: {'; '.join(empty) or 'none'}.",
        f"- Of the other {len(entries) - len(wrong)} entries, {no_layers} selects no layer and {len(right)} preserve "
        f"the function: outputs change by at most {_largest(right)}. For "
        f"{sum(entry['by_census'] for entry in right)} of their {sum(entry['layers'] for entry in right)} layers the "
        "census alone proves this.",
        f"- The maps that undertow writes for the same models (`census.scaling_map()`) have {len(written)} entries, of "
        f"which {sum(bool(entry['wrong']) for entry in written)} change the function; outputs change by at most "
        f"{_largest(written)}. The tool's matching selects the same layers in "
        f"{sum(entry['matching'] == 'same' for entry in written)} of them. Where blocks are of different kinds, the "
        "patterns of undertow's map contain the numbers of the blocks.",
    ]  # fmt: skip


def page(facts: dict[str, Any]) -> str:
    """Return the page of the study, from its results."""
    made, entries = facts["made"], [entry for _, _, entry in _entries(facts)]
    undecided, layers = (sum(entry[kind] for entry in entries) for kind in ("undecided", "layers"))
    parts = [
        "# Scaling maps of a quantisation tool: do they preserve the function?",
        "Written by `python -m studies.scaling_maps` from `studies/results/scaling-maps.json`; do not edit by hand. "
        f"{number(made['seconds'])} s on one core ({made['device']}, PyTorch {made['torch']}, transformers "
        f"{made['transformers']}, llm-compressor {made['llmcompressor']}, compressed-tensors "
        f"{made['compressed-tensors']}).",
        "SmoothQuant and AWQ divide the outputs of a norm or a linear layer (the source) by one scale per channel, and "
        "multiply the inputs of the layers that read it by the same scales. If every reader is in the list, the "
        "function of the network does not change. The lists of llm-compressor, the tool of this study, are written by "
        "hand for each architecture. The study builds a tiny model with random weights for each of "
        f"{len(facts['architectures'])} architectures, takes the lists that the tool selects for them, and checks "
        "every entry with [`census.check_scaling`](../howto/scaling-maps.md). *Change* is the norm of the change of "
        "the outputs divided by the norm of the outputs, in double precision, for random scales between 0.58 and 1.73. "
        "One layer is scaled at a time; the tables show the largest change over the layers.",
        "## Findings",
        "\n".join(_findings(facts)),
        "## Entries that change the function",
        _wrong_table(facts),
        "Comments in the tool's files say of some lists that the router is left out on purpose. The reason given for "
        "Cohere2Moe, Glm4MoeLite, GlmMoeDsa and DeepseekV2 is that the first layers of these models have no router, "
        "which the matching of the tool does not allow; for the AWQ lists of Qwen3Next and Qwen3.5, that the router is "
        "a parameter and not a layer.",
        "## All lists",
        _count_table(facts),
        "An entry is right if it preserves the function in every layer and each of its patterns selects a layer with a "
        "weight.",
        "## Limitations",
        "- Random weights and random scales show whether a list is right. They do not show by how much a wrong list "
        "degrades a quantised model: the tools choose their scales from activations.\n"
        "- Readers are assigned to the source with which they share the deepest parent; *tool's matching* says whether "
        "the tool groups the same layers. AWQ skips values against an output projection where key-value heads are "
        "fewer than heads; here each scale is repeated for the heads of its group.\n"
        "- The sparse attention of GlmMoeDsa selects 3 of 9 tokens. In a larger model the number of "
        "selected tokens differs, and with it the change.\n"
        "- Experts are linear layers, as the tool converts them. Norms that compute with 1 + weight are divided as a "
        "whole, as the tool does.\n"
        f"- The batches are text. {undecided} of {undecided + layers} layers process images or sound and are not "
        "counted. The tool also has lists for architectures that this version of transformers does not have (ChatGLM, "
        "Nanbeige, Phi3V, Step3p5, Qwen2_5OmniModel); they are not checked.",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"
