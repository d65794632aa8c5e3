"""Notes on a network's layout that qualify every number: layers without attention, a decoder without its encoder."""

from __future__ import annotations

from tokendynamics.pretrained import Checkpoint
from tokendynamics.words import in_layers

_DECODER_ALONE = (
    "the decoder ran without its encoder and without cross-attention, so these are not the states of the whole network"
)


def notes_of(ckpt: Checkpoint) -> dict[str, str]:
    """Return the attribute ``notes`` of a result; empty if there are none.

    Args:
        ckpt: The measured network.
    """
    notes = []
    missing = [number for number, layer in enumerate(ckpt.layout.layers, 1) if not layer.attends]
    if missing:
        have = "have" if missing[1:] else "has"
        notes.append(f"{in_layers(missing)} {have} no attention, so measures of attention are undefined there")
    if ckpt.layout.decoder_alone:
        notes.append(_DECODER_ALONE)
    if ckpt.layout.streams > 1:
        notes.append(
            f"each block hands on {ckpt.layout.streams} streams of states: these are the states that the network "
            "calls its hidden states, which its attention does not write to"
        )
    return {"notes": "; ".join(notes)} if notes else {}
