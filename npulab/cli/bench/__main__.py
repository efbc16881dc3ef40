import json
import sys

from npulab.cli.bench import BENCHES, ROUNDS

if __name__ == "__main__":
    print(
        json.dumps(BENCHES[sys.argv[1]].measure(int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS))
    )
