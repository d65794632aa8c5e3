"""Four ways to run one problem; `simulate` chooses, and all give the same answer."""
