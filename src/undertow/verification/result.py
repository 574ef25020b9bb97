"""The records of verification: a task, the checks of a claim, and the result of a claim.

A worker returns a `ClaimResult`; `result.json` and `results.json` store it as `to_json` writes it; the report reads it
with `from_json`.
"""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from undertow.execution import store
from undertow.execution.provenance import Parameter, Provenance
from undertow.execution.reading import DAMAGE, check_fields, plain_name, read_json
from undertow.execution.store import JSONObject
from undertow.verification.claim import Scale
from undertow.verification.criterion import Check, Criterion, TextCriterion, Verdict, criterion_from_json, judge, power
from undertow.verification.errata import expected

__all__ = ["CheckResult", "ClaimResult", "Task", "read_results", "write_results"]


@dataclass(frozen=True)
class Task:
    """The inputs of a worker that runs one claim."""

    claim: str
    scale: Scale
    parameters: dict[str, Parameter]
    seed: int
    fingerprint: str = ""
    """A hash of the code, the versions and the fields above: a result with the same one is not computed again."""


@dataclass(frozen=True)
class CheckResult:
    """A check with its verdict."""

    what: str
    measured: float | int
    predicted: float | int
    uncertainty: float | int
    criterion: Criterion | TextCriterion
    verdict: Verdict
    printed: float | int | None = None
    alternative: float | int | None = None
    power: float | int | None = None
    """The probability of rejecting the alternative, where one is stated."""

    @staticmethod
    def of(check: Check, seeds: int) -> "CheckResult":
        """Judge a check of a measurement with so many seeds."""
        return CheckResult(
            what=check.what,
            measured=float(check.measured),
            predicted=float(check.predicted),
            uncertainty=float(check.uncertainty),
            criterion=check.criterion,
            verdict=judge(check, seeds)[0],
            printed=check.printed,
            alternative=check.alternative,
            power=power(check, seeds),
        )

    def to_json(self) -> JSONObject:
        """Return the record as plain values."""
        return asdict(self) | {"criterion": self.criterion.to_json()}

    @staticmethod
    def from_json(data: JSONObject) -> "CheckResult":
        """Return the record that `to_json` wrote, in this version or in one that stored criteria as text."""
        known: JSONObject = {name: value for name, value in data.items() if name in _CHECK_FIELDS}
        known["criterion"] = criterion_from_json(data["criterion"])
        return CheckResult(**known)


_CHECK_FIELDS = {f.name for f in fields(CheckResult)}


@dataclass(frozen=True)
class ClaimResult:
    """The result of a claim: its task, its statement, the verdict with the checks behind it, and how it was made."""

    task: Task
    verdict: Verdict
    expected: Verdict
    """The verdict that the errata lists imply."""
    checks: tuple[CheckResult, ...] = ()
    """The headline first; none where the experiment raised an error."""
    paper: str = ""
    place: str = ""
    statement: str = ""
    equation: str = ""
    alternative: str = ""
    meanings: dict[str, str] = field(default_factory=dict)
    """The meaning of each parameter."""
    command: str = ""
    """The command line that repeats the experiment."""
    seeds: int = 0
    seeds_needed: int | None = None
    """For an inconclusive verdict: the number of seeds that would decide."""
    diverged: int = 0
    note: str = ""
    traceback: str = ""
    seconds: float | int = 0.0
    compile_seconds: float | int = 0.0
    provenance: Provenance | None = None

    @property
    def claim(self) -> str:
        """The id of the claim."""
        return self.task.claim

    @property
    def run_seconds(self) -> float | int:
        """The seconds without compilation."""
        return max(0.0, self.seconds - self.compile_seconds)

    @property
    def headline(self) -> CheckResult | None:
        """The first check; None where the experiment raised an error."""
        return self.checks[0] if self.checks else None

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is the expected one."""
        return self.verdict == self.expected

    def to_json(self) -> JSONObject:
        """Return the record as plain values: one flat object, with the numbers of the first check beside the checks."""
        head = self.headline
        headline = dict.fromkeys(HEADLINE) if head is None else {name: head.to_json()[name] for name in HEADLINE}
        own = {name: getattr(self, name) for name in _OWN_FIELDS}
        return asdict(self.task) | own | headline | {
            "run_seconds": self.run_seconds,
            "checks": [check.to_json() for check in self.checks],
            "provenance": {} if self.provenance is None else self.provenance.to_json(),
        }  # fmt: skip

    @staticmethod
    def from_json(data: JSONObject) -> "ClaimResult":
        """Return the record that `to_json` wrote; fields that a shorter file leaves out have their defaults.

        A record of another structure raises one of the errors of `DAMAGE`. The files of the documentation keep the
        version and the device beside the other fields.
        """
        made = data.get("provenance") or {name: data[name] for name in ("undertow", "device") if name in data}
        task = {f.name: data[f.name] for f in fields(Task) if f.name in data}
        own: JSONObject = {"expected": expected(data["claim"])}
        own |= {name: data[name] for name in _OWN_FIELDS if name in data}
        result = ClaimResult(
            task=Task(**task),
            checks=tuple(CheckResult.from_json(check) for check in data["checks"]),
            provenance=Provenance.from_json(made) if made else None,
            **own,
        )
        check_fields(result)
        if not plain_name(result.claim):
            raise ValueError(f"the claim {result.claim!r} cannot be the name of a folder")
        return result


HEADLINE = ("what", "measured", "predicted", "uncertainty", "printed", "criterion")
_OWN_FIELDS = tuple(f.name for f in fields(ClaimResult) if f.name not in ("task", "checks", "provenance"))


def write_results(out: Path, results: list[ClaimResult]) -> Path:
    """Write results.json: the list of all results, for other programs."""
    content = json.dumps([result.to_json() for result in results], indent=1)
    return store.write_bytes(out / "results.json", f"{content}\n".encode())


def read_results(out: Path) -> list[ClaimResult]:
    """Return the results of a folder that `undertow verify` wrote."""
    path = Path(out) / "results.json"
    if not path.is_file():
        raise store.StoreError(f"{out}: no results.json here; `undertow verify --out {out}` makes one.")
    try:
        return [ClaimResult.from_json(result) for result in read_json(path)]
    except DAMAGE as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise store.StoreError(
            f"{path}: damaged, it is not a list of results ({reason}); run `undertow verify` again."
        ) from None
