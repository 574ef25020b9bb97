"""The shell of the pages undertow writes: one file each, that asks nothing of the network."""

from functools import cache
from importlib.resources import files

__all__ = ["page"]

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Browsers that honour it would refuse a request even if a page made one."""


def page(title: str, body: str, *, scripted: bool = False) -> str:
    """A whole HTML page around `body`, with the style of all pages, and the script of the report where asked for.

    `title` and `body` are HTML.
    """
    script = f"<script>\n{_file('page.js')}</script>\n" if scripted else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{title}</title>
<style>
{_file("page.css")}</style></head><body>
{body}
{script}</body></html>
"""


@cache
def _file(name: str) -> str:
    return files("undertow.figures").joinpath(name).read_text(encoding="utf-8")
