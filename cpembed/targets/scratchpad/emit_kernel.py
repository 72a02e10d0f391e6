"""C of the walk over tiles, which transfers beside computing (swATOP 4.5.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpembed.targets.scratchpad.lower import Operand
from cpembed.targets.scratchpad.text import Lines, Writer, identifier


def kernel(writer: Writer) -> str:
    script, buffers = Lines(), writer.plan.buffers
    operands = writer.product.operands
    names = [identifier(o.name) for o in operands]
    script.line("", "void kernel(const struct arguments *a) {")
    for buffer, n in zip(buffers, names, strict=True):
        memory, count = buffer.box.operand.memory, len(buffer.offsets)
        places = ", ".join(f"scratchpad({memory}, {offset})" for offset in buffer.offsets)
        script.line(f"  char *{n}_box[{count}] = {{{places}}};")
        script.line(f"  dma_reply {n}_reply[{count}] = {{0}};")
        script.line(f"  int {n}_moving[{count}] = {{0}}, {n}_in = 0;")
    script.line("  struct tile now = {0}, next;", "  measure(&now);")
    for number, n in enumerate(names[:2]):
        script.line(
            f"  {n}_moving[0] = get_{n}({n}_box[0], a->operand[{number}], &now, &{n}_reply[0]);"
        )
    script.line("  for (int begins = 1, more = 1; more;) {", "    next = now;")
    script.line("    more = advance(&next);")
    for number, n in enumerate(names[:2]):
        script.line(*_prefetch(writer, number, n))
    for n in names[:2]:
        script.line(
            f"    if ({n}_moving[{n}_in]) dma_wait(&{n}_reply[{n}_in], {n}_moving[{n}_in]);",
            f"    {n}_moving[{n}_in] = 0;",
        )
    script.line(*_summing(writer, names))
    for number, n in enumerate(names[:2]):
        script.line(*_turn(writer, number, n))
    script.line("    now = next;", "  }")
    n = names[2]
    script.line(
        f"  for (int k = 0; k < {len(buffers[2].offsets)}; k++)",
        f"    if ({n}_moving[k]) dma_wait(&{n}_reply[k], {n}_moving[k]);",
        "}",
    )
    return script.text()


def _changes(writer: Writer, operand: Operand) -> str:
    """Whether the next tile needs another box."""
    moving = [writer.names[a.name] for a in writer.plan.loops if a.name in operand.axes]
    return " || ".join(f"next.first_{n} != now.first_{n}" for n in moving) or "0"


def _prefetch(writer: Writer, number: int, n: str) -> Iterator[str]:
    buffers = writer.plan.buffers[number].offsets
    changes = _changes(writer, writer.product.operands[number])
    yield f"    const int {n}_changes = more && ({changes});"
    if len(buffers) == 2:
        yield f"    if ({n}_changes)"
        yield (
            f"      {n}_moving[!{n}_in] = get_{n}({n}_box[!{n}_in], a->operand[{number}], "
            f"&next, &{n}_reply[!{n}_in]);"
        )


def _turn(writer: Writer, number: int, n: str) -> Iterator[str]:
    if len(writer.plan.buffers[number].offsets) == 2:
        yield f"    if ({n}_changes) {n}_in = !{n}_in;"
    elif any(a.name in writer.product.operands[number].axes for a in writer.plan.loops):
        yield f"    if ({n}_changes)"
        call = f"get_{n}({n}_box[0], a->operand[{number}], &next, &{n}_reply[0])"
        yield f"      {n}_moving[0] = {call};"


def _summing(writer: Writer, names: Sequence[str]) -> Iterator[str]:
    """Sums begin at zero in a buffer whose last contents are stored, and go when complete."""
    n, result = names[2], writer.plan.form.boxes[2]
    count = len(writer.plan.buffers[2].offsets)
    places = " * ".join([*writer.product_of(result, "now"), f"(long)sizeof({writer.types[2]})"])
    places = places.replace("now->", "now.")
    kinds = [f"({'const ' * (k < 2)}{kind} *)" for k, kind in enumerate(writer.types)]
    yield "    if (begins) {"
    yield f"      if ({n}_moving[{n}_in]) dma_wait(&{n}_reply[{n}_in], {n}_moving[{n}_in]);"
    yield f"      {n}_moving[{n}_in] = 0;"
    yield f"      zero({n}_box[{n}_in], {places});"
    yield "    }"
    given = ", ".join(
        f"{kind}{name}_box[{name}_in]" for kind, name in zip(kinds, names, strict=True)
    )
    yield f"    compute({given}, &now);"
    yield f"    begins = !more || ({_changes(writer, writer.product.output)});"
    yield "    if (begins) {"
    call = f"put_{n}({n}_box[{n}_in], a->operand[2], &now, &{n}_reply[{n}_in])"
    yield f"      {n}_moving[{n}_in] = {call};"
    if count == 2:
        yield f"      {n}_in = !{n}_in;"
    yield "    }"
