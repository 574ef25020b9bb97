"""Store a report of `undertow verify --scale full` as an example: `python -m docs.full FOLDER COMMIT SECONDS [REMARK]`.

FOLDER is the folder that the command wrote, COMMIT the source it ran on, SECONDS the time it took, REMARK a sentence
for the page of the site. The page is made from the stored files.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from docs import gallery
from undertow.verification.report import build_report

__all__ = ["FOLDER", "facts", "results", "store"]

FOLDER = Path(__file__).parent / "full"


def store(report: Path, commit: str, seconds: float, remark: str = "") -> int:
    """Store the report without links to PDFs, and the part of the results that the page shows; return their number."""
    claim_results = json.loads((report / "results.json").read_text())
    gallery.write(FOLDER / "results.json", [gallery.kept(result) for result in claim_results])
    with tempfile.TemporaryDirectory() as alone:
        (Path(alone) / "claims").symlink_to((report / "claims").resolve())
        (FOLDER / "report.html").write_bytes(build_report(Path(alone), claim_results).read_bytes())
    versions = {name: version for result in claim_results for name, version in result["provenance"]["versions"].items()}
    made = {"commit": commit, "seconds": seconds, "versions": versions, "remark": remark}
    (FOLDER / "made.json").write_text(json.dumps(made, indent=1) + "\n")
    return len(claim_results)


def results() -> list[dict[str, Any]]:
    """Return the stored results of all claims."""
    return json.loads((FOLDER / "results.json").read_text())


def facts() -> dict[str, Any]:
    """Return how the report was made."""
    return json.loads((FOLDER / "made.json").read_text())


def main() -> None:
    """Store the report that is named on the command line."""
    folder, commit, seconds, *remark = sys.argv[1:] if len(sys.argv) in (4, 5) else ("", "", "0")
    if not (Path(folder) / "results.json").is_file():
        raise SystemExit("usage: python -m docs.full FOLDER COMMIT SECONDS [REMARK], a folder of `undertow verify`")
    count = store(Path(folder), commit, float(seconds), *remark)
    print(f"{count} claims in {FOLDER}")


if __name__ == "__main__":
    main()
