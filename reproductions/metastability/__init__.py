"""Figure of *Dynamic metastability in the self-attention model* (`metastability`): how long caps hold their tokens."""
