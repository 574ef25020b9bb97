"""report.html as a file: complete, whatever the results are. Its look is in test_report_in_chromium.py."""

import dataclasses
import html
import re
from pathlib import Path

import pytest

from tests.verification.work import result_of
from undertow.execution import store
from undertow.execution.provenance import Provenance
from undertow.figures import export, style
from undertow.verification.criterion import AtLevel, TextCriterion, Within
from undertow.verification.report import build_report
from undertow.verification.result import CheckResult, Task

CHECK = CheckResult(
    "|theta|^2 over theory", 1.01, 1.0, 0.002, Within(0.1, 0.5), "corrected", printed=2.0, alternative=None
)


def result(name="a-claim", **more):
    task = Task(name, "smoke", {"seeds": 4, "step_size": 1e-05}, 7)
    fields = {
        "checks": (CHECK,), "meanings": {"step_size": "The paper's eta."}, "command": f"undertow verify {name}",
        "statement": "A <statement>.", "equation": "a^2 = b", "place": "Eq. (1)", "seeds": 4, "diverged": 2,
        "provenance": Provenance("9.9", "gpu: a fast one", versions={"jax": "1.2.3"}),
    }  # fmt: skip
    return result_of(task, **fields | more)


def text_of(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", " ", page.read_text()))


def test_a_section_has_everything(tmp_path):
    figure, (axes,) = style.new_figure()
    style.theory(axes, [0, 1], [0, 1], "a line of theory")
    file = tmp_path / "claims" / "a-claim" / "figure.svg"
    file.parent.mkdir(parents=True)
    file.write_text(export.to_svg(figure))
    file.with_suffix(".pdf").write_bytes(export.to_pdf(figure))
    page = build_report(tmp_path, [result()])
    said = re.sub(r"[ \n]+", " ", text_of(page))
    for words in (
        "A <statement>.", "Eq. (1)", "|θ| 2 over theory", "1.01 ± 0.002", "1 (in print: 2)", "The paper’s η.",
        "4 seeds; 2 diverged, left out", "seed 7, scale smoke", "undertow 9.9, jax 1.2.3", "gpu: a fast one",
        "claims/a-claim/figure.pdf", "undertow verify a-claim", "able to detect 0.5",
        "a line of theory, a line: 0 at 0 to 1 at 1", "1\u00a0×\u00a010 −5",
    ):  # fmt: skip
        assert words in said, words


def test_a_check_without_an_alternative_is_explained(tmp_path):
    explained = "A control rejects the values that its row names"
    assert explained in text_of(build_report(tmp_path, [result()]))
    decisive = dataclasses.replace(CHECK, alternative=2.0, power=1.0)
    assert explained not in text_of(build_report(tmp_path, [result(checks=(decisive,))]))


def test_a_damaged_figure_is_left_out(tmp_path):
    figure, (axes,) = style.new_figure()
    style.theory(axes, [0, 1], [0, 1], "a line of theory")
    svg = export.to_svg(figure).encode()
    folder = store.save_folder(tmp_path / "claims" / "a-claim", {"figure.svg": svg}, {})
    assert "a line of theory" in text_of(build_report(tmp_path, [result()]))
    (folder / "figure.svg").write_bytes(svg.replace(b"a line of theory", b"a line of theorx"))
    assert "a line of theor" not in text_of(build_report(tmp_path, [result()]))


def test_figures_that_are_missing_and_errors_do_not_stop_the_page(tmp_path):
    failed = result(
        "broken", verdict="error", checks=(), note="it broke", traceback="Traceback: <here>", provenance=None
    )
    said = text_of(build_report(tmp_path, [result(), failed]))
    assert "Traceback: <here>" in said
    assert "0 of 2" not in said
    assert "1 of 2 verdicts as expected" in said


def test_results_of_before_have_no_command_and_get_one(tmp_path):
    old = result(command="", meanings={})
    assert "undertow verify a-claim --scale smoke --seed 7" in text_of(build_report(tmp_path, [old]))


def test_a_criterion_that_was_stored_as_text_is_shown(tmp_path):
    old = dataclasses.replace(CHECK, criterion=TextCriterion("within 0.1 + 4 standard errors, able to detect 0.5"))
    shown = text_of(build_report(tmp_path, [result(checks=(old,))]))
    assert "able to detect 0.5" in shown
    assert "1 (in print: 2)" in shown


def test_a_p_value_is_named(tmp_path):
    test = CheckResult("draws", 0.2194, 1.0, 0.0, AtLevel(1e-3, "Kolmogorov-Smirnov"), "holds", alternative=1e-9)
    shown = text_of(build_report(tmp_path, [result(checks=(test,))]))
    for text in ("p = 0.2194", "p above 0.001", "Kolmogorov-Smirnov, level 0.001"):
        assert text in shown, text


def test_text_of_a_claim_is_escaped(tmp_path):
    page = build_report(tmp_path, [result(note="<script>alert(1)</script>", command="undertow <b>")]).read_text()
    assert "<script>alert" not in page
    assert "undertow &lt;b&gt;" in page


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e-300])
def test_numbers_that_are_none_are_shown(tmp_path, value):
    page = build_report(tmp_path, [result(checks=(dataclasses.replace(CHECK, measured=value),))])
    assert page.stat().st_size > 1000


def test_no_results_is_a_page_too(tmp_path):
    assert "0 of 0 verdicts" in text_of(build_report(tmp_path, []))
