// Sampler: turns lanes into batches in one call.
//
// Contract
//   * A start is a row that is not `last`, whose next n rows are there or whose episode ended among them, and whose stacked
//     frames are still kept. (Once a lane has wrapped, its oldest stack - 1 rows are frames only.) Uniform draws give every
//     start the same chance; prioritized draws give chance in proportion to priority^alpha.
//   * A draw serves one or more updates. Each has a sample of its own: one row from each of `batch` equal strata of the mass, in an
//     order in which neighbours come from far apart, so that any run of rows within an update is a sample of the whole mass too.
//     Importance weights are over the largest of the update.
//   * reward = sum of gamma^i r over the m <= n steps there are; discount = gamma^m, or 0 where the episode terminated.
//     Truncation bootstraps from the true final observation. So does an episode that was cut, because its writer or its env
//     was replaced, from the last observation that was written.
//   * Stacks are put together from single frames, oldest first, never across an episode's start: there the first frame is
//     repeated, or zeros stand in.
//   * Every row is checked after the copy: one that may have been overwritten meanwhile is drawn again, and counted.
//   * The same rows, seed and calls give the same batches.
//   * One thread at a time (a Feed sees to it); writers in other threads and processes never wait for it.
#pragma once

#include <cmath>
#include <memory>
#include <numeric>
#include <string>

#include "gather.hpp"
#include "sumtree.hpp"

namespace fw {

template <class P>
class Sampler {
 public:
  struct Stats {
    std::atomic<u64> batches{0}, redraws{0}, rejected{0}, stale_priorities{0};
  };

  Sampler(Lanes<P> lanes, std::vector<Field> fields, const SampleSettings& settings, bool prioritized)
      : lanes_(lanes), fields_(std::move(fields)), set_(settings), random_(settings.seed), prioritized_(prioritized) {
    const std::size_t n = lanes_.shape().num_lanes;
    heads_.resize(n);
    head_slots_.resize(n);
    ends_.resize(n);
    for (std::size_t lane = 0; lane < n; ++lane) heads_[lane] = lanes_.base(lane);
    places_ = spread(set_.batch);
    picks_.resize(set_.rows());
    if (lanes_.shape().slots <= set_.n_step + set_.stack)
      throw Refused("a lane keeps " + std::to_string(lanes_.shape().slots - 1) + " rows, but n_step=" +
                    std::to_string(set_.n_step) + " with stack=" + std::to_string(set_.stack) + " needs at least " +
                    std::to_string(set_.n_step + set_.stack) + ". Lower them or raise lane_rows.");
    if (n * lanes_.shape().slots >= (u64(1) << 32))
      throw Refused("a replay of " + std::to_string(n * lanes_.shape().slots) + " rows is more than 2^32.");
  }

  Random& random() { return random_; }
  const Stats& stats() const { return stats_; }
  bool prioritized() const { return prioritized_.load(std::memory_order_relaxed); }
  void set_prioritized(bool on) { prioritized_.store(on, std::memory_order_relaxed); }
  const SampleSettings& settings() const { return set_; }
  const Lanes<P>& lanes() const { return lanes_; }
  // For the test that the check is needed: a reader that trusts what it copied.
  void distrust_check(bool off) { unchecked_ = off; }

  void fill(BatchOut& out) {
    const bool by_priority = prioritized();
    refresh(by_priority);
    const u64 total = ends_.back();
    if (total < set_.rows())
      throw Refused("a batch of " + std::to_string(set_.rows()) + " was asked for, but the replay holds " +
                    std::to_string(total) + " rows. Collect more first or lower batch_size.");
    arrange(by_priority);
    std::size_t left = set_.rows();
    for (int round = 0; left; ++round) {
      if (round == max_rounds) throw Refused(exhausted(left));
      if (round) refresh(by_priority);
      if (by_priority && tree_->total() <= 0) continue;
      left = fill_round(out, left, by_priority, round == 0);
    }
    stats_.batches.fetch_add(1, std::memory_order_relaxed);
  }

  // Importance weights of the PER paper, (N P)^-beta over their largest in the update; N and the total cancel.
  void weigh(BatchOut& out, double beta) const {
    for (std::size_t first = 0; first < set_.rows(); first += set_.batch) {
      const float* chance = out.chance + first;
      float* weight = out.weight + first;
      const float least = *std::min_element(chance, chance + set_.batch);
      if (beta == 0 || least == *std::max_element(chance, chance + set_.batch)) {
        std::fill_n(weight, set_.batch, 1.0f);
        continue;
      }
      const float exponent = -float(beta), log_least = std::log2(least);
      for (std::size_t i = 0; i < set_.batch; ++i)
        weight[i] = std::exp2(exponent * (std::log2(chance[i]) - log_least));
    }
  }

  // Priorities of rows that were overwritten meanwhile are ignored and counted.
  void update(const i64* lane, const i64* row, const float* priority, std::size_t count) {
    indices_.clear();
    values_.clear();
    u64 stale = 0;
    float largest = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const u64 r = u64(row[i]);
      const std::size_t l = std::size_t(lane[i]);
      if (!tree_ || !is_in_tree(l, r)) {
        ++stale;
        continue;
      }
      const std::size_t slot = lanes_.slot_shift(head_slots_[l], -i64(heads_[l] - r));
      lanes_.set_priority(l, slot, r, priority[i]);
      largest = std::max(largest, priority[i]);
      indices_.push_back(u32(l * lanes_.shape().slots + slot));
      values_.push_back(powered(priority[i]));
    }
    lanes_.raise_max_priority(largest);
    reach(Point::tree_update);
    if (tree_) tree_->update(indices_.data(), values_.data(), indices_.size());
    if (stale) stats_.stale_priorities.fetch_add(stale, std::memory_order_relaxed);
  }

 private:
  static constexpr std::size_t group = 32, lag = 32;  // 16 and 64 are as good; 8 is slower by a tenth with priorities
  static constexpr int max_rounds = 10'000;

  // --- what is there --------------------------------------------------------------------------------------------

  u64 first_start(std::size_t lane, u64 head) const {
    const u64 base = lanes_.base(lane), kept = lanes_.shape().slots - 1;
    return head - base > kept ? head - kept + (set_.stack - 1) : base;
  }

  void refresh(bool by_priority) {
    if (by_priority && !tree_) open_tree();
    u64 total = 0;
    for (std::size_t lane = 0; lane < heads_.size(); ++lane) {
      const u64 head = lanes_.head(lane);
      if (head != heads_[lane]) {
        heads_[lane] = head;
        head_slots_[lane] = lanes_.slot_of(lane, head);
      }
      total += head - first_start(lane, head);
      ends_[lane] = total;
    }
    if (by_priority) take_in();
  }

  // --- the priority tree ----------------------------------------------------------------------------------------

  void open_tree() {
    tree_ = std::make_unique<SumTree>(heads_.size() * lanes_.shape().slots);
    cleared_.resize(heads_.size());
    next_.resize(heads_.size());
    for (std::size_t lane = 0; lane < heads_.size(); ++lane) cleared_[lane] = next_[lane] = lanes_.base(lane);
  }

  // Uniform draws move the heads on and leave the tree behind: a row in it may be gone.
  bool is_in_tree(std::size_t lane, u64 row) const {
    return lane < heads_.size() && row - lanes_.base(lane) < next_[lane] - lanes_.base(lane) &&
           cleared_[lane] - row <= lanes_.shape().slots && lanes_.intact(row, heads_[lane]);
  }

  // Rows below next_ are decided: starts have their leaf, others 0. Slots of rows below cleared_ no longer stand for the
  // row that was in them a lap before.
  void take_in() {
    indices_.clear();
    values_.clear();
    const std::size_t slots = lanes_.shape().slots;
    const float max_priority = lanes_.max_priority();
    for (std::size_t lane = 0; lane < heads_.size(); ++lane) {
      const u64 head = heads_[lane], first = first_start(lane, head), gone = first + slots;
      if (next_[lane] == head) continue;
      u64 from = cleared_[lane];
      if (gone - from > slots) from = gone - slots;
      for (u64 row = from; row != gone; ++row) {
        const u32 leaf = leaf_of(lane, row);
        if (tree_->value(leaf) != 0) set(leaf, 0);
      }
      cleared_[lane] = gone;
      if (i64(next_[lane] - first) < 0) next_[lane] = first;
      for (u64& row = next_[lane]; row != head; ++row) {
        const std::size_t slot = lanes_.slot_shift(head_slots_[lane], -i64(head - row));
        Pick pick{0, lane, slot, row, 0, 0, 0, 0, 0, false};
        if (!look(pick)) break;  // its n steps are not complete yet
        if (!pick.is_start) continue;
        const float priority = lanes_.priority(lane, slot, row, max_priority);
        lanes_.set_priority(lane, slot, row, priority);  // so that a rebuilt tree is the same tree
        reach(Point::insert);
        set(u32(lane * slots + slot), powered(priority));
      }
    }
    if (indices_.size() * 4 < tree_->num_leaves()) return tree_->update(indices_.data(), values_.data(), indices_.size());
    for (std::size_t i = 0; i < indices_.size(); ++i) tree_->set_leaf(indices_[i], values_[i]);
    tree_->rebuild();
  }

  void set(u32 leaf, float value) {
    indices_.push_back(leaf);
    values_.push_back(value);
  }

  u32 leaf_of(std::size_t lane, u64 row) const {
    return u32(lane * lanes_.shape().slots + lanes_.slot_of(lane, row));
  }

  float powered(float priority) const {
    if (set_.alpha == 1 || priority == 0) return priority;
    return std::exp2(float(set_.alpha) * std::log2(priority));
  }

  // --- a round: draw, look, copy, check -------------------------------------------------------------------------

  // The numbers below n in the order of the fractions of their multiples of the golden ratio: neighbours in value lie far apart in
  // the order, evenly for any run of values, however long.
  static std::vector<std::size_t> spread(std::size_t n) {
    std::vector<std::size_t> places(n);
    std::iota(places.begin(), places.end(), std::size_t(0));
    const auto fraction = [](std::size_t i) { return u64(i) * 0x9e3779b97f4a7c15u; };
    std::sort(places.begin(), places.end(), [&](std::size_t a, std::size_t b) { return fraction(a) < fraction(b); });
    return places;
  }

  // Which row of the batch each pick is for. Uniform picks need no order; a stratum's row is another one in every draw.
  void arrange(bool by_priority) {
    if (!by_priority) {
      for (std::size_t i = 0; i < picks_.size(); ++i) picks_[i].index = i;
      return;
    }
    for (std::size_t first = 0; first < picks_.size(); first += set_.batch) {
      std::size_t at = std::size_t(random_.below(set_.batch));
      for (std::size_t i = 0; i < set_.batch; ++i) {
        picks_[first + i].index = first + places_[at];
        if (++at == set_.batch) at = 0;
      }
    }
  }

  // Draws the first `count` picks and copies their rows, `lag` picks later, so that the memory a draw asks for is there by then.
  // Gives how many must be drawn again; those stand in front.
  std::size_t fill_round(BatchOut& out, std::size_t count, bool by_priority, bool stratified) {
    u64 rejected = 0, overtaken = 0;
    std::size_t left = 0;
    for (std::size_t i = 0; i < count + lag; ++i) {
      if (i < count && i % group == 0) {
        const std::size_t n = std::min(group, count - i);
        by_priority ? draw_prioritized(i, n, stratified) : draw_uniform(&picks_[i], n);
      }
      if (i < lag) continue;
      Pick& pick = picks_[i - lag];
      bool done = look(pick) && pick.is_start;
      rejected += !done;
      if (done) {
        gather(out, pick, heads_[pick.lane] - pick.row, lanes_, fields_, set_);
        // The copies were acquire loads: had one met a newer row, this load would see the head that announced it.
        const u64 oldest = pick.row - std::min(pick.before, set_.stack - 1);
        done = lanes_.intact(oldest, lanes_.head(pick.lane)) || unchecked_;
        overtaken += !done;
      }
      if (!done) picks_[left++].index = pick.index;
    }
    if (rejected) stats_.rejected.fetch_add(rejected, std::memory_order_relaxed);
    if (overtaken) stats_.redraws.fetch_add(overtaken, std::memory_order_relaxed);
    return left;
  }

  std::string exhausted(std::size_t left) const {
    return "no row could be drawn in " + std::to_string(max_rounds) + " rounds from " + std::to_string(ends_.back()) +
           " rows (" + std::to_string(left) +
           " samples left): there is no complete step yet, all priorities are 0, or writers overwrite lanes faster than they "
           "can be read.";
  }

  void draw_uniform(Pick* picks, std::size_t count) {
    const u64 total = ends_.back();
    for (std::size_t i = 0; i < count; ++i) {
      Pick& pick = picks[i];
      const u64 random = random_.next(), at = Random::scaled(random, total);
      pick.lane = lane_of(at, Random::scaled(random, ends_.size()));
      pick.row = heads_[pick.lane] - (ends_[pick.lane] - at);
      pick.chance = 1;
      place(pick);
    }
  }

  void draw_prioritized(std::size_t first, std::size_t count, bool stratified) {
    Pick* picks = &picks_[first];
    double offsets[group];
    u32 leaves[group];
    const double total = tree_->total(), width = total / double(set_.batch);
    std::size_t stratum = first % set_.batch;
    for (std::size_t i = 0; i < count; ++i) {
      offsets[i] = stratified ? (double(stratum) + random_.unit()) * width : random_.unit() * total;
      if (++stratum == set_.batch) stratum = 0;
    }
    tree_->draw(offsets, leaves, count);
    const u32 slots = u32(lanes_.shape().slots);
    for (std::size_t i = 0; i < count; ++i) {
      Pick& pick = picks[i];
      pick.lane = leaves[i] / slots;
      const u64 slot = leaves[i] % slots, head = head_slots_[pick.lane];
      pick.row = heads_[pick.lane] - (head > slot ? head - slot : head + slots - slot);
      pick.chance = tree_->value(leaves[i]);
      place(pick);
    }
  }

  // The first lane whose end is above `at`. The guess is right where lanes are equally full, which is nearly always.
  std::size_t lane_of(u64 at, std::size_t guess) const {
    const u64* ends = ends_.data();
    if (at < ends[guess] && (guess == 0 || at >= ends[guess - 1])) [[likely]]
      return guess;
    std::size_t first = 0, length = ends_.size();  // without branches, because the answer is random
    while (length > 1) {
      const std::size_t half = length / 2;
      first += (ends[first + half - 1] <= at) * half;
      length -= half;
    }
    return first;
  }

  void place(Pick& pick) {
    pick.slot = lanes_.slot_shift(head_slots_[pick.lane], -i64(heads_[pick.lane] - pick.row));
    const char* row = reinterpret_cast<const char*>(lanes_.meta_at(pick.lane, pick.slot));
    const std::size_t bytes = lanes_.row_bytes();
    if (bytes <= 128) {  // the row and the next, whole
      for (std::size_t at = 0; at < 2 * bytes; at += 64) prefetch_near(row + at);
    } else {  // their beginnings; the processor sees the stream and fetches the rest
      for (std::size_t at = 0; at < 256; at += 64) prefetch(row + at);
      prefetch(row + bytes * set_.n_step);
      prefetch(row + bytes * set_.n_step + 64);
    }
  }

  // Walks the n steps after the row. False when they are not all there yet; else is_start says whether it may be drawn.
  bool look(Pick& pick) const {
    const RowHead here = lanes_.row_head(pick.lane, pick.slot);
    pick.before = here.step;
    pick.is_start = false;
    if (here.flags & kLast) return true;
    double reward = 0, discount = 1;
    std::size_t steps = 0, slot = pick.slot;
    while (steps < set_.n_step) {
      if (pick.row + steps + 1 == heads_[pick.lane]) return false;
      slot = lanes_.slot_shift(slot, 1);
      const RowHead next = lanes_.row_head(pick.lane, slot);
      if (next.step == 0) break;  // the writer or the env was replaced: the episode was cut at the row before
      reward += discount * double(next.reward);
      discount *= set_.gamma;
      ++steps;
      if (next.flags & kLast) {
        if (next.flags & kTerminated) discount = 0;
        break;
      }
    }
    pick.is_start = steps > 0;
    pick.reward = reward;
    pick.discount = discount;
    pick.steps = steps;
    return true;
  }

  Lanes<P> lanes_;
  std::vector<Field> fields_;
  SampleSettings set_;
  Random random_;
  std::atomic<bool> prioritized_;
  bool unchecked_ = false;
  Stats stats_;
  std::vector<u64> heads_, ends_;  // per lane: the head seen last; rows to draw from, summed up to and with this lane
  std::vector<std::size_t> head_slots_;
  std::vector<std::size_t> places_;  // in an update, of the row of each stratum
  std::vector<Pick> picks_;
  std::unique_ptr<SumTree> tree_;
  std::vector<u64> cleared_, next_;
  std::vector<u32> indices_;
  std::vector<float> values_;
};

}  // namespace fw
