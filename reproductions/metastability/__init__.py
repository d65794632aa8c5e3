"""Figures of *Dynamic metastability in the self-attention model* (`metastability`), and of clusters on the circle."""
