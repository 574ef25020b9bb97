"""Every Python block of the documentation runs without a warning and prints the output shown.

The block of the README runs in tests/test_readme.py.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import blocks
from undertow.cli import COMMANDS

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.docs

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_CODE = [page for page in PAGES[1:] if blocks(page.read_text())]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_print_the_output_shown(page, tmp_path):
    command = [sys.executable, "-W", "error", str(Path(__file__).parent / "blocks.py"), str(page)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=os.environ)
    assert run.returncode == 0, run.stderr
    for number, (printed, (_, shown)) in enumerate(zip(json.loads(run.stdout), blocks(page.read_text()), strict=True)):
        assert printed == (shown or ""), f"{page.name}, block {number + 1}"


def test_a_wrong_output_is_detected():
    page = "```python\nprint(1)\n```\n\n```text\n2\n```\n\nand\n\n```python\nx = 1\n```\n"
    assert blocks(page) == [("print(1)\n", "2\n"), ("x = 1\n", None)]


def test_the_pattern_matches_every_block():
    """The pattern matches as many blocks as a plain count."""
    for page in PAGES:
        assert len(blocks(page.read_text())) == page.read_text().count("\n```python\n")
    assert len(WITH_CODE) >= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page):
    text = page.read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"make {target}"
    for command in re.findall(r"(?:^|`)undertow ([a-z]+)", text, flags=re.MULTILINE):
        assert command in COMMANDS, f"undertow {command}"
