"""Reads states as the network's language head reads its last ones: what stands before the logits is part of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained._filling import put
from tokendynamics.pretrained.discovery._calls import Hooks
from tokendynamics.pretrained.discovery.layout import Layout
from tokendynamics.pretrained.edits._pass import arguments_for, check_one_stream
from tokendynamics.pretrained.length_dependence import as_before
from tokendynamics.pretrained.network import copied, quietly, submodule, tensors_given
from tokendynamics.pretrained.other_libraries import refusing, silenced
from tokendynamics.pretrained.packs import Pack

_HEADED = ("MODEL_FOR_CAUSAL_LM_MAPPING", "MODEL_FOR_MASKED_LM_MAPPING", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING")

_FEWEST_TO_SCORE = 2
"""Tokens below which no score stands before the last place."""

_ROUNDING = 100
"""Rounding units, of the largest score, by which scores before a changed token may differ."""


def empty_with_head(config: Any) -> Any | None:
    """Return the empty network with a language head that `from_pretrained` would build; None where there is no class.

    The class that the configuration names comes first, since one base model may have several heads.

    Args:
        config: Of a transformers network.
    """
    import transformers

    kinds = [getattr(transformers, mapping).get(type(config), None) for mapping in _HEADED]
    kinds = [kind for kind in kinds if isinstance(kind, type)]
    stated = [str(name) for name in getattr(config, "architectures", None) or ()]
    kinds.sort(key=lambda kind: kind.__name__ not in stated)  # stable: otherwise the order of the mappings
    if not kinds:
        return None
    with silenced(), torch.device("meta"):
        return kinds[0](copy.deepcopy(config))


def base_of(whole: Any) -> tuple[str, Any]:
    """Return what the base model of a network with a head is called inside it, with a dot after it, and the module.

    Some classes state another prefix than they use (Llama 4). Encoder-decoders have no base model of their own: their
    parts stand beside the head, under no prefix.
    """
    prefix = whole.base_model_prefix
    base = getattr(whole, prefix, None)
    if isinstance(base, nn.Module):
        return f"{prefix}.", base
    inner = [(name, child) for name, child in whole.named_children() if hasattr(child, "base_model_prefix")]
    return (f"{inner[0][0]}.", inner[0][1]) if len(inner) == 1 else ("", whole)


def with_language_head(model: Any, stored: Callable[[nn.Module, str], Tensor | None]) -> nn.Module | None:
    """Put the head of its configuration on a base model, whose modules are shared and stay as they are.

    transformers' own class is used, since what stands between the last state and the logits (a bias, a scale, a soft
    cap) is part of it. As in `from_pretrained`, a head that the configuration ties to the embedding is tied only where
    the file does not hold another matrix for it.

    Args:
        model: A base model of transformers, ready to run.
        stored: Returns a tensor of the whole network, which is empty, by its name; None where it is not stored.

    Returns:
        The whole network; None where the configuration has none, or a tensor of the head is neither tied nor stored.
    """
    config: Any = getattr(model, "config", None)
    whole = None if config is None else empty_with_head(config)
    if whole is None:
        return None
    prefix, base = base_of(whole)
    if not prefix or type(base) is not type(model):
        return None
    tied = {id(parameter): name for name, parameter in base.named_parameters(remove_duplicate=False)}
    by_name = dict(model.named_parameters(remove_duplicate=False))
    first = next(model.parameters())
    untied = False
    for name, parameter in list(whole.named_parameters(remove_duplicate=False)):
        if name.startswith(prefix):
            continue
        values, shared = stored(whole, name), by_name.get(tied.get(id(parameter), ""))
        if values is not None:
            values = values.detach().to(first)
        if shared is not None and (values is None or torch.equal(values, shared)):
            values = shared
        untied = untied or (shared is not None and values is not shared)
        if values is None or values.shape != parameter.shape:
            return None
        put(whole, name, values.detach())
    setattr(whole, prefix.removesuffix("."), model)
    for configuration in (whole.config, whole.config.get_text_config()) if untied else ():
        if getattr(configuration, "tie_word_embeddings", None):  # the embedding and the head are two matrices
            configuration.tie_word_embeddings = False
    return None if any(buffer.is_meta for buffer in whole.buffers()) else whole.eval()


def logits_of(output: Any, ids: Tensor, vocabulary: int) -> Tensor | None:
    """Return the logits among what a network gave, shape (prompt, token, vocabulary); None where there are none.

    >>> logits_of((torch.zeros(1, 3, 7),), torch.zeros(1, 3), vocabulary=7).shape
    torch.Size([1, 3, 7])
    """
    named = getattr(output, "logits", None)
    # A classifier's logits have other sizes, and so have states.
    several = tensors_given(output if named is None else named)
    return next((tensor for tensor in several if tensor.shape == (*ids.shape, vocabulary)), None)


def scored_ids(network: nn.Module, arguments: Mapping[str, Any]) -> int | None:
    """Return how many token ids a network scores at each place of its input, where nothing states it; None for none.

    A number for every row of a table that reads the ids is the score of each id, where the scores before the last place
    do not depend on the id there: the next one is predicted.

    Args:
        network: Any.
        arguments: Of its forward pass, for two inputs.
    """
    with quietly(network), torch.no_grad():
        ids, output, rows = _given_and_rows(network, arguments)
        for count in rows:
            scores, changed = logits_of(output, ids, count), ids.clone()
            changed[:, -1] = (ids[:, -1] + 1) % count
            other = {name: changed if value is ids else value for name, value in arguments.items()}
            with as_before(network):
                again = logits_of(network(**copied(other)), ids, count)
            if scores is not None and again is not None:
                size = float(scores.abs().max())
                gap = float((again - scores)[:, :-1].abs().max())
                return count if gap <= _ROUNDING * torch.finfo(scores.dtype).eps * size else None
    return None


def _given_and_rows(network: nn.Module, arguments: Mapping[str, Any]) -> tuple[Tensor, Any, list[int]]:
    """Return ids of several tokens, what a network gives for them, and how many rows the tables have that read them.

    Without such ids there are no rows.
    """
    ids, rows = Pack((0, 1), dict(arguments)).ids, list[int]()
    if ids is None or ids.shape[1] < _FEWEST_TO_SCORE:
        return torch.empty(0), None, rows

    def note(table: nn.Module, given: tuple[Any, ...]) -> None:
        if given and isinstance(given[0], Tensor) and given[0].shape == ids.shape and bool((given[0] == ids).all()):
            rows.append(int(cast("nn.Embedding", table).num_embeddings))

    with Hooks() as hooks, as_before(network):
        for table in (module for module in network.modules() if isinstance(module, nn.Embedding)):
            hooks.callback(table.register_forward_pre_hook(note).remove)
        output = network(**copied(arguments))
    return ids, output, list(dict.fromkeys(rows))


def scores_last_place(network: nn.Module, arguments: Mapping[str, Any]) -> bool:
    """Tell whether a network scores each row of its table of ids once for each input, as after the last token alone.

    Args:
        network: Any.
        arguments: Of its forward pass, for two inputs.
    """
    with quietly(network), torch.no_grad():
        ids, output, rows = _given_and_rows(network, arguments)
    return any(_last_scores(output, len(ids), count) is not None for count in rows)


def _last_scores(output: Any, inputs: int, vocabulary: int) -> Tensor | None:
    """Return the scores (input, vocabulary) after the last token among what a network gave; None where there are none.

    >>> _last_scores((torch.zeros(2, 1, 7), None), 2, 7).shape
    torch.Size([2, 7])
    """
    shapes = ((inputs, vocabulary), (inputs, 1, vocabulary))
    scores = next((tensor for tensor in tensors_given(output) if tensor.shape in shapes), None)
    return None if scores is None else scores.reshape(inputs, vocabulary)


class EachPlace(nn.Module):
    """A network whose head scores what follows each token, where by itself it scores the place after the last alone.

    Attributes:
        network: The one that runs; its modules are shared.

    Args:
        network: Its head reads the last of the states that another module gives.
        end: Name of that module.
        head: Name of the module that reads one state for each input; here it reads all of them.
    """

    def __init__(self, network: nn.Module, end: str, head: str) -> None:
        super().__init__()
        self.network, self._end, self._head = network, end, head
        if hasattr(network, "config"):
            self.config: Any = network.config

    def forward(self, **arguments: Any) -> Any:
        """Run the network with all states before its head."""
        kept: list[Tensor] = []

        def of_all(last: Tensor) -> Tensor | None:
            states = kept[-1] if kept else None
            return states if states is not None and _is_last_of(states, last) else None

        with Hooks() as hooks:
            hooks.after(submodule(self.network, self._end), kept.append)
            hooks.before(self.network.get_submodule(self._head), of_all)
            return self.network(**arguments)


def _is_last_of(states: Tensor, last: Tensor) -> bool:
    """Return whether some states are the last one of each input, with an axis of one place or without."""
    if states.ndim != 3 or last.shape not in ((len(states), states.shape[-1]), (len(states), 1, states.shape[-1])):
        return False
    return torch.equal(last.reshape(len(states), -1), states[:, -1])


def scoring_each_place(network: nn.Module, end: str, arguments: Mapping[str, Any]) -> EachPlace | None:
    """Return a network that scores each place, for one that scores the last; None where that is not possible.

    Its scores at a place are those that the network gives for the tokens up to there: tried at some places.

    Args:
        network: Any of which no state depends on a later token.
        end: Name of the module that gives the last states.
        arguments: Of its forward pass, for two inputs.
    """
    if not scores_last_place(network, arguments):
        return None
    kept, heads = list[Tensor](), list[str]()

    def note(name: str, states: Tensor) -> None:
        if kept and _is_last_of(kept[-1], states):
            heads.append(name)

    with Hooks() as hooks, quietly(network), torch.no_grad(), as_before(network):
        hooks.after(submodule(network, end), kept.append)
        for name, module in network.named_modules():
            if next(module.children(), None) is None:
                hooks.before(module, partial(note, name))
        network(**copied(arguments))
    if not heads:
        return None
    whole = EachPlace(network, end, heads[0])
    return whole if _scores_as_prefixes(whole, arguments) else None


def _scores_as_prefixes(whole: EachPlace, arguments: Mapping[str, Any]) -> bool:
    """Whether the scores at a place are the last ones that the network itself gives for the tokens up to there."""
    ids, vocabulary = Pack((0, 1), dict(arguments)).ids, scored_ids(whole, arguments)
    if ids is None or vocabulary is None:
        return False
    with quietly(whole), torch.no_grad():
        try:
            with as_before(whole):
                scores = logits_of(whole(**copied(arguments)), ids, vocabulary)
            for place in range(0, ids.shape[1], 1 + ids.shape[1] // _PREFIXES):
                prefix = {
                    name: value[:, : place + 1] if isinstance(value, Tensor) and value.shape[:2] == ids.shape else value
                    for name, value in arguments.items()
                }
                with as_before(whole):
                    last = _last_scores(whole.network(**copied(prefix)), len(ids), vocabulary)
                if scores is None or last is None or not torch.allclose(last, scores[:, place], 1e-3, _OF_SCORES):
                    return False
        except Exception:  # what a network of the user's own raises for other numbers of tokens
            return False
    return True


_PREFIXES = 8
"""Prefixes that are tried at most."""

_OF_SCORES = 1e-4
"""Difference of two scores, beside a thousandth of them, that is rounding."""


class LanguageHead(Hooks):
    """The head of a network, for a ``with`` block; the network runs once for each reading, its last states replaced.

    Attributes:
        ids: The token ids of the pass.

    Args:
        whole: The network with its head on; it holds `network`'s modules.
        network: The one that the layout is of.
        layout: Of it.
        pack: Token ids of as many tokens as the states will have.
        vocabulary: How many token ids it scores.
        name: What a message calls it.

    Raises:
        CheckpointError: Its blocks hand on several streams of states, or the pass has no token ids.
    """

    def __init__(
        self, whole: nn.Module, network: nn.Module, layout: Layout, pack: Pack, vocabulary: int, name: str
    ) -> None:
        super().__init__()
        check_one_stream(layout, name)
        self._whole, self._layout, self._name, self._vocabulary = whole, layout, name, vocabulary
        self._network, self._end = network, submodule(network, layout.end)
        self._arguments = arguments_for(whole, pack.arguments)
        if pack.ids is None:
            raise CheckpointError(no_head(name))
        self.ids = pack.ids
        self._states: Tensor | None = None

    def _prepare(self) -> None:
        self.enter_all(quietly(self._whole), torch.no_grad())
        if self._layout.final_norm is not None:
            self.after(self._end, self._replaced)
        else:  # the last states may be a sum with what its last module gives
            last = submodule(self._network, self._layout.blocks[-1])
            self.after_block(last, self._layout.layers[-1].sites, self._replaced)

    def normed(self, states: Float[Tensor, "prompt token dim"]) -> Float[Tensor, "prompt token dim"]:
        """Return states after the final norm; unchanged without one."""
        return states if self._layout.final_norm is None else self._end(states)

    def logits(self, normed: Float[Tensor, "prompt place dim"]) -> Float[Tensor, "prompt token vocabulary"]:
        """Return the logits of states that have been through the final norm, of the tokens or of all places.

        Raises:
            CheckpointError: The network gives no logits.
        """

        def refusal(words: str) -> CheckpointError:
            return CheckpointError(self._name, "a network whose head reads states", words)

        self._states = normed
        try:
            with refusing(refusal), as_before(self._whole):
                output = self._whole(**copied(self._arguments))
        finally:
            self._states = None
        logits = logits_of(output, self.ids, self._vocabulary)
        if logits is None:
            raise CheckpointError(no_head(self._name))
        return logits

    def _replaced(self, former: Tensor) -> Tensor | None:
        if self._states is None:
            return None
        states, first = self._states.to(former), self._layout.first_token
        if first is None or former.ndim != states.ndim or former.shape[1] <= states.shape[1]:
            return states.reshape(former.shape)
        placed = former.clone()  # the network's own tokens stand around those of the input
        placed[:, first : first + states.shape[1]] = states
        return placed


def no_head(name: str) -> str:
    """Return the message for a network that cannot be decoded."""
    return expected(name, "a network with a language head, to decode its states", "one without", "load the whole model")
