#!/bin/sh
# Debian's chromium for the browser tests, where this user may install it; without one they are skipped and say so.
set -eu
if command -v chromium >/dev/null 2>&1; then
    exit 0
fi
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq && apt-get install -y -qq chromium >/dev/null
    exit 0
fi
echo "no chromium here, and no right to install it: browser tests will be skipped (apt install chromium)"
