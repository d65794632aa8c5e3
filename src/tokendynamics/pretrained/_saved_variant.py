"""A variant written into the weights: gates on what writes a part to the residual stream."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tokendynamics.numerics._errors import ArgumentValueError, CheckpointError, expected
from tokendynamics.pretrained._feed_forward import feed_forward_problem, feed_forward_weights
from tokendynamics.pretrained._other_libraries import refusing, silenced
from tokendynamics.pretrained._variant import PARTS, Variant
from tokendynamics.pretrained._varied_network import existing_parts
from tokendynamics.pretrained.discovery._layout import BlockLayout, Layout
from tokendynamics.pretrained.discovery._norms import Norm, norm_of


@contextmanager
def gates_in_weights(network: nn.Module, layout: Layout, variant: Variant, dim: int, name: str) -> Iterator[None]:
    """Let weights have a variant's gates in them inside the block; they come back to the last bit.

    Args:
        network: In memory.
        layout: Of it.
        variant: Of gates alone.
        dim: Features of a state.
        name: What a message calls the network.

    Raises:
        ArgumentValueError: Norms or positions taken out, which no weight says; a part that there is not.
        CheckpointError: What writes a part was not found, or does so in several layers that have different gates.
    """
    if not (variant.norms and variant.final_norm and variant.positions):
        came, advice = variant.words, "removed norms and positions are not weights"
        raise ArgumentValueError(expected("variant", "gates on parts", came, advice))
    gates = variant.gates_of(existing_parts(layout, name), name)
    factors: dict[str, float] = {}
    with ExitStack() as stack:
        for number, (block, own) in enumerate(zip(layout.blocks, layout.layers, strict=True)):
            for part, gate in zip(PARTS, gates[number].tolist(), strict=True):
                known = factors.setdefault(f"{block} {part}", gate)
                if known != gate:
                    came = f"{block}, which is several layers of different gates"
                    raise CheckpointError(expected(name, "a block for each layer", came))
                if gate != 1 and layout.blocks.index(block) == number:
                    where = f"{name}: {part} of layer {number + 1}"
                    _scale(network.get_submodule(block), own, part, gate, dim, where, stack)
        yield


def _scale(
    block: nn.Module, layout: BlockLayout, part: str, gate: float, dim: int, where: str, stack: ExitStack
) -> None:
    """Scale what writes a part, until the stack is closed."""
    residual = layout.residual
    if residual is None:
        raise CheckpointError(expected(where, "a block whose parts are found", layout.problem))
    norm = residual.attention_norm if part == "attention" else residual.feed_forward_norm
    if residual.kind == "added" and norm is not None:
        module = block.get_submodule(norm)
        kind = _kind_of(module)
        _replace(module, "weight", lambda old: gate * old + (gate - 1 if kind.gain == "1 + weight" else 0), stack)
        _replace(module, "bias", lambda old: gate * old, stack)
        return
    module = block.get_submodule(_writer(block, layout, part, dim, where))
    for leaf in ("weight", "bias"):
        _replace(module, leaf, lambda old: gate * old, stack)


def _kind_of(module: nn.Module) -> Norm:
    """Return what a norm does, from what it does to random features."""
    weight = module.get_parameter("weight")
    x = torch.randn(3, 5, len(weight), generator=torch.Generator().manual_seed(0)).to(weight)
    with torch.no_grad():
        found = norm_of(module, x, module(x))
    if found is None:
        raise CheckpointError(expected(type(module).__name__, "an RMS norm or a LayerNorm", "another one"))
    return found


def _writer(block: nn.Module, layout: BlockLayout, part: str, dim: int, where: str) -> str:
    if part == "attention":
        if layout.attention is None:
            raise CheckpointError(expected(where, "an attention whose output projection is found", layout.problem))
        return layout.attention.output[0]
    why = feed_forward_problem(layout)
    weights = None if why else feed_forward_weights(block, layout, dim)
    writers = [name for name, role in weights.roles.items() if role == "writes"] if weights is not None else []
    if len(writers) != 1:
        came = why or f"{len(writers)} ({', '.join(writers) or 'experts, or another form'})"
        raise CheckpointError(expected(where, "one matrix that writes to the residual stream", came))
    return writers[0].removesuffix(".weight")


def _replace(module: nn.Module, leaf: str, change: Any, stack: ExitStack) -> None:
    parameter = getattr(module, leaf, None)
    if not isinstance(parameter, Tensor):
        return
    former = parameter.data

    def restore() -> None:
        parameter.data = former

    parameter.data = change(former)
    stack.callback(restore)


def write_checkpoint(network: Any, tokenizer: Any | None, folder: Path, name: str) -> None:
    """Write a network of transformers, and its tokenizer, as a checkpoint; whole, or nothing is there.

    Raises:
        ArgumentValueError: Something is there already.
        CheckpointError: A network that is not transformers' own.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArgumentValueError(expected("folder", "a folder that is not there yet, or is empty", folder))
    if not hasattr(network, "save_pretrained"):
        raise CheckpointError(expected(name, "a network that transformers can save", type(network).__name__))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made, silenced():
        place = Path(made) / folder.name
        with refusing(lambda words: CheckpointError(expected(name, "a network that can be saved", words))):
            network.save_pretrained(place)
            if tokenizer is not None and hasattr(tokenizer, "save_pretrained"):
                tokenizer.save_pretrained(place)
        place.replace(folder)
