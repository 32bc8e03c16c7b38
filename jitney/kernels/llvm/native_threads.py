"""The native code that runs a phase: threads through torch's own OpenMP.

``jitney.phase`` runs one phase on up to ``most`` threads, each with an even slice of the items.
Where ``grain`` is not 0 a thread takes that many of its slice at a time from the front, and, when
it has none left, of another's from the back: cores are not equally fast (a neighbour on the same
core, a scheduler elsewhere), and the last one would be waited for
(docs/decisions/049-shares-of-threads.md). What the phases of a segment share is one ``%context``.
"""

from __future__ import annotations

#: Bytes before a thread's scratch, and a word in them that is -1 as a phase begins.
BEFORE_SCRATCH, HELD = 64, -8

#: Functions it imports from libgomp.
IMPORTS = (
    "declare void @GOMP_parallel(ptr, ptr, i32, i32)",
    "declare i32 @omp_get_thread_num()",
    "declare i32 @omp_get_num_threads()",
)

_TYPES = """
; buffers, scalars, scratch, bytes of scratch a thread, shared, threads
%context = type { ptr, ptr, ptr, i64, ptr, i64 }
; function, items, context, grain, slices, their ranges
%job = type { ptr, i64, ptr, i64, i64, ptr }
"""

_SLICE = """
define internal ptr @jitney.scratch(ptr %context, i64 %me) nounwind {
  %p2 = getelementptr %context, ptr %context, i64 0, i32 2
  %p3 = getelementptr %context, ptr %context, i64 0, i32 3
  %scratch = load ptr, ptr %p2
  %stride = load i64, ptr %p3
  %offset = mul i64 %me, %stride
  %mine = getelementptr i8, ptr %scratch, i64 %offset
  ret ptr %mine
}

define internal void @jitney.slice(ptr %context, ptr %fn, i64 %begin, i64 %end, i64 %me) nounwind {
  %p1 = getelementptr %context, ptr %context, i64 0, i32 1
  %p4 = getelementptr %context, ptr %context, i64 0, i32 4
  %buffers = load ptr, ptr %context
  %scalars = load ptr, ptr %p1
  %shared = load ptr, ptr %p4
  %mine = call ptr @jitney.scratch(ptr %context, i64 %me)
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %run, label %done
run:
  call void %fn(ptr %buffers, ptr %scalars, i64 %begin, i64 %end, ptr %mine, ptr %shared)
  br label %done
done:
  ret void
}

define internal void @jitney.begin(ptr %context, i64 %me) nounwind {
  %p3 = getelementptr %context, ptr %context, i64 0, i32 3
  %stride = load i64, ptr %p3
  %some = icmp ne i64 %stride, 0
  br i1 %some, label %set, label %done
set:
  %mine = call ptr @jitney.scratch(ptr %context, i64 %me)
  %held = getelementptr i8, ptr %mine, i64 HELD
  store i64 -1, ptr %held
  br label %done
done:
  ret void
}
"""

# A range is one word: its first item, and in the upper half the item after its last.
_SHARES = """
define internal void @jitney.deal(ptr %ranges, i64 %items, i64 %slices) nounwind {
entry:
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %loop ]
  %next = add i64 %k, 1
  %m0 = mul i64 %items, %k
  %m1 = mul i64 %items, %next
  %first = udiv i64 %m0, %slices
  %end = udiv i64 %m1, %slices
  %upper = shl i64 %end, 32
  %word = or i64 %upper, %first
  %place = mul i64 %k, 64
  %range = getelementptr i8, ptr %ranges, i64 %place
  store i64 %word, ptr %range, align 8
  %more = icmp slt i64 %next, %slices
  br i1 %more, label %loop, label %done
done:
  ret void
}

; takes up to %grain items of a range, from its front or its back: its first and end, both 0 of none
define internal {i64, i64} @jitney.take(ptr %range, i64 %grain, i1 %front) nounwind {
entry:
  %now = load atomic i64, ptr %range monotonic, align 8
  br label %try
try:
  %word = phi i64 [ %now, %entry ], [ %seen, %some ]
  %first = and i64 %word, 4294967295
  %end = lshr i64 %word, 32
  %left = sub i64 %end, %first
  %none = icmp sle i64 %left, 0
  br i1 %none, label %empty, label %some
some:
  %few = icmp slt i64 %left, %grain
  %count = select i1 %few, i64 %left, i64 %grain
  %after = add i64 %first, %count
  %before = sub i64 %end, %count
  %rest.first = select i1 %front, i64 %after, i64 %first
  %rest.end = select i1 %front, i64 %end, i64 %before
  %upper = shl i64 %rest.end, 32
  %rest = or i64 %upper, %rest.first
  %pair = cmpxchg ptr %range, i64 %word, i64 %rest monotonic monotonic, align 8
  %seen = extractvalue { i64, i1 } %pair, 0
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %taken, label %try
taken:
  %from = select i1 %front, i64 %first, i64 %before
  %to = add i64 %from, %count
  %a = insertvalue {i64, i64} undef, i64 %from, 0
  %b = insertvalue {i64, i64} %a, i64 %to, 1
  ret {i64, i64} %b
empty:
  ret {i64, i64} zeroinitializer
}

define internal void @jitney.share(ptr %job, ptr %fn, ptr %context, i64 %grain, i64 %me) nounwind {
entry:
  %p4 = getelementptr %job, ptr %job, i64 0, i32 4
  %p5 = getelementptr %job, ptr %job, i64 0, i32 5
  %slices = load i64, ptr %p4
  %ranges = load ptr, ptr %p5
  br label %look
look:
  %turn = phi i64 [ 0, %entry ], [ %turn, %run ], [ %next, %empty ]
  %whose = add i64 %me, %turn
  %victim = urem i64 %whose, %slices
  %place = mul i64 %victim, 64
  %range = getelementptr i8, ptr %ranges, i64 %place
  %own = icmp eq i64 %turn, 0
  %part = call {i64, i64} @jitney.take(ptr %range, i64 %grain, i1 %own)
  %begin = extractvalue {i64, i64} %part, 0
  %end = extractvalue {i64, i64} %part, 1
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %run, label %empty
run:
  call void @jitney.slice(ptr %context, ptr %fn, i64 %begin, i64 %end, i64 %me)
  br label %look
empty:
  %next = add i64 %turn, 1
  %more = icmp slt i64 %next, %slices
  br i1 %more, label %look, label %done
done:
  ret void
}
"""

_PHASE = """
define internal void @jitney.work(ptr %job) nounwind {
  %p1 = getelementptr %job, ptr %job, i64 0, i32 1
  %p2 = getelementptr %job, ptr %job, i64 0, i32 2
  %p3 = getelementptr %job, ptr %job, i64 0, i32 3
  %fn = load ptr, ptr %job
  %items = load i64, ptr %p1
  %context = load ptr, ptr %p2
  %grain = load i64, ptr %p3
  %me32 = call i32 @omp_get_thread_num()
  %me = sext i32 %me32 to i64
  call void @jitney.begin(ptr %context, i64 %me)
  %even = icmp eq i64 %grain, 0
  br i1 %even, label %slice, label %share
share:
  call void @jitney.share(ptr %job, ptr %fn, ptr %context, i64 %grain, i64 %me)
  ret void
slice:
  %team32 = call i32 @omp_get_num_threads()
  %team = sext i32 %team32 to i64
  %next = add i64 %me, 1
  %m0 = mul i64 %items, %me
  %m1 = mul i64 %items, %next
  %begin = sdiv i64 %m0, %team
  %end = sdiv i64 %m1, %team
  call void @jitney.slice(ptr %context, ptr %fn, i64 %begin, i64 %end, i64 %me)
  ret void
}

define internal void @jitney.phase(ptr %context, ptr %fn, i64 %items, i64 %most,
                                   i64 %grain) nounwind {
  %job = alloca %job
  %p5 = getelementptr %context, ptr %context, i64 0, i32 5
  %team = load i64, ptr %p5
  %fewer = icmp slt i64 %items, %most
  %limit = select i1 %fewer, i64 %items, i64 %most
  %less = icmp slt i64 %limit, %team
  %threads = select i1 %less, i64 %limit, i64 %team
  %many = icmp sgt i64 %threads, 1
  br i1 %many, label %parallel, label %serial
serial:
  call void @jitney.begin(ptr %context, i64 0)
  call void @jitney.slice(ptr %context, ptr %fn, i64 0, i64 %items, i64 0)
  ret void
parallel:
  %j1 = getelementptr %job, ptr %job, i64 0, i32 1
  %j2 = getelementptr %job, ptr %job, i64 0, i32 2
  %j3 = getelementptr %job, ptr %job, i64 0, i32 3
  %j4 = getelementptr %job, ptr %job, i64 0, i32 4
  %j5 = getelementptr %job, ptr %job, i64 0, i32 5
  %halves = icmp slt i64 %items, 2147483648
  %shared = select i1 %halves, i64 %grain, i64 0
  store ptr %fn, ptr %job
  store i64 %items, ptr %j1
  store ptr %context, ptr %j2
  store i64 %shared, ptr %j3
  store i64 %threads, ptr %j4
  %ranges = alloca [64 x i8], i64 %threads, align 64
  store ptr %ranges, ptr %j5
  call void @jitney.deal(ptr %ranges, i64 %items, i64 %threads)
  %threads32 = trunc i64 %threads to i32
  call void @GOMP_parallel(ptr @jitney.work, ptr %job, i32 %threads32, i32 0)
  ret void
}
"""

TEXT = _TYPES + _SLICE.replace("HELD", str(HELD)) + _SHARES + _PHASE
