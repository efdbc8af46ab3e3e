#!/usr/bin/env bash
# fetch.sh - fetches data to train on into datasets/NAME: text, token shards or parquet files.
#   scripts/fetch.sh                              prints the names, with size and use
#   scripts/fetch.sh NAME [FOLDER] [shards=N]     N: number of training files; files for validation are always fetched
# A broken download continues where it stopped, at once and when the same command is typed again. FILE.part
# becomes FILE when its size, its SHA-256 (if the server or this script names one) and its own header are right.
# FETCH_BASE replaces https://HOST of all sources; FETCH_TRIES (5): tries in a row that bring no new bytes before it
# gives up. Exit codes: 0 done, 64 usage, 65 the bytes are not those promised, 69 no curl or no network, 74 a full disk
# or no right to write.
set -u
invoked_from=$PWD ROOM="make room, name another folder, or take fewer shards="
cd "$(dirname "$0")/.." || exit 74
TRIES=${FETCH_TRIES:-5} # downloads in a row that bring nothing new

die() { local code=$1; shift; echo "fetch: $*" >&2; exit "$code"; }

# The columns: name | approximate bytes of a training file | number of training files | number fetched by default | use
NAMES='
tinyshakespeare | 1115394    | 1    | 1   | text, 1.1 MB: a first run on a laptop (configs/laptop.json)
tinystories     | 2250000000 | 1    | 1   | text, 2.3 GB: stories in simple words, for small models
fineweb-10b     | 200001024  | 103  | 103 | GPT-2 tokens, 20.6 GB: 10 billion (configs/gpt2-124m.json)
fineweb-edu     | 200001024  | 1001 | 100 | GPT-2 tokens, 0.2 GB a shard of 1001 (gpt2-355m.json and larger)
climbmix        | 95000000   | 6542 | 10  | text, 0.1 GB a parquet file of 6542, shuffled
'
row() { sed -n "s/^$1  *| *//p" <<<"$NAMES"; }
field() { cut -d'|' -f"$2" <<<"$(row "$1")" | tr -d ' '; }
list() {
    echo "scripts/fetch.sh NAME [FOLDER] [shards=N] fetches data into datasets/NAME, or FOLDER:"
    sed -n 's/^\([a-z0-9-]*\)  *|.*| *\([^|]*\)$/\1\t\2/p' <<<"$NAMES" | awk -F'\t' '{printf "  %-16s %s\n", $1, $2}'
}

# files NAME SHARDS: prints "FILE URL [SHA-256]" for each file, those for validation first.
files() { # NAME SHARDS
    local hub=https://huggingface.co/datasets numbers
    numbers=$(seq 1 "$2")
    case $1 in
    tinyshakespeare)
        echo "input.txt https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt" \
            86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed ;;
    tinystories)
        for part in valid train; do
            echo "TinyStoriesV2-GPT4-$part.txt $hub/roneneldan/TinyStories/resolve/main/TinyStoriesV2-GPT4-$part.txt"
        done ;;
    fineweb-10b) shards fineweb "$hub/kjj0/fineweb10B-gpt2/resolve/main" "$numbers" ;;
    fineweb-edu) shards edu_fineweb "$hub/karpathy/fineweb-edu-100B-gpt2-token-shards/resolve/main" "$numbers" ;;
    climbmix) # the list of climbmix ends with file 6542, which is for validation
        for i in 6542 $(seq 0 $(($2 - 1))); do
            file=$(printf 'shard_%05d.parquet' "$i")
            echo "$file $hub/karpathy/climbmix-400b-shuffle/resolve/main/$file"
        done ;;
    esac
}
shards() { # PREFIX URL NUMBERS
    printf '%s_val_000000.bin %s/%s_val_000000.bin\n' "$1" "$2" "$1"
    for i in $3; do printf '%s_train_%06d.bin %s/%s_train_%06d.bin\n' "$1" "$i" "$2" "$1" "$i"; done
}

next() { # next NAME FOLDER: prints the command to type after the fetch
    local keys='' # of data elsewhere than the configs have them
    [ "$2" = "datasets/$1" ] || keys=" data.train='$2/*train_*.bin' data.val='$2/*val_*.bin'"
    case $1 in
    tinyshakespeare) echo "./train_gpt tokenize $2/input.txt out=$2 val=0.1 && ./train_gpt configs/laptop.json$keys" ;;
    tinystories) echo "./train_gpt train-tokenizer $2/TinyStoriesV2-GPT4-valid.txt out=$2 vocab_size=4096 &&
      ./train_gpt tokenize $2/TinyStoriesV2-GPT4-train.txt out=$2 tokenizer=$2 val=0.01" ;;
    fineweb-10b) echo "./train_gpt plan configs/gpt2-124m.json ranks=8$keys" ;;
    fineweb-edu) echo "./train_gpt plan configs/gpt2-355m.json ranks=8$keys" ;;
    climbmix) echo "./train_gpt tokenize $2/*.parquet out=$2 tokenizer=FOLDER val=0.01" ;;
    esac
}

# --- one file -----------------------------------------------------------------------------------------------------

size_of() { if [ -e "$1" ]; then stat -c %s "$1"; else echo 0; fi; }
count_files() { if [ "$1" -eq 1 ]; then echo "1 file"; else echo "$1 files"; fi; }
free_bytes() { df -B1 --output=avail "$1" | tail -n 1; }
gb() { awk -v bytes="$1" 'BEGIN { printf bytes < 1e9 ? "%.1f MB" : "%.1f GB", bytes / (bytes < 1e9 ? 1e6 : 1e9) }'; }

said() { tr '\r' '\n' <"$log" | sed -n 's/^curl: //p' | head -n 1; } # beside its progress
# explain CURL'S-STATUS URL: prints why curl failed, and sets the exit code of this script.
explain() { # CURL'S-STATUS URL
    local host=${2#*//}; host=${host%%/*}
    case $1 in
    5 | 6 | 7 | 28)
        die 69 "no way to $host (curl $1): is there a network? A proxy goes into https_proxy" ;;
    35 | 58 | 60 | 77)
        die 69 "$host does not prove who it is (curl $1): is ca-certificates installed, is the clock right?" ;;
    22) die 69 "$host refuses $2: $(said)" ;;
    23) die 74 "cannot write here (curl 23): $(said)" ;;
    *) die 69 "$2: curl ended with $1: $(said)" ;;
    esac
}

# ask URL: sets size and sha256 to the values that the server sends, or to "" if it sends none. For files in large-file
# storage (LFS) Hugging Face sends both (x-linked-*). For other files only the size is used.
ask() { # URL
    local headers
    headers=$(curl -fsSIL --max-time 60 "$1" 2>"$log") || explain $? "$1"
    headers=$(tr -d '\r' <<<"$headers" | tr 'A-Z' 'a-z')
    size=$(sed -n 's/^x-linked-size: *\([0-9]*\)$/\1/p' <<<"$headers" | head -n 1)
    [ -n "$size" ] || size=$(awk '/^http\//{size = ""} /^content-length:/{size = $2} END {print size}' <<<"$headers")
    sha256=$(sed -n 's/^x-linked-etag: *"\{0,1\}\([0-9a-f]\{64\}\)"\{0,1\}$/\1/p' <<<"$headers" | head -n 1)
}

get() { curl -fL --connect-timeout 30 --speed-limit 1 --speed-time 60 -C - -o "$@"; }
# download URL FILE: fetches into FILE until it has `size` bytes. After a broken connection it continues at the byte
# where it stopped.
download() { # URL FILE
    local before tries=0 status
    while :; do
        before=$(size_of "$2")
        [ -n "$size" ] && [ "$before" = "$size" ] && return
        if [ -n "$size" ] && [ "$before" -gt "$size" ]; then rm -f "$2"; before=0; fi
        if [ -t 2 ]; then get "$2" --progress-bar "$1" 2> >(tee "$log" >&2)
        else get "$2" -sS "$1" 2>"$log"
        fi
        status=$?
        case $status in
        0) [ -z "$size" ] && return ;;                   # else the size decides
        33 | 36) rm -f "$2" ;;                           # this server cannot go on in the middle
        # curl's exit codes for a connection that broke or hangs: tries again
        18 | 28 | 52 | 55 | 56 | 92) ;;
        *) explain $status "$1" ;;
        esac
        if [ "$(size_of "$2")" -gt "$before" ]; then tries=0; else tries=$((tries + 1)); fi
        [ $tries -lt "$TRIES" ] ||
            die 69 "$1 was cut $TRIES times without a byte more: $(size_of "$2") of ${size:-?} bytes; type it again"
        [ $status -eq 0 ] || echo "  cut after $(size_of "$2") of ${size:-?} bytes; going on"
        sleep $((tries > 0 ? 2 * tries - 1 : 0))
    done
}

u32() { od -An -tu4 -j "$2" -N 4 --endian=little "$1" | tr -d ' '; }
# is_whole FILE NAME: succeeds if FILE is what its name promises: an llm.c header with as many tokens as it says, or
# parquet's magic bytes at both ends.
is_whole() { # FILE NAME
    case $2 in
    *.bin)     [ "$(u32 "$1" 0) $(u32 "$1" 4) $(size_of "$1")" = "20240520 1 $((1024 + 2 * $(u32 "$1" 8)))" ] ;;
    *.parquet) [ "$(head -c 4 "$1")" = PAR1 ] && [ "$(tail -c 4 "$1")" = PAR1 ] ;;
    *)         [ -s "$1" ] ;;
    esac
}

refuse() { rm -f "$part"; die 65 "$1: it is removed; type the same command again, or look at $url"; }
fetch() { # NAME URL [SHA-256]
    local file=$folder/$1 part=$folder/$1.part url=$2 wanted=${3:-} size sha256 found room
    [ -z "${FETCH_BASE:-}" ] || url=$FETCH_BASE/$(cut -d/ -f4- <<<"$url")
    ask "$url"
    sha256=${wanted:-$sha256}
    room=$(($(free_bytes "$folder") + $(size_of "$part")))
    if [ -n "$size" ] && [ "$size" -gt "$room" ]; then
        die 74 "$1 has $(gb "$size"), and $folder has room for $(gb "$room"): $ROOM"
    fi
    download "$url" "$part"
    if [ -n "$sha256" ]; then
        found=$(sha256sum "$part" | cut -d' ' -f1)
        [ "$found" = "$sha256" ] || refuse "$1 has SHA-256 $found, not $sha256"
    fi
    is_whole "$part" "$1" || refuse "$1 is not what its name says"
    mv "$part" "$file" || exit 74
    fetched=$((fetched + 1))
    echo "  $file  $(gb "$(size_of "$file")")${sha256:+, SHA-256 is right}"
}

# --- the whole ----------------------------------------------------------------------------------------------------

[ $# -gt 0 ] || { list; exit 0; }
name=$1 folder='' count=''
shift
for word in "$@"; do
    case $word in
    shards=*) count=${word#shards=} ;;
    *=* | -*) die 64 "$word is no option: shards=N is" ;;
    *)
        [ -z "$folder" ] || die 64 "two folders: $folder and $word"
        folder=$word
        case $word in /*) ;; *) folder=$invoked_from/$word ;; esac ;;
    esac
done
case $name in -h | --help | help) list; exit 0 ;; esac
[[ $name =~ ^[a-z0-9-]+$ ]] && [ -n "$(row "$name")" ] || { list >&2; die 64 "no data are called $name"; }
most=$(field "$name" 2) count=${count:-$(field "$name" 3)}
[[ $count =~ ^[1-9][0-9]{0,5}$ ]] && [ "$count" -le "$most" ] || die 64 "shards=$count: 1 to $most"
command -v curl >/dev/null || die 69 "curl is not installed: apt-get install curl"
folder=${folder:-datasets/$name}
mkdir -p "$folder" 2>/dev/null && [ -w "$folder" ] || die 74 "cannot write into $folder"
exec 9<"$folder"; flock -n 9 || die 74 "another fetch.sh writes into $folder"
log=$(mktemp); trap 'rm -f "$log"' EXIT

there=0 fetched=0 lacking=()
while read -r file url sha256; do
    if [ -e "$folder/$file" ]; then there=$((there + 1)); else lacking+=("$file $url $sha256"); fi
done < <(files "$name" "$count")
if [ ${#lacking[@]} -gt 0 ]; then
    about=$((${#lacking[@]} * $(field "$name" 1)))
    for file in "$folder"/*.part; do [ -e "$file" ] && about=$((about - $(size_of "$file"))); done
    [ "$about" -le "$(free_bytes "$folder")" ] ||
        die 74 "about $(gb "$about") are missing, and $folder has room for $(gb "$(free_bytes "$folder")"): $ROOM"
    [ $there -eq 0 ] || echo "$name: $(count_files $there) there already"
    echo "$name: $(count_files ${#lacking[@]}) to fetch, about $(gb "$about"), into $folder"
    for file in "${lacking[@]}"; do
        # shellcheck disable=SC2086 # three words
        fetch $file
    done
fi
echo "$name is complete: $(count_files $((there + fetched))) in $folder ($fetched new). Next:"
echo "      $(next "$name" "${folder#"$PWD/"}")"
