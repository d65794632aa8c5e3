"""Shapes, dtypes and types of what functions get and give are checked by jaxtyping and beartype while the tests run.

Functions of a module and methods are checked, each in its first calls in a process: in an inner loop the ten
thousandth call is like the hundredth, and checking all of them is a third of the tests' time.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import partial, wraps
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from beartype import BeartypeConf, beartype
from jaxtyping import jaxtyped

PACKAGES = ("tokendynamics", "reproductions")
COMPILED = ("tokendynamics.dynamics.engines.compiled.",)
"""numba compiles the functions of these as they stand in their files."""
CALLS = 100
# An int is a float, as in every type checker.
_checked = partial(jaxtyped, typechecker=beartype(conf=BeartypeConf(is_pep484_tower=True)))


def checked(subject: Callable) -> Callable:
    """Return the class whose fields, or the function whose first calls are checked."""
    if isinstance(subject, type):
        return _checked(subject)
    left, careful = CALLS, None

    @wraps(subject)
    def called(*args: Any, **named: Any) -> Any:
        nonlocal left, careful
        if left <= 0:
            return subject(*args, **named)
        left -= 1
        careful = careful or _checked(subject)  # at the first call: many functions are never called
        return careful(*args, **named)

    return called


class _Decorating(ast.NodeTransformer):
    """Decorates classes and functions, but not what stands within a function and is made anew at every call."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        names = [ast.unparse(each).partition("(")[0].rpartition(".")[2] for each in node.decorator_list]
        if "dataclass" in names:  # around what it makes, and within what turns arguments into fields
            node.decorator_list.insert(names.index("dataclass"), _decorator(node))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.decorator_list.append(_decorator(node))
        return node


def _decorator(node: ast.AST) -> ast.expr:
    return ast.copy_location(ast.Name("__checked__", ast.Load()), node)


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Compile anew: what is kept beside the file is not decorated."""
        path = self.get_filename(fullname)
        tree = _Decorating().visit(ast.parse(self.get_data(path), path))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__checked__"] = checked
        super().exec_module(module)


class _Finder(PathFinder):
    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES or fullname.startswith(COMPILED):
            return None
        spec = super().find_spec(fullname, path, target)
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """Check what is imported from the packages from now on."""
    sys.meta_path.insert(0, _Finder)
