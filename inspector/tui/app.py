"""The dashboard itself: hears what the threads tell and turns keys into wishes.

Invariant: it never waits: readings come from the feed's thread, everything that takes time is a job. Started by
``kvctl top``.
"""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widgets import Input

from agent.errors import KvctlError, UsageError

from ..format import when
from ..hints import aim_report
from ..report import Prose, Report
from ..selector import Selector, SelectorKind, parse
from ..views.prefix import prefix
from . import jobs
from .feed import Feed
from .frame import PANES, Frame
from .help import help_report
from .leaving import Leaving
from .link import Link
from .messages import Arriving, Drawn, Failed, Judged, Lost, Planned, Remark, Told
from .picture import Pane
from .screens.decisions import Decisions
from .screens.dialogs import Confirm, Reader
from .screens.findings import Findings
from .screens.groups import Groups
from .screens.prefixes import Prefixes
from .widgets.rows import Rows

INTERVALS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class Dashboard(Frame):
    """``kvctl top``.

    Args:
        link: What to show.
        to_json: Writes a report as the command line's ``-o json`` does.
        interval_s: Seconds between two readings.
        timeout_s: For the page table and for each call.
        version: Of kvctl, for saved files.
        target: Options that choose what is shown, for commands that a text names.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, f"open('{view.pane.value}')", view.title, show=False) for key, view in PANES.items()),
        Binding("slash", "filter", show=False),
        Binding("escape", "leave", show=False),
        Binding("question_mark", "help", show=False),
        Binding("space", "pause", show=False),
        Binding("plus,equals_sign", "slower(-1)", show=False),
        Binding("minus", "slower(1)", show=False),
        Binding("v", "validate", show=False),
        Binding("x", "invalidate", show=False),
        Binding("s", "save", show=False),
        Binding("y", "json", show=False),
        Binding("q", "quit", show=False),
    ]

    def __init__(
        self,
        link: Link,
        *,
        to_json: Callable[[Report], str],
        interval_s: float,
        timeout_s: float,
        version: str = "",
        target: str = "",
    ) -> None:
        super().__init__(interval_s)
        self._target = target
        self.to_json = to_json
        self._version = version
        self._feed = Feed(link, self.post_message, interval_s, target)
        self._jobs = jobs.Jobs(link, self.post_message, timeout_s)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.leaving = Leaving(self)
        """To be entered by whoever runs the app."""

    def on_load(self) -> None:
        """Say where it can be reached from other threads; the terminal is not taken yet."""
        self.loop = asyncio.get_running_loop()

    def on_mount(self) -> None:
        """Begin to read."""
        self.begin()
        self._feed.start()
        # After a stop the terminal comes back with an empty screen, of which only changes would be drawn.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))

    def on_unmount(self) -> None:
        """End the reading thread."""
        self._feed.stop()

    def _handle_exception(self, error: Exception) -> None:
        """End for an error that nobody caught, and remember it: whoever runs the app says it, as any other error."""
        self.leaving.failed(error)
        super()._handle_exception(error)

    def _print_error_renderables(self) -> None:
        """Print nothing but to developers: a page of traceback says nothing to an operator."""
        if self._exit_renderables:
            self.leaving.failed(RuntimeError("the terminal could not be read"))
        if not os.environ.get("KVCTL_DEBUG"):
            self._exit_renderables.clear()
        super()._print_error_renderables()

    # What the threads tell.

    @on(Drawn)
    def _drawn(self, message: Drawn) -> None:
        self.picture, self.lost, self.arriving = message.picture, None, message.arriving
        self.draw()

    @on(Arriving)
    def _arrives(self, message: Arriving) -> None:
        self.arriving = message.ratio
        self.bars()

    @on(Lost)
    def _gone(self, message: Lost) -> None:
        self.lost, self.lost_at, self.arriving = message, time.monotonic(), None
        self.bars()

    @on(Judged)
    def _judged(self, message: Judged) -> None:
        self.busy = None
        self.main(Findings).judged(message.report)
        self.action_open(Pane.FINDINGS.value)

    @on(Planned)
    def _planned(self, message: Planned) -> None:
        self.busy = None

        def answered(yes: bool | None) -> None:
            if yes:
                self._start("invalidating", jobs.carry_out(message.plan))

        self.say("")
        self.push_screen(Confirm(message.plan, message.report, allowed=message.allowed), answered)

    @on(Told)
    def _told(self, message: Told) -> None:
        self.busy = None
        self.say("")
        self.push_screen(Reader(message.title, aim_report(message.report, self._target).blocks, message.report))

    @on(Remark)
    def _remarked(self, message: Remark) -> None:
        self.busy = None
        self.say(message.text)

    @on(Failed)
    def _failed(self, message: Failed) -> None:
        self.busy = None
        self.complain(message.error)

    # What the keys wish.

    def action_open(self, name: str) -> None:
        """Open a screen."""
        self.complain(None)
        self.panes.current = name
        self._feed.want(Pane(name))
        self.view.focus_first()
        if isinstance(self.view, Groups) and (chosen := self.main(Decisions).picked) is not None:
            self.view.chosen = chosen
        self.draw()

    def action_leave(self) -> None:
        """Close the prompt, or take a message away."""
        self.close_prompt()
        self.complain(None)

    def action_filter(self) -> None:
        """Ask for a filter."""
        if not self.view.filters:
            self.say("nothing to filter here: screens 3 and 5 have lists")
            return
        self.ask("filter:  ", self.view.filter_text, self._filtered)

    def action_pause(self) -> None:
        """Hold the screen still, or let it go on."""
        self.paused = not self.paused
        self._feed.pause(on=self.paused)
        self.bars()

    def action_slower(self, by: int) -> None:
        """Read less often (1) or more often (-1)."""
        nearest = min(range(len(INTERVALS_S)), key=lambda at: abs(INTERVALS_S[at] - self.interval_s))
        self.interval_s = INTERVALS_S[max(0, min(len(INTERVALS_S) - 1, nearest + by))]
        self._feed.every(self.interval_s)
        self.bars()

    def action_help(self) -> None:
        """Show what the keys do."""
        self.push_screen(Reader("kvctl top: keys", help_report().blocks))

    def action_validate(self) -> None:
        """Run the gates."""
        self._start("running the gates", jobs.validate)

    def action_invalidate(self) -> None:
        """Plan to take out what is under the cursor."""
        try:
            selector, chain = self._selected()
        except KvctlError as error:
            self.complain(error)
            return
        self._start("making the plan", jobs.plan_for(selector, chain))

    def action_save(self) -> None:
        """Ask where to save a snapshot."""
        if self.picture is None:
            return
        stamp = when(time.time_ns())[:19].replace(":", "")
        name = f"kvctl-{self.picture.snapshot.engine.pid}-{stamp}.kvsnap"
        self.ask("save to:  ", name, self._save)

    def action_json(self) -> None:
        """Show the screen as JSON."""
        report = None if self.picture is None else self.view.json(self.picture)
        if report is None:
            self.say("nothing to show as JSON yet")
            return
        self.push_screen(Reader(f"{self.view.title} as JSON", [Prose(lines=self.to_json(report).splitlines())]))

    @on(Rows.Chosen)
    def _chosen(self, message: Rows.Chosen) -> None:
        view, picture = self.view, self.picture
        if isinstance(view, Decisions) and (report := view.explain()) is not None:
            view.picked = None if view.chosen is None else view.chosen.id
            self.push_screen(Reader("decision", aim_report(report, self._target).blocks, report))
        elif isinstance(view, Prefixes) and picture is not None and view.selector is not None:
            selector = view.selector
            self._start("reading the prefix", lambda *_: Told("prefix", prefix(picture.snapshot, selector)))
        del message

    @on(Input.Submitted)
    def _submitted(self, message: Input.Submitted) -> None:
        prompted = self.close_prompt()
        self.complain(None)
        if prompted is None:
            return
        try:
            prompted(message.value)
        except UsageError as error:
            self.complain(error)

    # Helpers.

    def _filtered(self, text: str) -> None:
        self.view.filter_by(text)
        self.view.filter_text = text

    def _save(self, text: str) -> None:
        if text.strip() and self.picture is not None:
            path = Path(text.strip()).expanduser()
            self._start("saving", jobs.save_to(path, self._version, self.picture.snapshot))

    def _selected(self) -> tuple[Selector, tuple[bytes, ...] | None]:
        view, picture = self.view, self.picture
        if isinstance(view, Decisions) and view.chosen is not None and picture is not None:
            item = view.chosen
            if item.chain:
                return Selector(SelectorKind.TOKENS, f" the prompt of decision {item.id}"), item.chain
            if any(request.id == item.request for request in picture.snapshot.requests or ()):
                return Selector(SelectorKind.REQUEST, item.request), None
            raise UsageError(
                "this decision cannot be turned into a prefix",
                why="its request has ended and the agent kept no keys of it",
                next_step="choose the prefix on screen 3",
            )
        if view.selector is None:
            raise UsageError("nothing is chosen", next_step="choose a prefix on screen 3 or a decision on screen 5")
        return parse(view.selector), None

    def _start(self, what: str, job: jobs.Job) -> None:
        if not self._jobs.start(what, job):
            self.say(f"not now: {self._jobs.running} has not ended")
            return
        self.busy = what
        self.complain(None)
