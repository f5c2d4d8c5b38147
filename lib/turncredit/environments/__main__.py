"""`python -m turncredit.environments NAME [MESSAGES]`: check an environment, exit 1 for a fault."""

import sys

from turncredit.environments.conformance import check
from turncredit.environments.subjects import open_subject


def main(arguments: list[str]) -> int:
    """Print what was played and what is wrong; 0 if nothing is, 2 for a wrong call."""
    try:
        name, *rest = arguments or [""]
        messages = int(rest[0]) if rest else 10_000
        subject = open_subject(name)
    except (ValueError, RuntimeError) as error:
        print(f"check-environment: {error}", file=sys.stderr)
        return 2
    findings = check(subject, messages=messages)
    for what, number in sorted(findings.counts.items()):
        if not what.startswith("checked "):
            print(f"{number:8d}  {what}")
    print("snapshots: checked" if findings.counts["snapshots"] else "snapshots: not offered")
    for fault in findings.faults:
        print(f"FAULT: {fault}")
    print(f"{name}: {'not conforming' if findings.faults else 'conforming'}")
    return 1 if findings.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
