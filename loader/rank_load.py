"""One rank's load: chunks into parameter slices, pairs, conversions, derived tensors."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from loadscope.loader.control import Control, LoadError
from loadscope.loader.derive import Derived, derive_all
from loadscope.loader.dtypes import ITEM_BYTES
from loadscope.loader.events import Emit, Kind
from loadscope.loader.findings import Finding
from loadscope.loader.fuse import PairLedger
from loadscope.loader.kernel_time import KernelTime
from loadscope.loader.parameters import ParameterStore, torch_dtype
from loadscope.loader.place import volume
from loadscope.loader.plan import Plan
from loadscope.loader.read import Loaded, Reader, ReadError
from loadscope.loader.steps import Step, Use, chunks
from loadscope.loader.write import Writer, box_of
from loadscope.loader.writing import WHOLE, Writing, written_elements

ReaderFactory = Callable[[Path, list[str], torch.device], Reader]


class RankLoad:
    """One rank's load: walks the chunks, writes slices, closes steps, derives."""

    def __init__(
        self,
        plan: Plan,
        store: ParameterStore,
        emit: Emit,
        control: Control,
        cells: Mapping[str, int],
        writing: Writing = WHOLE,
    ) -> None:
        self.plan = plan
        self.store = store
        self.emit = emit
        self.control = control
        self.cells = cells
        self.writing = writing
        self.writer = Writer(plan.sources, store)
        self.ledger = PairLedger(plan)
        self._sizes: Mapping[str, int] = {}
        self._here: Use | None = None
        self._step: Step | None = None
        self._file: int | None = None
        self._read_s = 0.0
        self._copy_s = 0.0
        self._elements = 0

    def load(self, folder: Path, make_reader: ReaderFactory) -> None:
        """Read and write everything of this rank; the store is ready afterwards, or poisoned.

        Raises LoadError, whatever went wrong.
        """
        try:
            self._load(folder, make_reader)
        except LoadError:
            raise
        except Exception as error:
            raise self._explain(error) from error

    def _load(self, folder: Path, make_reader: ReaderFactory) -> None:
        names = [shard.name for shard in self.plan.shards]
        work = self.writing.steps(self.plan, self.store.rank, self.cells)
        self._sizes = self._sizes_of(work)
        reader = make_reader(folder, names, self.store.device)
        self.store.begin(self.writing.version, undo=self.writing.undo)
        try:
            for loaded in reader.read(chunks(work)):
                self._write(loaded)
            self._check_nothing_waits()
            self._derive()
            self.store.finish()
        except BaseException:
            if self.store.touched:
                self.store.poison()
            else:
                self.store.leave()
            raise
        finally:
            reader.close()

    def _sizes_of(self, work: list[Step]) -> Mapping[str, int]:
        """Elements by which each parameter counts as full."""
        if self.writing.files is not None:
            return written_elements(self.plan, work)
        return {name: tensor.numel() for name, tensor in self.store.parameters.items()}

    @property
    def remarks(self) -> list[Finding]:
        """What only the values could show, grouped by pattern."""
        return self.writer.remarks

    def _explain(self, error: Exception) -> LoadError:
        """An error of the machine as an error of the load: where it stood, in the user's words."""
        use, file, step = self._here, self._file, self._step
        source = self.plan.sources[use.piece.source] if use is not None else None
        said = str(error) if isinstance(error, ReadError) else f"{type(error).__name__}: {error}"
        return LoadError(
            said,
            tensor=use.piece.tensor if use is not None else None,
            file=self.plan.shards[file].name if file is not None else None,
            rule=source.rule if source is not None else None,
            param=step.param if step is not None else None,
        )

    def _write(self, loaded: Loaded) -> None:
        chunk = loaded.chunk
        step = chunk.step
        self.control.gate(chunk.stop - chunk.start)
        self._read_s += loaded.seconds
        self._file, self._step = chunk.file, step
        begun = time.perf_counter()
        if not self.store.touched and self.writing.files is None:
            # what this checkpoint leaves out must not keep the value of the one before
            self.store.reset_initial()
        target = self.store.parameters[step.param]
        self.store.touch(step.param)
        if step.zero_box is not None and self._elements == 0:
            box_of(target, step.zero_box).zero_()
            self._elements += volume(step.zero_box)
        for use in chunk.uses:
            self._here = use
            self._write_use(step, use, loaded.data)
        self._copy_s += time.perf_counter() - begun
        if chunk.is_last:
            self._close(step)

    def _write_use(self, step: Step, use: Use, data: torch.Tensor) -> None:
        rows = _tensor_rows(use, data)
        written = self.writer.write(step.param, use.piece, use.rows, rows)
        self._elements += written.elements
        if written.kernel is not None:
            self._emit_kernel(written.kernel)

    def _close(self, step: Step) -> None:
        """The step's facts: what was read, what was written, which pairs it opened or closed."""
        rank, name = self.store.rank, self.plan.shards[step.file].name
        nbytes = step.nbytes
        self.emit(
            "read",
            rank,
            param=step.param,
            bytes=nbytes,
            seconds=self._read_s,
            detail={"file": name},
        )
        self.emit(
            "copied",
            rank,
            tensor=step.pieces[0].tensor if len(step.pieces) == 1 else None,
            param=step.param,
            bytes=nbytes,
            seconds=self._copy_s,
            detail={
                "file": name,
                "tensors": len(step.pieces),
                "elements": self._elements,
                "numel": self._sizes[step.param],
                "cell": step.cell,
            },
        )
        for key, tensor, partner, is_closed in self.ledger.close(step):
            detail = {"pair": key, "waits_for": partner}
            kind: Kind = "paired" if is_closed else "half_held"
            self.emit(kind, rank, tensor=tensor, param=step.param, detail=detail)
        self._read_s, self._copy_s, self._elements = 0.0, 0.0, 0

    def _check_nothing_waits(self) -> None:
        waiting = [*self.writer.waiting, *(tensor for tensor, _p in self.ledger.open.values())]
        if waiting:
            raise LoadError(
                f"{len(waiting)} halves still wait for their partner: {waiting[0]}",
                tensor=waiting[0],
            )

    def _derive(self) -> None:
        self._here, self._file, self._step = None, None, None
        for done in derive_all(self.plan, self.store):
            self.control.gate(0)
            self._emit_derived(done)

    def _emit_derived(self, done: Derived) -> None:
        for kernel in done.kernels:
            self._emit_kernel(kernel)
        for name, nbytes in zip(done.names, done.nbytes, strict=True):
            seconds = done.seconds / len(done.names)
            self.emit("derived", self.store.rank, param=name, bytes=nbytes, seconds=seconds)

    def _emit_kernel(self, kernel: KernelTime) -> None:
        self.emit(
            "kernel",
            self.store.rank,
            param=kernel.param,
            rule=kernel.kernel,
            bytes=kernel.nbytes,
            seconds=kernel.seconds,
            detail={"shape": list(kernel.shape), "device": self.store.device.type},
        )


def _tensor_rows(use: Use, data: torch.Tensor) -> torch.Tensor:
    """The rows of a use as a tensor [rows, …] over the chunk's bytes, without a copy."""
    piece = use.piece
    count = use.rows[1] - use.rows[0]
    raw = data[use.offset : use.offset + count * piece.row_bytes]
    if raw.storage_offset() % ITEM_BYTES[piece.dtype]:
        raw = raw.clone()
    return raw.view(torch_dtype(piece.dtype)).view(count, *piece.shape[1:])
