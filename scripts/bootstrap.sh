#!/bin/sh
# Finds a Python that can run Pizarra and hands over to bootstrap.py, which makes .venv.
# usage: scripts/bootstrap.sh [--extra dev]      PYTHON=/path/to/python chooses the interpreter
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
oldest="3.11"
found=""

for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        exec "$candidate" "$root/scripts/bootstrap.py" "$@"
    fi
    found="$found $candidate ($("$candidate" --version 2>&1 | head -n 1))"
done

if [ -n "$found" ]; then
    echo "Pizarra needs Python $oldest or newer; found only:$found." >&2
else
    echo "Pizarra needs Python $oldest or newer; no Python was found (looked for: ${PYTHON:-python3})." >&2
fi
echo "Install one (Debian, Ubuntu: apt install python3 python3-venv) or name it: make PYTHON=/path/to/python3.12 run" >&2
exit 1
