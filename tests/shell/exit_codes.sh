# The job's exit code is the first cause's own; 2 is a mistake of the user's.
code() { rc=0; "$@" > out 2> err || rc=$?; echo "$rc"; }
run="csrun_wse --total-nodes 2 --tasks-per-node 2"
test "$(code $run sh -c 'exit 0')" = 0
test "$(code $run sh -c '[ $SLURM_PROCID != 2 ] || exit 7')" = 7
test "$(code csrun_wse --no-such-option true)" = 2
test "$(code csrun_wse)" = 2
test "$(code csrun_wse no-such-command)" = 2
grep -q "csrun_wse: error: no-such-command: command not found" err
test "$(code csrun_wse --total_nodes=1 --tasks_per_node 1 true)" = 0
test "$(code csrun_wse --total-node 3 true)" = 2
grep -q -- "--total-nodes" err
