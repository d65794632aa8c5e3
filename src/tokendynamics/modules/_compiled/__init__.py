"""Attention and its gradients as loops that are compiled for the processor at hand, in memory linear in the tokens."""
