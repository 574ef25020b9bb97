"""The records of verification: a task, the checks of a claim, and the result of a claim.

A worker returns a `ClaimResult`; `result.json` and `results.json` store it as `to_json` writes it; the report reads it
with `from_json`. The folder of a claim holds its data, its figure and its `result.json` under one seal, and is replaced
as a whole: the numbers of a report are those of the figure beside them.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from undertow.execution import store
from undertow.execution.provenance import Parameter, Provenance
from undertow.execution.reading import DAMAGE, check_fields, parse_json, plain_name, read_json
from undertow.execution.store import JSONObject
from undertow.verification.claim import Scale
from undertow.verification.criterion import Check, Criterion, TextCriterion, Verdict, criterion_from_json, judge, power
from undertow.verification.errata import Erratum, errata_of, expected

__all__ = [
    "CheckResult",
    "ClaimResult",
    "Task",
    "claim_folder",
    "read_result",
    "read_results",
    "store_result",
    "write_results",
]


@dataclass(frozen=True)
class Task:
    """The inputs of a worker that runs one claim."""

    claim: str
    scale: Scale
    parameters: dict[str, Parameter]
    seed: int
    source: str = ""
    """The file or folder of a user's claim; none for a claim of an installed pack."""
    planted: bool = False
    """Whether the alternative is planted, so that the claim must fail."""
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
    title: str = ""
    """The title of the paper."""
    place: str = ""
    statement: str = ""
    equation: str = ""
    alternative: str = ""
    rests_on: tuple[str, ...] = ()
    """The claims that this one rests on."""
    errata: tuple[Erratum, ...] = ()
    """The errors of the paper that this claim decides."""
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
            "rests_on": list(self.rests_on),
            "errata": [asdict(erratum) for erratum in self.errata],
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
        listed = data.get("errata")
        errata = errata_of(data["claim"]) if listed is None else tuple(Erratum(**erratum) for erratum in listed)
        result = ClaimResult(
            task=Task(**task),
            rests_on=tuple(data.get("rests_on", ())),
            errata=errata,
            checks=tuple(CheckResult.from_json(check) for check in data["checks"]),
            provenance=Provenance.from_json(made) if made else None,
            **own,
        )
        check_fields(result)
        if not plain_name(result.claim):
            raise ValueError(f"the claim {result.claim!r} cannot be the name of a folder")
        return result


_NESTED = ("task", "checks", "provenance", "rests_on", "errata")
HEADLINE = ("what", "measured", "predicted", "uncertainty", "printed", "criterion")
_OWN_FIELDS = tuple(f.name for f in fields(ClaimResult) if f.name not in _NESTED)


def claim_folder(out: Path, claim: str) -> Path:
    """Return the folder of a claim in the output folder of `undertow verify`."""
    return Path(out) / "claims" / claim


def store_result(out: Path, result: ClaimResult, files: Mapping[str, bytes]) -> ClaimResult:
    """Replace the folder of a claim by its files and result.json, and return the result as it will be read."""
    text = json.dumps(result.to_json(), indent=1, default=float)
    made = {} if result.provenance is None else result.provenance.to_json()
    store.save_folder(claim_folder(out, result.claim), {**files, "result.json": text.encode()}, made)
    return ClaimResult.from_json(json.loads(text))


def read_result(out: Path, claim: str) -> ClaimResult:
    """Return the stored result of a claim, after checking the seal over its data, figure and numbers."""
    folder = claim_folder(out, claim)
    (content,) = store.sealed(folder, "result.json")
    try:
        return ClaimResult.from_json(parse_json(content))
    except DAMAGE:
        raise store.StoreError(f"{folder}: damaged, result.json is not a result.") from None


def write_results(out: Path, results: list[ClaimResult]) -> Path:
    """Write results.json: the list of all results, for other programs."""
    content = json.dumps([result.to_json() for result in results], indent=1)
    return store.write_bytes(out / "results.json", f"{content}\n".encode())


def read_results(out: Path, warn: Callable[[str], object] = lambda message: None) -> list[ClaimResult]:
    """Return the results of a folder that `undertow verify` wrote.

    The folders of the claims take precedence over results.json, which a verification that was killed did not write.
    """
    path = Path(out) / "results.json"
    if not path.is_file():
        raise store.StoreError(f"{out}: no results.json here; `undertow verify --out {out}` makes one.")
    try:
        listed = [ClaimResult.from_json(result) for result in read_json(path)]
    except DAMAGE:
        raise store.StoreError(f"{path}: damaged, it is not a list of results; run `undertow verify` again.") from None
    return [_stored_or_listed(out, result, warn) for result in listed]


def _stored_or_listed(out: Path, listed: ClaimResult, warn: Callable[[str], object]) -> ClaimResult:
    try:
        return replace(read_result(out, listed.claim), expected=listed.expected)
    except store.NewerFormatError:
        raise
    except store.MissingError:
        return listed
    except store.StoreError as error:
        folder = claim_folder(out, listed.claim)
        if not any((folder / name).exists() for name in ("result.json", store.SEAL)):  # figures from elsewhere
            return listed
        warn(f"the result of {listed.claim} has no figure in the report: {error}")
        return listed
