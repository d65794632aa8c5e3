"""What the numbers of a record rest on: the code of its figure and what is published of it, as one digest."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from reproductions.published import sections

_WORDS = frozenset({"figure", "statement", "invented", "reason", "reasons"})
"""Entries of a published section that no number depends on."""
_NO_CODE = frozenset({"ctx", "kind", "type_comment", "type_params", "annotation", "returns", "lineno"})
"""Fields of a syntax tree that do nothing, or that not every version of Python has."""


def digest(module: ModuleType, paper: str, figure: str) -> str:
    """Return 16 hexadecimal digits that change with the code of a figure or with what is published of it.

    Comments, docstrings, annotations, imports, functions that draw and the names of local variables do not count.
    Neither do the modules that the figure imports: tests of their own hold what those do.

    Args:
        module: Which has `reproduce`.
        paper: "asymptotic", "logical", "positional", or the key of another source.
        figure: Such as "Figure 1".
    """
    printed = [_numbers(entry) for entry in sections(paper) if entry.get("figure") == figure]
    content = json.dumps([code_of(inspect.getsource(module)), printed], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _numbers(entry) for key, entry in value.items() if key not in _WORDS}
    return [_numbers(entry) for entry in value] if isinstance(value, list) else value


def code_of(source: str) -> Any:
    """Return what of a module's source `digest` sees, as lists and texts."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom) and not _draws(node)]
    return _plain(_Renamed(tree).visit(tree))


def _draws(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name.lstrip("_").startswith("draw")


def _plain(node: Any) -> Any:
    """Return a tree as lists and texts, which all versions of Python write alike."""
    if isinstance(node, list):
        return [_plain(part) for part in node if not _is_text(part)]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: value for name, value in ast.iter_fields(node) if name not in _NO_CODE and value not in (None, [])}
    return [type(node).__name__, {name: _plain(value) for name, value in fields.items()}]


def _is_text(node: Any) -> bool:
    """Say whether a statement is a docstring, which has no effect."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


class _Renamed(ast.NodeTransformer):
    """Names the variables of functions by the order in which they come."""

    def __init__(self, tree: ast.Module) -> None:
        inside = (node for part in ast.walk(tree) if isinstance(part, _SCOPES) for node in ast.walk(part))
        stored = [node for node in inside if isinstance(node, ast.arg | ast.Name)]
        self._local = {
            node.arg if isinstance(node, ast.arg) else node.id
            for node in stored
            if isinstance(node, ast.arg) or isinstance(node.ctx, ast.Store)
        }
        self._order: dict[str, str] = {}

    def _name(self, name: str) -> str:
        return self._order.setdefault(name, f"local {len(self._order)}") if name in self._local else name

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Rename a variable."""
        return ast.Name(self._name(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Rename a parameter."""
        return ast.arg(self._name(node.arg))


_SCOPES = (ast.FunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
