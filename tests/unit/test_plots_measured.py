"""Figures that are drawn from the tables of notebooks that measure."""

import json
import re
import shutil

import pytest

from turncredit import paths, plots
from turncredit.plots.measured import MEASURED

ROOT = paths.PACKAGE.parents[1]
PROBE = "14_surprisal_probe"


@pytest.fixture
def results(tmp_path):
    """The probe's committed tables alone."""
    folder = tmp_path / PROBE
    folder.mkdir()
    for path in (ROOT / "results" / "cpu" / PROBE).glob("*.csv"):
        shutil.copy(path, folder)
    return tmp_path


def names(root) -> list[str]:
    return [name for name, _, _ in plots.measured_exhibits(root)]


def test_what_has_its_tables_is_drawn_and_told(results):
    found = list(plots.measured_exhibits(results))
    assert [name for name, _, _ in found] == [
        f"{PROBE}_{name}" for name in ("agreement", "decomposition", "proxies")
    ]
    assert all(figure.axes and caption.endswith(".") for _, figure, caption in found)


def test_a_table_that_is_missing_or_without_a_row_has_no_figure(results):
    (results / PROBE / "decomposition.csv").unlink()
    header = (results / PROBE / "proxies.csv").read_text().splitlines()[0]
    (results / PROBE / "proxies.csv").write_text(f"{header}\n")
    assert names(results) == [f"{PROBE}_agreement"]
    assert names(results / "nowhere") == []


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not a table"),
        (b"\xff\xfe\x00", "not a table"),
        (b"a,b\n1,2\n1,2,3\n", "not a table"),
        (b"a,b\n1,2\n", "cannot be drawn"),
    ],
)
@pytest.mark.parametrize("table", ["agreement.csv", "proxies.csv", "decomposition.csv"])
def test_a_table_that_is_none_or_lacks_a_column_is_named(results, table, content, complaint):
    (results / PROBE / table).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{PROBE}/{re.escape(table)}: {complaint}"):
        names(results)


@pytest.mark.parametrize("notebook", MEASURED)
def test_the_notebook_saves_the_tables_that_are_drawn(notebook):
    cells = json.loads((ROOT / "notebooks" / f"{notebook}.ipynb").read_text())["cells"]
    code = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    tables = {table for exhibit in MEASURED[notebook].values() for table in exhibit.tables}
    for table in tables:
        path = " / ".join(f'"{part}"' for part in table.split("/"))
        assert re.search(rf"(folder|notebook) / {path}", code), table


def test_every_exhibit_of_the_committed_tables_is_drawn():
    drawn = {name: figure for name, figure, _ in plots.measured_exhibits(ROOT / "results" / "cpu")}
    kept = (PROBE, "20_credit_audit", "25_probe_over_seeds")
    assert {f"{notebook}_{name}" for notebook in kept for name in MEASURED[notebook]} <= set(drawn)
    correlation, blame = (
        [label.get_text() for label in drawn[f"20_credit_audit_{name}"].axes[0].get_xticklabels()]
        for name in ("correlation", "blame_by_turn")
    )
    assert sum(label.startswith("turn ") for label in correlation) == len(blame)


def test_the_regimes_are_drawn_for_each_arm_and_measure(tmp_path):
    folder = tmp_path / "22_regime_map"
    folder.mkdir()
    factors = "0.5,0.3,0.1,0.0005"
    rows = [
        f"{factors},0.5,,,1,{arm},{measure}"
        for arm in ("grpo", "suffix_mask", "aem")
        for measure in ("collapsed", "exact_match", "gain")
    ]
    header = "prior,knowledge,miss_rate,learning_rate,value,low,high,n,arm,measure"
    (folder / "map.csv").write_text("\n".join([header, *rows]) + "\n")
    expected = {f"22_regime_map_{n}" for n in ("collapsed", "exact_match", "suffix_mask", "aem")}
    assert set(names(tmp_path)) == expected


def test_an_arm_that_the_map_left_out_has_no_figure(tmp_path):
    folder = tmp_path / "22_regime_map"
    folder.mkdir()
    header = "prior,knowledge,miss_rate,learning_rate,value,low,high,n,arm,measure"
    (folder / "map.csv").write_text(f"{header}\n0.5,0.3,0.1,0.0005,0.5,,,1,grpo,collapsed\n")
    assert names(tmp_path) == ["22_regime_map_collapsed"]
