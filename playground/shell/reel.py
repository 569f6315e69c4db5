"""A reel: one run as the player reads it, a run id and then one JSON line per frame. It only ever grows."""

from __future__ import annotations

import json
import time
import uuid
from collections import OrderedDict
from threading import Lock
from typing import Any

from playground.engine.trace import Trace
from playground.lab import Lab, Progress

MAX_CHARS = 1_000_000  # of all frames of one run
PROGRESS_EVERY_S = 0.2


class Reel:
    """Renders each new frame of a growing trace once; ``text`` is the player's value.

    The text of one moment is a prefix of the text of the next, so that only the new end travels to the browser. A later
    line with the same index replaces the earlier one.
    """

    def __init__(self, lab: Lab) -> None:
        self.lab, self.id, self.trace = lab, uuid.uuid4().hex, Trace()
        self.text = f"#{self.id}\n"
        self.num_frames = 0
        self.is_full = self.has_ended = False
        self._last_progress = -PROGRESS_EVERY_S

    def write(self, **line: Any) -> None:
        """One more line; text that is not valid Unicode (half a surrogate pair) is spelled out."""
        text = json.dumps(line, ensure_ascii=False, allow_nan=False)
        self.text += text.encode("utf-8", "backslashreplace").decode() + "\n"

    def tell(self, progress: Progress) -> bool:
        """The progress line, at most five times a second; whether one was written."""
        now = time.monotonic()
        if now - self._last_progress < PROGRESS_EVERY_S:
            return False
        self._last_progress = now
        self.write(progress=progress.text, fraction=progress.fraction)
        return True

    def show(self, trace: Trace) -> bool:
        """The frames that ``trace`` has more than before; whether there were any."""
        self.trace = trace
        num_frames = self.lab.num_frames(trace)
        for index in range(self.num_frames, num_frames):
            self._render(index)
        is_new = num_frames > self.num_frames
        self.num_frames = max(self.num_frames, num_frames)
        return is_new

    def end(self, reason: str) -> None:
        """Draw the last frame again, for lanes that grew after it, and close: ``done``, ``stopped`` or ``failed``."""
        if self.has_ended:
            return
        self.has_ended = True
        if self.num_frames:
            self._render(self.num_frames - 1)
        self.write(end=reason)

    def _render(self, index: int) -> None:
        frame = self.lab.frame(self.trace, index)
        if self.is_full or len(self.text) + len(frame.html) > MAX_CHARS:
            self.is_full = True
            self.write(i=index, status=frame.status, html="<p>This run is too long to draw all of its steps.</p>")
        else:
            self.write(i=index, status=frame.status, html=str(frame.html))


class Shelf:
    """The last reels by id, for saving a run and for what is drawn after a stop.

    Bounded in number and in characters; the oldest goes first. An id is random and known only to the page that ran it.
    """

    def __init__(self, max_reels: int = 64, max_chars: int = 24_000_000) -> None:
        self.max_reels, self.max_chars = max_reels, max_chars
        self._reels: OrderedDict[str, Reel] = OrderedDict()
        self._lock = Lock()

    def put(self, reel: Reel) -> None:
        with self._lock:
            self._reels[reel.id] = reel
            self._reels.move_to_end(reel.id)
            while len(self._reels) > self.max_reels or sum(len(r.text) for r in self._reels.values()) > self.max_chars:
                if len(self._reels) == 1:
                    break
                self._reels.popitem(last=False)

    def get(self, reel_id: str) -> Reel | None:
        with self._lock:
            return self._reels.get(reel_id)


shelf = Shelf()


def save_run(reel_id: str) -> str | None:
    """The trace of a run as JSON; ``None`` when it is no longer kept."""
    reel = shelf.get(str(reel_id))
    return reel.trace.to_json() if reel else None
