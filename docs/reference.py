"""The pages of the reference: which name is on which page. mkdocstrings makes the entries, with `docs.entries`."""

import ast
import inspect
import textwrap
from dataclasses import dataclass

import undertow as ut
from docs.setting import docstring, words

__all__ = ["PAGES", "command_line", "names", "places", "reference_pages"]


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
        "A noise is a stochastic gradient of a problem. It can be sampled, and its covariance can be computed.",
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
            "symmetry.metric_charge.ChargeChange", "analysis.jax.analyze", "analysis.result.Analysis",
            "analysis.result.Row", "analysis.result.Sides",
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
            "torch.census.axes.Axis", "torch.census.twins.narrow_twin", "torch.census.scaling.check.check_scaling",
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
    """Return the pages of the reference by their path in the site; mkdocstrings fills in the entries."""
    pages = {}
    for slug, page in PAGES.items():
        parts = [f"# {page.title}", words(page.opening), *([page.see] if page.see else [])]
        parts += [_entry(*name) for name in names(page)]
        pages[f"api/{slug}.md"] = "\n\n".join(parts) + "\n"
    return {"api/index.md": _contents()} | pages


def names(page: Page) -> list[tuple[str, str]]:
    """Return the names of a page as headings with their paths, abstract classes after the others."""
    public = [name for name, home in ut._HOME.items() if home.split(".")[0] in page.homes]
    public.sort(key=lambda name: name.startswith("Abstract"))
    selected = [(path.rsplit(".", 1)[1], f"undertow.{path}") for path in page.more]
    return [(f"ut.{name}", f"undertow.{name}") for name in public] + selected


def _entry(heading: str, path: str) -> str:
    """Return the directive of mkdocstrings for one name, below an anchor with the short name."""
    short = path.rsplit(".", 1)[1]
    return f'<a id="{short}"></a>\n\n::: {path}\n    options:\n      heading: {heading}\n      toc_label: {heading}'


def places(first: str) -> dict[str, str]:
    """Return the path of every name that has an entry; the names of the page `first` take precedence."""
    order = [*(slug for slug in PAGES if slug != first), first]
    return {path.rsplit(".", 1)[1]: path for slug in order for _, path in names(PAGES[slug])}


def _contents() -> str:
    rows = ["| name | description |\n|---|---|"]
    for slug, page in PAGES.items():
        for heading, _ in names(page):
            if heading.startswith("ut."):
                name = heading.removeprefix("ut.")
                first = inspect.cleandoc(getattr(ut, name).__doc__).split("\n\n")[0]
                rows.append(f"| [`{heading}`]({slug}.md#{name}) | {words(' '.join(first.split()))} |")
    end = "See also the [command line](command-line.md)."
    return "\n\n".join(["# Reference", "Made from the docstrings.", "\n".join(rows), end]) + "\n"


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


def _assigned(node: ast.ClassDef) -> list[ast.AnnAssign]:
    return [item for item in node.body if isinstance(item, ast.AnnAssign)]


def _fields(node: ast.ClassDef) -> list[tuple[str, str]]:
    """Return the fields that have a docstring."""
    documented = []
    for item, after in zip(node.body, node.body[1:], strict=False):
        if isinstance(item, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            documented.append((ast.unparse(item.target), " ".join(str(after.value.value).split())))
    return documented


def _flag(item: ast.AnnAssign) -> str:
    name, kind = ast.unparse(item.target), ast.unparse(item.annotation)
    positional = "Positional" in kind or "Names" in kind
    return name.upper() if positional else f"--{name.replace('_', '-')}"


def _default(item: ast.AnnAssign) -> str:
    if item.value is None or ast.unparse(item.value) in ("()", "None"):
        return ""
    text = ast.unparse(item.value).replace("'", "")
    return f"`{text.removeprefix('Path(').removesuffix(')')}`" if text.startswith("Path(") else f"`{text}`"
