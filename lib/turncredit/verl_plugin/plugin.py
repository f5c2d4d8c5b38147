"""What verl loads: registers estimators, losses, trainer and agent loop, or says why it cannot.

verl logs what goes wrong in a plugin at level DEBUG and goes on without it, so that a run would end
with "unknown trainer".  Here it is logged as an error, with the remedy, before it is raised.
"""

import logging

_LOGGER = logging.getLogger("turncredit.verl_plugin")


def register() -> None:
    """Enter everything with verl; again and again without harm.

    Raises ImportError with the remedy for a verl that is not the one this is written for.
    """
    from turncredit.verl_plugin.versions import require_verl

    require_verl()
    from turncredit.verl_plugin import agent_loop, trainer  # noqa: F401 (they register themselves)
    from turncredit.verl_plugin.estimators import register_estimators
    from turncredit.verl_plugin.losses import register_losses

    register_estimators()
    register_losses()


try:
    register()
except Exception:
    _LOGGER.exception("the verl plugin of turncredit cannot be used; verl goes on without it")
    raise
