"""Compose and validate every cluster run without a GPU: `python -m turncredit.verl_plugin.check`.

For each combination below params/cluster (or the one that is named): keys that verl does not have,
names and options that we do not have, verl's own `validate_config`, memory and tokens of a step.
The exit status is 1 if any is refused.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from turncredit.verl_plugin.cluster import KINDS, ClusterRun, all_runs, compose, plain, read_run
from turncredit.verl_plugin.defaults import require_stated
from turncredit.verl_plugin.settings import check_config
from turncredit.verl_plugin.sizing import Size, require_fits

Validate = Callable[[Any], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the named run, or all of them, and print a line for each."""
    options = _parser().parse_args(arguments)
    try:
        named = [getattr(options, kind) for kind in KINDS]
        runs = [read_run(*named)] if all(named) else list(all_runs())
        failed = report(runs, verls_own())
    except (ValueError, ImportError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(runs)} runs, {failed} refused")
    return 1 if failed else 0


def report(runs: Iterable[ClusterRun], validate: Validate) -> int:
    """Print what each run comes to; how many were refused."""
    failed = 0
    for run in runs:
        try:
            print(f"{run.name}: {check_run(run, validate).sentence()}")
        except (ValueError, TypeError, AssertionError) as error:
            failed += 1
            print(f"{run.name}: REFUSED: {error}")
    return failed


def check_run(run: ClusterRun, validate: Validate) -> Size:
    """What a sound run takes.  Raises what any of the checks raises."""
    require_stated(run)
    config = compose(run)
    values = plain(config)
    check_config(values, run.said_by)
    size = require_fits(run.shape, run.machine, values)
    validate(config)
    return size


def verls_own() -> Validate:
    """verl's own validation of a composed configuration; imports verl.

    Raises ImportError with the remedy for a verl that this plugin is not for, before importing it.
    """
    from contextlib import redirect_stdout
    from io import StringIO

    from turncredit.verl_plugin.versions import require_verl

    require_verl()
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    def validate(config: Any) -> None:
        with redirect_stdout(StringIO()):  # it prints that all is well
            try:
                validate_config(
                    config=config,
                    use_reference_policy=need_reference_policy(config),
                    use_critic=need_critic(config),
                )
            except Exception as error:  # no common class; a critic's model is looked for as well
                raise ValueError(f"verl: {error}") from error

    return validate


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m turncredit.verl_plugin.check", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    for kind in KINDS:
        parser.add_argument(kind, nargs="?", metavar=kind.upper(), help="name of one file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
