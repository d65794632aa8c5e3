"""The adaptive softmax against a reference by hand, alone and as the head of a decoder."""

import numpy as np
import peft
import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Trainer, TrainingArguments

from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig
from tokendynamics.modules.language_model._model import AdaptiveSoftmax

SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def made(words: int = 20, cutoffs=(5, 6, 13), dim: int = 7) -> AdaptiveSoftmax:
    torch.manual_seed(0)
    head = AdaptiveSoftmax(dim, words, cutoffs).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
    return head


def model(**choices) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(LanguageModelConfig(**{**SMALL, "cutoffs": [10, 30], **choices})).eval()


def ids(*shape: int, words: int = 50) -> torch.Tensor:
    return torch.randint(0, words, shape, generator=torch.Generator().manual_seed(3))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def by_hand(head: AdaptiveSoftmax, x: np.ndarray, cutoffs) -> np.ndarray:
    weight, bias = head.weight.detach().numpy(), head.bias.detach().numpy()
    of_words = x @ weight.T + bias
    of_clusters = x @ head.clusters.weight.detach().numpy().T + head.clusters.bias.detach().numpy()
    first = log_softmax(np.concatenate([of_words[:, : cutoffs[0]], of_clusters], -1))
    parts = [first[:, : cutoffs[0]]]
    for number, (start, end) in enumerate(zip(cutoffs, [*cutoffs[1:], len(weight)], strict=True)):
        parts.append(first[:, [cutoffs[0] + number]] + log_softmax(of_words[:, start:end]))
    return np.concatenate(parts, -1)


@pytest.mark.parametrize("cutoffs", [(5, 6, 13), (1,), (19,)])
def test_a_word_is_as_likely_as_its_cluster_times_the_word_in_it(cutoffs):
    head = made(cutoffs=cutoffs)
    x = torch.randn(9, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    log_p = head(x).detach()
    np.testing.assert_allclose(log_p.numpy(), by_hand(head, x.numpy(), cutoffs), atol=1e-12)
    np.testing.assert_allclose(log_p.exp().sum(-1).numpy(), 1.0, atol=1e-12)


def test_the_loss_and_its_gradient_are_those_of_all_log_probabilities():
    head = made()
    x = torch.randn(40, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    words = torch.arange(40) % 20
    fast = torch.autograd.grad(head.nats(x, words).square().sum(), [x, *head.parameters()])
    slow = torch.autograd.grad(head(x).gather(-1, words[:, None]).square().sum(), [x, *head.parameters()])
    torch.testing.assert_close(head.nats(x, words), -head(x).gather(-1, words[:, None])[:, 0], rtol=0, atol=1e-12)
    for actual, reference in zip(fast, slow, strict=True):
        torch.testing.assert_close(actual, reference, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("tied", [False, True])
def test_the_loss_of_a_decoder_is_the_mean_nats_of_the_next_word(tied):
    network = model(tie_word_embeddings=tied)
    read = ids(2, 9)
    labels = read.clone()
    labels[0, 3] = -100
    log_p = network(read).logits.detach().double()
    nats = [-float(log_p[row, at, read[row, at + 1]]) for row in range(2) for at in range(8) if (row, at + 1) != (0, 3)]
    result = network(read, labels=labels)
    assert result.loss.item() == pytest.approx(np.mean(nats), abs=1e-6)
    assert result.logits is None
    np.testing.assert_allclose(log_p.exp().sum(-1).numpy(), 1.0, atol=1e-5)


def test_the_last_logits_alone_are_those_of_all():
    network = model()
    read = ids(2, 9)
    torch.testing.assert_close(network(read, logits_to_keep=2).logits, network(read).logits[:, -2:], rtol=0, atol=1e-6)


@pytest.mark.parametrize("cutoffs", [None, [10, 30]])
def test_a_shared_table_is_one_and_starts_with_states_and_logits_of_size_one(cutoffs):
    network = model(hidden_size=64, tie_word_embeddings=True, cutoffs=cutoffs)
    assert network.lm_head.weight is network.model.embed_tokens.weight
    read = ids(8, 40)
    assert float(network.model.embed_tokens(read).detach().std()) == pytest.approx(1.0, abs=0.1)
    states = network.model(read).last_hidden_state.detach()
    logits = states @ network.lm_head.weight.detach().T
    other = torch.ones_like(logits).scatter(-1, read[..., None], 0) > 0  # its own row is in a token's state
    assert float(logits[other].std()) == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("tied", [False, True])
def test_adapters_of_the_clusters_are_in_the_loss_and_in_the_logits(tied):
    config = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    adapted, words = peft.get_peft_model(model(tie_word_embeddings=tied), config).eval(), ids(3, 9)
    loss, logits = adapted(words, labels=words).loss, adapted(words).logits
    expected = nn.functional.nll_loss(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())
    torch.testing.assert_close(loss, expected)
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(merged(words).logits, logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(merged(words, labels=words).loss, loss)


def test_masks_of_the_head_hold_in_training():
    network, words = model().train(), ids(3, 9)
    parts = [(part, name) for part in network.lm_head.modules() for name in ("weight", "bias")]
    for part, name in parts:
        prune.random_unstructured(part, name, 0.3)
    optimizer = torch.optim.SGD(network.parameters(), 0.5)
    for _ in range(2):
        optimizer.zero_grad()
        network(words, labels=words).loss.backward()
        optimizer.step()
    masked = network(words, labels=words).loss
    for part, name in parts:
        prune.remove(part, name)
    assert torch.equal(network(words, labels=words).loss, masked)


@pytest.mark.filterwarnings("ignore")  # deprecated in favour of another package
def test_a_quantised_network_keeps_about_its_loss():
    network, words = model(), ids(3, 9)
    quantised = torch.ao.quantization.quantize_dynamic(network, {nn.Linear}, dtype=torch.qint8)
    assert type(quantised.lm_head.clusters) is not nn.Linear
    torch.testing.assert_close(
        quantised(words, labels=words).loss, network(words, labels=words).loss, rtol=0.05, atol=0
    )


def test_mixed_precision_keeps_the_loss():
    network = model(norms="none")
    read = ids(4, 20)
    exact = network(read, labels=read).loss.item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        computed = network(read, labels=read).loss
    assert computed.dtype == torch.float32
    assert computed.item() == pytest.approx(exact, rel=0.02)


class _Largest(TorchDispatchMode):
    """Notes the most entries of any tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        self.entries = max([self.entries, *(leave.numel() for leave in tree_leaves(made) if torch.is_tensor(leave))])
        return made


def test_a_vocabulary_of_words_is_taught_without_logits_of_all_words():
    words, tokens = 267_735, 2 * 40
    network = model(vocab_size=words, hidden_size=4, num_attention_heads=1, cutoffs=[20_000, 40_000, 200_000])
    read = (words ** torch.rand(2, 41, generator=torch.Generator().manual_seed(2))).long()  # as frequent as words are
    assert [((read >= start) & (read < end)).sum() > 0 for start, end in network.lm_head.ranges] == [True] * 3
    with _Largest() as largest:
        network(read, labels=read).loss.backward()
    assert largest.entries < tokens * words / 4
    assert largest.entries >= tokens * 20_003  # of the frequent words: the count sees what is made
    weight = network.lm_head.weight.grad
    assert weight is not None
    assert bool(weight.isfinite().all())


@pytest.mark.slow
def test_trainer_accumulates_and_evaluates_as_one_batch(tmp_path):
    rows = [{"input_ids": row, "labels": row} for row in ids(4, 9)]

    def trained(batch: int, accumulation: int) -> tuple[LanguageModel, float]:
        network = model()
        arguments = TrainingArguments(
            str(tmp_path), max_steps=1, per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation,
            per_device_eval_batch_size=2, prediction_loss_only=True, optim="sgd", learning_rate=1.0, max_grad_norm=0.0,
            lr_scheduler_type="constant", save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(network, arguments, train_dataset=rows, eval_dataset=rows)
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        return network, before

    (whole, loss), (parts, _) = trained(4, 1), trained(2, 2)
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(dict(parts.named_parameters())[name], parameter, rtol=0, atol=1e-5)
    read = torch.stack([row["input_ids"] for row in rows])
    assert loss == pytest.approx(model()(read, labels=read).loss.item(), abs=1e-5)
