"""Machine code of a work-stealing thread pool that shares the rows of a job.

A job is (function, arguments of each thread, rows, chunk); a call is a list of jobs, one after the
other. The calling thread publishes a job. Each thread, the caller and the helpers, has a part of
the rows, the same part in each job with that number of rows, so that the data it wrote is in its
cache. It takes chunks from the front of its part, half of the remaining rows at a time, then
steals from the back of the other parts, so that all finish at nearly the same time. A helper
without a CPU takes no chunk and delays no other thread.


Between jobs helpers spin for about 0.1 ms, then sleep until the next one.

Sources: Blumofe and Leiserson 1999, Scheduling Multithreaded Computations by Work Stealing; the
wait and wake of Franke et al. 2002, Fuss, Futexes and Furwocks, section 3
"""

from csrun.executable.team import (
    BUSY,
    DONE,
    GENERATION,
    JOB,
    NUMBER,
    PART_BYTES,
    PARTS,
    SLEEPERS,
    STOP,
    SYSTEM,
    THREADS,
)

SPINS = 2000  # pauses before a helper sleeps: 0.04 to 0.12 ms, so that streamers get its CPU
PATIENCE = 200  # pauses before the caller yields its CPU to a helper that has not finished
FUTEX, WAIT, WAKE, ALL = 202, 128, 129, 2**31 - 1  # Linux on x86-64; private futex of this process

TEAM_CODE = f"""\
; A team's memory: {NUMBER} the job's number, {DONE} chunks done, {JOB} function, arguments of each
; thread, rows, chunk, {GENERATION} changes with each job, {SLEEPERS} helpers that sleep, {STOP} no
; more jobs, {BUSY} a call is under way, {SYSTEM} syscall and sched_yield of libc, {THREADS} the
; number of threads, {PARTS} the part of each thread: its first chunk that is left (lower half) and
; the one after its last (upper half). All parts are empty between jobs.

; Run jobs: on all threads, or on the caller's where there is no team, or another call has it.
define void @team.run(ptr %team, ptr %jobs, i64 %count) nounwind {{
entry:
  %is_alone = icmp eq ptr %team, null
  br i1 %is_alone, label %serial, label %lock
lock:
  %busy = getelementptr i8, ptr %team, i64 {BUSY}
  %locked = cmpxchg ptr %busy, i32 0, i32 1 acquire monotonic
  %is_ours = extractvalue {{ i32, i1 }} %locked, 1
  br i1 %is_ours, label %shared, label %serial
shared:
  %n = phi i64 [ 0, %lock ], [ %n.next, %shared.body ]
  %is_left = icmp slt i64 %n, %count
  br i1 %is_left, label %shared.body, label %unlock
shared.body:
  %job = getelementptr [4 x i64], ptr %jobs, i64 %n
  call void @team.share(ptr %team, ptr %job)
  %n.next = add i64 %n, 1
  br label %shared
unlock:
  store atomic i32 0, ptr %busy release, align 4
  ret void
serial:
  %m = phi i64 [ 0, %entry ], [ 0, %lock ], [ %m.next, %serial.body ]
  %is_more = icmp slt i64 %m, %count
  br i1 %is_more, label %serial.body, label %end
serial.body:
  %own = getelementptr [4 x i64], ptr %jobs, i64 %m
  call void @team.alone(ptr %own)
  %m.next = add i64 %m, 1
  br label %serial
end:
  ret void
}}

; All rows of a job, in the caller's thread.
define internal void @team.alone(ptr %job) nounwind {{
  %function = load ptr, ptr %job
  %table.at = getelementptr i64, ptr %job, i64 1
  %table = load ptr, ptr %table.at
  %arguments = load ptr, ptr %table
  %rows.at = getelementptr i64, ptr %job, i64 2
  %rows = load i64, ptr %rows.at
  call void %function(ptr %arguments, i64 0, i64 %rows)
  ret void
}}

; Publish a job, compute chunks of it, and wait until all are computed.
define internal void @team.share(ptr %team, ptr %job) nounwind {{
entry:
  %rows.at = getelementptr i64, ptr %job, i64 2
  %rows = load i64, ptr %rows.at
  %chunk.at = getelementptr i64, ptr %job, i64 3
  %chunk = load i64, ptr %chunk.at
  %is_one = icmp sle i64 %rows, %chunk
  br i1 %is_one, label %alone, label %publish
alone:
  call void @team.alone(ptr %job)
  ret void
publish:
  %rows.up = add i64 %rows, %chunk
  %rows.last = sub i64 %rows.up, 1
  %chunks = sdiv i64 %rows.last, %chunk
  %copy = getelementptr i8, ptr %team, i64 {JOB}
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %copy, ptr align 8 %job, i64 32, i1 false)
  %done = getelementptr i8, ptr %team, i64 {DONE}
  store atomic i64 0, ptr %done monotonic, align 8
  %before = load i64, ptr %team
  %number = add i64 %before, 1
  store i64 %number, ptr %team
  %threads.at = getelementptr i8, ptr %team, i64 {THREADS}
  %threads = load i64, ptr %threads.at
  br label %divide
divide:
  ; A helper that reads a part in which something is left also reads the job.
  %thread = phi i64 [ 0, %publish ], [ %thread.next, %divide ]
  %first = phi i64 [ 0, %publish ], [ %last, %divide ]
  %thread.next = add i64 %thread, 1
  %shares = mul i64 %chunks, %thread.next
  %last = udiv i64 %shares, %threads
  %upper = shl i64 %last, 32
  %word = or i64 %upper, %first
  %part = call ptr @team.part(ptr %team, i64 %thread)
  store atomic i64 %word, ptr %part release, align 8
  %is_more = icmp ult i64 %thread.next, %threads
  br i1 %is_more, label %divide, label %begin
begin:
  call void @team.wake(ptr %team)
  call void @team.take(ptr %team, i64 0)
  br label %wait
wait:
  %spins = phi i64 [ 0, %begin ], [ %spins.next, %pause ]
  %computed = load atomic i64, ptr %done acquire, align 8
  %is_done = icmp eq i64 %computed, %chunks
  br i1 %is_done, label %end, label %patience
patience:
  %is_late = icmp ugt i64 %spins, {PATIENCE}
  br i1 %is_late, label %yield, label %pause
yield:
  %yield.at = getelementptr i8, ptr %team, i64 {SYSTEM + 8}
  %sched_yield = load ptr, ptr %yield.at
  call i32 %sched_yield()
  br label %pause
pause:
  call void @llvm.x86.sse2.pause()
  %spins.next = add i64 %spins, 1
  br label %wait
end:
  ret void
}}

; Wake sleeping helpers.
define internal void @team.wake(ptr %team) nounwind {{
entry:
  %generation = getelementptr i8, ptr %team, i64 {GENERATION}
  %old = atomicrmw add ptr %generation, i32 1 seq_cst
  %sleepers.at = getelementptr i8, ptr %team, i64 {SLEEPERS}
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %is_awake = icmp eq i32 %sleepers, 0
  br i1 %is_awake, label %end, label %wake
wake:
  %syscall.at = getelementptr i8, ptr %team, i64 {SYSTEM}
  %syscall = load ptr, ptr %syscall.at
  call i64 (i64, ...) %syscall(i64 {FUTEX}, ptr %generation, i32 {WAKE}, i32 {ALL})
  br label %end
end:
  ret void
}}

; The part of a thread.
define internal ptr @team.part(ptr %team, i64 %thread) nounwind {{
  %bytes = mul i64 %thread, {PART_BYTES}
  %offset = add i64 %bytes, {PARTS}
  %part = getelementptr i8, ptr %team, i64 %offset
  ret ptr %part
}}

; Compute chunks of the job that is published, until none is left.
define internal void @team.take(ptr %team, i64 %thread) nounwind {{
entry:
  %job = getelementptr i8, ptr %team, i64 {JOB}
  %done = getelementptr i8, ptr %team, i64 {DONE}
  %table.at = getelementptr i64, ptr %job, i64 1
  %rows.at = getelementptr i64, ptr %job, i64 2
  %chunk.at = getelementptr i64, ptr %job, i64 3
  %threads.at = getelementptr i8, ptr %team, i64 {THREADS}
  %threads = load i64, ptr %threads.at
  br label %look
look:
  ; First the thread's own part, then those of the threads after it.
  %n = phi i64 [ 0, %entry ], [ %n, %claim ], [ %n, %compute ], [ %n.next, %next ]
  %sum = phi i64 [ 0, %entry ], [ %sum, %claim ], [ %sum.next, %compute ], [ %sum, %next ]
  %place = add i64 %thread, %n
  %owner = urem i64 %place, %threads
  %part = call ptr @team.part(ptr %team, i64 %owner)
  %word = load atomic i64, ptr %part acquire, align 8
  %first = and i64 %word, 4294967295
  %last = lshr i64 %word, 32
  %left = sub i64 %last, %first
  %is_left = icmp ne i64 %left, 0
  br i1 %is_left, label %claim, label %next
next:
  %n.next = add i64 %n, 1
  %is_thread = icmp ult i64 %n.next, %threads
  br i1 %is_thread, label %look, label %end
claim:
  %left.up = add i64 %left, 1
  %count = lshr i64 %left.up, 1
  %is_own = icmp eq i64 %n, 0
  %front = add i64 %word, %count
  %upper = shl i64 %count, 32
  %back = sub i64 %word, %upper
  %rest = select i1 %is_own, i64 %front, i64 %back
  %claimed = cmpxchg ptr %part, i64 %word, i64 %rest acq_rel monotonic
  %is_ours = extractvalue {{ i64, i1 }} %claimed, 1
  br i1 %is_ours, label %compute, label %look
compute:
  %function = load ptr, ptr %job
  %table = load ptr, ptr %table.at
  %own = getelementptr ptr, ptr %table, i64 %thread
  %arguments = load ptr, ptr %own
  %rows = load i64, ptr %rows.at
  %chunk = load i64, ptr %chunk.at
  %start = sub i64 %last, %count
  %number = select i1 %is_own, i64 %first, i64 %start
  %row = mul i64 %number, %chunk
  %extent = mul i64 %count, %chunk
  %after = add i64 %row, %extent
  %end.row = call i64 @llvm.smin.i64(i64 %after, i64 %rows)
  call void %function(ptr %arguments, i64 %row, i64 %end.row)
  %sum.next = add i64 %sum, %count
  br label %look
end:
  ; Nothing is written for a thread without a chunk: the next job may have begun.
  %is_some = icmp ne i64 %sum, 0
  br i1 %is_some, label %report, label %return
report:
  %total = atomicrmw add ptr %done, i64 %sum acq_rel
  br label %return
return:
  ret void
}}

; A helper: takes chunks of job after job; spins between them, then sleeps.
define void @team.work(ptr %team, i64 %thread) nounwind {{
entry:
  %stop = getelementptr i8, ptr %team, i64 {STOP}
  %generation = getelementptr i8, ptr %team, i64 {GENERATION}
  %sleepers = getelementptr i8, ptr %team, i64 {SLEEPERS}
  %syscall.at = getelementptr i8, ptr %team, i64 {SYSTEM}
  %syscall = load ptr, ptr %syscall.at
  %part = call ptr @team.part(ptr %team, i64 %thread)
  br label %spin
spin:
  %spins = phi i64 [ 0, %entry ], [ %spins.next, %pause ], [ 0, %take ], [ 0, %awake ]
  %is_job = call i1 @team.is_left(ptr %part)
  br i1 %is_job, label %take, label %is_stopped
is_stopped:
  %stopped = load atomic i32, ptr %stop acquire, align 4
  %is_end = icmp ne i32 %stopped, 0
  br i1 %is_end, label %end, label %patience
patience:
  %is_late = icmp ugt i64 %spins, {SPINS}
  br i1 %is_late, label %sleep, label %pause
pause:
  call void @llvm.x86.sse2.pause()
  %spins.next = add i64 %spins, 1
  br label %spin
take:
  call void @team.take(ptr %team, i64 %thread)
  br label %spin
sleep:
  ; The caller publishes, then changes the generation, then looks for sleepers: either it sees this
  ; one, or this one sees its part, or the wait finds another generation.
  %more = atomicrmw add ptr %sleepers, i32 1 seq_cst
  %now = load atomic i32, ptr %generation seq_cst, align 4
  %is_new = call i1 @team.is_left(ptr %part)
  %ended = load atomic i32, ptr %stop seq_cst, align 4
  %is_ended = icmp ne i32 %ended, 0
  %goes_on = or i1 %is_new, %is_ended
  br i1 %goes_on, label %awake, label %wait
wait:
  call i64 (i64, ...) %syscall(i64 {FUTEX}, ptr %generation, i32 {WAIT}, i32 %now, ptr null)
  br label %awake
awake:
  %less = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  br label %spin
end:
  ret void
}}

; Whether something of a part is left.
define internal i1 @team.is_left(ptr %part) nounwind {{
  %word = load atomic i64, ptr %part seq_cst, align 8
  %first = and i64 %word, 4294967295
  %last = lshr i64 %word, 32
  %is_left = icmp ne i64 %first, %last
  ret i1 %is_left
}}

; End the helpers.
define void @team.stop(ptr %team) nounwind {{
  %stop = getelementptr i8, ptr %team, i64 {STOP}
  store atomic i32 1, ptr %stop seq_cst, align 4
  call void @team.wake(ptr %team)
  ret void
}}
"""

#: Declarations of the intrinsics that it calls.
DECLARED = {
    "llvm.smin.i64": "declare i64 @llvm.smin.i64(i64, i64)",
    "llvm.x86.sse2.pause": "declare void @llvm.x86.sse2.pause()",
    "llvm.memcpy.p0.p0.i64": "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
}
