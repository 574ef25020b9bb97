"""Generate the reference: every public name with its signature, docstring, fields and methods."""

import ast
import functools
import importlib
import inspect
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

import undertow as ut
from docs.setting import docstring, words

__all__ = ["PAGES", "command_line", "reference_pages"]


@dataclass(frozen=True)
class Page:
    """One page: the public names of some modules, and selected names of other modules."""

    title: str
    opening: str
    homes: tuple[str, ...]
    more: tuple[str, ...] = ()
    see: str = ""
    """Links to pages that show how the names are used."""


PAGES: dict[str, Page] = {
    "problems": Page(
        "Problems",
        "A problem is a loss with its data. Params, gradients and all vectors are pytrees of one shape.",
        ("problem", "estimate"),
        ("problem.AbstractSampled",),
    ),
    "noises": Page(
        "Noises",
        "A noise is a stochastic gradient of a problem. It can be drawn from and knows its covariance.",
        ("noise",),
        (
            "noise.additive.noiseless", "noise.checks.table.NoiseCheck", "noise.checks.table.CheckRow",
            "noise.checks.table.NoiseCheckError", "covariance.AbstractCovariance", "covariance.Factored",
            "covariance.ScaledIdentity", "covariance.SampleCovariance", "covariance.LabelCovariance",
            "covariance.EstimatedCovariance", "covariance.Sum",
        ),
        "Usage: [your own noise](../howto/own-noise.md).",
    ),
    "dynamics": Page(
        "Dynamics",
        "Optimisers, their SDE and averaged flow, the end of gradient flow, and the type of their results.",
        ("dynamics", "optimisers", "trajectory"),
        ("dynamics.traced.run_traced", "regime.Regime", "regime.SmallParameter"),
        "Usage: [where does noise take my network?](../tutorials/where-noise-takes-my-network.md).",
    ),
    "manifold": Page(
        "After zero loss",
        "The slow motion along the manifold of minimisers.",
        ("manifold",),
        ("manifold.drift.Parts",),
    ),
    "symmetry": Page(
        "Symmetry",
        "Symmetries of a loss, the Noether flow of their charges, and the noise equilibrium.",
        ("symmetry",),
        (
            "symmetry.generators.AbstractSymmetry", "symmetry.generators.Violation", "symmetry.flow.Flow",
            "symmetry.equilibrium.Equilibrium", "symmetry.comparison.RunComparison",
            "symmetry.comparison.FarFromEquilibrium", "symmetry.metric_charge.charge_change",
            "symmetry.metric_charge.ChargeChange", "analysis.result.Analysis", "analysis.result.Row",
            "analysis.result.Sides",
        ),
    ),
    "sensing": Page(
        "Matrix sensing",
        "HeteroSGD on matrix sensing: laws, exact draws, growth with one environment per step, and advice.",
        ("sensing",),
        (
            "sensing.laws.AbstractLaw", "sensing.laws.two_point", "sensing.laws.Table", "sensing.laws.Uniform",
            "sensing.laws.Gaussian", "sensing.ensembles.Goe", "sensing.ensembles.Full",
            "sensing.ensembles.MatrixNormal", "sensing.ensembles.Correlated", "sensing.measurements.FreshMeasurements",
            "sensing.advise.Advice", "sensing.growth.transition_spread", "sensing.growth.scalar_map",
            "sensing.growth.phase_diagram", "sensing.growth.paper_window",
            "sensing.bursts.burst_exponent", "sensing.bursts.burst_probability",
        ),
    ),
    "grouped": Page(
        "Grouped data",
        "Estimators for data whose rows come in groups.",
        ("grouped",),
        ("grouped.data.Bootstrap", "grouped.icp.icp"),
    ),
    "torch": Page(
        "PyTorch",
        "Symmetries, equilibrium and noise of PyTorch models, and batches by environment.",
        (),
        (
            "torch.census.census.census", "torch.census.census.Census", "torch.census.axes.Symmetry",
            "torch.census.axes.Axis", "torch.census.scaling.check.check_scaling",
            "torch.census.scaling.check.check_scaling_map", "torch.census.scaling.check.ScalingCheck",
            "torch.census.scaling.check.ScalingReport", "torch.census.scaling.verdict.ScaledLayer",
            "torch.census.scaling.entries.load_scaling_map", "torch.census.scaling.entries.ScalingMap",
            "torch.census.scaling.entries.ScalingEntry", "torch.equilibrium.equilibrate.equilibrate",
            "torch.equilibrium.result.Equilibrium", "torch.equilibrium.result.MovedSymmetry",
            "torch.monitor.monitor.NoiseMonitor", "torch.monitor.reading.Reading", "torch.monitor.verdict.Verdict",
            "torch.monitor.noise_scale.NoiseScales", "torch.monitor.noise_scale.NoiseScale",
            "torch.integrations.transformers.NoiseCallback", "torch.data.EnvironmentBatchSampler",
            "torch.data.PooledBatchSampler", "torch.data.LabelNoise", "analysis.torch.analyze",
        ),
        "Usage: [PyTorch models](../torch.md), [noise while PyTorch trains](../monitor.md), "
        "[watching noise in your training loop](../howto/watching-noise.md), "
        "[check a scaling map](../howto/scaling-maps.md).",
    ),
    "sweeps": Page("Sweeps", "Experiments over a grid of parameters.", ("execution",)),
    "claims": Page(
        "Claims",
        "Statements as experiments with verdicts. `undertow.verification` has these names, and `claims`, the claims of "
        "the installed packs by name.",
        (),
        (
            "verification.claim.Claim", "verification.claim.Measurement", "verification.criterion.Check",
            "verification.criterion.Within", "verification.criterion.Below", "verification.criterion.Above",
            "verification.criterion.AtLevel", "verification.errata.Erratum", "verification.coverage.Entry",
            "verification.coverage.Addition", "verification.plant.replaced",
        ),
        "Usage: [check a theorem](../tutorials/check-a-theorem.md), [your own claim](../howto/own-claim.md).",
    ),
}  # fmt: skip


def reference_pages() -> dict[str, str]:
    """Return the pages of the reference by their path in the site."""
    left = dict(ut._HOME)
    pages = {}
    for slug, page in PAGES.items():
        mine = [name for name, home in left.items() if home.split(".")[0] in page.homes]
        if not mine and not page.more:
            continue
        mine.sort(key=lambda name: name.startswith("Abstract"))
        for name in mine:
            del left[name]
        parts = [f"# {page.title}", words(page.opening), *([page.see] if page.see else [])]
        parts += [_entry("ut.", f"undertow.{ut._HOME[name]}", name) for name in mine]
        parts += [_entry("", *f"undertow.{path}".rsplit(".", 1)) for path in page.more]
        own = {path.rsplit(".", 1)[1] for path in page.more}
        pages[f"api/{slug}.md"] = _linked("\n\n".join(parts), dict.fromkeys(own, slug)) + "\n"
    if left:
        parts = [_entry("ut.", f"undertow.{home}", name) for name, home in left.items()]
        pages["api/more.md"] = _linked("\n\n".join(["# Other names", *parts])) + "\n"
    return {"api/index.md": _contents()} | pages


@functools.cache
def _places() -> dict[str, str]:
    """Return the page of every name that has an entry."""
    slugs = {home: slug for slug, page in PAGES.items() for home in page.homes}
    public = {name: slugs.get(home.split(".")[0], "more") for name, home in ut._HOME.items()}
    selected = {path.rsplit(".", 1)[1]: slug for slug, page in PAGES.items() for path in page.more}
    return selected | public


def _linked(text: str, own: dict[str, str] | None = None) -> str:
    """Return the text with links from names in code to their entries; `own` names of the page take precedence."""
    places = _places() | (own or {})
    linked = lambda m: f"[<code>{m[1]}</code>]({places[m[1]]}.md#{m[1]})" if m[1] in places else m[0]
    return re.sub(r"<code>(\w+)</code>", linked, text)


def _contents() -> str:
    rows = ["# Reference", "Made from the docstrings.", "| name | description |\n|---|---|"]
    places = _places()
    for slug in [*PAGES, "more"]:
        for name in ut._HOME:
            if places[name] == slug:
                first = inspect.cleandoc(getattr(ut, name).__doc__).split("\n\n")[0]
                rows.append(f"| [`ut.{name}`]({slug}.md#{name}) | {words(' '.join(first.split()))} |")
    rows[2:] = ["\n".join(rows[2:])]
    return "\n\n".join([*rows, "See also the [command line](command-line.md)."]) + "\n"


def _entry(prefix: str, module: str, name: str) -> str:
    """Return the entry of one name; without a prefix it shows the import statement."""
    node, home = _source(module, name)
    parts = [f"## {prefix}{name} {{ #{name} }}"]
    if not prefix:
        parts.append(_code(f"from {home} import {name}"))
    if isinstance(node, ast.FunctionDef):
        parts += [_code(_signature(name, node)), docstring(ast.get_docstring(node) or "")]
        return "\n\n".join(parts)
    assert isinstance(node, ast.ClassDef), f"{module}.{name}"
    start = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
    fields = _fields(node)
    if start is not None:
        parts.append(_code(_signature(name, start, skip=1)))
    elif _is_plain(node):
        shown = [re.sub(r" = (?:eqx\.)?field\(.*\)$", "", ast.unparse(field)) for field in _assigned(node)]
        parts.append(_code(_call(name, shown, "")))
    parts.append(docstring(ast.get_docstring(node) or ""))
    bases = [ast.unparse(base) for base in node.bases if ast.unparse(base) in _places()]
    if bases:
        parts.append(f"It has the methods of {' and '.join(f'<code>{base}</code>' for base in bases)}.")
    if fields:
        rows = [f"| `{field}` | {words(meaning)} |" for field, meaning in fields]
        parts.append("| field | meaning |\n|---|---|\n" + "\n".join(rows))
    parts += [_method(name, f) for f in node.body if isinstance(f, ast.FunctionDef) and _shown(f)]
    return "\n\n".join(parts)


def _source(module: str, name: str) -> tuple[ast.stmt, str]:
    """Return the source of a name and the module to import it from. The PyTorch bridge is read without importing it."""
    if not module.startswith(("undertow.torch.", "undertow.analysis.torch")):
        thing = getattr(importlib.import_module(module), name)
        return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(thing)))).body[0], module
    root = Path(ut.__file__).parent
    file = root.joinpath(*module.split(".")[1:]).with_suffix(".py")
    nodes = {getattr(node, "name", ""): node for node in ast.parse(file.read_text()).body}
    public = ast.parse((root / "torch" / "__init__.py").read_text()).body
    shown = {alias.name for node in public if isinstance(node, ast.ImportFrom) for alias in node.names}
    return nodes[name], "undertow.torch" if name in shown else module


def _is_plain(node: ast.ClassDef) -> bool:
    """Return whether a class is a dataclass, a named tuple or a module whose fields are its arguments."""
    abstract = any(ast.unparse(d).startswith("abstractmethod") for f in node.body if isinstance(f, ast.FunctionDef)
                   for d in f.decorator_list)  # fmt: skip
    return bool(_assigned(node)) and not abstract


def _assigned(node: ast.ClassDef) -> list[ast.AnnAssign]:
    return [item for item in node.body if isinstance(item, ast.AnnAssign)]


def _fields(node: ast.ClassDef) -> list[tuple[str, str]]:
    """Return the fields that have a docstring."""
    documented = []
    for item, after in zip(node.body, node.body[1:], strict=False):
        if isinstance(item, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            documented.append((ast.unparse(item.target), " ".join(str(after.value.value).split())))
    return documented


def _shown(node: ast.FunctionDef) -> bool:
    return not node.name.startswith("_") and ast.get_docstring(node) is not None


def _method(owner: str, node: ast.FunctionDef) -> str:
    decorators = [ast.unparse(d) for d in node.decorator_list]
    head = node.name if "property" in decorators else _signature(node.name, node, skip=0 if "staticmethod" in decorators
                                                                 else 1)  # fmt: skip
    text = docstring(ast.get_docstring(node) or "")
    return f"### {node.name} {{ #{owner}.{node.name} }}\n\n{_code(head)}\n\n{text}"


def _signature(name: str, node: ast.FunctionDef, skip: int = 0) -> str:
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + list(args.defaults)
    shown = [_argument(arg, default) for arg, default in zip(positional, defaults, strict=True)][skip:]
    if args.vararg:
        shown.append(f"*{ast.unparse(args.vararg)}")
    elif args.kwonlyargs:
        shown.append("*")
    shown += [_argument(arg, default) for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    if args.kwarg:
        shown.append(f"**{ast.unparse(args.kwarg)}")
    back = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    return _call(name, shown, back)


def _argument(arg: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(arg)
    return text if default is None else f"{text}{' = ' if arg.annotation else '='}{ast.unparse(default)}"


def _call(name: str, shown: list[str], back: str) -> str:
    line = f"{name}({', '.join(shown)}){back}"
    if len(line) <= 88:
        return line
    return "\n".join([f"{name}(", *(f"    {item}," if item != "*" else "    *," for item in shown), f"){back}"])


def _code(text: str) -> str:
    return f"```{{ .py .signature }}\n{text}\n```"


def command_line() -> str:
    """Return the page of the commands of `undertow`, with the help of every flag."""
    from undertow.cli import COMMANDS

    parts = ["# Command line", words("`undertow COMMAND --help` prints the same.")]
    for command, kind in COMMANDS.items():
        node = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
        assert isinstance(node, ast.ClassDef)
        parts += [f"## undertow {command}", docstring(ast.get_docstring(node) or "")]
        described = dict(_fields(node))
        rows = [
            f"| `{_flag(item)}` | {_default(item)} | {words(described[ast.unparse(item.target)])} |"
            for item in _assigned(node)
            if ast.unparse(item.target) in described
        ]
        if rows:
            parts.append("| flag | default | meaning |\n|---|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _flag(item: ast.AnnAssign) -> str:
    name, kind = ast.unparse(item.target), ast.unparse(item.annotation)
    positional = "Positional" in kind or "Names" in kind
    return name.upper() if positional else f"--{name.replace('_', '-')}"


def _default(item: ast.AnnAssign) -> str:
    if item.value is None or ast.unparse(item.value) in ("()", "None"):
        return ""
    text = ast.unparse(item.value).replace("'", "")
    return f"`{text.removeprefix('Path(').removesuffix(')')}`" if text.startswith("Path(") else f"`{text}`"
