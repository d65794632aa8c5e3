"""Shapes, dtypes and types of what functions get and give are checked by jaxtyping and beartype while the tests run.

Functions of a module and methods are checked, each in its first calls in a process: in an inner loop the ten
thousandth call is like the hundredth, and checking all of them is a third of the tests' time. Then a function gets its
own code back: a function between each caller and what it calls would be another quarter.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import partial, wraps
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import Any
from warnings import catch_warnings, simplefilter

from beartype import BeartypeConf, beartype
from jaxtyping import TypeCheckError, jaxtyped

PACKAGES = ("tokendynamics", "reproductions")
COMPILED = ("tokendynamics.dynamics.engines.compiled.",)
"""numba compiles the functions of these as they stand in their files."""
TRACED = "tokendynamics.modules"
"""What PyTorch compiles reads the code of the functions of these."""
CALLS = 50
# An int is a float, as in every type checker.
_checked = partial(jaxtyped, typechecker=beartype(conf=BeartypeConf(is_pep484_tower=True)))
with catch_warnings():
    simplefilter("ignore", SyntaxWarning)  # a text is not called: what is to be called takes its place
    _HANDS_ON = eval("lambda *args, **named: 'first'(*args, **named)").__code__  # noqa: S307
"""The code of a function while its calls are checked. After that it has its own again, so that no call is slower."""


def checked(subject: Callable) -> Callable:
    """Return the class whose fields, or the function whose first calls are checked."""
    if isinstance(subject, type):
        plain_init = subject.__init__
        return _rarely(_checked(subject), plain_init)
    if subject.__code__.co_freevars or subject.__module__.startswith(TRACED):
        return _wrapped(subject)
    plain = FunctionType(subject.__code__, subject.__globals__, subject.__name__, subject.__defaults__)
    for name in ("__kwdefaults__", "__annotations__", "__qualname__", "__doc__"):
        setattr(plain, name, getattr(subject, name))
    left, careful = CALLS, None

    def first(*args: Any, **named: Any) -> Any:
        nonlocal left, careful
        left -= 1
        if left <= 0:
            subject.__code__ = plain.__code__
            vars(subject).pop("__wrapped__", None)
        careful = careful or _checked(plain)  # at the first call: many functions are never called
        return _refusing(careful, plain, args, named)

    subject.__code__ = _HANDS_ON.replace(
        co_consts=tuple(first if const == "first" else const for const in _HANDS_ON.co_consts), co_name=plain.__name__
    )
    subject.__wrapped__ = plain
    return subject


def _refusing(careful: Callable, plain: Callable, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call a function with its check; what the check finds is no error where the function itself refuses the call."""
    try:
        return careful(*args, **named)
    except TypeCheckError as error:
        if not getattr(error, "seen", False):  # by the function that was called wrongly, not by those around it
            error.seen = True  # type: ignore[attr-defined]
            try:
                plain(*args, **named)
            except Exception as refusal:
                if type(refusal).__module__.startswith(PACKAGES):
                    raise
        raise


def _rarely(record: type, plain: Callable[..., None]) -> type:
    """Check the fields of the first records of a class alone: engines make one at every stage of a step."""
    left, careful = CALLS, record.__init__

    @wraps(plain)
    def made(self: object, *args: Any, **named: Any) -> None:
        nonlocal left
        left -= 1
        (plain if left < 0 else careful)(self, *args, **named)

    record.__init__ = made
    return record


def _wrapped(subject: Callable) -> Callable:
    """Return a function that checks its first calls and stays between the caller and the subject."""
    left, careful = CALLS, None

    @wraps(subject)
    def called(*args: Any, **named: Any) -> Any:
        nonlocal left, careful
        if left <= 0:
            return subject(*args, **named)
        left -= 1
        careful = careful or _checked(subject)
        return _refusing(careful, subject, args, named)

    return called


class _Decorating(ast.NodeTransformer):
    """Decorates classes and functions, but not what stands within a function and is made anew at every call."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        names = [ast.unparse(entry).partition("(")[0].rpartition(".")[2] for entry in node.decorator_list]
        if "dataclass" in names:  # around what it makes, and within what turns arguments into fields
            node.decorator_list.insert(names.index("dataclass"), _decorator(node))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.decorator_list.append(_decorator(node))
        return node


def _decorator(node: ast.AST) -> ast.expr:
    return ast.copy_location(ast.Name("__checked__", ast.Load()), node)  # with a place, which compiling asks for


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Compile anew: what is kept beside the file is not decorated."""
        path = self.get_filename(fullname)
        tree = _Decorating().visit(ast.parse(self.get_data(path), path))
        return compile(tree, path, "exec", dont_inherit=True)

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
