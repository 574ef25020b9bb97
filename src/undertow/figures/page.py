"""The HTML pages that undertow writes: one file each, which loads nothing from the network."""

import base64
import hashlib
from functools import cache
from importlib.resources import files

import jinja2
from markupsafe import Markup

__all__ = ["page", "templates"]

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; img-src data:"
"""What a page may load: pictures inside it. Browsers block all else, even if the page asks for it."""


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


def page(title: str, body: Markup | str, *, scripted: bool = False, beside: bool = False) -> str:
    """Return an HTML page around `body`, with the style of all pages, and on request with the script of the report.

    `title` is text. `body` is text too, unless it is `Markup`. The policy of the page allows that one script, by its
    hash; other scripts and event handlers do not run. `beside` allows pictures beside the page too.
    """
    script = _file("page.js") if scripted else None
    pictures = f"{POLICY} 'self' file:" if beside else POLICY
    return (
        templates("undertow.figures")
        .get_template("page.html")
        .render(
            title=title,
            body=body,
            policy=pictures if script is None else f"{pictures}; script-src '{_hash_of(script)}'",
            style=Markup(_file("page.css")),
            script=None if script is None else Markup(script),
        )
    )


def _hash_of(script: str) -> str:
    """Return the hash by which a content policy allows a script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


@cache
def _file(name: str) -> str:
    return files("undertow.figures").joinpath(name).read_text(encoding="utf-8")
