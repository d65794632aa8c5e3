"""Pages of training: one run, a study of many, and what a monitor saw of any run."""
