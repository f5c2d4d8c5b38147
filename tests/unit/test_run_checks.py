"""Which runs are refused, and which are not: tables made by hand, one fault each."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from turncredit import params, paths
from turncredit.policies.huggingface import HuggingFaceSettings
from turncredit.run_checks import check_run
from turncredit.tasks import TaskSettings
from turncredit.tripwires import FINISHED, NON_FINITE

TASK = params.load(
    TaskSettings, paths.PACKAGE.parents[1] / "params" / "smoke" / "tasks" / "costly_guess.yaml"
)
LANGUAGE_MODEL = HuggingFaceSettings(
    model="",
    max_tokens=64,
    chat=False,
    preface="",
    dtype="bfloat16",
    attention="sdpa",
    micro_batch_rows=1,
    gradient_checkpointing=False,
    device="cpu",
    lora=None,
)
STEPS, WARM_UP = 5, 2
COLUMNS = (
    "loss", "gradient_norm", "missing_rewards", "lost", "mean_abs_logprob_diff", "ratio_max",
    "zero_variance_groups",
)  # fmt: skip


def task(**policy) -> TaskSettings:
    """Five steps, of which two are warm-up; a language model if its settings are given."""
    training = replace(TASK.training, steps=STEPS, warmup_steps=WARM_UP, updates_per_batch=2)
    model = replace(LANGUAGE_MODEL, **policy) if policy else TASK.policy
    return replace(TASK, training=training, policy=model)


def table(steps: int = STEPS, **changes) -> pd.DataFrame:
    """A sound run: finite, no reward missing, engines in agreement, ratios that moved."""
    sound = {"loss": 0.1, "gradient_norm": 1.0, "missing_rewards": 0, "lost": 0}
    sound |= {"mean_abs_logprob_diff": 1e-6, "ratio_max": 1.1, "zero_variance_groups": 0.5}
    return pd.DataFrame({"step": range(steps)} | {k: [v] * steps for k, v in sound.items()}).assign(
        **changes
    )


def check(rows: pd.DataFrame, settings: TaskSettings | None = None, reason: str = FINISHED) -> None:
    check_run(
        rows, settings or task(), "t/a/seed_0", {"stop_reason": reason, "steps_done": len(rows)}
    )


def test_a_sound_run_passes():
    check(table())
    check(table(2), reason="entropy")


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("row", [0, STEPS - 1])
def test_a_number_that_is_none_is_refused_whichever_column_holds_it(column, row):
    """A comparison with NaN is false, so that a limit alone lets it pass."""
    rows = table()
    rows[column] = rows[column].astype(float)
    rows.loc[row, column] = np.nan
    with pytest.raises(ValueError, match=r"run t/a/seed_0 has a .*not a number"):
        check(rows)
    if row == STEPS - 1 and column not in ("missing_rewards", "lost"):
        check(rows, reason=NON_FINITE)


@pytest.mark.parametrize("steps", range(1, WARM_UP + 1))
@pytest.mark.parametrize("reason", ["entropy", NON_FINITE])
def test_a_run_that_ended_in_its_warm_up_need_not_have_moved_a_ratio(steps, reason):
    """The learning rate of the first step is a small part of the whole one."""
    check(table(steps, ratio_max=1.0), reason=reason)


@pytest.mark.parametrize("reason", [FINISHED, "entropy"])
def test_a_run_with_a_step_at_the_full_rate_must_have_moved_a_ratio(reason):
    with pytest.raises(ValueError, match="never moved a ratio"):
        check(table(ratio_max=1.0), reason=reason)
    check(table(ratio_max=1.0, zero_variance_groups=1.0), reason=reason)


@pytest.mark.parametrize(
    ("policy", "sound", "broken"),
    [({}, 9e-5, 2e-4), ({"dtype": "float32"}, 9e-5, 2e-4), ({"dtype": "bfloat16"}, 0.02, 0.2)],
)
def test_engines_may_differ_by_what_their_precision_leaves(policy, sound, broken):
    check(table(mean_abs_logprob_diff=sound), task(**policy))
    with pytest.raises(ValueError, match="samples from another distribution than it trains"):
        check(table(mean_abs_logprob_diff=broken), task(**policy))
    one = table()
    one.loc[1, "mean_abs_logprob_diff"] = broken
    with pytest.raises(ValueError, match="samples from another distribution"):
        check(one, task(**policy))


def test_missing_steps_are_refused():
    with pytest.raises(ValueError, match="has 4 of 5 steps"):
        check(table(4))


@pytest.mark.parametrize("step", [0, STEPS - 1])
@pytest.mark.parametrize(("missing", "lost"), [(1, 0), (0, 1), (2, 1), (1, 2)])
def test_a_reward_may_be_missing_only_where_a_loss_is_counted(step, missing, lost):
    """The engine goes on after an error by design; a reward nobody gave is another matter."""
    counts = pd.DataFrame({"missing_rewards": [0] * STEPS, "lost": 0})
    counts.loc[step] = lost
    check(table(**counts))
    counts.loc[step, "missing_rewards"] = missing
    with pytest.raises(ValueError, match=f"{missing} missing .* {lost} lost .*at step {step}"):
        check(table(**counts))


def test_counts_that_add_up_over_the_run_alone_are_refused():
    with pytest.raises(ValueError, match="1 missing rewards for 0 lost trajectories at step 0"):
        check(table(missing_rewards=[1, 0, 0, 0, 0], lost=[0, 1, 0, 0, 0]))


def test_engines_are_compared_only_where_rollback_put_nothing_in():
    """Grafted tokens were sampled in sight of an error that their record does not hold."""
    apart = [1e-6, 0.3, 1e-6, 0.2, 1e-6]
    check(table(mean_abs_logprob_diff=apart, grafted_tokens=[0, 7, 0, 2, 0]))
    for grafted in ([0, 7, 0, 0, 0], [np.nan] * STEPS):
        with pytest.raises(ValueError, match="samples from another distribution"):
            check(table(mean_abs_logprob_diff=apart, grafted_tokens=grafted))
