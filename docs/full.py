"""`python -m docs.full FOLDER COMMIT SECONDS [REMARK]`: store a report of `undertow verify --scale full` as an example.

FOLDER is the folder that the command wrote, COMMIT the source that it ran on, SECONDS how long it took, and REMARK a
sentence for the page of the site, which is made from the stored files.
"""

import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from docs import gallery
from undertow.verification.report import build_report
from undertow.verification.result import ClaimResult, read_results

__all__ = ["FOLDER", "Made", "made", "results", "store"]

FOLDER = Path(__file__).parent / "full"


@dataclass(frozen=True)
class Made:
    """How the report was made."""

    commit: str
    seconds: float
    versions: dict[str, str | None]
    remark: str


def store(report: Path, commit: str, seconds: float, remark: str = "") -> int:
    """Store the report, without links to the PDFs beside it, and the fields of the results that the page shows."""
    stored = read_results(report)
    gallery.write(FOLDER / "results.json", [gallery.kept(result) for result in stored])
    with tempfile.TemporaryDirectory() as alone:
        (Path(alone) / "claims").symlink_to((report / "claims").resolve())
        (FOLDER / "report.html").write_bytes(build_report(Path(alone), stored).read_bytes())
    versions = {name: version for r in stored if r.provenance for name, version in r.provenance.versions.items()}
    content = json.dumps(asdict(Made(commit, seconds, versions, remark)), indent=1)
    (FOLDER / "made.json").write_text(content + "\n")
    return len(stored)


def results() -> list[ClaimResult]:
    """Return the result of each claim."""
    return gallery.read(FOLDER / "results.json")


def made() -> Made:
    """Return how the report was made."""
    return Made(**json.loads((FOLDER / "made.json").read_text()))


def main() -> None:
    """Read the command line."""
    folder, commit, seconds, *remark = sys.argv[1:] if len(sys.argv) in (4, 5) else ("", "", "0")
    if not (Path(folder) / "results.json").is_file():
        raise SystemExit("usage: python -m docs.full FOLDER COMMIT SECONDS [REMARK], a folder of `undertow verify`")
    count = store(Path(folder), commit, float(seconds), *remark)
    print(f"{count} claims in {FOLDER}")


if __name__ == "__main__":
    main()
