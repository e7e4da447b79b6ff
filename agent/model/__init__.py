"""Frozen domain values: the ground floor.

Invariant: standard library only, no work at import, no I/O. Everybody may import it.
"""
