"""Judges behind `external_verify`: a verdict on an answer, given the gathered context.

`RuleJudge` simulates a stronger model, `LocalJudge` asks one on this machine, `EndpointJudge` one
behind an OpenAI-compatible server.  Only the simulation looks at the gold answer.
"""

from turncredit.environments.judges.base import VERDICTS, Judge, JudgeRequest
from turncredit.environments.judges.endpoint import EndpointJudge, EndpointSettings
from turncredit.environments.judges.local import LocalJudge, LocalSettings
from turncredit.environments.judges.rule import RuleJudge

__all__ = [
    "VERDICTS",
    "EndpointJudge",
    "EndpointSettings",
    "Judge",
    "JudgeRequest",
    "LocalJudge",
    "LocalSettings",
    "RuleJudge",
    "open_judge",
]

_OPEN = {"rule": lambda settings: settings, "local": LocalJudge, "endpoint": EndpointJudge}


def open_judge(settings: RuleJudge | LocalSettings | EndpointSettings) -> Judge:
    """The judge that a task's `judge` settings describe, told apart by their `kind`."""
    return _OPEN[settings.KIND](settings)
