"""Measure one benchmark in this process and print its numbers as JSON."""

import json
import sys

from npulab.cli.bench import BENCHES, ROUNDS

if __name__ == "__main__":
    what, rounds = [*sys.argv[1:], str(ROUNDS)][:2]
    print(json.dumps(BENCHES[what].measure(int(rounds))))
