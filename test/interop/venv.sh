# venv.sh - Python packages for the checks beside this file, in virtual environments under build/. Sourced after
# test/run/lib/tiny.sh.
skip() { echo "skipped: $1"; exit 0; }
# in_venv NAME "MODULE, ..." PACKAGE...: sets PYTHON to a python that imports the modules: that of build/venv-NAME, in
# which the packages are installed if they are missing. Ends the script if they cannot be.
in_venv() {
    local modules=$2 venv=$PWD/build/venv-$1; shift 2
    PYTHON=$venv/bin/python
    python3 -c 'import venv, ensurepip' 2> /dev/null || skip "python3-venv is not installed"
    ! "$PYTHON" -c "import $modules" 2> /dev/null || return 0
    [ -x "$PYTHON" ] || python3 -m venv "$venv" > "$WORK/log" 2>&1 || skip "no virtual environment under build/: $(tail -n 1 "$WORK/log")"
    install() { timeout 1200 "$venv/bin/pip" install --quiet --disable-pip-version-check "$@" > "$WORK/log" 2>&1; }
    # the version without CUDA's libraries, if it is available
    case $modules in *torch*) install --retries 0 --timeout 10 --index-url https://download.pytorch.org/whl/cpu torch ;; esac
    install "$@" || skip "$* cannot be installed: $(grep -v '^$' "$WORK/log" | tail -n 1)"
}
# with_modules NAME "MODULE, ..." PACKAGE...: the same, but PYTHON is the python3 of this machine if it has the modules.
with_modules() { PYTHON=python3; "$PYTHON" -c "import $2" 2> /dev/null || in_venv "$@"; }
