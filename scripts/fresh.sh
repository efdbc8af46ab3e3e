#!/usr/bin/env bash
# make test-fresh: runs the commands of the README in new root folders (chroot) of Debian 12 and 13 that have only
# git and make.
#   scripts/fresh.sh [bookworm|trixie]... [STEP]...   steps: demo, test (both as root), user (demo and test as a user
#                                                     without root rights), mpich, nompi (smoke tests of these
#                                                     builds); only if named: hosts and slurm (make test-hosts,
#                                                     make test-slurm)
#   scripts/fresh.sh short                            build and smoke tests in one root of Debian 12; prints `skip`
#                                                     if no root folder can be made
# Needs root (chroot, mount namespaces), mmdebstrap and network. Roots are made in $TMPDIR and removed at the end. The
# base of each release is kept in build/fresh/. Mounts are in their own namespace, which ends with its last process.
set -u
. "$(dirname "$0")/env.sh"
short='' releases=() steps=()
for word in "$@"; do
    case $word in
    short) short=1 releases=(bookworm) steps=(smoke) ;;
    bookworm | trixie) releases+=("$word") ;;
    demo | test | user | mpich | nompi | hosts | slurm) steps+=("$word") ;;
    *) echo "fresh: $word: one of short, bookworm, trixie, demo, test, user, mpich, nompi, hosts, slurm" >&2; exit 64 ;;
    esac
done
[ ${#releases[@]} -gt 0 ] || releases=(bookworm trixie)
[ ${#steps[@]} -gt 0 ] || steps=(demo test user nompi mpich)

cannot() { # WHAT TO-TYPE
    if [ -n "$short" ]; then echo "skip fresh: $1"; exit 0; fi
    echo "fresh: $1: $2" >&2; exit 69
}
[ "$(id -u)" = 0 ] || cannot "root rights are needed, for chroot and mounts" "sudo make test-fresh"
command -v mmdebstrap > /dev/null || cannot "mmdebstrap is not installed" "apt-get install mmdebstrap"
unshare -m -p -f true 2> /dev/null || cannot "this machine forbids namespaces of mounts and processes" "use a machine where unshare -m -p -f true works"

work=$(mktemp -d -t train_gpt-fresh.XXXXXX) kept=$PWD/build/fresh commit=$(git describe --always --dirty) job='' failed=0
mkdir -p "$kept"
finish() {
    trap '' INT TERM HUP
    if [ -n "$job" ]; then kill -KILL "$job" 2> /dev/null; wait "$job" 2> /dev/null; fi # unshare, and with it all in its root
    for _ in $(seq 50); do rm -rf --one-file-system "$work" 2> /dev/null && break; sleep 0.1; done
    rm -rf --one-file-system "$kept"/*.new
    trap - EXIT
    exit "$1"
}
trap 'finish $?' EXIT
trap 'finish 130' INT; trap 'finish 143' TERM; trap 'finish 129' HUP
# patient COMMAND...: runs a command in the background and waits for it, so that a trapped signal can act before the
# command ends.
patient() { "$@" & job=$!; wait $job; local status=$?; job=''; return $status; }

# sources RELEASE: prints the lines of apt's list for a release, from this machine's mirror if it is a Debian machine,
# otherwise from debian.org.
sources() { # RELEASE
    local here main security
    here=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    # lists: prints the entries of apt's lists, in both formats, as "URI SUITE".
    lists() {
        sed -nE 's/^deb +(\[[^]]*\] +)?([^ ]+) +([^ ]+) .*/\2 \3/p' /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2> /dev/null
        cat /etc/apt/sources.list.d/*.sources 2> /dev/null | awk -F': *' '/^URIs:/ { uri = $2 } /^Suites:/ { n = split($2, s, " "); for (i = 1; i <= n; i++) print uri, s[i] }'
    }
    main=$(lists | awk -v s="$here" '$2 == s && /debian/ { print $1; exit }')
    security=$(lists | awk -v s="$here-security" '$2 == s && /debian/ { print $1; exit }')
    main=${main:-http://deb.debian.org/debian}
    printf 'deb %s %s main\n' "$main" "$1" "$main" "$1-updates" "${security:-http://deb.debian.org/debian-security}" "$1-security"
}
# apt_proxies prints apt's proxies as options; proxies prints the proxy variables of the environment.
apt_proxies() { apt-config dump 2> /dev/null | grep -iE '^Acquire::(http|https|ftp)::Proxy'; }
proxies() { env | grep -iE '^((https?|ftp|all|no)_proxy|PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST))='; }

base() { # base RELEASE: makes build/fresh/RELEASE.tar, a root folder of that Debian release with only git and make
    local options=() line lines=()
    find "$kept" -name "$1.tar" -mtime +14 -delete
    [ ! -s "$kept/$1.tar" ] || return 0
    while read -r line; do [ -z "$line" ] || options+=(--aptopt="$line"); done < <(apt_proxies)
    while read -r line; do lines+=("$line"); done < <(sources "$1")
    echo "fresh: a root of $1, from ${lines[0]}"
    if ! patient timeout 1200 mmdebstrap --quiet --format=tar --variant=minbase --include=make,git,ca-certificates "${options[@]}" "$1" "$kept/$1.new" "${lines[@]}" > "$work/log" 2>&1 < /dev/null; then
        cannot "mmdebstrap could make no root of $1 ($(grep '^E:' "$work/log" | tail -n 1))" "see that apt has a mirror of $1 here"
    fi
    mv "$kept/$1.new" "$kept/$1.tar"
}

anew() { # anew RELEASE: makes a new root folder $root of that Debian release, with a clone of HEAD and a user
    root=$work/root
    rm -rf --one-file-system "$root"; mkdir -p "$root" "$kept/archives-$1/partial"
    tar -xf "$kept/$1.tar" -C "$root" --exclude='./dev/*'
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/" 2> /dev/null
    apt_proxies > "$root/etc/apt/apt.conf.d/90proxies"
    archives=$kept/archives-$1
    chroot "$root" useradd -m -s /bin/bash newcomer
    for home in root home/newcomer; do git clone -q --no-hardlinks "$PWD" "$root/$home/train_gpt" || exit; done
    chroot "$root" chown -R newcomer: /home/newcomer
}
# types WHO COMMAND: runs a command in the clone in $root, as user WHO who has just logged in. The file $said gets its
# output.
types() {
    local home=/root id=0 path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin settings=() line
    [ "$1" = root ] || home=/home/$1 id=1000 path=/usr/local/bin:/usr/bin:/bin
    while read -r line; do [ -z "$line" ] || settings+=("$line"); done < <(proxies)
    said=$work/said
    # The first process of a namespace adopts its orphans. It is a shell, which waits for them.
    # shellcheck disable=SC2016
    patient unshare -m -p -f --kill-child --propagation private sh -c '
        root=$1 archives=$2 id=$3; shift 3
        mount --bind "$root" "$root" || exit 125 # a root that is a mount, as a machine has it
        mount -t proc proc "$root/proc" && mount --rbind /sys "$root/sys" && mount --rbind /dev "$root/dev" && mount -t tmpfs tmpfs "$root/dev/shm" &&
            mount --bind "$archives" "$root/var/cache/apt/archives" || exit 125
        chroot --userspec="$id:$id" --groups="$id" "$root" env -i --default-signal=INT,QUIT "$@"
        exit $?' _ "$root" "$archives" "$id" HOME="$home" USER="$1" PATH="$path" LANG=C.UTF-8 TERM=xterm "${settings[@]}" \
        bash -c "cd ~/train_gpt && $2" > "$said" 2>&1 < /dev/null
}
verdict() { # verdict NAME STATUS SINCE: prints the result of step NAME, and after a failure the end of its output
    if [ "$2" -eq 0 ]; then
        echo "ok $1: $(tail -n 1 "$said") ($(($(date +%s) - $3)) s)"
    else
        failed=$((failed + 1))
        echo "not ok $1: exit code $2 ($(($(date +%s) - $3)) s)"
        grep -E '^--- |^not ok|^failed: |^left behind' "$said" | head -n 60; tail -n 30 "$said"
    fi
    [ -z "${LOGS:-}" ] || cp "$said" "$LOGS/$(tr -c 'a-z0-9\n' '-' <<< "$1").log" # LOGS=FOLDER keeps all that was printed
}
try() { # WHO NAME COMMAND
    local at; at=$(date +%s)
    types "$1" "$3"; verdict "$2" $? "$at"
}
# asks NAME COMMAND: checks that COMMAND, run by a user without root rights, prints one line for root to type. Then runs
# that line as root.
asks() {
    local line
    types newcomer "$2" && { failed=$((failed + 1)); echo "not ok $1: done without the packages that it needs"; return; }
    line=$(grep -E '^  .*apt-get install' "$said")
    [ -n "$line" ] && [ "$(wc -l <<< "$line")" -eq 1 ] || { failed=$((failed + 1)); echo "not ok $1: a user without rights is given no line to type, or several:"; cat "$said"; return; }
    try root "$1: root types the line it gives" "$line"
}

for release in "${releases[@]}"; do
    base "$release"
    for step in "${steps[@]}"; do
        anew "$release"
        case $step in
        smoke | demo | test) try root "$release, root, make $step" "make $step" ;;
        hosts | slurm) try root "$release, root, make test-$step" "make test-$step" ;;
        mpich) try root "$release, root, make MPI=mpich smoke" "make MPI=mpich smoke" ;;
        nompi) try root "$release, root, make MPI=0 smoke" "make MPI=0 smoke" ;;
        user)
            for command in "make demo" "make test"; do
                asks "$release, user, $command" "$command"
                try newcomer "$release, user, $command" "$command"
            done ;;
        esac
    done
done
[ $failed -eq 0 ] && echo "fresh: all ok at commit $commit"
exit $((failed > 0))
