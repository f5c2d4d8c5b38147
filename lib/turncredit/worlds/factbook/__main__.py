"""Write the Factbook's documents and questions: `python -m turncredit.worlds.factbook FOLDER`."""

import argparse
from pathlib import Path

from turncredit.worlds.factbook.files import write_questions
from turncredit.worlds.factbook.world import FactbookWorld


def main() -> None:
    """Write documents.jsonl, questions_{train,test}.jsonl and manifest.json to a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    manifest = write_questions(FactbookWorld(), folder)
    print(f"{folder}: {manifest}")


if __name__ == "__main__":
    main()
