"""A long mixed life of the whole: `make soak`. First an engine alone, then a server with its engine over HTTP.

The exit status says whether nothing was left behind; what was is printed.
"""

from __future__ import annotations

import argparse
import sys

from bench import soak_engine, soak_http

PARTS = {"engine": soak_engine.soak, "http": soak_http.soak}


def main() -> int:
    """The exit status is 0 when nothing was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=2000, help="of each part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args()
    faults = []
    for part in arguments.parts:
        print(f"-- {part}: {arguments.requests} requests, seed {arguments.seed}", flush=True)
        faults += [f"{part}: {fault}" for fault in PARTS[part](arguments.requests, arguments.seed)]
    print("\n".join(faults[:20]) if faults else "clean")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
