"""Pages made from the program: claims with their figures, errata, coverage, performance, changelog, how to cite."""

import ast
import html
import importlib.util
import json
import re
import statistics
from pathlib import Path
from typing import Any

from benchmarks.harness import in_words
from docs import full, gallery
from docs.reference import command_line, reference_pages
from docs.setting import equation, words
from studies.results import table
from undertow.figures.inline import inline, words_of
from undertow.verification import claims
from undertow.verification import errata as corrections
from undertow.verification.claim import PAPERS, Claim
from undertow.verification.presentation import alternative_text, measured_text, prediction_text
from undertow.verification.report import TITLES, VERDICTS
from undertow.verification.result import CheckResult, ClaimResult

__all__ = ["all_pages", "figure"]

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def all_pages() -> dict[str, str]:
    """Every page that is made, by its place in the site."""
    pages = {"gallery/index.md": gallery_index()}
    pages |= {f"gallery/{paper}.md": gallery_page(paper) for paper in PAPERS}
    pages["full/index.md"] = full_report()
    pages |= {"errata.md": errata(), "performance.md": performance(), "changelog.md": changelog(), "cite.md": cite()}
    if importlib.util.find_spec("undertow.verification.coverage") is not None:
        pages["coverage.md"] = coverage()
    return pages | reference_pages() | {"api/command-line.md": command_line()}


def link(claim: str) -> str:
    """A claim's name, leading to its place in the gallery."""
    return f"[`{claim}`](gallery/{claims[claim].paper}.md#{claim})" if claim in claims else f"`{claim}`"


def verdict(name: str) -> str:
    """A verdict in its colour and shape."""
    return f'<span class="verdict {name}">{name}</span>'


# the gallery


def gallery_index() -> str:
    """All claims with their verdicts, and how the figures were made."""
    results = gallery.results()
    scales = ", ".join(sorted({result.task.scale for result in results.values()})) or "none yet"
    devices = ", ".join(sorted({_device(result).split(":")[0] for result in results.values()}))
    tally = {name: sum(result.verdict == name for result in results.values()) for name in VERDICTS}
    listed = "\n".join(f"- {verdict(n)} {tally[n]}: {VERDICTS[n]}" for n in reversed(VERDICTS) if tally[n])
    parts = [
        "# Gallery of claims",
        f"undertow turns {len(claims)} statements of three papers, and of its own beyond them, into experiments. "
        "Each has a criterion that is the same at every scale and allows for four standard errors, an alternative that "
        "it must be able to reject, and a figure drawn by the program: theory is a line, experiment is points with "
        "intervals.",
        f"The figures below were made by `make gallery`, which is `undertow verify --scale smoke` and "
        f"`python -m docs.gallery` (scale: {scales}; device: {devices}). Larger scales differ in seeds, steps and "
        "sizes only. [Reading a report](../howto/reading-a-report.md) says what every number means.",
        listed,
    ]
    for paper in PAPERS:
        rows = [_row(claim, results.get(claim.id)) for claim in claims.values() if claim.paper == paper]
        head = "| claim | place | verdict | measured | predicted |\n|---|---|---|---|---|"
        parts += [f"## {TITLES[paper]}", "\n".join([head, *rows])]
    return "\n\n".join(parts) + "\n"


def _row(claim: Claim, result: ClaimResult | None) -> str:
    name = f"[`{claim.id}`]({claim.paper}.md#{claim.id})"
    if result is None:
        return f"| {name} | {words(claim.place)} | expected: {corrections.expected(claim.id)} | | |"
    first = result.checks[0]
    return f"| {name} | {words(claim.place)} | {verdict(result.verdict)} | {_measured(first)} | {_predicted(first)} |"


def _device(result: ClaimResult) -> str:
    return "" if result.provenance is None else result.provenance.device


def _measured(check: CheckResult) -> str:
    return words(measured_text(check.criterion, check.measured, check.uncertainty))


def _predicted(check: CheckResult) -> str:
    return words(prediction_text(check.criterion, check.predicted, check.printed))


def _alternative(check: CheckResult) -> str:
    return "" if check.alternative is None else words(alternative_text(check.criterion, check.alternative))


def gallery_page(paper: str) -> str:
    """The claims of one paper, each with its figure."""
    results = gallery.results()
    sections = [_claim(claim, results.get(claim.id)) for claim in claims.values() if claim.paper == paper]
    opening = words("Places are those of the paper; the words are undertow's. All claims: [gallery]").replace(
        "&#91;gallery&#93;", "[gallery](index.md)"
    )
    return "\n\n".join([f"# {TITLES[paper]}", f"{opening}.", *sections]) + "\n"


def _claim(claim: Claim, result: ClaimResult | None) -> str:
    parts = [f"## {claim.id} {{ #{claim.id} }}"]
    judged = verdict(result.verdict) if result else f"expected: {corrections.expected(claim.id)}"
    parts += [f"{judged} <span class='place'>{words(claim.place)}</span>", words(claim.statement)]
    parts += [equation(claim.equation), f"Alternative that the data must reject: {words(claim.alternative)}"]
    if any(erratum.claim == claim.id for erratum in corrections.errata()):
        parts.append(f"This claim decides an [erratum](../errata.md#{claim.paper}).")
    if result is None:
        parts.append("No figure yet: `make gallery` draws it.")
    else:
        parts += [f'<div class="figure-here" data-claim="{claim.id}"></div>', _checks(result)]
        if result.note:
            parts.append(words(result.note))
        lost = f", {result.diverged} of them diverged and left out" if result.diverged else ""
        parts.append(f"{result.seeds:,} seeds{lost}; {result.seconds:.1f} s. Make it again:")
    parts.append(f"```console\nundertow verify {claim.id} --scale smoke\n```")
    return "\n\n".join(parts)


def _checks(result: ClaimResult) -> str:
    rows = [
        f"| {words(c.what)} | {_measured(c)} | {_predicted(c)} "
        f"| {_alternative(c)} | {words(str(c.criterion))} | {verdict(c.verdict)} |"
        for c in result.checks
    ]
    return "\n".join(
        ["| check | measured | predicted | alternative | criterion | verdict |", "|---|---|---|---|---|---|", *rows]
    )


def figure(claim: str) -> str:
    """A figure of the gallery as an element of the page, in the page's colours, with the figure in words below."""
    svg = (gallery.FOLDER / f"{claim}.svg").read_text()
    description = words_of(svg)
    drawn = inline(svg, claim, f"Figure of {claim}. {description}")
    scrolls = f' tabindex="0" role="group" aria-label="Figure of {claim}"' if "--least" in drawn else ""
    return (
        f'<figure data-search-exclude><div class="plot"{scrolls}>{drawn}</div><figcaption><details><summary>The figure '
        f"in words</summary>{html.escape(description)}</details></figcaption></figure>"
    )


# the report at full size


def full_report() -> str:
    """The report of the largest scale that is kept as an example: how it was made, and every claim in a line."""
    results, made = full.results(), full.made()
    size = (full.FOLDER / "report.html").stat().st_size / 1e6
    known = sum(result.verdict == corrections.expected(result.claim) for result in results)
    where = {result.claim: _device(result).split(": ")[-1] for result in results}
    beside = sum(kind == "cpu" for kind in where.values())
    (kind,) = {kind for kind in where.values() if kind != "cpu"}
    sizes = {result.claim: result.task.parameters for result in results}
    versions = ", ".join(f"{name} {made.versions[name]}" for name in ("python", "jax", "equinox", "numpy"))
    parts = [
        "# The full report",
        f"`full` is the scale of the papers: matrix sensing at d = {sizes['filtering-by-spread']['d']} with "
        f"{sizes['filtering-by-spread']['seeds']:,} seeds a point, a factorisation with "
        f"{sizes['norm-ratio-settings']['hidden']:,} hidden units, long runs with many seeds. It wants a GPU. "
        "This report was made once and is kept as an example: **[the report](report.html)**, one file of "
        f"{size:.1f} MB with all figures, settings and commands.",
        "```console\nundertow verify --scale full --jobs 16\n```",
        f"{len(results)} claims, {known} with the verdict that is expected, in {made.seconds / 60:.1f} minutes "
        f"from an empty compilation cache on one {kind} with 16 processor cores: {len(results) - beside} claims on the "
        f"GPU, {beside} of small models on the cores beside it. The source was that of commit `{made.commit}` "
        f"({versions}). Seconds are those of the claim itself, measured while others ran. {made.remark}",
    ]
    for paper in PAPERS:
        rows = [_full_row(result, where) for result in results if claims[result.claim].paper == paper]
        head = "| claim | verdict | measured | predicted | seeds | seconds | on |\n|---|---|---|---|---|---|---|"
        parts += [f"## {TITLES[paper]}", "\n".join([head, *rows])]
    return "\n\n".join(parts) + "\n"


def _full_row(result: ClaimResult, where: dict[str, str]) -> str:
    claim, first = claims[result.claim], result.checks[0]
    cells = [
        f"[`{claim.id}`](report.html#{claim.id})",
        verdict(result.verdict),
        _measured(first),
        _predicted(first),
        f"{result.seeds:,}",
        f"{result.seconds:.0f}",
        "cores" if where[claim.id] == "cpu" else "GPU",
    ]
    return f"| {' | '.join(cells)} |"


# errata and coverage


def errata() -> str:
    """What the papers print wrongly."""
    parts = [
        "# Errata",
        "What the papers print, what is right, and the claim whose measurement decides; a few slips need none. "
        f"`undertow errata` prints the same list ({len(corrections.errata())} corrections). A claim that decides one "
        f"gets the verdict {verdict('corrected')} only if the data reject what is printed and agree with the "
        "correction.",
    ]
    for paper in PAPERS:
        parts.append(f"## {TITLES[paper]} {{ #{paper} }}")
        for erratum in corrections.errata():
            if erratum.paper == paper:
                parts += [
                    f"### {words(erratum.place)}",
                    f"In print\n:   {words(erratum.printed)}\n\nRight\n:   {words(erratum.right)}\n\n"
                    f"Decided by\n:   {link(erratum.claim) if erratum.claim else 'reading the paper'}",
                ]
    return "\n\n".join(parts) + "\n"


def coverage() -> str:
    """Every result of the papers, with the claims that test it or the reason why none does."""
    table = importlib.import_module("undertow.verification.coverage")
    parts = [
        "# Coverage",
        "Every result of the papers, in their order, with the claims that check it or the reason why none does. The "
        "claims at the end say what no sentence of a paper does.",
    ]
    for paper in PAPERS:
        rows = ["| result | what it says | claims, or the reason |", "|---|---|---|"]
        for entry in table.coverage():
            if entry.paper == paper:
                checked = ", ".join(link(claim) for claim in entry.claims)
                last = "; ".join(filter(None, [checked, words(entry.reason)]))
                rows.append(f"| {words(entry.result)} | {words(entry.says)} | {last} |")
        parts += [f"## {TITLES[paper]}", "\n".join(rows)]
    rows = [f"| {link(addition.claim)} | {words(addition.adds)} |" for addition in table.additions()]
    parts += ["## Beyond the papers", "\n".join(["| claim | what it adds |", "|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


# performance


def performance() -> str:
    """Every file of benchmarks/results, beside what its benchmark says it measures."""
    parts = [
        "# Performance",
        "Made from `benchmarks/results`. `make bench` runs all but the accelerator's, each in a process of its own "
        "that interleaves what it compares and takes medians; each section has the command for its own. Compare "
        "numbers of one section: other sections may have been measured at other times.",
    ]
    order = list(HEADS)
    files = RESULTS.glob("*.json")
    for file in sorted(files, key=lambda f: (order.index(f.stem) if f.stem in order else len(order), f.stem)):
        facts = json.loads(file.read_text())
        name = file.stem.removesuffix("_gpu")
        source = ROOT / "benchmarks" / f"{name}.py"
        told = (ast.get_docstring(ast.parse(source.read_text())) if source.is_file() else "") or ""
        device = facts.pop("device", "")
        remark = facts.pop("remark", "")
        kind = facts.pop("kind", "CPU" if device.startswith("cpu") else device)
        versions = f"{kind}, Python {facts.pop('python', '?')}, JAX {facts.pop('jax', '?')}"
        told = re.sub(r" Writes \S+$", "", told.split("\n\n")[0])
        parts += [f"## {HEADS.get(file.stem, name.replace('_', ' ').capitalize())}", words(told)]
        parts.append(TOLD.get(name) or TABLES.get(name, _table)(facts))
        parts.append(f"{versions}. Command: `python -m benchmarks {name}`. {remark}".rstrip())
    return "\n\n".join(parts) + "\n"


HEADS = {
    "linear_model": "SGD on a small model",
    "factorisation": "Matrix factorisation",
    "memory": "Memory of a long run",
    "manifold": "The limiting drift and flow",
    "symmetry": "Noise of every neuron",
    "sensing": "Matrix sensing",
    "grouped": "Grouped data",
    "accelerator_gpu": "On a GPU",
    "precision_gpu": "Single precision on a GPU",
    "torch_census": "PyTorch: census and equilibrium",
    "torch_monitor": "PyTorch: the monitor",
    "torch_teleport": "PyTorch: training after the move",
    "torch_cuda": "PyTorch on a GPU",
}
"""Titles of the benchmarks, in the order of the page; others follow."""

TOLD = {
    "torch_monitor": "What it measured: [what the monitor costs](monitor.md#what-it-costs).",
    "torch_teleport": "What it measured: [what to expect of the move](torch.md#what-to-expect).",
}
"""Where the results of a benchmark have a table on a page of their own."""

MEANINGS = {
    "figure_3_seconds": "Figure 3 of the paper, 14 spreads with 50 seeds each, compilation included",
    "sensing_steps_a_second": "matrix sensing, d = 100, steps a second over all seeds",
    "diagram_seconds": "HeteroSGD at d = 40, 20 x 20 points of 50 seeds, with an empty compilation cache",
    "diagram_compiled_seconds": "the same again, programs compiled",
    "MiB_large_drift": "memory at the largest drift",
    "MiB_up_to_a_tenth": "memory after a tenth of the run",
    "MiB_after": "memory at its end",
    "relative_difference": "relative difference between the two ways",
    "seconds_a_block": "machinery, a block",
    "resume_1000_blocks_seconds": "finding a finished sweep of 1,000 blocks again",
    "scalar_map_10000_points_seconds": "10,000 points of the scalar map",
    "hetero_20x20x50_seconds": "HeteroSGD at d = 40, 20 x 20 points of 50 seeds",
    "hetero_block_seconds": "the same, summed over its blocks and processes",
    "hetero_blocks": "its blocks",
    "machinery_share": "the machinery's share of it",
    "compilations": "its compilations",
    "compile_seconds": "seconds of compiling, of all processes",
}
"""What a name in a file of results stands for, where it does not say so itself."""


def _table(facts: dict[str, Any]) -> str:
    rows = [f"| {label} | {amount} |" for label, amount in _rows(facts, ())]
    return "\n".join(["| quantity | measured |", "|---|---|", *rows])


def _rows(value: Any, path: tuple[str, ...]) -> list[tuple[str, str]]:
    """Numbers and words of nested facts, each with where it stands."""
    if isinstance(value, dict):
        return [row for key, inside in value.items() for row in _rows(inside, (*path, str(key)))]
    if isinstance(value, list) and value and isinstance(value[0], dict):  # one for each repetition
        return _rows({f"{key}, median": statistics.median(one[key] for one in value) for key in value[0]}, path)
    return [(_label(path), _amount(path, value))]


def _label(path: tuple[str, ...]) -> str:
    first, rest = path[0], path[1:]
    if first in MEANINGS:
        return words(MEANINGS[first])
    if not rest:
        return words(first.removesuffix("_seconds").replace("_", " "))
    if len(rest) == 1 and re.fullmatch(r"\d+", rest[0]):
        return f"{words(first.replace('_', ' '))}, {int(rest[0]):,} seeds"
    if first == "ratios":
        return words(f"{', '.join(rest)}, ratio")
    return words(", ".join(rest if "seconds" in first else path).replace("_", " "))


def _amount(path: tuple[str, ...], value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_amount(path, each) for each in value)
    if isinstance(value, str | bool) or value is None:
        return words(str(value))
    if any("seconds" in part for part in path):
        return in_words(value).replace("us", "μs")
    if path[0].startswith("MiB"):
        return f"{value:,.0f} MiB"
    if isinstance(value, int):
        return f"{value:,}"
    return words(f"{value:,.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}")


def _grouped(facts: dict[str, Any]) -> str:
    designs = facts["designs"]
    methods = list(dict.fromkeys(method for rows in designs.values() for method in rows if method != "passes"))
    best = [method for method in methods if any(other.startswith(f"{method} 1") for other in methods)]
    methods = [m for m in methods if not any(m.startswith(f"{one} 1") for one in best)]  # of several strengths the best
    head = "| median error | " + " | ".join(designs) + " |\n|---|" + "---|" * len(designs)
    rows = [f"| {words(method)} | " + " | ".join(_error(designs[d].get(method)) for d in designs) + " |"
            for method in methods]  # fmt: skip
    more = "All of it, with intervals, risks and what fails: [grouped data: a benchmark](grouped-benchmark.md)."
    return "\n".join([head, *rows]) + "\n\n" + more


def _cuda(facts: dict[str, Any]) -> str:
    watched = {name.removeprefix("monitor, "): found for name, found in facts.items() if name.startswith("monitor, ")}
    networks = {name: found for name, found in facts.items() if isinstance(found, dict) and "parameters" in found}
    moved = [
        [name, f"{found['parameters']:,}", str(len(found["exact"])), in_words(found["seconds_census"]),
         in_words(found["seconds_equilibrate"]), f"{found['worst_proof']:.0e}", f"{found['change']:.0e}",
         f"{found['noise'][1] / found['noise'][0]:.2f}"]
        for name, found in networks.items()
    ]  # fmt: skip
    seen = [
        [name, in_words(found["seconds_plain"]), f"{found['ratio']:.1f} times that", f"{found['every_50']:+.0%}",
         f"{found['error_single']:.0e}", f"{found['error_double']:.0e}"]
        for name, found in watched.items()
    ]  # fmt: skip
    return "\n\n".join([
        table(["network", "parameters", "symmetries", "census", "equilibrate", "worst proof", "outputs changed by",
                "noise power, after/before"], moved),
        table(["monitor", "a plain step", "watched at every step", "watched at every 50 steps",
                "error, single precision", "error, double precision"], seen),
    ])  # fmt: skip


TABLES = {"grouped": _grouped, "torch_cuda": _cuda}
"""Results that have a table of their own form."""


def _error(found: Any) -> str:
    if not isinstance(found, dict) or "error" not in found:
        return ""
    error = found["error"][0]
    return f"{error:.2f}" if error >= 0.1 else f"{error:.3f}"


# changelog and citation


def changelog() -> str:
    """CHANGELOG.md."""
    return (ROOT / "CHANGELOG.md").read_text()


def cite() -> str:
    """CITATION.cff, as a reference, as BibTeX and as it is."""
    import yaml

    text = (ROOT / "CITATION.cff").read_text()
    facts = yaml.safe_load(text)
    authors = " and ".join(a.get("name") or f"{a['family-names']}, {a['given-names']}" for a in facts["authors"])
    bibtex = f"@software{{undertow,\n  author = {{{{{authors}}}}},\n  title = {{{facts['title']}}},\n"
    bibtex += f"  version = {{{facts['version']}}},\n  license = {{{facts['license']}}}\n}}"
    people = lambda paper: ", ".join(f"{a['given-names']} {a['family-names']}" for a in paper["authors"])
    papers = "\n".join(
        f"- {people(paper)}: [{paper['title']}]({paper['url']}), {paper['year']} "
        f"([claims](gallery/{paper['scope']}.md), [errata](errata.md#{paper['scope']}))"
        for paper in facts["references"]
    )
    return f"""# How to cite

{facts["message"]}

```bibtex
{bibtex}
```

The papers:

{papers}

Where you use a corrected constant, cite undertow for the correction and the paper for the result. The file
`CITATION.cff`, which reference managers read:

```yaml
{text.strip()}
```
"""
