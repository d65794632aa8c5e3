"""What a network says after k passes, and what each layer would say: the states read by its own language head."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from tokendynamics.diagnosis.deepening.repeated_passes import pass_numbers, pass_options
from tokendynamics.diagnosis.tracing.prompts import checkpoint_for
from tokendynamics.numerics import ArgumentTypeError, CheckpointError
from tokendynamics.numerics.arguments import as_choice, as_count
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables import repetition
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.edits.language_head import LanguageHead
from tokendynamics.pretrained.edits.repeated_stack import PassOptions, RepeatedStack
from tokendynamics.pretrained.edits.variant import VariantLike
from tokendynamics.pretrained.encoding import pieces_of
from tokendynamics.pretrained.forward_arguments import are_token_ids
from tokendynamics.pretrained.inputs import prepared
from tokendynamics.pretrained.loading import Model
from tokendynamics.pretrained.not_finite import check_finite_state, check_logits, check_states
from tokendynamics.pretrained.packs import Pack
from tokendynamics.provenance.progress import Progress, reporting, tracked

_MEASURES = ("distinct_1", "distinct_2", "entropy", "longest_run")


@typed_arguments
def decode(
    ckpt: Model,
    text: Any,
    passes: Sequence[int] = (0, 1, 5),
    *,
    how: str = "positions",
    new_tokens: int = 20,
    weights: str = "fixed",
    feed_back: str = "after_norm",
    positions: str = "once",
    variant: VariantLike = None,
    seed: int = 0,
    truncate: bool = False,
    progress: bool | Progress = False,
) -> xr.Dataset:
    """Read what a network says after k passes through its blocks, and how repetitive that is (`asymptotic` Table 3).

    Args:
        ckpt: Anything `tokendynamics.load` takes, or a checkpoint already loaded, with its language head.
        text: One prompt: a text or token ids.
        passes: After which passes; 1 is the network as it is, 0 its embedding.
        how: "positions": the likeliest next token at every position, side by side; "generate": `new_tokens` likeliest
            tokens one after the other, each appended to the text and passed k times again.
        new_tokens: See `how`.
        weights: See `tokendynamics.passes`, also for the others.
        feed_back: Likewise.
        positions: Likewise.
        variant: Likewise.
        seed: Likewise.
        truncate: Likewise.
        progress: Likewise.

    Returns:
        Dataset, dims (pass, token): ``token_id`` (int64), ``token_text`` and ``prediction_entropy`` (of the
        network's own distribution over the next token, nats). By pass: ``decoded``, the text; ``distinct_1`` and
        ``distinct_2`` (different tokens and pairs over all), ``entropy`` (of the distribution of the tokens, nats) and
        ``longest_run``.

    Raises:
        ArgumentTypeError, ArgumentValueError: A wrong argument, several prompts, or a text longer than the positions.
        CheckpointError: No language head, a network whose tokens see later ones, or a state or a logit that is not
            finite: layer and number format are named.

    >>> decode("random:gpt2-tiny", "one fish", passes=(0, 1)).token_id.shape
    (2, 8)
    """
    ckpt = checkpoint_for(ckpt, text)
    steps = pass_numbers(passes, "passes", 0, empty=False)
    chosen = as_choice(how, "how", ("positions", "generate"))
    count = as_count(new_tokens, "new_tokens")
    changes = ckpt.variant if variant is None else variant
    repeated = pass_options(weights, feed_back, positions, changes, None, seed)
    pack = one_prompt(ckpt, text, truncate, predicted=True)
    with reporting(progress) as report:
        if chosen == "positions":
            rows = _at_positions(ckpt, pack, steps, repeated, report)
        else:
            generating = tracked(steps, report, "generating")
            rows = {step: _generated(ckpt, pack, step, count, repeated) for step in generating}
    return _as_dataset(ckpt, rows, chosen, repeated)


def one_prompt(ckpt: Checkpoint, text: Any, truncate: bool, *, predicted: bool = False) -> Pack:
    """Return the forward pass of one prompt of words; with `predicted` of a network that predicts the next token.

    Raises:
        ArgumentTypeError: Several prompts, or none of words.
        CheckpointError: No language head.
    """
    if isinstance(text, dict) or (isinstance(text, list | tuple) and not are_token_ids(text)):
        raise ArgumentTypeError("text", "one prompt: a text or token ids", type(text).__name__)
    pack = ckpt.one_pack([prepared(ckpt, text, truncate=truncate, argument="text").inputs])
    ckpt.decoder(pack)  # refuses before the work begins
    if predicted and not ckpt.causal:
        wanted = "a network with a language head that predicts the next token"
        raise CheckpointError(ckpt.name, wanted, "one whose tokens see later ones")
    return pack


def _at_positions(
    ckpt: Checkpoint, pack: Pack, steps: Sequence[int], how: PassOptions, report: Progress
) -> dict[int, tuple[Tensor, Tensor]]:
    predictions: dict[int, tuple[Tensor, Tensor]] = {}
    last = max(steps)
    with RepeatedStack(ckpt, [pack], how) as stack:
        for number in range(last + 1):
            report(number, last + 1, "decoding")
            if number:
                stack.advance()
            if number in steps:
                with ckpt.decoder(pack) as decoder:
                    predictions[number] = likeliest(_logits(ckpt, pack, stack, decoder, number)[0])
        report(last + 1, last + 1, "decoding")
    return {step: predictions[step] for step in steps}


def _logits(
    ckpt: Checkpoint, pack: Pack, stack: RepeatedStack, decoder: LanguageHead, number: int
) -> Float[Tensor, "prompt token vocabulary"]:
    """Return the logits after a number of passes.

    Raises:
        CheckpointError: A state or a logit is not finite.
    """
    normed = decoder.normed(stack.states) if stack.normed is None else stack.normed
    if number and not bool(normed.isfinite().all()):
        for states in ckpt.states_in_packs([pack.arguments]):  # names the layer, if a single pass overflows already
            check_states(ckpt, states)
    check_finite_state(ckpt, normed, f"pass {number}", "states")
    logits = decoder.logits(normed)
    check_logits(ckpt, logits, f"the language head after pass {number}")
    return logits


def _generated(
    ckpt: Checkpoint, pack: Pack, step: int, count: int, how: PassOptions
) -> tuple[Int[Tensor, " new"], Float[Tensor, " new"]]:
    ids, generated = ckpt.decoder(pack).ids, []
    for _ in range(count):
        with ExitStack() as stack:
            longer = ckpt.one_pack([ids])
            repeated = stack.enter_context(RepeatedStack(ckpt, [longer], how))
            for _ in range(step):
                repeated.advance()
            decoder = stack.enter_context(ckpt.decoder(longer))
            best, entropy = likeliest(_logits(ckpt, longer, repeated, decoder, step)[0, -1:])
        generated.append((best, entropy))
        ids = torch.cat([ids, best[None].to(ids)], dim=1)
    return torch.cat([best for best, _ in generated]), torch.cat([entropy for _, entropy in generated])


def likeliest(logits: Float[Tensor, "token vocabulary"]) -> tuple[Int[Tensor, " token"], Float[Tensor, " token"]]:
    """Return the likeliest token at each position, and the entropy of the whole distribution there, in nats.

    >>> best, entropy = likeliest(torch.tensor([[0.0, 0.0, 0.0, -1e9]]))
    >>> int(best[0]), round(float(entropy[0].exp()), 6)
    (0, 3.0)
    """
    log_p = logits.double().log_softmax(dim=-1)
    return logits.argmax(dim=-1).cpu(), torch.special.entr(log_p.exp()).sum(dim=-1).cpu()


def _as_dataset(ckpt: Checkpoint, rows: dict[int, tuple[Tensor, Tensor]], how: str, options: PassOptions) -> xr.Dataset:
    ids, tokenizer = [best.tolist() for best, _ in rows.values()], ckpt.tokenizer
    texts = [" ".join(map(str, tokens)) if tokenizer is None else str(tokenizer.decode(tokens)) for tokens in ids]
    repetitions = [repetition(tokens) for tokens in ids]
    variables: dict[str, Any] = {
        "token_id": (("pass", "token"), np.array(ids)),
        "token_text": (("pass", "token"), np.array([pieces_of(list(tokens), ckpt.tokenizer) for tokens in ids])),
        "prediction_entropy": (("pass", "token"), np.array([entropy.numpy() for _, entropy in rows.values()])),
        "decoded": (("pass",), np.array(texts)),
    }
    variables |= {
        name: (("pass",), np.array([getattr(measures, name) for measures in repetitions])) for name in _MEASURES
    }
    attrs = {"model": ckpt.name, "how": how, "weights": options.weights, "feed_back": options.feed_back}
    attrs |= {"positions": options.positions, "variant": options.variant.words}
    return xr.Dataset(variables, coords={"pass": list(rows), "token": np.arange(len(ids[0]))}, attrs=attrs)


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
    >>> lens = logit_lens(load("random:gpt2-tiny:0"), [464, 3290, 318])
    >>> lens["agreement"].values[-1].item(), lens["token_id"].shape
    (1.0, (7, 3))
    """
    ckpt = checkpoint_for(ckpt, text)
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
    return _lens_dataset(ckpt, pack, torch.stack(ids), torch.stack(entropies), log_ps)


def _lens_dataset(
    ckpt: Checkpoint, pack: Pack, ids: torch.Tensor, entropies: torch.Tensor, log_ps: list[torch.Tensor]
) -> xr.Dataset:
    last = log_ps[-1]
    gaps = [torch.where(last.isneginf(), 0.0, last - log_p) for log_p in log_ps]  # a token that the head excludes
    divergence = torch.stack([(last.exp() * gap).sum(dim=-1) for gap in gaps])
    agrees = (ids == ids[-1]).numpy()
    grid = ("layer", "token")
    variables = {
        "token_id": (grid, ids.numpy()),
        "token_text": (grid, np.array([pieces_of(row, ckpt.tokenizer) for row in ids.tolist()])),
        "prediction_entropy": (grid, entropies.numpy()),
        "agrees": (grid, agrees),
        "divergence": (grid, divergence.double().numpy()),
        "agreement": (("layer",), agrees.mean(axis=1)),
        "read_text": (
            ("token",),
            np.array(pieces_of(ckpt.decoder(pack).ids[0].tolist(), ckpt.tokenizer)),
        ),
    }
    coords = {"layer": np.arange(len(ids)), "token": np.arange(ids.shape[1])}
    attrs = {"model": ckpt.name, "read_by": "the final norm and the language head of the network"}
    return xr.Dataset(variables, coords=coords, attrs=attrs)
