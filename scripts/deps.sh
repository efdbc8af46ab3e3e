#!/usr/bin/env bash
# Installs the missing packages (Debian, Ubuntu) and prints each step. Nothing missing: silent. Without the right to
# install it prints the command to type and exits 1.
#   scripts/deps.sh [slurm]     packages for building, tests and the demo; slurm: those of make test-slurm as well
set -u
case ${1:-} in
slurm) packages=(slurmctld slurmd slurm-client) tools=(slurmctld slurmd sbatch) headers=() ;;
*)     packages=(gcc libc6-dev make pkg-config libdnnl-dev libcjson-dev libcmocka-dev libxxhash-dev libsodium-dev libpcre2-dev libutf8proc-dev libarchive-dev libsnappy-dev libzstd-dev zlib1g-dev libopenmpi-dev openmpi-bin bible-kjv)
       tools=(gcc make pkg-config mpirun) headers=(dnnl.h cjson/cJSON.h cmocka.h xxhash.h sodium.h pcre2.h utf8proc.h archive.h snappy-c.h zstd.h zlib.h) ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    lacking=()
    for tool in "${tools[@]}"; do command -v "$tool" >/dev/null || lacking+=("$tool"); done
    for header in "${headers[@]}"; do
        [ -e "/usr/include/$header" ] || [ -e "/usr/local/include/$header" ] || lacking+=("$header")
    done
    [ ${#lacking[@]} -eq 0 ] && exit 0
    echo "deps: this is no Debian or Ubuntu, so nothing is installed here. Not found: ${lacking[*]}" >&2
    echo "deps: needed are the counterparts of the Debian packages ${packages[*]}" >&2
    exit 1
fi

installed=$(dpkg-query -W -f '${Status} ${Package}\n' "${packages[@]}" 2>/dev/null | sed -n 's/^install ok installed //p')
missing=()
for package in "${packages[@]}"; do
    case $package in gcc | make | pkg-config) command -v "$package" >/dev/null && continue ;; esac # whichever package brought them
    grep -qx "$package" <<<"$installed" || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" = 0 ]; then as_root=()
elif sudo -n true 2>/dev/null; then as_root=(sudo -n)
else
    echo "deps: missing packages: ${missing[*]}" >&2
    echo "deps: type this, then try again:" >&2
    echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
fi

install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}")
echo "deps: installing ${missing[*]}"
known() { apt-cache show --no-all-versions "${missing[@]}" >/dev/null 2>&1; } # does apt know them all already?
if ! known || ! "${as_root[@]}" "${install[@]}"; then
    echo "deps: apt-get update, to learn of current packages"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q || echo "deps: apt-get update failed; going on with what apt knows" >&2
    "${as_root[@]}" "${install[@]}" || { echo "deps: could not install ${missing[*]}" >&2; exit 1; }
fi
echo "deps: installed"
