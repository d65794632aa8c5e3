"""How the package hangs together: no rings of imports, no name public by accident, no function too long to read."""

import ast
import importlib
import inspect
import pkgutil
import re
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

import pytest

import reproductions
import tokendynamics

SOURCE = Path(tokendynamics.__file__).parent
REPRODUCTIONS = Path(reproductions.__file__).parent
FUNCTION_LINES = 60


def modules_of(folder: Path) -> dict[str, Path]:
    """Return the files of a package by the names of their modules."""
    paths = {path.relative_to(folder.parent).with_suffix("").parts: path for path in sorted(folder.rglob("*.py"))}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for parts, path in paths.items()}


MODULES = modules_of(SOURCE)
EVERYTHING = MODULES | modules_of(REPRODUCTIONS)
PACKAGES = [name for name, path in MODULES.items() if path.name == "__init__.py"]


DOOR = "tokendynamics.results.result"
"""The one module that reaches upwards, by a name: it gives results `tokendynamics.report`."""


def imports(tree: ast.AST, name: str = "") -> set[str]:
    """Modules of ours that are imported anywhere in a file: in functions, under TYPE_CHECKING, and by their names."""
    result = imports_by_name(tree, name)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in EVERYTHING:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & EVERYTHING.keys()
            result |= submodules
            if len(submodules) < len(node.names):
                result.add(node.module)
        elif isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names} & EVERYTHING.keys()
    return result


def imports_by_name(tree: ast.AST, name: str) -> set[str]:
    """Modules of ours whose names a file with `import_module` writes down; every one that an f-string may become."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and called(node) == "import_module"]
    if not calls:
        return set()
    package = name if name in PACKAGES else name.rpartition(".")[0]
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    relative = {resolve_name(text, package) for text in texts if re.fullmatch(r"\.\w[\w.]*", text)}
    patterns = [pattern_of(call.args[0], name) for call in calls if isinstance(call.args[0], ast.JoinedStr)]
    matched = {entry for entry in EVERYTHING for pattern in patterns if re.fullmatch(pattern, entry)}
    return (texts | relative | matched) & EVERYTHING.keys() - {"tokendynamics"}


def called(node: ast.Call) -> str:
    """Return the last part of the name of what is called."""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def pattern_of(text: ast.JoinedStr, name: str) -> str:
    """Return what an f-string may become, as a regular expression; its own name is known."""
    parts = []
    for part in text.values:
        if isinstance(part, ast.Constant):
            parts.append(re.escape(str(part.value)))
        else:
            direct = isinstance(part, ast.FormattedValue) and getattr(part.value, "id", "") == "__name__"
            parts.append(re.escape(name) if direct else r"[\w.]+")
    return "".join(parts)


class Facts(NamedTuple):
    """What a file imports, what of it by names that it writes down, what is too long, and what is private of others."""

    imports: set[str]
    by_name: set[str]
    too_long: list[str]
    private: list[str]


@cache
def facts_of(name: str) -> Facts:
    """Return what the tests ask of a module, so that its file is parsed once."""
    tree = ast.parse(EVERYTHING[name].read_text())
    too_long, private = [], []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > FUNCTION_LINES:
                too_long.append(f"{name}: {node.name} has {length} lines")
        elif isinstance(node, ast.ImportFrom) and package_of(node.module or name) != package_of(name):
            names = [alias.name for alias in node.names if re.match(r"_[^_]", alias.name)]
            if node.module in EVERYTHING and names:
                private.append(f"{node.module} gives {names} to {name}, of another package")
    return Facts(imports(tree, name) | exported(name), imports_by_name(tree, name), too_long, private)


def exported(name: str) -> set[str]:
    """Return the modules whose names a package gives on first use, as its stub says."""
    stub = EVERYTHING[name].with_suffix(".pyi")
    nodes = ast.parse(stub.read_text()).body if stub.exists() else []
    modules = {node.module or alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    return {f"{name}.{module}" for module in modules} & EVERYTHING.keys()


@pytest.mark.long
def test_no_module_imports_itself_by_any_way_round():
    graph = {name: facts_of(name).imports - {name} for name in EVERYTHING}
    assert "tokendynamics.report" in graph[DOOR]
    del graph[DOOR]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as ring:
        pytest.fail(f"a ring of imports: {' -> '.join(ring.args[1])}")


def test_a_ring_would_be_seen_wherever_it_is_imported():
    lazy = "def f():\n    from tokendynamics.dynamics import simulate\n"
    typed = "if TYPE_CHECKING:\n    from tokendynamics.dynamics import events, Flow\n"
    assert imports(ast.parse(lazy)) == {"tokendynamics.dynamics"}
    assert imports(ast.parse(typed)) == {"tokendynamics.dynamics", "tokendynamics.dynamics.events"}
    named = 'import_module("tokendynamics.report")'
    assert imports(ast.parse(named)) == {"tokendynamics.report"}
    looked_up = 'PAGES = {"x": "tokendynamics.report"}\ndef f(x):\n    return importlib.import_module(PAGES[x])\n'
    assert imports(ast.parse(looked_up)) == {"tokendynamics.report"}
    formatted = 'import_module(f"{__name__}.{home}")'
    assert "tokendynamics.spaces._ellipsoid" in imports(ast.parse(formatted), "tokendynamics.spaces")
    assert "tokendynamics.spectra" in imports(ast.parse('import_module(f"tokendynamics.{name}")'))
    relative = 'import_module("._ellipsoid", __package__)'
    assert imports(ast.parse(relative), "tokendynamics.spaces") == {"tokendynamics.spaces._ellipsoid"}


def test_one_module_alone_reaches_upwards_by_a_name():
    """Rows are held by import-linter; a name that is looked up reaches nothing above its own package, but the door."""
    rows = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    height = {package.strip(): -place for place, row in enumerate(rows) for package in row.split("|")}
    for name in MODULES:
        direct = name.split(".")[1] if "." in name else ""
        reached = {entry.split(".")[1] for entry in facts_of(name).by_name if "." in entry}
        upwards = {entry for entry in reached - {direct} if direct in height and height[entry] >= height[direct]}
        assert upwards == ({"report"} if name == DOOR else set()), name


def test_functions_are_short_enough_to_read():
    assert not [entry for name in EVERYTHING for entry in facts_of(name).too_long]


def belongs(value: object, name: str) -> bool:
    """Whether a module or package is where a value comes from; a constant comes from wherever it stands."""
    origin = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", name)
    return origin == name or origin.startswith(f"{name}.")


def package_of(name: str) -> str:
    """Return the package below the root, or the tree beside it, that a module is in."""
    return ".".join(name.split(".")[:2]) if name.startswith("tokendynamics.") else name.split(".")[0]


@cache
def readers() -> dict[str, set[str]]:
    """Return by whom each module is imported."""
    by_name: dict[str, set[str]] = {name: set() for name in EVERYTHING}
    reads = {name: facts_of(name).imports for name in EVERYTHING}
    bench = {
        name: imports(ast.parse(path.read_text()), name) for name, path in modules_of(Path("bench").resolve()).items()
    }
    for reader, names in (reads | bench).items():
        for name in names:
            by_name[name].add(reader)
    return by_name


def shared(name: str) -> bool:
    """Whether another package of the library reads a module.

    One without an underscore that no `__all__` names is no public name: users are promised what `__all__` lists.
    """
    return any(package_of(reader) != package_of(name) for reader in readers()[name])


def test_an_underscore_means_this_package_only():
    """Elsewhere: drop the underscore, or import a public name."""
    for name in MODULES:
        if "._" in name and name != "tokendynamics._version":
            outside = {reader for reader in readers()[name] if package_of(reader) != package_of(name)}
            assert not outside - {"tokendynamics"}, name


def test_no_other_package_reads_a_name_with_an_underscore():
    assert not [entry for name in EVERYTHING for entry in facts_of(name).private]


def test_no_module_is_public_by_accident():
    """A module without an underscore is named by the package that it is in, or shared by packages of the library."""
    for name in MODULES:
        package, _, leaf = name.rpartition(".")
        if not leaf.startswith("_") and name not in PACKAGES:
            assert shared(name) or leaf in getattr(importlib.import_module(package), "__all__", ()), name


MOST_READ_ONCE = 10


def test_files_that_one_other_file_reads_do_not_become_more():
    """Such a file is part of the other, unless it is a concept of its own."""
    files = {name for name in MODULES if name not in PACKAGES}
    once = sorted(name for name in files if len(readers()[name]) == 1 and readers()[name] <= files)
    assert len(once) <= MOST_READ_ONCE, "\n".join(once)


def is_public(name: str) -> bool:
    """Whether a module is a package, or named by the `__all__` of the package that it is in."""
    package, _, leaf = name.rpartition(".")
    return name in PACKAGES or leaf in getattr(importlib.import_module(package), "__all__", ())


@pytest.mark.parametrize("name", [name for name in MODULES if "._" not in name and is_public(name)])
def test_what_can_be_imported_is_what_is_meant(name):
    """Whatever a public module or package holds of its own has an underscore or is in `__all__`."""
    module = importlib.import_module(name)
    meant = set(getattr(module, "__all__", ()))
    below = {info.name for info in pkgutil.iter_modules(getattr(module, "__path__", []))}
    defined = {key for key, value in vars(module).items() if not key.startswith("_") and belongs(value, name)}
    assert defined - below - {"TYPE_CHECKING"} <= meant
    for key in meant:
        value = getattr(module, key)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert inspect.getdoc(value), f"{key} says nothing of itself"


LIBRARY_ONLY = ("cli", "report", "words", "provenance")
"""Packages that other packages import and users do not."""
PUBLIC = [
    name
    for name in MODULES
    if not any(part.startswith("_") or part in LIBRARY_ONLY for part in name.split(".")[1:]) and is_public(name)
]  # fmt: skip
MOST_PUBLIC_NAMES = 260
"""Seventeen of them for the atlas: its registry, the oracles `tokendynamics.theorems.predict_…`, the search for
counterexamples, and the statements that are nearest to a network."""


def public_names(name: str) -> set[str]:
    """Return what `__all__` of a module names, without the version."""
    return {public for public in getattr(importlib.import_module(name), "__all__", ()) if not public.startswith("_")}


@pytest.mark.parametrize("name", PUBLIC)
def test_completion_shows_the_public_names_alone(name):
    module = importlib.import_module(name)
    below = {package.name for package in pkgutil.iter_modules(getattr(module, "__path__", []))}
    shown = {public for public in dir(module) if not public.startswith("_")}
    assert shown - below == public_names(name) - below


def test_public_names_do_not_become_more():
    values = {id(getattr(importlib.import_module(name), public)) for name in PUBLIC for public in public_names(name)}
    assert len(values) <= MOST_PUBLIC_NAMES


COMMANDS = ("Makefile", ".ci/run", "pyproject.toml", ".pre-commit-config.yaml", "README.md", "CONTRIBUTING.md")
"""Files at the root of a clone that say what to run."""
IN_CLONE = re.compile(r"(?<![\w./-])(?:src|tests|docs|bench|reproductions|examples)/[\w./-]*\w")


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_names_is_there(name):
    root = Path(reproductions.__file__).parents[1]
    paths = set(IN_CLONE.findall((root / name).read_text(encoding="utf-8")))
    assert [path for path in sorted(paths) if not (root / path).exists()] == []
