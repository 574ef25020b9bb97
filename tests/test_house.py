"""Rules of the source tree: imports between folders, light imports, sizes, types, public names, one test file each."""

import ast
import inspect
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import equinox as eqx
import pytest

import undertow as ut
from tests.public import assert_has_example, needs_torch, public_paths

SOURCE = Path(ut.__file__).parent
TESTS = Path(__file__).parent

# the imports from undertow that each part may have; a part is a folder, or a file at the top
GROUND = {
    "_arrays",
    "_calls",
    "_validate",
    "_trees",
    "_chunks",
    "_progress",
    "_device",
    "_stiff",
    "_table",
    "estimate",
    "regime",
    "trajectory",
    "spectral",
}
NOISE = GROUND | {"problem", "covariance", "noise", "optimisers"}
MATHEMATICS = NOISE | {"dynamics", "manifold", "symmetry", "sensing", "grouped"}
MAY_IMPORT = {
    "_validate": set(),
    "_arrays": {"_validate"},
    "_calls": {"_validate"},
    "_trees": {"_validate"},
    "_chunks": {"_trees"},
    "_progress": set(),
    "_device": set(),
    "_frames": set(),
    "_stiff": {"_trees"},
    "_table": set(),
    "estimate": {"_arrays", "_table", "_trees", "_validate", "figures"},
    "regime": {"_table"},
    "series": {"_table", "_trees", "estimate"},
    "trajectory": {"series", "_table", "_validate", "figures", "regime"},
    "spectral": {"_trees"},
    "problem": GROUND,
    "covariance": GROUND | {"problem"},
    "noise": GROUND | {"problem", "covariance"},
    "optimisers": GROUND | {"noise"},
    "dynamics": NOISE | {"manifold"},
    "manifold": NOISE | {"figures"},
    "symmetry": NOISE | {"figures"},
    "sensing": NOISE | {"dynamics", "figures", "grouped"},
    "grouped": NOISE,
    "figures": set(),
    "torch": NOISE | {"symmetry", "figures"},
    "execution": {
        "_calls",
        "_device",
        "_frames",
        "_validate",
        "dynamics",
        "figures",
        "noise",
        "optimisers",
        "regime",
        "trajectory",
    },
    "analysis": NOISE | {"dynamics", "manifold", "symmetry", "torch", "execution", "figures"},
    "verification": {"_device", "estimate", "execution", "figures"},
    "papers": MATHEMATICS | {"execution", "verification", "figures"},
    "explore": MATHEMATICS | {"analysis", "execution", "papers"},
    "cli": {"execution", "verification", "analysis", "explore"},
    "__main__": {"cli"},
}
# the version number, which is defined at the top
TOP = {"__version__"}
# allowed imports inside functions of parts that may not be imported at the top: the methods `save` and `load` of a run
# are written in `execution`, which has the store; the second import is for a type checker alone
LATE: set[tuple[str, str]] = {("trajectory", "execution"), ("trajectory", "noise"), ("trajectory", "optimisers")}
# packages whose `__init__` re-exports a public name of a part above them
FACADES = {("torch/__init__.py", "analysis")}


def part(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> list[tuple[str, bool]]:
    """Return the parts of undertow that a file imports, and whether at the top of the file."""
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    targets = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("undertow"):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "undertow":
                targets += [(alias.name, id(node) in top) for alias in node.names]
            else:
                targets.append((part(node.module), id(node) in top))
        elif isinstance(node, ast.Import):
            targets += [(part(a.name), id(node) in top) for a in node.names if a.name.startswith("undertow.")]
    return targets


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_between_parts_are_allowed(path):
    relative = path.relative_to(SOURCE)
    home = relative.parts[0].removesuffix(".py")
    if home == "__init__":
        return
    for target, at_top in imports(path):
        if target == home or target in TOP or (str(relative), target) in FACADES:
            continue
        allowed = target in MAY_IMPORT[home] or (not at_top and (home, target) in LATE)
        assert allowed, f"{relative} imports undertow.{target}"


def test_importing_undertow_loads_no_heavy_package():
    code = "import sys, undertow; print(sorted(m for m in sys.modules if m.split('.')[0] in sys.argv[1:]))"
    heavy = ["jax", "numpy", "xarray", "matplotlib", "diffrax", "rich", "equinox"]
    out = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_core_names_load_no_more_than_jax_and_equinox():
    code = (
        "import sys, undertow as ut; ut.Problem, ut.Minibatch, ut.descend, ut.diffuse;"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in sys.argv[1:]))"
    )
    heavy = ["xarray", "matplotlib", "diffrax", "rich", "scipy.stats", "pandas", "optax"]
    out = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_the_lists_of_public_names_agree():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    typed = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(ut.__all__) == set(ut._HOME) == typed - {"TYPE_CHECKING", "Any"}
    assert set(ut.__all__) <= set(dir(ut))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ut.nonsense


@pytest.mark.parametrize("path", [path for path in public_paths() if not needs_torch(path)])
def test_every_public_name_has_a_docstring_with_an_example(path):
    """The names of the PyTorch bridge are tested in tests/torch/test_docs.py."""
    assert_has_example(path)


def test_the_public_names_have_those_of_undertow():
    assert {f"undertow.{name}" for name in ut.__all__} <= set(public_paths())


def test_every_module_class_is_abstract_or_final():
    classes = set()
    for name in ut.__all__:
        getattr(ut, name)
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("undertow"):
            classes |= {c for _, c in inspect.getmembers(module, inspect.isclass) if issubclass(c, eqx.Module)}
    ours = {c for c in classes if c.__module__.startswith("undertow")}
    assert len(ours) > 10
    for cls in ours:
        if cls.__name__.startswith("Abstract"):
            continue
        assert not cls.__subclasses__(), f"{cls.__name__} is neither abstract nor final"


FILES = sorted(SOURCE.rglob("*.py"))
name_of = lambda path: path.relative_to(SOURCE).as_posix()

MOST_LINES = 400


def test_files_are_short():
    long = [name_of(path) for path in FILES if len(path.read_text().splitlines()) > MOST_LINES]
    assert not long, f"split {long} by subject"


MOST_FUNCTION_LINES = 60
LONG_FUNCTIONS: dict[tuple[str, str], str] = {}
"""Functions over the limit, with the reason."""


def function_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring, which has arguments and examples."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        assert first.end_lineno is not None
        lines -= first.end_lineno - first.lineno + 1
    return lines


def test_functions_are_short():
    long = {
        (name_of(path), node.name)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and function_lines(node) > MOST_FUNCTION_LINES
    }
    assert long == set(LONG_FUNCTIONS), f"split {sorted(long - set(LONG_FUNCTIONS))}"


def test_folders_do_not_import_each_other_in_cycles():
    """Imports inside functions count, apart from those of `LATE`; a facade re-exports names of parts above it."""
    graph: dict[str, set[str]] = {}
    for path in FILES:
        home = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if home == "__init__":
            continue
        for target, _ in imports(path):
            skipped = target in TOP or (home, target) in LATE or (name_of(path), target) in FACADES
            if target != home and not skipped:
                graph.setdefault(home, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"folders import each other: {' -> '.join(error.args[1])}")


MOST_ANY_LINES = 20
"""The number of lines with `Any` may only fall."""


def test_any_is_rare():
    lines = {name_of(path): len(re.findall(r"(?m)^.*\bAny\b.*$", path.read_text())) for path in FILES}
    total = sum(lines.values())
    most = sorted(lines, key=lambda name: -lines[name])[:5]
    print(f"{total} lines with Any; most in {', '.join(f'{name} ({lines[name]})' for name in most)}")
    assert total <= MOST_ANY_LINES


START_UP = {
    "_progress.py": "rich is needed for runs of more than two seconds only",
    "analysis/census.py": "transformers, which a file of the user's own may not need",
    "analysis/page.py": "rich",
    "cli/__init__.py": "`undertow --help` needs no registry",
    "cli/analyze.py": "`undertow --help` imports neither jax nor numpy",
    "cli/census.py": "`undertow --help`",
    "cli/equilibrate.py": "`undertow --help`",
    "cli/errata.py": "`undertow --help`",
    "cli/explore.py": "`undertow --help`",
    "cli/listing.py": "`undertow --help`",
    "cli/report.py": "`undertow --help`",
    "cli/run.py": "`undertow --help`",
    "cli/sweep.py": "`undertow --help`",
    "cli/verify.py": "`undertow --help`",
    "execution/compiling.py": "jax: the driver of a sweep and its parent process do not need it",
    "execution/provenance.py": "jax",
    "execution/reading.py": "xarray and zarr",
    "execution/settings.py": "jax",
    "execution/store.py": "filelock, xarray and zarr: `undertow --help` imports the errors of this module",
    "execution/sweeps/digest.py": "jax",
    "execution/sweeps/live.py": "rich",
    "execution/sweeps/results.py": "xarray and zarr",
    "execution/sweeps/worker.py": "jax",
    "execution/workers.py": "distributed, an extra",
    "figures/export.py": "matplotlib: a driver imports this module before it has anything to draw",
    "figures/heatmap.py": "matplotlib",
    "figures/results.py": "matplotlib",
    "figures/style.py": "matplotlib",
    "figures/words.py": "matplotlib",
    "grouped/data.py": "scikit-learn",
    "grouped/hetero_regressor.py": "pandas",
    "grouped/invariance.py": "scipy.special",
    "grouped/invariant_regressor.py": "pandas",
    "papers/heterogeneity/claims/exact_law.py": "scipy.stats",
    "papers/heterogeneity/claims/grouped_data.py": "scikit-learn",
    "papers/noise_equilibrium/models/digits.py": "scikit-learn",
    "papers/zero_loss/phase_diagram.py": "scipy.optimize",
    "sensing/growth.py": "scipy.optimize",
    "symmetry/alternating.py": "scipy.optimize",
    "symmetry/metric_balance.py": "scipy.optimize and scipy.sparse",
    "symmetry/recession.py": "scipy.optimize",
    "torch/__init__.py": "the analysis, which `undertow.torch` re-exports as a facade",
    "torch/_threads.py": "scipy.linalg",
    "torch/census/twins.py": "transformers, which is no dependency",
    "torch/monitor/output.py": "tensorboard and xarray",
    "torch/monitor/plots.py": "matplotlib",
    "trajectory.py": "xarray and zarr",
    "verification/claim.py": "xarray: a list of claims does not need it",
    "verification/live.py": "rich",
    "verification/measure.py": "jax and xarray: the parent process of the workers does not need them",
    "verification/plant.py": "jax",
}
"""Files with imports inside functions, and the packages that are slow to import or optional."""


def has_late_imports(path: Path) -> bool:
    functions = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))
    return any(isinstance(node, ast.Import | ast.ImportFrom) for f in functions for node in ast.walk(f))


def test_imports_inside_functions_are_for_start_up_time():
    late = {name_of(path) for path in FILES if has_late_imports(path)}
    assert late == set(START_UP), f"import at the top of {sorted(late - set(START_UP))}"


def test_help_imports_nothing_heavy():
    """Packages that are slow to import are not needed to print a help text."""
    code = (
        "import contextlib, io, sys\n"
        "from undertow.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    main(['--help'])\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in sys.argv[1:]))"
    )
    heavy = ["jax", "numpy", "scipy", "xarray", "zarr", "matplotlib", "pandas", "sklearn", "torch"]
    out = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_templates_and_styles_are_part_of_the_package():
    """Hatch packs every file under src/undertow; a template that is not beside its module would be missing."""
    for name in ("verification/templates/report.html", "analysis/templates/analysis.html",
                 "torch/monitor/templates/noise.html", "explore/page/explorer.html", "explore/page/explorer.js",
                 "explore/page/explorer.css",
                 "figures/templates/page.html", "figures/page.css", "figures/page.js"):  # fmt: skip
        assert (SOURCE / name).is_file(), name


WITHOUT_TESTS = {
    "**/__init__.py": "names that are re-exported, which the tests of the modules import",
    "__main__.py": "one call, which tests/cli/test_cli.py makes",
    "papers/*/claims/*.py": "claims, which tests/papers/test_registry.py and test_alternatives.py run by the registry",
    "papers/*/coverage.py": "data, which tests/papers/test_coverage.py checks together",
    "papers/*/errata.py": "data, which tests/papers/test_registry.py checks against the claims",
    "papers/*/plants.py": "plants, which tests/papers/test_alternatives.py runs with the claims",
}
"""Patterns of modules without a test file of their own, with the reason."""


def own_test(path: Path) -> Path:
    """Return the test file of a module: tests/a/test_b.py for a/b.py and for a/_b.py."""
    module = path.relative_to(SOURCE)
    return Path(__file__).parent / module.parent / f"test_{module.name.lstrip('_')}"


def test_every_module_has_a_test_file_of_its_own():
    excepted = {path for pattern in WITHOUT_TESTS for path in SOURCE.glob(pattern)}
    missing = {name_of(path) for path in FILES if path not in excepted and not own_test(path).is_file()}
    assert not missing, f"write {[str(own_test(SOURCE / name)) for name in missing]}"


def test_every_exception_stands_for_a_module():
    for pattern in WITHOUT_TESTS:
        assert list(SOURCE.glob(pattern)), pattern


@pytest.mark.parametrize("name", ["Draws", "Gaussian", "Moments"])
def test_one_class_has_the_name(name):
    """Common words that several modules could use for their own class."""
    defined = [name_of(path) for path in FILES if re.search(rf"(?m)^class {name}\b", path.read_text())]
    assert len(defined) == 1, defined


def test_long_tests_exist():
    listed: dict[str, set[str]] = {}
    for line in (TESTS / "long_tests.txt").read_text().splitlines():
        path, _, name = line.partition("::")
        listed.setdefault(path, set()).add(name.partition("[")[0])
    for path, names in listed.items():
        functions = [node for node in ast.parse((TESTS.parent / path).read_text()).body if hasattr(node, "name")]
        assert names <= {node.name for node in functions}, path
