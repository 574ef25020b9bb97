"""The house keeps itself: imports go one way, importing is light, every public name is documented and shown."""

import ast
import doctest
import inspect
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import pytest

import undertow as ut

SOURCE = Path(ut.__file__).parent

# what each part may import from undertow; a part is a folder, or a file at the top
GROUND = {"_validate", "_trees", "_chunks", "_progress", "_device", "estimate", "trajectory", "spectral"}
NOISE = GROUND | {"problem", "covariance", "noise"}
MATHEMATICS = NOISE | {"dynamics", "manifold", "symmetry", "sensing", "grouped"}
MAY_IMPORT = {
    "_validate": set(),
    "_trees": {"_validate"},
    "_chunks": {"_trees"},
    "_progress": set(),
    "_device": set(),
    "estimate": set(),
    "trajectory": set(),
    "spectral": {"_trees"},
    "problem": GROUND,
    "covariance": GROUND | {"problem"},
    "noise": GROUND | {"problem", "covariance"},
    "dynamics": NOISE,
    "manifold": NOISE,
    "symmetry": NOISE,
    "sensing": NOISE | {"dynamics", "grouped"},
    "grouped": NOISE,
    "figures": set(),
    "torch": NOISE | {"symmetry", "figures"},
    "execution": {"_device", "figures"},
    "analysis": NOISE | {"manifold", "symmetry", "torch", "execution", "figures"},
    "verification": {"_device", "estimate", "execution", "figures"},
    "papers": MATHEMATICS | {"execution", "verification", "figures"},
    "cli": {"execution", "verification", "analysis"},
    "__main__": {"cli"},
}
# the version number, which lives at the top
TOP = {"__version__"}
# imports inside functions: the covariance of a population is a covariance
LATE = {("problem", "covariance")}
# packages whose `__init__` re-exports a public name of a part above them
FACADES = {("torch/__init__.py", "analysis")}


def part(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> list[tuple[str, bool]]:
    """The parts of undertow a file imports, and whether at the top of the file."""
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("undertow"):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "undertow":
                found += [(alias.name, id(node) in top) for alias in node.names]
            else:
                found.append((part(node.module), id(node) in top))
        elif isinstance(node, ast.Import):
            found += [(part(a.name), id(node) in top) for a in node.names if a.name.startswith("undertow.")]
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path):
    relative = path.relative_to(SOURCE)
    home = relative.parts[0].removesuffix(".py")
    if home == "__init__":
        return
    for target, at_top in imports(path):
        if target == home or target in TOP or (str(relative), target) in FACADES:
            continue
        allowed = target in MAY_IMPORT[home] or (not at_top and (home, target) in LATE)
        assert allowed, f"{relative} imports undertow.{target}"


def test_import_is_light():
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


@pytest.mark.parametrize("name", ut.__all__)
def test_every_public_name_has_a_docstring_with_an_example(name):
    thing = getattr(ut, name)
    assert inspect.getdoc(thing), f"{name} has no docstring"
    abstract = inspect.isabstract(thing)
    examples = doctest.DocTestFinder(recurse=False).find(thing, name)
    assert abstract or any(test.examples for test in examples), f"the docstring of {name} shows no example"


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
