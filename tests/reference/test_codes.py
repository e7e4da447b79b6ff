"""The table of codes is true of the reference engine: what is looked at, and why the rest is not."""

import os
from pathlib import Path

import pytest

from agent.fingerprint import pin_path, read, save
from agent.gates.blind import REFERENCE
from agent.gates.catalogue import CATALOGUE
from agent.reference.engine import Engine
from agent.reference.loop import demo_config
from agent.session import open_target
from tests.reference.test_adapter import Host
from tests.support.code_table import Seen
from tests.support.reference import MODEL
from tests.support.validating import validate
from tests.support.waiting import wait_for


def test_what_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under traffic every code but those of the table is looked at, and no reason is shown that it does not have."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    host = Host(Engine(MODEL, demo_config(str(tmp_path / "disk"))))
    assert host.probe.start()
    host.thread.start()
    seen = Seen()
    try:
        with open_target(os.getpid()) as session:
            seen.add(validate(session)[1])
            save(read(session), pin_path(session.info.name))

            def all_looked_at() -> bool:
                seen.add(validate(session)[1])
                return seen.blind() <= REFERENCE.keys()

            wait_for(all_looked_at, f"{len(CATALOGUE) - len(REFERENCE)} codes to be looked at", deadline_s=180.0)
    finally:
        host.stop.set()
        host.thread.join()
        host.probe.stop()
        host.engine.close()
    assert seen.agrees(REFERENCE), seen.blind() ^ REFERENCE.keys()
    assert seen.unlisted(REFERENCE) == {}
