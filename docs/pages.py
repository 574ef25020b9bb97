"""Pages made from the code: claims with their figures, errata, coverage, performance, changelog, how to cite."""

import importlib.util
from pathlib import Path

import jinja2
from markupsafe import Markup

from docs import full, gallery
from docs.capabilities import capabilities
from docs.explorer import explorer_pages
from docs.performance import performance
from docs.reference import command_line, reference_pages
from docs.setting import equation, words
from undertow.execution.registry import titles
from undertow.figures.inline import inline, words_of
from undertow.verification import claims
from undertow.verification import errata as corrections
from undertow.verification.claim import PAPERS, Claim
from undertow.verification.presentation import alternative_text, measured_text, prediction_text
from undertow.verification.report import VERDICTS
from undertow.verification.result import CheckResult, ClaimResult

__all__ = ["all_pages", "figure"]

ROOT = Path(__file__).parent.parent
TITLES = titles()
FIGURE = jinja2.Template(
    """\
<figure data-search-exclude>\
<div class="plot"{% if scrolls %} tabindex="0" role="group" aria-label="Figure of {{ claim }}"{% endif %}>{{ drawn }}\
</div><figcaption>{% if caption %}<p>{{ caption }} Made by <code>undertow verify {{ claim }} --scale smoke</code>.</p>\
{% endif %}<details><summary>The figure in words</summary>{{ description }}</details></figcaption></figure>""",
    autoescape=True,
)
"""A figure of the gallery with its caption, which names the command, and its description below."""


def all_pages() -> dict[str, str]:
    """Return every generated page by its path in the site."""
    pages = {"gallery/index.md": gallery_index()}
    pages |= {f"gallery/{paper}.md": gallery_page(paper) for paper in PAPERS}
    pages["full/index.md"] = full_report()
    pages |= {"errata.md": errata(), "performance.md": performance(), "changelog.md": changelog(), "cite.md": cite()}
    pages |= {"capabilities.md": capabilities()}
    pages |= {"contributing.md": contributing(), "code-of-conduct.md": code_of_conduct()}
    if importlib.util.find_spec("undertow.verification.coverage") is not None:
        pages["coverage.md"] = coverage()
    return pages | explorer_pages() | reference_pages() | {"api/command-line.md": command_line()}


def link(claim: str) -> str:
    """Return the name of a claim as a link to the gallery."""
    return f"[`{claim}`](gallery/{claims[claim].paper}.md#{claim})" if claim in claims else f"`{claim}`"


def verdict(name: str) -> str:
    """Return a verdict as an element with its colour and shape."""
    return f'<span class="verdict {name}">{name}</span>'


# the gallery


def gallery_index() -> str:
    """Return the page with all claims, their verdicts, and how the figures were made."""
    results = gallery.results()
    scales = ", ".join(sorted({result.task.scale for result in results.values()})) or "none yet"
    devices = ", ".join(sorted({_device(result).split(":")[0] for result in results.values()}))
    tally = {name: sum(result.verdict == name for result in results.values()) for name in VERDICTS}
    listed = "\n".join(f"- {verdict(n)} {tally[n]}: {VERDICTS[n]}" for n in reversed(VERDICTS) if tally[n])
    parts = [
        "# Gallery of claims",
        f"undertow tests {len(claims)} statements by experiments: statements of three papers, statements beyond "
        "them, and undertow's own theory of the averaged flow and of optimisers. Each has a criterion that is the "
        "same at every scale and is widened by four standard errors, an "
        "alternative that the data must reject, and a figure: theory is a line, experiment is points with intervals.",
        f"The figures below were made by `make gallery`, which runs `undertow verify --scale smoke` and "
        f"`python -m docs.gallery` (scale: {scales}; device: {devices}). Larger scales differ only in seeds, steps and "
        "sizes. [Reading a report](../howto/reading-a-report.md) explains every number.",
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
    """Return the page with the claims of one paper, each with its figure."""
    results = gallery.results()
    sections = [_claim(claim, results.get(claim.id)) for claim in claims.values() if claim.paper == paper]
    numbered = "Numbers of equations and theorems are those of the paper. "
    own = (
        "The theory is undertow's own: [the averaged flow](../theory/averaged-flow.md) and "
        "[Adam and other optimisers](../theory/optimisers.md) derive it. "
    )
    opening = f"{own if paper == 'optimisers' else numbered}All claims: [gallery](index.md)."
    return "\n\n".join([f"# {TITLES[paper]}", opening, *sections]) + "\n"


def _claim(claim: Claim, result: ClaimResult | None) -> str:
    parts = [f"## {claim.id} {{ #{claim.id} }}"]
    judged = verdict(result.verdict) if result else f"expected: {corrections.expected(claim.id)}"
    parts += [f"{judged} <span class='place'>{words(claim.place)}</span>", words(claim.statement)]
    parts += [equation(claim.equation), f"Alternative that the data must reject: {words(claim.alternative)}"]
    if any(erratum.claim == claim.id for erratum in corrections.errata()):
        parts.append(f"This claim decides an [erratum](../errata.md#{claim.paper}).")
    if result is None:
        parts.append("There is no figure yet; `make gallery` draws it.")
    else:
        parts += [f'<div class="figure-here" data-claim="{claim.id}"></div>', _checks(result)]
        if result.note:
            parts.append(words(result.note))
        lost = f", of which {result.diverged} diverged and were left out" if result.diverged else ""
        parts.append(f"{result.seeds:,} seeds{lost}; {result.seconds:.1f} s. Repeat the experiment:")
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


def figure(claim: str, caption: str = "") -> str:
    """Return a figure of the gallery as an HTML element in the page's colours, with its description below.

    Pages other than the gallery give a caption, which is followed by the command that makes the figure.
    """
    svg = (gallery.FOLDER / f"{claim}.svg").read_text()
    description = words_of(svg)
    drawn = inline(svg, claim, f"Figure of {claim}. {description}")
    scrolls = "--least" in drawn
    return FIGURE.render(claim=claim, drawn=Markup(drawn), scrolls=scrolls, caption=caption, description=description)


# the report at full size


def full_report() -> str:
    """Return the page of the example report at the largest scale: how it was made, and one line per claim."""
    results, made = full.results(), full.made()
    size = (full.FOLDER / "report.html").stat().st_size / 1e6
    as_expected = sum(result.verdict == corrections.expected(result.claim) for result in results)
    where = {result.claim: _device(result).split(": ")[-1] for result in results}
    on_cores = sum(kind == "cpu" for kind in where.values())
    (kind,) = {kind for kind in where.values() if kind != "cpu"}
    sizes = {result.claim: result.task.parameters for result in results}
    later = ", ".join(link(name).replace("](", "](../") for name in claims if name not in sizes)
    versions = ", ".join(f"{name} {made.versions[name]}" for name in ("python", "jax", "equinox", "numpy"))
    parts = [
        "# The full report",
        f"`full` is the scale of the papers: matrix sensing at $d = {sizes['filtering-by-spread']['d']}$ with "
        f"{sizes['filtering-by-spread']['seeds']:,} seeds per point, a factorisation with "
        f"{sizes['norm-ratio-settings']['hidden']:,} hidden units, long runs with many seeds. A GPU is recommended. "
        "This report is included as an example: **[the report](report.html)**, one file of "
        f"{size:.1f} MB with all figures, settings and commands.",
        "```console\nundertow verify --scale full --jobs 16\n```",
        f"{len(results)} claims, {as_expected} with the expected verdict, in {made.seconds / 60:.1f} minutes "
        f"from an empty compilation cache on one {kind} with 16 processor cores: {len(results) - on_cores} claims on "
        f"the GPU, and {on_cores} claims with small models on the cores. The source was that of commit "
        f"`{made.commit}` ({versions}). Seconds are those of the claim itself, measured while other claims ran. "
        f"{made.remark}",
        *([f"Claims that are newer than this report: {later}."] if later else []),
    ]
    for paper in PAPERS:
        rows = [_full_row(result, where) for result in results if claims[result.claim].paper == paper]
        if not rows:
            continue
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
    """Return the page with the errors of the papers."""
    parts = [
        "# Errata",
        "Each entry has the printed statement, the correct one, and the claim whose measurement decides between them. "
        f"A few misprints need no measurement. `undertow errata` prints the same list ({len(corrections.errata())} "
        f"corrections). A claim that decides an erratum gets the verdict {verdict('corrected')} only if the data "
        "reject the printed statement and agree with the correction.",
    ]
    for paper in dict.fromkeys(erratum.paper for erratum in corrections.errata()):
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
    """Return the page with every result of the papers and the claims that test it, or the reason why none does."""
    table = importlib.import_module("undertow.verification.coverage")
    parts = [
        "# Coverage",
        "Every result of the papers, in their order, with the claims that check it or the reason why none does; then "
        "the statements of undertow's own theory. The claims at the end go beyond the papers.",
    ]
    for paper in PAPERS:
        rows = ["| result | statement | claims, or the reason |", "|---|---|---|"]
        for entry in table.coverage():
            if entry.paper == paper:
                checked = ", ".join(link(claim) for claim in entry.claims)
                last = "; ".join(filter(None, [checked, words(entry.reason)]))
                rows.append(f"| {words(entry.result)} | {words(entry.says)} | {last} |")
        parts += [f"## {TITLES[paper]}", "\n".join(rows)]
    rows = [f"| {link(addition.claim)} | {words(addition.adds)} |" for addition in table.additions()]
    parts += ["## Beyond the papers", "\n".join(["| claim | addition |", "|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


# changelog and citation


def changelog() -> str:
    """Return CHANGELOG.md."""
    return (ROOT / "CHANGELOG.md").read_text()


def contributing() -> str:
    """Return CONTRIBUTING.md with its links as they are on the site."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return text.replace("](docs/", "](").replace("](CODE_OF_CONDUCT.md)", "](code-of-conduct.md)")


def code_of_conduct() -> str:
    """Return CODE_OF_CONDUCT.md."""
    return (ROOT / "CODE_OF_CONDUCT.md").read_text()


def cite() -> str:
    """Return CITATION.cff as a reference, as BibTeX and verbatim."""
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

If you use a corrected constant, cite undertow for the correction and the paper for the result. Reference managers read
the file `CITATION.cff`:

```yaml
{text.strip()}
```
"""
