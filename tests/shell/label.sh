# --label: every line of every task, after the task's rank; widths as srun's.
csrun_wse --label --total-nodes 6 --tasks-per-node 2 sh -c 'echo one; printf two' > out 2> err
test "$(grep -c ': one$' out)" = 12
test "$(grep -c ': two$' out)" = 12
grep -qx ' 0: one' out
grep -qx '11: two' out
# Block and cyclic distribution: where each rank is; the first node is always filled first.
where() { csrun_wse --label --total-nodes 3 --tasks-per-node 2 "$@" sh -c 'echo $SLURM_NODEID' | grep : | grep -v Launching | sort | tr -d '\n'; }
test "$(where)" = '0: 01: 02: 13: 14: 25: 2'
test "$(where --cyclic)" = '0: 01: 02: 13: 24: 15: 2'
