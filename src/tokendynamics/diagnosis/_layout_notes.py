"""What a reader must know about a network's layout beside every number: layers without attention, a half run alone."""

from __future__ import annotations

from tokendynamics.pretrained import Checkpoint

_DECODER_ALONE = (
    "the decoder ran without its encoder: its cross-attention was left out, so these are not the states "
    "of the whole network"
)


def notes_of(ckpt: Checkpoint) -> dict[str, str]:
    """Return the attribute ``notes`` of a result; empty where there is nothing to say.

    Args:
        ckpt: What was measured.
    """
    notes = []
    missing = [number for number, layer in enumerate(ckpt.layout.layers, 1) if not layer.attends]
    if missing:
        some = f"layers {', '.join(map(str, missing))} have" if missing[1:] else f"layer {missing[0]} has"
        notes.append(f"{some} no attention: what concerns attention is undefined there")
    if ckpt.layout.decoder_alone:
        notes.append(_DECODER_ALONE)
    if ckpt.layout.streams > 1:
        notes.append(
            f"each block hands on {ckpt.layout.streams} streams of states: these are the states that the network "
            "calls its hidden states, which its attention does not write to"
        )
    return {"notes": "; ".join(notes)} if notes else {}
