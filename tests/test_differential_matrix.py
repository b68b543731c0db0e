"""Every format is compared in every kind of parameter and every way to divide it."""

from collections import Counter
from pathlib import Path

from support.compared_load import plan_load, rank_differences
from support.golden_matrix import Cell, cells, empty_cells, table
from support.load_case import small_load
from support.loaded import load_rank
from support.quantised_formats import FORMS


def test_every_format_is_compared_in_every_kind_of_parameter_and_layout(tmp_path: Path) -> None:
    counted: Counter[Cell] = Counter()
    for number, (name, form) in enumerate(FORMS.items()):
        for ep in (1, 2):
            load = small_load(form, tp=2, ep=ep)
            folder = tmp_path / f"{number}-{ep}"
            made, plan = plan_load(load, folder)
            for rank in range(2):
                store = load_rank(plan, folder, rank)
                wrong = rank_differences(load, made, store)
                compared = [n for n in store.parameters if not any(n in text for text in wrong)]
                counted.update(cells(name, plan.layout, compared))
    print(table(counted, FORMS))  # noqa: T201
    assert empty_cells(counted, FORMS) == []
