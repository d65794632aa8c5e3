"""Figure of *Phase transitions for the noisy transformer model in arbitrary dimension* (`noise`)."""
