"""The matrices of one layer's feed-forward part: what its block has beside the attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from jaxtyping import Float
from torch import Tensor, nn

from tokendynamics.pretrained.discovery._columns import Storage
from tokendynamics.pretrained.discovery._maps import Norm, Probed, axes_of_places, format_of, is_packed, width_read
from tokendynamics.pretrained.discovery._recomputed import affine_of
from tokendynamics.pretrained.discovery.layout import BlockLayout
from tokendynamics.pretrained.network import at_least_single

Role: TypeAlias = Literal["reads", "writes", "stored"]
"""Of a matrix: it reads the state, rows by features of it; it writes to the state, columns by features of it; or it is
as it is stored, such as experts side by side."""

_CONV = "Conv1D"
"""The class of GPT-2's projections, which keep their weights the other way round."""


@dataclass(frozen=True)
class FeedForwardWeights:
    """Matrices of a feed-forward part by their names in its block.

    What reads the state has the gain of the norm before it folded in, and the centring of a LayerNorm, where that norm
    is known; so it does not change where a gain is moved into it.

    Attributes:
        matrices: Two axes; tokens are rows (x @ matrix) but for what is "stored", which may have three.
        roles: What each does.
        folded: Whether a norm is folded in.
    """

    matrices: dict[str, Float[Tensor, "*shape"]]
    roles: dict[str, Role]
    folded: bool


def feed_forward_problem(layout: BlockLayout) -> str:
    """Return why a block has no feed-forward part to speak of; empty where it has one."""
    if layout.residual is None:
        return f"its parts are not found ({layout.problem})"
    return "" if layout.residual.feed_forward is not None else "it has none"


def modules_needed(block: nn.Module, layout: BlockLayout) -> tuple[str, ...]:
    """Return the modules whose tensors `feed_forward_weights` needs."""
    owners = [name for name, _, _ in _owners(block, layout)]
    norm = _norm_before(block, layout)
    return tuple(dict.fromkeys(owners if norm is None else [*owners, norm[0]]))


def feed_forward_weights(block: nn.Module, layout: BlockLayout, dim: int) -> FeedForwardWeights | None:
    """Return the matrices; None where they are not in memory.

    Args:
        block: With its weights in place.
        layout: Of it, with a feed-forward part.
        dim: Features of a state.
    """
    matrices: dict[str, Tensor] = {}
    forms: dict[str, Storage | None] = {}
    for owner, matrix_name, storage in _owners(block, layout):
        module = block.get_submodule(owner)
        if any(parameter.is_meta for parameter in module.parameters()):
            return None
        leaf = matrix_name.removeprefix(f"{owner}.")
        values = module.get_parameter(leaf).detach() if storage is None else affine_of(module, storage).weight
        matrices[matrix_name], forms[matrix_name] = values.double().cpu(), storage
    roles = _roles(matrices, forms, dim)
    norm = _norm_before(block, layout)
    if norm is not None:
        module, does = block.get_submodule(norm[0]), norm[1]
        gain = at_least_single(affine_of(module, does).weight).double().mT
        for name in (name for name, role in roles.items() if role == "reads"):
            read = gain * matrices[name]
            matrices[name] = read - read.mean(dim=0, keepdim=True) if does.kind == "layer" else read
    return FeedForwardWeights(matrices, roles, norm is not None)


def _owners(block: nn.Module, layout: BlockLayout) -> Iterator[tuple[str, str, Storage | None]]:
    """Yield the module of each matrix, the name of the matrix, and how it is stored; None for what is no plain map."""
    closed = _of_the_attention(block, layout)
    for name, module in block.named_modules():
        if not name or f"{name}.".startswith(closed):
            continue
        if isinstance(width := getattr(module, "in_channels", None), int) and axes_of_places(module):
            yield name, f"{name}.weight", Probed(width, format_of(module))
            continue
        adapted = hasattr(module, "base_layer")  # an adapter on a map: what counts is both together
        if adapted or (is_packed(module) and width_read(module) is not None):
            yield name, f"{name}.weight", Probed(width_read(module) or 1, format_of(module))
            closed = (*closed, f"{name}.")
            continue
        stored: Storage | None = "in x out" if type(module).__name__ == _CONV else None
        stored = "out x in" if isinstance(module, nn.Linear) else stored
        if stored is not None and "weight" not in dict(module.named_parameters(recurse=False)):
            # What a parametrization, such as a weight norm, computes it from may change where the weight does not.
            yield name, f"{name}.weight", stored
            closed = (*closed, f"{name}.")
            continue
        for leaf, parameter in module.named_parameters(recurse=False):
            if parameter.ndim in (2, 3) and parameter.is_floating_point() and "bias" not in leaf:
                yield name, f"{name}.{leaf}", stored if leaf == "weight" else None


def _of_the_attention(block: nn.Module, layout: BlockLayout) -> tuple[str, ...]:
    """Return the beginnings of the names of what belongs to the attention: all beside the feed-forward part does not.

    The feed-forward part is known by the module that gives its output, which may be the last of several.
    """
    residual, attention = layout.residual, layout.attention
    if residual is None or residual.feed_forward is None:
        return ("",)
    names = [] if residual.attention is None else [residual.attention]
    if attention is not None:
        norm = None if attention.norm is None else attention.norm[0]  # it may stand in one list with other norms
        names += [attention.module, *(name for name in attention.modules if name != norm)]
        kind = type(block.get_submodule(attention.module))
        names += [name for name, module in block.named_modules() if type(module) is kind]
    others, beginnings = [name.split(".") for name in residual.feed_forward_modules], list[str]()
    for parts in (name.split(".") for name in names):
        # The shortest beginning that the feed-forward part does not have; none where the name is its own.
        counts = (count for count in range(1, len(parts) + 1) if all(parts[:count] != of[:count] for of in others))
        beginnings += [".".join(parts[:count]) + "." for count in counts][:1]
    return tuple(beginnings)


def _norm_before(block: nn.Module, layout: BlockLayout) -> tuple[str, Norm] | None:
    """Return the norm whose output the feed-forward part reads: the one like the attention's that has no other use."""
    residual, attention = layout.residual, layout.attention
    if residual is None or residual.kind != "added" or attention is None or attention.norm is None:
        return None
    if residual.further or residual.ahead:
        return None  # which of its modules reads which norm is not known
    name, does = attention.norm
    kind = type(block.get_submodule(name))
    used = {name, residual.attention_norm, residual.feed_forward_norm}
    closed = _of_the_attention(block, layout)
    left = [
        inner
        for inner, module in block.named_modules()
        if type(module) is kind and inner not in used and not f"{inner}.".startswith(closed)
    ]
    if not left and residual.parallel:
        return name, does
    return (left[0], does) if len(left) == 1 else None


def _roles(matrices: dict[str, Tensor], forms: dict[str, Storage | None], dim: int) -> dict[str, Role]:
    """Return what each matrix does; of square ones the last writes."""
    plain = [name for name, storage in forms.items() if storage is not None]
    writers = [name for name in plain if matrices[name].shape[1] == dim]
    roles: dict[str, Role] = {}
    for name, matrix in matrices.items():
        shape = tuple(matrix.shape)
        if name not in plain or dim not in shape:
            roles[name] = "stored"
        elif shape[0] == dim and (shape[1] != dim or name not in writers[-1:]):
            roles[name] = "reads"
        else:
            roles[name] = "writes"
    return roles
