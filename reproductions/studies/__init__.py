"""Studies of the papers' remarks over many random systems: how often, how fast, how well known.

Each is a module with the names of its designs (`SPECS`), `measure`, which runs them and counts, and `conclude`, which
says in sentences what the counts say. ``python -m reproductions.studies NAME`` runs one; records and pages of
runs at full size are kept in docs/studies.
"""
