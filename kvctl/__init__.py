"""The kvctl command: see which cached prefixes can really be used, and why the others cannot.

Importing this package imports nothing else; an engine loads :mod:`kvctl.plugin` through it.
"""

__version__ = "0.1.0"
