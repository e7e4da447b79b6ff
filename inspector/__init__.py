"""Understanding a snapshot: occupancy, prefix tree, explanations, differences, files, and the dashboard.

Invariant: works on :class:`agent.model.snapshot.Snapshot` values only, live or loaded; never talks to an engine.
"""
