"""The Python of a page, run as a reader would run it: block by block in one namespace, what each prints beside it.

`python tests/docs/blocks.py PAGE` prints, as JSON, what every block printed.
"""

import contextlib
import io
import json
import re
import sys
from pathlib import Path

BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\s*^```text\n(?P<shown>.*?)^```$)?", re.DOTALL | re.MULTILINE)


def blocks(text: str) -> list[tuple[str, str | None]]:
    """The code of each block and what the page shows as its output, None where it shows nothing."""
    return [(found["code"], found["shown"]) for found in BLOCK.finditer(text)]


def outputs(text: str, name: str) -> list[str]:
    """What each block of a page prints."""
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
