"""Rollout: an environment and a policy give trajectories, token in, token out."""

from turncredit.rollout.lockstep import roll_out

__all__ = ["roll_out"]
