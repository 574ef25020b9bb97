"""`python -m docs.full FOLDER COMMIT SECONDS [REMARK]`: keeps a report of `undertow verify --scale full` as an example.

FOLDER is what the command wrote, COMMIT the source it ran on, SECONDS how long it took, REMARK a sentence for the page
of the site, which is made from what is kept here.
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
    """Keeps the report, without links to the PDFs beside it, and of the results what the page shows."""
    found = json.loads((report / "results.json").read_text())
    gallery.write(FOLDER / "results.json", [gallery.kept(result) for result in found])
    with tempfile.TemporaryDirectory() as alone:
        (Path(alone) / "claims").symlink_to((report / "claims").resolve())
        (FOLDER / "report.html").write_bytes(build_report(Path(alone), found).read_bytes())
    versions = {name: version for result in found for name, version in result["provenance"]["versions"].items()}
    made = {"commit": commit, "seconds": seconds, "versions": versions, "remark": remark}
    (FOLDER / "made.json").write_text(json.dumps(made, indent=1) + "\n")
    return len(found)


def results() -> list[dict[str, Any]]:
    """What each claim gave."""
    return json.loads((FOLDER / "results.json").read_text())


def facts() -> dict[str, Any]:
    """How the report was made."""
    return json.loads((FOLDER / "made.json").read_text())


def main() -> None:
    """Reads the command line."""
    folder, commit, seconds, *remark = sys.argv[1:] if len(sys.argv) in (4, 5) else ("", "", "0")
    if not (Path(folder) / "results.json").is_file():
        raise SystemExit("usage: python -m docs.full FOLDER COMMIT SECONDS [REMARK], a folder of `undertow verify`")
    count = store(Path(folder), commit, float(seconds), *remark)
    print(f"{count} claims in {FOLDER}")


if __name__ == "__main__":
    main()
