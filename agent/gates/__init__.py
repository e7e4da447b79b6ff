"""The four gates and the red lines: a snapshot goes in, findings come out.

Invariant: a gate reads values and nothing else; it never talks to an engine. A code that could not be looked at
abstains with the reason, it never passes. Outside the engine only (numpy).
"""
