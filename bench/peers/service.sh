# For the start and stop scripts beside this one: a server with its process id in DIR/pid. Source it.

# alive PID: whether that process runs; one that has ended and that nobody has waited for does not.
alive() {
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    # Behind the name, which is in parentheses: the state.
    stat=${stat##*) }
    [ "${stat%% *}" != Z ]
}

# free_ports COUNT: the first of so many ports in a row on which nobody listens, below those of outgoing connections.
free_ports() {
    local first port
    while :; do
        first=$((20000 + RANDOM % 12000))
        for ((port = first; port < first + $1; port++)); do
            (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null && continue 2
        done
        echo "$first"
        return
    done
}

# running DIR: whether the server that was started there lives.
running() {
    [ -s "$1/pid" ] && alive "$(cat "$1/pid")"
}

# start_server DIR READY-COMMAND -- COMMAND...: runs COMMAND in the background, waits up to a minute until READY-COMMAND succeeds.
start_server() {
    local dir=$1 ready=$2
    shift 3
    if running "$dir"; then
        echo "$dir: already running, pid $(cat "$dir/pid")" >&2
        return 1
    fi
    "$@" >"$dir/log" 2>&1 </dev/null &
    echo $! >"$dir/pid"
    local deadline=$((SECONDS + 60))
    until eval "$ready" >/dev/null 2>&1; do
        if ! running "$dir" || [ $SECONDS -ge $deadline ]; then
            tail -20 "$dir/log" >&2
            stop_server "$dir"
            return 1
        fi
        sleep 0.2
    done
    echo "ready, pid $(cat "$dir/pid")"
}

# stop_server DIR: asks it to end, and makes it end after 20 s.
stop_server() {
    running "$1" || { rm -f "$1/pid"; return 0; }
    local pid deadline=$((SECONDS + 20))
    pid=$(cat "$1/pid")
    kill "$pid" || true
    while alive "$pid"; do
        [ $SECONDS -lt $deadline ] || kill -9 "$pid" || true
        sleep 0.1
    done
    rm -f "$1/pid"
}
