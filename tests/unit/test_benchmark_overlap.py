"""The simulation of rollout and update: by hand where one can, and its laws."""

import math
import random
import sys
from dataclasses import replace

import pytest

from turncredit import paths

sys.path.append(str(paths.repository() / "benchmarks"))
import overlap
from overlap import in_turn, open_ended, sending, setting_of, update_seconds, work
from rollout_pool import Pool, Trajectory, decode_rate, draw

SETTING = replace(setting_of(8), rows=32, group=4, mini_batches=2)


def trajectory(*turns, group=0):
    return Trajectory(group, turns, 600 + sum(said + read for said, _, read in turns))


def time_of(*trajectories, gpus=1):
    pool = Pool(SETTING, gpus)
    for one in trajectories:
        pool.add(one)
    while pool.under_way:
        pool.step()
    return pool.now


def test_one_trajectory_by_hand():
    read = 2 * SETTING.shape.parameters * 1000 / SETTING.assumed.flops
    expected = (200 + 50) / decode_rate(SETTING, 1) + 3.0 + read
    assert time_of(trajectory((200, 3.0, 1000), (50, 0.0, 0))) == pytest.approx(expected)


def test_two_share_a_gpu_and_the_longer_one_has_it_alone_at_the_end():
    expected = 100 / decode_rate(SETTING, 2) + 200 / decode_rate(SETTING, 1)
    assert time_of(trajectory((100, 0.0, 0)), trajectory((300, 0.0, 0))) == pytest.approx(expected)


def test_trajectories_go_where_the_fewest_are():
    both = [trajectory((100, 0.0, 0))] * 2
    assert time_of(*both, gpus=2) == pytest.approx(time_of(both[0]))


def test_a_pause_stops_all_messages_and_no_tool():
    def ended(pause):
        pool = Pool(SETTING, 1)
        pool.add(trajectory((100, 50.0, 0), (100, 0.0, 0)))
        pool.pause(pause)
        while pool.under_way:
            pool.step()
        return pool.now

    assert ended(7.0) == pytest.approx(ended(0.0) + 7.0)


def test_an_update_waits_for_the_gpu_with_most_tokens():
    rows = [trajectory((tokens, 0.0, 0)) for tokens in (4000, 3000, 2000, 1000)]
    one = replace(SETTING, mini_batches=1)
    assert update_seconds(one, rows, 2) == pytest.approx(
        max(
            work(SETTING, rows[0]) + work(SETTING, rows[3]),
            sum(work(SETTING, r) for r in rows[1:3]),
        )
    )
    halves = update_seconds(
        SETTING, rows, 2
    )  # two mini-batches, of which each waits for its longer
    assert halves == pytest.approx(work(SETTING, rows[0]) + work(SETTING, rows[2]))


def test_a_row_is_never_longer_than_the_context():
    stream = random.Random(0)
    for _ in range(300):
        row = draw(replace(SETTING, max_tokens=3000), 0, stream)
        assert row.tokens <= 3000
        assert 1 <= len(row.turns) <= SETTING.max_turns


def test_ages_are_those_of_the_ways():
    assert in_turn(SETTING, 8, 8, 2, apart=False).ages == (0,)
    assert in_turn(SETTING, 4, 4, 2, apart=True).ages == (1,)
    found = open_ended(SETTING, 4, 4, 3, lead=2)
    assert len(found.ages) == 3 * SETTING.rows // SETTING.group
    assert 0 < sum(found.ages) / len(found.ages) <= 2 + 1


def test_nothing_is_faster_than_its_update_or_busier_than_all_gpus():
    for course, updating in (
        (in_turn(SETTING, 8, 8, 2, apart=False), 8),
        (in_turn(SETTING, 4, 4, 2, apart=True), 4),
        (open_ended(SETTING, 4, 4, 4), 4),
    ):
        bare = 12 * SETTING.shape.parameters * course.tokens / SETTING.assumed.flops / updating
        assert course.seconds > bare + sending(SETTING)
        assert 0 < course.busy < 1
        assert math.isfinite(course.rate)


def test_the_table_has_a_row_for_each_way(monkeypatch, capsys):
    monkeypatch.setattr(overlap, "setting_of", lambda gpus, weak: SETTING)
    overlap.main(["--gpus", "8", "--steps", "1", "--lead", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[1] for line in lines[2:]] == ["together", "one step off", "open"]
    assert len({line.count("|") for line in lines}) == 1
