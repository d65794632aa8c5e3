"""How many cases a test tries, read from its code without running it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SYSTEMS = "SYSTEMS"
"""The constant by which a test module says on how many random systems each of its tests runs."""


@dataclass(frozen=True)
class Test:
    """A test.

    Attributes:
        path: From the folder of all tests.
        name: Of the function.
    """

    path: str
    name: str

    __test__ = False

    @classmethod
    def of(cls, identity: str) -> Test:
        """Read what pytest calls it, such as ``"spaces/test_spaces.py::test_distances"``."""
        path, _, name = identity.partition("::")
        return cls(path, name)

    def __str__(self) -> str:
        """Return what pytest calls it, from the root of the repository."""
        return f"tests/{self.path}::{self.name}"


def exists(test: Test, folder: Path) -> bool:
    """Say whether a folder of tests has this one."""
    return (folder / test.path).is_file() and test.name in _module(folder / test.path).functions


def cases(test: Test, folder: Path) -> int:
    """Return how many cases a test tries: sets of arguments, times examples, times random systems of its module.

    Arguments that are computed, and examples that the test does not count itself, count once.

    Args:
        test: Which.
        folder: Of all tests.

    Raises:
        KeyError: There is no such test.
    """
    module = _module(folder / test.path)
    function = module.functions[test.name]
    count = 1
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call):
            count *= _several(decorator, module)
    systems = module.integers.get(SYSTEMS, 1) if SYSTEMS in module.names_behind(test.name) else 1
    return count * systems


@dataclass(frozen=True)
class _Module:
    functions: dict[str, ast.FunctionDef]
    integers: dict[str, int]
    lengths: dict[str, int]

    def names_behind(self, function: str) -> set[str]:
        """Return every name that a function reads, itself or by functions of its module."""
        behind: set[str] = set()
        waiting = [function]
        while waiting:
            read = {node.id for node in ast.walk(self.functions[waiting.pop()]) if isinstance(node, ast.Name)} - behind
            behind |= read
            waiting += [name for name in read if name in self.functions]
        return behind


@functools.cache
def _module(path: Path) -> _Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assigned = dict(_assigned(tree))
    return _Module(
        functions={node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)},
        integers={name: _integer(value) for name, value in assigned.items() if _is_integer(value)},
        lengths={name: len(value.elts) for name, value in assigned.items() if isinstance(value, ast.List | ast.Tuple)},
    )


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for name, value in zip(target.elts, node.value.elts, strict=False):
                    if isinstance(name, ast.Name):
                        yield name.id, value


def _is_integer(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _several(decorator: ast.Call, module: _Module) -> int:
    """Return how many cases a decorator makes of one."""
    kind = ast.unparse(decorator.func)
    if kind == "settings":
        given = {keyword.arg: keyword.value for keyword in decorator.keywords}
        return _integer(given["max_examples"]) if "max_examples" in given else 1
    if kind != "pytest.mark.parametrize":
        return 1
    values = decorator.args[1]
    if isinstance(values, ast.List | ast.Tuple):
        return len(values.elts)
    if isinstance(values, ast.Name):
        return module.lengths.get(values.id, 1)
    if isinstance(values, ast.Call) and ast.unparse(values.func) == "range":
        return len(range(*map(_integer, values.args)))
    return 1


def _integer(node: ast.expr) -> int:
    return int(ast.literal_eval(node))
