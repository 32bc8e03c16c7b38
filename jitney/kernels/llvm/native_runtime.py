"""The native code every module holds: threads through torch's own OpenMP, and workspaces.

``jitney.phase`` runs one phase on up to ``limit`` threads, each with an even slice of the items.
``jitney.lease`` and ``jitney.release`` hand out workspaces from a pool of the process: a call owns
its own, whatever other threads or re-entrant calls do. The pool is a list through the blocks'
first words (next, capacity) and is only touched under the GIL.
"""

from __future__ import annotations

#: Cells of the process (`machine_code.provide_cell`) that the code below reads.
POOL, SERIAL = "jitney_pool", "jitney_serial"

#: Functions it imports from libgomp and libc.
IMPORTS = (
    "declare void @GOMP_parallel(ptr, ptr, i32, i32)",
    "declare i32 @omp_get_thread_num()",
    "declare i32 @omp_get_num_threads()",
    "declare i32 @omp_get_max_threads()",
    "declare ptr @aligned_alloc(i64, i64)",
    "declare void @free(ptr)",
)

TEXT = """
@jitney_pool = external global i64
@jitney_serial = external global i64
%job = type { ptr, ptr, ptr, i64, ptr, i64, ptr }

define internal void @jitney.work(ptr %job) nounwind {
  %fn = load ptr, ptr %job
  %p1 = getelementptr %job, ptr %job, i64 0, i32 1
  %buffers = load ptr, ptr %p1
  %p2 = getelementptr %job, ptr %job, i64 0, i32 2
  %scalars = load ptr, ptr %p2
  %p3 = getelementptr %job, ptr %job, i64 0, i32 3
  %items = load i64, ptr %p3
  %p4 = getelementptr %job, ptr %job, i64 0, i32 4
  %scratch = load ptr, ptr %p4
  %p5 = getelementptr %job, ptr %job, i64 0, i32 5
  %stride = load i64, ptr %p5
  %p6 = getelementptr %job, ptr %job, i64 0, i32 6
  %shared = load ptr, ptr %p6
  %me32 = call i32 @omp_get_thread_num()
  %team32 = call i32 @omp_get_num_threads()
  %me = sext i32 %me32 to i64
  %team = sext i32 %team32 to i64
  %next = add i64 %me, 1
  %m0 = mul i64 %items, %me
  %m1 = mul i64 %items, %next
  %begin = sdiv i64 %m0, %team
  %end = sdiv i64 %m1, %team
  %offset = mul i64 %me, %stride
  %mine = getelementptr i8, ptr %scratch, i64 %offset
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %run, label %done
run:
  call void %fn(ptr %buffers, ptr %scalars, i64 %begin, i64 %end, ptr %mine, ptr %shared)
  br label %done
done:
  ret void
}

define internal void @jitney.phase(ptr %fn, ptr %buffers, ptr %scalars, i64 %items, i64 %limit,
                                   ptr %scratch, i64 %stride, ptr %shared) nounwind {
  %job = alloca %job
  %fewer = icmp slt i64 %items, %limit
  %threads = select i1 %fewer, i64 %items, i64 %limit
  %many = icmp sgt i64 %threads, 1
  br i1 %many, label %parallel, label %serial
serial:
  %some = icmp sgt i64 %items, 0
  br i1 %some, label %run, label %done
run:
  call void %fn(ptr %buffers, ptr %scalars, i64 0, i64 %items, ptr %scratch, ptr %shared)
  br label %done
parallel:
  store ptr %fn, ptr %job
  %p1 = getelementptr %job, ptr %job, i64 0, i32 1
  store ptr %buffers, ptr %p1
  %p2 = getelementptr %job, ptr %job, i64 0, i32 2
  store ptr %scalars, ptr %p2
  %p3 = getelementptr %job, ptr %job, i64 0, i32 3
  store i64 %items, ptr %p3
  %p4 = getelementptr %job, ptr %job, i64 0, i32 4
  store ptr %scratch, ptr %p4
  %p5 = getelementptr %job, ptr %job, i64 0, i32 5
  store i64 %stride, ptr %p5
  %p6 = getelementptr %job, ptr %job, i64 0, i32 6
  store ptr %shared, ptr %p6
  %threads32 = trunc i64 %threads to i32
  call void @GOMP_parallel(ptr @jitney.work, ptr %job, i32 %threads32, i32 0)
  br label %done
done:
  ret void
}

define internal i64 @jitney.threads() nounwind {
  %serial = load i64, ptr @jitney_serial
  %alone = icmp ne i64 %serial, 0
  br i1 %alone, label %one, label %ask
one:
  ret i64 1
ask:
  %most = call i32 @omp_get_max_threads()
  %wide = sext i32 %most to i64
  ret i64 %wide
}

define internal ptr @jitney.lease(i64 %bytes) nounwind {
  %word = load i64, ptr @jitney_pool
  %head = inttoptr i64 %word to ptr
  %none = icmp eq i64 %word, 0
  br i1 %none, label %make, label %look
look:
  %next = load i64, ptr %head
  store i64 %next, ptr @jitney_pool
  %c = getelementptr i64, ptr %head, i64 1
  %capacity = load i64, ptr %c
  %enough = icmp sge i64 %capacity, %bytes
  br i1 %enough, label %found, label %drop
found:
  %data = getelementptr i8, ptr %head, i64 64
  ret ptr %data
drop:
  call void @free(ptr %head)
  br label %make
make:
  %padded = add i64 %bytes, 127
  %size = and i64 %padded, -64
  %block = call ptr @aligned_alloc(i64 64, i64 %size)
  %failed = icmp eq ptr %block, null
  br i1 %failed, label %out, label %fresh
out:
  ret ptr null
fresh:
  %c2 = getelementptr i64, ptr %block, i64 1
  %usable = sub i64 %size, 64
  store i64 %usable, ptr %c2
  %data2 = getelementptr i8, ptr %block, i64 64
  ret ptr %data2
}

define internal void @jitney.release(ptr %data) nounwind {
  %block = getelementptr i8, ptr %data, i64 -64
  %head = load i64, ptr @jitney_pool
  store i64 %head, ptr %block
  %word = ptrtoint ptr %block to i64
  store i64 %word, ptr @jitney_pool
  ret void
}
"""
