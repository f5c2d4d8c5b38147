"""This project's credit, objectives and environments inside verl 0.9.1, as a plugin of it.

`plugin` registers everything with verl, which loads it by the entry point `verl.plugins`; `check`
composes and validates runs without a GPU; `train` validates and starts one.  docs/scaling.md says
what runs where.  Nothing here is imported by the rest of the package, and verl itself only by the
modules `plugin`, `trainer`, `agent_loop`, `losses` and `estimators`.
"""
