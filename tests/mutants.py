"""Mutation testing of the numerical modules (`make mutants`): apply small changes and run the fast tests on each.

cosmic-ray makes the changes (an operator, a comparison, a number). A seeded sample of them is tried one by one: the
tests that execute the changed line run first, in the order of their duration, until one fails. The results are written
to docs/mutants.md. A mutant that survives shows a missing test or is equivalent to the original code; EQUIVALENT lists
the equivalent ones with the reason.
"""

import argparse
import ast
import collections
import concurrent.futures
import hashlib
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).parents[1]
SOURCE = Path("src/undertow")
EQUIVALENT = ROOT / "tests" / "mutants_equivalent.json"
MODULES = (
    "covariance/*.py", "estimate.py", "problem.py", "spectral.py", "verification/criterion.py",
    "noise/*.py", "dynamics/*.py", "manifold/*.py", "symmetry/*.py",
    "symmetry/generators/*.py",
    "sensing/advise.py", "sensing/bursts.py", "sensing/decomposition.py", "sensing/ensembles.py", "sensing/factors.py",
    "sensing/growth.py", "sensing/laws.py", "sensing/loss.py", "sensing/matrix_sensing.py", "sensing/measurements.py",
    "sensing/quadratic_net.py", "grouped/data.py", "grouped/flow.py", "grouped/invariance.py", "grouped/two_phase.py",
)  # fmt: skip
TESTS = (
    "tests/verification/test_criterion.py", "tests/dynamics", "tests/sensing", "tests/grouped", "tests/manifold",
    "tests/papers/zero_loss", "tests/papers/noise_equilibrium", "tests/covariance", "tests/noise", "tests/symmetry",
    "tests/test_estimate.py", "tests/test_problem.py", "tests/test_spectral.py",
)  # fmt: skip
# Unions of types, decorators (jit changes no number) and classes of exceptions are not mathematics. Bit operators in
# place of arithmetic raise on floats, so that any test kills them and they would inflate the rate. Comparisons are only
# reversed or negated, because for floats it does not matter whether equality is included.
LEFT_OUT = re.compile(
    r"Operator_(Bit|[LR]Shift|Mod)|_(Bit(Or|And|Xor)|[LR]Shift|Mod|FloorDiv|Is|IsNot)$|Decorator|Exception"
    r"|Comparison.*_(Eq_(?!NotEq)|NotEq_(?!Eq)|Lt_(LtE|Eq|NotEq)|LtE_(Lt|Eq|NotEq)|Gt_(GtE|Eq|NotEq)|GtE_(Gt|Eq|NotEq))"
)
CHECKS = re.compile(r"warn|error_if|validate\.|finite_number")
"""Calls that only validate input."""
LIMITS = (20.0, 15.0, 10.0, 5.0)
"""The limits on the duration of the tests per mutant, in seconds: those of the test file of its module, of its folder,
of other folders, and those that execute other lines of its module."""


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    module: str
    operator: str
    occurrence: int
    first: int
    last: int


@dataclass(frozen=True)
class Outcome:
    """The result of the tests on a mutant."""

    mutant: Mutant
    killed: bool
    seconds: float
    before: str
    after: str


def modules() -> list[Path]:
    """Return the files that are mutated."""
    paths = {path for pattern in MODULES for path in (ROOT / SOURCE).glob(pattern)}
    return sorted(path.relative_to(ROOT) for path in paths if path.name != "__init__.py")


def mutants(path: Path) -> list[Mutant]:
    """Return all mutants of a module, apart from changes of types, messages and validation of input."""
    code = (ROOT / path).read_text()
    outside, nodes = _not_mathematics(code), list(ast_nodes(get_ast(code)))
    result = []
    for name in sorted(cosmic_ray.plugins.operator_names()):
        operator = cosmic_ray.plugins.get_operator(name)
        if LEFT_OUT.search(name) or operator.arguments():
            continue
        places = (place for node in nodes for place in operator().mutation_positions(node))
        for occurrence, ((first, _), (last, _)) in enumerate(places):
            if not any(line in outside for line in range(first, last + 1)):
                result.append(Mutant(str(path), name, occurrence, first, last))
    return result


def _not_mathematics(code: str) -> set[int]:
    """Return the lines of annotations, decorators, raised errors, warnings, checks of input and named constants."""
    lines: set[int] = set()
    add = lambda node: lines.update(range(node.lineno, node.end_lineno + 1))
    tree = ast.parse(code)
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            add(node)
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise | ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.AnnAssign) and node.value is None
        ):
            add(node)
        elif isinstance(node, ast.If) and node.body and isinstance(node.body[0], ast.Raise):
            lines.update(range(node.lineno, node.body[0].end_lineno + 1))
        elif (
            isinstance(node, ast.Call) and re.search(r"warn|error_if|validate\.|finite_number", ast.unparse(node.func))
        ) or (isinstance(node, ast.keyword) and node.arg in ("strict", "static")):
            add(node)
        elif isinstance(node, ast.ClassDef):
            lines.update(range(min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.lineno + 1))
        elif isinstance(node, ast.FunctionDef):
            lines.update(range(min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.body[0].lineno))
            if re.match(r"__(str|repr|init|check_init)__$|_?(refuse|check|validate|words)", node.name):
                add(node)
    return lines


def sample(every: dict[Path, list[Mutant]], count: int, seed: int) -> list[Mutant]:
    """Return a share of the mutants of each module, which depends on the seed and the source only."""
    total = sum(map(len, every.values()))
    chosen = []
    for path, candidates in every.items():
        share = min(len(candidates), max(2, round(count * len(candidates) / total)))
        chosen += random.Random(f"{seed} {path}").sample(candidates, share)
    return chosen


def environment(tree: Path, cache: Path) -> dict[str, str]:
    """Return the environment variables of a test run in a copy of the tree; all runs share a compilation cache."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # without bytecode each process would compile all modules
    }


def copy(folder: Path) -> Path:
    """Copy the files that the tests need, and return the folder."""
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    return folder


class Suite:
    """The tests, their durations, and the lines that each of them executes."""

    def __init__(self, tree: Path, cache: Path, workers: int):
        """Run all tests once and measure the coverage of each."""
        plain = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
        report = ["--cov=undertow", "--cov-context=test", "--cov-report=", f"--junitxml={tree / 'times.xml'}"]
        run = subprocess.run(
            [*plain, "-n", str(workers), *report, *TESTS], cwd=tree, env=environment(tree, cache),
            capture_output=True, text=True,
        )  # fmt: skip
        if not (tree / "times.xml").is_file():
            raise SystemExit(f"the tests did not run:\n{run.stdout[-3000:]}{run.stderr[-3000:]}")
        self.times: dict[str, float] = {}
        failed = []
        for case in ElementTree.parse(tree / "times.xml").iter("testcase"):
            parts = case.attrib["classname"].split(".")  # folders, a file, and the class of the test if it has one
            files = (k for k in range(len(parts), 0, -1) if (tree / Path(*parts[:k])).with_suffix(".py").is_file())
            depth = next(files, None)
            if depth is None:  # not a test: a process that died, or a file that cannot be imported
                raise SystemExit(f"the tests did not run: {case.attrib}\n{run.stdout[-3000:]}")
            test = "::".join(["/".join(parts[:depth]) + ".py", *parts[depth:], case.attrib["name"]])
            if len(case):
                failed.append(test)
            else:
                self.times[test] = float(case.attrib["time"])
        if len(failed) > 0.02 * len(self.times):
            raise SystemExit(f"{len(failed)} tests fail without any mutant:\n{run.stdout[-3000:]}")
        for test in failed:
            print(f"left out, because it fails without any mutant: {test}", flush=True)
        self.tests = _coverage(tree / ".coverage", tree)

    def chosen(self, mutant: Mutant) -> list[str]:
        """Return tests that execute the lines of the mutant (its test file first), then other tests of its module."""
        lines = self.tests.get(mutant.module, {})
        on = self._siblings({test for line in range(mutant.first, mutant.last + 1) for test in lines.get(line, ())})
        same_module = self._siblings({test for tests in lines.values() for test in tests}) - on
        module = Path(mutant.module).relative_to(SOURCE)
        own = {test for test in on if test.startswith(f"{Path('tests') / module.parent / 'test_'}{module.stem}.py")}
        home = {test for test in on if test.startswith(f"{Path('tests') / module.parent}/")}
        chosen: list[str] = []
        for group, limit in zip((own, home - own, on - home, same_module), LIMITS, strict=True):
            spent = 0.0
            for test in sorted(group & self.times.keys(), key=self.times.__getitem__):
                if spent + self.times[test] > limit and len(chosen) > 3:
                    break
                spent += self.times[test]
                chosen.append(test)
        return chosen

    def _siblings(self, tests: set[str]) -> set[str]:
        """Return all cases of the tests: a case runs a jitted function that another case traced, without its lines."""
        names = {test.split("[")[0] for test in tests}
        return {test for test in self.times if test.split("[")[0] in names}


def _coverage(file: Path, tree: Path) -> dict[str, dict[int, set[str]]]:
    """Return the tests by module and line, from the database of coverage."""
    from coverage import CoverageData

    data = CoverageData(str(file))
    data.read()
    covering: dict[str, dict[int, set[str]]] = {}
    for measured in data.measured_files():
        lines = data.contexts_by_lineno(measured)
        name = str(Path(measured).resolve().relative_to(tree.resolve()))
        covering[name] = {line: {c.split("|")[0] for c in contexts if c} for line, contexts in lines.items()}
    return covering


def attempt(mutant: Mutant, tree: Path, suite: Suite, cache: Path) -> Outcome:
    """Run the tests on a copy of the tree with the mutant."""
    path = tree / mutant.module
    bytecode = Path(importlib.util.cache_from_source(str(path)))
    code = path.read_text()
    changed = mutate_code(code, cosmic_ray.plugins.get_operator(mutant.operator)(), mutant.occurrence)
    before, after = _difference(code, changed)
    tests = suite.chosen(mutant)
    began = time.perf_counter()
    try:
        path.write_text(changed)
        bytecode.unlink(missing_ok=True)  # bytecode of a file of the same size and second would count as current
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]
        limit = 60 + 4 * sum(suite.times[test] for test in tests)  # a mutant may run forever
        run = subprocess.run(
            command, cwd=tree, env=environment(tree, cache), capture_output=True, text=True, timeout=limit
        )
        killed = bool(tests) and run.returncode != 0
    except subprocess.TimeoutExpired:
        killed = True
    finally:
        path.write_text(code)
        bytecode.unlink(missing_ok=True)
    return Outcome(mutant, killed, time.perf_counter() - began, before, after)


def _difference(code: str, changed: str) -> tuple[str, str]:
    """Return the first line that differs, before and after."""
    for old, new in zip(code.splitlines(), changed.splitlines(), strict=False):
        if old != new:
            return old.strip(), new.strip()
    return "", ""


class Memory:
    """A file of the mutants killed by earlier runs. An entry is valid until its module changes."""

    def __init__(self, path: Path):
        self.path = path
        self.killed: set[str] = set(json.loads(path.read_text())) if path.is_file() else set()

    def name(self, mutant: Mutant) -> str:
        """Return the identifier of a mutant: the change and a hash of its module."""
        code = (ROOT / mutant.module).read_bytes()
        return f"{mutant.module} {mutant.operator} {mutant.occurrence} {hashlib.sha256(code).hexdigest()[:16]}"

    def keep(self, outcome: Outcome) -> None:
        """Add a killed mutant to the file."""
        if outcome.killed:
            self.killed.add(self.name(outcome.mutant))
            self.path.write_text(json.dumps(sorted(self.killed), indent=0))


def reasons() -> dict[tuple[str, str, str], str]:
    """Return the reason why a mutant is equivalent, by module and by the line before and after."""
    listed = json.loads(EQUIVALENT.read_text()) if EQUIVALENT.is_file() else []
    return {(entry["module"], entry["before"], entry["after"]): entry["reason"] for entry in listed}


def page(outcomes: list[Outcome], remembered: int, settings: argparse.Namespace, seconds: float, total: int) -> str:
    """Return the text of docs/mutants.md; `remembered` mutants were killed by an earlier run."""
    killed = sum(outcome.killed for outcome in outcomes)
    tried = f"The last {len(outcomes) - remembered}" if remembered else "The"
    took = f"{tried} mutants took {seconds / 60:.0f} minutes with {settings.workers} processes"
    if remembered:
        took += "; the others were killed in an earlier run with the same code of their modules"
    rows = collections.defaultdict(lambda: [0, 0])
    for outcome in outcomes:
        rows[outcome.mutant.module][0] += 1
        rows[outcome.mutant.module][1] += outcome.killed
    listed = "\n".join(f"| `{name}` | {count} | {dead} |" for name, (count, dead) in sorted(rows.items()))
    explained, survivors = reasons(), []
    for outcome in sorted(outcomes, key=lambda o: (o.mutant.module, o.mutant.first)):
        if not outcome.killed:
            why = explained.get((outcome.mutant.module, outcome.before, outcome.after), "**not explained**")
            place = f"`{outcome.mutant.module}:{outcome.mutant.first}`"
            cells = (f"`` {text.replace('|', chr(92) + '|')} ``" for text in (outcome.before, outcome.after))
            survivors.append(f"| {place} | {' | '.join(cells)} | {why} |")
    table = "\n".join(survivors) or "| none | | | |"
    return f"""# Mutation testing

A mutant is a small change of the source: another operator, another comparison, or a number that is one larger or
smaller. If no test fails on a mutant, a test is missing or the mutant is equivalent to the source. `make mutants` runs
the fast tests on a seeded sample of the mutants of the numerical modules, which
[cosmic-ray](https://cosmic-ray.readthedocs.io) generates. Lines that only validate input or raise errors are left out,
and so are named constants of a module (sizes of blocks, limits of iterations).

**{killed} of {len(outcomes)} mutants were killed ({killed / len(outcomes):.1%})**, of {total:,} possible ones, with
seed {settings.seed}. {took}.

| module | mutants | killed |
|---|---|---|
{listed}

## Survivors

| place | line | mutant | why it is equivalent |
|---|---|---|---|
{table}
"""


def main() -> None:
    """Try the sample and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=320, help="number of mutants to try")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--workers", type=int, default=2, help="number of parallel test runs")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "mutants.md", help="the page to write")
    parser.add_argument(
        "--memory", type=Path, default=ROOT / ".mutants.json", help="file of the mutants killed by earlier runs"
    )
    settings = parser.parse_args()
    began = time.perf_counter()
    every = {path: mutants(path) for path in modules()}
    chosen, total = sample(every, settings.count, settings.seed), sum(map(len, every.values()))
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "compiled"
        trees: Queue[Path] = Queue()
        for number in range(settings.workers):
            trees.put(copy(Path(folder) / f"tree{number}"))
        print(f"{len(chosen)} of {total} mutants; running the tests without any", flush=True)
        suite = Suite(trees.queue[0], cache, settings.workers)
        print(f"{len(suite.times)} tests pass, {time.perf_counter() - began:.0f} s", flush=True)

        def one(mutant: Mutant) -> Outcome:
            tree = trees.get()
            try:
                return attempt(mutant, tree, suite, cache)
            finally:
                trees.put(tree)

        memory = Memory(settings.memory)
        remembered = [mutant for mutant in chosen if memory.name(mutant) in memory.killed]
        outcomes = [Outcome(mutant, True, 0.0, "", "") for mutant in remembered]
        print(f"{len(remembered)} were killed by an earlier run and their modules have not changed", flush=True)
        with concurrent.futures.ThreadPoolExecutor(settings.workers) as pool:
            tried = [pool.submit(one, mutant) for mutant in chosen if mutant not in remembered]
            for future in concurrent.futures.as_completed(tried):
                outcome = future.result()
                outcomes.append(outcome)
                memory.keep(outcome)
                where = f"{outcome.mutant.module}:{outcome.mutant.first}"
                status = "killed  " if outcome.killed else "SURVIVED"
                print(f"{len(outcomes):4d} {status} {outcome.seconds:5.1f} s  {where}", flush=True)
                if not outcome.killed:
                    print(f"       - {outcome.before}\n       + {outcome.after}", flush=True)
    settings.out.write_text(page(outcomes, len(remembered), settings, time.perf_counter() - began, total))
    print(f"{sum(o.killed for o in outcomes)} of {len(outcomes)} killed; {settings.out}")


if __name__ == "__main__":
    main()
