"""The arguments of one forward pass, checked against what the network reads."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import check_open, native
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.pretrained.architecture import Architecture

_BY_TOKEN = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
"""Arguments of transformers' networks that have an entry for each token, along their second axis."""

_OF_PADDING = ("attention_mask", "decoder_attention_mask", "encoder_attention_mask")
"""Masks of transformers' networks that say which tokens are there."""

_OF_TRANSFORMERS = (*_BY_TOKEN, "pixel_values")


@dataclass(frozen=True)
class Prepared:
    """One input.

    Attributes:
        inputs: Arguments of the forward pass, for one input.
        text: What was passed, in words.
        tokens: Each token as readable text; None where tokens are no words.
    """

    inputs: dict[str, Any]
    text: str
    tokens: list[str] | None

    @property
    def content(self) -> tuple[object, ...]:
        """Names, shapes and bytes of the arguments: equal, and equally hashed, for equal inputs."""
        tensors = {name: torch.as_tensor(value).detach().cpu() for name, value in sorted(self.inputs.items())}
        # Not every type of PyTorch is one of NumPy; bytes are.
        return tuple(
            (name, tuple(tensor.shape), tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
            for name, tensor in tensors.items()
        )

    def labels(self, places: int) -> list[str]:
        """Return a label for each of the states: the tokens themselves where there is one for each."""
        if self.tokens is not None and len(self.tokens) == places:
            return self.tokens
        return [str(number) for number in range(places)]


def forward_arguments(
    ids: Any, facts: Architecture, main_input: str | None, ids_name: str | None, grid: str | None = None
) -> dict[str, Any]:
    """Return the arguments of a forward pass of one input by name.

    Args:
        ids: Token ids, (1, token) or (token,), or arguments by name.
        facts: Of the network.
        main_input: Name of what it reads; None for a network of the user's own.
        ids_name: Name of the argument that takes token ids; None where none is known to.
        grid: Name of the one that says how many patches each picture has, side by side; None without.

    Raises:
        ArgumentTypeError: Ids that are no whole numbers, or for a network that reads something else.
        ArgumentValueError: Not one prompt, an id outside the vocabulary, more tokens than the context, what the
            network reads is missing, or a mask hides other tokens than those behind the end of a prompt.
    """
    check_open(ids, "ids")
    if isinstance(ids, Mapping):
        inputs = _without_padding(dict(ids), main_input)
    elif ids_name is None:
        wanted = f"{main_input or 'the arguments of its forward pass'}, by name in a mapping"
        came = "token ids" if as_token_ids(ids, "ids") is not None else shown(ids)
        raise ArgumentTypeError("ids", wanted, came, "this network reads no token ids")
    else:
        inputs = {ids_name: ids}
    if ids_name is not None and ids_name in inputs and (facts.vocabulary is not None or not isinstance(ids, Mapping)):
        inputs[ids_name] = checked_ids(inputs[ids_name], facts)
    if main_input not in (None, *inputs):
        wanted, came = f"{main_input} by name", ", ".join(map(str, inputs))
        raise ArgumentValueError("ids", wanted, came, "that is what this network reads")
    counted = main_input if grid is None else grid
    main = inputs.get(counted) if counted is not None else None
    if isinstance(main, Tensor) and main.ndim > 0 and len(main) != 1:
        raise ArgumentValueError(several_inputs(f"shape {tuple(main.shape)}", str(counted)))
    return inputs


def _without_padding(inputs: dict[str, Any], main_input: str | None) -> dict[str, Any]:
    """Return the arguments of one input without the tokens by which a prompt was filled up behind its end.

    A mask hides them from the others, which have the same states without them; measured, they would be tokens alike.

    Args:
        inputs: By name.
        main_input: See `forward_arguments`; of a network without one, what a mask hides is seen when it runs.

    Raises:
        ArgumentValueError: Of a mask: what it hides stands elsewhere, or belongs to what cannot be cut with it.
    """
    if main_input is None:
        return inputs
    for name, mask in inputs.items():
        named = name in _OF_PADDING  # a global_attention_mask hides nothing
        if not (named and isinstance(mask, Tensor) and mask.ndim == 2 and len(mask) == 1):
            continue
        kinds, tokens = mask.unique(), mask.shape[1]
        if kinds.tolist() != [0, 1]:  # nothing is hidden, or numbers are added to the logits
            continue
        kept = int(mask[0].bool().sum())
        by_token = {other for other, value in inputs.items() if getattr(value, "shape", ())[:2] == (1, tokens)}
        ends = bool(mask[0, :kept].all())
        if name == "attention_mask" and main_input in by_token and by_token <= set(_BY_TOKEN) and ends:
            return {other: value[:, :kept] if other in by_token else value for other, value in inputs.items()}
        wanted, came = "a mask that hides no token", f"one that has {kept} of {tokens} entries set"
        advice = "pass the tokens of the prompt alone: padding would be measured as tokens"
        raise ArgumentValueError(name, wanted, came, advice)
    return inputs


def several_inputs(came: str, argument: str = "ids") -> str:
    """Return the message for a batch where one input was expected."""
    return expected(argument, "one input, with a first axis of length 1", came, "pass several inputs as a list")


def other_rows(arguments: Mapping[str, Any], inputs: int, rows: int) -> str:
    """Return the message for blocks whose states have other rows than there are inputs.

    Either several inputs came as one, or the network folds another axis (channels, windows) into the first one.

    Args:
        arguments: Of the forward pass.
        inputs: How many inputs these are.
        rows: How many rows of tokens its blocks read.

    >>> other_rows({"ids": torch.zeros(2, 7)}, 1, 2)
    'ids: expected one input, with a first axis of length 1, got a batch of 2; pass several inputs as a list'
    """
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor) and value.ndim > 0}
    name, main = next(((name, value) for name, value in tensors.items() if len(value) == inputs), ("ids", None))
    if main is None or any(len(value) == rows for value in tensors.values()) or rows % inputs:
        return several_inputs(f"a batch of {rows}")
    per_input, shape = rows // inputs, tuple(main.shape)
    folded = [axis for axis in range(1, main.ndim) if shape[axis] == per_input]
    one = f", shape {(1, *shape[1 : folded[0]], 1, *shape[folded[0] + 1 :])}" if len(folded) == 1 else ""
    advice = f"the network folds another axis, such as channels, into the first: pass each channel as an input{one}"
    if not folded:  # such as one channel of a network whose norm has several
        advice = "the network makes several of each input: load the module around its blocks, with inputs= of that"
    wanted, came = (
        "an input that the blocks read as one sequence",
        f"{per_input} sequences from one of shape {(1, *shape[1:])}",
    )
    return expected(name, wanted, came, advice)


def checked_ids(ids: Any, facts: Architecture, argument: str = "ids") -> Tensor:
    """Return the token ids of one prompt as int64, shape (1, token).

    Args:
        ids: A tensor of shape (1, token) or (token,).
        facts: Of the network.
        argument: What an error calls them.

    Raises:
        ArgumentTypeError: No tensor of whole numbers of a signed type.
        ArgumentValueError: Not one prompt, an id outside the vocabulary, or more tokens than the context.
    """
    if not isinstance(ids, Tensor):
        advice = "encode(text).ids are those of a text"
        raise ArgumentTypeError(argument, "a tensor of token ids", type(ids).__name__, advice)
    ids = ids[None] if ids.ndim == 1 else ids
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool or ids.is_meta or ids.is_sparse:
        raise ArgumentTypeError(argument, "whole numbers", f"dtype {ids.dtype}", "use encode()")
    if ids.dtype == torch.uint64:
        advice = "convert them with .to(torch.int64)"
        raise ArgumentTypeError(argument, "whole numbers of a signed type", f"dtype {ids.dtype}", advice)
    ids = ids.long()
    most = ids.shape[-1] if facts.context is None else facts.context
    if ids.ndim != 2 or ids.shape[0] != 1 or not 0 < ids.shape[1] <= most:
        wanted = f"one prompt, shape (1, token) with 1 to {most} tokens (the model's context)"
        raise ArgumentValueError(argument, wanted, f"shape {tuple(ids.shape)}", "shorten the prompt")
    if int(ids.min()) < 0 or (facts.vocabulary is not None and int(ids.max()) >= facts.vocabulary):
        came = f"ids from {int(ids.min())} to {int(ids.max())}"
        last = "on" if facts.vocabulary is None else f"to {facts.vocabulary - 1}"
        raise ArgumentValueError(argument, f"ids from 0 {last}", came)
    return ids


def as_token_ids(item: Any, argument: str) -> Tensor | None:
    """Return whole numbers along one axis, or along the second of two, as a tensor; None for anything else.

    Raises:
        ArgumentValueError: A list with a number of more than 64 bits.
    """
    if are_token_ids(item):
        whole = [int(number) for number in item]
        wide = next((number for number in whole if not -(2**63) <= number < 2**63), None)
        if wide is not None:
            raise ArgumentValueError(argument, "token ids", shown(wide))
        return torch.tensor(whole, dtype=torch.long)
    if isinstance(item, np.ma.MaskedArray):
        return None
    if isinstance(item, Tensor) and (item.is_meta or item.is_nested or item.layout != torch.strided):
        return None  # one without values, or without rows of equal length
    if not isinstance(item, Tensor | np.ndarray | Sequence) or isinstance(item, bytes | str):
        return None
    if (isinstance(item, Tensor | np.ndarray) and item.ndim == 0) or len(item) == 0:
        return None
    if isinstance(item, Sequence):
        return as_token_ids(item[0], argument) if len(item) == 1 and are_token_ids(item[0]) else None
    if isinstance(item, np.ndarray) and item.dtype.kind not in "iu":
        return None
    ids = item if isinstance(item, Tensor) else torch.as_tensor(native(np.asarray(item)))
    ids = ids[0] if ids.ndim == 2 and ids.shape[0] == 1 else ids
    whole_numbers = not ids.is_floating_point() and not ids.is_complex() and ids.dtype != torch.bool
    return ids if whole_numbers and ids.ndim == 1 else None


def are_token_ids(item: Any) -> bool:
    """Tell whether something is a list or tuple of whole numbers."""
    if not isinstance(item, list | tuple) or not item:
        return False
    return all(isinstance(number, Integral) and not isinstance(number, bool | np.bool_) for number in item)


def argument_names(network: nn.Module, main_input: str | None) -> frozenset[str]:
    """Return the names of the arguments that a network's forward pass takes."""
    parameters = inspect.signature(network.forward).parameters.values()
    names = {
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
        names |= {*_OF_TRANSFORMERS, *(() if main_input is None else (main_input,))}
    return frozenset(names)
