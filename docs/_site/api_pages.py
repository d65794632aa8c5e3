"""One page of reference for each public package: every name of its `__all__`, from the docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

from sphinx.application import Sphinx

ROOT = "tokendynamics"
BESIDE = ("numerics", "results", "report")
"""Packages that the root does not export, with names that users meet: errors, results, pages."""

FOLDER = Path(__file__).parents[1] / "built" / "reference"


def public_packages() -> dict[str, dict[str, Any]]:
    """Return the public names and their objects by package: the root, then those below it."""
    root = importlib.import_module(ROOT)
    packages: dict[str, dict[str, Any]] = {}
    waiting = [root, *(importlib.import_module(f"{ROOT}.{name}") for name in BESIDE)]
    while waiting:
        module = waiting.pop(0)
        names = {name: getattr(module, name) for name in _names(module)}
        waiting += [value for value in names.values() if _is_package(value) and value.__name__ not in packages]
        packages[module.__name__] = {name: value for name, value in names.items() if not inspect.ismodule(value)}
    return dict(sorted(packages.items()))


def homes(packages: dict[str, dict[str, Any]]) -> dict[int, str]:
    """Return where each class and function is described: below the root if it can be, and not deeper than it must."""
    places: dict[int, str] = {}
    for package in sorted(packages, key=lambda name: (name == ROOT, name.count("."))):
        for name, value in packages[package].items():
            if inspect.isclass(value) or inspect.isfunction(value):
                places.setdefault(id(value), f"{package}.{name}")
    return places


def _names(module: ModuleType) -> list[str]:
    listed = getattr(module, "__all__", None)
    return list(listed) if listed is not None else [name for name in vars(module) if not name.startswith("_")]


def _is_package(value: object) -> bool:
    return inspect.ismodule(value) and value.__name__.startswith(ROOT)


def _page(package: str, names: dict[str, Any], places: dict[int, str]) -> str:
    lines = [package, "=" * len(package), ""]
    lines += (
        ["Conventionally ``import tokendynamics as td``.", ""]
        if package == ROOT
        else [f".. automodule:: {package}", ""]
    )
    lines += [f".. currentmodule:: {package}", ""]
    described, linked = [], []
    for name, value in sorted(names.items(), key=lambda pair: pair[0].lower()):
        place = places.get(id(value), f"{package}.{name}")
        foreign = not getattr(value, "__module__", ROOT).startswith(ROOT)
        if foreign and (inspect.isclass(value) or inspect.isfunction(value)):
            linked.append(f"- ``{name}``: ``{value.__module__}.{value.__qualname__}``")
        elif place != f"{package}.{name}":
            linked.append(f"- ``{name}``: :py:obj:`{place}`")
        else:
            described.append((name, value))
    if described:
        lines += [
            ".. autosummary::",
            "   :nosignatures:",
            "",
            *(f"   {name}" for name, _ in described),
            "",
        ]
    if linked:
        lines += ["Described elsewhere:", "", *linked, ""]
    for name, value in described:
        kind = "autoclass" if inspect.isclass(value) else "autofunction" if callable(value) else "autodata"
        if isinstance(value, Mapping):
            lines += [
                f".. py:data:: {name}",
                "",
                f"   Its keys: {', '.join(f'``{key}``' for key in value)}.",
                "",
            ]
            continue
        options = {
            "autoclass": ["   :members:", "   :show-inheritance:"],
            "autodata": ["   :no-value:"],
        }.get(kind, [])
        lines += [f".. {kind}:: {name}", *options, ""]
    returned = {kind for _, value in described for kind in _results_of(value) if id(kind) not in places}
    if returned:
        lines += ["Returned by these", "-----------------", ""]
    for kind in sorted(returned, key=lambda kind: kind.__name__):
        lines += [f".. autoclass:: {kind.__module__}.{kind.__name__}", "   :members:", ""]
    return "\n".join(lines)


def _results_of(value: Any) -> set[type]:
    """Return the classes of ours that a function says it returns."""
    try:
        annotation = get_type_hints(value).get("return") if inspect.isfunction(value) else None
    except NameError:  # a name that is imported for type checkers alone
        return set()
    kinds = (annotation, *get_args(annotation))
    return {kind for kind in kinds if inspect.isclass(kind) and kind.__module__.startswith(ROOT)}


def write_pages(app: Sphinx) -> None:
    """Write the pages, and the list of them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    packages = public_packages()
    places = homes(packages)
    texts = {package: _page(package, names, places) for package, names in packages.items()}
    listed = "\n   ".join(f"{package.removeprefix(ROOT + '.')} <{package}>" for package in texts)
    texts["index"] = f"API\n===\n\n.. toctree::\n   :maxdepth: 1\n\n   {listed}\n"
    for name, text in texts.items():
        path = FOLDER / f"{name}.rst"
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # Sphinx reads again what is newer
            path.write_text(text, encoding="utf-8")


def escape(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Escape bars and asterisks outside of code: docstrings are plain text, in which |x| is a norm."""
    lines[:] = [line if line.lstrip().startswith((">>>", "...")) else _CODE.sub(_escaped, line) for line in lines]


_CODE = re.compile(r"`+[^`]+`+|^ *\* |[|*]")


def _escaped(match: re.Match[str]) -> str:
    return f"\\{match[0]}" if match[0] in ("|", "*") else match[0]  # code and bullets stay


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before the sources are listed, and read docstrings before napoleon does."""
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", escape, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
