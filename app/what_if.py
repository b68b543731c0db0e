"""Plans for layouts that nobody loads: made on request, the last few kept."""

import threading
from collections import OrderedDict
from typing import Any

from loadscope.app.plan_document import plan_document
from loadscope.loader.checkpoint import Checkpoint
from loadscope.loader.plan import Options, make_plan
from loadscope.loader.topology import Layout

KEPT = 8


class WhatIf:
    """`plan --json` documents by checkpoint, layout and options. Any thread; one plan at a time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Layout, Options], dict[str, Any]] = OrderedDict()
        self._checkpoint: Checkpoint | None = None
        self._lock = threading.Lock()

    def document(self, checkpoint: Checkpoint, layout: Layout, options: Options) -> dict[str, Any]:
        with self._lock:
            if checkpoint is not self._checkpoint:
                self._kept.clear()
                self._checkpoint = checkpoint
            key = (layout, options)
            if key not in self._kept:
                self._kept[key] = plan_document(make_plan(checkpoint, layout, options))
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]
