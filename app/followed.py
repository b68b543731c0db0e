"""One load that `Live` follows: what is not stored yet, and what changed at which version."""

from dataclasses import dataclass, field

from loadscope.app.load_view import LoadView
from loadscope.app.tick import Picture
from loadscope.loader.events import Event


@dataclass(slots=True)
class Followed:
    """The view with what the stream needs to tell old from new."""

    view: LoadView
    # versions below need a snapshot: the load, its grid or a fault in it is new to them
    since: int
    unsaved: list[Event] = field(default_factory=list)
    _faults: dict[int, int] = field(default_factory=dict)
    _cell_versions: list[int] = field(default_factory=list)
    _point_versions: list[int] = field(default_factory=list)

    def picture(self, version: int, now: float) -> Picture:
        """The load as it is, with everything that changed marked with this version."""
        view = self.view
        with view.lock:
            state = view.shown
            written, changed = list(state.cells), state.changed_cells
            state.changed_cells = set()
            count, faults = len(state.throughput), dict(state.faults)
        self._mark(version, len(written), changed, faults)
        self._point_versions += [version] * (count - len(self._point_versions))
        return Picture(
            load=view.load,
            role=view.role,
            state=view.document(now),
            grid=state.plan.get("grid"),
            written=written,
            cell_versions=tuple(self._cell_versions),
            faults=faults,
            points=state.throughput,
            point_versions=self._point_versions,
            count=count,
        )

    def _mark(self, version: int, cells: int, changed: set[int], faults: dict[int, int]) -> None:
        if len(self._cell_versions) != cells:
            # the grid has just become known
            self._cell_versions, self.since = [version] * cells, version
        if faults != self._faults:
            self._faults, self.since = faults, version
        for cell in changed:
            self._cell_versions[cell] = version
