/* Accesses of single lanes, put together to those of their warp, which is what costs something.

   Those of a warp belong together where they are made from one place of the text for the same time
   by each lane; a lane whose predicate is false comes without an address. */
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include "counters.h"
#include "fault.h"
#include "traffic.h"

enum Kind : uint8_t { kGlobalLoad, kGlobalStore, kSharedLoad, kSharedStore, kCopy };

static void count_shared(const Wavefronts &cost, bool writes) {
  (writes ? tally.shared_store_wavefronts : tally.shared_load_wavefronts) += cost.taken;
  (writes ? tally.shared_store_wavefronts_least : tally.shared_load_wavefronts_least) += cost.least;
}

static void count_global(uint64_t *addresses, int count, int bytes, bool writes) {
  Sectors cost = global_cost(addresses, count, bytes);
  (writes ? tally.global_store_sectors : tally.global_load_sectors) += cost.taken;
  (writes ? tally.global_store_sectors_least : tally.global_load_sectors_least) += cost.least;
  (writes ? tally.global_store_bytes : tally.global_load_bytes) += uint64_t(count) * uint64_t(bytes);
}

/* What one lane does: offsets in shared memory, addresses in global memory. */
struct LaneAccess {
  bool in_shared = false, in_global = false;
  uint32_t shared = 0;
  uint64_t global = 0;
};

class Accesses {
 public:
  void add(int lane, uint32_t live, Site site, Kind kind, int bytes, Function *function,
           const LaneAccess &access) {
    // An instruction of PTX has a function of its own at its place in the text. Its return address
    // would not do: compilers copy calls into the branches that lead to them.
    Place &place = function ? of_function(*function, kind)
                            : find(uint64_t(site) << 8 | uint64_t(kind) << 5 | uint64_t(bytes));
    if (!place.open) {
      place.open = true, place.kind = kind, place.bytes = bytes, place.function = function;
      memset(place.times, 0, sizeof place.times);
      place.accounted = 0;
      open_.push_back(&place);
    }
    uint32_t number = place.times[lane]++ - place.accounted;
    while (number >= place.groups.size()) place.groups.push();
    Group &group = place.groups[number];
    uint32_t bit = 1u << lane;
    group.came |= bit;
    if (access.in_shared) group.in_shared |= bit, group.shared[lane] = access.shared;
    if (access.in_global) group.in_global |= bit, group.global[lane] = access.global;
    while (place.groups.size() && place.groups[0].came == live) {
      account(place, place.groups[0]);
      place.groups.pop();
      place.accounted++;
    }
  }

  /* The warp is at a barrier, or at its end: groups to which no more lanes come. */
  void settle() {
    for (Place *place : open_) {
      for (; place->groups.size(); place->groups.pop()) account(*place, place->groups[0]);
      place->open = false;
    }
    open_.clear();
  }

  /* Without counting: after a fault. */
  void clear() {
    for (Place *place : open_) place->groups.clear(), place->open = false;
    open_.clear();
  }

 private:
  struct Group {
    Group() {}  // Addresses stay unset: without this, each group would be filled with zeros.
    uint32_t came = 0, in_shared = 0, in_global = 0;
    uint32_t shared[32];
    uint64_t global[32];
  };

  /* A queue whose memory stays, as groups come and go with each access. */
  class Groups {
   public:
    size_t size() const { return size_; }
    Group &operator[](size_t number) { return ring_[(first_ + number) & (ring_.size() - 1)]; }
    void push() {
      if (size_ == ring_.size()) {
        std::vector<Group> larger(std::max<size_t>(4, 2 * size_));
        for (size_t n = 0; n < size_; n++) larger[n] = (*this)[n];
        ring_.swap(larger), first_ = 0;
      }
      Group &made = (*this)[size_++];
      made.came = made.in_shared = made.in_global = 0;
    }
    void pop() { first_ = (first_ + 1) & (ring_.size() - 1), size_--; }
    void clear() { size_ = 0; }

   private:
    std::vector<Group> ring_;  // A power of two.
    size_t first_ = 0, size_ = 0;
  };
  struct Place {
    uint64_t key = 0;
    Place *following = nullptr;  // Looked up after this one, last time.
    Function *function = nullptr;
    int bytes = 0;
    Kind kind = kGlobalLoad;
    bool open = false;
    uint32_t times[32];  // That each lane has been here since the last barrier.
    uint32_t accounted = 0;  // Groups before those of the queue.
    Groups groups;
  };

  /* An instruction with generic addresses may have several kinds. */
  Place &of_function(Function &function, Kind kind) {
    static uint32_t functions;
    if (__builtin_expect(function.number == 0, 0)) function.number = ++functions;
    size_t index = function.number * size_t{kCopy + 1} + kind;
    if (__builtin_expect(index >= of_functions_.size(), 0)) of_functions_.resize(index + 1);
    if (__builtin_expect(!of_functions_[index], 0)) of_functions_[index] = std::make_unique<Place>();
    return *of_functions_[index];
  }

  /* Lanes pass the places one after the other in the same order. */
  Place &find(uint64_t key) {
    Place *guess = last_->following;
    if (guess == nullptr || guess->key != key) {
      guess = &places_[key];
      guess->key = key;
      last_->following = guess;
    }
    last_ = guess;
    return *guess;
  }

  static void account(const Place &place, const Group &group) {
    if (place.function) count(*place.function);
    if (place.kind != kGlobalLoad && place.kind != kGlobalStore)
      count_shared(shared_cost(group.shared, group.in_shared, place.bytes), place.kind != kSharedLoad);
    if (place.kind == kSharedLoad || place.kind == kSharedStore) return;
    uint64_t addresses[32];
    int number = 0;
    for (uint32_t rest = group.in_global; rest; rest &= rest - 1)
      addresses[number++] = group.global[__builtin_ctz(rest)];
    count_global(addresses, number, place.bytes, place.kind == kGlobalStore);
  }

  Place first_;
  Place *last_ = &first_;
  std::unordered_map<uint64_t, Place> places_;
  std::vector<std::unique_ptr<Place>> of_functions_;
  std::vector<Place *> open_;
};
