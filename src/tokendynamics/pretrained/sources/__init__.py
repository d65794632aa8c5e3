"""Where checkpoints come from: folders, files, wheels, the hub, or a draw."""
