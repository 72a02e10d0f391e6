/* Barrier objects in shared memory (mbarrier): phases, arrivals, transactions.

   From the PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier". A phase is
   complete when no arrivals are pending and no transaction bytes are outstanding. Copies that arrive at
   an object are made when a thread waits for its phase, one after the other until it is complete. */
#pragma once

#include <functional>

#include "cluster.h"
#include "random.h"

constexpr int64_t kMostArrivals = (1 << 20) - 1;
constexpr int64_t kMostTransactions = (1 << 20) - 1;

struct Barrier;

/* A bulk copy that has been issued: where it writes, and how. */
struct Landing {
  struct Range {
    unsigned char *to;
    size_t bytes;
  };
  std::vector<Range> ranges;
  std::function<void(Stamp)> copy;  // Given the stamp of what it writes.
  int64_t bytes = 0, arrivals = 0;
  Site site = 0;
};

struct Barrier {
  unsigned char *place;
  int64_t expected, pending, transactions = 0;
  uint64_t phase = 0;  // Phases that are complete.
  Stamp initialised, fenced = 0;
  Site site;
  uint32_t agent;
  Knowledge arriving;
  std::shared_ptr<const Knowledge> released;
  std::deque<Landing> landings;
};

static std::unordered_map<const unsigned char *, std::unique_ptr<Barrier>> barriers;


static std::string object_text(const unsigned char *place) {
  std::string made = "the barrier object at " + shared_memory.place(shared_memory.offset(place), 8);
  if (blocks_a_cluster > 1) made += " of block " + decimal(shared_memory.rank(place));
  return made;
}

/* The object at an address; null, with a fault, if there is none that the lane may use. */
static Barrier *barrier_at(uint32_t address, const char *what, Site site, bool copies = false) {
  unsigned char *place = shared_pointer(address);
  if (!shared_memory.valid(place, 8, 8, what, site)) return nullptr;
  if (!note_remote(shared_memory.rank(place), what, site, copies)) return nullptr;
  auto found = barriers.find(place);
  if (found == barriers.end()) {
    set_fault("%s at {at:%u}: no barrier object is initialised at %s", what, site,
              shared_memory.place(shared_memory.offset(place), 8).c_str());
    return nullptr;
  }
  Barrier &b = *found->second;
  if (!warp->clock.knows(b.initialised, lane_number)) {
    set_fault("%s at {at:%u} by %s: %s was initialised at {at:%u} by %s, with no barrier between them", what,
              site, doer(now()).c_str(), object_text(place).c_str(), b.site, doer(b.initialised).c_str());
    return nullptr;
  }
  if (is_remote(address) && !(b.fenced && warp->clock.knows(b.fenced, lane_number))) {
    set_fault("%s at {at:%u} by %s: no fence.mbarrier_init follows the initialisation of %s at {at:%u}", what,
              site, doer(now()).c_str(), object_text(place).c_str(), b.site);
    return nullptr;
  }
  return &b;
}

/* The same for an operation of the asynchronous proxy. */
static Barrier *barrier_for_copy(uint32_t address, const char *what, Site site) {
  Barrier *b = barrier_at(address, what, site, true);
  if (b == nullptr) return nullptr;
  bool visible = (b->fenced && warp->clock.knows(b->fenced, lane_number)) ||
                 warp->clock.proxy_knows(b->initialised, lane_number);
  if (visible) return b;
  set_fault("%s at {at:%u} by %s: no fence.mbarrier_init or fence.proxy.async follows the initialisation of "
            "%s at {at:%u}", what, site, doer(now()).c_str(), object_text(b->place).c_str(), b->site);
  return nullptr;
}

extern "C" void executor_mbarrier_init(ExecutorFunction &function, uint32_t address, uint32_t arrivals) {
  Site site = CALLER;
  count(function);
  unsigned char *place = shared_pointer(address);
  REQUIRE(shared_memory.valid(place, 8, 8, "mbarrier.init", site));
  if (arrivals < 1 || arrivals > kMostArrivals) {
    set_fault("mbarrier.init at {at:%u} with %u arrivals: from 1 to %lld", site, arrivals,
              (long long)kMostArrivals);
    abandon();
  }
  if (barriers.count(place)) {
    set_fault("mbarrier.init at {at:%u}: %s is in use since {at:%u}", site, object_text(place).c_str(),
              barriers[place]->site);
    abandon();
  }
  REQUIRE(shared_memory.write(place, 8, now(), kWritten, site));
  shared_memory.set_writer(place, 8, now() | kObject, site);
  auto made = std::make_unique<Barrier>();
  made->place = place, made->expected = made->pending = arrivals;
  made->initialised = now(), made->site = site;
  made->agent = make_agent(object_text(place));
  barriers[place] = std::move(made);
}

static void complete_if_done(Barrier &b) {
  if (b.pending != 0 || b.transactions != 0) return;
  b.phase++;
  b.pending = b.expected;
  b.released = share(std::move(b.arriving));
  b.arriving = Knowledge{};
  progress++;
  tally.mbarrier_phases++;
}

extern "C" void executor_mbarrier_inval(ExecutorFunction &function, uint32_t address) {
  Site site = CALLER;
  count(function);
  Barrier *b = barrier_at(address, function.name, site);
  REQUIRE(b != nullptr);
  if (!b->landings.empty() || b->transactions) {
    set_fault("mbarrier.inval at {at:%u}: copies to %s are in flight", site, object_text(b->place).c_str());
    abandon();
  }
  shared_memory.set_writer(b->place, 8, now() | kWritten, site);
  barriers.erase(b->place);
}

/* fence.mbarrier_init: the objects that the lane has initialised are visible to the cluster and to the
   asynchronous proxy. */
extern "C" void executor_fence_mbarrier_init(ExecutorFunction &function) {
  count(function);
  for (auto &[place, b] : barriers)
    if (component_of(b->initialised) == warp->clock.component && lane_of(b->initialised) == lane_number)
      b->fenced = now();
}

static void expect(Barrier &b, int64_t bytes, Site site) {
  b.transactions += bytes;
  if (b.transactions <= kMostTransactions) return;
  set_fault("mbarrier.expect_tx at {at:%u}: %lld bytes are expected at %s, and at most %lld can be", site,
            (long long)b.transactions, object_text(b.place).c_str(), (long long)kMostTransactions);
  abandon();
}

static void arrive(Barrier &b, int64_t count, bool releases, Site site) {
  if (b.pending < count) {
    set_fault("mbarrier.arrive at {at:%u} by %s: too many arrivals at %s: %lld of %lld are pending in phase "
              "%llu", site, doer(now()).c_str(), object_text(b.place).c_str(), (long long)b.pending,
              (long long)b.expected, (unsigned long long)b.phase);
    abandon();
  }
  progress++;
  b.pending -= count;
  if (releases) warp->clock.release(1u << lane_number, b.arriving);
  if (b.pending == 0 && b.transactions < 0) {
    set_fault("%s: %lld bytes more have been copied than are expected in phase %llu when the last arrival "
              "comes at {at:%u}", object_text(b.place).c_str(), (long long)-b.transactions,
              (unsigned long long)b.phase, site);
    abandon();
  }
  complete_if_done(b);
}

/* The state of an object: its phase, and the arrivals that are pending. */
constexpr int kPhaseBits = 40;
static uint64_t state_of(const Barrier &b) { return uint64_t(b.pending) << kPhaseBits | b.phase; }

/* `bytes` < 0: no expect_tx; `drops`: the later phases expect so many arrivals fewer; `completes`: it may be
   the last one. Returns the state before it. */
extern "C" uint64_t executor_mbarrier_arrive(ExecutorFunction &function, uint32_t address, uint32_t arrivals,
                                             int64_t bytes, bool releases, bool drops, bool completes) {
  Site site = CALLER;
  count(function);
  Barrier *b = barrier_at(address, function.name, site);
  REQUIRE(b != nullptr);
  uint64_t state = state_of(*b);
  if (!completes && b->pending <= arrivals) {
    set_fault("%s at {at:%u}: its arrival is the last one of phase %llu of %s", function.name, site,
              (unsigned long long)b->phase, object_text(b->place).c_str());
    abandon();
  }
  if (bytes >= 0) expect(*b, bytes, site);
  if (drops) b->expected -= arrivals;
  arrive(*b, arrivals, releases, site);
  return state;
}

extern "C" uint32_t executor_mbarrier_pending(ExecutorFunction &function, uint64_t state) {
  count(function);
  return uint32_t(state >> kPhaseBits);
}

/* mbarrier.complete_tx: bytes count as copied. */
extern "C" void executor_mbarrier_complete_tx(ExecutorFunction &function, uint32_t address, uint32_t bytes) {
  Site site = CALLER;
  count(function);
  Barrier *b = barrier_at(address, function.name, site);
  REQUIRE(b != nullptr);
  b->transactions -= bytes;
  progress++;
  if (b->transactions < (b->pending ? -kMostTransactions : 0)) {
    set_fault("%s at {at:%u}: %lld bytes more than are expected at %s", function.name, site,
              (long long)-b->transactions, object_text(b->place).c_str());
    abandon();
  }
  complete_if_done(*b);
}

/* cp.async.mbarrier.arrive: the lane's copies so far arrive when they are done, which is when somebody waits.
   `counted`: the arrival is one of those that the object expects; otherwise one more is expected now. */
extern "C" void executor_copy_arrive(ExecutorFunction &function, uint32_t address, bool counted) {
  Site site = CALLER;
  count(function);
  Barrier *b = barrier_at(address, function.name, site);
  REQUIRE(b != nullptr);
  if (!counted) b->pending++;
  Copies *copies = &lane->copies;
  uint64_t end = copies->issued();
  Landing landing;
  landing.arrivals = 1, landing.site = site;
  Barrier *object = b;
  landing.copy = [=](Stamp writer) {
    copies->landed.raise(object->agent, uint32_t(object->phase + 1));
    for (uint64_t n = copies->done; n < end; n++) {
      Copy &copy = copies->queue[size_t(n - copies->done)];
      if (!copy.landed) make_copy(copy, writer);
    }
  };
  b->landings.push_back(std::move(landing));
  progress++;
}

extern "C" void executor_mbarrier_expect_tx(ExecutorFunction &function, uint32_t address, uint32_t bytes) {
  Site site = CALLER;
  count(function);
  Barrier *b = barrier_at(address, function.name, site);
  REQUIRE(b != nullptr);
  expect(*b, bytes, site);
}

/* The oldest copy to an object is made. */
static void land(Barrier &b) {
  Landing landing = std::move(b.landings.front());
  b.landings.pop_front();
  Stamp writer = make_stamp(b.agent, 0, uint32_t(b.phase + 1)) | kWritten;
  landing.copy(writer);
  for (const Landing::Range &range : landing.ranges)
    shared_memory.set_writer(range.to, range.bytes, writer, 0);
  b.arriving.order.raise(b.agent, uint32_t(b.phase + 1));
  b.transactions -= landing.bytes;
  if (b.pending < landing.arrivals)
    set_fault("%s: the arrival of the copies at {at:%u} is one more than are pending in phase %llu",
              object_text(b.place).c_str(), landing.site, (unsigned long long)b.phase);
  b.pending -= landing.arrivals;
  progress++;
  if (b.transactions < (b.pending ? -kMostTransactions : 0))
    set_fault("%s: the copy issued at {at:%u} ends with %lld bytes more than are expected in phase %llu",
              object_text(b.place).c_str(), landing.site, (long long)-b.transactions,
              (unsigned long long)b.phase);
  complete_if_done(b);
}

/* `number`: the phase that has to be complete. */
static bool phase_ready(Waiter &waiter) {
  Barrier &b = *static_cast<Barrier *>(waiter.object);
  while (b.phase <= waiter.number && !b.landings.empty() && !faulted) land(b);
  return b.phase > waiter.number;
}

static std::string phase_text(const Waiter &waiter) {
  const Barrier &b = *static_cast<const Barrier *>(waiter.object);
  return "phase " + decimal(waiter.number) + " of " + object_text(b.place) + ": " +
         decimal(b.pending) + " of " + decimal(b.expected) +
         " arrivals are pending, and " + decimal(b.transactions) + " bytes outstanding";
}

/* Whether a wait returns before it is over: it does in all orders but the first, once. In the first one lanes
   wait, so that what ignores the result is seen as well. */
static bool returns_early(const Barrier &b, uint64_t phase) {
  Retry &retry = lane->retry;
  bool again = retry.object == &b && retry.number == phase;
  retry = {};
  if (again || b.phase > phase || order_of_lanes == 0) return false;
  if (order_of_lanes == 2 && random_number() & 1) return false;
  retry = {&b, phase};
  return true;
}

static bool wait_for_phase(Barrier &b, uint64_t phase, bool acquires, ExecutorFunction &function, Site site) {
  if (returns_early(b, phase)) {
    function.calls--;  // Counts are the same in each order.
    return false;
  }
  Waiter waiter{phase_ready, phase_text, site, nullptr, 0};
  waiter.object = &b, waiter.number = phase, waiter.may_fail = true;
  wait_for(waiter);
  if (waiter.failed) return false;
  // What earlier phases released, the last one did too as far as one thread of it knew.
  if (acquires && b.released) warp->clock.acquire(1u << lane_number, b.released, &b, b.phase);
  return true;
}

/* try_wait and test_wait with a parity: of the phase before the current one, or of the current one. */
extern "C" bool executor_mbarrier_wait_parity(ExecutorFunction &function, uint32_t address, uint32_t parity,
                                              bool acquires) {
  Site site = CALLER;
  count(function);
  Barrier *b = barrier_at(address, function.name, site);
  REQUIRE(b != nullptr);
  if (parity > 1) {
    set_fault("mbarrier.try_wait at {at:%u} with parity %u: it is 0 or 1", site, parity);
    abandon();
  }
  uint64_t phase = (b->phase & 1) == parity ? b->phase : b->phase - 1;
  if (phase == ~uint64_t{0}) return true;  // Before the first phase there is one that is complete.
  return wait_for_phase(*b, phase, acquires, function, site);
}

/* With the state that an arrival returned. */
extern "C" bool executor_mbarrier_wait(ExecutorFunction &function, uint32_t address, uint64_t state,
                                       bool acquires) {
  Site site = CALLER;
  count(function);
  Barrier *b = barrier_at(address, function.name, site);
  REQUIRE(b != nullptr);
  state &= (uint64_t{1} << kPhaseBits) - 1;
  if (state > b->phase || state + 1 < b->phase) {
    set_fault("mbarrier.try_wait at {at:%u} for phase %llu of %s, which is in phase %llu", site,
              (unsigned long long)state, object_text(b->place).c_str(), (unsigned long long)b->phase);
    abandon();
  }
  return wait_for_phase(*b, state, acquires, function, site);
}

/* A block ends: no copy to it may be in flight. */
static void end_barriers(const Block &block) {
  for (auto &[place, b] : barriers)
    if (shared_memory.rank(place) == block.rank && !b->landings.empty()) {
      set_fault("the block ends while the bulk copy issued at {at:%u} to %s is in flight",
                b->landings.front().site, object_text(place).c_str());
      return;
    }
}
