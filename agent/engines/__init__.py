"""Engine adapters: the parts of the probe that know one engine. They run inside it.

Invariant: standard library only; an engine's own modules are imported inside functions.
"""
