"""The reference engine as the probe sees it.

Invariant: standard library only; the engine's objects are read through their attributes and torch is never imported.
"""
