"""Run the Python blocks of a page one after the other in one namespace, and collect the output of each block.

`python tests/docs/blocks.py PAGE` prints the outputs of the blocks as JSON.
"""

import contextlib
import io
import json
import re
import sys
from pathlib import Path

BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\s*^```text\n(?P<shown>.*?)^```$)?", re.DOTALL | re.MULTILINE)


def blocks(text: str) -> list[tuple[str, str | None]]:
    """Return the code of each block and the output that the page shows, None where it shows none."""
    return [(block["code"], block["shown"]) for block in BLOCK.finditer(text)]


def outputs(text: str, name: str) -> list[str]:
    """Return the output of each block of a page."""
    namespace = {"__name__": "__main__"}
    printed = []
    for number, (code, _) in enumerate(blocks(text)):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, f"{name}, block {number + 1}", "exec"), namespace)
        printed.append(out.getvalue())
    return printed


if __name__ == "__main__":
    page = Path(sys.argv[1])
    print(json.dumps(outputs(page.read_text(), page.name)))
