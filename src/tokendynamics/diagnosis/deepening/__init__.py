"""A network made deeper by running its blocks on their own output: passes, variants side by side, decoded text."""
