"""The benchmark that trains two seeds side by side asks for runs that exist."""

import sys

from turncredit import paths
from turncredit.experiment import jobs_of

sys.path.append(str(paths.repository() / "benchmarks"))
import parallel_seeds


def test_it_asks_for_two_runs_of_one_warm_start():
    jobs = jobs_of(parallel_seeds.two_seeds())
    assert [job.label for job in jobs] == [
        "informative_guess/grpo/seed_0",
        "informative_guess/grpo/seed_1",
    ]
    assert {job.warm_start_seed for job in jobs} == {0}
