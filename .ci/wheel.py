"""`make test-wheel`: install the wheel in a fresh virtual environment outside the clone, and use it there.

    python .ci/wheel.py dist/undertow-*.whl [--all]

Versions are those of constraints.txt. The command line answers, every module that needs no extra is imported, and
claims of all packs are verified: five cheap ones, or all with `--all`.
"""

import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLAIMS = (
    "symmetric-measurements",
    "controller-event",
    "kernel-gradient",
    "orbit-eigenvalues",
    "momentum-effective-step",
)
"""At least one claim of each pack, among those with the least seconds in docs/gallery/results.json."""
DROPPED = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
"""Variables of the environment that would lead back to the clone, or make every process start seconds later."""
IMPORTS = """
import importlib, pkgutil, undertow
names = [m.name for m in pkgutil.walk_packages(undertow.__path__, "undertow.", onerror=lambda name: None)]
refused = {}
for name in names:
    if not name.endswith("__main__"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            refused[name] = str(error)
internal = {f"undertow.analysis.{name}" for name in ("census", "equilibrate", "torch")}
assert set(refused) == internal | {"undertow.torch"}, refused
assert "pip install 'undertow[torch]'" in refused["undertow.torch"], refused["undertow.torch"]
assert all(hasattr(undertow, name) for name in undertow.__all__)
print(f"undertow {undertow.__version__}: {len(names) - len(refused)} modules, without those for PyTorch")
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command outside the clone, and return what it prints; raise if it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in DROPPED}
    done = subprocess.run(
        command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def main() -> None:
    """Install and use the wheel."""
    (wheel,) = (Path(argument).resolve() for argument in sys.argv[1:] if argument != "--all")
    claims = () if "--all" in sys.argv else CLAIMS
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        venv.create(home / "venv")
        binaries = home / "venv" / ("Scripts" if os.name == "nt" else "bin")
        pip = (sys.executable, "-m", "pip", "--python", binaries / "python", "--disable-pip-version-check")
        run(*pip, "install", "--quiet", "--no-compile", "-c", ROOT / "constraints.txt", wheel, cwd=home)
        where = run(binaries / "python", "-c", "import undertow; print(undertow.__file__)", cwd=home)
        assert Path(where.strip()).is_relative_to(home.resolve()), where
        print(f"installed in {time.perf_counter() - begin:.0f} s", flush=True)
        print(run(binaries / "python", "-W", "error", "-c", IMPORTS, cwd=home), end="", flush=True)
        for command in (["--help"], ["list"], ["explore", "--help"]):
            assert run(binaries / "undertow", *command, cwd=home).strip()
        verified = run(binaries / "undertow", "verify", *claims, "--scale", "smoke", cwd=home)
        assert (home / "undertow-report" / "report.html").is_file()
        assert "Warning" not in verified, verified
        print(verified, end="")
    print(f"{wheel.name} works outside the clone: {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
