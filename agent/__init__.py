"""Everything that speaks with an engine: domain model, resume rules, feed, wire, client, gates, and the probe.

Invariant: modules below import each other relatively only. In an engine process this package is loaded by path under
the private name ``_kvctl_agent`` because ``agent`` is a common name (see :mod:`kvctl.plugin`).
"""
