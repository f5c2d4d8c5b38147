"""The laws that every base and turn weight is held to, asked of one of them, a user's own too.

`python -m turncredit.laws NAME --module my_weights.py`, or `make check-estimator`; from Python:
`print(report("aem", check("aem")))`.
"""

from turncredit.laws.bias import TreeBias, tree_bias
from turncredit.laws.cases import Case
from turncredit.laws.checks import LAWS, Verdict, bias_line, check, report

__all__ = ["LAWS", "Case", "TreeBias", "Verdict", "bias_line", "check", "report", "tree_bias"]
