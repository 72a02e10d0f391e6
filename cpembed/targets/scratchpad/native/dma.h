/* DMA: transfers arrive when they are started or when they are waited for, as the seed says. */
#pragma once

#include "main_memory.h"
#include "scratchpads.h"

static bool on_own_stack(const void *p) {
  auto at = static_cast<const char *>(p);
  return at >= pe->stack_low && at < pe->stack_high;
}

static void require_aligned(const char *what, const char *which, long value, Site site) {
  if (value % shape.alignment_bytes)
    fail("%s at {at:%u} has %s %ld, which is no multiple of %ld bytes", what, site, which, value,
         long(shape.alignment_bytes));
}

static void require_sizes(const Transfer &t, const char *what) {
  if (t.size <= 0 || t.block <= 0 || t.size % t.block)
    fail("%s at {at:%u} has blocks of %ld bytes, of which %ld are no whole number", what, t.site,
         t.block, t.size);
  require_aligned(what, "a size of", t.size, t.site);
  require_aligned(what, "blocks of", t.block, t.site);
  if (t.size == t.block) return;
  require_aligned(what, "a stride of", t.stride, t.site);
  if (t.stride < t.block)
    fail("%s at {at:%u} has a stride of %ld bytes, less than its blocks of %ld", what, t.site,
         t.stride, t.block);
}

/* Where the transfer's blocks lie in main memory. */
static void find_array(Transfer &t, const void *p, const char *what) {
  Array *array = main_memory.array_of(p);
  if (array == nullptr)
    fail("%s at {at:%u} has an address in main memory that is in no operand", what, t.site);
  t.array = array, t.start = static_cast<const unsigned char *>(p) - array->base;
  long end = t.start + (t.size / t.block - 1) * t.stride + t.block;
  if (t.start < 0 || end > array->bytes)
    fail("%s at {at:%u} is out of bounds: bytes %ld to %ld of operand %d, which has %ld", what,
         t.site, t.start, end - 1, array->operand, array->bytes);
  if (!t.get && !array->writable)
    fail("%s at {at:%u} writes operand %d, which is read-only", what, t.site, array->operand);
  require_aligned(what, "an address in main memory at byte", t.start, t.site);
}

static void require_reply(const volatile int *reply, const char *what, Site site) {
  if (!on_own_stack(const_cast<const int *>(reply)))
    fail("%s at {at:%u} has a reply word that is no local variable of the kernel", what, site);
  if (*reply != 0)
    fail("%s at {at:%u} has a reply word that is %d, not 0: it was not initialised", what, site,
         *reply);
}

static void count_transfer(const Transfer &t) {
  Moved &moved = tally.moved[{t.array->operand, t.get}];
  moved.transfers++, moved.bytes += uint64_t(t.size / t.array->per_byte);
  auto base = reinterpret_cast<uintptr_t>(t.array->base) + uintptr_t(t.start);
  // Of elements that share a byte, each has one here: so many bytes are a transaction.
  uintptr_t granule = uintptr_t(shape.transaction_bytes * t.array->per_byte);
  for (long done = 0; done < t.size; done += t.block, base += uintptr_t(t.stride))
    moved.transactions += (base + uintptr_t(t.block) - 1) / granule - base / granule + 1;
}

/* Blocks of main memory from or to bytes that are contiguous. */
static void copy_blocks(const Transfer &t, unsigned char *bytes) {
  unsigned char *at = t.array->base + t.start;
  for (long done = 0; done < t.size; done += t.block, at += t.stride) {
    if (t.get)
      memcpy(bytes + done, at, size_t(t.block));
    else
      memcpy(at, bytes + done, size_t(t.block));
  }
}

static void start_transfer(bool get, const void *local, const void *main, long size, long block,
                           long stride, const volatile int *reply, Site site) {
  const char *what = get ? "dma_get" : "dma_put";
  {
    Transfer t{get, bool(random_number() & 1), 0, site, reply, 0, 0, size, block,
               size == block ? block : stride, nullptr, 0, {}};
    require_sizes(t, what);
    require_reply(reply, what, site);
    auto at = scratchpads.place(local, size, what, site);
    t.memory = at.memory, t.offset = at.offset;
    require_aligned(what, "an address in the scratchpad at byte", at.offset, site);
    find_array(t, main, what);
    auto bytes = static_cast<unsigned char *>(const_cast<void *>(local));
    if (get) {
      scratchpads.require_free(at, size, what, site);
      memset(bytes, 0xff, size_t(size));  // Not a number.
    } else {
      scratchpads.read(local, size, what, site);
      t.staged.assign(bytes, bytes + size);
    }
    scratchpads.use(at, size);
    main_memory.start(t);
    count_transfer(t);
    if (t.early) copy_blocks(t, bytes);
    pe->pending.push_back(std::move(t));
  }
  yield();
}

static void end_transfer(Transfer &t) {
  Scratchpads::Place at{t.memory, t.offset};
  unsigned char *bytes = pe->memories[size_t(t.memory)].base + t.offset;
  if (!t.get && memcmp(bytes, t.staged.data(), size_t(t.size)) != 0)
    fail("bytes %ld to %ld of memory %d were changed after dma_put at {at:%u}, and before it was "
         "waited for", t.offset, t.offset + t.size - 1, t.memory, t.site);
  if (!t.early) copy_blocks(t, bytes);
  if (t.get) scratchpads.mark_written(at, t.size);
  main_memory.end(t);
}

extern "C" void dma_get(void *to, const void *from, long size, long block, long stride,
                        volatile int *reply) {
  start_transfer(true, to, from, size, block, stride, reply, CALLER);
}

extern "C" void dma_put(void *to, const void *from, long size, long block, long stride,
                        volatile int *reply) {
  start_transfer(false, from, to, size, block, stride, reply, CALLER);
}

extern "C" void dma_wait(volatile int *reply, int count) {
  Site site = CALLER;
  yield();
  auto of_reply = [&](const Transfer &t) { return t.reply == reply; };
  auto &pending = pe->pending;
  long started = std::count_if(pending.begin(), pending.end(), of_reply);
  if (started < count)
    fail("dma_wait at {at:%u} never ends: it waits for %d transfers, and %ld were started with its "
         "reply word", site, count, started);
  if (started > count)
    fail("dma_wait at {at:%u} waits for %d transfers of the %ld that were started with its reply "
         "word: which have ended is unknown", site, count, started);
  for (Transfer &t : pending)
    if (of_reply(t)) end_transfer(t);
  pending.erase(std::remove_if(pending.begin(), pending.end(), of_reply), pending.end());
}

/* At the end of a kernel. */
static void require_no_transfers() {
  for (const Transfer &t : pe->pending)
    fail("the kernel ends, and dma_%s at {at:%u} was never waited for", t.get ? "get" : "put", t.site);
}
