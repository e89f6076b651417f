"""Machine code of a thread pool: how threads share the rows of a job.

A job is (function, arguments of each thread, rows, chunk); a call is a list of jobs, one after the
other. The calling thread publishes a job; it and the other threads (helpers) take chunks of rows
until none is left: first large ones, 2 / (3 * threads) of the remaining rows, at the end single
rows, so that all finish at nearly the same time. A helper without a CPU takes no chunk, and delays
no one.

Between jobs helpers spin for about 0.1 ms, then sleep until the next one.

Sources: Polychronopoulos and Kuck 1987, Guided Self-Scheduling; the wait and wake of Franke et al.
2002, Fuss, Futexes and Furwocks, section 3
"""

from csrun.executable.team import (
    BUSY,
    DONE,
    GENERATION,
    JOB,
    SLEEPERS,
    STOP,
    SYSTEM,
    THREADS,
    TICKET,
)

SPINS = 2000  # pauses before a helper sleeps: 0.04 to 0.12 ms, so that streamers get its CPU
PATIENCE = 200  # pauses before the caller yields its CPU to a helper that has not finished
FUTEX, WAIT, WAKE, ALL = 202, 128, 129, 2**31 - 1  # Linux on x86-64; private futex of this process

TEAM_CODE = f"""\
; A team's memory: {TICKET} the job's number (upper half) and its next chunk, {DONE} chunks done,
; {JOB} function, arguments of each thread, rows, chunk, chunks, {GENERATION} changes with each
; job, {SLEEPERS} helpers that sleep, {STOP} no more jobs, {BUSY} a call is under way, {SYSTEM}
; syscall and sched_yield of libc, {THREADS} the number of threads.

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
  ; First a ticket of which no chunk is left: a helper that has read the one before finds another
  ; one when it claims a chunk, and takes none of a job that is half written.
  %before = load atomic i64, ptr %team monotonic, align 8
  %none = or i64 %before, 4294967295
  %closed = atomicrmw xchg ptr %team, i64 %none acq_rel
  %rows.up = add i64 %rows, %chunk
  %rows.last = sub i64 %rows.up, 1
  %chunks = sdiv i64 %rows.last, %chunk
  %copy = getelementptr i8, ptr %team, i64 {JOB}
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %copy, ptr align 8 %job, i64 32, i1 false)
  %chunks.at = getelementptr i64, ptr %copy, i64 4
  store atomic i64 %chunks, ptr %chunks.at monotonic, align 8
  %done = getelementptr i8, ptr %team, i64 {DONE}
  store atomic i64 0, ptr %done monotonic, align 8
  %number = lshr i64 %before, 32
  %next = add i64 %number, 1
  %ticket = shl i64 %next, 32
  store atomic i64 %ticket, ptr %team release, align 8
  call void @team.wake(ptr %team)
  call void @team.take(ptr %team, i64 0)
  br label %wait
wait:
  %spins = phi i64 [ 0, %publish ], [ %spins.next, %pause ]
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

; Let helpers that sleep go on.
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

; Compute chunks of the job that is published, until none is left.
define internal void @team.take(ptr %team, i64 %thread) nounwind {{
entry:
  %job = getelementptr i8, ptr %team, i64 {JOB}
  %done = getelementptr i8, ptr %team, i64 {DONE}
  %table.at = getelementptr i64, ptr %job, i64 1
  %rows.at = getelementptr i64, ptr %job, i64 2
  %chunk.at = getelementptr i64, ptr %job, i64 3
  %chunks.at = getelementptr i64, ptr %job, i64 4
  %threads.at = getelementptr i8, ptr %team, i64 {THREADS}
  %threads = load i64, ptr %threads.at
  %thirds = mul i64 %threads, 3
  br label %look
look:
  %ticket = load atomic i64, ptr %team acquire, align 8
  %number = and i64 %ticket, 4294967295
  %chunks = load atomic i64, ptr %chunks.at monotonic, align 8
  %is_left = icmp slt i64 %number, %chunks
  br i1 %is_left, label %claim, label %end
claim:
  %left = sub i64 %chunks, %number
  %twice = shl i64 %left, 1
  %share = udiv i64 %twice, %thirds
  %count = call i64 @llvm.smax.i64(i64 %share, i64 1)
  %next = add i64 %ticket, %count
  %claimed = cmpxchg ptr %team, i64 %ticket, i64 %next acq_rel monotonic
  %is_ours = extractvalue {{ i64, i1 }} %claimed, 1
  br i1 %is_ours, label %compute, label %look
compute:
  %function = load ptr, ptr %job
  %table = load ptr, ptr %table.at
  %own = getelementptr ptr, ptr %table, i64 %thread
  %arguments = load ptr, ptr %own
  %rows = load i64, ptr %rows.at
  %chunk = load i64, ptr %chunk.at
  %first = mul i64 %number, %chunk
  %extent = mul i64 %count, %chunk
  %after = add i64 %first, %extent
  %last = call i64 @llvm.smin.i64(i64 %after, i64 %rows)
  call void %function(ptr %arguments, i64 %first, i64 %last)
  %computed = atomicrmw add ptr %done, i64 %count acq_rel
  br label %look
end:
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
  br label %ready
ready:
  %seen = phi i64 [ 0, %entry ], [ %found, %take ], [ %seen, %awake ]
  br label %spin
spin:
  %spins = phi i64 [ 0, %ready ], [ %spins.next, %pause ]
  %ticket = load atomic i64, ptr %team acquire, align 8
  %found = lshr i64 %ticket, 32
  %is_new = icmp ne i64 %found, %seen
  br i1 %is_new, label %take, label %is_stopped
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
  br label %ready
sleep:
  ; The caller publishes, then changes the generation, then looks for sleepers: either it sees this
  ; one, or this one sees the job, or the wait finds another generation.
  %more = atomicrmw add ptr %sleepers, i32 1 seq_cst
  %now = load atomic i32, ptr %generation seq_cst, align 4
  %last = load atomic i64, ptr %team seq_cst, align 8
  %number = lshr i64 %last, 32
  %is_same = icmp eq i64 %number, %seen
  %ended = load atomic i32, ptr %stop seq_cst, align 4
  %goes_on = icmp eq i32 %ended, 0
  %waits = and i1 %is_same, %goes_on
  br i1 %waits, label %wait, label %awake
wait:
  call i64 (i64, ...) %syscall(i64 {FUTEX}, ptr %generation, i32 {WAIT}, i32 %now, ptr null)
  br label %awake
awake:
  %less = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  br label %ready
end:
  ret void
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
    "llvm.smax.i64": "declare i64 @llvm.smax.i64(i64, i64)",
    "llvm.smin.i64": "declare i64 @llvm.smin.i64(i64, i64)",
    "llvm.x86.sse2.pause": "declare void @llvm.x86.sse2.pause()",
    "llvm.memcpy.p0.p0.i64": "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
}
