"""Names of weights that come without a checkpoint: resolved and checked by a plan's own rules."""

import difflib

from loadscope.loader.checkpoint import Tensor
from loadscope.loader.checks import check_stored
from loadscope.loader.findings import Finding
from loadscope.loader.formats.format import Format
from loadscope.loader.outcomes import rank_outcome
from loadscope.loader.plan import Plan, format_of
from loadscope.loader.resolve import EXPERT, Tail, collect, resolve
from loadscope.loader.schema import Schema
from loadscope.loader.topology import layers_in


class Names:
    """Resolves names as the plan did; other spellings, dtypes and shapes by the same rules."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        known: dict[str, list[int]] = {}
        siblings = {index for source in plan.sources for index in source.siblings}
        for index, source in enumerate(plan.sources):
            if index not in siblings:
                known.setdefault(source.name, []).append(index)
        self._schema = Schema(list(plan.targets), list(plan.sources), known)
        assert plan.model is not None
        form = format_of(plan.model, plan.layout, plan.options)
        assert isinstance(form, Format)
        self._form = form
        self._model = plan.model

    def find(
        self, name: str, dtype: str, shape: tuple[int, ...]
    ) -> tuple[Tail, int, Finding | None]:
        """(tail, layer, what is wrong with the tensor); `dtype` is a tag of safetensors."""
        planned = self._plan.tensors.get(name)
        if planned is not None and (planned.dtype, planned.shape) == (dtype, shape):
            place = self._plan.find(name)
            assert place is not None
            tail, layer = place
            if not tail.failed >> layer & 1:
                return tail, layer, None
        stored = Tensor(dtype, shape, 0, 0, 0)
        tails = list(collect([(name, stored)]).values())
        has_top = not self._plan.options.draft
        (tail,) = resolve(tails, self._schema, self._model.layers, has_top=has_top)
        found = check_stored([tail], self._schema, self._model, self._form)
        wrong = next((f for f in found if f.level == "error"), None)
        return tail, layers_in(tail.seen)[0], wrong

    def outcome(self, tail: Tail, layer: int, rank: int) -> tuple[str, str | None]:
        """What becomes of a tensor on one rank: outcome and reason."""
        source = None if tail.source is None else self._schema.sources[tail.source]
        if source is not None and source.target is None and not tail.beyond >> layer & 1:
            return "skipped", source.reason
        return rank_outcome(self._plan, tail, layer, self._plan.seats[rank])

    def reason(self, tail: Tail, layer: int) -> str | None:
        """Why a tensor that nothing is wrong with reaches no parameter; None if it reaches one."""
        if tail.beyond >> layer & 1:
            return self._plan.beyond_reason
        if tail.source is None or not tail.routed >> layer & 1:
            return "no_destination"
        return self._schema.sources[tail.source].reason

    def nearest(self, tail: Tail, layer: int) -> list[str]:
        """Known names that are like one which no rule knows, best first."""
        patterns = difflib.get_close_matches(tail.pattern, self._schema.known, n=3, cutoff=0.7)
        if not tail.is_top:
            patterns = [pattern.replace("{layer}", str(layer)) for pattern in patterns]
        expert = EXPERT.search(tail.text)
        if expert is not None:
            patterns = [pattern.replace("{expert}", expert.group()) for pattern in patterns]
        return patterns
