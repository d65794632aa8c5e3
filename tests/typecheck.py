"""The runtime type checker of the tests: an int is a float, as in every type checker."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
