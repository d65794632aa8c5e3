"""The share of unknown tokens in the prompts, and doubled BOS tokens: both distort similarity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import xarray as xr
from torch import Tensor

from tokendynamics.diagnosis._noun import noun_in
from tokendynamics.pretrained.inputs import Prepared
from tokendynamics.words import Finding, percent

MANY_UNKNOWN = 0.1
"""Share of unknown tokens above which a finding warns that they make the texts look alike."""


def token_conditions(tokenizer: Any | None, given: Sequence[Prepared]) -> dict[str, float | int]:
    """Return attributes on the tokens of a trace; empty without a tokenizer or without token ids.

    These are ``unknown_token_share``, the share of unknown tokens among all but the other special tokens, and
    ``doubled_bos``, the number of prompts that begin with two BOS tokens.

    Args:
        tokenizer: The network's own.
        given: The prompts as arguments of the forward pass.
    """
    ids = [each.inputs["input_ids"].flatten() for each in given if isinstance(each.inputs.get("input_ids"), Tensor)]
    if tokenizer is None or not ids:
        return {}
    special = set(getattr(tokenizer, "all_special_ids", None) or ())
    unknown, bos = _unknown_id(tokenizer), getattr(tokenizer, "bos_token_id", None)
    counted = [number for each in ids for number in each.tolist() if number == unknown or number not in special]
    doubled = sum(bos is not None and each[:2].tolist() == [bos, bos] for each in ids)
    share = counted.count(unknown) / len(counted) if counted and unknown is not None else 0.0
    return {"unknown_token_share": float(share), "doubled_bos": int(doubled)}


def _unknown_id(tokenizer: Any) -> int | None:
    """Return the id of the unknown token; None where it doubles as another special token."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    others = (getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad", "sep", "cls", "mask"))
    return None if unknown in others else unknown


def tokens_in_words(attrs: Mapping[Any, Any]) -> str:
    """Describe the tokens of a trace, for its conditions.

    >>> tokens_in_words({"tokenization": "own", "unknown_token_share": 0.25, "doubled_bos": 0})
    "the model's own tokenizer; 25 % of the tokens are unknown to it"
    """
    if attrs["tokenization"] != "own":
        return str(attrs["tokenization"])
    words = "the model's own tokenizer"
    share, doubled = float(attrs.get("unknown_token_share", 0.0)), int(attrs.get("doubled_bos", 0))
    words += f"; {percent(share)} of the tokens are unknown to it" if share > 0 else ""
    return words + (f"; {doubled} of the prompts {_begin(doubled)} with two BOS tokens" if doubled else "")


def token_finding(trace: xr.Dataset) -> Finding | None:
    """Return a finding on many unknown tokens or doubled BOS tokens; None if there are neither."""
    share, doubled = float(trace.attrs.get("unknown_token_share", 0.0)), int(trace.attrs.get("doubled_bos", 0))
    noun, sentences = noun_in(trace), []
    if share > MANY_UNKNOWN:
        sentences.append(
            f"The tokenizer does not know {percent(share)} of the tokens and maps them to one id, so the {noun}s look "
            f"more alike than they are. Use {noun}s of the kind that the network was trained on."
        )
    if doubled:
        sentences.append(
            f"{doubled} of {trace.sizes['prompt']} {noun}s {_begin(doubled)} with two BOS tokens, which networks are "
            "not trained on. Remove the one in the text, or the one that the tokenizer adds."
        )
    if not sentences:
        return None
    return Finding(" ".join(sentences), "shares", {"unknown_token_share": share, "doubled_bos": doubled})


def _begin(count: int) -> str:
    return "begins" if count == 1 else "begin"
