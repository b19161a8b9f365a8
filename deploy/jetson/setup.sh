#!/bin/sh
# Look at a Jetson before edgevit uses it, and make two changes, each only if you say yes. Read this first.
#
#   sh setup.sh --check         look, and change nothing
#   sh setup.sh [--user NAME]   look, then ask; NAME is who edgevit logs in as, you if left out
#
# The two changes, which need sudo:
#   1. NAME joins the group `jtop`, if jetson-stats is installed: its service answers nobody else.
#   2. /etc/sudoers.d/edgevit: NAME may set the power mode and lock the clocks without a password, which is what
#      `edgevit bench --power-mode` and `--lock-clocks` do. It is shown before it is written.
# Nothing is installed and no setting of the board is touched. Run again, it asks only for what is missing still.
# Exit status: 0 if the board can be used, 1 if something is missing that edgevit needs.
set -eu

root=${EDGEVIT_BOARD_ROOT:-}  # a copy of a board's files may stand in for / in tests
root=${root%/}
user=${SUDO_USER:-$(id -un)}
check_only=no
missing=0

usage() {
    sed -n '4,5s/^#   //p' "$0" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case "$1" in
        --check) check_only=yes ;;
        --user)
            [ $# -ge 2 ] || usage
            user=$2
            shift
            ;;
        *) usage ;;
    esac
    shift
done
case "$user" in
    # ALL is everybody in sudoers, and a number there is no user.
    '' | -* | *[!A-Za-z0-9._-]* | ALL) echo "setup.sh: --user $user is not a user's name" >&2; exit 2 ;;
    *[!0-9]*) ;;
    *) echo "setup.sh: --user $user is a number, expected a user's name" >&2; exit 2 ;;
esac
if ! id -u "$user" > /dev/null 2>&1; then
    echo "setup.sh: this board has no user $user; try one of: getent passwd" >&2
    exit 2
fi

ok() { printf 'ok       %s\n' "$1"; }
note() { printf 'note     %s\n' "$1"; }
lack() { # what is wrong, what to try
    printf 'MISSING  %s\n         try: %s\n' "$1" "$2"
    missing=1
}

find_program() { # the path of a program, as it is on the board
    for folder in usr/sbin usr/bin sbin bin usr/local/bin; do
        if [ -x "$root/$folder/$1" ]; then
            echo "/$folder/$1"
            return
        fi
    done
}

as_root() {
    if [ -n "$root" ] || [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

ask() {
    printf '%s [y/N] ' "$1"
    read -r answer || answer=
    case "$answer" in y | Y | yes) return 0 ;; *) echo 'left as it is'; return 1 ;; esac
}

# -- What is there -----------------------------------------------------------------------------------------------------

look_at_module() {
    tree=$root/proc/device-tree
    compatible=
    [ ! -r "$tree/compatible" ] || compatible=$(tr '\0' ' ' < "$tree/compatible")
    case "$compatible" in
        *nvidia,tegra234*) ok "Jetson Orin: $compatible" ;;
        *nvidia,tegra*) lack "a Jetson, but no Orin: $compatible" "another board; edgevit knows the Orin modules" ;;
        *)
            echo "This is not a Jetson: $tree/compatible does not name an NVIDIA Tegra. Nothing to do here." >&2
            exit 1
            ;;
    esac
}

look_at_release() {
    release=$(sed -n '1s/^# R\([0-9]*\) (release), REVISION: \([0-9.]*\).*/\1.\2/p' "$root/etc/nv_tegra_release" \
        2> /dev/null || true)
    if [ -n "$release" ]; then
        ok "L4T $release"
    else
        lack 'the L4T release: /etc/nv_tegra_release cannot be read' 'sudo apt install nvidia-l4t-core'
    fi
}

look_at_python() {
    python=$(find_program python3)
    if [ -z "$python" ]; then
        lack 'python3' 'sudo apt install python3'
        return
    fi
    version=$("$root$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2> /dev/null || true)
    if "$root$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2> /dev/null; then
        ok "Python $version"
    else
        lack "Python 3.8 or newer, seen ${version:-one that does not start}" 'JetPack 5 or newer'
        return
    fi
    tensorrt=$("$root$python" -c 'import tensorrt; print(tensorrt.__version__)' 2> /dev/null || true)
    if [ -n "$tensorrt" ]; then
        ok "TensorRT $tensorrt"
    else
        lack "TensorRT for $python" 'sudo apt install nvidia-jetpack, or only python3-libnvinfer'
    fi
}

look_at_cuda() {
    for file in "$root"/usr/local/cuda*/lib64/libcudart.so* "$root"/usr/local/cuda*/targets/*/lib/libcudart.so* \
        "$root"/usr/lib/aarch64-linux-gnu/libcudart.so*; do
        if [ -e "$file" ]; then
            ok "CUDA runtime ${file#"$root"}"
            return
        fi
    done
    lack 'the CUDA runtime, libcudart.so' 'sudo apt install nvidia-jetpack, or only nvidia-cuda'
}

look_at_group() { # whoever logs in by the desktop's setup is in it, and a user who was added later is not
    node=$root/dev/nvmap
    [ -e "$node" ] || return 0
    case "$(stat -c %A "$node")" in ???????r*) return 0 ;; esac # everybody may
    group=$(stat -c %G "$node")
    case " $(id -nG "$user" 2> /dev/null || true) " in
        *" $group "* | *' root '*) ok "$user is in the group $group, which may use the GPU" ;;
        *) lack "$user in the group $group, which may use the GPU" "sudo usermod -aG video,render $user; log in anew" ;;
    esac
}

look_at_room() {
    gib=1048576
    free=$(df -Pk "$HOME" | awk 'NR == 2 { print $4 }')
    if [ "$free" -ge $((2 * gib)) ]; then
        ok "$((free / gib)) GiB free for $HOME/.cache/edgevit"
    else
        lack "2 GiB of disk for engines, seen $((free / 1024)) MiB in $HOME" 'sudo apt clean, or remove what is old'
    fi
    available=$(awk '$1 == "MemAvailable:" { print $2 }' "$root/proc/meminfo" 2> /dev/null || true)
    if [ "${available:-0}" -ge $((2 * gib)) ]; then
        ok "$((available / gib)) GiB of memory available"
    else
        lack "2 GiB of memory to build engines in, seen $((${available:-0} / 1024)) MiB" \
            'sudo init 3 (stops the desktop), or a reboot'
    fi
}

look_at_power_mode() {
    nvpmodel=$(find_program nvpmodel)
    jetson_clocks=$(find_program jetson_clocks)
    if [ -z "$nvpmodel" ] || [ -z "$jetson_clocks" ]; then
        lack 'nvpmodel or jetson_clocks' 'sudo apt install nvidia-l4t-nvpmodel nvidia-l4t-tools'
        return
    fi
    mode=$("$root$nvpmodel" -q 2> /dev/null | sed -n 's/^NV Power Mode: *//p' || true)
    ok "power mode ${mode:-unknown (nvpmodel -q says none)}"
}

# -- What may be changed -----------------------------------------------------------------------------------------------

join_jtop() {
    if [ -z "$(find_program jtop)" ]; then
        note 'jetson-stats is not installed; edgevit does without it'
    elif grep -q "^jtop:.*[:,]$user\(,.*\)*\$" "$root/etc/group"; then
        ok "$user is in the group jtop"
    elif [ $check_only = yes ]; then
        note "$user is not in the group jtop; setup.sh without --check asks whether to add it"
    elif ask "Add $user to the group jtop, so that edgevit may read jetson-stats?"; then
        as_root "$root$(find_program usermod)" -aG jtop "$user"
        ok "$user is in the group jtop from the next login on"
    fi
}

# What edgevit runs as root, word for word: other arguments of these two programs could write any file.
sudoers() {
    # The same place as `restore_folder` in edgevit/agent/control.py, whatever the user's XDG_CACHE_HOME.
    home=$(getent passwd "$user" | cut -d: -f6)
    store=${home:-/home/$user}/.cache/edgevit/restore/clocks.store
    cat << LINES
# Written by edgevit's deploy/jetson/setup.sh. Remove this file to take it back.
$user ALL=(root) NOPASSWD: $nvpmodel -q, $nvpmodel -m [0-9], $nvpmodel -m [0-9][0-9]
$user ALL=(root) NOPASSWD: $jetson_clocks "", $jetson_clocks --show
$user ALL=(root) NOPASSWD: $jetson_clocks --store $store, $jetson_clocks --restore $store
LINES
}

allow_clocks() {
    [ -n "$nvpmodel" ] && [ -n "$jetson_clocks" ] || return 0
    drop_in=$root/etc/sudoers.d/edgevit
    wanted=$(mktemp)
    trap 'rm -f "$wanted"' EXIT
    sudoers > "$wanted"
    # -k: a password that was typed a minute ago is not to count as none needed.
    if [ "$user" = root ]; then
        ok 'root needs no permission to set power mode and clocks'
    elif cmp -s "$wanted" "$drop_in" || { [ -z "$root" ] && [ "$user" = "$(id -un)" ] && sudo -k -n "$nvpmodel" -q; } \
        > /dev/null 2>&1; then
        ok "$user may set power mode and clocks without a password"
    elif [ $check_only = yes ]; then
        note "$user needs a password for power mode and clocks; setup.sh without --check asks whether to change that"
    else
        printf '\n%s would hold:\n\n' "$drop_in"
        sed 's/^/    /' "$wanted"
        printf '\njetson_clocks reads and writes as root the file named there, which is in a folder of %s:\n' "$user"
        printf -- '--restore writes to the system what that file says, and --store writes to any file to which %s\n' "$user"
        printf 'makes it a link. Say yes only if you would trust %s with root.\n' "$user"
        ask 'Write it?' || return 0
        visudo=$(find_program visudo)
        if [ -z "$visudo" ] || ! as_root "$root$visudo" -cf "$wanted" > /dev/null; then
            lack 'the consent of visudo -c to these lines; nothing was written' 'sudo apt install sudo'
            return 0
        fi
        as_root install -m 0440 "$wanted" "$drop_in"
        ok "$drop_in written"
    fi
}

look_at_module
look_at_release
look_at_python
look_at_cuda
look_at_group
look_at_room
look_at_power_mode
join_jtop
allow_clocks
exit $missing
