"""How a network's passes are watched and changed; everything is as it was after each ``with`` block."""
