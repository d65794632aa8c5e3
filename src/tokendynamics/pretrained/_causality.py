"""Whether a network's states depend on later tokens, measured where its attention is not read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained.discovery._outputs import states_given
from tokendynamics.pretrained.network import evaluating, without_cache
from tokendynamics.pretrained.other_libraries import refusing, silenced

_TOKENS = 8


def ignores_later_tokens(network: nn.Module, vocabulary: int, last_block: str, name: str) -> bool:
    """Tell whether the states of all tokens but the last stay the same when the last token is another one.

    Args:
        network: Ready to run; it reads token ids.
        vocabulary: Number of its token ids.
        last_block: Name of the module whose output is compared.
        name: What a message calls it.

    Raises:
        CheckpointError: It does not run.
    """
    states: list[Tensor] = []

    def keep(module: nn.Module, positional: Any, output: Any) -> None:
        del module, positional
        given = states_given(output)
        if given is not None:
            states.append(given.detach().clone())

    first = torch.randint(0, vocabulary, (1, _TOKENS), generator=torch.Generator().manual_seed(1))
    second = first.clone()
    second[0, -1] = (first[0, -1] + 1) % vocabulary
    device = next(network.parameters()).device
    with evaluating(network), without_cache(network), silenced(), torch.no_grad():
        handle = network.get_submodule(last_block).register_forward_hook(keep)
        try:
            with refusing(lambda words: CheckpointError(expected(name, "a network that runs", words))):
                for ids in (first, second):
                    network(input_ids=ids.to(device))
        finally:
            handle.remove()
    # A block that runs again (shared weights) leaves one state for each of its runs: the last one counts.
    before, after = states[len(states) // 2 - 1], states[-1]
    before, after = (each.reshape(-1, each.shape[-1])[: _TOKENS - 1].double() for each in (before, after))
    scale = float(before.abs().max())
    return float((after - before).abs().max()) <= 100 * torch.finfo(states[0].dtype).eps * scale
