"""Views: each a function of a snapshot that returns a report.

Invariant: a view never looks at where the snapshot came from, formats nothing and cleans nothing: that is the
renderer's job.
"""
