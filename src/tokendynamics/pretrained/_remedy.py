"""The remedy of `positional` 5.2 for a network that is trained already: ``W_li + λ A`` beside rotary positions."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained._live import live_checkpoint
from tokendynamics.pretrained._remedied_network import (
    Kind,
    LambdaColumns,
    attach,
    check_implementation,
    detach,
    fitting_columns,
    remedies_in,
)
from tokendynamics.pretrained.encoding import Origin
from tokendynamics.pretrained.loading import Model, as_checkpoint


@typed_arguments
def apply_remedy(model: Model, kind: str | Path = "lambda-diagonal", *, start: float = 0.0) -> nn.Module:
    """Add λI or λA to the query-key matrices of a pretrained network, ready for fine-tuning; a live network is changed.

    The logits of all heads of a layer together get ``x_l^T λA x_i``, λ ≤ 0 and A diagonal and positive, where x is what
    queries and keys are projected from; head h of H has the h-th slice of ⌈dim/H⌉ features. At λ = 0, where training
    starts by default, the output is the network's own to rounding, and the gradient of λ that from below.

    Every attention gets a submodule `remedy`, whose parameters are the network's as well: ``λ = −|size|``, and for
    "lambda-diagonal" ``A = diag(exp(log_diagonal))``. `save_pretrained` writes them with the others;
    `tokendynamics.load` of that folder, or this function with it as `kind`, brings them back. The cache of a generation
    keeps x beside the keys.

    Args:
        model: A causal network of transformers with rotary positions, with its language head or without: a live one,
            or anything else that `load` takes, or a checkpoint, whose network is then copied.
        kind: "lambda-identity", "lambda-diagonal", or the folder that a network with a remedy was saved in.
        start: λ at the start of a new one, 0 or below.

    Returns:
        The network: the live one itself.

    Raises:
        ArgumentTypeError: No network.
        ArgumentValueError: Another kind, a λ above 0, or a network that has a remedy.
        CheckpointError: A network that the remedy is not for, layer and cause are named; a folder without one.

    Source: `positional` 5.2 and Table 3.

    >>> from transformers import AutoModelForCausalLM, LlamaConfig
    >>> sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    >>> model = apply_remedy(AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=50, **sizes)), start=-0.5)
    >>> remedy_coefficients(model).shape, float(remedy_coefficients(model).mean())
    (torch.Size([2, 32]), -0.5)
    """
    new = str(kind) in get_args(Kind)
    if not new and not Path(kind).is_dir():
        wanted = f"{', '.join(map(repr, get_args(Kind)))} or the folder of a network that has a remedy"
        raise ArgumentValueError("kind", wanted, shown(str(kind)))
    if not -math.inf < start <= 0:
        raise ArgumentValueError("start", "a λ of 0 or below", start)
    if isinstance(model, nn.Module):
        network = model
    else:
        network = copy.deepcopy(as_checkpoint(model, "model").whole).requires_grad_(True)
    if remedies_in(network):
        raise ArgumentValueError("model", "a network without a remedy", "one that has it", "remove_remedy first")
    check_implementation(network)
    checkpoint = live_checkpoint(network, Origin(type(network).__name__))
    chosen = cast(Kind, str(kind)) if new else Path(kind)
    layout, dim = checkpoint.layout, checkpoint.architecture.dim
    attach(network, fitting_columns(checkpoint.model, layout, dim, checkpoint.name, chosen, start), checkpoint.name)
    return network


@typed_arguments
def remove_remedy(model: nn.Module) -> nn.Module:
    """Take the remedy off a network, and return it: it computes what its own weights say, bit for bit.

    Raises:
        ArgumentValueError: A network without a remedy.

    >>> from transformers import AutoModelForCausalLM, LlamaConfig
    >>> sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    >>> model = apply_remedy(AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=50, **sizes)))
    >>> hasattr(remove_remedy(model).model.layers[0].self_attn, "remedy")
    False
    """
    _remedies(model)
    detach(model)
    return model


@typed_arguments
def remedy_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a network's remedy, for an optimizer's group with a learning rate of its own.

    Raises:
        ArgumentValueError: A network without a remedy.

    >>> from transformers import AutoModelForCausalLM, LlamaConfig
    >>> sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    >>> model = apply_remedy(AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=50, **sizes)))
    >>> sum(parameter.numel() for parameter in remedy_parameters(model))
    66
    """
    return [parameter for columns in _remedies(model) for parameter in columns.parameters()]


@typed_arguments
@torch.no_grad()
def remedy_coefficients(model: nn.Module) -> Float[Tensor, "layer dim"]:
    """Return the diagonal of λI or λA in every layer.

    Raises:
        ArgumentValueError: A network without a remedy.

    >>> from transformers import AutoModelForCausalLM, LlamaConfig
    >>> sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    >>> model = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=50, **sizes))
    >>> remedy_coefficients(apply_remedy(model, "lambda-identity", start=-0.5)).unique().tolist()
    [-0.5]
    """
    return torch.stack([columns.coefficients() for columns in _remedies(model)])


def _remedies(model: nn.Module) -> list[LambdaColumns]:
    remedies = [columns for _, columns in remedies_in(model)]
    if not remedies:
        raise ArgumentValueError("model", "a network with a remedy", "one without", "see apply_remedy")
    return remedies
