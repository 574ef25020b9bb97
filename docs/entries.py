"""An extension of griffe for the entries of the reference: constructors, tables of fields, mathematics, links.

mkdocstrings reads the source without importing it, so that the PyTorch bridge is documented without PyTorch.
"""

import re
from collections.abc import Iterator
from typing import Any

from griffe import (
    Attribute,
    Class,
    Docstring,
    Expr,
    ExprCall,
    ExprKeyword,
    Extension,
    Function,
    Module,
    Object,
    Parameter,
    ParameterKind,
    Parameters,
)

from docs.reference import PAGES, names, places
from docs.setting import docstring, words

__all__ = ["Entries"]

RECORDS = {"equinox.Module", "typing.NamedTuple"}
"""Bases whose fields are the arguments of the constructor; griffe itself knows dataclasses."""


class Entries(Extension):
    """Give records a constructor and a table of fields, and typeset docstrings."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        """Exclude `name: ClassVar = value` from the fields: griffe knows only `ClassVar[...]`."""
        if str(attr.annotation) == "ClassVar":
            attr.labels.discard("instance-attribute")

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Change the objects that have an entry once the package is loaded."""
        general, torch = places("symmetry"), places("torch")
        for root, home in _entries(pkg):
            if isinstance(root, Class):
                _set_constructor(root)
            for obj in (root, *(member for member in root.members.values() if not member.is_alias)):
                table = _field_table(obj) if isinstance(obj, Class) else ""
                if obj.docstring is not None:
                    own = {parameter.name for parameter in obj.parameters} if isinstance(obj, Function) else set()
                    paths = torch if "torch" in obj.path.split(".")[1:-1] else general
                    obj.docstring.value = _linked(docstring(obj.docstring.value) + table, paths, own)
            if home:
                text = root.docstring.value if root.docstring else ""
                root.docstring = Docstring(f"```python\nfrom {home} import {root.name}\n```\n\n{text}", parent=root)


def _entries(pkg: Module) -> Iterator[tuple[Object, str]]:
    """Return the objects that have an entry, with the module to import each from, empty for those of `undertow`."""
    torch = set(pkg.modules["torch"].exports or ())
    for path in [path for page in PAGES.values() for _, path in names(page)]:
        home, name = path.rsplit(".", 1)
        short = "torch" in home.split(".") and name in torch
        obj = pkg[path.removeprefix("undertow.")]
        yield obj.final_target if obj.is_alias else obj, "undertow.torch" if short else home.removesuffix("undertow")


def _set_constructor(cls: Class) -> None:
    """Give a record a constructor; dataclasses have one already, without lines of source."""
    family = [cls, *cls.mro()]
    bases = {base.canonical_path for one in family for base in one.bases if isinstance(base, Expr)}
    written = [one.members["__init__"] for one in family if "__init__" in one.members]
    if cls.name.startswith("Abstract") or any(function.lineno for function in written):
        return
    if bases & RECORDS:
        fields = {
            field.name: field for one in reversed(family) for field in one.attributes.values() if _is_field(field)
        }
        start = Parameter("self", kind=ParameterKind.positional_or_keyword)
        parameters = Parameters(start, *(_parameter(field) for field in fields.values()))
        cls.set_member("__init__", Function("__init__", parameters=parameters, parent=cls))
    if "__init__" in cls.members:
        first_method = min((f.lineno for f in cls.functions.values() if f.lineno), default=cls.endlineno + 1)
        cls["__init__"].lineno, cls["__init__"].endlineno = cls.lineno, first_method - 1


def _is_field(attribute: Attribute) -> bool:
    return attribute.annotation is not None and "instance-attribute" in attribute.labels


def _parameter(field: Attribute) -> Parameter:
    default = field.value
    if isinstance(default, ExprCall) and str(default.function) in ("eqx.field", "field"):
        settings = {item.name: item.value for item in default.arguments if isinstance(item, ExprKeyword)}
        default = settings.get("default", "..." if "default_factory" in settings else None)
    return Parameter(field.name, annotation=field.annotation, kind=ParameterKind.positional_or_keyword, default=default)


def _field_table(cls: Class) -> str:
    """Return the fields that have a docstring as a table, and take their docstrings, which would become headings."""
    rows = []
    for field in cls.attributes.values():
        if field.docstring is not None and "property" not in field.labels:
            kind = f"`{field.annotation}`" if field.annotation else ""
            rows.append(f"| `{field.name}` | {kind} | {words(' '.join(field.docstring.value.split()))} |")
            field.docstring = None
    return "\n\n| field | type | meaning |\n|---|---|---|\n" + "\n".join(rows) if rows else ""


def _linked(text: str, paths: dict[str, str], own: set[str]) -> str:
    """Return the text with links from names in code to their entries, except from `own` names of arguments."""

    def link(match: re.Match) -> str:
        name = match[1].replace("&#95;", "_")
        return f"[{match[0]}][{paths[name]}]" if name in paths and name not in own else match[0]

    return re.sub(r"<code>((?:\w|&#95;)+)</code>", link, text)
