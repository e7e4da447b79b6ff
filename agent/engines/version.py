"""Which kvctl an adapter belongs to.

Invariant: reads the metadata of the installation, nothing else. Called by the adapters when they describe an engine.
"""


def agent_version() -> str:
    """Return the installed version; empty where kvctl is not installed as a distribution."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - costs time, needed once

    try:
        return version("kvctl")
    except PackageNotFoundError:
        return ""
