r"""
Watch a training run, and see a collapse come
=============================================

*At the end you can watch the tokens of a network while it trains, recognize a collapse that the loss does not show, and
check that a remedy works.*

The network is a small encoder that learns one vector for each text.
"""

import matplotlib.pyplot as plt
import torch
from transformers import BertConfig, BertModel

import tokendynamics as td
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.modules.language_model import byte_tokenizer

tokenizer = byte_tokenizer()
texts = list(default_texts().values())
ids = torch.tensor([tokenizer(text)["input_ids"][:60] for text in texts])

config = BertConfig(
    vocab_size=len(tokenizer),
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=96,
    max_position_embeddings=256,
)


def vectors(model):
    """Return one unit vector for each text: the mean over its tokens."""
    return torch.nn.functional.normalize(
        model(input_ids=ids).last_hidden_state.mean(1), dim=-1
    )


# %%
# A loss with a flaw
# ------------------
#
# Two passes of the same text, with different dropout, should give the same vector. The first loss asks for that
# and for nothing else.


def attract(first, second):
    return (1 - (first * second).sum(-1)).mean()


def train(loss_of, steps=60):
    """Train a new network; measure its tokens every 20 steps."""
    torch.manual_seed(0)
    model = BertModel(config, add_pooling_layer=False).train()
    monitor = td.Monitor(texts, every=20, tokenizer=tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        loss = loss_of(vectors(model), vectors(model))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(model)  # in a Trainer: callbacks=[monitor]
        losses.append(loss.item())
    return model.eval(), monitor, losses


model, monitor, losses = train(attract)
print(f"loss: {losses[0]:.3f} at the first step, {losses[-1]:.5f} at the last")

# %%
# The loss falls to almost nothing, as it should. The monitor says what the network did to reach that:

for line in monitor.changes:
    print(line)
state = monitor.dataset.state.isel(step=-1, layer=-1).item()
print("after the last layer:", state)
assert state in ("one point", "anisotropic")

# %%
# All texts have become one vector, which satisfies the loss perfectly and is useless. A diagnosis names the share
# of a token's direction that all texts have in common:

diagnosis = td.diagnose(
    td.load(model, tokenizer=tokenizer), texts, levers=False, heads=False, baseline=None
)
print(dict(diagnosis.verdict.lines)["What"])
assert diagnosis.verdict.state == state

# %%
# How early was it visible?
# -------------------------
#
# The common share over the steps, after each layer. The first measurement that shows it is at step 20, when
# training could still have been stopped at a third of its cost.

print(monitor.dataset.share_common.sel(layer=3).to_series().round(3))
assert monitor.dataset.share_common.sel(step=20, layer=3) > 0.9

# %%
# The remedy
# ----------
#
# The second loss also asks that *different* texts have different vectors.


def attract_and_repel(first, second):
    return torch.nn.functional.cross_entropy(
        10 * first @ second.T, torch.arange(len(first))
    )


runs = {"attract": monitor}
model, monitor, losses = train(attract_and_repel)
runs["attract and repel"] = monitor
print("after the last layer:", monitor.dataset.state.isel(step=-1, layer=-1).item())
print(monitor.dataset.share_common.sel(layer=3).to_series().round(3))
assert monitor.dataset.state.isel(step=-1, layer=-1) == "spread"

# %%
# Both runs: the common share of directions after the last layer.

figure, axes = plt.subplots(figsize=(6, 3))
for name, watched in runs.items():
    watched.dataset.share_common.sel(layer=3).plot(ax=axes, marker="o", label=name)
axes.set(
    title="", xlabel="step", ylabel="common share of a direction", ylim=(-0.02, 1.02)
)
axes.legend()

# %%
# `monitor.report("watched.html")` draws all measures over steps and layers as a page.
#
# Exercises
# ---------
#
# 1. Use `every=5`. At which step does the common share first exceed 0.9?
# 2. Replace the temperature 10 of the second loss by 1. Do the texts still stay apart?
# 3. Train with `attract` and without dropout (`model.eval()`). What does the loss do, and what does the monitor say?
