"""One-layer transformers on pairs of adjacent categories: built by hand, learned, and taken apart by measurement."""
