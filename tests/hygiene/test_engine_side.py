"""What runs inside an engine: standard library only, under a private name, silent until it is asked for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hygiene.conftest import ROOT, run

IN_ENGINE = ("model", "probe", "engines")
IN_ENGINE_FILES = ("wire", "feedformat", "errors", "paths", "decisionformat", "explainedformat")

LOAD_AND_LIST = """
import importlib, importlib.util, json, pkgutil, sys
root = sys.argv[1]
spec = importlib.util.spec_from_file_location(
    "_kvctl_agent", root + "/agent/__init__.py", submodule_search_locations=[root + "/agent"])
package = importlib.util.module_from_spec(spec)
before = set(sys.modules)
sys.modules["_kvctl_agent"] = package
spec.loader.exec_module(package)
imported = []
for name in sys.argv[2].split(","):
    module = importlib.import_module("_kvctl_agent." + name)
    imported.append(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), module.__name__ + "."):
        importlib.import_module(found.name)
        imported.append(found.name)
new = set(sys.modules) - before
foreign = sorted(
    name for name in new
    if name.split(".")[0] not in sys.stdlib_module_names and not name.startswith("_kvctl_agent"))
print(json.dumps({"foreign": foreign, "imported": imported, "agent": "agent" in sys.modules}))
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """Load every in-engine module in a fresh interpreter under the private name."""
    names = [name for name in IN_ENGINE if (ROOT / "agent" / name / "__init__.py").is_file()]
    names += [name for name in IN_ENGINE_FILES if (ROOT / "agent" / f"{name}.py").is_file()]
    answer: dict[str, list[str]] = json.loads(
        run([sys.executable, "-I", "-c", LOAD_AND_LIST, str(ROOT), ",".join(names)])
    )
    return answer


def test_standard_library_only(loaded: dict[str, list[str]]) -> None:
    """Importing all in-engine modules brings in nothing beside the standard library and themselves."""
    assert loaded["foreign"] == []


def test_all_parts_were_loaded(loaded: dict[str, list[str]]) -> None:
    """The check above looked at every part that the architecture puts into the engine."""
    assert {*IN_ENGINE, *IN_ENGINE_FILES} <= set(loaded["imported"])


def test_the_name_agent_is_not_taken(loaded: dict[str, list[str]]) -> None:
    """The engine's own ``agent`` stays free: nothing is registered under that name."""
    assert not loaded["agent"]


HOSTILE = "raise RuntimeError('this is the serving script\\'s own agent')\n"


def _plugin(folder: Path, agent: str, code: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{folder}:{ROOT}", "KVCTL_RUNTIME_DIR": str(folder)}
    if agent:
        environment["KVCTL_AGENT"] = agent
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


def test_loads_beside_a_hostile_agent(tmp_path: Path) -> None:
    """A serving script's own ``agent.py`` on the path is neither used nor disturbed."""
    for name in ("agent.py", "inspector.py", "exporters.py"):
        (tmp_path / name).write_text(HOSTILE, encoding="utf-8")
    code = "import sys, kvctl.plugin as p; m = p.load_agent(); print(m.__name__, 'agent' in sys.modules, m.__file__)"
    done = _plugin(tmp_path, "1", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["_kvctl_agent", "False", str(ROOT / "agent" / "__init__.py")]


def test_inactive_without_the_variable(tmp_path: Path) -> None:
    """Without ``KVCTL_AGENT=1`` the entry point loads nothing, prints nothing and starts no thread."""
    code = (
        "import sys, threading, kvctl.plugin as p; before = set(sys.modules); p.register_vllm(); "
        "print(sorted(set(sys.modules) - before), threading.active_count())"
    )
    done = _plugin(tmp_path, "", code)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[] 1", "")


@pytest.mark.parametrize("value", ["", "0", "1"])
def test_without_an_engine_it_does_no_harm(tmp_path: Path, value: str) -> None:
    """The entry point returns quietly in a process in which there is no vLLM at all."""
    (tmp_path / "vllm.py").write_text("raise ImportError('broken')\n", encoding="utf-8")
    done = _plugin(tmp_path, value, "import kvctl.plugin as p; p.register_vllm(); print('lives')")
    assert (done.returncode, done.stdout.strip()) == (0, "lives"), done.stderr
