/* Vector clocks: what each thread knows to have happened.

   A component of a clock is a warp, whose time advances wherever one of its lanes lets others know
   what it has done, or an agent: a barrier object that bulk copies arrive at, a lane's bulk stores, or
   a warp group's matrix products. An access is stamped with its component, lane and time, and has
   happened before another one if the thread that makes the other knows of that time. */
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

/* As a lane: a warp's collective function. Each lane has a part in it, so that one lane vouches for its own
   part alone. */
constexpr int kCollective = 32;
constexpr int kCollectiveWrite = 33;  // One that writes.
constexpr int kSlots = 34;

/* 3 bits for a state, 6 of the lane, 16 of the component, 32 of the time. */
using Stamp = uint64_t;

static inline Stamp make_stamp(uint32_t component, int lane, uint32_t time) {
  return uint64_t(time) << 25 | uint64_t(component) << 9 | uint64_t(lane) << 3;
}
static inline uint32_t time_of(Stamp s) { return uint32_t(s >> 25); }
static inline uint32_t component_of(Stamp s) { return uint32_t(s >> 9 & 0xffff); }
static inline int lane_of(Stamp s) { return int(s >> 3 & 63); }

/* Times up to which the accesses of components are known: of all lanes of a warp, or lane by lane. */
class Clock {
 public:
  uint32_t time(uint32_t component) const {
    return component < times_.size() ? times_[component] : 0;
  }

  bool covers(uint32_t component, int lane, uint32_t time) const {
    if (this->time(component) >= time) return true;
    for (const Lanes &l : lanes_)
      if (l.component == component) return l.times[lane] >= time;
    return false;
  }

  void raise(uint32_t component, uint32_t time) {
    if (component >= times_.size()) times_.resize(component + 1);
    times_[component] = std::max(times_[component], time);
  }

  /* Of some lanes of a warp of which `live` exist; `used`: up to when the warp has used what it read together. */
  void raise_lanes(uint32_t component, uint32_t lanes, uint32_t live, uint32_t time, uint32_t used) {
    Lanes &l = lanes_of(component);
    for (int i = 0; i < 32; i++) {
      uint32_t reached = lanes >> i & 1 ? time : live >> i & 1 ? 0 : UINT32_MAX;
      l.times[i] = std::max(l.times[i], reached);
    }
    l.times[kCollective] = std::max(l.times[kCollective], used);
    l.complete_parts();
    tidy(component);
  }

  void join(const Clock &other) {
    if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
    for (size_t c = 0; c < other.times_.size(); c++) times_[c] = std::max(times_[c], other.times_[c]);
    for (const Lanes &l : other.lanes_) {
      if (l.most() <= time(l.component)) continue;
      Lanes &mine = lanes_of(l.component);
      for (int i = 0; i < kSlots; i++) mine.times[i] = std::max(mine.times[i], l.times[i]);
      mine.complete_parts();
      tidy(l.component);
    }
  }

  void clear() { times_.clear(), lanes_.clear(); }

 private:
  struct Lanes {
    uint32_t component;
    uint32_t times[kSlots];

    /* What is known of all lanes is known of what they did together. */
    void complete_parts() {
      uint32_t all = *std::min_element(times, times + 32);
      for (int slot = kCollective; slot < kSlots; slot++) times[slot] = std::max(times[slot], all);
    }

    uint32_t least() const {
      uint32_t made = UINT32_MAX;
      for (uint32_t t : times) made = std::min(made, t);
      return made;
    }
    uint32_t most() const {
      uint32_t made = 0;
      for (uint32_t t : times) made = std::max(made, t);
      return made;
    }
  };

  Lanes &lanes_of(uint32_t component) {
    for (Lanes &l : lanes_)
      if (l.component == component) return l;
    lanes_.push_back({component, {}});
    return lanes_.back();
  }

  /* What all lanes have in common is the warp's. */
  void tidy(uint32_t component) {
    for (size_t n = 0; n < lanes_.size(); n++) {
      Lanes &l = lanes_[n];
      if (l.component != component) continue;
      raise(component, l.least());
      uint32_t common = time(component), more = 0;
      for (uint32_t t : l.times) more |= uint32_t(t > common) & uint32_t(t != UINT32_MAX);
      if (more) return;
      if (n + 1 < lanes_.size()) l = lanes_.back();
      lanes_.pop_back();
      return;
    }
  }

  std::vector<uint32_t> times_;
  std::vector<Lanes> lanes_;
};

/* Number of the cluster that runs, in the launch, from 1. */
static uint32_t running_cluster;

/* What is known of clusters by their numbers. */
using Clusters = std::map<uint32_t, Clock>;
using SharedClusters = std::shared_ptr<const Clusters>;

static inline void join_clusters(SharedClusters &mine, const SharedClusters &theirs) {
  if (!theirs || mine == theirs) return;
  if (!mine) {
    mine = theirs;
    return;
  }
  std::shared_ptr<Clusters> both(new Clusters(*mine));
  for (auto &[number, clock] : *theirs) (*both)[number].join(clock);
  mine = both;
}

/* Whom an atomic operation or a fence orders: threads of the block, of the cluster, or all. */
enum Scope : int { kBlockScope, kClusterScope, kGpuScope };

/* What a thread knows to have happened. */
struct Knowledge {
  Clock order;
  Clock proxy;   // What the asynchronous proxy sees too of ordinary accesses: a proxy fence followed.
  Clock fenced[3];  // What a relaxed atomic operation releases, by scope: a fence followed.
  Clock unacquired[2];  // What one has read of its block and cluster, which a fence acquires.
  SharedClusters clusters;  // Through locations of global memory.
  SharedClusters pending;   // Of these what a fence acquires.
  uint64_t includes = 0;    // Version of what a warp's lanes have in common that was joined last.

  void join(const Knowledge &other) {
    order.join(other.order);
    proxy.join(other.proxy);
    for (int scope = 0; scope < 3; scope++) fenced[scope].join(other.fenced[scope]);
    for (int scope = 0; scope < 2; scope++) unacquired[scope].join(other.unacquired[scope]);
    join_clusters(clusters, other.clusters);
    join_clusters(pending, other.pending);
  }
  void clear() {
    order.clear(), proxy.clear();
    for (Clock &clock : fenced) clock.clear();
    for (Clock &clock : unacquired) clock.clear();
    clusters.reset(), pending.reset(), includes = 0;
  }

  /* Clusters, of which the running one is known thread by thread. */
  void learn(const SharedClusters &theirs) {
    join_clusters(clusters, theirs);
    if (!theirs) return;
    auto mine = theirs->find(running_cluster);
    if (mine != theirs->end()) order.join(mine->second);
  }
};

/* std::make_shared has a variable that is unique in the process, which keeps a library from closing. */
static inline std::shared_ptr<Knowledge> share(Knowledge knowledge = {}) {
  return std::shared_ptr<Knowledge>(new Knowledge(std::move(knowledge)));
}

static uint64_t clock_versions;

/* The knowledge of a warp: that of all its lanes, and what only some of them have. */
struct WarpClock {
  uint32_t component = 0;
  uint32_t lanes_live = 0;
  uint32_t time = 1;
  uint32_t used = 0;            // Up to when the warp has used what it has read together.
  bool reads_together = false;  // Whether it has since.
  Knowledge common;
  uint64_t version = 0;  // Of what is common.

  struct Part {
    uint32_t lanes;
    const void *source;  // What it was acquired from, with `number`; null for the lanes' own.
    uint64_t number;
    std::shared_ptr<const Knowledge> knowledge;
  };
  std::vector<Part> parts;
  Knowledge own[32];  // Of single lanes, which have it from themselves or from no source that others share.
  uint32_t have_own = 0;

  void begin(uint32_t its_component, uint32_t live) {
    component = its_component, lanes_live = live, time = 1, used = 0, reads_together = false;
    common.clear(), forget_parts();
    changed();
  }

  /* Whether a lane knows of something, by what is common or its parts; of a collective function: whether
     every lane does, each from a part of its own if need be. */
  template <class Covers>
  bool known_to(int lane, Covers covers) const {
    if (covers(common)) return true;
    uint32_t wanted = lane < 32 ? 1u << lane : lanes_live, reached = 0;
    for (const Part &part : parts)
      if ((part.lanes & wanted & ~reached) && covers(*part.knowledge)) reached |= part.lanes;
    for (uint32_t rest = wanted & have_own & ~reached; rest; rest &= rest - 1)
      if (covers(own[__builtin_ctz(rest)])) reached |= rest & -rest;
    return (wanted & ~reached) == 0;
  }

  /* Whether an access of `lane` comes after a stamped one; of a collective function: of all lanes. */
  bool knows(Stamp before, int lane) const {
    uint32_t c = component_of(before);
    if (c == component && (lane_of(before) == lane || (lane == kCollectiveWrite && lane_of(before) == kCollective)))
      return true;
    if (common.order.time(c) >= time_of(before)) return true;
    return knows_by_lane(before, lane);
  }

  bool knows_by_lane(Stamp before, int lane) const {
    uint32_t c = component_of(before), t = time_of(before);
    return known_to(lane, [&](const Knowledge &k) { return k.order.covers(c, lane_of(before), t); });
  }

  /* Whether at least one lane knows of it. */
  bool anyone_knows(Stamp before) const {
    uint32_t c = component_of(before), t = time_of(before);
    if (common.order.covers(c, lane_of(before), t)) return true;
    for (const Part &part : parts)
      if (part.knowledge->order.covers(c, lane_of(before), t)) return true;
    for (uint32_t rest = have_own; rest; rest &= rest - 1)
      if (own[__builtin_ctz(rest)].order.covers(c, lane_of(before), t)) return true;
    return false;
  }

  /* Whether an operation of the asynchronous proxy that `lane` issues sees an ordinary access. */
  bool proxy_knows(Stamp before, int lane) const {
    uint32_t c = component_of(before), t = time_of(before);
    return known_to(lane, [&](const Knowledge &k) { return k.proxy.covers(c, lane_of(before), t); });
  }

  /* Whether an access of a thread of a cluster, which may have ended, is known by locations of memory. */
  bool knows_of_cluster(uint32_t cluster, Stamp before, int lane) const {
    return known_to(lane, [&](const Knowledge &k) {
      if (!k.clusters) return false;
      auto clock = k.clusters->find(cluster);
      return clock != k.clusters->end() &&
             clock->second.covers(component_of(before), lane_of(before), time_of(before));
    });
  }

  /* A fence of some lanes: later relaxed operations release what they know, and they acquire what earlier
     ones have read. */
  void thread_fence(uint32_t lanes, Scope scope) {
    Knowledge all, made;
    release(lanes, all);
    for (int s = 0; s <= scope; s++) made.fenced[s] = all.order;
    for (int s = 0; s <= std::min<int>(scope, kClusterScope); s++) made.order.join(all.unacquired[s]);
    if (scope == kGpuScope) made.learn(all.pending);
    learn(lanes, std::move(made));
  }

  /* Add what some lanes know and have done to `target`; what they do from now on is not in it. */
  void release(uint32_t lanes, Knowledge &target) {
    if (target.includes != version) target.join(common), target.includes = version;
    for (const Part &part : parts)
      if (part.lanes & lanes) target.join(*part.knowledge);
    for (uint32_t rest = lanes & have_own; rest; rest &= rest - 1) target.join(own[__builtin_ctz(rest)]);
    if (lanes == lanes_live)
      target.order.raise(component, time);
    else
      target.order.raise_lanes(component, lanes, lanes_live, time, used);
    time++;
  }

  /* A collective function takes registers of all lanes: what was read into them together has been read. */
  void use_registers() {
    if (reads_together) used = time++, reads_together = false;
  }

  /* Some lanes learn what others released; `source` and `number` identify it. */
  void acquire(uint32_t lanes, const std::shared_ptr<const Knowledge> &what, const void *source,
               uint64_t number) {
    for (size_t n = 0; n < parts.size(); n++) {
      Part &part = parts[n];
      if (part.source != source || part.number != number) continue;
      part.lanes |= lanes;
      if (part.lanes == lanes_live) {
        learn_all(*part.knowledge);
        parts.erase(parts.begin() + ptrdiff_t(n));
      }
      return;
    }
    if (lanes == lanes_live)
      learn_all(*what);
    else
      add_part({lanes, source, number, what});
  }

  /* Some lanes learn what no other lane learns from the same source. */
  void learn(uint32_t lanes, Knowledge &&what) {
    if (lanes == lanes_live) {
      learn_all(what);
    } else if ((lanes & (lanes - 1)) == 0) {
      int lane = __builtin_ctz(lanes);
      if (have_own & lanes)
        own[lane].join(what);
      else
        own[lane] = std::move(what);
      have_own |= lanes;
    } else {
      add_part({lanes, nullptr, 0, share(std::move(what))});
    }
  }

  /* A proxy fence of some lanes: what they know, the asynchronous proxy sees. */
  void proxy_fence(uint32_t lanes) {
    Knowledge all, made;
    release(lanes, all);
    made.proxy = std::move(all.order);
    learn(lanes, std::move(made));
  }

  /* Some lanes meet: each knows what the others do. */
  void meet(uint32_t lanes) {
    if (lanes == lanes_live) {
      for (const Part &part : parts) common.join(*part.knowledge);
      for (uint32_t rest = have_own; rest; rest &= rest - 1) common.join(own[__builtin_ctz(rest)]);
      forget_parts();
      common.order.raise(component, time);
      changed();
      time++;
      return;
    }
    Knowledge made;
    release(lanes, made);
    learn(lanes, std::move(made));
  }

  void learn_all(const Knowledge &what) {
    common.join(what);
    changed();
  }

 private:
  static constexpr size_t kMostParts = 6;

  void changed() { version = ++clock_versions; }

  void forget_parts() {
    parts.clear();
    for (uint32_t rest = have_own; rest; rest &= rest - 1) own[__builtin_ctz(rest)].clear();
    have_own = 0;
  }

  void add_part(Part part) {
    parts.push_back(std::move(part));
    if (parts.size() <= kMostParts) return;
    // Those of the same lanes become one.
    std::vector<Part> merged;
    for (Part &p : parts) {
      auto same = std::find_if(merged.begin(), merged.end(),
                               [&](const Part &q) { return q.lanes == p.lanes; });
      if (same == merged.end()) {
        merged.push_back(std::move(p));
        continue;
      }
      auto both = share(*same->knowledge);
      both->join(*p.knowledge);
      *same = {p.lanes, nullptr, 0, both};
    }
    parts.swap(merged);
  }
};

/* Of all warps that run, by their components, which come before those of agents. */
static std::vector<WarpClock *> warp_clocks;

static inline bool is_agent(uint32_t component) { return component >= warp_clocks.size(); }
