"""Values that are part of a type: for each of them the loop is compiled anew, without what such a run does not need.

A field of a named tuple that holds `Known(value)` reads as that value to the compiler, before types are inferred.
Branches that test it are cut then, and what only they call is never compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from numba import types
from numba.core import ir
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.ir_utils import get_definition, guard
from numba.core.untyped_passes import InlineInlinables, WithLifting
from numba.extending import NativeValue, models, register_model, typeof_impl, unbox


@dataclass(frozen=True)
class Known:
    """A value that the compiler knows.

    Attributes:
        value: A truth value, a whole number or a name.
    """

    value: bool | int | str


class KnownType(types.Type):
    """The type of one value."""

    def __init__(self, value: bool | int | str) -> None:
        self.value = value
        super().__init__(name=f"known({value!r})")


register_model(KnownType)(models.OpaqueModel)


@typeof_impl.register(Known)
def _type_of(known: Known, context: Any) -> KnownType:
    return _known_type(type(known.value), known.value)


@cache
def _known_type(kind: type, value: bool | int | str) -> KnownType:
    """Return the one type of a value; True and 1 have two."""
    return KnownType(value)


@unbox(KnownType)
def _nothing(kind: Any, value: Any, native: Any) -> NativeValue:
    return NativeValue(native.context.get_dummy_value())


def _known_values(kind: Any) -> dict[str, bool | int | str]:
    """Return the known fields of a named tuple, from the tuple's type; of other types there are none."""
    if not isinstance(kind, types.BaseNamedTuple):
        return {}
    fields: Any = zip(kind.fields, kind.types, strict=True)  # pyright: ignore[reportAttributeAccessIssue]
    return {name: field.value for name, field in fields if isinstance(field, KnownType)}


def known_value(kind: Any, name: str) -> Any:
    """Return the value of a known field of a named tuple, from the tuple's type."""
    return _known_values(kind)[name]


@register_pass(mutates_CFG=False, analysis_only=False)
class _KnownValues(FunctionPass):
    """Puts values for the fields of arguments that hold them."""

    _name = "known_values"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        replaced = False
        for block in state.func_ir.blocks.values():
            for assignment in block.find_insts(ir.Assign):
                value = assignment.value
                if not isinstance(value, ir.Expr) or value.op != "getattr":
                    continue
                argument = guard(get_definition, state.func_ir, value.value)
                kind = state.args[argument.index] if isinstance(argument, ir.Arg) else None
                known = _known_values(kind)
                if value.attr in known:
                    constant = ir.Const(known[value.attr], value.loc)
                    assignment.value, replaced = constant, True
                    state.func_ir._definitions[assignment.target.name] = [constant]
        return replaced


class Compiler(CompilerBase):
    """The compiler of numba, which reads known values before it cuts branches."""

    def define_pipelines(self) -> list[Any]:
        """Return the passes: those of numba, and ours before either search for branches to cut."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        for before in (WithLifting, InlineInlinables):
            passes.add_pass_after(_KnownValues, before)
        passes.finalize()
        return [passes]


class _WithoutEnvironments:
    """A code generator for functions that have no machine code, and thus no place for what Python objects they need."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def set_env(self, name: str, environment: Any) -> None:
        pass


class _Part(JITCodeLibrary):
    """Code that is only linked into other code, which is optimized as a whole: by itself it gets no machine code."""

    @property
    def codegen(self) -> Any:
        return _WithoutEnvironments(self._codegen)

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class PartCompiler(Compiler):
    """The compiler of functions that nobody calls from Python."""

    def define_pipelines(self) -> list[Any]:
        """Return the passes; what they make goes into a part."""
        state = self.state
        state.library = _Part(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().define_pipelines()
