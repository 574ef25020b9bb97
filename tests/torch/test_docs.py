"""The code of the pages on PyTorch runs without warnings and prints the output shown; public names have examples."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from tests.public import assert_has_example, needs_torch, public_paths

pytestmark = pytest.mark.torch

DOCS = Path(__file__).parent.parent.parent / "docs"
BLOCK = re.compile(r"^```py\n(?P<code>.*?)^```\n\s*^```text\n(?P<shown>.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", ["torch.md", "monitor.md", "howto/scaling-maps.md", "howto/watching-noise.md"])
def test_the_code_of_the_page_prints_the_output_shown(name):
    text = (DOCS / name).read_text()
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == text.count("```py\n") >= 4
    namespace: dict = {}
    for block in blocks:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block["code"], name, "exec"), namespace)
        assert out.getvalue() == block["shown"]


@pytest.mark.parametrize("path", [path for path in public_paths() if needs_torch(path)])
def test_every_public_name_has_a_docstring_with_an_example(path):
    assert_has_example(path)
