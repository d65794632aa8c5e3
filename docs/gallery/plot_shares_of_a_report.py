"""
A figure of a report
====================

`tokendynamics.report.chart` gives the shares of a token's direction over depth as the report of a diagnosis draws them.
The other figures of a report are part of its page, which `diagnosis.report` writes: each with its numbers as CSV.
"""

import tempfile
from pathlib import Path

import torch
from transformers import BertConfig, BertModel

import tokendynamics as td
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.modules.language_model import byte_tokenizer
from tokendynamics.report import chart

tokenizer = byte_tokenizer()
torch.manual_seed(0)
config = BertConfig(
    vocab_size=len(tokenizer),
    hidden_size=48,
    num_hidden_layers=12,
    num_attention_heads=4,
    intermediate_size=96,
    max_position_embeddings=256,
)
network = BertModel(config).eval()
model = td.load(network, tokenizer=tokenizer)
texts = [text[:60] for text in default_texts().values()]
diagnosis = td.diagnose(
    model, texts, levers=False, heads=False, directions=False, baseline=None
)
print(dict(diagnosis.verdict.lines)["What"])

# %%
# The chart is one of Altair, which shows it in a notebook and writes it as SVG or PNG:

path = Path(tempfile.mkdtemp()) / "shares.svg"
chart(diagnosis).save(path)
path
