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
from rollout_pool import Pool, Replica, Trajectory, decode_rate, draw

SETTING = replace(setting_of(8), rows=32, group=4, mini_batches=2)


def trajectory(*turns, group=0):
    return Trajectory(group, turns, 600 + sum(said + read for said, _, read in turns))


def played(trajectories, setting=SETTING, gpus=1):
    pool = Pool(setting, gpus)
    for one in trajectories:
        pool.add(one)
    while pool.under_way:
        pool.step()
    return pool


def time_of(*trajectories, gpus=1, setting=SETTING):
    return played(trajectories, setting, gpus).now


def reading(tokens):
    return 2 * SETTING.shape.parameters * tokens / SETTING.assumed.flops


def saying(tokens, held):
    return tokens / decode_rate(SETTING, held)


def test_one_trajectory_by_hand():
    expected = reading(600) + saying(200, 800) + 3.0 + reading(1000) + saying(50, 1850)
    assert time_of(trajectory((200, 3.0, 1000), (50, 0.0, 0))) == pytest.approx(expected)


def test_two_share_a_gpu_and_the_longer_one_has_it_alone_at_the_end():
    expected = 2 * reading(600) + saying(100, 700 + 900) + saying(200, 900)
    assert time_of(trajectory((100, 0.0, 0)), trajectory((300, 0.0, 0))) == pytest.approx(expected)


def test_a_full_cache_lets_the_next_one_wait():
    full = replace(SETTING, max_tokens=1000, cached_tokens=1000)
    alone = reading(600) + saying(100, 700)
    both = time_of(*[trajectory((100, 0.0, 0))] * 2, setting=full)
    assert both == pytest.approx(2 * alone)


def test_no_more_messages_at_once_than_the_engine_takes():
    single = replace(SETTING, max_sequences=1)
    alone = reading(600) + saying(100, 700)
    assert time_of(*[trajectory((100, 0.0, 0))] * 3, setting=single) == pytest.approx(3 * alone)


@pytest.mark.parametrize(("cached", "lost"), [(10**6, 0), (1000, 700)])
def test_who_lost_its_cache_reads_it_again(cached, lost):
    first = trajectory((100, 1e4, 50), (10, 0.0, 0))  # its 700 tokens wait for a tool
    second = trajectory((200, 0.0, 0))
    pool = played([first, second], replace(SETTING, max_tokens=1000, cached_tokens=cached))
    assert pool.replicas[0].tokens_read == 2 * 600 + 50 + lost


def test_more_cache_is_never_slower_and_none_holds_more_than_it_has(monkeypatch):
    stream = random.Random(3)
    rows = [draw(replace(SETTING, max_tokens=9000), 0, stream) for _ in range(24)]
    most = []
    admit = Replica.admit

    def watched(replica):
        admit(replica)
        most.append((replica.held + replica.kept) / replica.setting.cached_tokens)

    monkeypatch.setattr(Replica, "admit", watched)
    times = [
        time_of(*rows, setting=replace(SETTING, max_tokens=9000, cached_tokens=tokens))
        for tokens in (9000, 30_000, 200_000)
    ]
    assert times[0] > times[1] > times[2]
    assert max(most) <= 1


def test_a_cache_that_never_admits_a_row_is_refused():
    with pytest.raises(ValueError, match="a cache of 100 tokens never admits a row of 28672"):
        replace(SETTING, cached_tokens=100)


def test_the_cache_is_the_one_that_is_sized():
    text = (paths.repository() / "docs" / "scaling.md").read_text(encoding="utf-8")
    (line,) = [
        line for line in text.splitlines() if line.startswith("| qwen3_8b deep_research 1x8")
    ]
    held = SETTING.cached_tokens / SETTING.max_tokens
    assert line.split("|")[-2].strip() == f"{held:.1f}"
    assert setting_of(8, utilization=0.9).cached_tokens > 4 * SETTING.cached_tokens


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
    monkeypatch.setattr(overlap, "setting_of", lambda gpus, **_: SETTING)
    overlap.main(["--gpus", "8", "--steps", "1", "--lead", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[1] for line in lines[2:]] == ["together", "one step off", "open"]
    assert len({line.count("|") for line in lines}) == 1


def documented():
    """Rows of the table of shared GPUs in docs/scaling.md, by GPUs and way."""
    text = (paths.repository() / "docs" / "scaling.md").read_text(encoding="utf-8")
    head = f"| {' | '.join(overlap.COLUMNS)} |"
    lines = text[text.index(head) :].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(int(row[0]), row[1]): row for row in rows}


def test_the_documentation_has_all_sizes():
    ways = ("together", "one step off", "open")
    assert list(documented()) == [(gpus, way) for gpus in overlap.GPUS for way in ways]


def test_the_documentation_has_what_is_simulated_on_one_node():
    for way, (rolling, course) in overlap.courses(8, 2, 2).items():
        assert overlap.cells(8, way, rolling, course) == documented()[8, way]


@pytest.mark.parametrize("gpus", [128, 1024])
def test_the_documentation_has_what_is_simulated_on_many(gpus):
    course = in_turn(setting_of(gpus), gpus, gpus, 2, apart=False)
    assert overlap.cells(gpus, "together", gpus, course) == documented()[gpus, "together"]


def test_the_documentation_says_what_never_waiting_gives():
    text = " ".join((paths.repository() / "docs" / "scaling.md").read_text().split())
    rate = {key: float(row[6]) for key, row in documented().items()}
    gains = {gpus: rate[gpus, "open"] / rate[gpus, "together"] for gpus in overlap.GPUS}
    least, most = gains[8], gains[1024]
    assert f"gives {least:.1f} times the throughput on 8 GPUs and {most:.1f} times on 1,024" in text
