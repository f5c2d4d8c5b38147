"""Trajectories for the eye: turns, who wrote what, each token coloured by a signal, groups.

All text is escaped and hidden characters are shown: what a model or a document says can neither
become markup nor pass for something else.  Nothing here needs a script, a font or a network.
"""

from turncredit.viewer.groups import group_html
from turncredit.viewer.pages import write_page
from turncredit.viewer.styles import COLOURS
from turncredit.viewer.text import Decoder
from turncredit.viewer.trajectories import authored_tokens, trajectory_html, turn_table

__all__ = [
    "COLOURS",
    "Decoder",
    "authored_tokens",
    "group_html",
    "trajectory_html",
    "turn_table",
    "write_page",
]
