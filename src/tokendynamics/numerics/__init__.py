"""What everything stands on. For users: the errors, each of which names what is wrong and says what to do."""

from tokendynamics.numerics.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    AttentionFactorsError,
    CheckpointError,
    MemoryLimitError,
    StorageError,
    TokenDynamicsError,
)

__all__ = [
    "ArgumentTypeError", "ArgumentValueError", "AttentionFactorsError", "CheckpointError", "MemoryLimitError",
    "StorageError", "TokenDynamicsError",
]  # fmt: skip
