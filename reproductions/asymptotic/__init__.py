"""Figures 1–5 and Remark 4.2 of `asymptotic`."""
