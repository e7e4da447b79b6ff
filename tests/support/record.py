"""Record the snapshot that the README opens: a real vLLM server, real traffic, every decision explained.

Invariant: nothing in the file is made up; keys and request ids are replaced as in every saved file. It holds what the
gates ask for, too, so that ``kvctl validate`` has something to look at. Run by hand beside vLLM,
``python -m tests.support.record tests/data/gemma3.kvsnap``, when the file format or the model changes.

The story: a service whose requests share long prefixes. Repeats hit; a branch that ends elsewhere does not, because no
window was kept there; other traffic then pushes window pages out while the full history stays.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.collect import MAX_LOOKUPS, collect
from agent.fingerprint import kept
from agent.model.snapshot import Level
from agent.session import Session
from inspector.store import save
from inspector.views.prefixes import prefixes
from kvctl import __version__
from tests.support import engine_env
from tests.support.models import write_model
from tests.support.prompts import prompt, sibling
from tests.support.server import Server, serve
from tests.support.waiting import wait_for

ARGUMENTS = ("--block-size", "32", "--num-gpu-blocks-override", "360", "--max-model-len", "4096", "--max-num-seqs", "8")


def story(server: Server, session: Session) -> None:
    """Send the traffic; every step follows the feed."""
    tools, terms = prompt("a long system prompt with tools", 1500), prompt("terms and conditions", 900)

    def send(*prompts: list[int]) -> None:
        for ids in prompts:
            server.http.complete(ids, tokens=8)
            session.poll()

    send(tools, tools, sibling(tools, 1200, "one branch", 60), sibling(tools, 1200, "another branch", 80))
    send(terms, sibling(terms, 700, "a question", 40), sibling(terms, 700, "a second question", 50), terms)
    for number in range(60):
        send(prompt(f"other traffic {number}", 120))
        if any(row["usable_tokens"] < 1472 <= row["tokens"] for row in rows(session)):
            break
    send(tools, tools, sibling(tools, 1200, "a third branch", 60), prompt("short", 20))


def rows(session: Session) -> list[dict[str, Any]]:
    """Return the cached prefixes; reading does not touch their pages."""
    listed: list[dict[str, Any]] = prefixes(session.snapshot(), limit=1000).data["prefixes"]
    return listed


def main(path: Path) -> None:
    """Record into ``path`` while two requests run."""
    with engine_env.short_folder("kvctl-") as folder:
        model = write_model(folder, "gemma3")
        with serve(model, *ARGUMENTS) as server, server.session() as session:
            session.follow(Level.REFERENCES)
            story(server, session)
            with ThreadPoolExecutor(2) as pool:
                running = [pool.submit(server.http.complete, prompt(f"long {n}", 300), tokens=500) for n in range(2)]
                wait_for(lambda: len(session.overview().requests or ()) == 2, "two requests to run")
                session.poll()
                found = collect(session, session.snapshot(free_list=True, lookups=MAX_LOOKUPS))
                found = kept(session, found)
                # The model lies in a folder that was made for the recording: its last part says which it is.
                named = replace(found.engine, model=Path(found.engine.model).name)
                save(replace(found, engine=named), path, version=__version__)
                for answer in running:
                    answer.result(timeout=300)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
