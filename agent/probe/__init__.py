"""The probe: the part of kvctl that runs inside the engine.

Invariant: standard library only, no work at import, never raises into its host, never waits for a lock of the host.
"""
