"""report.html: one self-contained file with the verdicts and a section for every claim."""

import math
import re
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from undertow.execution import store
from undertow.execution.provenance import Parameter
from undertow.execution.registry import titles
from undertow.figures.inline import inline, proportions, words_of
from undertow.figures.page import page, templates
from undertow.verification.graph import draw_graph
from undertow.verification.notation import formula, prose
from undertow.verification.presentation import alternative_text, measured_text, prediction_text
from undertow.verification.result import CheckResult, ClaimResult, claim_folder

__all__ = ["VERDICTS", "build_report"]

VERDICTS = {
    "error": "the experiment could not be run",
    "fails": "the data reject the claim",
    "inconclusive": "more seeds are needed to decide",
    "corrected": "the data reject the printed value and agree with the correction",
    "holds": "the data agree with the claim",
}
"""The verdicts from worst to best, the order in which the table sorts them."""


LONG = 100
"""The number of claims above which a browser should not lay out the whole page before it shows the beginning."""
MOST_INSIDE = 1000
"""The most claims whose figures are inside the page; above it they stay beside the page, as pictures."""


@dataclass(frozen=True)
class Figure:
    """The figure of a claim, as an element of the page or as a file beside it, and its description in words."""

    description: str
    width: int
    """Pixels."""
    height: int
    svg: Markup | None = None
    file: str = ""
    """The address of the file, where the figure is not inside the page. Browsers run no script of a picture."""

    @property
    def scrolls(self) -> bool:
        """Whether it is too wide for a phone."""
        return self.svg is not None and "--least" in self.svg


def build_report(out: Path, results: list[ClaimResult]) -> Path:
    """Write report.html beside the results. Figures are inside it, so that one file is enough to share the report.

    The figures of more than `MOST_INSIDE` claims are pictures beside the page.
    """
    out = Path(out)
    linked = len(results) > MOST_INSIDE
    papers = list(dict.fromkeys(result.paper for result in results))
    results = sorted(results, key=lambda result: papers.index(result.paper))
    body = _environment().get_template("report.html").render(
        results=results,
        VERDICTS=VERDICTS,
        LONG=LONG,
        graph=draw_graph(results),
        titles={result.paper: _title(result) for result in results},
        judged={result.claim: result.verdict for result in results},
        planted=any(result.task.planted for result in results),
        papers=papers,
        present=[verdict for verdict in VERDICTS if any(result.verdict == verdict for result in results)],
        tally=Counter(result.verdict for result in results),
        scales=", ".join(sorted({result.task.scale for result in results})) or "none",
        minutes=sum(result.seconds for result in results) / 60,
        figures={result.claim: _figure(out, result, linked) for result in results},
        pdfs={result.claim: _pdf(out, result.claim) for result in results},
    )  # fmt: skip
    text = page("undertow: verification report", Markup(body), scripted=True, beside=linked)
    return store.write_bytes(out / "report.html", text.encode())


def _environment() -> jinja2.Environment:
    environment = templates("undertow.verification")
    environment.filters |= {
        "prose": lambda text: Markup(prose(text)),
        "formula": lambda text: Markup(formula(text)),
        "numeral": lambda text: Markup(_numeral(text)),
        "short": lambda paper: paper.replace("_", " "),
        "sort_key": _sort_key,
        "measured": lambda check: measured_text(check.criterion, check.measured, check.uncertainty),
        "predicted": lambda check: prediction_text(check.criterion, check.predicted, check.printed),
        "alternative": lambda check: alternative_text(check.criterion, check.alternative),
        "power": lambda check: "" if check.power is None else _power_text(check.power),
        "value": _value,
        "least_power": _least_power,
        "search_text": _search_text,
        "facts": _facts,
        "command": _command,
    }
    return environment


def _sort_key(value: float | int | None) -> str:
    """Return the key by which the table sorts a number; values that are not finite come last."""
    return "" if value is None or not math.isfinite(value) else repr(value)


def _numeral(text: str) -> str:
    return prose(re.sub(r"(?<![0-9e])-(?=[0-9])", "−", text))


def _value(value: Parameter) -> Markup | str:
    """Return the value of a parameter; numbers are set as numerals."""
    return str(value) if isinstance(value, str) else Markup("<span>{}</span>").format(Markup(_numeral(str(value))))


def _search_text(result: ClaimResult) -> str:
    """Return the text that the filter of the table searches."""
    texts = [
        result.claim, _title(result), result.paper, result.place, result.statement,
        result.equation, result.verdict, result.alternative, *(check.what for check in result.checks),
    ]  # fmt: skip
    return " ".join(texts).lower()


def _least_power(checks: tuple[CheckResult, ...]) -> str | None:
    """Return the least probability with which the checks reject the alternative; None where none states one."""
    powers = [check.power for check in checks if check.power is not None]
    if not powers:
        return None
    return _power_text(min(powers))


def _power_text(power: float | int) -> str:
    return "above 0.999" if power > 0.999 else f"{power:.3f}"


def _title(result: ClaimResult) -> str:
    """Return the title of the paper; results of earlier versions do not state it."""
    return result.title or titles().get(result.paper, result.paper)


def _figure(out: Path, result: ClaimResult, linked: bool) -> Figure | str | None:
    """Return the figure of a claim; a sentence where its file cannot be read, None where there is none."""
    place = claim_folder(Path(), result.claim) / "figure.svg"
    head = result.headline
    if not (out / place).is_file() or head is None:
        return None
    try:
        svg = _svg(claim_folder(out, result.claim))
        measured = measured_text(head.criterion, head.measured, head.uncertainty)
        predicted = prediction_text(head.criterion, head.predicted, head.printed)
        description = words_of(svg) or f"{head.what}: measured {measured}, {predicted}."
        width, height = (round(side * 96 / 72) for side in proportions(svg))
        if linked:
            return Figure(description, width, height, file=quote(place.as_posix()))
        element = inline(svg, result.claim, f"Figure. {description}")
        return Figure(description, width, height, svg=Markup(element))
    except (OSError, ValueError) as error:
        return f"{place.as_posix()} cannot be shown ({error}); `undertow verify` draws it again."


def _svg(folder: Path) -> str:
    """Return the figure in the folder of a claim; raise a `ValueError` where the seal is broken."""
    if not (folder / store.SEAL).is_file():  # from elsewhere
        return (folder / "figure.svg").read_text(encoding="utf-8")
    try:
        (svg,) = store.sealed(folder, "figure.svg")
    except store.StoreError:
        raise ValueError("its folder is not as it was written") from None
    return svg.decode()


def _pdf(out: Path, claim: str) -> str | None:
    """Return the place of the PDF of the figure, relative to the page; None where there is none."""
    pdf = claim_folder(Path(), claim) / "figure.pdf"
    return pdf.as_posix() if (out / pdf).is_file() else None


def _facts(result: ClaimResult) -> dict[str, str]:
    """Return how the result was made, by name."""
    excluded = f"{result.diverged} diverged, left out" if result.diverged else "none diverged"
    facts = {
        "Runs": f"{result.seeds} seeds; {excluded}",
        "Randomness": f"seed {result.task.seed}, scale {result.task.scale}",
        "Time": f"{result.compile_seconds:.1f} s compiling, {result.run_seconds:.1f} s running",
    }
    made = result.provenance
    if made is None:
        return facts
    platform, _, kind = made.device.partition(": ")
    device = platform if kind in ("", platform) else made.device
    precision = {True: ", double precision", False: ", single precision", None: ""}[made.double_precision]
    versions = [f"{name} {version}" for name, version in made.versions.items() if version]
    return facts | {
        "Device": f"{device}{precision}",
        "Made with": ", ".join([f"undertow {made.undertow}", *versions]),
    }


def _command(result: ClaimResult) -> str:
    """Return the command that repeats the experiment; results of earlier versions do not state it."""
    task = result.task
    return result.command or shlex.join(
        ["undertow", "verify", task.claim, "--scale", task.scale, "--seed", str(task.seed)]
    )
