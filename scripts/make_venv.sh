#!/bin/sh
# Makes a virtual environment with pip: make_venv.sh FOLDER [PYTHON]. Needs Python >= 3.10; Debian's python3 without
# python3-venv will do, if it has pip.
set -eu
venv=$1
python=${2:-}

fits() {
    "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2])' >/dev/null 2>&1
}

if [ -n "$python" ] && ! fits "$python"; then
    echo "$python is no Python >= 3.10" >&2
    exit 1
fi
if [ -z "$python" ] && fits "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "Using $venv as it is: $("$venv/bin/python" --version)"
    exit 0
fi
for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
    if [ -z "$python" ] && fits "$candidate"; then
        python=$candidate
    fi
done
if [ -z "$python" ]; then
    echo "No Python >= 3.10 found (python3: $(python3 --version 2>&1)). Name one: make PYTHON=/path/to/python3" >&2
    exit 1
fi

echo "Making $venv with $("$python" --version) ..."
rm -rf "$venv"
if "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    "$python" -m venv "$venv"
elif "$python" -m pip --version >/dev/null 2>&1; then
    # Debian keeps ensurepip in python3-venv; the system's pip can fill the environment instead.
    "$python" -m venv --without-pip "$venv"
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$python" -m pip install --quiet --disable-pip-version-check --target "$site" pip
else
    echo "$python has neither venv nor pip. On Debian and Ubuntu: apt-get install python3-venv python3-pip" >&2
    exit 1
fi
