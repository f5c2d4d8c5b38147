"""Plans: methods by name, grids of variants; what cannot be meant is refused by name and file."""

import itertools

import pytest

from turncredit import params, plans
from turncredit.params import convert
from turncredit.plans import cell_name, grid_cells, grid_variants, named_methods, with_methods
from turncredit.training import Method

NAMES = list(params.read_yaml(plans.methods_path()))


# --- methods by name


@pytest.mark.parametrize("name", NAMES)
def test_every_named_method_is_one_that_can_run(name):
    (method,) = convert(named_methods([name]), dict[str, Method], "methods").values()
    method.rehearse()


def test_no_two_names_mean_the_same_method():
    methods = convert(named_methods(NAMES), dict[str, Method], "methods")
    same = [
        pair for pair in itertools.combinations(NAMES, 2) if methods[pair[0]] == methods[pair[1]]
    ]
    assert same == []


def test_methods_that_are_compared_share_the_objective_of_what_they_extend():
    """A weight that came with another clip range could not be told from the clip range."""
    methods = convert(named_methods(NAMES), dict[str, Method], "methods")
    grpo = methods["grpo"]
    for name, method in methods.items():
        if method.base == "grpo" and method.weight != "none" and name != "gspo_aem":
            assert method.objective == grpo.objective, name
            assert method.objective_options == grpo.objective_options, name


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes a methods.yaml of its own."""
    monkeypatch.setenv("TURNCREDIT_HOME", str(tmp_path))
    (tmp_path / "params").mkdir()

    def write(text: str) -> None:
        (tmp_path / "params" / "methods.yaml").write_text(text)

    return write


def test_an_entry_that_extends_another_says_only_what_differs(written):
    written(
        "a: {base: grpo, options: {x: 1, y: 2}}\n"
        "b: {extends: a, options: {y: 3}}\n"
        "c: {extends: b, base: rloo}\n"
    )
    assert named_methods(["c", "a"]) == {
        "c": {"base": "rloo", "options": {"x": 1, "y": 3}},
        "a": {"base": "grpo", "options": {"x": 1, "y": 2}},
    }


@pytest.mark.parametrize(
    ("text", "names", "said"),
    [
        ("a: {base: grpo}\n", ["b"], "no method 'b'; there are: a"),
        ("a: {base: grpo}\n", [3], "no method 3"),
        ("a: {base: grpo}\n", ["a", "a"], "repeats 'a'"),
        ("a: {extends: b}\nb: {extends: a}\n", ["a"], r"extends = 'a' is not the name of another"),
        ("a: {extends: a}\n", ["a"], "extends = 'a'"),
        ("a: {extends: absent}\n", ["a"], "extends = 'absent'"),
        ("a: 3\n", ["a"], "a = 3 is not a mapping"),
        ("a: [\n", ["a"], r"methods\.yaml: line"),
    ],
)
def test_what_is_no_method_is_one_sentence(written, text, names, said):
    written(text)
    with pytest.raises(ValueError, match=said) as refused:
        named_methods(names)
    assert "\n" not in str(refused.value)


def test_lists_become_methods_in_every_plan_and_mappings_stay():
    own = {"mine": {"base": "grpo"}}
    given = {"arms": ["grpo"], "further": [{"arms": ["aem"]}, {"arms": own}], "seeds": [0]}
    whole = with_methods(given)
    assert whole["arms"] == named_methods(["grpo"])
    assert [plan["arms"] for plan in whole["further"]] == [named_methods(["aem"]), own]
    assert given["arms"] == ["grpo"], "what was given is as it was"


# --- grids


def test_a_grid_has_every_combination_once_under_a_name_of_its_own():
    axes = {"world.prior": [0.5, 0.57], "world.miss_rate": [0.1, 0.25], "training.steps": [5]}
    variants = grid_variants(axes)
    assert list(variants) == [
        "prior_0p5-miss_rate_0p1-steps_5",
        "prior_0p5-miss_rate_0p25-steps_5",
        "prior_0p57-miss_rate_0p1-steps_5",
        "prior_0p57-miss_rate_0p25-steps_5",
    ]
    assert variants["prior_0p57-miss_rate_0p1-steps_5"] == {
        "world": {"prior": 0.57, "miss_rate": 0.1},
        "training": {"steps": 5},
    }
    assert [cell_name(cell) for cell in grid_cells(axes)] == list(variants)
    plans.require_folder_names("variants", variants)
