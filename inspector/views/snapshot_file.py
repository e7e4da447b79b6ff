"""A snapshot file: what it holds, how it was taken, whether it may be handed on.

Invariant: the file was checked before this is called. Read by ``kvctl snapshot``.
"""

from agent.model.snapshot import Snapshot

from ..format import count, plural, size
from ..hints import quoted
from ..report import Cell, Facts, Report, Tone
from ..store import FileInfo
from .common import capture_line, engine_line, head, notes


def snapshot_file(info: FileInfo, snapshot: Snapshot) -> Report:
    """Return what a file holds."""
    pages = None if snapshot.pages is None else snapshot.pages.count
    parts = [
        f"page table of {count(pages)} pages" if pages is not None else "no page table",
        "no requests" if snapshot.requests is None else plural(len(snapshot.requests), "request"),
        "no decisions" if snapshot.decisions is None else plural(len(snapshot.decisions), "decision"),
        plural(len(snapshot.geometry.groups), "group"),
        "evidence for the gates" if _evidence(snapshot) else "no evidence for most gates (--no-evidence)",
    ]
    private: str | Cell = "keys and request ids were replaced: it can be handed on"
    if info.revealed:
        private = Cell("it holds raw hashes and request ids: they can confirm a guessed prompt", Tone.WARN)
    return Report(
        kind="snapshot",
        data={
            **head(snapshot),
            "file": {
                "path": str(info.path),
                "bytes": info.bytes,
                "format": info.format,
                "kvctl": info.kvctl or None,
                "written": info.written,
                "revealed": info.revealed,
                "columns": dict(info.columns),
            },
            "pages": pages,
            "requests": None if snapshot.requests is None else len(snapshot.requests),
            "decisions": None if snapshot.decisions is None else len(snapshot.decisions),
            "groups": len(snapshot.geometry.groups),
            "evidence": _evidence(snapshot),
        },
        names=[str(info.path)],
        blocks=[
            Facts(
                facts=[
                    ("FILE", [f"{info.path}, {size(info.bytes)}, format {info.format}, every byte checked"]),
                    ("ENGINE", [engine_line(snapshot)]),
                    ("READ", [capture_line(snapshot)]),
                    ("HOLDS", [", ".join(parts)]),
                    ("PRIVACY", [private]),
                    ("LOOK", [f"kvctl inspect --snapshot {quoted(str(info.path), 'FILE')}"]),
                ]
            )
        ],
        notes=notes(snapshot),
    )


def _evidence(snapshot: Snapshot) -> bool:
    """Whether it holds what the gates ask engine and workers for: any file holds some of the evidence."""
    found = snapshot.evidence
    return found is not None and (found.tensors is not None or found.lookups is not None)
