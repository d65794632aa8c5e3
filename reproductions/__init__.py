"""The papers' figures and numerical remarks, one file each, with what was printed and what comes out here.

Every module has ``reproduce(...) -> Record``, which computes and compares, and ``draw(record) -> Figure``.
``python -m reproductions --out folder`` runs them all.
"""
