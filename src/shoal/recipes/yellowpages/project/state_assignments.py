"""The 51 states and which worker has which: `python state_assignments.py` checks data/state_assignments.txt."""

import sys
from collections import Counter
from pathlib import Path

DATA = Path(__file__).parent / "data"
CODES = """
AL AK AZ AR CA CO CT DE DC FL GA HI ID IL IN IA KS KY LA ME MD MA MI MN MS MO
MT NE NV NH NJ NM NY NC ND OH OK OR PA RI SC SD TN TX UT VT VA WA WV WI WY
"""
STATES = tuple(CODES.split())


def read_assignments(path: Path = DATA / "state_assignments.txt") -> list[list[str]]:
    """The states of each worker; a line is `[0] CA, MT, RI`."""
    lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return [[code.strip() for code in line.partition("]")[2].split(",") if code.strip()] for line in lines if line]


def problems(assigned: list[list[str]]) -> list[str]:
    """What is wrong with an assignment; empty when each of the 51 states has one worker."""
    times = Counter(code for codes in assigned for code in codes)
    found = {
        "assigned more than once": [code for code, number in times.items() if number > 1],
        "no state": [code for code in times if code not in STATES],
        "missing": [code for code in STATES if code not in times],
    }
    return [f"{what}: {', '.join(codes)}" for what, codes in found.items() if codes]


def main() -> int:
    assigned = read_assignments()
    for worker, codes in enumerate(assigned):
        print(f"worker {worker}: {len(codes)} states  {', '.join(codes)}")
    print(f"{len(assigned)} workers, {sum(map(len, assigned))} states of {len(STATES)}")
    found = problems(assigned)
    for problem in found:
        print(f"  {problem}")
    if not found:
        print("No duplicates, none missing.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
