"""report.html: one self-contained file with the verdicts and a section for every claim."""

import base64
import html
import json
from pathlib import Path
from typing import Any

from undertow.lab import store

__all__ = ["build_report", "number", "read_results", "write_results"]

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fdfdfc; --rule: #d9d9d4; --soft: #6a6a66; --card: #f4f4f0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e4; --paper: #16181a; --rule: #3a3d40; --soft: #a0a09a; --card: #1f2224; }
  figure img { background: #fdfdfc; border-radius: 6px; }
}
body { font: 16px/1.55 Georgia, "DejaVu Serif", serif; color: var(--ink); background: var(--paper); max-width: 58rem;
  margin: 0 auto; padding: 1.5rem; }
h1, h2, table, nav, .facts { font-family: system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.6rem; }
a { color: inherit; } .soft, caption { color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-size: .86rem; } .wide { overflow-x: auto; }
th, td { text-align: left; padding: .35rem .7rem .35rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
td.n { font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font-size: .86em; background: var(--card); padding: .1em .3em; border-radius: 3px; overflow-wrap: anywhere; }
pre { background: var(--card); padding: .7rem; border-radius: 6px; overflow-x: auto; font-size: .82rem; }
figure { margin: 1rem 0; } figure img { max-width: 100%; height: auto; }
.v { font-weight: 600; white-space: nowrap; }
.v::before { content: ""; display: inline-block; width: .7em; height: .7em; margin-right: .4em; border-radius: 50%;
  background: currentColor; }
.holds { color: #1b7837; } .corrected { color: #2166ac; } .fails, .error { color: #b2182b; }
.inconclusive { color: #b35806; }
@media (prefers-color-scheme: dark) { .holds { color: #7fbf7b; } .corrected { color: #92c5de; }
  .fails, .error { color: #f4a582; } .inconclusive { color: #fdb863; } }
@media print { body { max-width: none; } section { break-inside: avoid; } }
"""


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
    rows = "\n".join(_row(result) for result in results)
    sections = "\n".join(_section(Path(out), result) for result in results)
    good = sum(r["verdict"] == r["expected"] for r in results)
    scales = ", ".join(sorted({r["scale"] for r in results})) or "none"
    seconds = sum(r["seconds"] for r in results)
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>undertow: verification report</title><style>{STYLE}</style></head><body>
<header><h1>What gradient noise does: {good} of {len(results)} verdicts as expected</h1>
<p class="soft">Scale {html.escape(scales)}; {seconds:.0f} seconds of computing. A claim <em>holds</em>, <em>fails</em>,
is <em>corrected</em> (the paper prints another constant, which the data reject) or stays
<em>inconclusive</em>.</p></header>
<main><div class="wide"><table><caption>Verdicts</caption>
<thead><tr><th scope="col">Claim</th><th scope="col">Paper</th><th scope="col">Verdict</th><th scope="col">Measured</th>
<th scope="col">Predicted</th></tr></thead><tbody>
{rows}
</tbody></table></div>
{sections}
</main></body></html>
"""
    return store.write_bytes(Path(out) / "report.html", page.encode())


def number(value: Any, error: Any = None) -> str:
    """A number as a person writes it, with its standard error if it has one."""
    if value is None:
        return "–"
    text = f"{value:.4g}"
    return f"{text} ± {error:.1g}" if error else text


def _predicted(result: dict[str, Any]) -> str:
    criterion = result["criterion"] or ""
    if criterion.startswith(("below", "above")):
        return criterion.split(" by ")[0]
    text = number(result["predicted"])
    return text if result["printed"] is None else f"{text} (printed: {number(result['printed'])})"


def _row(r: dict[str, Any]) -> str:
    surprise = "" if r["verdict"] == r["expected"] else f" <span class='soft'>(expected: {r['expected']})</span>"
    return (
        f"<tr><th scope='row'><a href='#{r['claim']}'>{html.escape(r['claim'])}</a></th><td>{r['paper']}</td>"
        f"<td><span class='v {r['verdict']}'>{r['verdict']}</span>{surprise}</td>"
        f"<td class='n'>{number(r['measured'], r['uncertainty'])}</td>"
        f"<td class='n'>{html.escape(_predicted(r))}</td></tr>"
    )


def _section(out: Path, r: dict[str, Any]) -> str:
    figure = out / "claims" / r["claim"] / "figure.svg"
    picture = ""
    if figure.is_file() and r["verdict"] != "error":
        code = base64.b64encode(figure.read_bytes()).decode()
        alt = html.escape(f"{r['what']}: theory as a line, experiment as points with intervals")
        picture = f"<figure><img alt='{alt}' src='data:image/svg+xml;base64,{code}'></figure>"
    checks = "".join(
        f"<tr><td>{html.escape(c['what'])}</td><td class='n'>{number(c['measured'], c['uncertainty'])}</td>"
        f"<td class='n'>{number(c['predicted'])}</td><td>{html.escape(c['criterion'])}</td>"
        f"<td><span class='v {c['verdict']}'>{c['verdict']}</span></td></tr>"
        for c in r["checks"]
    )
    table = (
        "<div class='wide'><table><thead><tr><th scope='col'>Quantity</th><th scope='col'>Measured</th>"
        "<th scope='col'>Predicted</th><th scope='col'>Criterion</th><th scope='col'>Verdict</th></tr></thead>"
        f"<tbody>{checks}</tbody></table></div>"
        if checks
        else f"<pre>{html.escape(r.get('traceback') or r['note'])}</pre>"
    )
    settings = ", ".join(f"{name} = {value}" for name, value in r["parameters"].items())
    needed = f" {r['seeds_needed']} seeds would decide." if r["seeds_needed"] else ""
    lost = f" {r['diverged']} runs diverged and are left out." if r["diverged"] else ""
    versions = r["provenance"].get("versions", {})
    made = ", ".join(f"{name} {value}" for name, value in versions.items() if value)
    device = r["provenance"].get("device", "")
    command = f"undertow verify {r['claim']} --scale {r['scale']} --seed {r['seed']}"
    note = f"<p>{html.escape(r['note'])}</p>" if r["note"] and checks else ""
    verdict = f"<span class='v {r['verdict']}'>{r['verdict']}</span>"
    return f"""<section id="{r["claim"]}"><h2>{html.escape(r["claim"])} {verdict}</h2>
<p class="soft">{html.escape(r["paper"])}, {html.escape(r["place"])}</p>
<p>{html.escape(r["statement"])}</p><p><code>{html.escape(r["equation"])}</code></p>
{picture}{table}{note}
<p class="facts soft">Seeds {r["seeds"]}.{needed}{lost} {r["compile_seconds"]:.1f} s compiling, {r["run_seconds"]:.1f} s
running. Settings: {html.escape(settings)}. {html.escape(device)}; {html.escape(made)}.
Repeat: <code>{html.escape(command)}</code></p></section>"""
