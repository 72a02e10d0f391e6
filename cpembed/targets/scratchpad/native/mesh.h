/* Register communication, and the places where all PEs meet. */
#pragma once

#include "dma.h"

static const char *const kQueues[] = {"row", "column"};

/* A vector lies in registers, which are variables of the text, or in the scratchpad. */
static void require_vector(const void *vector, long bytes, bool writes, const char *what, Site site) {
  long most = std::min<long>(shape.lanes * 8, sizeof(Vector::data));
  if (bytes <= 0 || bytes > most)
    fail("%s at {at:%u} has a vector of %ld bytes: a machine of %d lanes has at most %ld", what, site,
         bytes, shape.lanes, most);
  if (on_own_stack(vector)) return;
  if (writes)
    scratchpads.write(vector, bytes, what, site);
  else
    scratchpads.read(vector, bytes, what, site);
}

static void put(int queue, const void *vector, long bytes, int target, Site site) {
  const char *what = kStates[queue ? kColumnPut : kRowPut];
  require_vector(vector, bytes, false, what, site);
  int places = queue ? shape.rows : shape.columns, own = queue ? pe->row : pe->column;
  if (target < -1 || target >= places || target == own)
    fail("%s at {at:%u} goes to place %d of %d, from place %d", what, site, target, places, own);
  for (int place = 0; place < places; place++) {
    if (place == own || (target >= 0 && place != target)) continue;
    int to = queue ? place * shape.columns + pe->column : pe->row * shape.columns + place;
    Pe &receiver = pes[size_t(to)];
    while (full(receiver, queue)) wait_in(queue ? kColumnPut : kRowPut, site, to);
    Vector made{pe->number, site, bytes, {}};
    memcpy(made.data, vector, size_t(bytes));
    receiver.queues[queue].push_back(made);
  }
  tally.others[queue ? kColumnVectors : kRowVectors]++;
}

static void get(int queue, void *vector, long bytes, Site site) {
  State state = queue ? kColumnGet : kRowGet;
  require_vector(vector, bytes, true, kStates[state], site);
  while (pe->queues[queue].empty()) wait_in(state, site);
  const Vector &next = pe->queues[queue].front();
  if (next.bytes != bytes)
    fail("%s at {at:%u} takes %ld bytes, and the next vector, which PE (%d, %d) put at {at:%u}, has "
         "%ld", kStates[state], site, bytes, pes[size_t(next.from)].row,
         pes[size_t(next.from)].column, next.site, next.bytes);
  memcpy(vector, next.data, size_t(bytes));
  pe->queues[queue].pop_front();
}

extern "C" void row_put(const void *v, long bytes, int column) { put(0, v, bytes, column, CALLER); }
extern "C" void row_get(void *v, long bytes) { get(0, v, bytes, CALLER); }
extern "C" void column_put(const void *v, long bytes, int row) { put(1, v, bytes, row, CALLER); }
extern "C" void column_get(void *v, long bytes) { get(1, v, bytes, CALLER); }

/* A fault, which is not gone on from by the caller, where a PE has a vector that nobody got. */
static bool check_queues(const char *when) {
  for (const Pe &p : pes) {
    for (int queue : {0, 1}) {
      if (p.queues[queue].empty()) continue;
      const Vector &left = p.queues[queue].front();
      set_fault("PE (%d, %d): %s, its %s queue has %zu vectors that nobody got; PE (%d, %d) put the "
                "first at {at:%u}", p.row, p.column, when, kQueues[queue], p.queues[queue].size(),
                pes[size_t(left.from)].row, pes[size_t(left.from)].column, left.site);
      return false;
    }
  }
  return true;
}

/* Wait for all PEs; the last one to come does what is to be done, and returns true. */
static bool meet(State state, Site site) {
  pe->state = state;
  for (const Pe &p : pes) {
    if (p.state == state) continue;
    wait_in(state, site);
    return false;
  }
  return true;
}

static void release() {
  for (Pe &p : pes) p.state = kRunning;
}

extern "C" void sync_all() {
  if (!meet(kInSync, CALLER)) return;
  main_memory.next_epoch();
  tally.others[kBarriers]++;
  release();
}
