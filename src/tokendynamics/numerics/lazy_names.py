"""Names of a package that are imported on first use, as `lazy_loader` reads them from the stub of the package."""

from collections.abc import Callable
from typing import Any

import lazy_loader


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package; an unknown name is refused with the known ones.

    Args:
        package: The `__name__` of the package.
        file: Its `__file__`; the stub `__init__.pyi` is next to it.
    """
    attribute, _, names = lazy_loader.attach_stub(package, file)

    def known_attribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(names)}")
        return attribute(name)

    return known_attribute, lambda: names, names
