"""The worked examples, claims and figures of `logical`."""
