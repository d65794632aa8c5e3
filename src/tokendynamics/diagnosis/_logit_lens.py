"""What each layer would say: its states read by the final norm and the language head."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xarray as xr

from tokendynamics.diagnosis._decode import likeliest, one_prompt, words_of
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.loading import Model, as_checkpoint
from tokendynamics.pretrained.not_finite import check_logits, check_states
from tokendynamics.pretrained.packs import Pack


@typed_arguments
def logit_lens(ckpt: Model, text: Any, *, truncate: bool = False) -> xr.Dataset:
    """Read the states after each layer with the final norm and the language head (the logit lens).

    Args:
        ckpt: Anything `tokendynamics.load` takes, or a checkpoint already loaded, with its language head. Only
            its states, final norm and head are used: its attention need not be known, and a masked-language head
            predicts the token at each place.
        text: One prompt: a text or token ids.
        truncate: Whether a prompt longer than the context is cut; otherwise it is refused.

    Returns:
        Dataset with dims ``layer`` (0 … L, 0 the input of the first block) and ``token``: ``token_id`` and
        ``token_text``, the likeliest next token, or the likeliest one at each place;
        ``prediction_entropy`` of the whole distribution, in nats; ``agrees``,
        whether it is that of the last layer; ``divergence``, of the last layer's distribution from this one's
        (Kullback–Leibler, nats). By layer: ``agreement``, the share of tokens that agree. ``read_text``: the prompt's
        own tokens.

    Raises:
        ArgumentTypeError, ArgumentValueError: Several prompts, or one longer than the positions.
        CheckpointError: No language head; a state or a logit that is not finite, layer and number format are named.

    >>> from tokendynamics.pretrained import load
    >>> lens = logit_lens(load("random:distilgpt2:0"), [464, 3290, 318])
    >>> lens["agreement"].values[-1].item(), lens["token_id"].shape
    (1.0, (7, 3))
    """
    ckpt = as_checkpoint(ckpt)
    pack = one_prompt(ckpt, text, truncate)
    (states,) = ckpt.states_in_packs([pack.arguments])
    check_states(ckpt, states)
    ids, entropies, log_ps = [], [], []
    with ckpt.as_varied(), ckpt.decoder(pack) as decoder:
        for number, layer in enumerate(states.feed_forward):
            logits = decoder.logits(decoder.normed(layer))[0]
            check_logits(ckpt, logits, f"the language head on layer {number}")
            best, entropy = likeliest(logits)
            ids.append(best)
            entropies.append(entropy)
            log_ps.append(logits.float().log_softmax(dim=-1).cpu())
    return _as_dataset(ckpt, pack, torch.stack(ids), torch.stack(entropies), log_ps)


def _as_dataset(
    ckpt: Checkpoint, pack: Pack, ids: torch.Tensor, entropies: torch.Tensor, log_ps: list[torch.Tensor]
) -> xr.Dataset:
    last = log_ps[-1]
    gaps = [torch.where(last.isneginf(), 0.0, last - each) for each in log_ps]  # a token that the head excludes
    divergence = torch.stack([(last.exp() * gap).sum(dim=-1) for gap in gaps])
    agrees = (ids == ids[-1]).numpy()
    grid = ("layer", "token")
    variables = {
        "token_id": (grid, ids.numpy()),
        "token_text": (grid, np.array([words_of(ckpt, row) for row in ids.tolist()])),
        "prediction_entropy": (grid, entropies.numpy()),
        "agrees": (grid, agrees),
        "divergence": (grid, divergence.double().numpy()),
        "agreement": (("layer",), agrees.mean(axis=1)),
        "read_text": (("token",), np.array(words_of(ckpt, pack.arguments["input_ids"][0].tolist()))),
    }
    coords = {"layer": np.arange(len(ids)), "token": np.arange(ids.shape[1])}
    attrs = {"model": ckpt.name, "read_by": "the final norm and the language head of the network"}
    return xr.Dataset(variables, coords=coords, attrs=attrs)
