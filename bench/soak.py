"""A long mixed life of the whole: `make soak`. First an engine alone, then a server with its engine over HTTP, then the
dashboard in six tabs of a browser for SOAK_S seconds (900).

The exit status says whether nothing was left behind; what was is printed.
"""

from __future__ import annotations

import argparse
import sys

from bench import soak_dashboard, soak_engine, soak_http

PRESSED = {"engine": soak_engine.soak, "http": soak_http.soak}
DASHBOARD = "dashboard"


def main() -> int:
    """The exit status is 0 when nothing was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=2000, help="of each part but the dashboard")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", nargs="+", choices=[*PRESSED, DASHBOARD], default=[*PRESSED, DASHBOARD])
    arguments = parser.parse_args()
    faults = []
    for part in arguments.parts:
        if part == DASHBOARD:
            seconds = soak_dashboard.seconds_wanted()
            print(f"-- {part}: {len(soak_dashboard.PAGES)} tabs, {seconds:g} s", flush=True)
            found = soak_dashboard.soak(seconds)
        else:
            print(f"-- {part}: {arguments.requests} requests, seed {arguments.seed}", flush=True)
            found = PRESSED[part](arguments.requests, arguments.seed)
        faults += [f"{part}: {fault}" for fault in found]
    print("\n".join(faults[:20]) if faults else "clean")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
