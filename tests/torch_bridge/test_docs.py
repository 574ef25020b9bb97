"""The page on PyTorch models: its code runs, warnings being errors, and prints what the page shows."""

import contextlib
import io
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

PAGE = Path(__file__).parent.parent.parent / "docs" / "torch.md"
BLOCK = re.compile(r"^```py\n(?P<code>.*?)^```\n\s*^```text\n(?P<shown>.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_page_prints_what_it_shows():
    text = PAGE.read_text()
    found = list(BLOCK.finditer(text))
    assert len(found) == text.count("```py\n") >= 4
    namespace: dict = {}
    for block in found:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block["code"], PAGE.name, "exec"), namespace)
        assert out.getvalue() == block["shown"]
