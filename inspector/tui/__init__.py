"""The dashboard: the views of the inspector on a screen that refreshes itself.

Invariant: what is said comes from ``inspector.views`` and is laid out by ``inspector.text``; this package adds places
and keys, never another way to say things. A thread reads the engine and posts messages; only the app touches widgets.
Started by ``kvctl top``.
"""
