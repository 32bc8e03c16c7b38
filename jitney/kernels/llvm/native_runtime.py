"""The native code every module holds beside `native_threads`: workspaces and tables.

``jitney.collect``, ``jitney.place`` and ``jitney.pick`` fill pointer tables from constant lists, so
that a program of a hundred nodes is data rather than code.
``jitney.lease`` and ``jitney.release`` hand out workspaces from a pool of the process: a call owns
its own, whatever other threads or re-entrant calls do. The pool is a list through the blocks'
first words (next, capacity) and is only touched under the GIL.
``jitney.use_huge_pages``, for workspaces and large results: strided reads of a product miss the TLB
on small ones, and a fresh result costs a fault a page (docs/decisions/030-transposed-products.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

#: Cells of the process (`machine_code.provide_cell`) that the code below reads.
POOL, SERIAL = "jitney_pool", "jitney_serial"

#: Bytes from which memory asks for huge pages (2 MiB each), and Linux's word for that.
HUGE_BYTES, _MADV_HUGEPAGE = 2 << 20, 14

#: Functions it imports from libgomp, libtorch and libc.
IMPORTS = (
    "declare i32 @omp_get_max_threads()",
    "declare i32 @aoti_torch_get_data_ptr(ptr, ptr)",
    "declare ptr @aligned_alloc(i64, i64)",
    "declare void @free(ptr)",
    "declare i32 @madvise(ptr, i64, i32)",
)

TEXT = """
@jitney_pool = external global i64
@jitney_serial = external global i64
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
  call void @jitney.use_huge_pages(ptr %block, i64 %size)
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

TEXT += f"""
define internal void @jitney.use_huge_pages(ptr %data, i64 %bytes) nounwind {{
  %large = icmp sge i64 %bytes, {HUGE_BYTES}
  br i1 %large, label %ask, label %done
ask:
  %address = ptrtoint ptr %data to i64
  %padded = add i64 %address, 4095
  %first = and i64 %padded, -4096
  %end = add i64 %address, %bytes
  %last = and i64 %end, -4096
  %length = sub i64 %last, %first
  %page = inttoptr i64 %first to ptr
  %ignored = call i32 @madvise(ptr %page, i64 %length, i32 {_MADV_HUGEPAGE})
  br label %done
done:
  ret void
}}
"""

_FILLER = """
; table[k] = {meaning}
define internal void @jitney.{name}({parameters}, ptr %table) nounwind {{
entry:
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %loop ]
  {body}
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""

TEXT += _FILLER.format(
    name="collect",
    meaning="the data pointer of tensor args[where[k]]",
    parameters="ptr %args, ptr %where, i64 %count, i64 %handle",
    body="""%w = getelementptr i32, ptr %where, i64 %k
  %position = load i32, ptr %w
  %slot = getelementptr ptr, ptr %args, i32 %position
  %item = load ptr, ptr %slot
  %tensor = getelementptr i8, ptr %item, i64 %handle
  %entry.k = getelementptr ptr, ptr %table, i64 %k
  %code = call i32 @aoti_torch_get_data_ptr(ptr %tensor, ptr %entry.k)""",
)

TEXT += _FILLER.format(
    name="place",
    meaning="base + offsets[k]",
    parameters="ptr %base, ptr %offsets, i64 %count",
    body="""%o = getelementptr i64, ptr %offsets, i64 %k
  %offset = load i64, ptr %o
  %pointer = getelementptr i8, ptr %base, i64 %offset
  %entry.k = getelementptr ptr, ptr %table, i64 %k
  store ptr %pointer, ptr %entry.k""",
)

TEXT += _FILLER.format(
    name="pick",
    meaning="from[where[k]], eight bytes each",
    parameters="ptr %from, ptr %where, i64 %count",
    body="""%w = getelementptr i32, ptr %where, i64 %k
  %position = load i32, ptr %w
  %source = getelementptr i64, ptr %from, i32 %position
  %word = load i64, ptr %source
  %entry.k = getelementptr i64, ptr %table, i64 %k
  store i64 %word, ptr %entry.k""",
)


def constant_list(kind: str, values: Sequence[int]) -> tuple[str, str]:
    """(name, definition) of a constant array of i32 or i64; equal arrays share a name."""
    items = ", ".join(f"{kind} {v}" for v in values)
    name = "@jitney.list." + hashlib.sha256(f"{kind}{items}".encode()).hexdigest()[:16]
    body = f"private unnamed_addr constant [{len(values)} x {kind}] [{items}], align 8"
    return name, f"{name} = {body}"
