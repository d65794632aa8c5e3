"""The same architecture with the weights it begins its training with: what a trained network is measured against."""

from __future__ import annotations

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained._checkpoint import Checkpoint
from tokendynamics.pretrained._fresh_weights import of_std
from tokendynamics.pretrained._initialization import initial_laws
from tokendynamics.pretrained._origin import Origin
from tokendynamics.pretrained.discovery.of_configuration import discover_in
from tokendynamics.pretrained.network import Network, empty_network, shapes_of
from tokendynamics.pretrained.sources._untrained import DrawnTensors


def untrained_twin(ckpt: Checkpoint, seed: int = 0, std: float | None = None) -> Checkpoint:
    """Return a checkpoint of the same configuration and tokenizer with weights drawn as transformers initialises them.

    Args:
        ckpt: The network; of a live one its configuration is read.
        seed: Of the draw; the same for the same seed, wherever it is drawn.
        std: Standard deviation of every matrix, with mean zero, instead of what transformers gives each.

    Raises:
        CheckpointError: A network without a transformers configuration, or one that its configuration does not build.

    >>> from tokendynamics.pretrained import load
    >>> untrained_twin(load("random:distilgpt2:5"), seed=1).random_seed
    1
    """
    if ckpt.config is None:
        advice = "pass the untrained network itself as another model"
        raise CheckpointError(expected("baseline", "a model with a transformers configuration", ckpt.name, advice))
    name = f"{ckpt.name} untrained" if std is None else f"{ckpt.name} with matrices drawn from N(0, {std:g}^2)"
    network = empty_network(ckpt.config)
    shapes, laws = shapes_of(network), initial_laws(network)
    weights = DrawnTensors(shapes, laws if std is None else of_std(laws, shapes, std), seed)
    discovery = discover_in(ckpt.config, network, None, name)
    origin = Origin(name, random_seed=seed, given_tokenizer=ckpt.tokenizer or ckpt.image_processor)
    own = getattr(network, "config", ckpt.config)
    return Checkpoint(origin, Network(network, own, ckpt.dtype, ckpt.device, weights), discovery)
