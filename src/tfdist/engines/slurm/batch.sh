# The lines above set what depends on the job, such as run_dir. All that follows is the same in every job.

TFDIST_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export TFDIST_SECRET
export SLURM_EXPORT_ENV=ALL  # with sbatch --export=NONE, srun would not pass them on

# 193 to 255 are no signals, but exit statuses such as that of sys.exit(-1).
is_signal() { [ $1 -gt 128 ] && [ $1 -le 192 ] && [ $1 != $restart_status ]; }

# Each task is a shell that runs the command, passes signals on to it, and records how it has ended in a
# folder that this script reads after the step. srun itself tells only the highest exit status of all tasks.
run_task() {
    exec >> "$run_dir/logs/rank-$SLURM_PROCID.log" 2>&1
    told=
    for name in TERM INT HUP USR1 USR2; do trap "on_signal $name" $name; done
    : > "$ends/$SLURM_PROCID.started"
    export TFDIST_ENGINE=1
    # Otherwise SIGKILL loses the last lines, and a crash in TensorFlow's C++ leaves no traceback of Python's.
    export PYTHONUNBUFFERED=${PYTHONUNBUFFERED-1} PYTHONFAULTHANDLER=${PYTHONFAULTHANDLER-1}
    threads=${threads:-${SLURM_CPUS_PER_TASK:-}}
    if [ $threads ]; then
        export TF_NUM_INTRAOP_THREADS=${TF_NUM_INTRAOP_THREADS:-$threads}
        export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads}
    fi
    share_gpus
    if [ $SLURM_PROCID = $lead ]; then export TFDIST_PROGRESS_FILE=$run_dir/logs/progress.json; fi
    run "$@"
    # A task of these ranks that a signal has killed, and that nobody has told to end, is started again: three
    # times, which each new checkpoint renews.
    is_alone=
    case " $alone_ranks " in *" $SLURM_PROCID "*) is_alone=yes ;; esac
    starts=1 saved_before=
    while [ $is_alone ] && is_signal $status && [ -z "$told" ]; do
        saved=$(cat "$saved_step" 2> /dev/null)
        if [ "$saved" != "$saved_before" ]; then starts=1; saved_before=$saved; fi
        if [ $starts -gt 3 ]; then break; fi
        starts=$((starts + 1))
        echo "Lost with status $status: start $starts of this task alone"
        run "$@"
    done
    if [ $status != 0 ] && [ -z "$is_alone" ]; then ln -s $status "$ends/first" 2> /dev/null; fi
    ln -s $status "$ends/$SLURM_PROCID"
    exit $status
}

# All tasks of a node see all GPUs of the job there, unless an option gives each its own. As the launcher does,
# divide them among the tasks that compute, and hide them from the others: TensorFlow allocates the whole memory
# of what it sees. Where none of them computes, the GPUs of the node are for these tasks.
share_gpus() {
    if [ -z "${CUDA_VISIBLE_DEVICES:-}" ] || [ -z "${SLURM_GTIDS:-}" ] || [ $own_gpus ]; then return; fi
    if [ "${SLURM_GPUS_PER_TASK:-}${SLURM_NTASKS_PER_GPU:-}${SLURM_GPU_BIND:-}" ]; then return; fi
    local gpus ranks rank offset index='' count=0 part
    IFS=, read -ra gpus <<< "$CUDA_VISIBLE_DEVICES"
    IFS=, read -ra ranks <<< "$SLURM_GTIDS"  # of this node; numbered within a component, in some versions
    offset=$((SLURM_PROCID - ranks[SLURM_LOCALID]))
    for rank in "${ranks[@]}"; do
        rank=$((rank + offset))
        case " $computing_ranks " in *" $rank "*) ;; *) continue ;; esac
        if [ $rank = $SLURM_PROCID ]; then index=$count; fi
        count=$((count + 1))
    done
    if [ $count = 0 ]; then return; fi
    if [ -z "$index" ]; then export CUDA_VISIBLE_DEVICES=-1; return; fi
    part=$((${#gpus[@]} / count))
    if [ $part = 0 ]; then
        part=1
        export TFDIST_SHARES_GPU=1 TF_FORCE_GPU_ALLOW_GROWTH=${TF_FORCE_GPU_ALLOW_GROWTH:-true}
    fi
    gpus=("${gpus[@]:index * part % ${#gpus[@]}:part}")
    CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${gpus[*]}")
}

on_signal() {
    told=$1 again=yes
    if [ "$tracking" = cgroup ]; then signal_groups $1 || kill -$1 $! 2> /dev/null; fi
}

# The command has a session of its own, so that signals reach what a shell script runs. A shell that a signal
# ends does not wait for its commands, which save their work. With proctrack/pgid, Slurm would lose it; so it
# may where the tracking is unknown.
run() {
    told_before=$told
    session=
    case "$tracking" in '' | pgid) ;; *) session=$(command -v setsid) ;; esac
    (trap - INT QUIT; exec $session "$@") <&0 &
    if [ "$told_before" ]; then kill -$told_before $!; fi
    while again=; wait $!; status=$?; [ "$again" ]; do :; done
    if [ $status -lt 0 ]; then status=143; fi  # so bash tells if the command ends while a signal interrupts it
    if [ -z "$session" ]; then return; fi
    if [ "$told" ] && is_signal $status; then
        while [ "$(groups_of $!)" ]; do sleep 0.2; done
    fi
    signal_groups KILL
}

# Fail if there are none: the command has no session of its own, or not yet.
signal_groups() {
    local group groups
    groups=$(groups_of $!)
    for group in $groups; do kill -$1 -- -$group 2> /dev/null; done
    [ "$groups" ]
}

# The process groups of a session. A shell script may begin some, by timeout or set -m.
groups_of() {
    local leader=$1 stat line found=' '
    for stat in /proc/[0-9]*/stat; do
        if { read -r line < "$stat"; } 2> /dev/null; then
            set -- ${line##*) }  # state, parent, group, session
            if [ "$4" != $leader ] || [ $1 = Z ]; then continue; fi
            case $found in *" $3 "*) ;; *) found="$found$3 " ;; esac
        fi
    done
    echo $found
}

# Some tasks do not end with the others: an evaluator waits for the next checkpoint. The tasks that cannot do
# without a lost one have a minute to save their work and end.
end_the_rest() {
    until [ -L "$ends/first" ]; do sleep 5; done
    sleep 60
    if [ "$(readlink "$ends/$lead")" != 0 ]; then scancel --signal=TERM "$SLURM_JOB_ID"; fi
}

# As the launcher decides: a restart helps if a signal has ended a task, or its status asks for a restart. It
# does not if a task has ended with another status, unless one that a signal has ended was the first to fail.
decide_status() {
    lead_end=$(readlink "$ends/$lead")
    own='' lost='' missing=''
    for rank in "${!names[@]}"; do
        end=$(readlink "$ends/$rank")
        if [ -z "$end" ] && [ -e "$ends/$rank.started" ]; then end=137; fi  # killed with its shell, or its node
        if [ -z "$end" ]; then missing=yes; fi
        if [ "${end:-0}" = 0 ]; then continue; fi
        echo "${names[rank]} ended with $end"
        kind=own
        if [ $end = $restart_status ] || is_signal $end; then kind=lost; fi
        if [ "$lead_end" = 0 ]; then
            # The job survives whatever ends a worker that comes and goes, and the loss of a task that serves.
            survived=$transient_roles
            if [ $kind = lost ]; then survived="$survived $serving_roles"; fi
            case " $survived " in *" ${names[rank]%:*} "*) continue ;; esac
        fi
        if [ $kind = own ]; then own=${own:-$end}; else lost=yes; fi
    done
    first=$(readlink "$ends/first")
    if is_signal ${first:-0}; then own=''; fi
    if [ "$own" ]; then status=$own
    elif [ "$lost" ]; then status=$restart_status
    elif [ "$lead_end" = 0 ] && [ -z "$missing" ]; then status=0
    elif is_signal $status; then status=$restart_status
    fi
}

rm -rf "$run_dir"/.ends-* "$run_dir/exit_status" "$run_dir/cancelled"
if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then rm -f "$run_dir/restarts"; fi  # of a job whose run this one continues
ends=$(mktemp -d "$run_dir/.ends-XXXXXX") || exit 2
# By cgroup, signals reach only a task's first process, which is a shell.
tracking=$(scontrol show config 2> /dev/null | grep -o 'proctrack/[a-z]*')
tracking=${tracking#proctrack/}
# Not --output=rank-%t.log: in heterogeneous jobs Slurm 22.05 leaves out numbers.
task=(bash -c "
$(declare -p run_dir ends tracking restart_status saved_step lead alone_ranks computing_ranks own_gpus threads)
$(declare -f is_signal share_gpus run_task on_signal run signal_groups groups_of)
run_task \"\$@\"" task "${command[@]}")

if [ "$alone_ranks" ]; then
    end_the_rest > /dev/null 2>&1 &
    watch=$!
fi
start_tasks
status=$?
if [ "$alone_ranks" ]; then kill $watch 2> /dev/null; fi
decide_status
rm -rf "$ends"
echo $status > "$run_dir/exit_status"

# With $restart_status all is saved, and the same command continues. A new checkpoint renews the restarts.
saved=$(cat "$saved_step" 2> /dev/null)
restarts=0
if [ -f "$run_dir/restarts" ]; then read -r restarts saved_before < "$run_dir/restarts"; fi
if [ "$saved" != "${saved_before:-}" ]; then restarts=0; fi
if [ $status = $restart_status ] && [ $restarts -lt $most_restarts ]; then
    echo "$((restarts + 1)) $saved" > "$run_dir/restarts"
    scontrol requeue "$number"
fi
exit $status
