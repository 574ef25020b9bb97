"""The Python of the README runs, its commands exist, and its numbers are the measured ones."""

import re
import subprocess
import sys
from pathlib import Path

from undertow.verification import claims
from undertow.verification.errata import expected

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


def test_the_python_blocks_print_the_output_shown():
    (code,) = blocks()
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 12
    out = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    for line in out.stdout.strip().splitlines():
        assert f"    {line}\n" in TEXT


def test_make_commands_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^    |`)make ([a-z-]+)", TEXT, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_verdicts_shown_are_the_verdicts_expected():
    shown = re.findall(r"^    (holds|corrected) +(\S+) ", TEXT, flags=re.MULTILINE)
    assert len(shown) >= 5
    assert all(expected(name) == verdict for verdict, name in shown)
    assert f"{len(claims)} of {len(claims)} verdicts as expected" in TEXT
    assert f"each of {len(claims)} claims" in TEXT


def test_public_names_shown_exist():
    import undertow as ut

    for name in re.findall(r"`([A-Z][A-Za-z]+)[(`]", TEXT):
        assert hasattr(ut, name), name


def test_the_stated_speed_is_the_measured_speed():
    from benchmarks.readme import section

    assert section() in TEXT
