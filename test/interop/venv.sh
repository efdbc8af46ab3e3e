# venv.sh - Python packages for the checks beside this file, in virtual environments under build/. Sourced after
# test/run/lib/tiny.sh.
skip() { echo "skipped: $1"; exit 0; }
# in_venv NAME "MODULE, ..." PACKAGE...: sets PYTHON to the interpreter of build/venv-NAME. If it cannot import the
# modules, the packages are installed there. Ends the script if that fails.
in_venv() {
    local modules=$2 venv=$PWD/build/venv-$1; shift 2
    PYTHON=$venv/bin/python
    python3 -c 'import venv, ensurepip' 2> /dev/null || skip "python3-venv is not installed"
    ! "$PYTHON" -c "import $modules" 2> /dev/null || return 0
    [ -x "$PYTHON" ] || python3 -m venv "$venv" > "$WORK/log" 2>&1 || skip "no virtual environment under build/: $(tail -n 1 "$WORK/log")"
    install() { timeout 1200 "$venv/bin/pip" install --quiet --disable-pip-version-check "$@" > "$WORK/log" 2>&1; }
    # PyTorch without CUDA's libraries is installed, if it is available
    case $modules in *torch*) install --retries 0 --timeout 10 --index-url https://download.pytorch.org/whl/cpu torch ;; esac
    install "$@" || skip "$* cannot be installed: $(grep -v '^$' "$WORK/log" | tail -n 1)"
}
# with_modules NAME "MODULE, ..." PACKAGE...: sets PYTHON to this machine's python3 if it has the modules, else as
# in_venv does.
with_modules() { PYTHON=python3; "$PYTHON" -c "import $2" 2> /dev/null || in_venv "$@"; }
