"""The public names of the package: `lazy_loader` imports each on first use, and type checkers read this file."""

from .errors import ArgumentTypeError as ArgumentTypeError
from .errors import ArgumentValueError as ArgumentValueError
from .errors import AttentionFactorsError as AttentionFactorsError
from .errors import CheckpointError as CheckpointError
from .errors import MemoryLimitError as MemoryLimitError
from .errors import StorageError as StorageError
from .errors import TokenDynamicsError as TokenDynamicsError
