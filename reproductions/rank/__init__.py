"""Figure of *Attention is not all you need* (`rank`): rank collapse with and without residual connection."""
