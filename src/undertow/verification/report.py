"""report.html: one self-contained file with the verdicts and a section for every claim."""

import html
import json
import math
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

from undertow.execution import store
from undertow.figures.inline import inline, words_of
from undertow.figures.page import page
from undertow.verification.notation import formula, prose

__all__ = ["build_report", "number", "read_results", "write_results"]

TITLES = {
    "heterogeneity": "The Implicit Bias of Heterogeneity towards Invariance",
    "zero_loss": "What Happens after SGD Reaches Zero Loss?",
    "noise_equilibrium": "Parameter Symmetry and Noise Equilibrium of SGD",
}
VERDICTS = {
    "error": "the experiment could not be run",
    "fails": "the data reject the claim",
    "inconclusive": "more seeds are needed to tell",
    "corrected": "the data reject what the paper prints and agree with the correction",
    "holds": "the data agree with the claim",
}
"""The worst first, which is also how the table sorts them."""


def write_results(out: Path, results: list[dict[str, Any]]) -> Path:
    """results.json: the list of all results, for other programs."""
    return store.write_bytes(out / "results.json", (json.dumps(results, indent=1) + "\n").encode())


def read_results(out: Path) -> list[dict[str, Any]]:
    """The results of a folder that `undertow verify` wrote."""
    path = Path(out) / "results.json"
    if not path.is_file():
        raise store.StoreError(f"{out}: no results.json here; `undertow verify --out {out}` makes one.")
    try:
        results = json.loads(path.read_text())
        assert all(isinstance(r, dict) and "claim" in r for r in results)
    except (ValueError, TypeError, AssertionError):
        raise store.StoreError(f"{path}: damaged, it is not a list of results; run `undertow verify` again.") from None
    return results


def build_report(out: Path, results: list[dict[str, Any]]) -> Path:
    """Writes report.html beside the results; figures are inside it, so that the one file can be sent around."""
    out = Path(out)
    papers = list(dict.fromkeys(r["paper"] for r in results))
    results = sorted(results, key=lambda r: papers.index(r["paper"]))
    body = f"""<a class="skip" href="#verdicts">Skip to the verdicts</a>
{_header(results)}
<nav aria-label="Contents"><ul><li><a href="#verdicts">Verdicts</a></li>
{"".join(f'<li><a href="#paper-{p}">{html.escape(_title(p))}</a></li>' for p in papers)}</ul></nav>
<main>
{_verdicts(results, papers)}
{"".join(_paper(out, paper, [r for r in results if r["paper"] == paper]) for paper in papers)}
</main>"""
    text = page("undertow: verification report", body, scripted=True)
    return store.write_bytes(out / "report.html", text.encode())


def number(value: Any, error: Any = None) -> str:
    """A number as a person writes it, with its standard error if it has one."""
    if value is None:
        return "–"
    text = f"{value:.4g}"
    return f"{text} ± {error:.1g}" if error else text


def _title(paper: str) -> str:
    return TITLES.get(paper, paper)


def _verdict(verdict: str) -> str:
    return f"<span class='v {verdict}'>{verdict}</span>"


def _header(results: list[dict[str, Any]]) -> str:
    good = sum(r["verdict"] == r["expected"] for r in results)
    scales = ", ".join(sorted({r["scale"] for r in results})) or "none"
    minutes = sum(r["seconds"] for r in results) / 60
    tally = Counter(r["verdict"] for r in results)
    listed = "".join(
        f"<li>{_verdict(verdict)} {tally[verdict]} <span class='soft'>({meaning})</span></li>"
        for verdict, meaning in reversed(VERDICTS.items())
        if tally[verdict]
    )
    return f"""<header><h1>What gradient noise does: {good} of {len(results)} verdicts as expected</h1>
<p>Every claim below was run as an experiment. Each of its checks is judged by a criterion that is stated with it, is
the same at every scale and allows for four standard errors (Student's t for few seeds). In the figures theory is a line
and experiment is points with intervals of two standard errors, unless a legend says otherwise.</p>
<ul class="tally" aria-label="Number of claims by verdict">{listed}</ul>
<p class="soft">Scale {html.escape(scales)}; {minutes:.1f} minutes of computing. The words of the claims are undertow's;
the places are those of the papers.</p></header>"""


def _verdicts(results: list[dict[str, Any]], papers: list[str]) -> str:
    """The table of all claims, with its filters, which the page's script brings to life."""
    options = "".join(f'<option value="{p}">{html.escape(_title(p))}</option>' for p in papers)
    present = [v for v in VERDICTS if any(r["verdict"] == v for r in results)]
    verdicts = "".join(f'<option value="{v}">{v}</option>' for v in present)
    names = ("Claim", "Paper", "Verdict", "Measured", "Predicted", "Seconds")
    heads = "".join(f'<th scope="col" role="columnheader">{name}</th>' for name in names)
    rows = "\n".join(_row(r, papers) for r in results)
    return f"""<section aria-labelledby="verdicts"><h2 id="verdicts" tabindex="-1">Verdicts</h2>
<form id="filters" class="filters" role="search" aria-label="Filter the claims" hidden>
<label for="filter-text">Text <input id="filter-text" type="search" autocomplete="off"></label>
<label for="filter-paper">Paper <select id="filter-paper"><option value="">all</option>{options}</select></label>
<label for="filter-verdict">Verdict <select id="filter-verdict"><option value="">all</option>{verdicts}</select></label>
<button type="reset">Clear</button></form>
<p id="count" class="soft" role="status">All {len(results)} claims are shown.</p>
<p id="said" class="unseen" role="status"></p>
<table id="verdict-table" class="cards" role="table">
<caption>The first check of every claim, ± its standard error</caption>
<thead role="rowgroup"><tr role="row">{heads}</tr></thead><tbody role="rowgroup">
{rows}
</tbody></table></section>"""


def _row(r: dict[str, Any], papers: list[str]) -> str:
    words = [r["claim"], _title(r["paper"]), *(r[k] for k in ("paper", "place", "statement", "equation", "verdict"))]
    words.append(r.get("alternative", ""))
    words += [check["what"] for check in r["checks"]]
    cells = (
        ("Paper", papers.index(r["paper"]), f"{html.escape(_short(r['paper']))}, {prose(r['place'])}", ""),
        ("Verdict", list(VERDICTS).index(r["verdict"]), _verdict(r["verdict"]) + _surprise(r), ""),
        ("Measured", _key(r["measured"]), _figures(number(r["measured"], r["uncertainty"])), "n"),
        ("Predicted", _key(r["predicted"]), _figures(_predicted(r)), "n"),
        ("Seconds", f"{r['seconds']:.3f}", f"{r['seconds']:.1f}", "n"),
    )
    return (
        f'<tr role="row" data-claim="{r["claim"]}" data-paper="{r["paper"]}" data-verdict="{r["verdict"]}" '
        f'data-text="{html.escape(" ".join(words).lower())}">'
        f'<th scope="row" role="rowheader" data-key="{r["claim"]}"><a href="#{r["claim"]}">{r["claim"]}</a></th>'
        + "".join(
            f'<td role="cell" data-name="{name}" data-key="{key}"{f" class={kind}" if kind else ""}>{content}</td>'
            for name, key, content, kind in cells
        )
        + "</tr>"
    )


def _short(paper: str) -> str:
    return paper.replace("_", " ")


def _key(value: Any) -> str:
    """What the table sorts a number by; numbers that are none come last."""
    return "" if value is None or not math.isfinite(value) else repr(value)


def _figures(text: str) -> str:
    return f"<span>{prose(re.sub(r'(?<![0-9e])-(?=[0-9])', '−', text))}</span>"


def _value(value: Any) -> str:
    return _figures(str(value)) if isinstance(value, int | float) else html.escape(str(value))


def _surprise(r: dict[str, Any]) -> str:
    return "" if r["verdict"] == r["expected"] else f" <span class='soft'>(expected: {r['expected']})</span>"


def _predicted(result: dict[str, Any]) -> str:
    criterion = result["criterion"] or ""
    if criterion.startswith(("below", "above")):
        return criterion.split(" by ")[0]
    if ", level " in criterion:
        return f"p above {criterion.split(', level ')[1]}"
    text = number(result["predicted"])
    return text if result["printed"] is None else f"{text} (in print: {number(result['printed'])})"


def _if_alternative(check: dict[str, Any]) -> str:
    """The value that the alternative predicts for a check."""
    value = check.get("alternative")
    return "–" if value is None else _figures(f"p = {value:.1g}" if ", level " in check["criterion"] else number(value))


def _paper(out: Path, paper: str, results: list[dict[str, Any]]) -> str:
    name = f"paper-{paper}"
    claims = "\n".join(_section(out, r) for r in results)
    return f"""<section class="paper" aria-labelledby="{name}"><h2 id="{name}">{html.escape(_title(paper))}</h2>
{claims}</section>
"""


def _section(out: Path, r: dict[str, Any]) -> str:
    name = r["claim"]
    note = f"<p>{prose(r['note'])}</p>" if r["note"] and r["checks"] else ""
    needed = f"<p>{r['seeds_needed']:,} seeds would decide.</p>" if r["seeds_needed"] else ""
    found = _checks(r) if r["checks"] else f"<pre>{html.escape(r.get('traceback') or r['note'])}</pre>"
    return f"""<article id="{name}" aria-labelledby="{name}-name"><div class="opening">
<h3><span id="{name}-name">{html.escape(name)}</span> <span>{_verdict(r["verdict"])}{_surprise(r)}</span></h3>
<p class="place">{html.escape(_short(r["paper"]))}, {prose(r["place"])}</p>
<p>{prose(r["statement"])}</p><p class="formula">{formula(r["equation"])}</p>{_alternative(r)}</div>
{_errata(name)}{_picture(out, r)}{found}{note}{needed}
{_settings(r)}{_facts(out, r)}</article>"""


def _alternative(r: dict[str, Any]) -> str:
    """What the checks had to be able to reject, and how likely they were to."""
    if not r.get("alternative"):
        return ""
    powers = [c["power"] for c in r["checks"] if c.get("power") is not None]
    least = f" Probability of rejecting it at this scale: {_probability(min(powers))}." if powers else ""
    return f"<p class='soft'>Alternative: {prose(r['alternative'])}{least}</p>"


def _probability(value: float) -> str:
    return "above 0.999" if value > 0.999 else f"{value:.3f}"


def _errata(claim_id: str) -> str:
    from undertow.verification.errata import errata

    return "".join(
        f"<dl class='erratum'><dt>In print</dt><dd>{prose(e.printed)} "
        f"<span class='soft'>({prose(e.place)})</span></dd><dt>Right</dt><dd>{prose(e.right)}</dd></dl>"
        for e in errata()
        if e.claim == claim_id
    )


def _picture(out: Path, r: dict[str, Any]) -> str:
    file = out / "claims" / r["claim"] / "figure.svg"
    if not file.is_file() or r["verdict"] == "error":
        return ""
    svg = file.read_text()
    words = words_of(svg) or f"{r['what']}: measured {number(r['measured'], r['uncertainty'])}, {_predicted(r)}."
    drawn = inline(svg, r["claim"], f"Figure. {words}")
    scrolls = f' tabindex="0" role="group" aria-label="Figure of {r["claim"]}"' if "--least" in drawn else ""
    return f"""<figure><div class="plot"{scrolls}>{drawn}</div>
<figcaption><details><summary>The figure in words</summary>{prose(words)}</details></figcaption></figure>"""


def _checks(r: dict[str, Any]) -> str:
    names = ("Quantity", "Measured", "Predicted", "Alternative", "Criterion", "Verdict")
    heads = "".join(f'<th scope="col" role="columnheader">{name}</th>' for name in names)
    rows = "".join(
        f'<tr role="row"><th scope="row" role="rowheader">{prose(c["what"])}</th>'
        f'<td role="cell" class="n" data-name="Measured">{_figures(number(c["measured"], c["uncertainty"]))}</td>'
        f'<td role="cell" class="n" data-name="Predicted">{_figures(_predicted(c))}</td>'
        f'<td role="cell" class="n" data-name="Alternative">{_if_alternative(c)}</td>'
        f'<td role="cell" data-name="Criterion">{prose(c["criterion"])}</td>'
        f'<td role="cell" data-name="Verdict">{_verdict(c["verdict"])}</td></tr>'
        for c in r["checks"]
    )
    return (
        '<table class="cards" role="table"><caption>Checks, measured ± standard error</caption><thead role="rowgroup">'
        f'<tr role="row">{heads}</tr></thead><tbody role="rowgroup">{rows}</tbody></table>'
    )


def _settings(r: dict[str, Any]) -> str:
    meanings = r.get("meanings", {})
    rows = "".join(
        f'<tr role="row"><th scope="row" role="rowheader"><code>{name}</code></th>'
        f'<td role="cell" class="n" data-name="Value">{_value(value)}</td>'
        f'<td role="cell">{prose(meanings.get(name, ""))}</td></tr>'
        for name, value in r["parameters"].items()
    )
    if not rows:
        return ""
    heads = "".join(f'<th scope="col" role="columnheader">{name}</th>' for name in ("Parameter", "Value", "Meaning"))
    return (
        '<table class="cards settings" role="table"><caption>Settings</caption><thead role="rowgroup">'
        f'<tr role="row">{heads}</tr></thead><tbody role="rowgroup">{rows}</tbody></table>'
    )


def _device(device: str) -> str:
    """Its kind, where that says more than its platform."""
    platform, _, kind = device.partition(": ")
    return platform if kind in ("", platform) else device


def _facts(out: Path, r: dict[str, Any]) -> str:
    made = r["provenance"]
    versions = [f"{name} {value}" for name, value in made.get("versions", {}).items() if value]
    software = ", ".join([f"undertow {made['undertow']}", *versions] if "undertow" in made else versions)
    precision = "double precision" if made.get("double_precision") else "single precision"
    facts = {
        "Runs": f"{r['seeds']} seeds; {r['diverged'] or 'none'} diverged" + (", left out" if r["diverged"] else ""),
        "Randomness": f"seed {r['seed']}, scale {r['scale']}",
        "Time": f"{r['compile_seconds']:.1f} s compiling, {r['run_seconds']:.1f} s running",
        "Device": f"{_device(made['device'])}, {precision}" if "device" in made else "",
        "Made with": software,
    }
    listed = "".join(f"<dt>{name}</dt><dd>{html.escape(fact)}</dd>" for name, fact in facts.items() if fact)
    pdf = Path("figures") / f"{r['claim']}.pdf"
    if (out / pdf).is_file():
        listed += f'<dt>Figure</dt><dd><a href="{pdf.as_posix()}">{pdf.as_posix()}</a>, beside this page</dd>'
    command = r.get("command") or shlex.join(
        ["undertow", "verify", r["claim"], "--scale", r["scale"], "--seed", str(r["seed"])]
    )
    return (
        f"<dl class='facts'>{listed}<dt>Repeat</dt>"
        f"<dd class='repeat'><code class='command'>{html.escape(command)}</code></dd></dl>"
    )
