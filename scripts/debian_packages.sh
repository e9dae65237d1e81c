#!/bin/sh
# Installs the Debian packages that tests of some stores use, where this user may; says what is missing where not.
set -eu

packages="
redis-server       # redis:// addresses are tested against a real Redis
libibverbs1        # RDMA transports load it
ibverbs-providers  # drivers of RDMA devices for libibverbs
libnuma1           # Mooncake's engine loads it
libcurl4           # and it
"

missing=""
for package in $(printf '%s\n' "$packages" | sed 's/#.*//'); do
    if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
        missing="$missing $package"
    fi
done
if [ -z "$missing" ]; then
    exit 0
fi

if ! command -v apt-get >/dev/null 2>&1; then
    echo "Not a Debian system:$missing not installed. Tests that need them are skipped."
elif [ "${APT:-yes}" = no ]; then
    echo "APT=no:$missing not installed. Tests that need them are skipped."
elif [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; then
    if [ "$(id -u)" = 0 ]; then as_root="env"; else as_root="sudo -n env"; fi
    echo "Installing Debian packages:$missing ..."
    if ! said=$({ $as_root apt-get update -qq &&
        $as_root DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing; } \
        2>&1 </dev/null); then
        printf '%s\n' "$said"
        echo "apt-get failed:$missing not installed. Tests that need them are skipped."
    fi
else
    echo "No right to install Debian packages. Tests that need them are skipped; to run them: sudo apt-get install$missing"
fi
