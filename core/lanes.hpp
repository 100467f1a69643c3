// Lanes: rings of rows, one writer each, any number of readers, no lock.
//
// A row is one step of one agent: the observation, the reward and the end flags that arrived with it, and the action
// chosen from it. So the reward of the action in row r stands in row r + 1, each observation is stored once, and an
// episode's final observation is a row flagged `last` that carries no action.
//
// Contract
//   * append() fills the row and then release-stores the lane's head: a row is visible only when it is whole.
//   * A lane has one slot more than the rows it keeps. With the head at h the writer may be overwriting row h - slots, so a
//     reader copies, loads the head again, and trusts row r only while intact(r, head): h - r < slots.
//   * Every lane has an epoch. open() raises it; a writer with an older one is refused before it writes a row, and again before
//     it commits one. (A replaced writer that was stopped between the two must be reaped first: the epoch stops its
//     commit, but not its stores into the slot that its successor fills.)
//   * Row numbers are 64-bit, count from the lane's base, and are compared by difference: right across 2^32 and 2^64.
//   * `rows` counts the appended rows of all lanes for those who wait; it may lag the heads by the call of a writer that
//     was killed between its commit and its count. The heads are the truth.
//   * The priority word of a row is {a tag made from the row number, float32}. It is set by the writer with the row, or else by the
//     learner. The tag says which row the value was meant for: one that comes late marks nothing.
//   * The largest priority that a learner gave outlives it, as the priorities do.
#pragma once

#include <vector>

#include "fault_points.hpp"
#include "waits.hpp"

namespace fw {

enum RowFlags : u32 { kTerminated = 1, kTruncated = 2, kLast = kTerminated | kTruncated };

struct Field {
  std::size_t offset_words;  // within the row's payload
  std::size_t bytes;         // of one row
  bool is_observation;       // observations are stacked and gathered again for the next state; the rest is not
};

struct LaneShape {
  std::size_t num_lanes = 0;
  std::size_t slots = 0;  // rows kept + 1
  std::size_t payload_words = 0;
};

struct RowHead {
  float reward;
  u32 flags;
  u64 step;  // steps since the episode began; 0 marks its first row
};

template <class P>
class Lanes {
 public:
  using word = typename P::word;
  static constexpr std::size_t meta_words = 4;  // {flags, reward}, step, version, {row tag, priority}

  static std::size_t num_words(const LaneShape& s) {
    return header_words + s.num_lanes * (lane_words + s.slots * (meta_words + s.payload_words));
  }

  Lanes() = default;
  Lanes(word* words, const LaneShape& shape)
      : shape_(shape),
        rows_(words),
        max_priority_(words + Counter<P>::num_words),
        lanes_(words + header_words),
        slots_(lanes_ + shape.num_lanes * lane_words),
        row_words_(meta_words + shape.payload_words) {}

  void format(u64 first_row) {
    rows_.format(0);
    max_priority_->store(0, std::memory_order_relaxed);
    for (std::size_t lane = 0; lane < shape_.num_lanes; ++lane) {
      base_word(lane)->store(first_row, std::memory_order_relaxed);
      epoch_word(lane)->store(0, std::memory_order_relaxed);
      head_word(lane)->store(first_row, std::memory_order_release);
    }
  }

  const LaneShape& shape() const { return shape_; }
  const Counter<P>& rows() const { return rows_; }
  u64 base(std::size_t lane) const { return base_word(lane)->load(std::memory_order_relaxed); }
  u64 epoch(std::size_t lane) const { return epoch_word(lane)->load(std::memory_order_acquire); }
  // acquire: pairs with the release in append(); rows below the head are whole.
  u64 head(std::size_t lane) const { return head_word(lane)->load(std::memory_order_acquire); }

  // --- writer ---------------------------------------------------------------------------------------------------

  u64 open(std::size_t lane) { return epoch_word(lane)->fetch_add(1, std::memory_order_acq_rel) + 1; }

  // Writes and commits one row; false if the lane was given to another writer meanwhile. `sources[f]` is the row's bytes
  // of field f, or null for a field this row does not carry (a last row's action).
  bool append(std::size_t lane, u64 epoch, RowHead head, u64 version, float priority, const std::vector<Field>& fields,
              const char* const* sources) {
    if (this->epoch(lane) != epoch) return false;
    const u64 row = head_word(lane)->load(std::memory_order_relaxed);  // only this writer changes it
    const std::size_t slot = slot_of(lane, row);
    word* meta = meta_at(lane, slot);
    reach(Point::reserve);
    // release on each word: they follow the head store that announced this overwriting (see policy.hpp).
    meta[0].store(u64(head.flags) << 32 | std::bit_cast<u32>(head.reward), std::memory_order_release);
    meta[1].store(head.step, std::memory_order_release);
    meta[2].store(version, std::memory_order_release);
    if (priority >= 0) meta[3].store(tagged(row, priority), std::memory_order_release);
    reach(Point::write);
    word* payload = payload_at(lane, slot);
    for (std::size_t f = 0; f < fields.size(); ++f)
      if (sources[f]) P::copy_in(payload + fields[f].offset_words, sources[f], fields[f].bytes);
    if (this->epoch(lane) != epoch) return false;
    // release: pairs with the reader's acquire in head(); the row must be visible before its number.
    head_word(lane)->store(row + 1, std::memory_order_release);
    reach(Point::commit);
    // The lane's next row, so that its lines are here when the next step of all lanes is written.
    const char* next = reinterpret_cast<const char*>(meta_at(lane, slot_shift(slot, 1)));
    for (std::size_t at = 0; at < std::min<std::size_t>(row_bytes(), 1024); at += 64) prefetch_to_write(next + at);
    return true;
  }

  void announce(u64 num_rows) { rows_.add(num_rows); }

  // The step that a row appended next has if the lane's episode goes on: 0 when it ended with the newest row, or none is there.
  u64 next_step(std::size_t lane) const {
    const u64 newest = head(lane) - 1;
    if (head(lane) == base(lane)) return 0;
    const RowHead row = row_head(lane, slot_of(lane, newest));
    return row.flags & kLast ? 0 : row.step + 1;
  }

  // --- saving: what a copy of these lanes has to hold -------------------------------------------------------------

  static std::size_t head_bytes(const LaneShape& s) { return (header_words + s.num_lanes * lane_words) * 8; }

  // First byte and number of bytes of each lane's rows.
  std::vector<std::pair<std::size_t, std::size_t>> used() const {
    std::vector<std::pair<std::size_t, std::size_t>> ranges;
    for (std::size_t lane = 0; lane < shape_.num_lanes; ++lane) {
      const std::size_t slots = std::size_t(std::min<u64>(head(lane) - base(lane), shape_.slots));
      ranges.push_back({head_bytes(shape_) + lane * shape_.slots * row_bytes(), slots * row_bytes()});
    }
    return ranges;
  }

  // --- reader ---------------------------------------------------------------------------------------------------

  bool intact(u64 row, u64 head) const { return head - row < shape_.slots; }

  std::size_t slot_of(std::size_t lane, u64 row) const {
    const u64 count = row - base(lane);
    if (count >> 32 == 0 && shape_.slots >> 32 == 0) return u32(count) % u32(shape_.slots);  // half the time of a wide division
    return count % shape_.slots;
  }

  // The slot `by` rows on (or back, when negative), without a division. |by| < slots.
  std::size_t slot_shift(std::size_t slot, i64 by) const {
    const i64 moved = i64(slot) + by, slots = i64(shape_.slots);
    return std::size_t(moved >= slots ? moved - slots : moved < 0 ? moved + slots : moved);
  }

  RowHead row_head(std::size_t lane, std::size_t slot) const {
    const word* meta = meta_at(lane, slot);
    const u64 first = meta[0].load(std::memory_order_acquire);
    return {std::bit_cast<float>(u32(first)), u32(first >> 32), meta[1].load(std::memory_order_acquire)};
  }

  u64 version(std::size_t lane, std::size_t slot) const {
    return meta_at(lane, slot)[2].load(std::memory_order_acquire);
  }

  void copy_field(void* to, std::size_t lane, std::size_t slot, const Field& field) const {
    P::copy_out(to, payload_at(lane, slot) + field.offset_words, field.bytes);
  }

  // A row's words lie together, and a sample's rows side by side: what a draw touches at random is one place, not one per field.
  word* meta_at(std::size_t lane, std::size_t slot) const {
    return slots_ + (lane * shape_.slots + slot) * row_words_;
  }
  word* payload_at(std::size_t lane, std::size_t slot) const { return meta_at(lane, slot) + meta_words; }
  std::size_t row_bytes() const { return row_words_ * 8; }

  // --- priorities: written by the learner, or by the writer with the row ------------------------------------------

  // The priority left for this row, or `otherwise`.
  float priority(std::size_t lane, std::size_t slot, u64 row, float otherwise) const {
    const u64 value = meta_at(lane, slot)[3].load(std::memory_order_relaxed);
    return u32(value >> 32) == tag(row) ? std::bit_cast<float>(u32(value)) : otherwise;
  }
  // Two writers can meet here, the lane's and the learner's. At worst a new row's own priority is lost, and it takes the default.
  void set_priority(std::size_t lane, std::size_t slot, u64 row, float priority) {
    meta_at(lane, slot)[3].store(tagged(row, priority), std::memory_order_relaxed);
  }

  // The largest that a learner gave to any row so far, but at least 1: what a row takes that was given none.
  float max_priority() const { return as_priority(max_priority_->load(std::memory_order_relaxed)); }
  void raise_max_priority(float value) {
    u64 now = max_priority_->load(std::memory_order_relaxed);
    while (value > as_priority(now) &&
           !max_priority_->compare_exchange_weak(now, std::bit_cast<u32>(value), std::memory_order_relaxed)) {
    }
  }

 private:
  static constexpr std::size_t header_words = 8;  // the rows counter and the largest priority, apart from the lanes
  static constexpr std::size_t lane_words = 8;    // head, epoch, base: a line per lane, so that writers do not share one

  // Never 0: a slot that was never given a priority holds a zero word, which must match no row.
  static u32 tag(u64 row) { return u32(row % 0xffffffffu) + 1; }
  static float as_priority(u64 word) { return std::max(std::bit_cast<float>(u32(word)), 1.0f); }
  static u64 tagged(u64 row, float priority) { return u64(tag(row)) << 32 | std::bit_cast<u32>(priority); }

  word* head_word(std::size_t lane) const { return lanes_ + lane * lane_words; }
  word* epoch_word(std::size_t lane) const { return lanes_ + lane * lane_words + 1; }
  word* base_word(std::size_t lane) const { return lanes_ + lane * lane_words + 2; }
  LaneShape shape_;
  Counter<P> rows_;
  word* max_priority_ = nullptr;
  word* lanes_ = nullptr;
  word* slots_ = nullptr;
  std::size_t row_words_ = 0;
};

}  // namespace fw
