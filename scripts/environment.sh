# shellcheck shell=sh
# The environment of this checkout, for the other scripts to source.
#
#     environment run|dev [COMMAND]
#
# makes or updates $venv (default .venv) when it must, and is a few file reads when it need
# not. run = what topobench needs; dev = tests and checks too. docs/install.md names the
# variables it obeys. Nothing here writes to stdout, which belongs to the command.

root=$(dirname -- "$(dirname -- "$(readlink -f -- "$0")")")
venv=${TOPOBENCH_VENV:-$root/.venv}
made=$venv/.made-by-topobench
stamp=$venv/.topobench-environment
failed=3

say() { echo "topobench: $*" >&2; }

# Sets $files (digest of all that decides what is installed) and $driver.
look() {
    files=$(cat "$root/pyproject.toml" "$root"/requirements*.lock "$root"/scripts/*.py | sha256sum)
    files=${files%% *}
    driver=none
    if [ -r /proc/driver/nvidia/version ]; then read -r driver </proc/driver/nvidia/version; fi
}

# Whether the environment is complete and made from what is here now.
stamp_holds() {
    [ -f "$stamp" ] || return 1
    while IFS='=' read -r name value; do
        case $name in
            files) [ "$value" = "$files" ] || return 1 ;;
            root) [ "$value" = "$root" ] || return 1 ;;
            interpreter) [ "$value" = "$(readlink -f -- "$venv/bin/python")" ] || return 1 ;;
            driver) [ "$value" = "$driver" ] || return 1 ;;
            level) [ "$value" = dev ] || [ "$1" = run ] || return 1 ;;
            # Choices made once stay until another one is asked for.
            python) [ "${TOPOBENCH_PYTHON:-$value}" = "$value" ] || return 1 ;;
            torch) [ "${TOPOBENCH_TORCH:-$value}" = "$value" ] || return 1 ;;
            index) [ "${TOPOBENCH_TORCH_INDEX:-$value}" = "$value" ] || return 1 ;;
            # A torch that cannot use the GPUs is looked at again before each measurement.
            gpus) [ "$value" != unusable ] || ! measures "$2" || return 1 ;;
        esac
    done <"$stamp"
}

measures() { [ "$1" = probe ] || [ "$1" = sweep ]; }

new_enough() {
    "$1" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null
}

# Sets $python to an interpreter that is new enough.
find_python() {
    if [ -n "${TOPOBENCH_PYTHON:-}" ]; then
        python=$TOPOBENCH_PYTHON
        new_enough "$python" && return
        say "TOPOBENCH_PYTHON=$python is not a Python 3.11 or newer"
        return 1
    fi
    for python in python3 python3.14 python3.13 python3.12 python3.11; do
        new_enough "$python" && return
    done
    say "no Python 3.11 or newer found. Install one and call again:"
    say "    apt-get install python3.11 python3.11-venv    (Debian, Ubuntu)"
    say "    dnf install python3.12                        (Fedora, RHEL)"
    say "or set TOPOBENCH_PYTHON=/path/to/python"
    return 1
}

# An environment that these scripts did not make is used as it is, never changed.
is_foreign() { [ -e "$venv/pyvenv.cfg" ] && [ ! -e "$made" ]; }

check_foreign() {
    [ -x "$venv/bin/topobench" ] && return
    say "$venv was made by hand and has no topobench. Either add it:"
    say "    $venv/bin/python -m pip install -e '${root}[test,check]'"
    say "or remove that folder, or set TOPOBENCH_VENV to another one"
    return 1
}

environment() {
    if is_foreign; then
        check_foreign || exit $failed
        return 0
    fi
    look
    if stamp_holds "$1" "${2:-}"; then return 0; fi
    mkdir -p "$(dirname -- "$venv")"
    exec 9>"$venv.lock"
    if ! flock -n 9; then
        say "another call is installing into $venv; waiting for it"
        flock 9
    fi
    stamp_holds "$1" "${2:-}" || make_environment "$1" "${2:-}"
    exec 9>&-
}

make_environment() {
    find_python || exit $failed
    measure=
    if measures "$2"; then measure=--measure; fi
    "$python" "$root/scripts/environment.py" --root "$root" --venv "$venv" --level "$1" \
        --files "$files" --driver "$driver" $measure || exit
}
