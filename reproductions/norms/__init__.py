"""Figure of *Normalization in attention dynamics* (`norms`): the speed of every scheme of normalization."""
