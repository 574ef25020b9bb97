"""`python -m docs.full FOLDER COMMIT SECONDS`: keeps a report of `undertow verify --scale full` as an example.

FOLDER is what the command wrote, COMMIT the source it ran on, SECONDS how long it took. The page of the site is made
from what is kept here.
"""

import json
import sys
from pathlib import Path
from typing import Any

from docs import gallery

__all__ = ["FOLDER", "facts", "results", "store"]

FOLDER = Path(__file__).parent / "full"


def store(report: Path, commit: str, seconds: float) -> int:
    """Copies report.html, and keeps of the results what the page shows, with how they were made."""
    found = json.loads((report / "results.json").read_text())
    gallery.write(FOLDER / "results.json", [gallery.kept(result) for result in found])
    (FOLDER / "report.html").write_bytes((report / "report.html").read_bytes())
    versions = {name: version for result in found for name, version in result["provenance"]["versions"].items()}
    made = {"commit": commit, "seconds": seconds, "versions": versions}
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
    if len(sys.argv) != 4 or not (Path(sys.argv[1]) / "report.html").is_file():
        raise SystemExit("usage: python -m docs.full FOLDER COMMIT SECONDS, a folder that `undertow verify` wrote")
    count = store(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
    print(f"{count} claims in {FOLDER}")


if __name__ == "__main__":
    main()
