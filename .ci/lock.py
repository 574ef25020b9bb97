"""`make lock`: write requirements/*.txt, the packages of the gate with the hashes of all files of their releases.

`uv` resolves pyproject.toml for every platform within constraints.txt; the index tells the hashes. dev.txt is for
`make setup`; the other files have what their extra adds. PyTorch and what only it needs are left out: its builds for
processors and for accelerators have different files and dependencies under the same version.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "requirements"
EXTRAS = {"dev": "3.11", "torch-test": "3.11", "docs": "3.11.5", "release": "3.11"}
"""The extras of the gate, and the oldest Python that their packages run on."""
WITHOUT = "torch ; sys_platform == 'never'\n"


def compiled(uv: str, *extras: str) -> dict[str, str]:
    """Return the lines of every package of the extras by its name."""
    with tempfile.TemporaryDirectory() as folder:
        override, out = Path(folder) / "override.txt", Path(folder) / "out.txt"
        override.write_text(WITHOUT)
        options = [
            "--universal",
            "--python-version",
            EXTRAS[extras[-1]],
            "--generate-hashes",
            "--no-annotate",
            "--no-header",
        ]
        options += [part for extra in extras for part in ("--extra", extra)]
        command = [uv, "pip", "compile", "--quiet", *options, "--constraint", "constraints.txt"]
        subprocess.run([*command, "--override", override, "-o", out, "pyproject.toml"], cwd=ROOT, check=True)
        packages: dict[str, str] = {}
        name = ""
        for line in out.read_text().splitlines(keepends=True):
            if not line.startswith(" "):
                name = line.partition("==")[0]
                packages[name] = packages.get(name, "") + line
            else:
                packages[name] += line
        return packages


def main() -> None:
    """Write one file per extra."""
    OUT.mkdir(exist_ok=True)
    base: dict[str, str] = {}
    for extra in EXTRAS:
        packages = compiled(sys.argv[1], *dict.fromkeys(("dev", extra)))
        new = [text for name, text in packages.items() if base.get(name) != text and name != "torch"]
        (OUT / f"{extra}.txt").write_text("# made by `make lock`\n" + "".join(new))
        print(f"requirements/{extra}.txt: {len(new)} packages")
        base = base or packages


if __name__ == "__main__":
    main()
