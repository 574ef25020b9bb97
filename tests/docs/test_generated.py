"""The generated pages cover all claims and public names, and the stored files behind them are up to date."""

import ast
import dataclasses
import functools
import re
import xml.etree.ElementTree
from pathlib import Path

import pytest

import undertow as ut
from docs import badges, full, gallery, pages, reference, setting
from docs.performance import benchmark_of
from undertow.verification import claims
from undertow.verification.errata import errata, expected
from undertow.verification.notation import formula

pytestmark = [pytest.mark.docs, pytest.mark.xdist_group("made")]

ROOT = Path(__file__).parent.parent.parent


@functools.cache
def made() -> dict[str, str]:
    return pages.all_pages()


def headings(text: str) -> set[str]:
    return set(re.findall(r"^##+ .*\{ #(\S+) \}$", text, flags=re.MULTILINE))


def test_the_reference_has_every_public_name():
    entries = re.findall(r'<a id="(\w+)"></a>\n\n::: undertow\.(\S+)\n', "".join(made().values()))
    assert set(ut.__all__) <= {path for anchor, path in entries if anchor == path}
    assert all(path.rsplit(".", 1)[-1] == anchor for anchor, path in entries)
    contents = made()["api/index.md"]
    assert all(f"[`ut.{name}`]" in contents for name in ut.__all__)


def test_names_of_submodules_in_the_reference_exist():
    """The files are read and not imported, because the documentation is also built without PyTorch."""
    for page in reference.PAGES.values():
        for path in page.more:
            *module, name = path.split(".")
            place = Path(ut.__file__).parent.joinpath(*module)
            file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
            shown = re.search(r"^__all__ = (\[.*?\])", file.read_text(), flags=re.MULTILINE | re.DOTALL)
            assert shown, path
            assert name in ast.literal_eval(shown[1]), path


def test_every_claim_and_every_erratum_is_on_a_page():
    shown = set().union(*(headings(made()[f"gallery/{paper}.md"]) for paper in gallery_papers()))
    assert shown == set(claims)
    assert made()["errata.md"].count("In print\n:") == len(errata())
    assert f"{len(claims)} statements" in made()["gallery/index.md"]


def gallery_papers() -> set[str]:
    return {claim.paper for claim in claims.values()}


def test_the_gallery_is_up_to_date():
    """Run `make gallery` where this fails: a claim was added, removed or changed since the figures were made."""
    stored = gallery.results()
    assert set(stored) == set(claims)
    assert {file.stem for file in gallery.FOLDER.glob("*.svg")} == set(claims)
    for name, result in stored.items():
        assert result.verdict == expected(name), name
        assert result.task.scale == "smoke", name
        assert result.task.parameters == claims[name].parameters("smoke"), name


def test_the_gallery_stays_small():
    assert sum(file.stat().st_size for file in gallery.FOLDER.iterdir()) < 2_000_000


NEWER = {name for name, claim in claims.items() if claim.paper == "optimisers"}
"""Claims that were added after the full report was made; the next full report has them."""


def test_the_full_report_has_every_claim():
    results = {result.claim: result for result in full.results()}
    report = (full.FOLDER / "report.html").read_text()
    assert set(results) == set(claims) - NEWER
    assert all(f"(../gallery/optimisers.md#{name})" in made()["full/index.md"] for name in NEWER)
    for name, result in results.items():
        assert result.task.scale == "full", name
        assert result.verdict == expected(name) or f"`{name}`" in full.made().remark, name
        assert f'id="{name}"' in report, name
        assert f"(report.html#{name})" in made()["full/index.md"], name
    assert results["filtering-by-spread"].task.parameters["seeds"] >= 1000
    assert results["norm-ratio-settings"].task.parameters["hidden"] == 2000
    assert len(report) < 6_000_000


SVG = """<?xml version="1.0"?><svg width="72pt" height="36pt" viewBox="0 0 72 36" xmlns="http://www.w3.org/2000/svg"
 xmlns:xlink="http://www.w3.org/1999/xlink"><metadata>by</metadata><desc>Two points, 0.0025 and -0 apart.</desc><defs>
<path id="mark" d="M 0 0.123456"/></defs><g id="figure"><g clip-path="url(#box)"><use xlink:href="#mark" x="1.23456"
 y="2" style="fill: #b2182b"/><use xlink:href="#mark" x="3" y="4" style="fill: #b2182b"/></g>
<path d="M 1 2 L 1 4 L 2 4" style="fill: none; stroke: #b2182b"/>
<path d="M 3 2 L 3 4" style="fill: none; stroke: #b2182b"/><path d="M 5 2 L 5 4" style="fill: none; stroke: #2166ac"/>
<path d="M 1 1 L 9 9" style="fill: #2166ac"/><path d="M 2 1 L 9 8" style="fill: #2166ac"/></g></svg>"""


def test_compact_figures_have_the_same_content():
    small = gallery.compact(SVG)
    assert len(small) < len(SVG)
    tree = xml.etree.ElementTree.fromstring(small)
    space = {"s": "http://www.w3.org/2000/svg"}
    marks = tree.findall(".//s:use", space)
    assert [(mark.get("x"), mark.get("y")) for mark in marks] == [("1.23", "2"), ("3", "4")]
    (group,) = [g for g in tree.iter() if g.get("style") == "fill: #b2182b"]
    assert list(group) == marks
    paths = [path.get("d") for path in tree.findall(".//s:path", space) if path.get("id") is None]
    assert paths == ["M 1 2 1 4 2 4 M 3 2 3 4", "M 5 2 5 4", "M 1 1 9 9", "M 2 1 9 8"]  # filled ones are not joined
    assert tree.findtext(".//s:desc", namespaces=space) == "Two points, 0.0025 and -0 apart."


def test_performance_has_every_result():
    text = made()["performance.md"]
    commands = re.findall(r"`python -m benchmarks (\w+)`", text)
    stems = {file.stem for file in (ROOT / "benchmarks" / "results").glob("*.json")}
    assert set(commands) == {benchmark_of(stem) for stem in stems}
    assert all((ROOT / "benchmarks" / f"{name}.py").is_file() for name in commands)


def test_performance_numbers_are_those_of_the_files():
    import json

    ratio = json.loads((ROOT / "benchmarks/results/sensing.json").read_text())["ratios"]["fresh / exact"]
    assert f"| fresh / exact, ratio | {ratio:,.0f} |" in made()["performance.md"]


def test_capabilities_has_every_level_and_the_numbers_of_the_file():
    import json

    text = made()["capabilities.md"]
    for level in ("descend", "diffuse", "average", "Limit", "settle", "equilibrium", "find_symmetries", "census",
                  "NoiseMonitor", "equilibrate", "InvariantRegressor", "sweep"):  # fmt: skip
        assert f"| [`{level}`](api/" in text, level
    stored = json.loads((ROOT / "benchmarks/results/capabilities.json").read_text())
    for case in stored["grouped"]:
        assert f"| {case['rows']:,} | {case['columns']} |" in text
    commands = set(re.findall(r"`python -m benchmarks (\w+)`", text))
    assert {"capabilities", "torch_census", "llama_monitor", "sweeps"} <= commands
    assert all((ROOT / "benchmarks" / f"{name}.py").is_file() for name in commands)


def test_refused_calls_have_the_messages_shown(as_a_user):
    """Run `python -m benchmarks capabilities` where this fails: a message or a limit was changed."""
    import json

    from benchmarks.capabilities import refusals

    stored = json.loads((ROOT / "benchmarks/results/capabilities.json").read_text())["refusals"]
    present = refusals()
    assert len(present) >= 6
    assert present == {name: stored[name] for name in present}


def test_changelog_and_citation_are_the_files():
    assert made()["changelog.md"] == (ROOT / "CHANGELOG.md").read_text()
    assert (ROOT / "CITATION.cff").read_text().strip() in made()["cite.md"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a `step_size` of A*, B*", "a <code>step&#95;size</code> of A&#42;, B&#42;"),
        ("**Arguments:** `alpha` is alpha", "**Arguments:** <code>alpha</code> is α"),
        ("|x|^2 [S]", "&#124;x&#124;<sup>2</sup> &#91;S&#93;"),
    ],
)
def test_text_keeps_code_and_typesets_mathematics(text, shown):
    assert setting.words(text) == shown


def test_docstrings_keep_lists_equations_and_examples():
    text = setting.docstring("Moves.\n\n- `d`: one\n  and more\n- two\n\n    x = eta^2\n\n>>> 1\n1\n")
    assert text.split("\n\n") == [
        "Moves.",
        "- <code>d</code>: one and more\n- two",
        f'<div class="equation">{formula("x = eta^2")}</div>',
        "```pycon\n>>> 1\n1\n```",
    ]


def test_experiments_and_flags_exist():
    """`undertow run EXPERIMENT --flag` and `undertow verify CLAIM` name claims and flags that exist."""
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for block in re.findall(r"^```console\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE):
            for line in block.splitlines():
                call = re.match(
                    r"undertow (run|verify) ([a-z][a-z0-9-]+)(?![\w.:])(.*)", line
                )  # no file of the reader's own
                if not call:
                    continue
                claim = claims[call[2]]
                fields = {f.name.replace("_", "-") for f in dataclasses.fields(claim.scales["smoke"])}
                flags = set(re.findall(r"--([a-z-]+)", call[3])) if call[1] == "run" else set()
                assert flags <= fields | {"help", "scale", "seed", "out"}, line


def test_the_badges_of_the_readme_are_true():
    """Run `python -m docs.badges` where this fails."""
    stored = {path.name: path.read_text() for path in (ROOT / "docs" / "images").glob("badge-*.svg")}
    assert stored == badges.badges()
    assert all(f"docs/images/{name}" in (ROOT / "README.md").read_text() for name in stored)
    assert f"{len(claims)} of {len(claims)}" in stored["badge-claims.svg"]
