"""Argument checks, typed errors, tolerances and seeding: what every other layer stands on."""
