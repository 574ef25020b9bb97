"""The HTML pages that undertow writes: one file each, which loads nothing from the network."""

from functools import cache
from importlib.resources import files

import jinja2
from markupsafe import Markup

__all__ = ["page", "templates"]

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Browsers that enforce it block network requests even if a page makes one."""


@cache
def templates(package: str) -> jinja2.Environment:
    """Return the templates in the folder `templates` of a package. Values are escaped unless they are `Markup`."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package, "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def page(title: str, body: Markup | str, *, scripted: bool = False) -> str:
    """Return an HTML page around `body`, with the style of all pages, and on request with the script of the report.

    `title` is text. `body` is text too, unless it is `Markup`.
    """
    return (
        templates("undertow.figures")
        .get_template("page.html")
        .render(
            title=title,
            body=body,
            policy=POLICY,
            style=Markup(_file("page.css")),
            script=Markup(_file("page.js")) if scripted else None,
        )
    )


@cache
def _file(name: str) -> str:
    return files("undertow.figures").joinpath(name).read_text(encoding="utf-8")
