# The user's quoting reaches the tasks as it was written, and is shown so that it can be pasted.
csrun_wse --total-nodes 1 --tasks-per-node 1 sh -c 'printf "[%s]" "$@"' sh 'a b' '"c"' '$d' '' > out 2> err
grep -F "[a b][\"c\"][\$d][]" out
line=$(sed -n 's/^Launching: //p' out)
eval "set -- $line"
test "$5" = 'a b'
test "$6" = '"c"'
test "$7" = '$d'
