"""What monitoring sees: one catalogue of metrics, Prometheus and OpenTelemetry as its two faces.

Invariant: an exporter only reads; a value that was not read is an absent series, never 0. Called by ``kvctl export``.
"""
